"""Rows for encoders: text between a first and a last token, and tokens that are masked.

    mlm             [CLS] the film is [MASK] . [SEP]    the loss is on what was masked
    classify-head   [CLS] the film is great . [SEP]     and a class for the row

A tokenizer that has none of these tokens gets them below its own, which move up by as many ids.

Sources: Devlin et al. 2018, BERT, section 3.1 (15 % of the tokens; of these 80 % masked, 10 %
another token, 10 % as they are); Liu et al. 2019, RoBERTa, section 4.1 (masked anew each time).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from helpers.engine.errors import UserError, need
from helpers.engine.models.objectives import IGNORED
from helpers.text.readers import Example
from helpers.text.tokenizer import Tokenizer

NAMES = {  # what its files call it, else how it is written
    "first": ("cls_token", ("[CLS]", "<s>")),
    "pad": ("pad_token", ("[PAD]", "<pad>")),
    "last": ("sep_token", ("[SEP]", "</s>")),
    "mask": ("mask_token", ("[MASK]", "<mask>")),
}
CHOSEN, MASKED, OTHER = 0.15, 0.8, 0.1


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that rows of encoders need, and how far the tokenizer's own ids are moved up."""

    first: int
    pad: int
    last: int
    mask: int
    moved: int
    vocab_size: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpecialTokens":
        """Those of a tokenizer that has them, as BERT's and RoBERTa's; else new ones."""
        found = {name: _find(tokenizer, *known) for name, known in NAMES.items()}
        if found["last"] is None and "cls_token" in tokenizer.named:
            found["last"] = tokenizer.end_id  # as ESM's
        if None not in found.values():
            return cls(**found, moved=0, vocab_size=tokenizer.vocab_size)
        new = {name: place for place, name in enumerate(NAMES)}
        return cls(**new, moved=len(new), vocab_size=tokenizer.vocab_size + len(new))

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer) -> list[list[int]]:
        """The ids of each text, without special tokens."""
        encoded = tokenizer.encode([example.text.strip() for example in examples])
        return [[token + self.moved for token in ids] for ids in encoded]

    def row(self, ids: list[int]) -> list[int]:
        return [self.first, *ids, self.last]


def _find(tokenizer: Tokenizer, name: str, texts: tuple[str, ...]) -> int | None:
    named = [tokenizer.named[name]] if name in tokenizer.named else []
    ids = map(tokenizer.id_of, [*named, *texts])
    return next((token for token in ids if token is not None), None)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer that lacked one of these tokens or more with new ones for all, as
    tokenizer.json: whoever loads it, this project and transformers, gets the rows that were trained
    on."""
    moved, texts = len(NAMES), [texts[0] for _, texts in NAMES.values()]
    written = json.loads(tokenizer.backend.to_str())
    model = written["model"]
    if isinstance(model["vocab"], dict):
        own = {token: place + moved for token, place in model["vocab"].items()}
        model["vocab"] = own | {text: place for place, text in enumerate(texts)}
    else:  # a unigram's: pairs of a token and its score, in the order of their ids
        own = ([_renamed(text, texts), score] for text, score in model["vocab"])
        model["vocab"] = [*([text, 0.0] for text in texts), *own]
        model["unk_id"] = None if model["unk_id"] is None else model["unk_id"] + moved
    added = [
        one | {"id": one["id"] + moved}
        for one in written["added_tokens"]
        if one["content"] not in texts
    ]
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    new = [{"id": i, "content": text, "special": True} | options for i, text in enumerate(texts)]
    written["added_tokens"] = [*new, *added]
    first, last = texts[0], texts[2]
    made = need("tokenizers", "hf").Tokenizer.from_str(json.dumps(written))
    made.post_processor = need("tokenizers.processors", "hf").TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(text, texts.index(text)) for text in (first, last)],
    )
    made.save(str(folder / "tokenizer.json"))
    named = {name: texts[0] for name, texts in NAMES.values()}
    if tokenizer.end_id is not None:
        named["eos_token"] = tokenizer.backend.id_to_token(tokenizer.end_id)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _renamed(text: str, taken: list[str]) -> str:
    """A token of a unigram keeps its place, which is its id, and leaves a new one its name."""
    return f"{text} of its own" if text in taken else text


def stream_rows(texts: list[list[int]], special: SpecialTokens, seq_len: int) -> list[list[int]]:
    """All texts one after another, each with the last token behind it, in rows of at most
    `seq_len`; no token is lost."""
    room = _room(seq_len)
    stream = [token for ids in texts for token in [*ids, special.last]][:-1]
    return [special.row(stream[start : start + room]) for start in range(0, len(stream), room)]


def text_rows(texts: list[list[int]], special: SpecialTokens, seq_len: int) -> list[list[int]]:
    """A row a text, of which what is too long keeps its beginning."""
    room = _room(seq_len)
    return [special.row(ids[:room]) for ids in texts]


def _room(seq_len: int) -> int:
    if seq_len < 3:
        raise UserError(f"seq_len {seq_len} leaves no room for text between two tokens: at least 3")
    return seq_len - 2


class Masking(NamedTuple):
    """Which tokens of a batch are predicted, and what stands in their place.

    special: that are never masked.
    others: ids from which another token is drawn, the first and the one after the last.
    """

    mask: int
    special: tuple[int, ...]
    others: tuple[int, int]

    @classmethod
    def by(cls, tokens: SpecialTokens) -> "Masking":
        special = (tokens.first, tokens.pad, tokens.last, tokens.mask)
        return cls(tokens.mask, special, (tokens.moved, tokens.vocab_size))

    def apply(self, ids: Tensor, attention_mask: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """The ids [batch, seq] with some masked, and as labels what these were."""
        generator = torch.Generator().manual_seed(seed)
        chances = torch.rand(ids.shape, generator=generator)
        allowed = attention_mask.bool() & ~torch.isin(ids, torch.tensor(self.special))
        if not (allowed & (chances < CHOSEN)).any():  # in few tokens: a step would have no loss
            chances.view(-1)[chances.masked_fill(~allowed, 1).argmin()] = 0
        chosen = allowed & (chances < CHOSEN)
        others = torch.randint(*self.others, ids.shape, generator=generator)
        masked = ids.where(~chosen, self.mask)
        kept = chances >= CHOSEN * (MASKED + OTHER)
        drawn = ~kept & (chances >= CHOSEN * MASKED)
        masked = masked.where(~(chosen & drawn), others).where(~(chosen & kept), ids)
        return masked, ids.where(chosen, IGNORED)
