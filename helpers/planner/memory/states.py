"""Bytes of a rank's states: parameters, gradients, and AdamW's moments in 32 bits or in 8.

bitsandbytes holds a moment in 8 bits where a part has at least 4,096 numbers: a byte each, a
float32 magnitude for 256 of them, and two tables of 256 values which all parts share.

Sources: Rajbhandari et al. 2020, ZeRO; Dettmers et al. 2022, 8-bit Optimizers via Block-wise
Quantization, section 2; the engine's precision/optimizer.py.
"""

from collections.abc import Iterator

from helpers.planner.cost import StateBytes
from helpers.planner.model.adapters import matrices
from helpers.planner.model.training_job import Job
from helpers.planner.shape.parameters import Held, shard

LEAST, BLOCK = 4096, 256  # numbers that are held in 8 bits; numbers that share a magnitude
TABLES_BYTES = 2 * 256 * 4


def rank_states(job: Job, rank: int, tensor_rank: int = 0, shard_rank: int = 0) -> StateBytes:
    """Parameters, gradients and optimizer state of the engine, as data_parallel lays them out, by
    default on the first tensor and data rank, which hold the most.

                          parameters       gradients     optimizer
        fp32              4                4             8
        bf16, fp16, fp8   2                4             12
        the same, ZeRO-3  -                4             12    its float32 shards are the masters

    ZeRO-1 and 2 divide optimizer and summed gradients by dp_shard x cp, ZeRO-3 all three. With
    ZeRO-1 gradients of all but the last micro-batch wait whole for their sum.

    Moments in 8 bits take less.

    Args:
        rank, tensor_rank, shard_rank: along pp, tp and dp_shard x cp.

    Source: arXiv 1910.02054 (ZeRO), section 3.1 and figure 1.
    """
    if job.adapters is not None:
        return _adapted_states(job, rank)
    plan = job.plan
    whole = job.parameters_of(rank, tensor_rank)
    own = job.parameters_of(rank, tensor_rank, plan.shards, shard_rank)
    moments = 8 * (own if plan.zero else whole)
    if job.optimizer != "adamw":
        shards = plan.shards if plan.zero else 1
        moments = moments_bytes(job, rank, tensor_rank, shards, shard_rank if plan.zero else 0)
    if plan.zero == 3:
        return StateBytes(4 * own, 4 * own, moments)
    low, sharded = plan.precision != "fp32", plan.zero > 0
    waiting = sharded and job.microbatches > 1 and (plan.zero == 1 or plan.splits_backward)
    return StateBytes(
        parameters=(2 if low else 4) * whole,
        gradients=4 * (own if sharded and not waiting else whole),
        optimizer=moments + (4 if low else 0) * (own if sharded else whole),
    )


def _adapted_states(job: Job, rank: int) -> StateBytes:
    """As the engine's data_parallel lays them out: the base whole or with ZeRO-3 in parts, adapters
    in the arithmetic's precision with float32 masters.

    Source: arXiv 2305.14314 (QLoRA), section 3; the engine's adapters/qlora.py.
    """
    plan, element = job.plan, job.element_bytes
    trained = job.trained_of(rank)
    shards = plan.shards if plan.zero else 1
    base, moments = base_bytes(job, rank), moments_bytes(job, rank, 0, shards, 0)
    if plan.zero == 3:
        own = trained / shards
        return StateBytes(base / shards + 4 * own, 4 * own, moments)
    low = element < 4
    waits = plan.zero == 1 and job.microbatches > 1
    return StateBytes(
        parameters=base + element * trained,
        gradients=4 * trained / (1 if waits else shards),
        optimizer=moments + (4 if low else 0) * trained / shards,
    )


def base_bytes(job: Job, rank: int) -> float:
    """Of a rank's frozen parameters."""
    ends = job.end_parameters(rank) * job.element_bytes
    return job.layers_of(rank) * block_base_bytes(job) + ends


def block_base_bytes(job: Job) -> float:
    """Of one block's frozen parameters."""
    shape, element = job.shape, job.element_bytes
    others = job.block_parameters - sum(one * other for one, other in matrices(shape))
    return job.adapters.matrix_bytes(shape, element) + element * others


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
        for block, times in job.blocks_of(job.stages_of(rank)):
            yield from ((held, times) for held in block)
        yield from ((held, 1) for held in job.ends(rank))
        return
    for inputs, outputs in matrices(job.shape):
        yield Held((job.adapters.rank, inputs)), layers
        yield Held((outputs, job.adapters.rank)), layers
