"""Configurations of a model's kind, so small that a layout is tried in milliseconds."""

import copy
from collections.abc import Iterator
from typing import Any

from ..models.architecture import text_config
from ..models.families import MLP_WIDTHS, WINDOWS, kv_heads
from ..models.overrides import fewer_layers, override

VOCABULARY = 61  # a prime: no degree divides it
HEAD, MLP = 16, 24  # widths of a head and of an MLP: products in 16 bits want multiples of 8


def small_configs(config: Any, tp: int, each: int) -> Iterator[Any]:
    """Configurations of a model's kind with few layers: first with small widths, and for whoever
    cannot have those with its own.

    Args:
        tp: ranks that must be able to split heads and widths.
        each: layers of each kind.
    """
    for shrinks in ((_few_layers, _few_words, _small_widths), (_few_layers, _few_words), ()):
        small = copy.deepcopy(config)
        try:
            for shrink in shrinks:
                shrink(text_config(small), tp, each)
        except Exception:  # configurations check themselves, each in its own way
            continue
        yield small


def _few_layers(config: Any, tp: int, each: int) -> None:
    fewer_layers(config, each)


def _few_words(config: Any, tp: int, each: int) -> None:
    config.vocab_size = VOCABULARY
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int) and token >= VOCABULARY:
            setattr(config, name, 1)
    for name, value in list(vars(config).items()):
        if isinstance(value, float) and "drop" in name:
            setattr(config, name, 0.0)
    for name in WINDOWS:
        if getattr(config, name, None):
            setattr(config, name, min(4, getattr(config, name)))
    config._attn_implementation_internal = None  # the class's own


def _small_widths(config: Any, tp: int, each: int) -> None:
    groups = kv_heads(config)
    heads = max(2, tp)
    if groups == config.num_attention_heads:
        for name in ("num_key_value_heads", "num_kv_heads"):
            if getattr(config, name, None):
                setattr(config, name, heads)
    else:
        heads = groups * -(-heads // groups)
    override(config, num_attention_heads=heads, hidden_size=heads * HEAD)
    for name in MLP_WIDTHS:
        if getattr(config, name, None):
            setattr(config, name, MLP * tp)
