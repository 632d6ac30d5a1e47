"""What the published rows say of the planner and of its ranges, as the page does."""

import sys

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.planner.audit.constants import CONSTANTS, current, left_out, stepped
from helpers.planner.audit.order import Timed, by_question, order, regret
from helpers.planner.audit.page import PAGE, markdown
from helpers.planner.audit.rows import Errors, rows
from helpers.planner.audit.spread import covered
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.search.ranges import ranges
from tests.planner.audit import vtrain
from tests.support.scripts import on_a_full_disk


def unseen(generation: str) -> Errors:
    return Errors.of([row.unseen for row in rows() if row.generation == generation])


def test_rows_that_no_constant_has_seen():
    """By generation of GPUs: 5.5, 5.1 and 6.4 % in the mean when this was written, with a bias of
    -0.5, -0.4 and -1.0 %: Blackwell's 52 rows of six sources, 43 of them in 8 bits."""
    assert len(rows()) > 700
    for generation, size, bias in (
        ("ampere", 0.06, 0.04),
        ("hopper", 0.06, 0.04),
        ("blackwell", 0.07, 0.03),
    ):
        errors = unseen(generation)
        assert errors.size <= size
        assert abs(errors.bias) <= bias


def test_a_source_of_rows_in_8_bits_alone_leaves_nothing_out():
    """No constant is fitted to one of them, so all of them are as they are without it."""
    assert left_out("nemo-25.04") == left_out("nothing") != left_out("nvidia-dgxc-gb200")
    with pytest.raises(UserError, match="has no values without 'nemo'"):
        left_out("nemo")


def test_a_constant_that_no_row_argues_about_has_its_prior():
    run, values = rows()[0].run, current()
    no_slope = torch.zeros(1, len(CONSTANTS), dtype=torch.float64)
    found = stepped([run], values, torch.tensor([0.1], dtype=torch.float64), no_slope)
    priors = {one.name: min(max(one.prior, one.low), one.high) for one in CONSTANTS}
    assert found == pytest.approx(priors)


def test_rows_that_two_constants_explain_alike_move_the_one_that_may_move():
    """A row a tenth too slow, which either would mend: the wider prior gives way, the narrow one
    hardly."""
    run, values = rows()[0].run, {one.name: one.prior for one in CONSTANTS}
    names = list(values)
    wide, narrow = names.index("ampere products"), names.index("ampere attention")
    slope = torch.zeros(1, len(CONSTANTS), dtype=torch.float64)
    slope[0, [wide, narrow]] = 1.0
    found = stepped([run], values, torch.tensor([0.1], dtype=torch.float64), slope)
    moved = [values[name] - found[name] for name in ("ampere products", "ampere attention")]
    assert moved[0] == pytest.approx(4 * moved[1], rel=1e-3)  # widths of 0.2 and 0.1, squared
    assert 0.05 < sum(moved) <= 0.1


def test_nine_in_ten_pairs_that_differ_by_a_tenth_are_in_the_right_order():
    groups = by_question(rows())
    found = order(groups)
    assert found.pairs > 100
    assert found.share >= 0.90
    assert regret(groups).mean <= 1.03


def test_an_order_is_of_pairs_and_a_regret_of_the_pick():
    """The slowest of three is said to be the fastest: two pairs of three are wrong."""
    group = [Timed(1.0, 2.0), Timed(1.05, 3.0), Timed(2.0, 1.0)]
    assert (order([group]).pairs, order([group]).right) == (2, 0)  # 1 and 1.05 are as one
    assert regret([group]).worst == 2.0
    told = [Timed(one.measured_s, one.measured_s) for one in group]
    assert order([told]).share == 1.0
    assert regret([told]).worst == 1.0


@pytest.mark.skipif(not vtrain.FOLDER.is_dir(), reason="no ../shared/data here")
@pytest.mark.parametrize("name", ("single", "multi"))
def test_runs_that_are_no_part_of_the_project(name):
    """vTrain's, 7.6 % off on one node and 7.3 on several: 717 rows and 41."""
    runs = vtrain.vtrain_runs(name)
    errors = Errors.of([run.predicted_s / run.measured_s - 1 for run in runs])
    groups = vtrain.questions(runs)
    assert errors.size <= 0.08
    assert abs(errors.bias) <= 0.03
    assert order(groups).share >= 0.95
    assert regret(groups).mean <= 1.03
    assert regret(groups).worst <= 1.20


def test_ranges_cover_four_of_five_rows_of_other_sources():
    assert 0.75 <= covered(rows()) <= 0.95
    assert all(one.low < 1 < one.high for one in ranges().values())


def test_the_page_is_what_the_audit_says():
    assert markdown() == PAGE.read_text("utf-8")


def test_a_group_that_lies_over_two_nodes_is_priced_as_one():
    """Six neighbours on nodes of eight: the second group lies over two of them."""
    cluster = make_cluster("p4d.24xlarge", nodes=3)
    inside, across = cluster.link_over([(4, 1)]), cluster.link_over([(6, 1)])
    assert across.nodes == 2
    assert across.bytes_per_s < inside.bytes_per_s / 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_full_disk_is_a_line_and_leaves_the_page_as_it_is():
    before = PAGE.stat().st_mtime_ns
    said = "error: the report cannot be written: No space left on device\n"
    assert on_a_full_disk("-m", "helpers.planner.audit") == (1, said)
    assert PAGE.stat().st_mtime_ns == before
