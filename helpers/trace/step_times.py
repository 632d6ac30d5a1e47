"""Where a rank's step went, in seconds, from its trace.

On a CPU starting an operation and computing it are one slice. There an operation of less than 50 µs
counts as started only, and so does the time between two: in these Python, autograd and the
operation itself prepare more than they compute. Tracing adds some µs to each, so what is counted is
an upper bound.
"""

from dataclasses import dataclass

from helpers.trace.intervals import Intervals, both, clip, length, union, without
from helpers.trace.traces import Slice, Trace

SMALL_S = 50e-6  # an operation shorter than this is mostly its start
GAP_S = 200e-6  # between operations: what Python takes from one to the next, not a wait
# calls in which the CPU waits for the GPU, of CUDA and of ROCm
WAITS = tuple(
    f"{library}{what}Synchronize"
    for library in ("cuda", "hip")
    for what in ("Device", "Stream", "Event")
)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step of one rank.

    data_s, wait_s: in the ranges of these names, with nothing computed meanwhile by a GPU.
    exposed_s: of communication, with nothing computed meanwhile.
    starting_s: of starting operations, with no arithmetic meanwhile.
    operations: that were started: a GPU's, or the CPU's with those that they call.
    own_s: of the rank's own work: all but fetching data and waiting for others.
    """

    step_s: float
    data_s: float
    wait_s: float
    exposed_s: float
    starting_s: float
    operations: int

    @property
    def own_s(self) -> float:
        return self.step_s - self.data_s - self.wait_s - self.exposed_s


def step_times(trace: Trace, messages: list[Slice] | None = None) -> list[StepTimes]:
    """A rank's times by step.

    Args:
        messages: what counts as communication; all of the trace's unless told.
    """
    messages = trace.communication if messages is None else messages
    return [_times(trace, messages, step) for step in trace.steps]


def _times(trace: Trace, communication: list[Slice], step: Slice) -> StepTimes:
    begin, end = step.start_s, step.end_s

    def inside(slices: list[Slice], gap: float = 0.0) -> Intervals:
        return union(clip(((s.start_s, s.end_s) for s in slices), begin, end), gap)

    messages, kernels = inside(communication), inside(trace.device_work)
    started = inside(trace.computing, GAP_S)
    if kernels:
        waits = inside([s for s in trace.slices if s.name.startswith(WAITS)])
        idle = without([(begin, end)], union([*kernels, *messages]))
        starting = both(idle, without(started, waits))
        busy, calls = kernels, trace.device_work
    else:
        large = inside([s for s in trace.computing if s.end_s - s.start_s >= SMALL_S])
        starting, busy, calls = without(started, large), started, trace.operations
    wait = inside(trace.ranges("wait"))
    return StepTimes(
        step_s=end - begin,
        data_s=length(without(inside(trace.ranges("data")), kernels)),
        wait_s=length(without(wait, kernels)),
        exposed_s=length(without(without(messages, busy), wait)),
        starting_s=length(starting),
        operations=sum(begin <= one.start_s < end for one in calls),
    )
