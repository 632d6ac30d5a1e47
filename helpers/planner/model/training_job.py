"""A model under a plan, with a batch: what the formulas of memory, traffic and time are about.

job = make_job(load_config("gptj-6b"), ParallelPlan(tp=8), batch=8, seq_len=1024)
job.tokens, job.layers, job.held(rank=0)
"""

import heapq
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.pipeline.partition import SPEED, Cost, Costs, check_partition, check_stages
from helpers.engine.plan import ParallelPlan, axis_order
from helpers.planner.cost import tensor_parallel_share
from helpers.planner.model.block_tensors import Program, program_of
from helpers.planner.shape import Shape, model_shape

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
BALANCED_AT = 1024  # tokens of the sequence at which the engine balances layers over stages


@dataclass(frozen=True)
class Job:
    """One step of training, as every rank sees it.

    batch: samples of a step, over all ranks.
    program: how blocks are computed, see blocks.py.
    """

    shape: Shape
    plan: ParallelPlan
    batch: int
    seq_len: int
    program: Program

    @property
    def rows(self) -> int:
        """Samples of a step on the data rank that has most."""
        return -(-self.batch // self.plan.dp)

    @cached_property
    def microbatches(self) -> int:
        return self.plan.microbatches_of(self.rows)

    @cached_property
    def tokens(self) -> int:
        """Of a micro-batch on one data rank."""
        return -(-self.rows // self.microbatches) * self.seq_len

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation, and of a parameter in a matrix product."""
        return BYTES[self.plan.precision]

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage, in the model's order."""
        given = self.plan.stage_layers
        return given or balanced_layers(self.shape, self.plan.stages)

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """The pipeline rank of each stage."""
        return self.plan.schedule_of(1).rank_of

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages of a pipeline rank."""
        return self._owned[rank]

    @cached_property
    def _owned(self) -> tuple[tuple[int, ...], ...]:
        return _stages_by_rank(self.rank_of, self.plan.pp)

    def layers_of(self, rank: int) -> int:
        """Layers of a pipeline rank, over all its stages."""
        return self._layers_of[rank]

    @cached_property
    def _layers_of(self) -> tuple[int, ...]:
        return _layers_by_rank(tuple(self.layers), self.rank_of, self.plan.pp)

    def stride(self, axis: str) -> int:
        """How far apart neighbours along an axis are in the numbering of ranks."""
        return _strides(tuple(self.plan.degrees.items()), self.plan.placement)[axis]

    @cached_property
    def block_parameters(self) -> int:
        """Of one block on its first tensor rank, which holds the most."""
        return _share(self.shape, self.plan.tp, 2) - _share(self.shape, self.plan.tp, 1)

    def end_parameters(self, rank: int) -> int:
        """Parameters of embedding, last norm and head on a pipeline rank."""
        shape, rows = self.shape, self.vocab_rows
        first, last = self.rank_of[0] == rank, self.rank_of[-1] == rank
        table = rows * shape.hidden
        begin = self.begin_parameters(rank)
        end = table + shape.final_norm + (rows if shape.head_bias else 0)
        both = table if first and last and shape.tied else 0  # one matrix for both ends
        return begin + (end if last else 0) - both

    def begin_parameters(self, rank: int) -> int:
        """Parameters of the embeddings on a pipeline rank."""
        if self.rank_of[0] != rank:
            return 0
        return (self.vocab_rows + self.shape.positions) * self.shape.hidden

    @property
    def vocab_rows(self) -> int:
        """Rows of embedding and head on the first tensor rank, which holds the most."""
        return -(-self.shape.vocab // self.plan.tp)

    def held(self, rank: int) -> int:
        """Parameters that a pipeline rank works with, whole over dp_shard."""
        return self.layers_of(rank) * self.block_parameters + self.end_parameters(rank)


def make_job(
    model: Any, plan: ParallelPlan, batch: int, seq_len: int, program: Program | None = None
) -> Job:
    """The job of a model, a transformers configuration or its Shape.

    Args:
        program: another way of computing blocks than the engine's.

    Raises:
        UserError: the plan does not fit the model, or a number is not above 0.
    """
    check_counts(batch, seq_len)
    shape = model if isinstance(model, Shape) else model_shape(model)
    check_stages(shape.layers, plan.stages)
    if plan.stage_layers is not None:
        check_partition(plan.stage_layers, shape.layers, plan.stages)
    check_heads(shape, plan.tp)
    return Job(shape, plan, batch, seq_len, program or program_of(shape.family, plan.precision))


def check_counts(batch: int, seq_len: int) -> None:
    """Raise a UserError if one of them is no whole number above 0."""
    for name, number in (("batch", batch), ("seq_len", seq_len)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise UserError(f"{name} must be a whole number of at least 1, not {number!r}")


def check_heads(shape: Shape, tp: int) -> None:
    """Raise a UserError if heads, key-value heads or MLP width cannot be split over tp."""
    if not splits(shape, tp):
        raise UserError(
            f"tp={tp} does not divide {shape.heads} heads and an MLP of {shape.ffn}, or does not "
            f"go with {shape.kv_heads} key-value heads"
        )


def splits(shape: Shape, tp: int) -> bool:
    """Can the model's blocks be split over tp ranks?"""
    fits = shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0
    return shape.heads % tp == 0 and shape.ffn % tp == 0 and fits


# a search makes thousands of jobs that differ in other things than their stages
@lru_cache(maxsize=4096)
def _stages_by_rank(rank_of: tuple[int, ...], pp: int) -> tuple[tuple[int, ...], ...]:
    owned: list[list[int]] = [[] for _ in range(pp)]
    for stage, owner in enumerate(rank_of):
        owned[owner].append(stage)
    return tuple(map(tuple, owned))


@lru_cache(maxsize=4096)
def _layers_by_rank(layers: tuple[int, ...], rank_of: tuple[int, ...], pp: int) -> tuple[int, ...]:
    return tuple(sum(layers[stage] for stage in own) for own in _stages_by_rank(rank_of, pp))


@lru_cache(maxsize=4096)
def _strides(degrees: tuple[tuple[str, int], ...], placement: str) -> dict[str, int]:
    strides, apart, sizes = {}, 1, dict(degrees)
    for axis in reversed(axis_order(sizes, placement)):
        strides[axis] = apart
        apart *= sizes[axis]
    return strides


@lru_cache(maxsize=4096)
def balanced_layers(shape: Shape, stages: int) -> tuple[int, ...]:
    """Layers of each stage as partition.balance chooses them for the engine's `auto`.

    Layers cost the same here, so it is enough to give each to the stage that has least so far: no
    other way has a smaller largest stage, or a smaller sum of squares.
    """
    if stages == 1:
        return (shape.layers,)
    check_stages(shape.layers, stages)
    embedding, layer, head = _balance_costs(shape)
    loads = [[0, -stage] for stage in range(stages)]  # of equals, a later stage
    loads[0][0], loads[-1][0] = embedding, head
    counts = [0] * stages
    for stage in range(1, stages - 1):
        counts[stage] = 1  # every stage between the ends has a layer
        loads[stage][0] = layer
    heapq.heapify(loads)
    for _ in range(shape.layers - sum(counts)):
        load, minus = heapq.heappop(loads)
        counts[-minus] += 1
        heapq.heappush(loads, [load + layer, minus])
    return tuple(counts)


def _balance_costs(shape: Shape) -> tuple[int, int, int]:
    """Embedding, one layer and head, in the engine's weights of time and memory."""
    seq_len = min(BALANCED_AT, shape.positions or BALANCED_AT)
    matrices = sum(linear.inputs * linear.outputs for linear in shape.block)
    table = shape.vocab * shape.hidden
    time = (0, 2 * matrices + 4 * seq_len * shape.hidden, 2 * table)
    memory = (
        table + shape.positions * shape.hidden,
        shape.block_parameters,
        table + shape.final_norm + (shape.vocab if shape.head_bias else 0),
    )
    embedding, layer, head = map(Cost, time, memory)
    costs = Costs(embedding, (layer,) * shape.layers, head)
    embedding, layer, *_, head = costs.whole_shares(SPEED)
    return embedding, layer, head


@lru_cache(maxsize=4096)
def _share(shape: Shape, tp: int, layers: int) -> int:
    return tensor_parallel_share(replace(shape, layers=layers), tp).total
