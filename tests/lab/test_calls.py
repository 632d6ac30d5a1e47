"""A function and a cell on every rank: what comes back, and what is said where nothing does."""

import math
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist

pytest.importorskip("cloudpickle")
pytest.importorskip("IPython")
from helpers.engine.errors import UserError
from helpers.lab.calls.cell import _words, register, run_cell
from helpers.lab.calls.on_ranks import CallFailed, on_ranks
from helpers.lab.calls.side_by_side import compared, side_by_side
from helpers.lab.launch.warm.ranks import Ranks

pytestmark = pytest.mark.slow


@pytest.fixture
def ranks(warm: Ranks) -> Ranks:
    return warm


def test_a_function_goes_by_value_with_what_it_uses(ranks):
    offset = torch.tensor([1.0, 2.0])

    def summed(factor):
        x = offset * factor + dist.get_rank()
        dist.all_reduce(x)
        return x

    found = on_ranks(summed, 10.0, nproc=2, ranks=ranks)
    assert [one.tolist() for one in found] == [[21.0, 41.0]] * 2


def test_code_keeps_its_file_there_and_back(ranks):
    def outer():
        def inner():
            return 1

        return inner

    for one in on_ranks(outer, nproc=2, ranks=ranks):
        assert one() == 1 and one.__code__.co_filename == __file__


def test_without_warm_ranks_it_starts_its_own():
    assert on_ranks(dist.get_rank, nproc=2) == [0, 1]


def test_more_ranks_than_are_warm_are_started(ranks, monkeypatch):
    monkeypatch.setattr(ranks, "count", 1)
    assert on_ranks(dist.get_world_size, nproc=2, ranks=ranks) == [2, 2]


def test_the_rank_that_raises_is_named_with_its_line(ranks):
    def fails():
        dist.barrier()
        if dist.get_rank() == 1:
            raise ValueError("no\nsuch thing")
        dist.barrier()

    with pytest.raises(CallFailed, match="rank 1 raised ValueError: no such thing") as caught:
        on_ranks(fails, nproc=2, ranks=ranks)
    assert 'raise ValueError("no' in str(caught.value) and not caught.value.deadlock


def test_ranks_that_wait_are_named_and_so_is_one_that_has_returned(ranks):
    def waits():
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), 1)

    with pytest.raises(CallFailed) as caught:
        on_ranks(waits, nproc=2, ranks=ranks, timeout_s=2)
    assert caught.value.deadlock
    assert "nothing comes in 2 s: rank 0 waits in line" in str(caught.value)
    assert "dist.recv(torch.zeros(1), 1); rank 1 has returned" in str(caught.value)


def test_a_result_that_cannot_leave_its_process_is_named(ranks):
    def generator():
        return (x for x in range(3))

    with pytest.raises(CallFailed, match="TypeError: cannot pickle 'generator' object"):
        on_ranks(generator, nproc=2, ranks=ranks)


CELL = """
x = weights[rank : rank + 1] * 2
print("mine is", x.item())
whole = x.clone()
dist.all_reduce(whole)
{"mine": x, "sum": whole, "place": f"{rank} of {ranks}"}
"""


def test_a_cell_runs_on_every_rank_and_is_shown_side_by_side(ranks, capsys):
    names = {"ranks": ranks, "weights": torch.tensor([1.5, 2.5], requires_grad=True)}
    run_cell("2 weights", CELL, names)
    shown = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: [cell.strip() for cell in line[1:] if cell.strip()] for line in shown}
    assert rows["printed 1"] == ["mine is 3.0", "mine is 5.0", "differ"]
    assert rows["mine"] == ["[1] 3", "[1] 5", "differ by up to 2; sum [1] 8"]
    assert rows["sum"] == ["[1] 8", "[1] 8", "equal"]
    assert rows["place"] == ["0 of 2", "1 of 2", "differ"]


def test_nothing_of_a_cell_is_left_for_the_next(ranks, capsys):
    run_cell("2", "left = 1", {"ranks": ranks})
    run_cell("1", "'left' in globals()", {"ranks": ranks})
    assert "False" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "cell", "words"),
    [
        ("weigths", "1", "%%ranks weigths: the notebook has no such name"),
        ("", "x = = 1", "line 1 of the cell: invalid syntax"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(ranks, line, cell, words):
    with pytest.raises(UserError, match=words):
        run_cell(line, cell, {"ranks": ranks})


def test_a_cell_wants_warm_ranks():
    with pytest.raises(UserError, match=r"make them first, ranks = Ranks\(2\)"):
        run_cell("", "1", {"ranks": 2})


def test_a_line_of_the_cell_is_named(ranks):
    with pytest.raises(CallFailed, match="ZeroDivisionError: division by zero in line 2, 1 / 0"):
        run_cell("", "x = 1\n1 / 0\n", {"ranks": ranks})


def test_ipython_knows_the_magic_after_load_ext():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    register(shell)
    assert "ranks" in shell.magics_manager.magics["cell"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((torch.ones(2), torch.ones(2)), "equal"),
        ((torch.ones(2), torch.ones(3)), "shapes or types differ"),
        ((torch.ones(2), torch.ones(2).double()), "shapes or types differ"),
        ((torch.tensor([1, 2]), torch.tensor([1, 4])), "differ by up to 2; sum [2] 2, 6"),
        ((torch.ones(1), None), "differ"),
        (("a", "a"), "equal"),
        ((torch.full((1,), float("nan")), torch.ones(1)), "differ by up to nan; sum [1] nan"),
    ],
)
def test_tensors_are_compared_over_the_ranks(values, words):
    table = side_by_side(values)
    assert table.loc["value", "over the ranks"] == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nproc": "2"}, "nproc must be a whole number"),
        ({"timeout_s": "5"}, "timeout_s is '5'"),
        ({"timeout_s": -1}, "timeout_s is -1"),
        ({"ranks": 3}, "ranks is 3: give warm ranks"),
    ],
)
def test_a_call_that_cannot_be_is_refused(given, words):
    with pytest.raises(UserError, match=words):
        on_ranks(int, **{"nproc": 2} | given)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(UserError, match="this cannot be sent to the ranks: TypeError"):
        on_ranks(list, (one for one in [1]), nproc=2)


def test_a_rank_that_leaves_is_named(ranks):
    def leaves():
        raise SystemExit(0)

    def ends():
        os._exit(0)

    with pytest.raises(CallFailed, match=r"rank . raised SystemExit: 0 in line"):
        on_ranks(leaves, nproc=2, ranks=ranks)
    with pytest.raises(CallFailed, match="rank 0 ended without a result"):
        on_ranks(ends, nproc=2, ranks=ranks)


def test_a_raised_two_is_no_number_of_ranks():
    with pytest.raises(UserError, match="the notebook has no such name"):
        _words("²", 2, {})


def test_ranks_are_compared_by_all_of_their_numbers():
    assert compared([torch.tensor(1j), torch.tensor(2j)]) == "differ by up to 1; sum 0+3j"
    assert compared([torch.tensor([math.nan, 1.0])] * 2) == "equal"
    large = torch.tensor([2**60, 1])
    assert compared([large, large + 1]).startswith("differ by up to 1")
    small = torch.ones(2).to(torch.float8_e4m3fn)
    assert compared([small, small]) == "equal"
    zeros = np.zeros(3000)
    other = zeros.copy()
    other[1500] = 1e-9
    table = side_by_side([zeros, other])
    assert table["over the ranks"].iloc[0].startswith("differ by up to 1e-09")
