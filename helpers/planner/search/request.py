"""What a search is asked, and one line for each question that has no answer."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.catalog import DAY_S, GIB
from helpers.planner.hardware.cluster import check_cluster, with_nodes
from helpers.planner.hardware.devices import MOST_DEVICES, Cluster
from helpers.planner.hardware.lookup import is_amount
from helpers.planner.memory.peak import fullest
from helpers.planner.model.adapters import Adapters
from helpers.planner.model.block_tensors import program_of
from helpers.planner.model.job_checks import check_timed
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.search.layouts import layouts
from helpers.planner.search.planned import Choice
from helpers.planner.shape.shape import Shape

GOALS = ("time", "cost", "cost under a deadline")


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
    adapters: Adapters | None = None
    optimizer: str = "adamw"


Search = Callable[[Question, Cluster], list[Choice]]


def job_under(question: Question, plan: ParallelPlan, cluster: Cluster) -> Job:
    """The question's work under a plan, on one of its clusters."""
    narrow = question.shape.narrow(question.seq_len)
    program = program_of(question.shape, question.precision, cluster.device, narrow)
    return Job(
        question.shape,
        plan,
        question.batch,
        question.seq_len,
        program,
        question.adapters,
        question.optimizer,
        cluster.device,
    )


def check(question: Question) -> None:
    """The question's own sense, before anything is tried."""
    if not question.clusters:
        raise UserError("give at least one cluster, as make_cluster('p4d.24xlarge', nodes=4)")
    for cluster in question.clusters:
        check_cluster(cluster)
    if question.by not in GOALS:
        raise UserError(f"plans are ranked by {', '.join(GOALS)}, not {question.by!r:.40}")
    for cluster in question.clusters:
        cluster.rate(question.precision)
    check_timed(question.shape)
    plan = ParallelPlan(precision=question.precision)
    what = {"adapters": question.adapters, "optimizer": question.optimizer}
    what["device"] = question.clusters[0].device
    make_job(question.shape, plan, question.batch, question.seq_len, **what)
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
        if number is not None and not is_amount(number):
            raise UserError(f"{name} must be a number above 0, not {number!r:.40}")
    if question.deadline_s is not None and question.tokens is None:
        raise UserError("a deadline needs the number of tokens to train on")


def nothing_fits(question: Question, search: Search) -> str:
    """What is needed at least, and how many nodes would do: those with which a search found a plan.

    Args:
        search: the best plans on one cluster, none where none fits.
    """
    cluster = max(question.clusters, key=lambda c: c.devices * c.memory_bytes)
    ruled_out: Counter[str] = Counter()
    degrees = list(_layouts(question, cluster, ruled_out))
    if not degrees:
        return (
            f"no layout of {question.shape.layers} layers with {question.shape.heads} heads and "
            f"{question.batch} samples uses all {cluster.devices} devices: take more samples a "
            "step, or a number of devices with more divisors"
        )
    needs = min(_least_bytes(question, cluster, degree) for degree in degrees)
    enough = _enough_nodes(question, cluster, search)
    instead = (
        f"{enough} nodes would do" if enough else "no number of these nodes would do: take larger"
    )
    return (
        f"the model does not fit {cluster.nodes} x {cluster.name}: with everything sharded, "
        f"recomputed and offloaded a device needs {needs / GIB:.0f} GiB and has "
        f"{cluster.memory_bytes / GIB:.0f}; {instead}"
    )


def _layouts(
    question: Question, cluster: Cluster, ruled_out: Counter[str]
) -> Iterator[tuple[int, int, int, int]]:
    work = question.batch, question.seq_len
    return layouts(question.shape, cluster, *work, ruled_out, question.adapters)


def _least_bytes(question: Question, cluster: Cluster, degree: tuple[int, int, int, int]) -> float:
    tp, pp, cp, dp = degree
    plan = ParallelPlan(
        tp=tp,
        pp=pp,
        cp=cp,
        dp_shard=dp,
        precision=question.precision,
        activation="full",
        offload=True,
        sequence_parallel=tp > 1,
        microbatches=-(-question.batch // dp),
    )
    return fullest(job_under(question, plan, cluster), context_bytes=cluster.context_bytes).total


def _enough_nodes(question: Question, cluster: Cluster, search: Search) -> int | None:
    """The fewest nodes, in doublings, on which a search finds a plan."""
    nodes = cluster.nodes
    while nodes * cluster.devices_per_node <= min(32768, 64 * question.batch):
        nodes *= 2
        larger = with_nodes(cluster, nodes)
        degrees = _layouts(question, larger, Counter())
        could = any(
            _least_bytes(question, cluster, each) <= cluster.memory_bytes for each in degrees
        )
        if could and search(question, larger):
            return nodes
    return None


def too_late(question: Question, choices: list[Choice], search: Search) -> str:
    """How long it takes at best, and a number of nodes with which a search met the deadline."""
    fastest = max(choices, key=lambda choice: choice.tokens_per_s)
    takes_s = question.tokens / fastest.tokens_per_s
    cluster, ratio = fastest.cluster, takes_s / question.deadline_s
    instead = "no number of these nodes that was tried would do"
    for times in (1, 1.25, 1.5, 2, 3, 4):
        nodes = cluster.nodes * math.ceil(ratio * times)
        if nodes * cluster.devices_per_node > MOST_DEVICES:
            break
        found = search(question, with_nodes(cluster, nodes))
        days = min((question.tokens / one.tokens_per_s / DAY_S for one in found), default=math.inf)
        if days * DAY_S <= question.deadline_s:
            instead = f"{nodes} nodes would do, in {days:.3g}"
            break
    days = float(question.deadline_s / DAY_S)
    return (
        f"the deadline of {days:.3g} day{'' if days == 1 else 's'} cannot be met: the fastest "
        f"plan, {fastest.plan.describe()} on {cluster.nodes} x {cluster.name}, takes "
        f"{takes_s / DAY_S:.3g} days; {instead}"
    )
