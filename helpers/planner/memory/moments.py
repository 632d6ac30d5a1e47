"""Bytes of AdamW's two moments of what a rank updates, in 32 bits or in 8.

bitsandbytes holds a moment in 8 bits where a part has at least 4,096 numbers: a byte each, a
float32 magnitude for 256 of them, and two tables of 256 values which all parts share.

Sources: Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization, section 2; the engine's
precision/optimizer.py.
"""

from collections.abc import Iterator

from helpers.planner.model.adapters import matrices
from helpers.planner.model.training_job import Job
from helpers.planner.shape.parameters import Held, shard

LEAST, BLOCK = 4096, 256  # numbers that are held in 8 bits; numbers that share a magnitude
TABLES_BYTES = 2 * 256 * 4


def moments_bytes(job: Job, rank: int, tensor_rank: int, shards: int, shard_rank: int) -> int:
    """Of pipeline rank `rank`, of whose parts `shards` ranks have one each."""
    sizes = [
        (shard(held.on(job.plan.tp, tensor_rank), shards, shard_rank), times)
        for held, times in _updated(job, rank)
    ]
    if job.optimizer == "adamw":
        return 8 * sum(size * times for size, times in sizes)
    tables = TABLES_BYTES if any(size >= LEAST for size, _ in sizes) else 0
    return tables + sum(times * _in_8_bits(size) for size, times in sizes)


def _in_8_bits(size: int) -> int:
    return 8 * size if size < LEAST else 2 * size + 8 * -(-size // BLOCK)


def _updated(job: Job, rank: int) -> Iterator[tuple[Held, int]]:
    """The parameters of a rank that train, and how many times each."""
    layers = job.layers_of(rank)
    if job.adapters is None:
        yield from ((held, layers) for held in job.block)
        yield from ((held, 1) for held in job.ends(rank))
        return
    for inputs, outputs in matrices(job.shape):
        yield Held((job.adapters.rank, inputs)), layers
        yield Held((outputs, job.adapters.rank)), layers
