"""Which layout: every valid plan of a model on a cluster, the ones that fit, the best of them.

    found = search_plans(load_config("gpt3-175b"), make_cluster("p4de.24xlarge", 128), 1536, 2048)
    found.best.plan, found.best.time.total_s
    print(explain(found))                         # explain.py
    found.command("gpt3-175b")                    # how to start it

Layouts are tried in the order of what they would take if memory and the data axes were free, so the
search may stop as soon as no layout that is left can win. For each way of sharding the state, what
saves activations is tried from the cheapest on: cheap recomputation, full recomputation, host
memory; what is dearer than need be is not.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.blocks import program_of
from helpers.planner.cluster import Cluster
from helpers.planner.cost import money, train_flops_per_token
from helpers.planner.job import Job, make_job, splits
from helpers.planner.memory import Memory, fullest, states_bytes
from helpers.planner.shape import Shape, model_shape
from helpers.planner.step_time import StepTime, step_time

GOALS = ("time", "cost", "cost under a deadline")
# From the cheapest on: nothing; what is cheap to compute again; whole blocks; and host memory.
ACTIVATIONS = (("none", False), ("selective", False), ("full", False), ("full", True))
KEPT = 4  # choices that a search returns
SIMULATED = 4_000  # actions of a schedule up to which the simulator's time replaces the formula's


@dataclass(frozen=True)
class Choice:
    """A plan that fits, with what it takes."""

    job: Job
    cluster: Cluster
    memory: Memory
    time: StepTime

    @property
    def plan(self) -> ParallelPlan:
        return self.job.plan

    @property
    def tokens_per_s(self) -> float:
        """Of the whole cluster."""
        return self.job.batch * self.job.seq_len / self.time.total_s

    @property
    def usd_per_token(self) -> float | None:
        """Dollars a token; None where the cluster has no price."""
        if self.cluster.usd_per_hour is None:
            return None
        nodes = self.cluster.nodes
        return money(1 / self.tokens_per_s, self.cluster.usd_per_hour, nodes)

    def mfu(self, peak_flops: float) -> float:
        """Model FLOPs utilisation against one device's dense peak, as in cost.mfu."""
        flops = train_flops_per_token(self.job.shape, self.job.seq_len)
        return self.tokens_per_s * flops / (self.cluster.devices * peak_flops)


@dataclass(frozen=True)
class Question:
    """What was asked."""

    shape: Shape
    clusters: tuple[Cluster, ...]
    batch: int
    seq_len: int
    precision: str
    by: str
    tokens: float | None
    deadline_s: float | None


@dataclass(frozen=True)
class Found:
    """The answer.

    choices: the best plans, best first, of different layouts.
    tried: plans whose memory was looked at.
    ruled_out: layouts by the reason why they are none, and plans that do not fit.
    """

    question: Question
    choices: tuple[Choice, ...]
    tried: int
    ruled_out: dict[str, int]

    @property
    def best(self) -> Choice:
        return self.choices[0]

    def command(self, model: str, script: str = "scripts/train.py") -> str:
        """The line that starts the best plan, to be run on every node."""
        return launch_command(self.best, model, script)


def search_plans(
    model: Any,
    clusters: Cluster | Sequence[Cluster],
    batch: int,
    seq_len: int,
    precision: str = "bf16",
    by: str = "time",
    tokens: float | None = None,
    deadline_s: float | None = None,
) -> Found:
    """The best plans of a model on one of some clusters.

    Args:
        model: a transformers configuration, or a Shape.
        batch: samples of a step, over all ranks.
        by: `time`, `cost`, or `cost under a deadline`.
        tokens: to train on; needed with a deadline.
        deadline_s: for all of them.

    Raises:
        UserError: one line: the question makes no sense, no plan fits anywhere and what would, or
            the deadline cannot be met and what it would take.
    """
    shape = model if isinstance(model, Shape) else model_shape(model)
    several = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
    question = Question(shape, several, batch, seq_len, precision, by, tokens, deadline_s)
    _check(question)
    ruled_out: Counter[str] = Counter()
    tried, choices = 0, []
    for cluster in several:
        found, count = _on_cluster(question, cluster, ruled_out)
        choices += found
        tried += count
    if not choices:
        raise UserError(_nothing_fits(question))
    choices = [_exact(choice) for choice in choices]
    if deadline_s is not None:
        in_time = [c for c in choices if tokens / c.tokens_per_s <= deadline_s]
        if not in_time:
            raise UserError(_too_late(question, choices))
        choices = in_time
    choices.sort(key=lambda choice: _value(choice, by))
    return Found(question, tuple(choices[:KEPT]), tried, dict(ruled_out))


def layouts(
    shape: Shape, cluster: Cluster, batch: int, ruled_out: Counter[str]
) -> Iterator[tuple[int, int, int]]:
    """Degrees (tp, pp, dp) that use every device, the model can be cut into, and the batch fills;
    the others are counted under the rule that they break."""
    for tp in divisors(cluster.devices):
        for pp in divisors(cluster.devices // tp):
            dp = cluster.devices // tp // pp
            if not splits(shape, tp):
                ruled_out["heads or MLP do not divide by tp"] += 1
            elif tp > cluster.devices_per_node:
                ruled_out["tp would leave the node"] += 1
            elif pp > shape.layers:
                ruled_out["more pipeline ranks than layers"] += 1
            elif dp > batch:
                ruled_out["more data ranks than samples"] += 1
            else:
                yield tp, pp, dp


def divisors(number: int) -> list[int]:
    """In order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def shardings(dp: int, in_node: int) -> list[tuple[int, int]]:
    """(dp_shard, zero_stage) from the cheapest on: none; the optimizer's state, for which the same
    bytes travel; gradients; parameters, over few ranks before many."""
    if dp == 1:
        return [(1, 3)]
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


def launch_command(choice: Choice, model: str, script: str = "scripts/train.py") -> str:
    """The torchrun line of a choice: flags for the fields of its plan that are not the default."""
    job, cluster = choice.job, choice.cluster
    nodes = f" --nnodes {cluster.nodes} --rdzv-backend c10d --rdzv-endpoint $HEAD:29500"
    parts = [
        f"torchrun --nproc-per-node {cluster.devices_per_node}"
        + (nodes if cluster.nodes > 1 else ""),
        f"{script} --model {model} --batch-size {job.batch} --seq-len {job.seq_len}",
    ]
    for field in fields(ParallelPlan):
        value = getattr(choice.plan, field.name)
        if value != field.default:
            flag = "--" + field.name.replace("_", "-")
            parts.append(flag if value is True else f"{flag} {value}")
    return " ".join([*parts, "--out runs/planned"])


def _on_cluster(
    question: Question, cluster: Cluster, ruled_out: Counter[str]
) -> tuple[list[Choice], int]:
    """The best choice of each of the best layouts of one cluster, and how many were looked at."""
    shape = question.shape
    ideals = []
    for tp, pp, dp in layouts(shape, cluster, question.batch, ruled_out):
        rows = -(-question.batch // dp)
        for how in pipelines(pp, rows, shape.layers):
            for sequence_parallel in (False, True) if tp > 1 else (False,):
                plan = ParallelPlan(
                    tp=tp,
                    pp=pp,
                    dp_replicate=dp,
                    precision=question.precision,
                    sequence_parallel=sequence_parallel,
                    **how,
                )
                job = _job(question, plan)
                ideals.append((_ideal_s(job, cluster), len(ideals), job))
    ideals.sort()
    best: dict[tuple[int, int, int], Choice] = {}
    tried = 0
    for ideal_s, _, job in ideals:
        worst_kept = _nth_s(best.values(), KEPT)
        if worst_kept is not None and ideal_s >= worst_kept:
            break
        key = (job.plan.tp, job.plan.pp, cluster.nodes)
        if key in best and ideal_s >= best[key].time.total_s:
            continue
        limit_s = best[key].time.total_s if key in best else math.inf
        for candidate in _savers(job, cluster, ruled_out, limit_s):
            tried += 1
            if candidate is not None and candidate.time.total_s < limit_s:
                best[key], limit_s = candidate, candidate.time.total_s
    return list(best.values()), tried


def _savers(
    job: Job, cluster: Cluster, ruled_out: Counter[str], limit_s: float
) -> Iterator[Choice | None]:
    """The layout with each way of sharding, and the cheapest saver of activations with which it
    fits; None for each that does not, and nothing that must take longer than `limit_s`."""
    dp = job.plan.dp
    in_node = max(1, cluster.devices_per_node // job.plan.tp)
    least_s: dict[str, float] = {}
    for shard, stage in shardings(dp, in_node):
        for activation, offload in ACTIVATIONS:
            if activation not in least_s:
                saver = replace(job, plan=replace(job.plan, activation=activation))
                least_s[activation] = _ideal_s(saver, cluster)
            if least_s[activation] >= limit_s:
                break
            plan = replace(
                job.plan,
                dp_replicate=dp // shard,
                dp_shard=shard,
                zero_stage=stage,
                activation=activation,
                offload=offload,
            )
            candidate = replace(job, plan=plan)
            if sum(states_bytes(candidate, 0)) > cluster.memory_bytes:
                ruled_out["does not fit"] += 1
                yield None
                break  # no saver of activations helps
            memory = fullest(candidate)
            if memory.total <= cluster.memory_bytes:
                yield Choice(candidate, cluster, memory, step_time(candidate, cluster, exact=False))
                break
            ruled_out["does not fit"] += 1
            yield None


def _ideal_s(job: Job, cluster: Cluster) -> float:
    """Seconds if the data axes and the update were free: no sharding takes less."""
    time = step_time(job, cluster, exact=False)
    return time.total_s - time.data_s - time.optimizer_s


def _job(question: Question, plan: ParallelPlan) -> Job:
    program = program_of(question.shape, question.precision)
    return Job(question.shape, plan, question.batch, question.seq_len, program)


def _exact(choice: Choice) -> Choice:
    """With the simulator's time, where the schedule is short enough to walk."""
    job = choice.job
    actions = 2 * job.plan.stages * job.microbatches
    if job.plan.pp == 1 or actions > SIMULATED:
        return choice
    return replace(choice, time=step_time(job, choice.cluster))


def _value(choice: Choice, by: str) -> float:
    return choice.time.total_s / choice.job.batch if by == "time" else choice.usd_per_token


def _nth_s(choices: Iterable[Choice], n: int) -> float | None:
    times = sorted(choice.time.total_s for choice in choices)
    return times[n - 1] if len(times) >= n else None


def _check(question: Question) -> None:
    """The question's own sense, before anything is tried."""
    if not question.clusters:
        raise UserError("give at least one cluster, as make_cluster('p4d.24xlarge', nodes=4)")
    if question.by not in GOALS:
        raise UserError(f"plans are ranked by {', '.join(GOALS)}, not {question.by!r}")
    make_job(question.shape, ParallelPlan(), question.batch, question.seq_len)
    for cluster in question.clusters:
        cluster.rate(question.precision)
    if question.by != "time":
        for cluster in question.clusters:
            if cluster.usd_per_hour is None:
                raise UserError(
                    f"no price is known for {cluster.name}: give make_cluster its usd_per_hour"
                )
    if (question.by == GOALS[2]) != (question.deadline_s is not None):
        raise UserError(f"{GOALS[2]!r} and deadline_s belong together: give both or neither")
    for name in ("tokens", "deadline_s"):
        number = getattr(question, name)
        if number is not None and not number > 0:
            raise UserError(f"{name} must be above 0, not {number!r}")
    if question.deadline_s is not None and question.tokens is None:
        raise UserError("a deadline needs the number of tokens to train on")


def _nothing_fits(question: Question) -> str:
    """What is needed at least, and how many nodes would do."""
    cluster = max(question.clusters, key=lambda c: c.devices * c.memory_bytes)
    ruled_out: Counter[str] = Counter()
    degrees = list(layouts(question.shape, cluster, question.batch, ruled_out))
    if not degrees:
        return (
            f"no layout of {question.shape.layers} layers with {question.shape.heads} heads and "
            f"{question.batch} samples uses all {cluster.devices} devices: take more samples a "
            "step, or a number of devices with more divisors"
        )
    needs = min(_least_bytes(question, degree) for degree in degrees)
    enough = _enough_nodes(question, cluster)
    instead = (
        f"{enough} nodes would do" if enough else "no number of these nodes would do: take larger"
    )
    gib = 2**30
    return (
        f"the model does not fit {cluster.nodes} x {cluster.name}: with everything sharded, "
        f"recomputed and offloaded a device needs {needs / gib:.0f} GiB of its "
        f"{cluster.memory_bytes / gib:.0f}; {instead}"
    )


def _least_bytes(question: Question, degree: tuple[int, int, int]) -> float:
    tp, pp, dp = degree
    plan = ParallelPlan(
        tp=tp,
        pp=pp,
        dp_shard=dp,
        precision=question.precision,
        activation="full",
        offload=True,
        sequence_parallel=tp > 1,
        microbatches=-(-question.batch // dp),
    )
    return fullest(_job(question, plan)).total


def _enough_nodes(question: Question, cluster: Cluster) -> int | None:
    """The fewest nodes, in doublings, on which something fits."""
    nodes = cluster.nodes
    while nodes * cluster.devices_per_node <= min(32768, 64 * question.batch):
        nodes *= 2
        larger = replace(cluster, nodes=nodes)
        for degree in layouts(question.shape, larger, question.batch, Counter()):
            if _least_bytes(question, degree) <= cluster.memory_bytes:
                return nodes
    return None


def _too_late(question: Question, choices: list[Choice]) -> str:
    fastest = max(choices, key=lambda choice: choice.tokens_per_s)
    takes_s = question.tokens / fastest.tokens_per_s
    more = -(-fastest.cluster.nodes * takes_s // question.deadline_s)
    return (
        f"the deadline of {question.deadline_s / 86400:.3g} days cannot be met: the fastest plan, "
        f"{fastest.plan.describe()} on {fastest.cluster.nodes} x {fastest.cluster.name}, takes "
        f"{takes_s / 86400:.3g} days; at least {more:.0f} nodes would be needed"
    )
