"""Configurations of the SageMaker model parallel library, read into a ParallelPlan.

    config = read_smp_config({"partitions": 2, "tensor_parallel_degree": 2, "ddp": True}, 8)
    config.plan                   # dp_replicate=2 x pp=2 x tp=2
    config.global_batch(4)        # 16: without prescaled_batch each tensor rank brings its own 4

Every key of both versions stands in the tables of keys.py. It becomes a part of the plan or a
setting beside it; or it is left out with the reason (`config.left_out`); or the configuration is
refused with the reason and the nearest thing. Words keep their meaning: `interleaved` is roughly
1f1b and not the interleaved schedule, `simple` is gpipe, D of a placement is what is left of the
ranks when pipeline and tensor ranks are taken out (`rdp`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.pipeline.partition import MEMORY, SPEED, Costs, balance
from helpers.engine.plan import ParallelPlan
from helpers.smp.distribution.argument import beside, parameters_in
from helpers.smp.keys import Key, does_nothing, elsewhere, keys, wants_whole

SCHEDULE = {"interleaved": "1f1b", "simple": "gpipe"}
CP_ATTENTION = {"p2p": "ring", "all_gather": "gather"}


@dataclass(frozen=True)
class SmpConfig:
    """A configuration as the engine understands it.

    version: 1 or 2 of the library.
    batch_of: whose a process's batch is: `rdp`, all tensor ranks see the same samples
        (prescaled_batch, and version 2); `dp`, each tensor rank brings samples of its own.
    memory_weight: for the automatic partition, from 0 (time) to 1 (memory).
    clip: the largest gradient norm, where the configuration says it.
    seed: as `clip`.
    env: variables of every rank, of mpi's options beside the configuration.
    left_out: keys and options that do nothing here, each with the reason.
    """

    plan: ParallelPlan
    version: int
    batch_of: str = "rdp"
    memory_weight: float = SPEED
    clip: float | None = None
    seed: int | None = None
    env: dict[str, str] = field(default_factory=dict, hash=False)
    left_out: dict[str, str] = field(default_factory=dict, hash=False)

    def global_batch(self, batch: int) -> int:
        """Samples of a step where each process's loader yields `batch`: what --batch-size takes.

        rdp x batch with prescaled_batch, dp x batch without; dp has the tensor ranks in it.
        """
        return batch * self.plan.dp * (self.plan.tp if self.batch_of == "dp" else 1)

    def with_partition(self, costs: Costs) -> ParallelPlan:
        """The plan with the partition that `memory_weight` asks for; `auto` weighs as for speed.

        Args:
            costs: of the model's parts, see partition.model_costs.
        """
        layers = balance(costs, self.plan.stages, self.memory_weight)
        return replace(self.plan, partition=",".join(map(str, layers)))


def read_smp_config(
    config: dict[str, Any], world_size: int, version: int | None = None
) -> SmpConfig:
    """The plan, and what stands beside it, of a configuration for `world_size` processes.

    Args:
        config: the parameters, or the estimator's `distribution` around them.
        world_size: instances times processes of each.
        version: 1 or 2; unless given it is 1 where a key is version 1's own, else 2.

    Raises:
        UserError: one line: an unknown key, a value of the wrong kind, keys that exclude each
            other, degrees that do not divide the processes, or what the engine cannot do.
    """
    given = parameters_in(config)
    wants = wants_whole(world_size, least=1)
    if wants:
        raise UserError(f"world_size must be {wants}, not {world_size!r}")
    if version is None:
        version = version_of(given)
    if version not in (1, 2):
        raise UserError(f"the library had version 1 and 2, not {version!r}")
    table = keys(version)
    for key, value in given.items():
        check_key(key, value, table, version)
    notes = {key: record.note for key, record in table.items() if record.note} | does_nothing()
    left_out = {key: notes[key] for key in given if key in notes}
    values = {key: record.default for key, record in table.items()} | given
    read = _version_1 if version == 1 else _version_2
    found = read(values, world_size, left_out)
    if given is config:
        return found
    env, of_mpi = beside(config, world_size)
    return replace(found, env=env, left_out=found.left_out | of_mpi)


def version_of(given: Iterable[str]) -> int:
    """Of the library: 1 where a key is version 1's own, else 2."""
    return 1 if any(key in keys(1) and key not in keys(2) for key in given) else 2


def _version_1(values: dict[str, Any], world_size: int, left_out: dict[str, str]) -> SmpConfig:
    pp, tp = _pipeline_degree(values), values["tensor_parallel_degree"]
    rdp = ranks_left(world_size, {"pipeline_parallel_degree": pp, "tensor_parallel_degree": tp})
    sharded = values["sharded_data_parallel_degree"]
    _check_v1(values, pp, tp, rdp, sharded)
    schedule = SCHEDULE[values["pipeline"]]
    left_out = left_out | _check_in_flight(values, pp, schedule)
    shares = rdp if values["shard_optimizer_state"] else sharded
    half = values["fp16"] or values["fp16_params"]  # the same, under an older name
    precision = precision_of(half, values["bf16"])
    sums_low = values["_fp32_grad_accumulation"] is False
    plan = ParallelPlan(
        dp_replicate=rdp // shares,
        dp_shard=shares,
        pp=pp,
        tp=tp,
        zero_stage=1 if values["shard_optimizer_state"] else 3,
        offload=values["offload_activations"],
        precision=precision,
        reduce_dtype=precision if sums_low else "fp32",
        microbatches=values["microbatches"],
        schedule=schedule,
        placement=values["placement_strategy"],
    )
    weight = values["memory_weight"]
    if weight is None:
        weight = SPEED if values["optimize"] == "speed" else MEMORY
    return SmpConfig(
        plan,
        version=1,
        batch_of="rdp" if values["prescaled_batch"] else "dp",
        memory_weight=weight,
        clip=values["sdp_gradient_clipping"] if sharded > 1 else None,
        left_out=left_out,
    )


def _version_2(values: dict[str, Any], world_size: int, left_out: dict[str, str]) -> SmpConfig:
    tp, shards = values["tensor_parallel_degree"], values["hybrid_shard_degree"]
    degrees = {"tensor_parallel_degree": tp, "hybrid_shard_degree": max(1, shards)}
    replicas, cp = ranks_left(world_size, degrees), values["context_parallel_degree"]
    if shards == 0:  # native FSDP, over all ranks
        replicas, shards = 1, replicas
    if shards % cp:
        raise UserError(
            f"context_parallel_degree={cp} does not divide the {shards} ranks that share the "
            "model: its ranks are among those of hybrid_shard_degree"
        )
    experts = values["expert_parallel_degree"]
    if experts not in (1, shards):
        raise UserError(
            f"expert_parallel_degree={experts} deals experts out to some of the {shards} ranks "
            f"that share the model, and ep here to all of them: give hybrid_shard_degree={experts}"
        )
    plan = ParallelPlan(
        dp_replicate=replicas,
        dp_shard=shards // cp,
        ep=experts,
        cp=cp,
        cp_attention=CP_ATTENTION[values["cp_comm_type"]],
        tp=tp,
        offload=values["sm_activation_offloading"],
    )
    return SmpConfig(plan, version=2, seed=values["random_seed"], left_out=left_out)


def check_key(key: str, value: Any, table: dict[str, Key], version: int) -> None:
    """Raise a UserError if a configuration cannot have this key with this value."""
    if key in does_nothing():
        return
    if key not in table:
        raise UserError(_unknown(key, table, version))
    record = table[key]
    wants = record.wants(value)
    if wants:
        raise UserError(f"{key} must be {wants}, not {value!r}")
    if record.only is not None and value != record.only:
        raise UserError(f"{key}={value!r} cannot be kept: {record.why}")


def _unknown(key: str, table: dict[str, Key], version: int) -> str:
    places = elsewhere()
    if key in places:
        return f"{key} is no key of the configuration: it is {places[key]}"
    if key in keys(3 - version):
        return (
            f"{key} is a key of version {3 - version}, and this is read as version {version}: "
            "keep to the keys of one"
        )
    close = get_close_matches(str(key), [*keys(1), *keys(2)], n=1)
    hint = f"did you mean {close[0]}?" if close else f"version {version} has {', '.join(table)}"
    return f"no version has a key {key!r}; {hint}"


def _pipeline_degree(values: dict[str, Any]) -> int:
    old, new = values["partitions"], values["pipeline_parallel_degree"]
    if old and new and old != new:
        raise UserError(
            f"partitions={old} and pipeline_parallel_degree={new} are two names of one number: "
            "keep one of them"
        )
    return old or new or 1


def ranks_left(ranks: int, degrees: dict[str, int]) -> int:
    """Ranks that axes of these degrees leave for another.

    Raises:
        UserError: they do not divide the ranks.
    """
    product = math.prod(degrees.values())
    if ranks % product:
        words = f"{in_words(degrees)} does not divide {ranks} ranks"
        raise UserError(f"{words}: start a multiple of {product}")
    return ranks // product


def in_words(degrees: dict[str, int]) -> str:
    """Those above 1, each with its name."""
    named = [f"{name}={degree}" for name, degree in degrees.items() if degree > 1]
    return " x ".join(named) or "one rank"


def _check_v1(values: dict[str, Any], pp: int, tp: int, rdp: int, sharded: int) -> None:
    """The library's own rules of what goes together."""
    for degree, what in ((tp, "tensor_parallel_degree"), (sharded, "sharded_data_parallel_degree")):
        if degree > 1 and not values["ddp"]:
            raise UserError(f"{what}={degree} needs ddp: True")
    if rdp > 1 and not values["ddp"]:
        raise UserError(
            f"without ddp: True there is no data axis, but {pp * tp * rdp} processes are "
            f"{rdp} times the {pp * tp} of the model: set it, or start {pp * tp}"
        )
    if sharded > 1 and pp > 1:
        raise UserError(
            f"sharded_data_parallel_degree={sharded} and pipeline_parallel_degree={pp} exclude "
            "each other: take shard_optimizer_state with the pipeline, or tensor_parallel_degree"
        )
    if sharded > 1 and values["shard_optimizer_state"]:
        raise UserError(
            f"sharded_data_parallel_degree={sharded} shards the optimizer's state already: "
            "leave out shard_optimizer_state"
        )
    if rdp % sharded:
        raise UserError(
            f"sharded_data_parallel_degree={sharded} does not divide the data axis of {rdp}: "
            f"take {math.gcd(sharded, rdp)} or another divisor of it"
        )
    if not values["auto_partition"] and pp > 1:
        raise UserError(
            "auto_partition=False leaves the stages to smp.partition(i) in a script: "
            "give the plan layers of each stage instead, as partition=7,7,7,7"
        )


def _check_in_flight(values: dict[str, Any], pp: int, schedule: str) -> dict[str, str]:
    """How many micro-batches may be in flight, against how many the schedule keeps there."""
    limit = values["active_microbatches"]
    if limit is None or pp == 1:
        return {}
    most = min(values["microbatches"], pp) if schedule == "1f1b" else values["microbatches"]
    if limit < most:
        nearest = "pipeline=interleaved" if schedule == "gpipe" else "the plan's schedule=naive"
        raise UserError(
            f"active_microbatches={limit} cannot be kept: {schedule} has {most} of "
            f"{values['microbatches']} in flight; the nearest is {nearest}, or fewer microbatches"
        )
    return {"active_microbatches": f"{schedule} has {most} in flight by itself"}


def precision_of(fp16: Any, bf16: Any) -> str:
    """The precision of two switches.

    Raises:
        UserError: both are on.
    """
    if fp16 and bf16:
        raise UserError("fp16 and bf16 exclude each other: keep one")
    return "fp16" if fp16 else "bf16" if bf16 else "fp32"
