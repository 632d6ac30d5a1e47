"""The bundled data: made again it is the same, and it is what its README says."""

import hashlib
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from helpers.text.tokenizer import load_tokenizer
from helpers.text.tokens import load_examples

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"


@pytest.fixture(scope="module")
def reviews():
    return {
        name: load_examples(DATA / "reviews" / f"{name}.tsv", "classify")
        for name in ("train", "heldout")
    }


def test_making_the_data_again_gives_the_same_bytes(tmp_path):
    pytest.importorskip("tokenizers")
    command = [sys.executable, str(ROOT / "scripts/data/make_data.py"), "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    made = {path.relative_to(tmp_path): path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(made) == 7
    different = [
        str(name) for name, path in made.items() if path.read_bytes() != (DATA / name).read_bytes()
    ]
    assert different == []


def test_the_checksums_hold():
    lines = (DATA / "SHA256SUMS").read_text("utf-8").splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    on_disk = {
        path.relative_to(DATA).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in ("reviews", "instructions", "tokenizer")
        for path in (DATA / part).rglob("*")
        if path.is_file()
    }
    assert listed == on_disk


def test_no_sentence_stands_twice_and_labels_are_half_and_half(reviews):
    sentences = [one.text.lower() for rows in reviews.values() for one in rows]
    assert len(set(sentences)) == len(sentences) == 4400
    for rows, count in ((reviews["train"], 2000), (reviews["heldout"], 200)):
        assert Counter(one.label for one in rows) == {"0": count, "1": count}


def test_held_out_sentences_use_the_words_of_training_in_new_ways(reviews):
    words = {
        name: {word for one in rows for word in split(one.text)} for name, rows in reviews.items()
    }
    assert words["heldout"] <= words["train"]
    new_template = re.compile(
        r", and so (is|are) the |^Nothing about |^Even if |at the start, but never"
    )
    assert not any(new_template.search(one.text) for one in reviews["train"])
    assert sum(bool(new_template.search(one.text)) for one in reviews["heldout"]) == 40
    pairs = {
        name: {pair for one in rows for pair in simple_pairs(one.text)}
        for name, rows in reviews.items()
    }
    new = pairs["heldout"] - pairs["train"]
    assert len(new) > 0.3 * len(pairs["heldout"])


def test_counting_words_is_not_enough_for_the_held_out_labels(reviews):
    """Naive Bayes over words: above chance, and far from what a model that reads order can do."""
    assert 0.70 < naive_bayes(reviews["train"], reviews["heldout"]) < 0.85


@pytest.fixture(scope="module")
def instructions():
    return {
        name: [json.loads(line) for line in open(DATA / "instructions" / f"{name}.jsonl")]
        for name in ("train", "heldout")
    }


def test_no_instruction_is_asked_twice_and_kinds_are_equal(instructions):
    wordings = {name: Counter(map(wording, rows)) for name, rows in instructions.items()}
    for name, each in (("train", 30), ("heldout", 6)):
        assert len(instructions[name]) == 10 * each
        kinds = [sum(wordings[name][one] for one in pair) for pair in WORDINGS]
        assert kinds == [each] * 10
    asked = [(kind(one), given(one)) for rows in instructions.values() for one in rows]
    assert len(set(asked)) == 360


def test_answers_are_right_where_they_can_be_computed(instructions):
    right = {
        1: lambda text: str(len(text.split())),
        2: lambda text: " ".join(text.split()[::-1]),
        3: lambda text: " ".join(sorted(text.split())),
        4: str.upper,
        5: lambda text: re.match(r"In (\w+ \w+) the", text)[1] + ".",
        6: lambda text: text.split(" plays ")[0] + ".",
        8: lambda text: re.sub(r"^The (.+?) (is|are) ", r"The \1 \2 not ", text),
    }
    checked = 0
    for one in (one for rows in instructions.values() for one in rows):
        if kind(one) in right:
            assert one["output"] == right[kind(one)](given(one))
            checked += 1
    assert checked == 7 * 36


# of each kind, the wordings, in the order of scripts/data/instruction_grammar.py
WORDINGS = (
    ("Is this praise or blame?", "Say whether this review praises or blames."),
    ("How many words does this sentence have?", "Count the words."),
    ("Write these words in reverse order.", "Reverse the order of the words."),
    ("Put these words in alphabetical order.", "Sort the words by alphabet."),
    ("Write the title ... in capital letters.", "Write ... in capitals."),
    ("Which film is this about?", "Name the film."),
    ("Who plays in it?", "Name the actor."),
    ("Which part of the film is judged here?", "What is this sentence about?"),
    ("Deny this sentence.", "Say the opposite."),
    ("Complete the sentence.", "How could this go on?"),
)
TITLED = re.compile(r"Write (?:the title )?(\w+ \w+) in capital")


def wording(one: dict[str, str]) -> str:
    found = None if one["input"] else TITLED.match(one["instruction"])
    return one["instruction"].replace(found[1], "...") if found else one["instruction"]


def given(one: dict[str, str]) -> str:
    return one["input"] or TITLED.match(one["instruction"])[1]


def kind(one: dict[str, str]) -> int:
    return next(number for number, pair in enumerate(WORDINGS) if wording(one) in pair)


def split(text: str) -> list[str]:
    return re.findall(r"[a-z-]+", text.lower())


def simple_pairs(text: str) -> list[tuple[str, str]]:
    return re.findall(r"[Tt]he ([a-z ]+?) (?:is|are) ([a-z-]+)[.,]", text)


def naive_bayes(train, held_out) -> float:
    """Share of held-out labels that word counts with add-one smoothing get right."""
    counts = {label: Counter() for label in ("0", "1")}
    for one in train:
        counts[one.label].update(split(one.text))
    vocabulary = len(counts["0"] | counts["1"])
    totals = {label: sum(words.values()) + vocabulary for label, words in counts.items()}

    def score(text: str, label: str) -> float:
        return sum(math.log((counts[label][word] + 1) / totals[label]) for word in split(text))

    right = sum(
        (score(one.text, "1") > score(one.text, "0")) == (one.label == "1") for one in held_out
    )
    return right / len(held_out)


def test_the_tokenizer_fits_the_tiny_models_and_the_task():
    tokenizer = load_tokenizer(DATA / "tokenizer")
    assert (tokenizer.vocab_size, tokenizer.end_id) == (2048, 0)
    assert [len(ids) for ids in tokenizer.encode([" great", " terrible"])] == [1, 1]
