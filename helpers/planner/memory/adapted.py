"""Bytes that a rank holds at its fullest while it trains adapters beside a frozen base.

    adapted_memory(job, rank=0, context_bytes=cluster.context_bytes)

The base has no gradients, so a block's inputs and what its products' backward works with are nearly
all: what is kept, and a matrix that is brought out of 4 bits. Held against the engine in
tests/planner/memory/test_adapted.py.
"""

from dataclasses import replace

from helpers.engine.memory.recomputing import group_size
from helpers.planner.cost import StateBytes
from helpers.planner.hardware.devices import CONTEXT_BYTES
from helpers.planner.memory.components import (
    activation_bytes,
    chunk_bytes,
    stage_messages_bytes,
    working_bytes,
)
from helpers.planner.memory.peak import Memory
from helpers.planner.memory.states import moments_bytes
from helpers.planner.model.adapters import matrices
from helpers.planner.model.training_job import Job
from helpers.planner.model.widths import Widths


def adapted_states(job: Job, rank: int) -> StateBytes:
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


def frozen(job: Job) -> Job:
    """The job with what blocks keep beside frozen weights: norms without a shift keep nothing for
    a gradient of their own, and adapters what is between their two layers."""
    program, shape = job.program, job.shape
    inner = len(matrices(shape)) * job.adapters.rank / shape.hidden
    scaled = shape.norms if shape.family == "llama" else 0
    kept = program.kept["none"] + Widths(inside=inner - scaled)
    return replace(job, program=replace(program, kept=program.kept | {"none": kept}))


def adapted_memory(job: Job, rank: int, context_bytes: float = CONTEXT_BYTES) -> Memory:
    """Of pipeline rank `rank`."""
    states, job = adapted_states(job, rank), frozen(job)
    last, element = job.rank_of[-1] == rank, job.element_bytes
    loss = chunk_bytes(job) + (job.program.last_norm + 2) * job.hidden_bytes if last else 0.0
    sizes = [one * other for one, other in matrices(job.shape)]
    matrix = element * max(sizes) if job.adapters.quantize else 0.0
    gathered = 0.0
    if job.plan.zero == 3:
        unit = block_base_bytes(job) + element * job.adapters.parameters(job.shape)
        ends = job.end_parameters(rank) * element
        gathered = 2 * group_size(job.plan.activation) * unit + ends
    work = working_bytes(job, rank) + matrix  # of a block, when the loss is over
    return Memory(
        parameters=states.parameters,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=activation_bytes(job, rank),
        logits=0.0 if work > loss else loss,
        transients=gathered + stage_messages_bytes(job, rank) + (work if work > loss else 0.0),
        context=context_bytes,
    )


def adapted_fullest(job: Job, context_bytes: float = CONTEXT_BYTES) -> Memory:
    """The memory of the pipeline rank that holds most."""
    each = (adapted_memory(job, rank, context_bytes) for rank in range(job.plan.pp))
    return max(each, key=lambda memory: memory.allocated)
