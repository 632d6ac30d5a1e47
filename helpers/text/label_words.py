"""How a class becomes a word that a language model can say."""

import re
from collections.abc import Sequence

from helpers.engine.errors import UserError
from helpers.text.readers import Example
from helpers.text.tokenizer import Tokenizer

# The labels, the prompt, the words.
VERBALIZERS = (
    (("0", "1"), " It was", (" terrible", " great")),
    (("negative", "positive"), " It was", (" terrible", " great")),
    (("neg", "pos"), " It was", (" terrible", " great")),
)
PROMPT = " Label:"  # for any other set of labels


def classes(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels that occur: whole numbers by value, then words by alphabet."""
    names = {example.label for example in examples if example.label is not None}
    return tuple(sorted(names, key=lambda name: (not _is_number(name), _number(name), name)))


def shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _is_number(name: str) -> bool:
    return re.fullmatch(r"-?\d{1,18}", name) is not None  # Python reads no thousands of digits


def _number(name: str) -> int:
    return int(name) if _is_number(name) else 0


def verbalize(names: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], dict[str, int]]:
    """The prompt's ids, and the one token that stands for each label.

    Known pairs of labels get words that fit the prompt ("It was great"). Other labels stand for
    themselves where each is one token, else numbers do, else the first ids of the vocabulary.
    """
    numbers = [str(number) for number in range(len(names))]
    candidates = [(prompt, words) for known, prompt, words in VERBALIZERS if known == tuple(names)]
    # some tokenizers put the space before a word themselves
    candidates += [(prompt, [word.strip() for word in words]) for prompt, words in candidates]
    for words in (list(names), numbers):
        candidates += [(PROMPT, [f" {word}" for word in words]), (PROMPT, words)]
    for prompt, words in candidates:
        encoded = tokenizer.encode(list(words))
        distinct = {ids[0] for ids in encoded if len(ids) == 1}
        if len(distinct) == len(names):
            return _prompt_ids(prompt, tokenizer), {
                name: ids[0] for name, ids in zip(names, encoded, strict=True)
            }
    free = [token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids]
    if len(free) < len(names):
        raise UserError(f"{len(names)} labels, but the tokenizer has only {len(free)} tokens")
    return _prompt_ids(PROMPT, tokenizer), dict(zip(names, free, strict=False))


def _prompt_ids(prompt: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode([prompt])[0]
