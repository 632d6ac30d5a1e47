"""Findings from traces that are written down here, to the millisecond."""

import pytest

from helpers.engine.messages.carriers import BOARD
from helpers.trace.findings import find
from helpers.trace.recorder import MACHINE, STEP
from helpers.trace.step_times import SMALL_S, step_times
from helpers.trace.traces import MARKED, Slice, Trace

MAIN, CARRIER = (1, 1), (1, 2)
STEPS, LAYERS = 5, 4
WORK_S, LATE_S = 0.1, 0.1
WAIT = "_c10d_functional::wait_tensor"  # what torch's functional collectives wait in


def trace(rank: int, late: list[bool], message_s: float, recorded: int = STEPS) -> Trace:
    """Steps of `LAYERS` times work and an all-reduce, which ends for both ranks `message_s` after
    the one that is late in this layer has come. A rank may have recorded more than all share."""
    slices, at_s = [], 0.0
    for number in range(recorded):
        began_s = at_s
        for is_late in late:
            worked_s = at_s + WORK_S + (LATE_S if is_late else 0.0)
            slices.append(Slice("aten::mm", "cpu_op", MAIN, at_s, worked_s))
            at_s += WORK_S + LATE_S + message_s
            slices.append(Slice("gloo:all_reduce", MARKED, CARRIER, worked_s, at_s))
            slices.append(Slice(WAIT, "cpu_op", MAIN, worked_s, at_s))
        slices.append(Slice(f"{STEP}{number}", MARKED, MAIN, began_s, at_s))
    slices.sort(key=lambda one: (one.start_s, -one.end_s))
    facts = {"rank": rank, "steps": list(range(STEPS)), "device": "cpu", "memory": {}}
    return Trace(facts, "here", slices, [], {})


def taking_turns(message_s: float, recorded: int = STEPS) -> list[Trace]:
    """Two ranks: one is late in every other layer, the other in those between."""
    late = [layer % 2 == 0 for layer in range(LAYERS)]
    return [trace(0, late, message_s), trace(1, [not one for one in late], message_s, recorded)]


def test_waiting_for_a_rank_that_is_late_is_no_message():
    """Each waits a fourth of the step for the other, and next to nothing for its messages."""
    assert find(taking_turns(message_s=1e-3)) == []


def test_a_step_that_one_rank_alone_recorded_changes_nothing():
    assert find(taking_turns(message_s=1e-3, recorded=STEPS + 1)) == []


@pytest.mark.parametrize("recorded", [STEPS, STEPS + 1])
def test_an_operation_that_waits_for_a_message_computes_nothing(recorded):
    late, early = [True] * LAYERS, [False] * LAYERS
    [finding] = find([trace(0, late, 1e-3), trace(1, early, 1e-3, recorded)])
    assert (finding.kind, finding.ranks) == ("straggler", (0,))
    assert "rank 0 works 800 ms of a step, the others 400 ms" in finding.words


def test_the_message_is_what_the_rank_that_comes_last_waits():
    [finding] = find(taking_turns(message_s=0.1))
    assert finding.kind == "communication"
    assert finding.ranks == (0, 1)
    assert abs(finding.amount - 1 / 3) < 1e-9


@pytest.mark.parametrize("library", ["cuda", "hip"])
@pytest.mark.parametrize("what", ["Device", "Stream", "Event"])
def test_a_cpu_that_waits_for_the_gpu_starts_nothing(library, what):
    """A kernel of 0.4 s, and an operation that waits for it and 0.3 s longer, for a copy."""
    slices = [
        Slice(f"{STEP}0", MARKED, MAIN, 0.0, 1.0),
        Slice("aten::item", "cpu_op", MAIN, 0.1, 0.8),
        Slice(f"{library}{what}Synchronize", "cuda_runtime", MAIN, 0.1, 0.8),
        Slice("Cijk_gemm", "kernel", (0, 7), 0.1, 0.5),
    ]
    facts = {"rank": 0, "steps": [0], "device": "cuda", "memory": {}}
    [times] = step_times(Trace(facts, "here", slices, [], {}))
    assert times.starting_s == 0


def test_a_gpus_step_is_told_apart_by_hand():
    """Data 0 to 0.1, before the kernel; what the kernel does not hide of the wait, 0.5 to 0.6, and
    of the message after it, 0.6 to 0.7; the operation starts 0.7 to 0.9, with the GPU idle."""
    slices = [
        Slice(f"{STEP}0", MARKED, MAIN, 0.0, 1.0),
        Slice("data", MARKED, MAIN, 0.0, 0.3),
        Slice("gemm", "kernel", (0, 7), 0.1, 0.5),
        Slice("aten::mm", "cpu_op", MAIN, 0.3, 0.9),
        Slice("ncclDevKernel_AllReduce", "kernel", (0, 8), 0.4, 0.7),
        Slice("wait", MARKED, MAIN, 0.45, 0.6),
    ]
    facts = {"rank": 0, "steps": [0], "device": "cuda", "memory": {}}
    [times] = step_times(Trace(facts, "here", slices, [], {}))
    told = (times.data_s, times.wait_s, times.exposed_s, times.starting_s, times.operations)
    assert told == pytest.approx((0.1, 0.1, 0.1, 0.2, 1))


def test_an_operation_belongs_to_the_step_in_which_it_starts():
    """And one of 50 µs computes, a shorter one is started only."""
    slices = [
        Slice(f"{STEP}0", MARKED, MAIN, 0.0, 1.0),
        Slice("aten::mm", "cpu_op", MAIN, 0.0, SMALL_S),
        Slice("aten::add", "cpu_op", MAIN, 0.5, 0.5 + SMALL_S / 2),
        Slice(f"{STEP}1", MARKED, MAIN, 1.0, 2.0),
        Slice("aten::mm", "cpu_op", MAIN, 1.0, 1.5),
    ]
    facts = {"rank": 0, "steps": [0, 1], "device": "cpu", "memory": {}}
    first, second = step_times(Trace(facts, "here", slices, [], {}))
    assert (first.operations, second.operations) == (2, 1)
    assert first.starting_s == pytest.approx(SMALL_S / 2) and second.starting_s == 0


def test_a_step_that_only_starts_operations_says_how_long_each_takes():
    slices = [
        Slice(f"{STEP}0", MARKED, MAIN, 0.0, 60e-6),
        Slice("aten::add", "cpu_op", MAIN, 10e-6, 50e-6),
    ]
    facts = {"rank": 0, "steps": [0], "device": "cpu", "memory": {}}
    [finding] = find([Trace(facts, "here", slices, [], {})])
    assert finding.kind == "launch" and finding.amount == pytest.approx(2 / 3)
    assert "rank 0 spends 67% of a step" in finding.words
    assert "40.0 µs each" in finding.words


def test_what_a_board_copies_is_a_message_and_what_others_do_meanwhile_is_none():
    slices = [
        Slice(f"{STEP}0", MARKED, MAIN, 0.0, 1.0),
        Slice(f"{BOARD}all_reduce", MARKED, MAIN, 0.2, 0.4),
        Slice("aten::copy_", "cpu_op", MAIN, 0.2, 0.4),
        Slice("aten::mm", "cpu_op", CARRIER, 0.3, 0.4),
        Slice("aten::add", "cpu_op", MAIN, 0.5, 0.7),
    ]
    facts = {"rank": 0, "steps": [0], "device": "cpu", "memory": {}}
    board = Trace(facts, "here", slices, [], {})
    assert sorted(one.name for one in board.computing) == ["aten::add", "aten::mm"]
    [times] = step_times(board)
    assert times.exposed_s == pytest.approx(0.1)


def losing(lost_s: list[float], name: str = "wait", rank: int = 0, host: str = "here") -> Trace:
    """Steps of a second that end in a range of this name, of so many seconds each."""
    slices = []
    for at_s, seconds in enumerate(lost_s):
        worked_s = at_s + 1 - seconds
        slices.append(Slice(f"{STEP}{at_s}", MARKED, MAIN, at_s, at_s + 1))
        slices.append(Slice("aten::mm", "cpu_op", MAIN, at_s, worked_s))
        slices.append(Slice(name, MARKED, MAIN, worked_s, at_s + 1))
    facts = {"rank": rank, "steps": list(range(len(lost_s))), "device": "cpu"}
    return Trace(facts | {"memory": {MACHINE: (5e9, 10e9)}}, host, slices, [], {})


def kinds(*traces: Trace) -> list[str]:
    return [one.kind for one in find([*traces]) if one.kind != "memory"]


def test_a_finding_is_there_in_four_of_five_steps():
    assert kinds(*[losing([0.4, 0.4, 0.4, 0.0, 0.0])] * 2) == []
    [finding, _] = find([losing([0.4, 0.3, 0.5, 0.0, 0.4], rank=rank) for rank in range(2)])
    assert finding.kind == "bubble" and finding.amount == pytest.approx(0.3)


def test_a_bubble_is_the_mean_of_the_ranks():
    assert kinds(losing([0.0]), losing([0.4])) == ["straggler"]
    assert kinds(losing([0.3]), losing([0.3])) == ["bubble"]


def test_a_straggler_is_late_beside_most_others_and_by_a_part_of_the_step():
    assert kinds(*[losing([0.0])] * 3, losing([0.5])) == []
    assert kinds(losing([0.75]), losing([0.82])) == ["bubble"]
    assert kinds(losing([0.0]), losing([0.15])) == []


def test_what_a_rank_waits_for_its_input_is_told_with_its_own_times():
    [finding, _] = find([losing([0.3], rank=0), losing([0.3], "data", rank=1)])
    assert finding.kind == "input" and finding.ranks == (1,)
    assert "rank 1 spends 30% of a step (300 of 1000 ms)" in finding.words


def test_of_several_ranks_the_most_that_one_waits_is_told():
    found = find([losing([0.3], "data", rank=0), losing([0.2], "data", rank=1)])
    [words] = [one.words for one in found if one.kind == "input"]
    assert "ranks 0, 1 spend up to 30% of a step (300 of 1000 ms)" in words


def test_ranks_share_the_memory_of_their_machine():
    """Half of it each."""
    [finding] = find([losing([0.0], rank=0), losing([0.0], rank=1)])
    assert finding.kind == "memory" and finding.ranks == (0, 1) and finding.amount == 1
    assert find([losing([0.0], rank=0), losing([0.0], rank=1, host="there")]) == []
