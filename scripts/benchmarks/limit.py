"""How near the limit a step is: its FLOP/s over those of the best measured matrix product.

A step's FLOPs are counted by the formula (6 a parameter and token, and attention over the whole
square), so recomputation is waste, and a causal kernel that leaves half of the square out is ahead
of the formula.
"""

import time

import torch

from benchmarks.registry import Peer
from benchmarks.work import Work, config
from helpers.planner.cost import train_flops_per_token
from helpers.planner.shape.families import model_shape

SIZE, SPAN_S, SPANS = 2048, 0.3, 5  # rows of a square matrix; seconds of a span; how many of them
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FROZEN = ("adapters_peer", "peft_peer")  # have no gradients of most weights


def product_flops(precision: str, cores: int) -> float:
    """FLOP/s of the best span of large products on so many cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        a = torch.randn(SIZE, SIZE).to(DTYPES[precision])
        out = torch.mm(a, a)
        return 2 * SIZE**3 / min(_pace_s(a, out) for _ in range(SPANS))
    finally:
        torch.set_num_threads(before)


def _pace_s(a: torch.Tensor, out: torch.Tensor) -> float:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SPAN_S:
        torch.mm(a, a, out=out)
        count += 1
    return (time.perf_counter() - began) / count


def precision_of(peer: Peer) -> str | None:
    """In which the peer multiplies; None where its FLOPs are not the formula's."""
    precision = peer.options.get("precision", "fp32")
    return precision if precision in DTYPES and peer.module not in FROZEN else None


def step_flops(work: Work) -> float:
    """Of one step over the global batch."""
    return train_flops_per_token(model_shape(config(work)), work.seq) * work.tokens
