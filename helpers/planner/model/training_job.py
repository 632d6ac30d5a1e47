"""A model under a plan, with a batch: what the formulas of memory, traffic and time are about.

job = make_job(load_config("gptj-6b"), ParallelPlan(tp=8), batch=8, seq_len=1024)
job.tokens, job.layers, job.parameters_of(rank=0)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import mul
from typing import Any

from helpers.engine.context.balance import shares_of_work
from helpers.engine.errors import UserError
from helpers.engine.models.chunked_loss import chunk_bytes
from helpers.engine.models.configurations import check_counts
from helpers.engine.pipeline.partition import check_partition, check_stages
from helpers.engine.placement import axis_order
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import OPTIMIZERS
from helpers.planner.model.adapters import Adapters
from helpers.planner.model.block_tensors import Program, program_of
from helpers.planner.model.holds import Holds
from helpers.planner.model.job_checks import (
    check_dealt,
    check_heads,
    check_length,
    check_ulysses,
    splittable,
)
from helpers.planner.model.stage_layers import (
    balanced_layers,
    layers_by_rank,
    layers_of_stages,
    stages_by_rank,
)
from helpers.planner.model.widths import BYTES
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.kinds import Mix, mean_shape, mix_of
from helpers.planner.shape.parameters import (
    Held,
    begin_parameters,
    block_parameters,
    blocks_parameters,
    elements,
    end_parameters,
    kinds_parameters,
    without_experts,
)
from helpers.planner.shape.shape import Shape


@dataclass(frozen=True)
class Job:
    """One step of training, as every rank sees it.

    batch: samples of a step, over all ranks.
    program: how blocks are computed, see block_tensors.py.
    adapters: what trains beside a frozen model; None where all of it does.
    optimizer: of the engine's OPTIMIZERS.
    device: what ranks have, `cpu` or `cuda`.
    """

    shape: Shape
    plan: ParallelPlan
    batch: int
    seq_len: int
    program: Program
    adapters: Adapters | None = None
    optimizer: str = "adamw"
    device: str = "cpu"

    @property
    def rows(self) -> int:
        """Samples of a step on the data rank that has most."""
        return -(-self.batch // self.plan.dp)

    @cached_property
    def microbatches(self) -> int:
        return self.plan.microbatches_of(self.rows)

    @cached_property
    def tokens(self) -> int:
        """Of a micro-batch on one rank, which has of each row a part where cp splits it."""
        return -(-self.rows // self.microbatches) * self.whole_seq_len // self.plan.cp

    @property
    def whole_seq_len(self) -> int:
        """Of a row, with the padding that lets it be split: see context/parts.py of the engine."""
        multiple = self.sequence_ranks * (2 * self.plan.cp if self.plan.cp > 1 else 1)
        return -(-self.seq_len // multiple) * multiple

    @cached_property
    def uneven(self) -> float:
        """Attention's work on the rank of cp that has most of it, over the mean: 1 where a row is
        balanced, or heads are split."""
        plan = self.plan
        if plan.cp == 1 or plan.cp_attention == "ulysses" or plan.cp_split == "balanced":
            return 1.0
        return max(shares_of_work([self.whole_seq_len], plan.cp, plan.cp_split)) * plan.cp

    @cached_property
    def element_bytes(self) -> int:
        """Bytes of an activation, and of a parameter in a matrix product."""
        return BYTES[self.plan.precision]

    @property
    def sum_bytes(self) -> int:
        """Bytes of a gradient in the dtype of sums, as ranks send it."""
        return BYTES[self.plan.reduce_dtype]

    @cached_property
    def holds(self) -> Holds | None:
        """What the job's program holds; None of one of which that is not known, as of the engine,
        whose memory has a walk of its own."""
        precision = "bf16" if self.plan.precision == "fp8" else self.plan.precision
        return self.program.holds.get(precision)

    @property
    def held_sum_bytes(self) -> float:
        """Bytes of a gradient that data ranks have summed: of the engine's, float32 whatever they
        send; of another program's, as it holds them, which may be as they are sent."""
        holds = self.holds
        if holds is None:
            return 4
        return self.sum_bytes if holds.gradients_as_sent else min(4, holds.gradients)

    @property
    def logits_bytes(self) -> int:
        """Of logits that the loss has at a time, in float32 and on one tensor rank: of a chunk of a
        micro-batch's tokens, of which one has as many as the device is given."""
        return min(chunk_bytes(self.device), 4 * self.tokens * self.vocab_rows)

    @property
    def hidden_bytes(self) -> int:
        """Bytes of the hidden states of a micro-batch's tokens on one rank, whole."""
        return self.tokens * self.shape.hidden * self.element_bytes

    @property
    def sequence_ranks(self) -> int:
        """Ranks over which hidden states between layers are split."""
        return self.plan.tp if self.plan.sequence_parallel else 1

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage, in the model's order."""
        given = self.plan.stage_layers
        return given or balanced_layers(self.shape, self.plan.stages)

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """The pipeline rank of each stage."""
        return self.plan.schedule_of(1).rank_of

    @cached_property
    def made_late(self) -> bool:
        """Is the head's gradient made in the backward? As the engine's pipeline/stages.py decides,
        by the schedule that runs: without a pipeline it is 1F1B."""
        return self.plan.schedule_of(1).name == "gpipe"

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages of a pipeline rank."""
        return self._owned[rank]

    @cached_property
    def _owned(self) -> tuple[tuple[int, ...], ...]:
        return stages_by_rank(self.rank_of, self.plan.pp)

    def layers_of(self, rank: int) -> int:
        """Layers of a pipeline rank, over all its stages."""
        return self._layers_of[rank]

    @cached_property
    def _layers_of(self) -> tuple[int, ...]:
        return layers_by_rank(tuple(self.layers), self.rank_of, self.plan.pp)

    def stride(self, axis: str) -> int:
        """How far apart neighbours along an axis are in the numbering of ranks."""
        placement = self.program.placement or self.plan.placement
        return _strides(tuple(self.plan.degrees.items()), placement)[axis]

    def mix_of(self, stages: tuple[int, ...]) -> Mix:
        """The kinds of blocks that these stages have, where the model has several."""
        if not self.shape.kinds:
            return ()
        return mix_of(self.shape, layers_of_stages(self.layers, stages))

    def on(self, stages: tuple[int, ...]) -> "Job":
        """The same job where a block is as those of these stages are in the mean."""
        if not self.shape.kinds:
            return self
        shape = mean_shape(self.shape, self.mix_of(stages))
        if shape is self.shape:
            return self
        program = self.program
        if program.family:  # another program's is not seen
            program = _own_program(shape, self.plan, self.seq_len, self.device)
        return replace(self, shape=shape, program=program)

    def under(self, plan: ParallelPlan) -> "Job":
        """The same work under another plan."""
        program = self.program
        if program.family and (plan.ep > 1) != (self.plan.ep > 1):
            program = _own_program(self.shape, plan, self.seq_len, self.device)
        return replace(self, plan=plan, program=program)

    @cached_property
    def block(self) -> tuple[Held, ...]:
        """The parameters of a block, as they are held; where blocks differ, of the largest."""
        return block_parameters(self.shape, self.plan.tp)

    def blocks_of(self, stages: tuple[int, ...]) -> tuple[tuple[tuple[Held, ...], int], ...]:
        """The parameters of these stages' blocks in order, and how many have them in turn."""
        if not self.shape.kinds:
            return ((self.block, sum(map(self.layers.__getitem__, stages))),)
        blocks = blocks_parameters(self.shape, self.plan.tp)
        own = groupby(blocks[place] for place in layers_of_stages(self.layers, stages))
        return tuple((block, len(list(several))) for block, several in own)

    @cached_property
    def block_parameters(self) -> float:
        """Of one block on its first tensor rank, which holds the most; in the mean, where blocks
        differ."""
        return self._of_block(tuple)

    @cached_property
    def own_experts(self) -> float:
        """Those of them of experts, that one of the ranks that deal these out has."""
        return (self.block_parameters - self._of_block(without_experts)) / self.plan.ep

    def _of_block(self, part: Callable) -> float:
        tp, mix = self.plan.tp, self.shape.mix
        if not mix:
            return elements(part(self.block), tp, 0, 1, 0)
        each = (elements(part(held), tp, 0, 1, 0) for held in kinds_parameters(self.shape, tp))
        return sum(map(mul, each, mix)) / sum(mix)

    @cached_property
    def largest_block(self) -> int:
        """Parameters of the largest of the blocks on it."""
        return elements(self.block, self.plan.tp, 0, 1, 0)

    def ends(self, rank: int) -> tuple[Held, ...]:
        """Embedding, last norm and head of a pipeline rank, as they are held."""
        return self._ends[self.rank_of[0] == rank, self.rank_of[-1] == rank]

    @cached_property
    def _ends(self) -> dict[tuple[bool, bool], tuple[Held, ...]]:
        begin, end = begin_parameters(self.shape), end_parameters(self.shape)
        both = [*begin, *end]
        if self.shape.tied:
            both.remove(begin[0])  # one matrix for both ends, which each holds where they are apart
        return {
            (False, False): (),
            (True, False): begin,
            (False, True): end,
            (True, True): tuple(both),
        }

    def end_parameters(self, rank: int) -> int:
        """Parameters of embedding, last norm and head on a pipeline rank."""
        return self._end_parameters[self.rank_of[0] == rank, self.rank_of[-1] == rank]

    @cached_property
    def _end_parameters(self) -> dict[tuple[bool, bool], int]:
        return {where: elements(held, self.plan.tp, 0, 1, 0) for where, held in self._ends.items()}

    def trained_of(self, rank: int) -> int:
        """Parameters of a pipeline rank that train."""
        if self.adapters is None:
            return self.parameters_of(rank)
        return self.layers_of(rank) * self.adapters.parameters(self.shape)

    def begin_parameters(self, rank: int) -> int:
        """Parameters of the embeddings on a pipeline rank."""
        return self._end_parameters[True, False] if self.rank_of[0] == rank else 0

    @property
    def vocab_rows(self) -> int:
        """Rows of embedding and head on the first tensor rank, which holds the most."""
        return -(-self.shape.vocab // self.plan.tp)

    def parameters_of(
        self, rank: int, tensor_rank: int = 0, shards: int = 1, shard_rank: int = 0
    ) -> int:
        """Parameters that a pipeline rank works with, or that it keeps where `shards` ranks share
        the first dimension of each; whole over dp_shard and cp where they do not."""
        if (tensor_rank, shards) == (0, 1) and not self.shape.kinds:
            return self.layers_of(rank) * self.largest_block + self.end_parameters(rank)
        where = (self.plan.tp, tensor_rank, shards, shard_rank)
        own = self.blocks_of(self.stages_of(rank))
        blocks = sum(count * elements(held, *where) for held, count in own)
        return blocks + elements(self.ends(rank), *where)


def make_job(
    model: Any,
    plan: ParallelPlan,
    batch: int,
    seq_len: int,
    program: Program | None = None,
    adapters: Adapters | None = None,
    optimizer: str = "adamw",
    device: str = "cpu",
) -> Job:
    """The job of a model, a transformers configuration or its Shape.

    Args:
        program: another way of computing blocks than the engine's.
        adapters: what trains beside a frozen model.
        optimizer: `adamw`, or `adamw8bit` with its moments in 8 bits.
        device: `cpu`, or `cuda`, whose loss has larger chunks.

    Raises:
        UserError: the plan does not fit the model, the model has too few positions, or a number
            makes no sense.
    """
    if not isinstance(plan, ParallelPlan):
        raise UserError(f"give a plan, as ParallelPlan(dp_shard=8), not {plan!r:.40}")
    check_counts(batch, seq_len)
    shape = model_shape(model)
    check_length(shape, seq_len)
    if plan.precision == "fp8" and not splittable(shape):
        raise UserError(
            "precision=fp8 needs blocks of attention and MLP as tp splits them, not "
            f"{shape.family}'s"
        )
    if plan.stage_layers is None:
        check_stages(shape.layers, plan.stages)
    else:
        check_partition(plan.stage_layers, shape.layers, plan.stages)
    check_heads(shape, plan.tp)
    check_dealt(shape, plan)
    check_ulysses(shape, plan)
    if adapters is not None:
        if not isinstance(adapters, Adapters):
            raise UserError(f"give adapters as Adapters(rank=8), not {adapters!r:.40}")
        adapters.check(shape, plan)
    if optimizer not in OPTIMIZERS:
        raise UserError(f"optimizer is one of {', '.join(OPTIMIZERS)}, not {optimizer!r:.40}")
    way = program or _own_program(shape, plan, seq_len, device)
    return Job(shape, plan, batch, seq_len, way, adapters, optimizer, device)


def _own_program(shape: Shape, plan: ParallelPlan, seq_len: int, device: str) -> Program:
    return program_of(shape, plan.precision, device, shape.narrow(seq_len), plan.ep > 1)


# a search makes thousands of jobs that differ in other things than their placement
@lru_cache(maxsize=4096)
def _strides(degrees: tuple[tuple[str, int], ...], placement: str) -> dict[str, int]:
    strides, apart, sizes = {}, 1, dict(degrees)
    for axis in reversed(axis_order(sizes, placement)):
        strides[axis] = apart
        apart *= sizes[axis]
    return strides
