"""The exercises about pipelines: what is said of answers that are too slow or too large."""

import pytest

pytest.importorskip("transformers")
from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import SCHEDULES, make_schedule
from helpers.lab.exercises.check import check
from helpers.lab.exercises.questions import EXERCISES
from helpers.lab.exercises.topics import pipeline as grading


def written(name):
    """An order of the engine's, as a reader writes it."""

    def order(rank, ranks, microbatches):
        made = make_schedule(name, ranks, microbatches)
        return [f"{action.kind}{action.microbatch}" for action in made.ranks[rank]]

    return order


def test_the_questions_limits_are_the_judges():
    for words in (f"at most {grading.SLOWEST:.4g},", f"of {grading.ROOM} samples"):
        assert words in EXERCISES["2a plan"].question


def test_some_plans_fit_and_each_schedule_fails_somewhere():
    fits = {
        (name, m): grading.plan_choice({"schedule": name, "microbatches": m}).right
        for name in SCHEDULES
        for m in (4, 8, 16, 32, 64)
    }
    right = {case for case, fit in fits.items() if fit}
    assert {("1f1b", 16), ("zero-bubble", 16)} <= right
    assert not {"naive", "gpipe"} & {name for name, _ in right}
    assert len(right) < len(fits) / 3


def test_virtual_stages_share_a_ranks_work():
    """Without the half unit an interleaved step would be 1f1b's with half the bubble."""
    step = grading.try_plan("interleaved", 64)
    assert step.busy_s[0] == pytest.approx(3 * 64 + 64 * 2 * 2 * grading.START)
    with pytest.raises(UserError, match="at most 64"):
        grading.try_plan("1f1b", 128)


def lists(actions):
    return lambda rank, ranks, microbatches: actions


def raises(rank, ranks, microbatches):
    return [f"F{microbatches // rank}"]


@pytest.mark.parametrize("exercise", ["2b 1f1b", "2c zero bubble"])
@pytest.mark.parametrize(
    ("order", "words"),
    [
        (lists(["F0", "X0"]), "written F0, B0, I0 or W0, not 'X0'"),
        (lists(["F0"]), "stage 0 needs one F and either one B or one I and one W"),
        (lists([]), "has nothing"),
        (lists(7), "it raised TypeError"),
        (raises, "it raised ZeroDivisionError"),
        ("F0 B0", "A function is wanted, not a str"),
        (lambda rank: [], "it raised TypeError"),
        (written("naive"), "is possible"),
    ],
)
def test_an_order_is_told_what_is_wrong(exercise, order, words):
    verdict = check(exercise, order)
    assert not verdict.passed and words in verdict.message, verdict.message


def test_1f1b_must_hold_less_than_gpipe():
    message = check("2b 1f1b", written("gpipe")).message
    assert "rank 0 holds 4 micro-batches at once, and 2 will do" in message


def test_a_deadlock_is_named():
    def waits(rank, ranks, microbatches):
        order = [f"{kind}{i}" for i in range(microbatches) for kind in "FB"]
        return order[::-1] if rank else order

    assert "your schedule deadlocks: rank 0 with" in check("2b 1f1b", waits).message


def test_zero_bubble_must_beat_1f1b_and_hold_no_more():
    assert "is possible" in check("2c zero bubble", written("1f1b")).message

    def greedy(rank, ranks, microbatches):
        """All W at the very end: as fast on the first rank's clock, and holds everything."""
        halves = [f"{kind}{i}" for kind in "FI" for i in range(microbatches)]
        return halves + [f"W{i}" for i in range(microbatches)]

    assert not check("2c zero bubble", greedy).passed


def test_an_order_may_be_any_iterable():
    order = written("1f1b")
    assert check("2b 1f1b", lambda *sizes: iter(order(*sizes))).passed
