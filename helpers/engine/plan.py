"""How a model is laid out over processes: a plan of degrees and switches, and the mesh it makes.

    world = dp_replicate x dp_shard x pp x cp x tp       axis: a direction of the mesh

A plan is a frozen value. It can be checked before anything starts, printed, compared and stored;
nothing else in the engine reads flags or the environment to learn the layout.
"""

import math
import re
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from .context.attention import WAYS
from .context.balance import SPLITS
from .context.check import check_context
from .errors import UserError, check_count
from .models.architecture import text_config
from .models.objectives import OBJECTIVES
from .pipeline.partition import check_partition, check_stages
from .pipeline.schedules import SCHEDULES, Schedule, make_schedule
from .placement import PLACEMENTS, axis_order, rank_grid
from .tensor.check import check_experts, check_tensor_degree

AXES = ("dp_replicate", "dp_shard", "pp", "cp", "tp")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = (*DTYPES, "fp8")
PARTITION = re.compile(r"auto|\d{1,9}(,\d{1,9})*", re.ASCII)
# far beyond any model or batch; a schedule lists what every stage does with every micro-batch
MOST_RANKS = 10_000_000
MOST_STAGES, MOST_MICROBATCHES = 10_000, 100_000
_schedule = lru_cache(maxsize=1024)(make_schedule)  # asked for again and again, and immutable
PER_RANK = 4  # micro-batches a pipeline rank: a bubble of at most a fifth
ACTIVATION = re.compile(r"none|full|selective|group_[1-9]\d{0,8}", re.ASCII)


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if type(value) is not type(allowed[0]) or value not in allowed:
        raise UserError(f"{name} must be one of {', '.join(map(str, allowed))}, not {value!r}")


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


@dataclass(frozen=True, repr=False)
class ParallelPlan:
    """Degrees of each axis. Their product is the number of processes.

    dp_replicate: copies of the model that each see other samples.
    dp_shard: ranks that share one copy's state and each see other samples.
    pp: ranks that each hold some of the layers and hand samples on to the next.
    cp: ranks that each hold a part of every sequence, in attention too; they share state as those
        of dp_shard do.
    tp: ranks that share each layer's matrices and see the same samples.
    ep: ranks that deal a mixture's experts out among them, and send each other tokens in place of
        experts' weights: 1, or as many as dp_shard times cp.

    Switches:
        zero_stage: what the ranks of dp_shard and cp share: 1 the optimizer's state, 2 also the
            gradients, 3 also the parameters.
        sequence_parallel: between the layers that tp splits, split the sequence over tp.
        cp_attention: how ranks of cp attend to each other's tokens: `ring`, `gather` or `ulysses`.
        cp_split: which tokens they hold: `balanced` by the work of attention, or `contiguous`.
        activation: what is kept for the backward pass: `none` recomputes nothing, `full` keeps each
            block's input alone, `group_N` that of every N-th block, `selective` also the results of
            matrix products.
        offload: keep what is kept in host memory.
        compile: compile each block by torch.compile.
        precision: `fp32`; `bf16` or `fp16` for arithmetic with float32 master weights and sums;
            `fp8` for the blocks' matrix products in 8 bits, and all else as bf16 on a GPU and as
            fp32 on a CPU, where nothing is quicker in fewer bits.
        reduce_dtype: in which gradients are summed over data ranks: `fp32`, `bf16` or `fp16`.
        microbatches: parts of a data rank's batch that go through the model one after another;
            0 chooses: 1, or with a pipeline up to 4 for each of its ranks.
        schedule: the order in which a pipeline's ranks work on them: `naive`, `gpipe`, `1f1b`,
            `zero-bubble`, `interleaved` or `zero-bubble-v`.
        virtual_stages: stages a pipeline rank has, for the schedule `interleaved`.
        partition: layers of each stage as `7,7,7,7`, or `auto`.
        placement: which axes lie over neighbouring ranks: `cluster`, `spread` or a permutation of
            DPCT, see placement.py.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    zero_stage: int = 3
    sequence_parallel: bool = False
    cp_attention: str = "ring"
    cp_split: str = "balanced"
    activation: str = "none"
    offload: bool = False
    compile: bool = False
    precision: str = "fp32"
    reduce_dtype: str = "fp32"
    microbatches: int = 0
    schedule: str = "1f1b"
    virtual_stages: int = 0
    partition: str = "auto"
    placement: str = "cluster"

    def __post_init__(self) -> None:
        for axis in AXES:
            degree = getattr(self, axis)
            if type(degree) is not int or degree < 1:  # a search asks this of 100,000 plans
                check_count(axis, degree)
        if type(self.ep) is not int or self.ep < 1:
            check_count("ep", self.ep)
        for name in ("sequence_parallel", "offload", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} must be True or False, not {getattr(self, name)!r}")
        _one_of("zero_stage", self.zero_stage, (1, 2, 3))
        _one_of("cp_attention", self.cp_attention, tuple(WAYS))
        _one_of("cp_split", self.cp_split, SPLITS)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("reduce_dtype", self.reduce_dtype, tuple(DTYPES))
        if not _matches(ACTIVATION, self.activation):
            raise UserError(
                f"activation must be none, full, group_N or selective, not {self.activation!r}"
            )
        if self.sequence_parallel and self.tp == 1:
            raise UserError("sequence_parallel splits over the ranks of tp, so it needs tp above 1")
        for name in ("microbatches", "virtual_stages"):
            check_count(name, getattr(self, name), least=0)  # 0 chooses
        if self.pp * max(1, self.virtual_stages) > MOST_STAGES:
            raise UserError(f"{self.pp} x {self.virtual_stages or 1} stages: at most {MOST_STAGES}")
        if self.world_size > MOST_RANKS:
            raise UserError(f"the plan has more than {MOST_RANKS} ranks")
        if self.microbatches > MOST_MICROBATCHES:
            raise UserError(f"microbatches is {self.microbatches}: at most {MOST_MICROBATCHES}")
        if not _matches(PARTITION, self.partition):
            raise UserError(
                f"partition must be auto or layers of each stage as 7,7,7,7, not {self.partition!r}"
            )
        if self.compile and self.activation == "selective":
            raise UserError(
                "activation=selective chooses among operations, which compiling joins: with "
                "compile take none, full or group_N"
            )
        if self.ep > 1:
            self._check_experts()
        named = isinstance(self.placement, str) and self.placement in PLACEMENTS
        if not named:  # those have room for every axis
            axis_order(self.degrees, self.placement)
        _one_of("schedule", self.schedule, SCHEDULES)
        self.schedule_of(1)
        if self.compile and self.splits_backward:
            raise UserError(
                f"schedule={self.schedule} puts weight gradients off, which a compiled block does "
                "not: with compile take gpipe, 1f1b or interleaved"
            )
        if self.pp == 1 and self.virtual_stages > 1:
            raise UserError("virtual_stages are of a pipeline, so they need pp above 1")

    def __repr__(self) -> str:
        """The call that makes such a plan."""
        said = ", ".join(f"{name}={value!r}" for name, value in self.chosen().items())
        return f"ParallelPlan({said})"

    def _check_experts(self) -> None:
        """Raise a UserError if experts cannot be dealt out beside the other degrees."""
        if self.ep != self.shards:
            beside = f" x cp={self.cp}" if self.cp > 1 else ""
            raise UserError(
                f"ep={self.ep} deals experts out to the ranks of dp_shard={self.dp_shard}{beside}: "
                "give it their number, and what other data ranks there are to dp_replicate"
            )
        if self.zero_stage != 3:
            raise UserError(f"ep shards experts as zero_stage=3 does, not {self.zero_stage}")

    @cached_property
    def degrees(self) -> dict[str, int]:
        """Ranks along each axis."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def world_size(self) -> int:
        """Processes that the plan needs."""
        return math.prod(self.degrees.values())

    @property
    def stages(self) -> int:
        """Stages of the model, over all ranks of the pipeline."""
        return self.schedule_of(1).stages

    @property
    def stage_layers(self) -> tuple[int, ...] | None:
        """The number of layers of each stage where the partition lists them."""
        if self.partition == "auto":
            return None
        return tuple(map(int, self.partition.split(",")))

    @property
    def splits_backward(self) -> bool:
        """Does backward run in two parts, with the weights' gradients later?"""
        return self.pp > 1 and self.schedule.startswith("zero-bubble")

    def schedule_of(self, microbatches: int) -> Schedule:
        """What each rank of the pipeline does with so many micro-batches; without a pipeline,
        forward and backward of one after the other."""
        if self.pp == 1:
            return _schedule("1f1b", 1, microbatches)
        return _schedule(self.schedule, self.pp, microbatches, self.virtual_stages or None)

    def microbatches_of(self, rows: int) -> int:
        """Micro-batches that a data rank's `rows` of a batch go through the model in."""
        if self.microbatches or self.pp == 1:
            return self.microbatches or 1
        return max(1, min(rows, PER_RANK * self.pp))

    @cached_property
    def zero(self) -> int:
        """The stage of ZeRO at work, 0 where every data rank holds the whole state."""
        return self.zero_stage if self.shards > 1 else 0

    @property
    def shards(self) -> int:
        """Ranks that share one copy's state: ZeRO's, and those that hold parts of its sequences."""
        return self.dp_shard * self.cp

    @property
    def sequence_parts(self) -> int:
        """Ranks over which sequence parallelism splits what lies between layers."""
        return self.tp if self.sequence_parallel else 1

    def low_dtype(self, device_type: str) -> torch.dtype | None:
        """The dtype of arithmetic where it is below float32, whose masters are then kept."""
        if self.precision == "fp8":
            return None if device_type == "cpu" else torch.bfloat16
        return None if self.precision == "fp32" else DTYPES[self.precision]

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype in which gradients are summed."""
        return DTYPES[self.reduce_dtype]

    @property
    def dp(self) -> int:
        """Ranks that see different samples."""
        return self.dp_replicate * self.dp_shard

    def validate(
        self, config: Any = None, world_size: int | None = None, task: str | None = None
    ) -> None:
        """Check the plan against a transformers configuration and a number of processes.

        Args:
            task: that the model's head is for, see models/objectives.py.

        Raises:
            UserError: one line that names the rule that is broken and what would work.
        """
        if world_size is not None and world_size != self.world_size:
            raise UserError(
                f"the plan needs {self.world_size} processes ({self.describe()}) but {world_size} "
                f"{'was' if world_size == 1 else 'were'} started: "
                f"start it with torchrun --nproc-per-node {self.world_size}"
            )
        if config is not None and not hasattr(config, "model_type"):
            raise UserError(f"{config!r:.40} is no configuration: give load_config(...) of a model")
        if task is not None and task not in tuple(OBJECTIVES):
            raise UserError(f"no task {task!r:.40} has a head; there is {', '.join(OBJECTIVES)}")
        if config is not None and self.tp > 1:
            check_tensor_degree(config, self.tp)
        if config is not None and self.ep > 1:
            check_experts(config)
        if config is not None and self.cp > 1:
            check_context(config, self.cp, self.cp_attention, self.tp, task)
        if config is not None and (self.pp > 1 or self.stage_layers is not None):
            layers = getattr(text_config(config), "num_hidden_layers", None)
            if layers is None:
                raise UserError(
                    f"{config.model_type}'s configuration has no num_hidden_layers, by which pp "
                    "finds the blocks: name it in the attribute_map of its class, or leave pp out"
                )
            if self.stage_layers is None:
                check_stages(layers, self.stages)
            else:
                check_partition(self.stage_layers, layers, self.stages)

    def describe(self) -> str:
        """The degrees above 1, as `tp=2 x dp_shard=4`; `one process` where there are none."""
        parts = [f"{axis}={degree}" for axis, degree in self.degrees.items() if degree > 1]
        dealt = f" with ep={self.ep}" if self.ep > 1 else ""
        return (" x ".join(parts) or "one process") + dealt

    def chosen(self) -> dict[str, Any]:
        """The fields that are not the default, by name."""
        values = ((x.name, getattr(self, x.name), x.default) for x in fields(self))
        return {name: value for name, value, default in values if value != default}

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for summary.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ParallelPlan":
        """The plan that `to_dict` wrote.

        Raises:
            UserError: a key is not a field of the plan.
        """
        if not isinstance(values, dict):
            raise UserError(f"a plan is read from its fields by name, not from {values!r:.40}")
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known, key=str)
        if unknown:
            names = ", ".join(sorted(known))
            raise UserError(f"a plan has no field {unknown[0]!r}; it has {names}")
        return cls(**values)

    def mesh(self, device_type: str) -> DeviceMesh:
        """The mesh over all ranks, ranks as the placement lays them.

        Its axes are `AXES`, but cp first where its ranks lie further apart than those of data:
        both together, as one axis, are then in the order of their ranks, as their group is.
        """
        order = axis_order(self.degrees, self.placement)
        first = ("cp",) if order.index("cp") < order.index("dp_shard") else ()
        axes = (*first, *(axis for axis in AXES if axis not in first))
        ranks = rank_grid({axis: self.degrees[axis] for axis in axes}, self.placement)
        return DeviceMesh(device_type, ranks, mesh_dim_names=axes)
