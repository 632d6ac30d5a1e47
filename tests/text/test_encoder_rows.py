"""Rows for encoders: special tokens, what is masked, and batches that no layout changes."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.models.objectives import IGNORED
from helpers.text import encoder_rows
from helpers.text.bundled import bundled
from helpers.text.encoder_rows import Masking, SpecialTokens, stream_rows, text_rows
from helpers.text.readers import Example
from helpers.text.rows import tokenize
from helpers.text.tokenizer import Tokenizer, load_tokenizer
from helpers.text.tokens import batches, load_examples

EXAMPLES = [Example("a good film", "1"), Example("dull and far too long", "0")] * 40


@pytest.fixture(scope="module")
def bare():
    """The bundled tokenizer, which has none of an encoder's tokens."""
    return load_tokenizer(bundled("tokenizer"))


@pytest.fixture(scope="module")
def berts(tmp_path_factory):
    """A tokenizer with tokens of its own for all that an encoder needs."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "film", "dull", "and"]
    words += ["far", "too", "long"]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return load_tokenizer(path)


def test_a_tokenizer_with_such_tokens_keeps_its_ids(berts) -> None:
    special = SpecialTokens.of(berts)
    assert (special.first, special.last, special.pad, special.mask) == (2, 3, 0, 4)
    assert special.moved == 0 and special.vocab_size == 13
    data = tokenize(EXAMPLES[:1], berts, "classify-head", 16, labels=("0", "1"))
    assert data.ids.tolist() == [2, 5, 6, 7, 3] and data.pad_id == 0


def test_one_without_them_gets_them_below_its_own(bare) -> None:
    special = SpecialTokens.of(bare)
    assert sorted((special.first, special.pad, special.last, special.mask)) == [0, 1, 2, 3]
    assert special.pad == 1, "RoBERTa counts positions from there"
    assert special.vocab_size == bare.vocab_size + 4
    own = bare.encode(["a good film"])[0]
    data = tokenize(EXAMPLES[:1], bare, "classify-head", 16, labels=("0", "1"))
    assert data.ids.tolist() == [special.first, *(token + 4 for token in own), special.last]


def test_classes_are_numbers_of_rows(bare) -> None:
    data = tokenize(EXAMPLES, bare, "classify-head", 6)
    assert data.label_names == ("0", "1") and data.row_labels.tolist() == [1, 0] * 40
    assert data.truncated == 40 and data.offsets.diff().max() == 6
    batch = next(batches(data, 16, seed=0))
    assert batch.labels.shape == (16,) and batch.input_ids.dim() == 2
    assert batch.attention_mask.sum() == batch.tokens
    assert ((batch.input_ids == data.pad_id) == (batch.attention_mask == 0)).all()
    with pytest.raises(UserError, match="label '2' is not among 0, 1"):
        tokenize([Example("x", "2")], bare, "classify-head", 6, labels=("0", "1"))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(4, 99), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(3, 9),
)
def test_no_token_of_a_stream_is_lost(texts: list[list[int]], seq_len: int) -> None:
    special = SpecialTokens(first=0, pad=1, last=2, mask=3, moved=4, vocab_size=100)
    rows = stream_rows(texts, special, seq_len)
    assert all(row[0] == 0 and row[-1] == 2 and len(row) <= seq_len for row in rows)
    inside = [token for row in rows for token in row[1:-1]]
    assert inside == [token for ids in texts for token in [*ids, 2]][:-1]
    for row, ids in zip(text_rows(texts, special, seq_len), texts, strict=True):
        assert row == [0, *ids[: seq_len - 2], 2]
    with pytest.raises(UserError, match="at least 3"):
        stream_rows(texts, special, 2)


def test_of_the_masked_four_fifths_are_masks_and_a_tenth_each_another_and_itself() -> None:
    masking = Masking(mask=3, special=(0, 1, 2, 3), others=(4, 10_000))
    ids = torch.randint(4, 10_000, (400, 500), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, -1] = 0, 2
    mask = torch.ones_like(ids)
    mask[:, 100:120] = 0
    found, labels = masking.apply(ids, mask, seed=7)
    chosen = labels != -100
    assert not chosen[:, 0].any() and not chosen[:, -1].any() and not chosen[:, 100:120].any()
    assert torch.equal(labels[chosen], ids[chosen]) and torch.equal(found[~chosen], ids[~chosen])
    share = chosen.sum() / (400 * 478)
    assert share == pytest.approx(0.15, abs=0.003)
    masked, same = (found == 3)[chosen].float().mean(), (found == ids)[chosen].float().mean()
    assert masked == pytest.approx(0.8, abs=0.01) and same == pytest.approx(0.1, abs=0.01)


def test_a_batch_of_few_tokens_has_one_that_is_masked(bare) -> None:
    """By chance most would have none, and a step on them a loss of 0."""
    special = SpecialTokens.of(bare)
    ids = torch.tensor([[special.first, 200, 201, special.last]])
    for seed in range(50):
        masked, labels = Masking.by(special).apply(ids, torch.ones_like(ids), seed)
        places = labels != -100
        assert places[0, 1:3].any() and not places[0, ::3].any()
        assert torch.equal(labels[places], ids[places])
        assert torch.equal(masked[~places], ids[~places])


def test_another_token_is_none_of_those_that_rows_need(bare) -> None:
    """In a tenth of the places that are masked another stands, of the tokenizer's own."""
    masking, ids = Masking.by(SpecialTokens.of(bare)), torch.full((400, 500), 200)
    masking = masking._replace(others=(masking.others[0], masking.others[0] + 8))
    found, _ = masking.apply(ids, torch.ones_like(ids), seed=0)
    assert set(found.unique().tolist()) == {masking.mask, 200, *range(4, 12)}


def test_masks_are_drawn_anew_each_time_and_alike_for_everybody(bare) -> None:
    data = tokenize(EXAMPLES, bare, "mlm", 16)

    def taken(**options) -> list[list]:
        found = batches(data, 8, **{"seed": 0, "shuffle": False} | options)
        return [[batch.input_ids.tolist(), batch.labels.tolist()] for batch in found]

    first = taken()
    assert taken() == first and taken(start=2) == first[2:], "a resumed run masks the same"
    for other in (taken(epoch=1), taken(seed=1)):
        pairs = zip(other, first, strict=True)
        assert all(one != two for one, two in pairs)
    places = [[[token != -100 for token in row] for row in labels] for _, labels in first]
    assert all(one != two for one, two in itertools.combinations(places, 2)), "of another batch"
    assert any(token != -100 for batch in first for row in batch[1] for token in row)


def test_a_digest_knows_labels_and_masking(bare) -> None:
    data = tokenize(EXAMPLES, bare, "classify-head", 16)
    turned = [Example(one.text, "1" if one.label == "0" else "0") for one in EXAMPLES]
    assert data.digest != tokenize(turned, bare, "classify-head", 16).digest
    assert data.digest == tokenize(EXAMPLES, bare, "classify-head", 16).digest


def test_plain_text_can_be_masked_and_not_classified(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("Much ado about nothing.")
    assert len(load_examples(path, "mlm")) == 1
    with pytest.raises(UserError, match="task classify-head needs TSV, CSV, JSON"):
        load_examples(path, "classify-head")
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "good"}))
    with pytest.raises(UserError, match="task classify-head needs sentence"):
        load_examples(tmp_path / "x.jsonl", "classify-head")


KINDS = {
    "bpe": lambda: tokenizers.Tokenizer.from_file(str(bundled("tokenizer") / "tokenizer.json")),
    "unigram": lambda: tokenizers.Tokenizer(
        tokenizers.models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -1.5)], 0)
    ),
    "words": lambda: tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>")
    ),
    "words and a pad": lambda: with_its_own(
        tokenizers.models.WordLevel({"[PAD]": 0, "<unk>": 1, "a": 2, "b": 3}, unk_token="<unk>"),
        "[PAD]",
    ),
    "words, a first and a last": lambda: tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "[CLS]": 1, "a": 2, "[SEP]": 3}, unk_token="<unk>")
    ),
    "unigram and a pad": lambda: with_its_own(
        tokenizers.models.Unigram([("<unk>", 0.0), ("[PAD]", 0.0), ("a", -1.0), ("b", -2.0)], 0),
        "[PAD]",
    ),
}


def with_its_own(model, token: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens([token])
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_tokenizer_gives_the_rows_that_were_trained_on(kind: str, tmp_path: Path) -> None:
    """The tokens' ids were four too low in what transformers loaded beside the weights."""
    KINDS[kind]().save(str(tmp_path / "tokenizer.json"))
    plain = load_tokenizer(tmp_path)
    special = SpecialTokens.of(plain)
    (tmp_path / "saved").mkdir()
    encoder_rows.write_tokenizer(plain, tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    found = SpecialTokens.of(again)  # a place at the end that no text has any more may be left out
    assert found == replace(special, moved=0, vocab_size=found.vocab_size)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in ("ab a b", "a", "b ab <|endoftext|>"):
        row = special.row([token + special.moved for token in plain.encode([text])[0]])
        assert special.row(again.encode([text])[0]) == row == theirs(text).input_ids
    ids = (theirs.cls_token_id, theirs.pad_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert ids == (special.first, special.pad, special.last, special.mask)


def test_tokens_of_other_names_are_those_that_the_files_name(tmp_path: Path) -> None:
    words = ["<cls>", "<pad>", "<eos>", "<unk>", "<blank>", "a"]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.save(str(tmp_path / "tokenizer.json"))
    assert SpecialTokens.of(load_tokenizer(tmp_path)).moved == 4
    mask = {"__type": "AddedToken", "content": "<blank>", "special": True}
    names = {"cls_token": "<cls>", "pad_token": "<pad>", "mask_token": mask}
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(names | {"eos_token": "<eos>"}))
    special = SpecialTokens.of(load_tokenizer(tmp_path))
    assert (special.first, special.pad, special.last, special.mask, special.moved) == (
        0,
        1,
        2,
        4,
        0,
    )


def test_every_batch_of_masked_text_has_a_label(bare) -> None:
    data = tokenize(EXAMPLES, bare, "mlm", 3)
    assert all((batch.labels != IGNORED).any() for batch in batches(data, 1, seed=0))


@pytest.mark.parametrize("texts", [1, 2])
def test_text_without_a_token_is_said(texts: int) -> None:
    with pytest.raises(UserError, match="it is blank"):
        tokenize([Example("\u200b", None)] * texts, blank_tokenizer(), "mlm", 16)


def blank_tokenizer() -> Tokenizer:
    """Of which nothing that is no word is a token."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[CLS]": 0, "[PAD]": 1, "[SEP]": 2}))
    made.add_special_tokens(["[MASK]"])
    made.normalizer = tokenizers.normalizers.Replace("\u200b", "")
    return Tokenizer(made, None)
