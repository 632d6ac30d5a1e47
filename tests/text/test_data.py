"""Reading text, making rows of tokens, and cutting them into batches."""

import csv
import json
import shutil
import time
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.models.objectives import IGNORED
from helpers.text.bundled import bundled
from helpers.text.label_words import classes, verbalize
from helpers.text.readers import Example
from helpers.text.rows import TokenData, tokenize
from helpers.text.tokenizer import Tokenizer, copy_tokenizer, load_tokenizer
from helpers.text.tokens import batches, load_examples, steps_per_epoch

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data"
needs_real_data = pytest.mark.skipif(not (REAL / "sst2").is_dir(), reason="no ../shared/data here")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(ROOT / "data" / "tokenizer")


# --- batches ---------------------------------------------------------------------------------


def token_data(lengths: list[int]) -> TokenData:
    """Rows of these lengths in which every token is different, so that each can be followed."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    ids = torch.arange(1, int(offsets[-1]) + 1)
    return TokenData(ids, ids, offsets, pad_id=0)


def rows_of(batch) -> list[tuple[int, ...]]:
    return [
        tuple(ids[labels != IGNORED].tolist())
        for ids, labels in zip(batch.input_ids, batch.labels, strict=True)
    ]


many_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=300)
sizes = st.integers(1, 40)


@given(many_lengths, sizes, st.integers(-5, 5), st.integers(0, 3), st.booleans())
def test_an_epoch_holds_every_row_once(lengths, size, seed, epoch, shuffle):
    data = token_data(lengths)
    made = list(batches(data, size, seed=seed, epoch=epoch, shuffle=shuffle))
    expected = [
        tuple(data.ids[start:end].tolist())
        for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True)
    ]
    assert sorted(row for batch in made for row in rows_of(batch)) == sorted(expected)
    assert len(made) == steps_per_epoch(data, size)
    assert [batch.samples for batch in made[:-1]] == [size] * (len(made) - 1)
    assert made[-1].samples == len(lengths) - size * (len(made) - 1)


@given(many_lengths, sizes, st.integers(0, 400))
def test_a_later_start_leaves_out_the_first_batches(lengths, size, start):
    data = token_data(lengths)
    whole = list(batches(data, size, seed=3, epoch=1))
    rest = list(batches(data, size, seed=3, epoch=1, start=start))
    assert len(rest) == max(0, len(whole) - start)
    for one, other in zip(whole[start:], rest, strict=True):
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.labels, other.labels)


def test_no_rows_make_no_batches(tokenizer):
    data = tokenize([], tokenizer, "instruct", 8)
    for shuffle in (True, False):
        with pytest.raises(UserError, match="there is no row to make batches of"):
            next(batches(data, 1, seed=0, shuffle=shuffle))


@given(many_lengths, sizes)
def test_padding_is_on_the_right_and_ignored(lengths, size):
    for batch in batches(token_data(lengths), size, seed=0):
        width = batch.input_ids.shape[1]
        padded = batch.input_ids == 0
        assert not padded.all(0).any()  # as narrow as the longest row
        assert ((batch.labels == IGNORED) == padded).all()
        for row in padded:
            assert not row[: width - int(row.sum())].any()


def test_the_order_depends_on_seed_and_epoch_alone():
    data = token_data([1 + row % 7 for row in range(500)])

    def order(**arguments) -> list:
        return [row for batch in batches(data, 8, **arguments) for row in rows_of(batch)]

    torch.manual_seed(1)
    first = order(seed=0)
    torch.manual_seed(2)
    assert order(seed=0) == first
    others = [order(seed=1), order(seed=0, epoch=1), order(seed=0, shuffle=False)]
    assert all(other != first for other in others)
    assert others[0] != others[1]


def test_rows_of_similar_length_come_together():
    generator = torch.Generator().manual_seed(0)
    data = token_data(torch.randint(1, 60, (2000,), generator=generator).tolist())
    padded = sum(batch.input_ids.numel() for batch in batches(data, 16, seed=0))
    assert padded < 1.1 * len(data.ids)
    widths = [batch.input_ids.shape[1] for batch in batches(data, 16, seed=0)]
    assert widths != sorted(widths)


def test_a_batch_needs_a_size():
    with pytest.raises(UserError, match="at least 1"):
        next(batches(token_data([2]), 0, seed=0))


# --- rows ------------------------------------------------------------------------------------

texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=8)


@settings(deadline=None)
@given(texts, st.integers(2, 24))
def test_language_modelling_keeps_every_token_once(tokenizer, texts, seq_len):
    if sum(len(ids) for ids in tokenizer.encode(texts)) == 0:
        return
    data = tokenize([Example(text, None) for text in texts], tokenizer, "lm", seq_len)
    stream = [token for ids in tokenizer.encode(texts) for token in [*ids, tokenizer.end_id]]
    if seq_len == 2 and len(stream) % 2:
        stream.pop()  # alone in a row, it would have nothing to predict
    assert data.ids.tolist() == stream
    assert data.targets.tolist() == stream
    lengths = data.offsets.diff().tolist()
    assert max(lengths) <= seq_len
    assert min(lengths) >= 2  # every row has something to predict
    assert set(lengths[:-2]) <= {seq_len}


def test_classification_takes_the_loss_on_the_label_alone(tokenizer):
    examples = [Example("The ending is superb.", "1"), Example("The plot is dull. ", "0")]
    data = tokenize(examples, tokenizer, "classify", 32)
    batch = next(batches(data, 2, seed=0, shuffle=False))
    assert data.label_names == ("0", "1")
    assert tokenizer.decode(batch.input_ids[0].tolist()) == "The ending is superb. It was great"
    for row, example in enumerate(examples):
        (place,) = (batch.labels[row] != IGNORED).nonzero()
        assert batch.labels[row, place] == data.label_token_ids[example.label]
        assert batch.input_ids[row, place] == batch.labels[row, place]
    assert tokenizer.decode([data.label_token_ids["0"]]) == " terrible"


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(4, 40))
def test_a_long_sentence_keeps_its_beginning_and_is_counted(tokenizer, words, seq_len):
    sentence = " ".join(["slow"] * words)
    examples = [Example(sentence, "1"), Example("fine", "0")]
    behind = len(tokenizer.encode([" It was"])[0]) + 1
    try:
        data = tokenize(examples, tokenizer, "classify", seq_len)
    except UserError as error:
        assert str(error).endswith(f"leaves no room for text; at least {behind + 1}")
        assert seq_len <= behind
        return
    row = data.ids[: data.offsets[1]].tolist()
    ids, fine = tokenizer.encode([sentence, "fine"])
    kept = (data.offsets.diff() - behind).tolist()
    assert row[: kept[0]] == ids[: kept[0]]
    assert kept == [min(len(one), seq_len - behind) for one in (ids, fine)] and min(kept) > 0
    assert data.truncated == sum(many < len(one) for many, one in zip(kept, (ids, fine)))
    fitting = tokenize(examples, tokenizer, "classify", len(ids) + behind)
    assert fitting.truncated == (len(fine) > len(ids))
    assert row[-1] == data.label_token_ids["1"]


@pytest.mark.parametrize("names", [["cat", "dog"], ["sport", "world", "business"], list("abcdefg")])
def test_any_labels_get_one_token_each(tokenizer, names):
    examples = [Example(f"text {name}", name) for name in names]
    data = tokenize(examples, tokenizer, "classify", 32)
    assert set(data.label_token_ids) == set(names)
    assert len(set(data.label_token_ids.values())) == len(names)
    assert data.targets[data.targets != IGNORED].tolist() == [
        data.label_token_ids[name] for name in names
    ]


def test_two_dashes_are_no_sign(tokenizer):
    examples = [Example("text", name) for name in ("--5", "3")]
    assert tokenize(examples, tokenizer, "classify", 32).label_names == ("3", "--5")


def test_numbered_labels_are_ordered_by_value(tokenizer):
    examples = [Example("text", str(number)) for number in (10, 9, 2)]
    assert tokenize(examples, tokenizer, "classify", 32).label_names == ("2", "9", "10")


def test_a_label_that_training_does_not_know_is_named(tokenizer, tmp_path):
    path = write(tmp_path / "dev.tsv", "sentence\tlabel\ngood\t1\nso so\t2\n")
    with pytest.raises(UserError, match=r"dev\.tsv line 3: the label '2' is not among 0, 1"):
        tokenize(load_examples(path, "classify"), tokenizer, "classify", 32, labels=("0", "1"))


def test_one_class_is_not_a_classification(tokenizer):
    with pytest.raises(UserError, match="two labels or more; found: 1"):
        tokenize([Example("good", "1")], tokenizer, "classify", 32)


@pytest.mark.parametrize(("task", "seq_len"), [("lm", 1), ("classify", 3)])
def test_a_sequence_length_without_room_is_refused(tokenizer, task, seq_len):
    examples = [Example("good", "1"), Example("bad", "0")]
    with pytest.raises(UserError, match=f"seq_len {seq_len} leaves no"):
        tokenize(examples, tokenizer, task, seq_len)


# --- files -----------------------------------------------------------------------------------


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


GOOD_FILES = {
    "a.tsv": 'sentence\tlabel\nA "fine" film\t1\r\n\nDull, long\t0\n',
    "b.tsv": 'id\tlabel\ttext\n7\t1\tA "fine" film\n8\t0\tDull, long',
    "a.csv": 'text,label\n"A ""fine"" film",1\n"Dull, long",0\n',
    "bom.csv": b'\xef\xbb\xbfsentence,label\n"A ""fine"" film",1\n"Dull, long",0\n',
    "a.jsonl": '{"text": "A \\"fine\\" film", "label": 1}\n\n{"label": "0", "text": "Dull, long"}',
    "a.json": '[{"sentence": "A \\"fine\\" film", "label": 1}, {"text": "Dull, long", "label": 0}]',
}


@pytest.mark.parametrize("name", GOOD_FILES)
def test_every_format_gives_the_same_examples(tmp_path, name):
    path = write(tmp_path / name, GOOD_FILES[name])
    found = [(one.text, one.label) for one in load_examples(str(path), "classify")]
    assert found == [('A "fine" film', "1"), ("Dull, long", "0")]
    assert [one.label for one in load_examples(path, "lm")] == [None, None]


def test_plain_text_is_one_document(tmp_path):
    path = write(tmp_path / "a.txt", "First line.\n\nSecond.\u2028Still second.")
    assert load_examples(path, "lm") == [
        Example("First line.\n\nSecond.\u2028Still second.", None, str(path))
    ]


def test_a_field_may_be_longer_than_the_csv_default(tmp_path):
    path = write(tmp_path / "long.csv", "text\n" + "word " * 50_000 + "\n")
    usual = csv.field_size_limit()
    assert len(load_examples(path, "lm")[0].text) == 250_000
    assert csv.field_size_limit() == usual  # for whoever reads CSV beside


def test_blank_texts_are_left_out(tmp_path):
    path = write(tmp_path / "a.tsv", "sentence\tlabel\n \t1\ngood\t1\n")
    assert [one.text for one in load_examples(path, "classify")] == ["good"]


BAD_FILES = {
    "empty.tsv": ("", r"empty\.tsv is empty"),
    "blank.txt": (" \n", r"blank\.txt is empty"),
    "header.tsv": ("sentence\tlabel\n", "has no rows"),
    "header.csv": ("sentence,label\n", "has no rows"),
    "empty.json": ("[]", "empty.json has no rows"),
    "nothing.tsv": ("sentence\tlabel\n \t1\n", "no usable row"),
    "columns.tsv": (
        "review\tstars\nfine\t5\n",
        "line 1: .*sentence .* label; found: review, stars",
    ),
    "columns.csv": ('"two\nlines",b\nfine,5\n', "line 1: .*found: two lines, b"),
    "columns.jsonl": ('{"text": "fine"}\n', "line 1: .*label; found: text"),
    "short.tsv": ("sentence\tlabel\nfine\t1\ndull\n", "line 3: 1 fields, but the header has 2"),
    "nolabel.tsv": ("sentence\tlabel\nfine\t\n", "line 2: the label is ''"),
    "quote.csv": ('sentence,label\n"fine"x,1\n', "line 2: not valid CSV"),
    "open.csv": ('sentence,label\n"fine,1\n', "not valid CSV"),
    "broken.jsonl": ('{"text": "a", "label": 1}\n{"text": \n', "line 2: not valid JSON .*column"),
    "broken.json": ('[{"text": "a",\n "label" 1}]', "line 2: not valid JSON"),
    "list.jsonl": ('"fine"\n', "line 1: an object .* not str"),
    "number.jsonl": ('{"text": 5, "label": 1}\n', "line 1: text is not text but 5"),
    "float.jsonl": ('{"text": "a", "label": 0.5}\n', "line 1: the label is 0.5"),
    "latin.tsv": (b"sentence\tlabel\nfine\t1\ncaf\xe9\t1\n", "line 3: byte 0xe9 at offset 25 "),
    "bom.tsv": (b"\xef\xbb\xbfsentence\tlabel\n\xff\t1\n", "line 2: byte 0xff at offset 18 "),
    "plain.txt": ("Some text", "plain text has no labels"),
    "table.parquet": ("PAR1", "the suffix is none of .tsv"),
    "none": ("text", "the suffix is none of"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_explained_in_one_line(tmp_path, name):
    content, message = BAD_FILES[name]
    with pytest.raises(UserError, match=message) as caught:
        load_examples(write(tmp_path / name, content), "classify")
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_or_a_folder_is_said_so(tmp_path):
    for missing in (str(tmp_path / "no.tsv"), "no.tsv", Path("no"), "a/b/c"):
        with pytest.raises(UserError, match="no such data file"):
            load_examples(missing, "lm")
    with pytest.raises(UserError, match="is a folder"):
        load_examples(tmp_path, "lm")
    with pytest.raises(UserError, match="unknown task 'generate'"):
        load_examples(tmp_path, "generate")


def test_a_hub_name_without_the_hub_says_offline(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"no file here.*HF_HUB_OFFLINE is set") as caught:
        load_examples("nobody-here/no-such-set:plain", "classify")
    assert "\n" not in str(caught.value)


# --- tokenizers ------------------------------------------------------------------------------


def test_a_tokenizer_comes_from_a_file_or_its_folder(tokenizer):
    other = load_tokenizer(str(ROOT / "data" / "tokenizer" / "tokenizer.json"))
    text = "Slow to start — but it wins you over.\n\tÅ"
    assert other.encode([text]) == tokenizer.encode([text])
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text
    assert (tokenizer.vocab_size, tokenizer.end_id) == (2048, 0)


def test_transformers_reads_the_bundled_tokenizer_alike(tokenizer):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(ROOT / "data" / "tokenizer"))
    text = "The plot of Salt Road is never dull."
    assert theirs(text)["input_ids"] == tokenizer.encode([text])[0]
    assert theirs.eos_token_id == tokenizer.end_id


def test_limits_saved_in_a_tokenizer_do_not_cut_the_text(tmp_path):
    saved = json.loads((ROOT / "data" / "tokenizer" / "tokenizer.json").read_text("utf-8"))
    saved["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path = write(tmp_path / "tokenizer.json", json.dumps(saved))
    assert len(load_tokenizer(path).encode(["The plot is never dull."])[0]) > 2


def test_a_bad_tokenizer_is_explained_in_one_line(tmp_path):
    cases = {
        "no.json": "no tokenizer at",
        "a/b/c": "no tokenizer at",
        str(tmp_path): "holds no tokenizer.json",
        str(write(tmp_path / "bad.json", "{}")): "is not a tokenizer.json",
    }
    for source, message in cases.items():
        with pytest.raises(UserError, match=message) as caught:
            load_tokenizer(source)
        assert "\n" not in str(caught.value)


# --- real data -------------------------------------------------------------------------------


@needs_real_data
@pytest.mark.parametrize("name", ["gpt2", "neox", "falcon"])
def test_published_tokenizers_have_one_token_a_label(name):
    real = load_tokenizer(REAL / f"{name}_tokenizer")
    data = tokenize([Example("good", "1"), Example("bad", "0")], real, "classify", 16)
    assert real.decode([data.label_token_ids["0"], data.label_token_ids["1"]]) == " terrible great"
    assert real.decode([real.end_id]) == "<|endoftext|>"


@needs_real_data
def test_all_of_sst2_is_read_and_tokenized_in_seconds():
    gpt2 = load_tokenizer(REAL / "gpt2_tokenizer" / "tokenizer.json")
    start = time.monotonic()
    train = tokenize(load_examples(REAL / "sst2" / "train.tsv", "classify"), gpt2, "classify", 128)
    dev_file = load_examples(REAL / "sst2" / "dev.tsv", "classify")
    dev = tokenize(dev_file, gpt2, "classify", 128, labels=train.label_names)
    assert time.monotonic() - start < 30  # 3 s on two idle cores
    assert (len(train), len(dev), train.truncated, dev.truncated) == (67_349, 872, 0, 0)
    assert dev.label_token_ids == train.label_token_ids
    positive = (train.targets == train.label_token_ids["1"]).sum()
    assert int(positive) == 37_569


@needs_real_data
def test_plain_text_has_the_published_token_count():
    gpt2 = load_tokenizer(REAL / "gpt2_tokenizer")
    examples = load_examples(REAL / "text" / "tinyshakespeare_input.txt", "lm")
    data = tokenize(examples, gpt2, "lm", 256)
    assert len(data.ids) == 338_025 + 1  # and the token that ends the document


def test_a_named_end_that_is_no_token_is_refused(tmp_path):
    """Another token ended the texts, and the saved model's did not."""
    shutil.copy(bundled("tokenizer") / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|nowhere|>"}')
    with pytest.raises(UserError, match=r"has no token '<\|nowhere\|>'"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<|endoftext|>"}')
    token = load_tokenizer(tmp_path).backend.id_to_token(300)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": token}))
    named = load_tokenizer(tmp_path)
    assert named.end_id == 300
    (tmp_path / "copy").mkdir()
    copy_tokenizer(tmp_path / "tokenizer.json", tmp_path / "copy")
    assert load_tokenizer(tmp_path / "copy").end_id == named.end_id


def test_words_that_a_tokenizer_gives_their_space_itself(tmp_path):
    """As Llama 2's, of which no special token stands for a class either."""
    words = ["<unk>", "<s>", "</s>", *("\u2581" + word for word in ("", "great", "terrible"))]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.add_special_tokens(words[:3])
    own = Tokenizer(made, 2)
    assert verbalize(("0", "1"), own)[1] == {"0": 5, "1": 4}
    others = verbalize([f"class {n} of many" for n in range(3)], own)[1]
    assert set(others.values()) == {3, 4, 5}


def test_labels_of_thousands_of_digits_are_words():
    long = "9" * 5000
    assert classes([Example("a", long), Example("b", "7")]) == ("7", long)
