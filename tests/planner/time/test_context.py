"""Messages of context parallelism, what hides behind attention, and the balance of its work."""

from dataclasses import replace

import pytest

from helpers.engine.context.balance import shares_of_work
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.links import Link
from helpers.planner.model.training_job import make_job
from helpers.planner.time.context_messages import context_messages, shown_context_s
from helpers.planner.time.data_messages import data_messages
from helpers.planner.time.messages import link_of, seconds
from helpers.planner.time.step_time import step_time
from tests.planner.shapes import llama

SMALL = llama(1024, 4, 16, 4, 2816, vocab=32000)
P5 = make_cluster("p5.48xlarge")
SLOW = replace(P5, intra=Link(20e9, 1e-5))


def job(seq_len=32768, batch=1, **plan):
    return make_job(SMALL, ParallelPlan(precision="bf16", **plan), batch, seq_len)


def total(made, when):
    return sum(m.count * m.payload_bytes for m in context_messages(made, 0) if m.when == when)


def test_bytes_in_closed_form():
    """Of keys and values, with n ranks: a ring sends n - 1 parts and backward as many and n of
    gradients, which have twice the bytes; a gather is of n parts."""
    layers, part = SMALL.layers, 2 * 32768 // 4 * SMALL.kv_heads * SMALL.head_dim * 2
    ring, gather = job(cp=4), job(cp=4, cp_attention="gather")
    assert total(ring, "forward") == layers * 3 * part
    assert total(ring, "backward") == layers * (3 + 2 * 4) * part
    assert total(gather, "forward") == layers * 4 * part
    assert total(gather, "backward") == layers * (4 + 2 * 4) * part
    # four queries a key: two of them and their results for each pair of a key and a value
    assert total(job(cp=4, cp_attention="ulysses"), "forward") == layers * (1 + 4) * part


def test_ulysses_sends_keys_to_all_ranks_that_use_them():
    """Four heads of keys over eight ranks: each goes to two."""
    head = 32768 // 8 * SMALL.head_dim * 2
    made = job(cp=8, cp_attention="ulysses")
    assert total(made, "forward") == SMALL.layers * head * (2 * SMALL.heads + 2 * 8)


def test_state_is_shared_by_ranks_of_cp_as_by_those_of_dp_shard():
    split, whole = job(cp=4, dp_shard=2, batch=8), job(dp_shard=8, batch=8)
    for one, other in zip(data_messages(split, 0), data_messages(whole, 0), strict=True):
        assert one.axis == "dp_shard x cp"
        assert replace(one, axis=other.axis) == other


def test_a_ring_hides_behind_attention_where_that_takes_longer():
    """One message nothing hides: the last gradients, which are sent when all is computed."""
    ring = job(cp=4)
    last = next(m for m in context_messages(ring, 0) if m.what == "gradients of keys")
    last_s = seconds(ring, P5, last)
    assert shown_context_s(ring, P5, 1.0, 1.0) == (0.0, last_s)
    all_s = sum(m.count / SMALL.layers * seconds(ring, P5, m) for m in context_messages(ring, 0))
    assert sum(shown_context_s(ring, P5, 0.0, 0.0)) == pytest.approx(all_s)
    alone = replace(P5, overlaps=False)
    assert sum(shown_context_s(ring, alone, 1.0, 1.0)) == pytest.approx(all_s)


@pytest.mark.parametrize("way", ["gather", "ulysses"])
def test_others_wait_for_their_messages(way):
    made = job(cp=4, cp_attention=way)
    each = (m.count / SMALL.layers * seconds(made, P5, m) for m in context_messages(made, 0))
    assert sum(shown_context_s(made, P5, 1.0, 1.0)) == pytest.approx(sum(each))


def test_a_ring_shows_less_than_a_gather_and_nothing_shows_of_no_parts():
    of = {way: step_time(job(cp=8, cp_attention=way), SLOW) for way in ("ring", "gather")}
    assert of["ring"].context_s < of["gather"].context_s
    assert step_time(job(dp_shard=8, batch=8), SLOW).context_s == 0


@pytest.mark.parametrize(("ranks", "length"), [(2, 4096), (4, 4096), (8, 6400), (6, 1200)])
def test_balanced_rows_are_even_and_contiguous_ones_waste(ranks, length):
    assert shares_of_work([length], ranks) == pytest.approx([1 / ranks] * ranks)
    contiguous = job(length, cp=ranks, cp_split="contiguous")
    assert contiguous.uneven == pytest.approx(2 - 1 / ranks, rel=1e-3)
    assert job(length, cp=ranks).uneven == 1


def test_ranks_with_heads_have_as_much_work_however_rows_are_cut():
    assert job(cp=4, cp_split="contiguous", cp_attention="ulysses").uneven == 1


def test_contiguous_rows_take_longer_by_attention_alone():
    even, waste = (step_time(job(cp=4, cp_split=s), P5) for s in ("balanced", "contiguous"))
    assert waste.compute_s > 1.2 * even.compute_s
    short = [step_time(job(512, cp=4, cp_split=s), P5) for s in ("balanced", "contiguous")]
    assert short[1].compute_s == pytest.approx(short[0].compute_s, rel=0.05)


def test_attention_is_not_computed_again():
    """Recomputed blocks take its result from the first run: less is done again than without cp."""
    split, whole = (step_time(job(activation="full", **n), P5) for n in ({"cp": 8}, {}))
    assert 8 * split.again_s < 0.7 * whole.again_s


def test_links_of_two_axes_together():
    """Ranks of dp_shard x cp with a pipeline between them: two of cp in a node, four nodes."""
    cluster = make_cluster("p5.48xlarge", nodes=4)
    made = job(cp=2, pp=4, dp_shard=4, batch=4)
    link = link_of(made, cluster, "dp_shard x cp")
    assert link.bytes_per_s == 2 * cluster.inter.bytes_per_s
    assert link_of(made, cluster, "cp", "send") == cluster.intra
    wide = job(cp=32)
    assert link_of(wide, cluster, "cp", "send").bytes_per_s == cluster.inter.bytes_per_s
    assert link_of(wide, cluster, "cp", "all_gather").bytes_per_s > cluster.inter.bytes_per_s
