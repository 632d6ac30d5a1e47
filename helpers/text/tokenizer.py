"""Text to token ids and back, from a file, a folder or a hub id."""

import json
import re
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, as_path, check_access, need, reason
from helpers.engine.models.configurations import check_hub

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # "gpt2" or "EleutherAI/gpt-j-6b"

# What the families call the token between two documents, in the order in which it is looked for.
END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")
# what transformers calls the special tokens that are looked at
SPECIAL = ("eos_token", "cls_token", "sep_token", "pad_token", "mask_token")
CONFIG = "tokenizer_config.json"
FILES = ("tokenizer.json", CONFIG, "special_tokens_map.json", "chat_template.jinja")
CHAT_TEMPLATES = "additional_chat_templates"  # a folder of those that have a name


class Tokenizer:
    """What training needs of a tokenizer; no special tokens are added by `encode`.

    Attributes:
        vocab_size: largest id + 1, so every id fits an embedding of that many rows.
        end_id: the token that ends a document, None if the vocabulary has none.
        named: how the special tokens are written, by transformers' names: `cls_token` and so on.
    """

    def __init__(self, backend: Any, end_id: int | None, named: Mapping[str, str] | None = None):
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.end_id = end_id
        self.named = dict(named or {})

    @property
    def special_ids(self) -> set[int]:
        """Of tokens that stand for no text."""
        added = self.backend.get_added_tokens_decoder()
        return {token for token, one in added.items() if one.special} | {self.end_id} - {None}

    @cached_property
    def begin(self) -> list[int]:
        """The ids that it puts before a text, as Llama's and Gemma's do; most put none."""
        (made,) = self._encoded(["a"], special=True)
        return made.ids[: [*made.special_tokens_mask, 0].index(0)]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, of any length, encoded on all cores.

        Raises:
            UserError: the vocabulary has nothing for some of it, not even an unknown token.
        """
        return [made.ids for made in self._encoded(texts, special=False)]

    def encode_documents(self, texts: list[str]) -> list[list[int]]:
        """The same of texts that nothing stands before, each after `begin`."""
        encoded = self.encode(texts)
        return [[*self.begin, *ids] for ids in encoded] if self.begin else encoded

    def id_of(self, text: str) -> int | None:
        """The id of a token that is written so, None where there is none."""
        return self.backend.token_to_id(text)

    def decode(self, ids: list[int]) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def _encoded(self, texts: list[str], special: bool) -> list[Any]:
        try:
            return self.backend.encode_batch_fast(texts, add_special_tokens=special)
        except Exception as error:  # the library raises plain Exception
            raise UserError(f"the tokenizer cannot encode the text: {reason(error)}") from None


def load_tokenizer(source: str | Path) -> Tokenizer:
    """A `tokenizer.json`, a folder that holds one, or a hub id (read by transformers).

    Raises:
        UserError: nothing is there, it may not be read or is not a tokenizer, or the hub cannot be
            reached.
    """
    path = as_path(source)
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
        if (path / CHAT_TEMPLATES).is_dir():
            shutil.copytree(path / CHAT_TEMPLATES, folder / CHAT_TEMPLATES, dirs_exist_ok=True)
    elif path.is_file():
        copy_tokenizer(path.parent, folder)  # what is said of it there
        shutil.copyfile(path, folder / FILES[0])
    else:
        _by_transformers(source).save_pretrained(folder)


def _from_file(path: Path) -> Tokenizer:
    tokenizers = need("tokenizers", "hf")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path} is not a tokenizer.json: {reason(error)}") from None
    named = _named(path.parent)
    end = named.get("eos_token")
    if end is not None and backend.token_to_id(end) is None:
        raise UserError(
            f"{path} has no token {end!r:.40}, which the files beside it call the end: let "
            "transformers load the folder and save it anew"
        )
    if path.name == FILES[0] and (path.parent / CONFIG).is_file():
        # what a folder says beside the file counts too: tokens that are added, one that comes first
        backend = _by_transformers(path.parent).backend_tokenizer
    if not backend.get_vocab_size():
        raise UserError(f"{path} has no token")
    ids = (backend.token_to_id(name) for name in ([end] if end else END_TOKENS))
    return Tokenizer(backend, next((token for token in ids if token is not None), None), named)


def _named(folder: Path) -> dict[str, str]:
    """How the files beside a tokenizer.json write its special tokens; the later file wins."""
    found: dict[str, str] = {}
    for config in (folder / "special_tokens_map.json", folder / CONFIG):
        if not config.is_file():
            continue
        try:
            known = json.loads(config.read_text(encoding="utf-8"))
            named = {name: known.get(name) for name in SPECIAL}
        except (OSError, ValueError, AttributeError, RecursionError):
            raise UserError(f"{config} is no JSON object of a tokenizer") from None
        for name, text in named.items():
            text = text.get("content") if isinstance(text, dict) else text
            if not isinstance(text, str | None):
                raise UserError(f"{config}: {name} is {text!r:.40}, and must be text")
            if text:
                found[name] = text
    return found


def _from_hub(source: str) -> Tokenizer:
    check_hub("model", source)
    loaded = _by_transformers(source)
    named = {name: str(text) for name in SPECIAL if (text := getattr(loaded, name, None))}
    return Tokenizer(loaded.backend_tokenizer, loaded.eos_token_id, named)


def _by_transformers(source: str | Path) -> Any:
    transformers = need("transformers", "hf")
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # what a file says of itself can be anything
        hub = "" if Path(source).is_dir() else ", and the hub gives none of that name"
        raise UserError(f"no tokenizer at {source}{hub}: {reason(error)}") from None
    if not loaded.is_fast:
        raise UserError(f"the tokenizer {source} has no tokenizer.json, which is needed here")
    return loaded
