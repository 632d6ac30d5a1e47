"""The ranks' traces, read onto one clock.

    traces = read_traces("runs/one/traces")               # rank by rank
    traces[0].steps, traces[0].ranges("forward"), traces[0].communication

A file's events are in microseconds since its own origin. What recorder.py noted beside them says
how far that rank's clock is ahead of rank 0's.

Source: Chrome's Trace Event Format. `X` events are slices with a start `ts` and a duration `dur` in
microseconds, `M` events name processes and threads.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from helpers.engine.errors import UserError, as_path
from helpers.engine.messages.carriers import BOARD
from helpers.trace.files import CALL, MARKED, Document, read_document, world_size
from helpers.trace.recorder import FACTS, STEP

# a board's copies and sums are a message's, on the thread that calls it
COLLECTIVES = ("gloo:", BOARD, "ncclDevKernel", "ncclKernel")
SENT = "ncclDevKernel_SendRecv"
MESSAGES = ("gloo:send", "gloo:recv", SENT)  # posted early
WRAPPERS = ("autograd::", "c10d::", "_c10d_functional")  # of operations, messages and their waits
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a GPU's work

Event = dict[str, Any]
Thread = tuple[Any, Any]  # process and thread, or GPU and stream


class Slice(NamedTuple):
    """Something that took time, in seconds since the first event of all ranks."""

    name: str
    category: str
    thread: Thread
    start_s: float
    end_s: float


class Change(NamedTuple):
    """Memory taken, or freed where `bytes` is negative. total: bytes allocated then."""

    at_s: float
    bytes: int
    address: int
    total: int
    device: str


@dataclass(frozen=True)
class Trace:
    """What one rank did in the traced steps.

    Attributes:
        facts: what the profiler noted.
        host: the machine's name.
        slices: by start; of equal starts the outer first.
        memory: by time.
        threads: names, as the file says them.
    """

    facts: dict[str, Any]
    host: str
    slices: list[Slice]
    memory: list[Change]
    threads: dict[Thread, str]

    @property
    def rank(self) -> int:
        return self.facts["rank"]

    @property
    def steps(self) -> list[Slice]:
        """The whole steps, in order."""
        return [self._marks[f"{STEP}{number}"] for number in self.facts["steps"]]

    @cached_property
    def _marks(self) -> dict[str, Slice]:
        """The recorder's ranges of steps, whole or not, by name. One of such a name inside of them
        is the user's own."""
        found: dict[str, Slice] = {}
        ends_s: dict[Thread, float] = defaultdict(lambda: -inf)
        for one in self.slices:
            if _names_a_step(one) and one.start_s >= ends_s[one.thread]:
                found.setdefault(one.name, one)
                ends_s[one.thread] = one.end_s
        return found

    @property
    def main(self) -> Thread:
        """The thread that takes the steps."""
        return self.steps[0].thread

    @cached_property
    def named(self) -> list[Slice]:
        """The ranges: the engine's, and the user's own. torch's have a `#` or `:` in their names,
        as `Optimizer.step#AdamW.step`."""
        return [
            s
            for s in self.slices
            if s.category == MARKED
            and s.thread == self.main
            and s != self._marks.get(s.name)
            and not {"#", ":"} & set(s.name)
        ]

    def ranges(self, *names: str) -> list[Slice]:
        """The ranges with one of these names."""
        return [s for s in self.named if s.name in names]

    @cached_property
    def communication(self) -> list[Slice]:
        """Collectives under way, and waiting for the other ranks to join in. gloo's are on threads
        of their own, NCCL's on the GPU. Of those made of sends and receives (gloo_exchange.py) it
        is the wait for them, and a board's are on the thread that calls them."""
        return [
            s
            for s in self.slices
            if s.name.startswith(COLLECTIVES) and not s.name.startswith(MESSAGES)
        ]

    @cached_property
    def device_work(self) -> list[Slice]:
        """Kernels and copies of a GPU, communication left out."""
        return [
            s for s in self.slices if s.category in DEVICE and not s.name.startswith(COLLECTIVES)
        ]

    @property
    def operations(self) -> list[Slice]:
        """Of the CPU, on any thread, with those that they call."""
        return [s for s in self._on_cpu if _computes(s.name)]

    @cached_property
    def _on_cpu(self) -> list[Slice]:
        """The CPU's operations; of one that carries a message it is the message alone."""
        carried = [s for s in self.slices if s.name.startswith(BOARD)]
        ends = [s.end_s for s in carried]  # they come one after another, on one thread

        def carries(one: Slice) -> bool:
            place = bisect_left(ends, one.end_s)
            return place < len(carried) and carried[place].start_s <= one.start_s

        return [
            s
            for s in self.slices
            if s.name.startswith(BOARD)
            or (s.category == "cpu_op" and not (s.thread == self.main and carries(s)))
        ]

    @cached_property
    def computing(self) -> list[Slice]:
        """When the CPU computes what: of each operation the time in which it calls no other."""
        by_thread: dict[Thread, list[Slice]] = defaultdict(list)
        for one in self._on_cpu:
            by_thread[one.thread].append(one)
        pieces = (piece for several in by_thread.values() for piece in _innermost(several))
        return [piece for piece in pieces if _computes(piece.name)]


def _names_a_step(one: Slice) -> bool:
    marked = one.category == MARKED and one.name.startswith(STEP)
    return marked and one.name.removeprefix(STEP).isdecimal()


def _computes(name: str) -> bool:
    """What only wraps operations may wait. A compiled region of several operations is one."""
    return "Compiled" in name or ("::" in name and not name.startswith(WRAPPERS))


def _innermost(slices: list[Slice]) -> Iterator[Slice]:
    """A thread's slices without the time of those inside them, in pieces."""
    outer: list[Slice] = []
    at_s = 0.0
    for one in [*slices, None]:
        start_s = one.start_s if one else inf
        while outer and outer[-1].end_s <= start_s:
            done = outer.pop()
            if done.end_s > at_s:
                yield done._replace(start_s=at_s)
                at_s = done.end_s
        if outer and start_s > at_s:
            yield outer[-1]._replace(start_s=at_s, end_s=start_s)
        at_s = start_s
        outer.append(one)


def read_traces(folder: str | Path) -> list[Trace]:
    """The traces in a profiler's folder, by rank, on one clock that starts at 0.

    Raises:
        UserError: there are none, one is broken or holds no whole step, a rank is missing, or the
            ranks have no step in common.
    """
    files = sorted(as_path(folder).glob("rank-*.json.gz"))
    if not files:
        raise UserError(f"{folder} holds no traces: a run writes them with --profile FIRST:LAST")
    documents = sorted(map(read_document, files), key=lambda one: one[FACTS]["rank"])
    ranks = [one[FACTS]["rank"] for one in documents]
    world = world_size(documents[0])
    if len(ranks) != world or ranks != list(range(world)):
        raise UserError(f"{folder} has the traces of ranks {ranks}, of {world} ranks")
    steps = _shared_steps(documents)
    if not steps:
        raise UserError(f"{folder} has traces of other steps from rank to rank, of several runs")
    # whole nanoseconds: a double holds today's microseconds only to a quarter of one
    shifts = [one["baseTimeNanoseconds"] - one[FACTS]["offset_ns"] for one in documents]
    begins = [shift + _first_ns(one) for shift, one in zip(shifts, documents)]
    return [_trace(one, steps, (min(begins) - at) / 1e3) for one, at in zip(documents, shifts)]


def _shared_steps(documents: list[Document]) -> list[int]:
    """The steps that every rank has whole: a run that ends early leaves some ranks one more."""
    first, *others = (one[FACTS]["steps"] for one in documents)
    return [step for step in first if all(step in steps for steps in others)]


def _events(document: Document) -> Iterator[Event]:
    """Without torch's own marks of where the trace begins and ends."""
    return (event for event in document["traceEvents"] if event.get("cat") != "Trace")


def _first_ns(document: Document) -> int:
    return min(int(event["ts"] * 1e3) for event in _events(document) if event["ph"] == "X")


def _trace(document: Document, steps: list[int], origin_us: float) -> Trace:
    """A rank's file, of these steps; `origin_us` of its microseconds is 0 on the common clock."""
    slices, memory, threads = [], [], {}
    for event in _events(document):
        thread = (event.get("pid"), event.get("tid"))
        at_s = (event.get("ts", 0) - origin_us) * 1e-6
        if event["ph"] == "X":
            end_s = at_s + event["dur"] * 1e-6
            slices.append(Slice(_called(event), event.get("cat", ""), thread, at_s, end_s))
        elif event["name"] == "[memory]":
            memory.append(_change(event["args"], at_s))
        elif event["ph"] == "M" and event["name"] == "thread_name":
            threads[thread] = event["args"]["name"]
    slices.sort(key=lambda one: (one.start_s, -one.end_s))
    memory.sort(key=lambda one: one.at_s)
    facts = {**document[FACTS], "steps": steps}
    return Trace(facts, document.get("host_name", ""), slices, memory, threads)


def _called(event: Event) -> str:
    """A slice's name. NCCL's all-to-all runs in the kernel of its sends and receives, beside which
    torch notes the call that it is of."""
    call = event.get("args", {}).get(CALL, "")
    sent = event["name"].startswith(SENT) and call.startswith("all_to_all")
    return f"ncclDevKernel_{call}" if sent else event["name"]


def _change(args: Event, at_s: float) -> Change:
    device = "cpu" if args["Device Type"] == 0 else "cuda"
    return Change(at_s, args["Bytes"], args["Addr"], args["Total Allocated"], device)
