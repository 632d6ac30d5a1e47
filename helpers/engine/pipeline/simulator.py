"""Can a pipeline schedule run, how long does it take, and how much does it hold?

    timeline = simulate(make_schedule("1f1b", 4, 8), Times(forward_s=0.1, backward_s=0.2))
    timeline.makespan_s, timeline.bubble, timeline.peak_bytes

Each rank does its actions in order, each as soon as what it needs is there:

    F(s, i)          F(s-1, i)
    B or I(s, i)     F(s, i), and B or I(s+1, i)
    W(s, i)          I(s, i)

Sending overlaps with computing and never blocks: a result is at the next stage `link_s` after it is
ready.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from statistics import mean, median
from typing import NamedTuple

from ..errors import UserError
from .schedules import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT, Action, Schedule

PerStage = float | Sequence[float]  # one number for all stages, or one for each


@dataclass(frozen=True)
class Times:
    """Seconds of each kind of action: one number, or one for each stage.

    forward_s: F.
    input_s, weight_s: I and W.
    backward_s: B; I and W together unless given.
    link_s: from a stage to the next or back, one number or one for each pair of neighbours. Between
        two stages of one rank it is 0.
    """

    forward_s: PerStage = 1.0
    input_s: PerStage = 1.0
    weight_s: PerStage = 1.0
    backward_s: PerStage | None = None
    link_s: PerStage = 0.0


class Span(NamedTuple):
    """When an action ran, in seconds since the step began."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A step of a pipeline, simulated or measured.

    spans: of each rank, in order of time.
    peak_bytes: the most that each rank holds for its backward passes.
    """

    spans: tuple[tuple[Span, ...], ...]
    peak_bytes: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        busy = [spans for spans in self.spans if spans]
        return max(spans[-1].end_s for spans in busy) - min(spans[0].start_s for spans in busy)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds that each rank computes."""
        return tuple(sum(span.end_s - span.start_s for span in rank) for rank in self.spans)

    @property
    def bubbles(self) -> tuple[float, ...]:
        """The share of the makespan in which each rank waits."""
        whole_s = self.makespan_s
        return tuple(1 - busy / whole_s if whole_s else 0.0 for busy in self.busy_s)

    @property
    def bubble(self) -> float:
        """The share of all ranks' time that is waiting."""
        return mean(self.bubbles)


def check_schedule(schedule: Schedule) -> None:
    """Check that the schedule is complete and can run.

    Raises:
        UserError: one line: a stage on the wrong rank, an action that is missing or comes twice, or
            a deadlock and who waits for what.
    """
    _check_complete(schedule)
    _run(schedule, Times())


def simulate(
    schedule: Schedule,
    times: Times | None = None,
    activation_bytes: PerStage = 1.0,
    weight_bytes: PerStage | None = None,
) -> Timeline:
    """The timeline of one step.

    Args:
        times: of the actions; F, I and W one second each and links without delay unless given.
        activation_bytes: what a forward of each stage keeps for its backward. B frees it.
        weight_bytes: the part of it that W needs and frees; I frees the rest. All unless given.

    Returns:
        Without `activation_bytes`, `peak_bytes` counts pairs of stage and micro-batch in flight.

    Raises:
        UserError: the schedule cannot run (see check_schedule), or the numbers do not match its
            stages.
    """
    _check_complete(schedule)
    kept = _each("activation_bytes", activation_bytes, schedule.stages)
    late = kept if weight_bytes is None else _each("weight_bytes", weight_bytes, schedule.stages)
    if any(part > whole for part, whole in zip(late, kept)):
        raise UserError("weight_bytes is a part of activation_bytes, so it cannot be larger")
    spans = _run(schedule, times or Times())
    return Timeline(spans, tuple(_peak(actions, kept, late) for actions in schedule.ranks))


def measured_times(timeline: Timeline, stages: int) -> Times:
    """The median seconds of each action in a measured timeline, to simulate other schedules with.

    Raises:
        UserError: a stage ran no forward or no backward. Whole backwards alone count half as I and
            half as W.
    """
    seen = defaultdict(list)
    for span in (span for rank in timeline.spans for span in rank):
        seen[span.action.kind, span.action.stage].append(span.end_s - span.start_s)
    columns = defaultdict(list)
    for stage in range(stages):
        of = {kind: median(seen[kind, stage]) for kind in "FBIW" if seen[kind, stage]}
        if FORWARD not in of or not (BACKWARD in of or {INPUT, WEIGHT} <= set(of)):
            raise UserError(f"the timeline has no forward or no backward of stage {stage}")
        whole = of.get(BACKWARD, of.get(INPUT, 0) + of.get(WEIGHT, 0))
        columns["forward_s"].append(of[FORWARD])
        columns["backward_s"].append(whole)
        columns["input_s"].append(of.get(INPUT, whole / 2))
        columns["weight_s"].append(of.get(WEIGHT, whole / 2))
    return Times(**columns)


def _check_complete(schedule: Schedule) -> None:
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            _check_action(schedule, rank, action)
    counts = Counter(chain.from_iterable(schedule.ranks))
    for stage in range(schedule.stages):
        for i in range(schedule.microbatches):
            _check_microbatch(counts, stage, i)


def _check_action(schedule: Schedule, rank: int, action: Action) -> None:
    if action.kind not in KINDS:
        raise UserError(f"{action} on rank {rank}: an action is F, B, I or W, not {action.kind!r}")
    if not 0 <= action.stage < len(schedule.rank_of):
        raise UserError(f"{action} on rank {rank}: there are stages 0 to {schedule.stages - 1}")
    if not 0 <= action.microbatch < schedule.microbatches:
        last = schedule.microbatches - 1
        raise UserError(f"{action} on rank {rank}: there are micro-batches 0 to {last}")
    owner = schedule.rank_of[action.stage]
    if owner != rank:
        raise UserError(f"{action} is on rank {rank}, but rank {owner} has stage {action.stage}")


def _check_microbatch(counts: Mapping[Action, int], stage: int, i: int) -> None:
    counted = {kind: counts[kind, stage, i] for kind in KINDS}
    if tuple(counted.values()) not in ((1, 1, 0, 0), (1, 0, 1, 1)):
        has = ", ".join(f"{count} {kind}" for kind, count in counted.items() if count) or "nothing"
        raise UserError(
            f"stage {stage} needs one F and either one B or one I and one W "
            f"for micro-batch {i}, but has {has}"
        )


def needs(action: Action, last: int) -> list[tuple[str, int, int]]:
    """What must be done before: (kind, stage, micro-batch), where `I` stands for B too."""
    kind, stage, i = action
    if kind == FORWARD:
        return [(FORWARD, stage - 1, i)] if stage else []
    if kind == WEIGHT:
        return [(INPUT, stage, i)]
    return [(FORWARD, stage, i)] + ([(INPUT, stage + 1, i)] if stage < last else [])


def _run(schedule: Schedule, times: Times) -> tuple[tuple[Span, ...], ...]:
    """Walk the ranks' lists until all are at their end."""
    seconds, links = action_seconds(schedule, times)
    last = schedule.stages - 1
    done: dict[tuple[str, int, int], float] = {}
    spans: list[list[Span]] = [[] for _ in schedule.ranks]
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.ranks):
            for action in actions[len(spans[rank]) :]:
                needed = needs(action, last)
                if not all(map(done.__contains__, needed)):
                    break
                arrived = [done[need] + links[need[1], action.stage] for need in needed]
                free_s = spans[rank][-1].end_s if spans[rank] else 0.0
                start_s = max([free_s, *arrived])
                end_s = start_s + seconds[action.kind][action.stage]
                spans[rank].append(Span(action, start_s, end_s))
                kind = INPUT if action.kind == BACKWARD else action.kind
                done[kind, action.stage, action.microbatch] = end_s
                moved = True
    _check_end(schedule, spans, done)
    return tuple(map(tuple, spans))


def _check_end(
    schedule: Schedule, spans: list[list[Span]], done: Mapping[tuple[str, int, int], float]
) -> None:
    waits = []
    for rank, (actions, ran) in enumerate(zip(schedule.ranks, spans)):
        if len(ran) < len(actions):
            action = actions[len(ran)]
            missing = next(n for n in needs(action, schedule.stages - 1) if n not in done)
            waits.append(f"rank {rank} with {action} for {Action(*missing)}")
    if waits:
        raise UserError(f"{schedule.name} deadlocks: {'; '.join(waits)}")


def action_seconds(
    schedule: Schedule, times: Times
) -> tuple[dict[str, Sequence[float]], dict[tuple[int, int], float]]:
    """Seconds by kind and stage, and seconds from one stage to itself or its neighbour."""
    stages, owner = schedule.stages, schedule.rank_of
    seconds = {
        FORWARD: _each("forward_s", times.forward_s, stages),
        INPUT: _each("input_s", times.input_s, stages),
        WEIGHT: _each("weight_s", times.weight_s, stages),
    }
    both = [i + w for i, w in zip(seconds[INPUT], seconds[WEIGHT])]
    given = times.backward_s
    seconds[BACKWARD] = both if given is None else _each("backward_s", given, stages)
    links = {(stage, stage): 0.0 for stage in range(stages)}
    for stage, link_s in enumerate(_each("link_s", times.link_s, stages - 1)):
        there = 0.0 if owner[stage] == owner[stage + 1] else link_s
        links[stage, stage + 1] = links[stage + 1, stage] = there
    return seconds, links


def _each(name: str, given: PerStage, count: int) -> list[float]:
    """One number for each of `count`."""
    numbers = [given] * count if isinstance(given, int | float) else list(given)
    if len(numbers) != count:
        raise UserError(f"{name} needs one number or {count}, not {len(numbers)}")
    if not all(0 <= number < inf for number in numbers):
        raise UserError(f"{name} takes finite numbers from 0")
    return numbers


def _peak(actions: Sequence[Action], kept: Sequence[float], late: Sequence[float]) -> float:
    """The most that a rank holds: F takes, B frees, I and W free a part each."""
    held = peak = 0.0
    for kind, stage, _ in actions:
        if kind == FORWARD:
            held += kept[stage]
        elif kind == BACKWARD:
            held -= kept[stage]
        else:
            held -= late[stage] if kind == WEIGHT else kept[stage] - late[stage]
        peak = max(peak, held)
    return peak
