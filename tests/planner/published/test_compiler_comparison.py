"""The published compiler comparison, recomputed from its own logs."""

from dataclasses import replace

import pytest

from helpers.engine.errors import UserError
from helpers.planner.published.compiler_comparison import audit_comparison, recount
from helpers.planner.published.posts import find_post
from helpers.planner.published.speed_claims import side_by_side

P3, P4D = find_post("compiler-on-p3"), find_post("compiler-on-p4d")


def test_the_logs_say_how_many_rows_steps_and_samples_there_were():
    found = audit_comparison(P4D)
    assert (found.native.rows, found.compiled.rows) == (1588, 1588)
    assert (found.native.steps_per_epoch, found.compiled.steps_per_epoch) == (3, 1)
    assert found.native.work.samples == 1_536_000
    assert found.compiled.work.samples == 1_024_000
    assert (found.native.work.dropped, found.compiled.work.dropped) == (52_000, 564_000)


def test_53_percent_was_2_percent():
    found = audit_comparison(P4D)
    assert found.reported.percent == pytest.approx(53.1, abs=0.05)
    assert found.counted.percent == pytest.approx(2.1, abs=0.05)
    assert found.native.samples_per_s == pytest.approx(1176.4, abs=0.05)
    assert found.compiled.samples_per_s == pytest.approx(1200.6, abs=0.05)
    assert found.native.work.steps == 3000 and found.compiled.work.steps == 1000
    assert 3 * found.compiled.work.steps == pytest.approx(found.native.work.steps)
    assert P4D.compiled.train_loss > P4D.native.train_loss + 0.9
    assert str(found) == (
        "GPT-2 on SST-2, two p4d.24xlarge: +53 % samples per second reported, +2.1 % counted, with "
        "564,000 of 1,588,000 samples dropped by the compiled run and 52,000 by the native one; "
        "1,000 optimizer steps against 3,000; mean training loss 3.29 against 2.34."
    )


def test_the_other_run_dropped_nothing_but_took_half_the_steps():
    found = audit_comparison(P3)
    assert found.native.rows == found.compiled.rows == 1595
    assert found.native.work.dropped == found.compiled.work.dropped == 0
    assert found.reported.percent == pytest.approx(42.8, abs=0.05)
    assert found.counted.percent == pytest.approx(found.reported.percent, abs=0.05)
    assert 2 * found.compiled.work.steps == found.native.work.steps
    assert P3.compiled.train_loss > P3.native.train_loss + 0.7


@pytest.mark.parametrize("comparison", (P3, P4D), ids=lambda comparison: comparison.name)
def test_printed_percents_are_of_time_and_cut_off(comparison):
    found = audit_comparison(comparison)
    assert int(found.training.percent) == comparison.printed_training
    assert int(found.billed.percent) == comparison.printed_billed
    with pytest.raises(UserError, match='two meanings of "faster"'):
        side_by_side({"the bar chart": found.reported, "the printed line": found.training})


def test_the_comparison_tool_refuses_both():
    with pytest.raises(UserError, match="samples 1,536,000 against 1,024,000, steps 3,000 against"):
        audit_comparison(P4D).check()
    with pytest.raises(UserError, match="dropped 52,000 against 564,000"):
        audit_comparison(P4D).check(allow=["samples", "steps", "batch"])
    with pytest.raises(UserError, match="same work: steps 4,000 against 2,000, batch 160 against"):
        audit_comparison(P3).check()
    audit_comparison(P3).check(allow=["steps", "batch"])


def test_a_log_of_another_batch_is_refused():
    with pytest.raises(UserError, match="3 steps an epoch of 1588 rows are none of batch 300"):
        recount(replace(P4D.native, batch=300), P4D.epochs)
