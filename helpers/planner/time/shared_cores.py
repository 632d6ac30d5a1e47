"""A pipeline's step where the ranks have fewer cores than they are.

    simulate(schedule, times)                   a core for every rank
    simulate_shared(schedule, times, cores=2)   actions at one time get equal parts of the cores

An action uses one core at most, and a rank that waits uses none. So this says what stages on a
laptop should take: four of them on two cores cannot all run at once, whatever the schedule.

Source: processor sharing; Kleinrock 1976, Queueing Systems, volume 2, section 4.4.
"""

import math
from dataclasses import dataclass

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import BACKWARD, INPUT, Action, Schedule
from helpers.engine.pipeline.simulator import Span, Timeline, Times, action_seconds, needs, simulate

DONE = 1e-9  # of an action's seconds: what may be left of it by rounding


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
    step = SharedStep(schedule, times, cores)
    while not step.is_over():
        step.advance(next_arrival_s=step.start_what_can_run())
    return Timeline(tuple(map(tuple, step.spans)), peaks)


@dataclass
class Running:
    """An action under way, and the seconds that it would still take on a core of its own."""

    action: Action
    start_s: float
    left_s: float


class SharedStep:
    """A step up to now.

    spans: actions that are over, of each rank in order. running: by rank. ended_s: when each
    forward, or backward of inputs, of a stage and micro-batch was over.
    """

    def __init__(self, schedule: Schedule, times: Times, cores: float) -> None:
        self.schedule, self.cores = schedule, cores
        self.seconds, self.links = action_seconds(schedule, times)
        self.spans: list[list[Span]] = [[] for _ in schedule.ranks]
        self.running: dict[int, Running] = {}
        self.ended_s: dict[tuple[str, int, int], float] = {}
        self.now_s = 0.0

    def is_over(self) -> bool:
        ranks = self.schedule.ranks
        return all(len(spans) == len(actions) for spans, actions in zip(self.spans, ranks))

    def start_what_can_run(self) -> float:
        """Start every rank's next action whose needs are there, and say when the next one's will
        be; never, if none is on its way."""
        next_arrival_s = math.inf
        for rank, actions in enumerate(self.schedule.ranks):
            if rank in self.running or len(self.spans[rank]) == len(actions):
                continue
            action = actions[len(self.spans[rank])]
            arrival_s = self.arrival_s(action)
            if arrival_s <= self.now_s:
                self.running[rank] = Running(action, self.now_s, self.alone_s(action))
            else:
                next_arrival_s = min(next_arrival_s, arrival_s)
        return next_arrival_s

    def advance(self, next_arrival_s: float) -> None:
        """Compute until the first action is over or the next one's needs arrive."""
        share = min(1.0, self.cores / len(self.running)) if self.running else 1.0
        least_s = min((action.left_s for action in self.running.values()), default=math.inf)
        until_s = min(self.now_s + least_s / share, next_arrival_s)
        work_s, self.now_s = (until_s - self.now_s) * share, until_s
        for rank, running in list(self.running.items()):
            running.left_s -= work_s
            if running.left_s <= DONE * self.alone_s(running.action):
                self.end(rank, running)

    def end(self, rank: int, running: Running) -> None:
        """Note that a rank's action is over."""
        kind, stage, microbatch = running.action
        self.spans[rank].append(Span(running.action, running.start_s, self.now_s))
        self.ended_s[INPUT if kind == BACKWARD else kind, stage, microbatch] = self.now_s
        del self.running[rank]

    def alone_s(self, action: Action) -> float:
        """Seconds of an action on a core of its own."""
        return self.seconds[action.kind][action.stage]

    def arrival_s(self, action: Action) -> float:
        """When all that an action needs is there; never, while something is not done."""
        arrivals = (
            self.ended_s.get(need, math.inf) + self.links[need[1], action.stage]
            for need in needs(action, self.schedule.stages - 1)
        )
        return max(arrivals, default=0.0)
