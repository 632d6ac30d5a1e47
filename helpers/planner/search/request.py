"""What a search is asked, and one line for each question that has no answer."""

from collections import Counter
from dataclasses import dataclass, replace

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import Cluster
from helpers.planner.hardware.lookup import is_amount
from helpers.planner.memory.peak import fullest
from helpers.planner.model.block_tensors import program_of
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.search.layouts import layouts
from helpers.planner.search.planned import Choice
from helpers.planner.shape import Shape

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


def job_under(question: Question, plan: ParallelPlan) -> Job:
    """The question's work under a plan."""
    program = program_of(question.shape.family, question.precision)
    return Job(question.shape, plan, question.batch, question.seq_len, program)


def check(question: Question) -> None:
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
        if number is not None and not is_amount(number):
            raise UserError(f"{name} must be a number above 0, not {number!r}")
    if question.deadline_s is not None and question.tokens is None:
        raise UserError("a deadline needs the number of tokens to train on")


def nothing_fits(question: Question) -> str:
    """What is needed at least, and how many nodes would do."""
    cluster = max(question.clusters, key=lambda c: c.devices * c.memory_bytes)
    ruled_out: Counter[str] = Counter()
    degrees = list(layouts(question.shape, cluster, question.batch, question.seq_len, ruled_out))
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


def _least_bytes(question: Question, degree: tuple[int, int, int, int]) -> float:
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
    return fullest(job_under(question, plan)).total


def _enough_nodes(question: Question, cluster: Cluster) -> int | None:
    """The fewest nodes, in doublings, on which something fits."""
    nodes = cluster.nodes
    while nodes * cluster.devices_per_node <= min(32768, 64 * question.batch):
        nodes *= 2
        larger = replace(cluster, nodes=nodes)
        for degree in layouts(question.shape, larger, question.batch, question.seq_len, Counter()):
            if _least_bytes(question, degree) <= cluster.memory_bytes:
                return nodes
    return None


def too_late(question: Question, choices: list[Choice]) -> str:
    """How long it takes at best, and how many nodes could do it."""
    fastest = max(choices, key=lambda choice: choice.tokens_per_s)
    takes_s = question.tokens / fastest.tokens_per_s
    more = -(-fastest.cluster.nodes * takes_s // question.deadline_s)
    return (
        f"the deadline of {question.deadline_s / 86400:.3g} days cannot be met: the fastest plan, "
        f"{fastest.plan.describe()} on {fastest.cluster.nodes} x {fastest.cluster.name}, takes "
        f"{takes_s / 86400:.3g} days; at least {more:.0f} nodes would be needed"
    )
