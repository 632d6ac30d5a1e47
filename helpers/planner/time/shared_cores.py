"""A pipeline's step where the ranks have fewer cores than they are.

    simulate(schedule, times)                   a core for every rank
    simulate_shared(schedule, times, cores=2)   actions at one time get equal parts of the cores

An action uses one core at most, and a rank that waits uses none. So this says what stages on a
laptop should take: four of them on two cores cannot all run at once, whatever the schedule.

Source: processor sharing; Kleinrock 1976, Queueing Systems, volume 2, section 4.4.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import BACKWARD, INPUT, Action, Schedule
from helpers.engine.pipeline.simulator import Span, Timeline, Times, action_seconds, needs, simulate


@dataclass
class Running:
    """An action under way, and the seconds that it would still take on a core of its own."""

    action: Action
    start_s: float
    left_s: float


def simulate_shared(schedule: Schedule, times: Times, cores: float) -> Timeline:
    """The timeline of one step on `cores`.

    Args:
        times: of actions that have a core of their own.

    Raises:
        UserError: the schedule cannot run, the times do not match it, or there is no core.
    """
    if cores <= 0:
        raise UserError(f"a step needs cores to run on, not {cores}")
    peaks = simulate(schedule, times).peak_bytes
    seconds, link_s = action_seconds(schedule, times)
    spans: list[list[Span]] = [[] for _ in schedule.ranks]
    running: dict[int, Running] = {}
    done: dict[tuple[str, int, int], float] = {}
    now_s = 0.0
    while any(len(found) < len(actions) for found, actions in zip(spans, schedule.ranks)):
        awaited = []
        for rank, actions in enumerate(schedule.ranks):
            if rank in running or len(spans[rank]) == len(actions):
                continue
            action = actions[len(spans[rank])]
            arrives_s = _arrival_s(action, schedule, done, link_s)
            if arrives_s is None:
                continue
            if arrives_s <= now_s:
                running[rank] = Running(action, now_s, seconds[action.kind][action.stage])
            else:
                awaited.append(arrives_s)
        share = min(1.0, cores / len(running)) if running else 1.0
        first_s = min((one.left_s for one in running.values()), default=float("inf"))
        next_s = min([now_s + first_s / share, *awaited])
        work_s, now_s = (next_s - now_s) * share, next_s
        for rank, one in list(running.items()):
            one.left_s -= work_s
            if one.left_s <= 1e-9 * seconds[one.action.kind][one.action.stage]:
                kind, stage, i = one.action
                spans[rank].append(Span(one.action, one.start_s, now_s))
                done[INPUT if kind == BACKWARD else kind, stage, i] = now_s
                del running[rank]
    return Timeline(tuple(map(tuple, spans)), peaks)


def _arrival_s(
    action: Action,
    schedule: Schedule,
    done: Mapping[tuple[str, int, int], float],
    link_s: Callable[[int, int], float],
) -> float | None:
    """When all that an action needs is there; None while something is not done."""
    needed = needs(action, schedule.stages - 1)
    if not all(need in done for need in needed):
        return None
    return max((done[need] + link_s(need[1], action.stage) for need in needed), default=0.0)
