"""Shapes of models for tests, by a few numbers."""

from helpers.planner.published.models import PublishedModel, published_shape
from helpers.planner.shape.shape import Shape

GPTJ_6B = published_shape("gptj-6b")


def gpt(hidden: int, layers: int, heads: int, vocab: int = 51200, positions: int = 2048) -> Shape:
    """A GPT of Megatron-LM's form: GPT-2's block, the head tied to the embedding."""
    sizes = {"positions": positions, "tied": True}
    return _shape("gpt2", hidden, layers, heads, vocab, **sizes)


def llama(
    hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int = 128256
) -> Shape:
    """A Llama, by default with Llama 3's vocabulary."""
    return _shape("llama", hidden, layers, heads, vocab, kv_heads=kv_heads, ffn=ffn)


def _shape(family: str, hidden: int, layers: int, heads: int, vocab: int, **more) -> Shape:
    source = {"date": "today", "source": "a test"}
    return PublishedModel("", family, hidden, layers, heads, vocab, **source, **more).shape
