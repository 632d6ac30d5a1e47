"""Ids as transformers' own tokenizers give them, held against AutoTokenizer on the same folder."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import transformers

from helpers.engine.errors import UserError
from helpers.text.bundled import bundled
from helpers.text.readers import Example
from helpers.text.rows import tokenize
from helpers.text.tokenizer import Tokenizer, copy_tokenizer, load_tokenizer

FILE = bundled("tokenizer") / "tokenizer.json"
FAMILIES = {
    "GPT2Tokenizer": {},
    "LlamaTokenizer": {"add_bos_token": True},
    "BartTokenizer": {},
    "Qwen2Tokenizer": {},
    "RobertaTokenizer": {},
    "AlbertTokenizer": {},
    "XGLMTokenizer": {},
}


def family(name: str, folder: Path) -> Path:
    """A folder of that class, with its own special tokens and the project's vocabulary."""
    model = json.loads(FILE.read_text())["model"]
    made_by = getattr(transformers, name)
    merges = [tuple(pair) for pair in model["merges"]]
    try:
        made = made_by(vocab=model["vocab"], merges=merges, **FAMILIES[name])
    except (TypeError, ValueError):  # not of pairs: its own few tokens do
        made = made_by(**FAMILIES[name])
    made.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_a_document_begins_as_in_transformers(name, tmp_path):
    own = load_tokenizer(family(name, tmp_path))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("the film is great", " a  b", "<s> c"):
        ids = own.encode_documents([text])[0]
        assert reference(text).input_ids[: len(ids)] == ids
    assert own.begin == reference("a").input_ids[: len(own.begin)]


def with_first(folder: Path) -> Tokenizer:
    """The project's tokenizer, which now puts its token 5 first, as Llama 3's file does."""
    made = tokenizers.Tokenizer.from_file(str(FILE))
    first = made.id_to_token(5)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, 5)]
    )
    made.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def test_every_document_sentence_and_prompt_has_it(tmp_path):
    tokenizer = with_first(tmp_path)
    assert tokenizer.begin == [5]
    examples = [Example("good", "yes"), Example("so bad", "no")]
    end = tokenizer.end_id
    (good, bad), (yes, no) = tokenizer.encode(["good", "so bad"]), tokenizer.encode(["yes", "no"])
    assert tokenize(examples, tokenizer, "lm", 64).ids.tolist() == [5, *good, end, 5, *bad, end]
    rows = tokenize(examples, tokenizer, "instruct", 64, packed=False)
    assert rows.ids.tolist() == [5, *good, *yes, end, 5, *bad, *no, end]
    assert rows.targets.tolist()[: len(good) + 2] == [-100] * (len(good) + 1) + yes[:1]
    rows = tokenize(examples, tokenizer, "classify", 64)
    starts = rows.ids[rows.offsets[:-1]].tolist()
    assert starts == [5, 5]
    with pytest.raises(UserError, match="no room for text; at least"):
        tokenize(examples, tokenizer, "classify", int(rows.offsets[1]) - len(good))


def test_tokens_that_the_configuration_adds(tmp_path):
    """The tokenizer.json alone does not know them."""
    shutil.copy(FILE, tmp_path)
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    added = {"2048": {"content": "<|user|>", "special": True, **flags}}
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 2049
    assert tokenizer.encode(["<|user|>"]) == [[2048]]
    copied = tmp_path / "copied"
    copied.mkdir()
    copy_tokenizer(tmp_path, copied)
    reference = transformers.AutoTokenizer.from_pretrained(copied)
    assert reference("<|user|> good").input_ids == tokenizer.encode(["<|user|> good"])[0]


def test_all_chat_templates_are_copied(tmp_path):
    theirs = transformers.AutoTokenizer.from_pretrained(FILE.parent)
    theirs.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    theirs.save_pretrained(tmp_path / "one")
    (tmp_path / "copy").mkdir()
    copy_tokenizer(tmp_path / "one", tmp_path / "copy")
    copied = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert copied.chat_template == theirs.chat_template


def test_text_that_the_vocabulary_has_nothing_for_is_refused():
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({"good": 0}))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(made, 0)
    assert tokenizer.encode(["good"]) == [[0]]
    with pytest.raises(UserError, match="cannot encode the text"):
        tokenizer.encode(["bad"])


def test_a_file_of_another_name_is_read_by_itself(tmp_path):
    """Not the tokenizer.json that lies beside it."""
    shutil.copy(FILE, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"good": 0, "<unk>": 1}, "<unk>"))
    made.save(str(tmp_path / "small.json"))
    assert load_tokenizer(tmp_path / "small.json").vocab_size == 2
