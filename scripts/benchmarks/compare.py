"""Interleave the peers' steps, and say what share of one process each reaches.

round 0   A B C D     a share compares steps of the same number: one process's time over the
round 1   B C D A     peer's. Round 0 is warm-up; later rounds begin with another peer each.
...
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from benchmarks import limit
from benchmarks.quiet import QUIET, Watch, wait_until_quiet
from benchmarks.registry import Peer
from benchmarks.serve import Group, PeerFailed
from benchmarks.work import Work
from helpers.commands import markdown
from helpers.lab.launch.nodes.network_namespaces import Network

# relative, of any step's loss; bf16 has 8 bits
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 2**-7}
REPEATS = 3
FEWEST = 3  # quiet steps; with fewer, all steps count and the table says so
STATE = ("parameters", "gradients", "optimizer")  # of a rank's bytes
HEAD = ("", "processes × threads", "step, s", "processor, s", "share of one process", "quartiles")
HEAD += ("of the best product", "steps timed", "state per rank, MB", "last loss", "losses agree")
# relative; torch sums squares in float32, the engine in float64
NORM_TOLERANCE = {"fp32": 1e-3, "bf16": 2**-6}


@dataclass
class Row:
    """What is known of one peer.

    step_s, loss, norm: by step. cpu_s: by step, processor time of all ranks; a wait costs none.
    others: by step, the fraction of the cores that other programs took.
    link_bytes: by step, what crossed the link between two nodes, both ways; none without a link.
    share: of one process's speed in each timed step: above 1 is faster.
    of_limit: what the median step reaches of the best measured product: see limit.py.
    quiet: were the timed steps quiet? Else there were too few such and all count.
    """

    peer: Peer
    threads: int = 0
    failure: str = ""
    step_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    norm: list[float | None] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    others: list[float | None] = field(default_factory=list)
    link_bytes: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    timed: list[int] = field(default_factory=list)
    of_limit: float | None = None
    quiet: bool = False
    memory: list[dict[str, int]] = field(default_factory=list)
    loss_off: float | None = None
    norm_off: float | None = None

    @property
    def agrees(self) -> bool:
        precision = limit.precision_of(self.peer) or "fp32"
        return (
            self.loss_off is not None
            and self.loss_off <= LOSS_TOLERANCE[precision]
            and (self.norm_off is None or self.norm_off <= NORM_TOLERANCE[precision])
        )


@dataclass(frozen=True)
class Rounds:
    """How long to measure: `wanted` rounds of `steps` steps, after one of warm-up.

    Rounds that other programs disturb are made up for, up to REPEATS times as many in all.
    patience_s: how long to wait for quiet cores before each peer's turn.
    limit_s: no rounds beyond the wanted ones once these many seconds have passed.
    """

    wanted: int
    steps: int = 1
    patience_s: float = 0.0
    limit_s: float = inf

    @property
    def most_steps(self) -> int:
        """That can be needed, warm-up and all."""
        return (1 + self.wanted * REPEATS) * self.steps


def compare(
    peers: Sequence[Peer],
    work: Work,
    cores: int,
    rounds: Rounds,
    say: Callable[[str], None],
    networks: Sequence[Network] = (),
) -> list[Row]:
    """Start the peers, on two nodes where there are `networks`, and let them take turns. The first
    is what the others are a share of."""
    rows = [Row(peer) for peer in peers]
    groups: dict[str, Group] = {}
    began = time.monotonic()
    try:
        for row in rows:
            say(f"starting {row.peer.name}")
            _guarded(row, partial(_start, row, groups, work, cores, networks))
        for index in range(1 + rounds.wanted * REPEATS):
            late = time.monotonic() - began > rounds.limit_s
            if index > rounds.wanted and (late or _enough(rows, rounds)):
                break
            say(f"round {index} of {rounds.wanted}" if index else "warm-up")
            turn = index % len(rows)
            for row in rows[turn:] + rows[:turn]:
                if not row.failure:
                    wait_until_quiet(rounds.patience_s if index else 0.0)
                    before = sum(network.sent_bytes() for network in networks)
                    _guarded(row, partial(_steps, row, groups[row.peer.name], index, rounds.steps))
                    crossed = sum(network.sent_bytes() for network in networks) - before
                    row.link_bytes += [crossed / rounds.steps] * rounds.steps * bool(networks)
        for row in rows:
            if not row.failure:
                row.memory = groups[row.peer.name].memory()
    finally:
        for group in groups.values():
            group.close()
    judge(rows, warmup=rounds.steps)
    hold_against_limit(rows, work, cores)
    return rows


def hold_against_limit(rows: Sequence[Row], work: Work, cores: int) -> None:
    """Say of each timed row how near the limit it is."""
    limits: dict[str, float] = {}
    for row in rows:
        precision = limit.precision_of(row.peer)
        if precision is None or not row.timed:
            continue
        if precision not in limits:
            limits[precision] = limit.product_flops(precision, cores)
        seconds = statistics.median(row.step_s[i] for i in row.timed)
        row.of_limit = limit.step_flops(work) / seconds / limits[precision]


def _guarded(row: Row, work: Callable[[], None]) -> None:
    """A peer that fails is a row that says why; the others go on."""
    try:
        work()
    except PeerFailed as failure:
        row.failure = str(failure)


def _start(
    row: Row, groups: dict[str, Group], work: Work, cores: int, networks: Sequence[Network]
) -> None:
    group = Group(row.peer, work, cores, networks)
    groups[row.peer.name] = group
    row.threads = group.threads


def _steps(row: Row, group: Group, index: int, steps: int) -> None:
    watch = Watch()
    result = group.steps(list(range(index * steps, (index + 1) * steps)))
    row.others += [watch.stop(result.cpu_s)] * steps
    row.cpu_s += [result.cpu_s / steps] * steps
    row.step_s += result.step_s
    row.loss += result.loss
    row.norm += result.norm


def _enough(rows: Sequence[Row], rounds: Rounds) -> bool:
    running = [row for row in rows if not row.failure]
    found = (quiet_steps(rows[0], row, rounds.steps) for row in running)
    return all(len(steps) >= rounds.wanted * rounds.steps for steps in found)


def quiet_steps(one: Row, row: Row, warmup: int) -> list[int]:
    """Steps after the warm-up during which both had the cores to themselves."""
    pairs = list(zip(one.others, row.others))
    return [i for i in range(warmup, len(pairs)) if _quiet(pairs[i][0]) and _quiet(pairs[i][1])]


def judge(rows: Sequence[Row], warmup: int) -> None:
    """Fill in shares and differences against the first row, which is one process."""
    one = rows[0]
    if one.failure:
        return
    for row in rows:
        if row.failure:
            continue
        found = quiet_steps(one, row, warmup)
        row.quiet = len(found) >= FEWEST
        row.timed = found if row.quiet else list(range(warmup, len(one.step_s)))
        row.share = [one.step_s[i] / row.step_s[i] for i in row.timed]
        row.loss_off = _furthest(row.loss, one.loss)
        # of the first step: later ones are taken at weights that differ by rounding
        row.norm_off = _furthest(row.norm[:1], one.norm[:1])


def _quiet(others: float | None) -> bool:
    return others is None or others < QUIET


def _furthest(ours: Sequence[float | None], theirs: Sequence[float | None]) -> float | None:
    """The largest relative difference of any step; None where nothing can be compared."""
    pairs = [(a, b) for a, b in zip(ours, theirs) if a is not None and b is not None]
    return max((abs(a - b) / abs(b) for a, b in pairs), default=None)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    return markdown(HEAD, map(_cells, rows))


def _cells(row: Row) -> list[str]:
    if row.failure:
        return short(HEAD, row.peer.title, row.failure)
    layout = f"{row.peer.ranks} × {row.threads}"
    if not row.share:
        return short(HEAD, row.peer.title, layout, "nothing to compare with")
    low, middle, high = quartiles(row.share)
    seconds = statistics.median(row.step_s[i] for i in row.timed)
    return [
        row.peer.title,
        layout,
        f"{seconds:.2f}",
        f"{statistics.median(row.cpu_s[i] for i in row.timed):.2f}",
        f"{middle:.2f}",
        f"{low:.2f} to {high:.2f}",
        "" if row.of_limit is None else f"{row.of_limit:.2f}",
        f"{len(row.timed)}{'' if row.quiet else ', noisy'}",
        _state(row),
        f"{row.loss[-1]:.5f}",
        agreement(row),
    ]


def short(head: Sequence[str], *cells: str) -> list[str]:
    """A row that ends after these cells."""
    return [*cells, *[""] * (len(head) - len(cells))]


def agreement(row: Row) -> str:
    """Whether its losses are those of one process, and how far they are apart."""
    return f"{'yes' if row.agrees else '**NO**'}, within {row.loss_off:.0e}"


def _state(row: Row) -> str:
    if not row.memory or not all(key in row.memory[0] for key in STATE):
        return "not counted"
    return f"{max(sum(rank[key] for key in STATE) for rank in row.memory) / 1e6:.0f}"


def to_dict(row: Row) -> dict[str, Any]:
    """A row as plain data."""
    values = {
        "name": row.peer.name,
        "title": row.peer.title.strip("*"),
        "ranks": row.peer.ranks,
        "threads": row.threads,
        "options": row.peer.options,
    }
    if row.failure:
        return values | {"failure": row.failure}
    low, middle, high = quartiles(row.share) if row.share else (None, None, None)
    return values | {
        "share": middle,
        "share_quartiles": [low, high],
        "shares": row.share,
        "timed_steps": row.timed,
        "quiet": row.quiet,
        "of_limit": row.of_limit,
        "step_s": row.step_s,
        "cpu_s": row.cpu_s,
        "others": row.others,
        "link_bytes": row.link_bytes,
        "loss": row.loss,
        "grad_norm": row.norm,
        "largest_relative_loss_difference": row.loss_off,
        "largest_relative_norm_difference": row.norm_off,
        "agrees": row.agrees,
        "memory_bytes": row.memory,
    }
