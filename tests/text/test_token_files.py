"""Tokens are made once for all ranks and runs, and are what they would be without their files."""

import os
from pathlib import Path

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.text import token_files
from helpers.text.bundled import bundled
from helpers.text.readers import Example
from helpers.text.rows import TokenData, tokenize
from helpers.text.tokenizer import Tokenizer, load_tokenizer
from helpers.text.tokens import batches, load_examples
from tests.support.ranks import forks

CASES = {
    "lm": ("reviews/train.tsv", "lm", True),
    "classify": ("reviews/train.tsv", "classify", True),
    "packed": ("instructions/train.jsonl", "instruct", True),
    "instruct": ("instructions/train.jsonl", "instruct", False),
    "mlm": ("reviews/train.tsv", "mlm", True),
    "classify-head": ("reviews/train.tsv", "classify-head", True),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(token_files, "LEAST_CHARACTERS", 0)


def given(case: str) -> tuple:
    source, task, packed = CASES[case]
    examples = load_examples(bundled(source), task)
    return examples, load_tokenizer(bundled("tokenizer")), task, 64, None, packed


def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each time that text is tokenized."""
    times: list[int] = []
    plain = tokenize
    monkeypatch.setattr(token_files, "tokenize", lambda *x: times.append(1) or plain(*x))
    return times


def assert_same(found: TokenData, expected: TokenData) -> None:
    assert found.digest == expected.digest
    for name in ("pad_id", "truncated", "label_names", "label_token_ids", "masking"):
        assert getattr(found, name) == getattr(expected, name)
    for one, other in zip(batches(found, 8, seed=3), batches(expected, 8, seed=3), strict=True):
        for name, value in vars(other).items():
            same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
            assert same(getattr(one, name), value), name


@pytest.mark.parametrize("case", CASES)
def test_they_are_the_same_from_files(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = made(monkeypatch)
    expected = tokenize(*given(case))
    for _ in range(3):
        found = token_files.tokenized(*given(case))
        assert_same(found, expected)
    assert len(times) == 1
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(token_files.cache()) in maps.read_text()


def test_any_other_text_or_setting_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    times = made(monkeypatch)
    tokenizer = load_tokenizer(bundled("tokenizer"))
    texts = [Example("a good film", None), Example("a bad one", None)]
    token_files.tokenized(texts, tokenizer, "lm", 16)
    token_files.tokenized(texts, tokenizer, "lm", 8)
    token_files.tokenized(texts[:1], tokenizer, "lm", 16)
    token_files.tokenized([Example("a good filma bad one", None)], tokenizer, "lm", 16)
    token_files.tokenized([texts[0]._replace(label="x"), texts[1]], tokenizer, "lm", 16)
    named = Tokenizer(tokenizer.backend, tokenizer.end_id, {"mask_token": "the"})
    token_files.tokenized(texts, named, "lm", 16)
    assert len(times) == 6


def digest_in_a_process(folder: str, barrier, answers) -> None:
    os.environ["XDG_CACHE_HOME"] = folder
    token_files.LEAST_CHARACTERS, plain, times = 0, token_files.tokenize, []
    token_files.tokenize = lambda *x: times.append(1) or plain(*x)
    arguments = given("lm")
    barrier.wait()
    answers.put((token_files.tokenized(*arguments).digest, len(times)))


def test_of_processes_that_come_at_once_one_makes_them(tmp_path: Path) -> None:
    context = forks()
    barrier, answers = context.Barrier(3), context.Queue()
    given_to_all = (str(tmp_path / "cache"), barrier, answers)
    ranks = [context.Process(target=digest_in_a_process, args=given_to_all) for _ in range(3)]
    for rank in ranks:
        rank.start()
    digests, times = zip(*(answers.get(timeout=60) for _ in ranks))
    for rank in ranks:
        rank.join()
    assert set(digests) == {tokenize(*given("lm")).digest}
    assert sum(times) == 1


@pytest.mark.parametrize("name", ["ids.bin", "offsets.bin", "facts.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damaged_files_are_made_anew(name, damage, monkeypatch) -> None:
    expected = token_files.tokenized(*given("lm"))
    [path] = token_files.cache().glob(f"*/{name}")
    content = bytearray(path.read_bytes())
    path.unlink()  # the file that is mapped stays as it is
    content[len(content) // 2] ^= 1
    if damage != "remove":
        path.write_bytes(content if damage == "flip" else content[:-9])
    times = made(monkeypatch)
    assert_same(token_files.tokenized(*given("lm")), expected)
    assert len(times) == 1
    assert_same(token_files.tokenized(*given("lm")), expected)
    assert len(times) == 1


def test_where_nothing_can_be_written_tokens_are_made_all_the_same(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert_same(token_files.tokenized(*given("lm")), tokenize(*given("lm")))


def test_the_last_used_stay(monkeypatch) -> None:
    monkeypatch.setattr(token_files, "MOST", 2)
    tokenizer = load_tokenizer(bundled("tokenizer"))
    times = made(monkeypatch)
    for number in (0, 1, 0, 2, 0):
        token_files.tokenized([Example(f"film {number}", None)], tokenizer, "lm", 16)
    assert len(times) == 3 and len(list(token_files.cache().glob("*/facts.json"))) == 2


def test_what_cannot_be_tokenized_is_said_as_ever() -> None:
    tokenizer = load_tokenizer(bundled("tokenizer"))
    with pytest.raises(UserError, match="two labels or more"):
        token_files.tokenized([Example("a", "x")], tokenizer, "classify", 16)
