"""Bytes that a rank holds at its fullest while it trains adapters beside a frozen base.

    adapted_memory(job, rank=0, context_bytes=cluster.context_bytes)

The base has no gradients, so a block's inputs and what its products' backward works with are nearly
all: what is kept, and a matrix that is brought out of 4 bits. Held against the engine in
tests/planner/memory/test_adapted.py.
"""

from dataclasses import replace

from helpers.planner.hardware.devices import CONTEXT_BYTES
from helpers.planner.memory.activations import activation_bytes, bytes_of, offloaded_bytes
from helpers.planner.memory.categories import Memory
from helpers.planner.memory.components import chunk_bytes, stage_message_bytes, working_bytes
from helpers.planner.memory.states import block_base_bytes, rank_states
from helpers.planner.memory.turns import turns
from helpers.planner.model.adapters import matrices
from helpers.planner.model.training_job import Job
from helpers.planner.model.units import largest_unit
from helpers.planner.model.widths import Widths


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
    states, job = rank_states(job, rank), frozen(job)
    on_the_way = max(turn.messages + turn.takes for turn in turns(job, rank))
    messages = on_the_way * stage_message_bytes(job)
    last, element = job.rank_of[-1] == rank, job.element_bytes
    loss = chunk_bytes(job) + (job.program.last_norm + 2) * job.hidden_bytes if last else 0.0
    sizes = [one * other for one, other in matrices(job.shape)]
    matrix = element * max(sizes) if job.adapters.quantize else 0.0
    gathered = 0.0
    if job.plan.zero == 3:
        unit = block_base_bytes(job) + element * job.adapters.parameters(job.shape)
        ends = job.end_parameters(rank) * element
        gathered = 2 * largest_unit(job, rank) * unit + ends
    # of a block, when the loss is over; what comes back through an adapter is added to the base's
    work = working_bytes(job, rank, largest_unit(job, rank)) + bytes_of(job, Widths(ffn=1)) + matrix
    return Memory(
        parameters=states.parameters,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=activation_bytes(job, rank),
        logits=0.0 if work > loss else loss,
        transients=gathered + messages + (work if work > loss else 0.0),
        context=context_bytes,
        host=offloaded_bytes(job, rank),
    )
