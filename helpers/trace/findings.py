"""What slows a run down, in words with numbers, from its traces.

    for finding in find(read_traces("runs/one/traces")):
        print(finding.words)

    input          a rank fetches data while nothing is computed
    launch         more time goes into starting operations than into their arithmetic
    communication  ranks wait for messages during which nothing is computed
    bubble         pipeline ranks wait for each other's messages
    straggler      one rank works longer, and the others wait for it
    memory         the peak is close to the limit

A finding lasts: it is there in at least four of five traced steps, and its numbers are those of the
step where it shows least of these. A rank that waits in a collective waits for its message or for a
rank that is late; the rank that comes last waits for the message alone, so of each collective
`communication` counts as much as that rank waits in it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from helpers.engine.files.whole import replace_text
from helpers.trace.perfetto import write_timeline
from helpers.trace.recorder import MACHINE
from helpers.trace.step_times import StepTimes, step_times
from helpers.trace.traces import Slice, Trace, read_traces

# share of a step, of the limit for memory, times the others' work for a straggler
THRESHOLDS = {
    "input": 0.10,
    "launch": 0.50,
    "communication": 0.15,
    "bubble": 0.25,
    "straggler": 1.25,
    "memory": 0.90,
}
LEAST_LATE = 0.10  # of a step: a straggler costs at least this


@dataclass(frozen=True)
class Finding:
    """One thing that costs time or is about to fail.

    kind: a key of THRESHOLDS.
    amount: what was held against the threshold.
    ranks: where it shows.
    """

    kind: str
    amount: float
    ranks: tuple[int, ...]
    words: str


Step = tuple[StepTimes, ...]  # of all ranks


def find(traces: list[Trace]) -> list[Finding]:
    """Everything above its threshold, in the order above.

    Args:
        traces: of all ranks, as `read_traces` returns them.
    """
    return _find(traces, _times(traces))


def _times(traces: list[Trace]) -> list[Step]:
    return list(zip(*map(step_times, traces)))


def _find(traces: list[Trace], steps: list[Step]) -> list[Finding]:
    findings = [
        _input(steps),
        _launch(steps),
        _communication(traces),
        _bubble(steps),
        _straggler(steps),
        *_memory(traces),
    ]
    return [finding for finding in findings if finding]


def write_findings(run: Path) -> list[str]:
    """Merge RUN/traces into RUN/trace.json for Perfetto; write RUN/findings.json: the steps, the
    findings, and by step and rank the seconds behind them.

    Returns:
        Lines to show: the findings, or that there are none.

    Raises:
        UserError: the traces cannot be read; see read_traces.
    """
    traces = read_traces(run / "traces")
    write_timeline(traces, run / "trace.json")
    times = _times(traces)
    findings = _find(traces, times)
    steps = traces[0].facts["steps"]
    report = {
        "steps": steps,
        "findings": list(map(asdict, findings)),
        "times": [list(map(asdict, step)) for step in times],
    }
    replace_text(run / "findings.json", json.dumps(report, indent=1) + "\n")
    nothing = f"nothing stands out in steps {steps[0]} to {steps[-1]}"
    return [finding.words for finding in findings] or [nothing]


def _lasting(steps: list[Step], amount: Callable[[Step], float]) -> tuple[float, Step]:
    """What a step has of something in four of five steps, and the step that has just this."""
    ordered = sorted(steps, key=amount)
    step = ordered[len(ordered) // 5]
    return amount(step), step


def _by_rank(steps: list[Step], seconds: str) -> list[tuple[float, StepTimes]]:
    """Of each rank, the lasting share of a step that this kind of time has, and that step."""
    lasting = []
    for rank in range(len(steps[0])):
        share, step = _lasting(steps, lambda s, r=rank: getattr(s[r], seconds) / s[r].step_s)
        lasting.append((share, step[rank]))
    return lasting


def _longest(
    steps: list[Step], kind: str, seconds: str
) -> tuple[float, StepTimes, tuple[int, ...]] | None:
    """The largest share of a step that this kind of time has, that step, and the ranks above the
    threshold; None where there are none."""
    shares = _by_rank(steps, seconds)
    ranks = _above(shares, kind)
    return (*max(shares, key=lambda found: found[0]), ranks) if ranks else None


def _input(steps: list[Step]) -> Finding | None:
    longest = _longest(steps, "input", "data_s")
    if longest is None:
        return None
    share, times, ranks = longest
    return Finding(
        "input",
        share,
        ranks,
        f"waiting for input: {_ranks(ranks)} {_spend_most(ranks)} {share:.0%} of a step "
        f"({_of(times.data_s, times.step_s)}) in the range data; fetch the next batch in the "
        f"background, or make batches cheaper",
    )


def _launch(steps: list[Step]) -> Finding | None:
    longest = _longest(steps, "launch", "starting_s")
    if longest is None:
        return None
    share, times, ranks = longest
    each = times.starting_s / max(1, times.operations)
    return Finding(
        "launch",
        share,
        ranks,
        f"launch-bound: {_ranks(ranks)} {_spend_most(ranks)} {share:.0%} of a step "
        f"({_of(times.starting_s, times.step_s)}) starting {times.operations:,} operations, "
        f"{each * 1e6:.1f} µs each; larger batches, fewer and larger operations or compiling help",
    )


def _communication(traces: list[Trace]) -> Finding | None:
    """Ranks that send the same messages are held together; a stage of a pipeline sends others."""
    sent = [_in_steps(trace) for trace in traces]
    alike: dict[frozenset, list[int]] = defaultdict(list)
    for rank, messages in enumerate(sent):
        alike[frozenset(Counter(s.name for s in messages).items())].append(rank)
    by_group = []
    for ranks in alike.values():
        alone = _messages_alone([sent[rank] for rank in ranks])
        steps = list(zip(*map(step_times, (traces[rank] for rank in ranks), alone)))
        share, step = _lasting(steps, lambda s: min(map(_exposed, s)))
        by_group.append((share, min(step, key=_exposed), tuple(ranks)))
    share, times, ranks = max(by_group, key=lambda group: group[0])
    if share <= THRESHOLDS["communication"]:
        return None
    [(name, _)] = Counter(s.name for s in sent[ranks[0]]).most_common(1)
    return Finding(
        "communication",
        share,
        ranks,
        f"communication not overlapped: {_ranks(ranks)} {_spend(ranks)} at least {share:.0%} of a "
        f"step ({_of(times.exposed_s, times.step_s)}) in {name} with nothing computed meanwhile; "
        f"send during the backward, or send less",
    )


def _in_steps(trace: Trace) -> list[Slice]:
    """The collectives from the first shared step to the last: a trace may hold a step more, whose
    collectives other ranks do not have."""
    begin_s, end_s = trace.steps[0].start_s, trace.steps[-1].end_s
    return [s for s in trace.communication if begin_s <= s.start_s < end_s]


def _messages_alone(sent: list[list[Slice]]) -> list[list[Slice]]:
    """The collectives of each rank without the wait for those that are late: of each the end, as
    long as the rank took that was in it for the least time."""
    numbered = [_numbered(messages) for messages in sent]
    least_s = {
        key: min(one[key].end_s - one[key].start_s for one in numbered) for key in numbered[0]
    }
    return [
        [one._replace(start_s=one.end_s - least_s[key]) for key, one in of_rank.items()]
        for of_rank in numbered
    ]


def _numbered(slices: list[Slice]) -> dict[tuple[str, int], Slice]:
    """Each by its name and how many of this name came before it."""
    seen: Counter[str] = Counter()
    found = {}
    for one in slices:
        found[one.name, seen[one.name]] = one
        seen[one.name] += 1
    return found


def _exposed(times: StepTimes) -> float:
    return times.exposed_s / times.step_s


def _bubble(steps: list[Step]) -> Finding | None:
    share, step = _lasting(steps, lambda s: mean(one.wait_s / one.step_s for one in s))
    if share <= THRESHOLDS["bubble"]:
        return None
    worst = max(range(len(step)), key=lambda rank: step[rank].wait_s)
    return Finding(
        "bubble",
        share,
        tuple(range(len(step))),
        f"pipeline bubble: ranks wait for each other's messages {share:.0%} of a step, most of "
        f"them rank {worst} ({_of(step[worst].wait_s, step[worst].step_s)}); more "
        f"micro-batches, another schedule or a better balance of layers help",
    )


def _straggler(steps: list[Step]) -> Finding | None:
    """A rank that works longer than the median of the others, if the same one lasts."""
    worlds = range(len(steps[0]))
    if len(worlds) < 2:
        return None

    def late(step: Step, rank: int) -> float:
        return step[rank].own_s / max(_others_s(step, rank), 1e-9)

    lasting = {rank: _lasting(steps, lambda s, r=rank: late(s, r)) for rank in worlds}
    rank = max(lasting, key=lambda one: lasting[one][0])
    ratio, step = lasting[rank]
    own_s, others_s = step[rank].own_s, _others_s(step, rank)
    if ratio <= THRESHOLDS["straggler"] or own_s - others_s <= LEAST_LATE * step[rank].step_s:
        return None
    return Finding(
        "straggler",
        ratio,
        (rank,),
        f"straggler: rank {rank} works {own_s * 1e3:.0f} ms of a step, the others "
        f"{others_s * 1e3:.0f} ms, so they wait for it; look at its machine, its share of the data "
        f"and its layers",
    )


def _others_s(step: Step, rank: int) -> float:
    return median(times.own_s for other, times in enumerate(step) if other != rank)


def _memory(traces: list[Trace]) -> list[Finding]:
    """Each limit by itself; a machine's memory is shared by its ranks."""
    taken: dict[tuple[str, Any], list[Trace]] = defaultdict(list)
    for trace in traces:
        for kind in trace.facts["memory"]:
            taken[kind, trace.host if kind == MACHINE else trace.rank].append(trace)
    findings = []
    for (kind, _), sharers in taken.items():
        used = sum(trace.facts["memory"][kind][0] for trace in sharers)
        limit = sharers[0].facts["memory"][kind][1]
        share, ranks = used / limit, tuple(trace.rank for trace in sharers)
        words = (
            f"memory near the limit: {_ranks(ranks)} took {share:.0%} of {kind} ({used / 1e9:.2f} "
            f"of {limit / 1e9:.2f} GB); smaller micro-batches, activation checkpointing or "
            f"sharding help"
        )
        if share > THRESHOLDS["memory"]:
            findings.append(Finding("memory", share, ranks, words))
    return findings


def _above(shares: list[tuple[float, StepTimes]], kind: str) -> tuple[int, ...]:
    return tuple(rank for rank, (share, _) in enumerate(shares) if share > THRESHOLDS[kind])


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _spend(ranks: tuple[int, ...]) -> str:
    return "spend" if len(ranks) > 1 else "spends"


def _spend_most(ranks: tuple[int, ...]) -> str:
    """Before a share that only one of several ranks has, the others less."""
    return "spend up to" if len(ranks) > 1 else "spends"


def _of(part_s: float, whole_s: float) -> str:
    return f"{part_s * 1e3:.0f} of {whole_s * 1e3:.0f} ms"
