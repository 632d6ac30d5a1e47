"""Instructions: prompts, the loss on answers alone, and not a token lost."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.models import documents as packed_rows
from helpers.engine.models.objectives import IGNORED
from helpers.text import packing
from helpers.text.instructions import encode, load_instructions
from helpers.text.readers import Example
from helpers.text.rows import TokenData, tokenize
from helpers.text.tokenizer import load_tokenizer
from helpers.text.tokens import batches, load_examples

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "data" / "instructions"
REAL = ROOT.parent / "shared" / "data" / "instruct"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(ROOT / "data" / "tokenizer")


# --- records to prompts ----------------------------------------------------------------------


def test_the_published_templates(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [
        {"instruction": "Count.", "context": "a b", "response": "2"},
        {"instruction": "Say {yes}.", "context": "", "response": "yes"},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    falcon = [(one.text, one.label) for one in load_instructions(path, template="falcon")]
    assert falcon == [
        ("### Instruction\nCount.\n\n### Context\na b\n\n### Answer\n", "2"),
        ("### Instruction\nSay {yes}.\n\n### Answer\n", "yes"),
    ]
    with_input, without = [one.text for one in load_instructions(path)]
    assert with_input == (
        "Below is an instruction that describes a task, paired with an input that provides "
        "further context. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nCount.\n\n### Input:\na b\n\n### Response:\n"
    )
    assert "Input" not in without and without.endswith("Say {yes}.\n\n### Response:\n")
    (only,) = load_instructions(path, template="dialogue")  # the other record has no dialogue
    assert only.text == "Summarize the chat dialogue:\na b\n---\nSummary:\n"


FILES = {
    "a.jsonl": '{"question": "Add 1 and 1.", "answer": 2}\n\n{"question": "?", "answer": null}',
    "a.json": '[{"instruction": "Add 1 and 1.", "input": null, "output": "2"}]',
    "a.tsv": "prompt\tcompletion\nAdd 1 and 1.\t2\n\t3\n",
    "b.jsonl": '{"prompt": "Add 1 and 1.", "system": " ", "history": [], "completion": "2"}',
    "a.csv": 'response,instruction,context\n2,Add 1 and 1.,""\n',
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_and_column_name_gives_the_same(tmp_path, name):
    (tmp_path / name).write_text(FILES[name])
    (one,) = load_examples(tmp_path / name, "instruct", template="falcon")
    assert (one.text, one.label) == ("### Instruction\nAdd 1 and 1.\n\n### Answer\n", "2")


BAD = {
    "a.jsonl": ('{"instruction": "a"}', "line 1: no column output or response or .*found: instr"),
    "b.jsonl": ('{"output": "a"}', "line 1: no column instruction or question"),
    "c.jsonl": ('{"instruction": "a", "output": [1]}', r"line 1: output is not text but \[1\]"),
    "d.jsonl": ('{"instruction": "a", "output": " "}', "no usable row"),
    # that an answer was written to, and that would be left out of its prompt in silence
    "g.jsonl": ('{"instruction": "a", "system": "be brief", "output": "b"}', "1: system has no"),
    "h.jsonl": ('{"prompt": "a", "history": [["b", "c"]], "output": "d"}', "history has no place"),
    "e.tsv": ("instruction\toutput\n", "has no rows"),
    "f.txt": ("text", "plain text has no columns"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_explained_in_one_line(tmp_path, name):
    (tmp_path / name).write_text(BAD[name][0])
    with pytest.raises(UserError, match=BAD[name][1]) as caught:
        load_examples(tmp_path / name, "instruct")
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_an_unknown_template_is_named():
    with pytest.raises(UserError, match="unknown template 'chat': alpaca, falcon, dialogue"):
        load_instructions(OURS / "train.jsonl", template="chat")


PREPARE = """
import sys
from pathlib import Path
from datasets.packaged_modules.json.json import Json

root, cache = Path(sys.argv[1]), Path(sys.argv[1]) / "datasets"
(root / "train.jsonl").write_text('{"instruction": "Say yes.", "context": "", "response": "yes"}')
files = {"train": [str(root / "train.jsonl")]}
Json(cache_dir=str(cache), dataset_name="small", data_files=files, hash="0").download_and_prepare()
(prepared,) = (cache / "small").iterdir()
(cache / "someone___small").mkdir()
prepared.rename(cache / "someone___small" / "default")
snapshot = root / "hub" / "datasets--someone--small" / "snapshots" / "0"
snapshot.mkdir(parents=True)
(snapshot.parents[1] / "refs").mkdir()
(snapshot.parents[1] / "refs" / "main").write_text("0")
"""
LOAD = """
from helpers.text.tokens import load_examples

print(load_examples("someone/small", "instruct", template="falcon"))
"""


def test_a_hub_data_set_is_read_from_its_cache(tmp_path):
    pytest.importorskip("datasets")
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    for code in (PREPARE, LOAD):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    example = Example(
        "### Instruction\nSay yes.\n\n### Answer\n", "yes", "someone/small train row 1"
    )
    assert done.stdout.splitlines()[-1] == repr([example])


# --- prompts to rows -------------------------------------------------------------------------

asked = st.lists(
    st.tuples(st.text("abc .", min_size=1, max_size=60), st.text("xyz .", max_size=60)),
    min_size=1,
    max_size=12,
)


def rows_of(data: TokenData) -> list[list[tuple[list[int], list[int]]]]:
    """Of each row, the ids and targets of each document."""
    rows = []
    for begin, end in zip(data.offsets[:-1].tolist(), data.offsets[1:].tolist(), strict=True):
        numbers = data.documents[begin:end] if data.documents is not None else [0] * (end - begin)
        row: dict[int, tuple[list[int], list[int]]] = {}
        for place, number in zip(range(begin, end), numbers):
            ids, targets = row.setdefault(int(number), ([], []))
            ids.append(int(data.ids[place]))
            targets.append(int(data.targets[place]))
        assert list(row) == list(range(len(row)))
        rows.append(list(row.values()))
    return rows


@settings(deadline=None)
@given(asked, st.integers(2, 64), st.booleans())
def test_every_part_with_a_loss_is_there_once_and_the_loss_is_on_answers_alone(
    tokenizer, asked, seq_len, packed
):
    examples = [Example(prompt, answer) for prompt, answer in asked]
    data = tokenize(examples, tokenizer, "instruct", seq_len, packed=packed)
    expected: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for ids, prompt in zip(*encode(examples, tokenizer), strict=True):
        for part in packing.cut(len(ids), seq_len):
            # the model's shift takes a token's target from the place before it: a part's first
            # token has none in its own document
            learnt = [i >= prompt and i > part.start for i in part]
            targets = [ids[i] if yes else IGNORED for i, yes in zip(part, learnt, strict=True)]
            if any(learnt):
                expected.append((tuple(ids[part.start : part.stop]), tuple(targets)))
    rows = rows_of(data)
    made = [(tuple(ids), tuple(targets)) for row in rows for ids, targets in row]
    assert Counter(made) == Counter(expected)
    assert max(sum(len(ids) for ids, _ in row) for row in rows) <= seq_len
    if not packed:
        assert data.documents is None and all(len(row) == 1 for row in rows)


def test_a_prompt_keeps_its_tokens_whatever_the_answer(tokenizer):
    """Encoded together, the last token of one and the first of the other could become one."""
    one, other = encode([Example("It was gre", "at"), Example("It was gre", "en")], tokenizer)[0]
    prompt = tokenizer.encode(["It was gre"])[0]
    assert one[: len(prompt)] == other[: len(prompt)] == prompt
    assert one != [*tokenizer.encode(["It was great"])[0], tokenizer.end_id]


def published_chunks(batches_of_documents, length: int):
    """What the published Falcon and GPT-NeoX preparations do: join a batch of documents after what
    the batch before left over, cut whole chunks off, and keep the rest for the next batch."""
    left_over: list[int] = []
    for documents in batches_of_documents:
        stream = left_over + list(chain(*documents))
        if len(stream) >= length:
            whole = len(stream) // length * length
        left_over = stream[whole:]
        yield from (stream[begin : begin + length] for begin in range(0, whole, length))


def test_the_published_chunking_loses_the_remainder_and_ours_does_not(tokenizer):
    examples = load_examples(OURS / "train.jsonl", "instruct", template="falcon")
    documents, _ = encode(examples, tokenizer)
    tokens = Counter(chain(*documents))
    length = 256
    theirs = Counter(chain(*published_chunks([documents[:100], documents[100:]], length)))
    ours = tokenize(examples, tokenizer, "instruct", length)
    assert (tokens - theirs).total() == tokens.total() % length > 0
    assert Counter(ours.ids.tolist()) == tokens
    with pytest.raises(UnboundLocalError):  # a batch that fills no chunk
        list(published_chunks([documents[:1]], length))
    assert len(tokenize(examples[:1], tokenizer, "instruct", length)) == 1


def test_our_set_packs_well_and_batches_carry_the_documents(tokenizer):
    examples = load_examples(OURS / "train.jsonl", "instruct", template="falcon")
    data = tokenize(examples, tokenizer, "instruct", 256)
    assert len(data) * 256 < 1.1 * len(data.ids)
    separate = tokenize(examples, tokenizer, "instruct", 256, packed=False)
    assert len(separate) == 300 and len(data) < 100
    seen = 0
    for batch in batches(data, 4, seed=0):
        assert batch.documents.shape == batch.input_ids.shape
        padded = batch.documents == packed_rows.PADDING
        assert int((~padded).sum()) == batch.tokens
        assert (batch.labels[padded] == IGNORED).all()
        begins = packed_rows.positions(batch.documents) == 0
        assert (batch.labels[begins] == IGNORED).all()
        seen += int((begins & ~padded).sum())
    assert seen == 300
    assert next(batches(separate, 4, seed=0)).documents is None


def test_answers_can_be_read_back(tokenizer):
    examples = load_examples(OURS / "heldout.jsonl", "instruct")
    data = tokenize(examples, tokenizer, "instruct", 512)
    learnt = [
        tokenizer.decode([target for target in targets if target != IGNORED])
        for row in rows_of(data)
        for _, targets in row
    ]
    end = tokenizer.decode([tokenizer.end_id])
    assert sorted(learnt) == sorted(one.label + end for one in examples)


@pytest.mark.parametrize("packed", (True, False))
def test_those_that_are_cut_are_counted(tokenizer, packed):
    examples = load_examples(OURS / "train.jsonl", "instruct")
    lengths = [len(document) for document in encode(examples, tokenizer)[0]]
    for seq_len in (64, 128, max(lengths)):
        data = tokenize(examples, tokenizer, "instruct", seq_len, packed=packed)
        assert data.truncated == sum(length > seq_len for length in lengths)


@pytest.mark.parametrize("packed", (True, False))
def test_no_batch_is_without_a_loss(tokenizer, packed):
    """A step on a prompt's parts alone had a loss of 0, and moved the weights by their decay."""
    data = tokenize([Example("so long " * 40, "yes")], tokenizer, "instruct", 16, packed=packed)
    losses = [int((batch.labels != IGNORED).sum()) for batch in batches(data, 1, seed=0)]
    assert losses and all(losses)
    assert sum(losses) == len(tokenizer.encode(["yes"])[0]) + 1


def test_what_begins_in_the_middle_of_an_answer_is_not_predicted(tokenizer):
    """From the row's document before, which is another."""
    examples = [Example("so", "yes and no " * count) for count in range(1, 30)]
    data = tokenize(examples, tokenizer, "instruct", 32)
    begins = data.documents.diff(prepend=data.documents[:1]) != 0
    begins[data.offsets[:-1]] = True
    assert begins.sum() > len(data) and data.truncated > 0
    assert (data.targets[begins] == IGNORED).all()


def test_a_row_needs_room_for_two_tokens(tokenizer):
    with pytest.raises(UserError, match="seq_len 1 leaves nothing to predict"):
        tokenize([Example("a", "b")], tokenizer, "instruct", 1)


@pytest.mark.skipif(not REAL.is_dir(), reason="no ../shared/data here")
@pytest.mark.parametrize(
    ("name", "rows"), [("instruction-data.json", 1100), ("gsm8k_train.jsonl", 7473)]
)
def test_real_instructions_keep_every_token(name: str, rows: int) -> None:
    falcon = load_tokenizer(REAL.parent / "falcon_tokenizer")
    examples = load_examples(REAL / name, "instruct", template="falcon")
    assert len(examples) == rows
    examples = examples[:1100]
    data = tokenize(examples, falcon, "instruct", 512)
    documents, prompts = encode(examples, falcon)
    assert torch.equal(data.ids.sort().values, torch.tensor(sorted(chain(*documents))))
    answers = sum(map(len, documents)) - sum(prompts)
    assert int((data.targets != IGNORED).sum()) == answers  # none was cut
    assert len(data) * 512 < 1.03 * len(data.ids)


@pytest.mark.parametrize("name", ["both.jsonl", "both.csv"])
def test_a_file_of_two_data_sets_loses_none_of_them(tmp_path, name):
    """Its records have the columns of both, half of them empty."""
    rows = [{"instruction": "a", "input": "x", "output": "1"}]
    rows.append({"instruction": "b", "context": "y", "response": "2"})
    table = pd.DataFrame(rows)
    if name.endswith("csv"):
        table.to_csv(tmp_path / name, index=False)
    else:
        table.to_json(tmp_path / name, orient="records", lines=True)
    first, second = load_instructions(tmp_path / name, template="falcon")
    assert (first.label, second.label) == ("1", "2")
    assert "### Context\nx\n" in first.text and "### Context\ny\n" in second.text
