"""The layouts worth trying: degrees, ways to shard the state, micro-batches and schedules."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.adapters import Adapters
from helpers.planner.model.job_checks import splits, ways
from helpers.planner.shape.shape import Shape

# Nothing; what is cheap to compute again; whole blocks; host memory; and host memory for little.
ACTIVATIONS = (
    ("none", False),
    ("selective", False),
    ("full", False),
    ("none", True),
    ("full", True),
)


def savers(
    shape: Shape, adapters: Adapters | None, ruled_out: Counter[str]
) -> tuple[tuple[str, bool], ...]:
    """Those of ACTIVATIONS that can be, the others counted under what refuses them."""
    possible = []
    for activation, offload in ACTIVATIONS:
        plan = ParallelPlan(activation=activation, offload=offload)
        refused = adapters and adapters.refused(shape, plan)
        if refused:
            ruled_out[refused] += 1
        else:
            possible.append((activation, offload))
    return tuple(possible)


LONG = 8192  # tokens of a row from which cp is tried though there are samples for all ranks
LEAST_PART = 2048  # tokens of a row that a rank of cp gets at least: with fewer, sending takes over


def layouts(
    shape: Shape,
    cluster: Cluster,
    batch: int,
    seq_len: int,
    ruled_out: Counter[str],
    adapters: Adapters | None = None,
) -> Iterator[tuple[int, int, int, int]]:
    """Degrees (tp, pp, cp, dp) that use every device, the model can be cut into, and the batch
    fills; the others are counted under the rule that they break."""
    for tp in divisors(cluster.devices):
        refused = adapters and adapters.refused(shape, ParallelPlan(tp=tp))
        for pp in divisors(cluster.devices // tp):
            if broken := _broken(shape, cluster, tp, pp) or refused:
                ruled_out[broken] += 1
                continue
            ranks = cluster.devices // tp // pp
            for cp in context_degrees(ranks, batch, seq_len):
                if ranks // cp > batch:
                    ruled_out["more data ranks than samples"] += 1
                    continue
                yield tp, pp, cp, ranks // cp


def _broken(shape: Shape, cluster: Cluster, tp: int, pp: int) -> str:
    """The rule that these degrees break, if any."""
    if not splits(shape, tp):
        return "heads or MLP do not divide by tp"
    if cluster.devices_per_node % tp:
        return "tp would leave the node"
    return "more pipeline ranks than layers" if pp > shape.layers else ""


def context_degrees(ranks: int, batch: int, seq_len: int) -> list[int]:
    """Over how many of some ranks a row may be split: over none, where rows are short and there is
    a sample for every rank."""
    if seq_len < LONG and batch >= ranks:
        return [1]
    return [n for n in divisors(ranks) if n == 1 or seq_len >= n * LEAST_PART]


def divisors(number: int) -> list[int]:
    """In order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def shardings(dp: int, in_node: int, cp: int = 1) -> list[tuple[int, int]]:
    """(dp_shard, zero_stage) from the cheapest on: none, or over the ranks of cp alone; the
    optimizer's state, for which the same bytes travel; gradients; parameters, over few ranks before
    many."""
    if dp == 1:
        return [(1, 3)] if cp == 1 else [(1, 1), (1, 2), (1, 3)]
    some = [s for s in divisors(dp) if s > 1 and (s <= 8 * in_node or s == dp)]
    return [(1, 3), (dp, 1), (dp, 2), *((s, 3) for s in some)]


def pipelines(pp: int, rows: int, layers: int) -> Iterator[dict[str, Any]]:
    """Micro-batches, schedule and virtual stages worth trying."""
    # a pipeline wants many micro-batches
    sizes = sorted({min(rows, 2**i) for i in range(8 if pp == 1 else 5)})
    for size in sizes:
        microbatches = -(-rows // size)
        if pp == 1:
            yield {"microbatches": microbatches}
            continue
        yield {"microbatches": microbatches, "schedule": "1f1b"}
        yield {"microbatches": microbatches, "schedule": "zero-bubble"}
        if 2 * pp <= layers:
            yield {"microbatches": microbatches, "schedule": "zero-bubble-v"}
        if microbatches >= pp:
            for virtual in (2, 4):
                if pp * virtual <= layers:
                    how = {"schedule": "interleaved", "virtual_stages": virtual}
                    yield {"microbatches": microbatches, **how}


def unsharded_plans(
    shape: Shape,
    cluster: Cluster,
    batch: int,
    seq_len: int,
    precision: str,
    ruled_out: Counter[str],
    adapters: Adapters | None = None,
) -> Iterator[ParallelPlan]:
    """Every layout with every pipeline, with and without sequence parallelism, and every way of
    attention over cp; the state is whole on each data rank. Those that the engine does not train
    adapters under are counted as it refuses them."""
    for tp, pp, cp, dp in layouts(shape, cluster, batch, seq_len, ruled_out, adapters):
        switches = product(
            pipelines(pp, -(-batch // dp), shape.layers),
            (False, True) if tp > 1 else (False,),
            ways(shape, tp, cp) if cp > 1 else ("ring",),
        )
        for how, sequence_parallel, way in switches:
            plan = ParallelPlan(
                tp=tp,
                pp=pp,
                cp=cp,
                dp_replicate=dp,
                precision=precision,
                sequence_parallel=sequence_parallel,
                cp_attention=way,
                **how,
            )
            refused = adapters and adapters.refused(shape, plan)
            if refused:
                ruled_out[refused] += 1
            else:
                yield plan


def sharded_plans(plan: ParallelPlan, cluster: Cluster, experts: int = 0) -> Iterator[ParallelPlan]:
    """An unsharded plan, and it with each way to share the state.

    Args:
        experts: of a layer, which ranks may deal out among them.
    """
    in_node = max(1, cluster.devices_per_node // plan.tp)
    for shard, stage in shardings(plan.dp, in_node, plan.cp):
        own = replace(plan, dp_replicate=plan.dp // shard, dp_shard=shard, zero_stage=stage)
        yield own
        if stage == 3 and own.shards > 1 and experts and experts % own.shards == 0:
            yield replace(own, ep=own.shards)
