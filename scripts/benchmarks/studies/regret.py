"""What following the planner costs: every layout that a search looks at is run, and its pick held
against the best of them.

    regret = seconds of the planner's pick / seconds of the fastest layout, both measured

The planner knows of this machine what `calibrate()` measured, and of the model its configuration.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import correlation, median
from typing import Any

from benchmarks.compare import LOSS_TOLERANCE, quartiles
from benchmarks.quiet import Watch
from benchmarks.registry import Peer
from benchmarks.serve import Group
from benchmarks.work import Work, config
from helpers.commands import markdown
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.search.layouts import sharded_plans, unsharded_plans
from helpers.planner.search.planned import in_words
from helpers.planner.search.search import search_plans
from helpers.planner.shape.families import model_shape
from helpers.planner.time.step_time import step_time

WARMUP = 1  # rounds
TURN = 2  # steps of a layout in a round: the first brings what it needs back into the caches


@dataclass
class Row:
    """One layout: seconds predicted, and of each timed step; the loss of each step."""

    job: Job
    predicted_s: float
    step_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    @property
    def measured_s(self) -> float:
        return median(self.step_s)


@dataclass(frozen=True)
class Regret:
    """Every layout of one model, and the planner's pick among them.

    others: by timed round, the share of the cores' time that other programs took; None where the
        system does not say.
    """

    rows: list[Row]
    pick: Row
    others: list[float | None]

    @property
    def best(self) -> Row:
        return min(self.rows, key=lambda row: row.measured_s)

    @property
    def regret(self) -> float:
        return self.pick.measured_s / self.best.measured_s

    @property
    def slower(self) -> float:
        """Measured over predicted seconds of the median layout."""
        return median(row.measured_s / row.predicted_s for row in self.rows)

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of predicted and measured seconds."""
        orders = ([r.predicted_s for r in self.rows], [r.measured_s for r in self.rows])
        return correlation(*map(_places, orders))

    @property
    def disagree(self) -> list[Row]:
        """Layouts whose losses are not those of the first layout."""
        first = self.rows[0].loss
        return [row for row in self.rows if not _near(row.loss, first)]


def measure(
    work: Work, cluster: Cluster, cores: int, rounds: int, say: Callable[[str], None]
) -> Regret:
    """Predict every layout, then let them take steps in turn; those of the same degrees share
    their ranks."""
    shape = model_shape(config(work))
    every = unsharded_plans(shape, cluster, work.batch, work.seq, "fp32", Counter())
    plans = [plan for whole in every for plan in sharded_plans(whole, cluster)]
    best = search_plans(shape, cluster, work.batch, work.seq, precision="fp32").best.plan
    rows = []
    for plan in plans:
        job = make_job(shape, plan, work.batch, work.seq)
        rows.append(Row(job, step_time(job, cluster).total_s))
    pick = next(row for row in rows if row.job.plan == best)
    alike = defaultdict(list)
    for row in rows:
        alike[tuple(row.job.plan.degrees.values())].append(row)
    others = []
    with ExitStack() as stack:
        groups = [_group(ones, work, cores, stack) for ones in alike.values()]
        for index in range(WARMUP + rounds):
            say(f"round {index} of {rounds}" if index else f"warm-up of {len(plans)} layouts")
            watch = Watch()
            taken = zip(groups, alike.values(), strict=True)
            others.append(watch.stop(sum(_take(group, ones, index) for group, ones in taken)))
    return Regret(rows, pick, others[WARMUP:])


def _group(rows: Sequence[Row], work: Work, cores: int, stack: ExitStack) -> Group:
    """Ranks for the plans of these rows, which have the same degrees."""
    plans = [row.job.plan for row in rows]
    options = {"plans": [plan.to_dict() for plan in plans], "turn": TURN}
    peer = Peer("plans", "every layout", "plans_peer", plans[0].world_size, options)
    group = Group(peer, work, cores)
    stack.callback(group.close)
    return group


def _take(group: Group, rows: Sequence[Row], index: int) -> float:
    """Let each row's plan take its turn with this batch; the processor seconds of all."""
    result = group.steps([index] * len(rows) * TURN)
    last = slice(TURN - 1, None, TURN)
    for row, step_s, loss in zip(rows, result.step_s[last], result.loss[last], strict=True):
        row.loss.append(loss)
        if index >= WARMUP:
            row.step_s.append(step_s)
    return result.cpu_s


def section(found: Regret, title: str) -> str:
    """One model's part of the page: what the pick costs, and all layouts by predicted seconds."""
    places = _places([row.measured_s for row in found.rows])
    ordered = sorted(zip(found.rows, places), key=lambda pair: pair[0].predicted_s)
    lines = [
        f"## {title}",
        "",
        f"{len(found.rows)} layouts; their losses {_agreement(found)}. "
        f"The planner picks {in_words(found.pick.job)}: {_ms(found.pick.measured_s)} ms. "
        f"The fastest is {in_words(found.best.job)}: {_ms(found.best.measured_s)} ms. "
        f"**Regret {found.regret:.2f}.** Rank correlation of predicted and measured "
        f"{found.rank_correlation:.2f}. The median layout takes {found.slower:.2f} times the "
        "predicted seconds.",
        "",
    ]
    head = ("place predicted", "place measured", "layout", "predicted, ms", "measured, ms")
    cells = []
    for number, (row, place) in enumerate(ordered, start=1):
        low, middle, high = map(_ms, quartiles(row.step_s))
        words = f"**{in_words(row.job)}**" if row is found.pick else in_words(row.job)
        places = number, f"{place + 1:.0f}"
        cells.append((*places, words, _ms(row.predicted_s), middle, f"{low} to {high}"))
    return "\n".join([*lines, markdown((*head, "quartiles"), cells), ""])


def page(record: dict[str, Any]) -> str:
    """docs/plan_regret.md: what was measured, how, and every layout of every model."""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    machine = record["machine"]
    regrets = ", ".join(
        f"{found['work']['family']} {found['regret']:.2f}" for found in record["results"]
    )
    lines = [
        "# What following the planner costs",
        "",
        f"Written by `{record['command']}` on {record['date']}: {machine['processor']}, "
        f"{machine['cores']} cores; {versions}.",
        "",
        "Four ranks share the cores. `calibrate()` measures the machine with as many; then the "
        "planner predicts a step of every layout that a search looks at, float32, nothing "
        "recomputed, and all of them take their steps in turn with the same weights and batches. "
        "Layouts of the same degrees share their ranks, and ranks that wait are stopped. Measured "
        "is the median of the rounds after a warm-up, of each round's second step. Regret is the "
        "time of the layout that "
        "`search_plans` picks over that of the fastest. CPU times say nothing of GPUs.",
        "",
        f"Regret: {regrets}.",
        "",
    ]
    return "\n".join([*lines, *(found["section"] for found in record["results"])])


def to_dict(found: Regret) -> dict[str, Any]:
    """All of it as plain data."""
    rows = [
        {
            "plan": row.job.plan.to_dict(),
            "predicted_s": row.predicted_s,
            "step_s": row.step_s,
            "loss": row.loss,
        }
        for row in found.rows
    ]
    return {
        "regret": found.regret,
        "rank_correlation": found.rank_correlation,
        "slower": found.slower,
        "pick": found.pick.job.plan.to_dict(),
        "others": found.others,
        "rows": rows,
    }


def _near(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    allowed = LOSS_TOLERANCE["fp32"]
    return all(abs(a - b) <= allowed * abs(b) for a, b in zip(ours, theirs, strict=True))


def _agreement(found: Regret) -> str:
    if not found.disagree:
        return "agree"
    words = "; ".join(f"{in_words(row.job)}: {row.loss[-1]:.5f}" for row in found.disagree)
    return f"DO NOT AGREE with {found.rows[0].loss[-1]:.5f}: {words}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"


def _places(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    for place, index in enumerate(order):
        places[index] = float(place)
    return places
