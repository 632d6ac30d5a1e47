"""The exercises on real ranks: solutions pass, and mistakes are named, a deadlock after seconds."""

import time

import pytest

pytest.importorskip("cloudpickle")
import torch
import torch.distributed as dist

from helpers.lab.exercises.check import check
from helpers.lab.exercises.on_ranks.judge import verdict
from helpers.lab.exercises.on_ranks.solutions import heads_and_tokens
from helpers.lab.exercises.questions import EXERCISES
from helpers.lab.launch.warm.ranks import Ranks
from tests.lab.exercises.wrong_answers import answer_of
from tests.lab.exercises.wrong_on_ranks import DEADLOCKS, WRONG_ON_RANKS
from tests.support.ranks import pool

EXAMS = [name for name, exercise in EXERCISES.items() if exercise.on_ranks]
pytestmark = pytest.mark.slow


@pytest.fixture
def ranks(warm: Ranks) -> Ranks:
    return warm


def wrong_one(name: str, place: int) -> str:
    """In a rank of the tests' pool, what the exam says."""
    try:
        return EXERCISES[name].function(WRONG_ON_RANKS[name][place][0])
    except Exception as error:
        return f"raised {error}"


def test_every_exercise_on_ranks_is_here():
    assert list(WRONG_ON_RANKS) == EXAMS and min(map(len, WRONG_ON_RANKS.values())) >= 6


@pytest.mark.parametrize("name", EXAMS)
def test_a_solution_passes(name, ranks):
    found = check(name, answer_of(name), ranks=ranks)
    assert found.passed and found.message == EXERCISES[name].praise != ""


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, place) for name, wrong in WRONG_ON_RANKS.items() for place in range(len(wrong))],
)
def test_a_wrong_answer_is_refused_and_told_why(name, place):
    seen = pool(EXERCISES[name].file.RANKS).run(wrong_one, name, place)
    found = verdict(seen, "")
    assert found.done and not found.right and WRONG_ON_RANKS[name][place][1] in found.words, seen


def ring_by_batches(x, rank, ranks):
    """Each turn is one batch of a send and a receive."""
    pieces = list(x.tensor_split(ranks))
    for step in range(2 * (ranks - 1)):
        out, into = (rank - step) % ranks, (rank - step - 1) % ranks
        came = torch.empty_like(pieces[into])
        send = dist.P2POp(dist.isend, pieces[out], (rank + 1) % ranks)
        receive = dist.P2POp(dist.irecv, came, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        pieces[into] = came + pieces[into] if step < ranks - 1 else came
    return torch.cat(pieces)


def heads_by_lists(x, rank, ranks):
    came = [torch.empty_like(x[:, : x.shape[1] // ranks]) for _ in range(ranks)]
    dist.all_to_all(came, [part.contiguous() for part in x.chunk(ranks, dim=1)])
    return torch.cat(came)


OTHER_WAYS = {  # that are right, by functions that the solutions do not call
    "5d ring": ring_by_batches,
    "9c heads for tokens": (heads_by_lists, heads_and_tokens()[1]),
}


def other_way(name):
    return EXERCISES[name].function(OTHER_WAYS[name])


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_another_way_is_as_right(name):
    assert set(pool(EXERCISES[name].file.RANKS).run(other_way, name)) == {""}


@pytest.mark.alone
@pytest.mark.parametrize("name", DEADLOCKS)
def test_ranks_that_wait_for_each_other_are_named_with_their_lines(name, ranks):
    answer, line = DEADLOCKS[name]
    began = time.monotonic()
    message = check(name, answer, ranks=ranks).message
    assert time.monotonic() - began < 15
    assert "The ranks wait for each other, and nothing comes in 5 s: rank 0 waits" in message
    assert message.count(line) == EXERCISES[name].file.RANKS, message


def test_what_the_readers_code_raises_is_shown_with_its_line(ranks):
    def broken(x, rank, ranks):
        return x + torch_is_not_imported  # noqa: F821

    line = broken.__code__.co_firstlineno + 1
    message = check("5d ring", broken, ranks=ranks).message
    words = (
        f"raised NameError: name 'torch_is_not_imported' is not defined in line {line}, return x"
    )
    assert words in message
