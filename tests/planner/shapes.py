"""Shapes of models for tests, by a few numbers, and jobs of them."""

from helpers.engine.plan import ParallelPlan
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.published.models import PublishedModel, published_model
from helpers.planner.shape.shape import Shape

GPTJ_6B = published_model("gptj-6b").shape


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


SMALL = gpt(64, 12, 4, vocab=500, positions=64)


def job(shape: Shape = GPTJ_6B, batch: int = 32, seq_len: int = 1024, **plan: object) -> Job:
    """A job under a plan with these fields."""
    return make_job(shape, ParallelPlan(**plan), batch, seq_len)
