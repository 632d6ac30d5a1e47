"""Text to token ids and back, from a file, a folder or a hub id."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, check_access, need, reason
from helpers.engine.models.configurations import check_hub

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # "gpt2" or "EleutherAI/gpt-j-6b"

# What the families call the token between two documents, in the order in which it is looked for.
END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")
FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "chat_template.jinja",
)


class Tokenizer:
    """What training needs of a tokenizer; no special tokens are added by `encode`.

    Attributes:
        vocab_size: largest id + 1, so every id fits an embedding of that many rows.
        end_id: the token that ends a document, None if the vocabulary has none.
    """

    def __init__(self, backend: Any, end_id: int | None):
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.end_id = end_id

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, of any length, encoded on all cores."""
        return [
            encoding.ids
            for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def id_of(self, text: str) -> int | None:
        """The id of a token that is written so, None where there is none."""
        return self.backend.token_to_id(text)

    def decode(self, ids: list[int]) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=False)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """A `tokenizer.json`, a folder that holds one, or a hub id (read by transformers).

    Raises:
        UserError: nothing is there, it may not be read or is not a tokenizer, or the hub cannot be
            reached.
    """
    path = Path(source)
    check_access(path / "tokenizer.json")
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if path.is_file():
        return _from_file(path)
    if path.is_dir():
        raise UserError(f"the folder {source} holds no tokenizer.json")
    if path.suffix != ".json" and HUB_NAME.fullmatch(str(source)):
        return _from_hub(str(source))
    raise UserError(f"no tokenizer at {source}: give a tokenizer.json, its folder or a hub id")


def copy_tokenizer(source: str | Path, folder: Path) -> None:
    """Write what load_tokenizer reads of a source beside a model's weights, so that whoever loads
    these, this project and transformers, has the ids that they were trained with."""
    path = Path(source)
    if path.is_dir():
        for name in FILES:
            if (path / name).is_file():
                shutil.copyfile(path / name, folder / name)
    elif path.is_file():
        shutil.copyfile(path, folder / FILES[0])
    else:
        transformers = need("transformers", "hf")
        loaded = transformers.AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
        loaded.save_pretrained(folder)


def _from_file(path: Path) -> Tokenizer:
    tokenizers = need("tokenizers", "hf")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path} is not a tokenizer.json: {reason(error)}") from None
    return Tokenizer(backend, _end_id(backend, path.parent))


def _end_id(backend: Any, folder: Path) -> int | None:
    names = list(END_TOKENS)
    config = folder / "tokenizer_config.json"
    if config.is_file():
        names = [*_named_end(config), *names]
    ids = (backend.token_to_id(name) for name in names)
    return next((token for token in ids if token is not None), None)


def _named_end(config: Path) -> list[str]:
    """The text that a tokenizer_config.json calls the end, if any."""
    try:
        named = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError, RecursionError):
        raise UserError(f"{config} is no JSON object of a tokenizer") from None
    if isinstance(named, dict):
        named = named.get("content")
    if not isinstance(named, str | None):
        raise UserError(f"{config}: eos_token is {named!r}, and must be text")
    return [named] if named else []


def _from_hub(source: str) -> Tokenizer:
    transformers = need("transformers", "hf")
    check_hub("model", source)
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"no tokenizer at {source}, and the hub gives none of that name: {reason(error)}"
        ) from None
    if not loaded.is_fast:
        raise UserError(f"the tokenizer {source} has no tokenizer.json, which is needed here")
    return Tokenizer(loaded.backend_tokenizer, loaded.eos_token_id)
