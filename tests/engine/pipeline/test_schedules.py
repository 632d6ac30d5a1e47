"""Pipeline schedules: they run, cost what the papers say, and agree with torch's own."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import (
    SCHEDULES,
    Action,
    Schedule,
    make_schedule,
    predicted_bubble,
)
from helpers.engine.pipeline.simulator import (
    Span,
    Timeline,
    Times,
    check_schedule,
    measured_times,
    simulate,
)
from tests.support.refusals import said

unhurried = settings(deadline=None)  # others may use the cores
RANKS = st.integers(1, 8)
MICROBATCHES = st.integers(1, 16)
VIRTUAL = st.integers(1, 4)
SECONDS = st.integers(1, 9)


@st.composite
def schedules(draw):
    name = draw(st.sampled_from(SCHEDULES))
    virtual = draw(VIRTUAL) if name == "interleaved" else None
    return make_schedule(name, draw(RANKS), draw(MICROBATCHES), virtual)


def schedule(*ranks: str, rank_of: tuple[int, ...] | None = None, microbatches: int) -> Schedule:
    """A schedule from texts like `0F0 0B0`, a rank each."""
    actions = tuple(
        tuple(
            Action(kind, int(stage), int(i))
            for stage, kind, i in re.findall(r"(-?\d+)(\w)(\d+)", text)
        )
        for text in ranks
    )
    return Schedule("mine", actions, rank_of or tuple(range(len(ranks))), microbatches)


def equal_stages(made: Schedule, forward_s=1.0, input_s=1.0, weight_s=1.0) -> Timeline:
    """Simulated with the same work for each rank, whatever its number of stages."""
    v = made.stages // made.pp
    return simulate(made, Times(forward_s / v, input_s / v, weight_s / v))


# --- every schedule --------------------------------------------------------------------------


@unhurried
@given(schedules())
def test_every_schedule_is_complete_and_runs(made):
    check_schedule(made)


@unhurried
@given(schedules())
def test_messages_of_a_kind_between_two_ranks_arrive_in_the_order_sent(made):
    """So a queue for each pair of ranks and kind is enough to run it."""
    sent, received = {}, {}
    for rank, actions in enumerate(made.ranks):
        for kind, stage, i in actions:
            step = {"F": 1, "B": -1, "I": -1}.get(kind, 0)
            for other, box in ((stage + step, sent), (stage - step, received)):
                if step and 0 <= other < made.stages:
                    pair = (rank, made.rank_of[other])
                    key = pair if box is sent else pair[::-1]
                    receiver = other if box is sent else stage
                    box.setdefault((*key, step), []).append((receiver, i))
    assert sent == received


@unhurried
@given(schedules(), st.data())
def test_a_step_is_at_least_its_longest_rank_and_its_longest_path(made, data):
    each = st.lists(SECONDS, min_size=made.stages, max_size=made.stages)
    forward, first, second = (data.draw(each) for _ in range(3))
    timeline = simulate(made, Times(forward, first, second))
    work = [
        made.microbatches * sum(forward[s] + first[s] + second[s] for s in made.stages_of(rank))
        for rank in range(made.pp)
    ]
    assert timeline.busy_s == pytest.approx(work)
    through = sum(forward) + sum(first)
    assert timeline.makespan_s >= max(*work, through)
    assert all(0 <= bubble < 1 for bubble in timeline.bubbles)


@unhurried
@given(schedules())
def test_links_and_longer_actions_never_shorten_a_step(made):
    plain = simulate(made).makespan_s
    assert simulate(made, Times(link_s=0.5)).makespan_s >= plain
    assert simulate(made, Times(weight_s=2)).makespan_s > plain


@unhurried
@given(schedules(), st.floats(0, 1))
def test_all_that_is_held_is_freed(made, part):
    """Repeating the list changes no peak, as it would if something were left."""
    timeline = simulate(made, activation_bytes=8.0, weight_bytes=8.0 * part)
    ranks = tuple(
        actions + tuple(Action(k, s, i + made.microbatches) for k, s, i in actions)
        for actions in made.ranks
    )
    twice = Schedule(made.name, ranks, made.rank_of, 2 * made.microbatches)
    again = simulate(twice, activation_bytes=8.0, weight_bytes=8.0 * part)
    assert again.peak_bytes == pytest.approx(timeline.peak_bytes)


# --- the papers' numbers ---------------------------------------------------------------------


@unhurried
@given(RANKS, MICROBATCHES, VIRTUAL)
def test_the_bubble_is_the_closed_form(pp, m, virtual):
    for name in SCHEDULES:
        made = make_schedule(name, pp, m, virtual if name == "interleaved" else None)
        said = predicted_bubble(name, pp, m, virtual if name == "interleaved" else None)
        assert equal_stages(made).bubble == pytest.approx(said), name


@unhurried
@given(RANKS, MICROBATCHES, VIRTUAL)
def test_the_closed_forms_are_those_of_the_papers(pp, m, v):
    share = (pp - 1) / (m + pp - 1)
    assert predicted_bubble("gpipe", pp, m) == pytest.approx(share)
    assert predicted_bubble("1f1b", pp, m) == pytest.approx(share)
    assert predicted_bubble("naive", pp, m) == pytest.approx((pp - 1) / pp)
    if m >= pp:
        relative = (pp - 1) / (v * m)  # to the ideal time: arXiv 2104.04473, section 2.2
        said = predicted_bubble("interleaved", pp, m, v)
        assert said / (1 - said) == pytest.approx(relative)
        share = (pp - 1) / (3 * m + pp - 1)  # arXiv 2401.10241, table 2, with equal times
        assert predicted_bubble("zero-bubble", pp, m) == pytest.approx(share)


@unhurried
@given(RANKS, MICROBATCHES, SECONDS, SECONDS)
def test_gpipe_and_1f1b_have_their_bubble_whatever_a_backward_takes(pp, m, forward_s, input_s):
    for name in ("gpipe", "1f1b"):
        timeline = equal_stages(make_schedule(name, pp, m), forward_s, input_s)
        assert timeline.bubble == pytest.approx((pp - 1) / (m + pp - 1))


@unhurried
@given(RANKS, MICROBATCHES, SECONDS, SECONDS, st.data())
def test_zero_bubble_waits_for_f_and_i_less_w_for_each_rank_before(pp, m, f, i, data):
    """Bubble (p-1)(F+I-W), table 2 of arXiv 2401.10241."""
    w = data.draw(st.integers(1, min(f, i)))
    m += pp
    timeline = equal_stages(make_schedule("zero-bubble", pp, m), f, i, w)
    assert timeline.makespan_s == pytest.approx(m * (f + i + w) + (pp - 1) * (f + i - w))
    assert timeline.bubble == pytest.approx(predicted_bubble("zero-bubble", pp, m, 1, f, i, w))


@unhurried
@given(RANKS, MICROBATCHES)
def test_1f1b_keeps_min_of_m_and_p_less_i_in_flight(pp, m):
    peak = simulate(make_schedule("1f1b", pp, m)).peak_bytes
    assert peak == tuple(min(m, pp - rank) for rank in range(pp))


@unhurried
@given(RANKS, MICROBATCHES)
def test_interleaved_with_one_stage_a_rank_is_1f1b(pp, m):
    assert make_schedule("interleaved", pp, m, 1).ranks == make_schedule("1f1b", pp, m).ranks


@unhurried
@given(RANKS, MICROBATCHES, VIRTUAL)
def test_memory_by_schedule(pp, m, v):
    def peak(name, virtual=None):
        return simulate(make_schedule(name, pp, m, virtual)).peak_bytes

    assert peak("naive") == (1,) * pp
    assert peak("gpipe") == (m,) * pp
    assert all(a <= b for a, b in zip(peak("1f1b"), peak("gpipe")))
    assert peak("zero-bubble") == (min(m, pp),) * pp
    assert max(peak("zero-bubble-v")) == 2 * min(m, pp)  # of half a rank's layers
    if v > 1 and m % pp == 0:
        # arXiv 2205.05198, section 4.2.3: p (1 + (p-1)/(p v)) whole ranks' worth
        assert peak("interleaved", v)[0] == min(m * v, pp * v + pp - 1)


@unhurried
@given(RANKS, MICROBATCHES, SECONDS)
def test_the_gradient_of_the_input_frees_its_part_early(pp, m, late):
    made = make_schedule("zero-bubble", pp, m)
    whole = simulate(made, activation_bytes=10.0).peak_bytes
    part = simulate(made, activation_bytes=10.0, weight_bytes=float(late)).peak_bytes
    assert all(a <= b for a, b in zip(part, whole))
    held_late = min(m - 1, pp - 1)  # on the last rank, when the last forward comes
    assert part[-1] == pytest.approx(max(10, 10 + late * held_late))


def test_a_schedule_with_links_by_hand():
    made = make_schedule("gpipe", 2, 2)
    timeline = simulate(made, Times(forward_s=1, backward_s=2, link_s=0.5))
    assert [(str(s.action), s.start_s) for s in timeline.spans[1]] == [
        ("1F0", 1.5),
        ("1F1", 2.5),
        ("1B0", 3.5),
        ("1B1", 5.5),
    ]
    assert [s.start_s for s in timeline.spans[0]] == [0, 1, 6, 8]
    assert timeline.makespan_s == 10 and timeline.busy_s == (6, 6)
    assert timeline.bubble == pytest.approx(0.4)


def test_two_stages_of_one_rank_need_no_link():
    v = make_schedule("zero-bubble-v", 2, 1)
    assert v.rank_of == (0, 1, 1, 0) and v.stages_of(0) == (0, 3)
    slow = simulate(v, Times(link_s=[0.0, 100.0, 0.0]))
    assert slow.makespan_s == simulate(v).makespan_s


def test_unequal_stages_cost_the_slowest():
    """Sum of all stages + (m-1) slowest (Alpa, arXiv 2201.12023, equation 2) is gpipe's time; in
    1f1b the faster stages do some of theirs while the slowest works."""
    forward, backward = [1, 3, 2], [2, 6, 4]
    times = Times(forward_s=forward, backward_s=backward)
    said = sum(forward) + sum(backward) + 7 * 9
    waits = 1 - 8 * (3 + 9 + 6) / (3 * said)  # of three ranks of other work, not of the one between
    assert simulate(make_schedule("gpipe", 3, 8), times).bubble == pytest.approx(waits)
    assert simulate(make_schedule("gpipe", 3, 8), times).makespan_s == said
    assert 8 * 9 < simulate(make_schedule("1f1b", 3, 8), times).makespan_s < said


# --- torch's own -----------------------------------------------------------------------------


def theirs(kind: str, pp: int, m: int, virtual: int = 1) -> list[list[str]]:
    """What torch's schedule of this kind does on each rank, without processes."""
    from torch.distributed.pipelining import schedules as torchs

    cls = getattr(torchs, kind)
    found = []
    for rank in range(pp):
        self = SimpleNamespace(
            pp_group_size=pp,
            _num_stages=pp * virtual,
            num_stages=pp * virtual,
            n_local_stages=virtual,
            _n_microbatches=m,
            number_of_rounds=max(1, m // pp),
            microbatches_per_round=m // max(1, m // pp),
            rank=rank,
        )
        if hasattr(cls, "_calculate_single_rank_operations"):
            actions = cls._calculate_single_rank_operations(self, rank)
        else:
            actions = cls._get_pipeline_order(self)[rank]
        computed = [action for action in actions if action is not None and action.is_compute_op]
        found.append([str(action) for action in computed])
    return found


def ours(*args) -> list[list[str]]:
    return [[str(action) for action in rank] for rank in make_schedule(*args).ranks]


@pytest.mark.parametrize("pp", range(1, 9))
def test_gpipe_and_1f1b_are_torchs(pp):
    for m in range(1, 17):
        assert ours("gpipe", pp, m) == theirs("ScheduleGPipe", pp, m)
        if m >= pp:  # torch's 1f1b needs as many
            *first, last = theirs("Schedule1F1B", pp, m)
            assert ours("1f1b", pp, m)[:-1] == first
            # torch 2.13 counts the last rank's forwards from 1, in this table though not when run
            kinds = [re.sub(r"\d", "", text) for text in last]
            assert [re.sub(r"\d", "", text) for text in ours("1f1b", pp, m)[-1]] == kinds


@pytest.mark.parametrize("pp", range(1, 9))
@pytest.mark.parametrize("virtual", [2, 3, 4])
def test_interleaved_is_torchs_where_its_rounds_divide(pp, virtual):
    for m in range(1, 17):
        if m % max(1, m // pp) == 0:
            expected = theirs("ScheduleInterleaved1F1B", pp, m, virtual)
            assert ours("interleaved", pp, m, virtual) == expected


@pytest.mark.parametrize("pp", range(1, 9))
def test_zero_bubble_is_torchs_but_for_the_first_ranks_whole_backward(pp):
    for m in range(1, 17):
        if m % max(1, m // pp) == 0:
            first, *others = theirs("ScheduleInterleavedZeroBubble", pp, m)
            whole = [text.replace("I", "B") for text in first if "W" not in text]
            assert ours("zero-bubble", pp, m) == [whole, *others]


@pytest.mark.parametrize("pp", range(1, 9))
def test_zero_bubble_v_is_torchs(pp):
    for m in range(1, 17):
        assert ours("zero-bubble-v", pp, m) == theirs("ScheduleZBVZeroBubble", pp, m, 2)


# --- what is wrong is said -------------------------------------------------------------------


def test_a_deadlock_names_who_waits_for_what():
    stuck = schedule("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", microbatches=2)
    with pytest.raises(UserError) as error:
        check_schedule(stuck)
    assert str(error.value) == ("mine deadlocks: rank 0 with 0B0 for 1I0; rank 1 with 1F1 for 0F1")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("0F0 0B0", "1F0"), "stage 1 needs one F and either one B or one I and one W"),
        (("0F0 0B0", "1F0 1I0"), "but has 1 F, 1 I"),
        (("0F0 0B0", "1F0 1B0 1W0"), "but has 1 F, 1 B, 1 W"),
        (("0F0 0F0 0B0", "1F0 1B0"), "stage 0 needs one F"),
        (("0F0 0B0", ""), "but has nothing"),
        (("0F0 0B0 1F0", "1B0"), "1F0 is on rank 0, but rank 1 has stage 1"),
        (("0F0 0B0", "1F0 1B0 2F0"), "2F0 on rank 1: there are stages 0 to 1"),
        (("0F0 0B0", "1F0 1B0 1F1"), "1F1 on rank 1: there are micro-batches 0 to 0"),
        (("0F0 0B0", "1F0 1X0"), "an action is F, B, I or W, not 'X'"),
    ],
)
def test_an_incomplete_schedule_is_refused(texts, words):
    wrong = schedule(*texts, microbatches=1)
    for check in (check_schedule, simulate):
        assert words in said(check, wrong)


@unhurried
@given(schedules(), st.data())
def test_no_action_can_be_left_out_or_doubled(made, data):
    rank = data.draw(st.integers(0, made.pp - 1))
    at = data.draw(st.integers(0, len(made.ranks[rank]) - 1))
    one = made.ranks[rank][at]
    for changed in ((), (one, one)):
        actions = made.ranks[rank][:at] + changed + made.ranks[rank][at + 1 :]
        ranks = (*made.ranks[:rank], actions, *made.ranks[rank + 1 :])
        with pytest.raises(UserError, match="needs one F and either"):
            check_schedule(Schedule(made.name, ranks, made.rank_of, made.microbatches))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("simple", 2, 2), "no schedule is called 'simple'; there is naive, gpipe, 1f1b"),
        (("1f1b", 0, 2), "pp must be a whole number of at least 1, not 0"),
        (("gpipe", 2, 0), "microbatches must be a whole number"),
        (("interleaved", 2, 2, 0), "virtual must be a whole number"),
        (("1f1b", 2, 2, 2), "1f1b has 1 stage a rank, not 2"),
        (("zero-bubble-v", 2, 2, 3), "zero-bubble-v has 2 stages a rank, not 3"),
    ],
)
def test_what_cannot_be_made_is_said(arguments, words):
    for ask in (make_schedule, predicted_bubble):
        assert words in said(ask, *arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"times": Times(forward_s=[1, 1])}, "forward_s needs one number or 3, not 2"),
        ({"times": Times(link_s=[1, 1, 1])}, "link_s needs one number or 2, not 3"),
        ({"times": Times(backward_s=-1)}, "backward_s takes finite numbers from 0"),
        ({"times": Times(forward_s=float("nan"))}, "forward_s takes finite numbers from 0"),
        ({"times": Times(link_s=float("inf"))}, "link_s takes finite numbers from 0"),
        ({"activation_bytes": 1, "weight_bytes": 2}, "cannot be larger"),
    ],
)
def test_numbers_that_do_not_match_the_stages(options, words):
    with pytest.raises(UserError, match=words):
        simulate(make_schedule("1f1b", 3, 2), **options)


def test_no_closed_form_is_said():
    with pytest.raises(UserError, match="no schedule is called 'dualpipe'"):
        predicted_bubble("dualpipe", 4, 8)
    with pytest.raises(UserError, match="simulate it"):
        predicted_bubble("zero-bubble", 4, 8, weight_s=2)
    with pytest.raises(UserError, match="simulate it"):  # W waits for I, however long F is
        predicted_bubble("zero-bubble", 4, 8, forward_s=2, input_s=0.5)
    with pytest.raises(UserError, match="simulate it"):
        predicted_bubble("zero-bubble-v", 4, 8, 2, weight_s=0.5)


def test_interleaved_has_two_stages_a_rank_unless_given():
    assert predicted_bubble("interleaved", 4, 8) == predicted_bubble("interleaved", 4, 8, 2)


@pytest.mark.parametrize("name", ("naive", "gpipe", "interleaved", "zero-bubble"))
def test_a_step_that_takes_no_time_has_no_bubble(name):
    none = {"forward_s": 0, "input_s": 0, "weight_s": 0}
    assert predicted_bubble(name, 2, 2, **none) == 0
    assert simulate(make_schedule(name, 2, 2), Times(**none)).bubble == 0


@pytest.mark.parametrize("seconds", (-5, float("nan"), float("inf")))
def test_the_closed_form_is_of_times_that_there_can_be(seconds):
    with pytest.raises(UserError, match="must be finite numbers from 0"):
        predicted_bubble("gpipe", 2, 2, forward_s=seconds)


# --- measured --------------------------------------------------------------------------------


@unhurried
@given(schedules(), st.data())
def test_times_taken_from_a_timeline_give_it_again(made, data):
    each = st.lists(SECONDS, min_size=made.stages, max_size=made.stages)
    forward, first, second = (data.draw(each) for _ in range(3))
    timeline = simulate(made, Times(forward, first, second))
    times = measured_times(timeline, made.stages)
    assert simulate(made, times).makespan_s == pytest.approx(timeline.makespan_s)


def test_whole_backwards_take_what_halves_took():
    halves, whole = make_schedule("zero-bubble", 3, 2), make_schedule("1f1b", 3, 2)
    times = Times([1, 2, 3], [3, 1, 2], [2, 2, 1])
    measured = measured_times(simulate(halves, times), 3)
    assert simulate(whole, measured).makespan_s == simulate(whole, times).makespan_s


def test_half_a_backward_is_none():
    spans = [Span(Action(kind, 0, 0), at, at + 1.0) for at, kind in enumerate("FI")]
    with pytest.raises(UserError, match="no backward of stage 0"):
        measured_times(Timeline((tuple(spans),), (0,)), 1)


def test_measured_times_are_medians_and_a_clock_may_start_anywhere():
    spans = [
        Span(Action("F", 0, 0), 100.0, 101.0),
        Span(Action("F", 0, 1), 101.0, 103.0),
        Span(Action("F", 0, 2), 103.0, 113.0),
        Span(Action("B", 0, 0), 113.0, 117.0),
    ]
    timeline = Timeline((tuple(spans),), (0,))
    assert timeline.makespan_s == 17 and timeline.bubble == 0
    assert measured_times(timeline, 1) == Times([2.0], [2.0], [2.0], [4.0])
    with pytest.raises(UserError, match="no backward of stage 0"):
        measured_times(Timeline((tuple(spans[:3]),), (0,)), 1)


# --- pictures --------------------------------------------------------------------------------


def test_the_picture_says_what_the_table_says():
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    from matplotlib.text import Text

    from helpers.lab.drawings.schedule import draw_schedule
    from helpers.lab.figures.display import png

    timelines = {name: equal_stages(make_schedule(name, 4, 8)) for name in ("gpipe", "interleaved")}
    fig, table, alt = draw_schedule(timelines)
    assert png(fig, alt).startswith(b"\x89PNG")
    assert table["bubble"].tolist() == pytest.approx([3 / 11, 1.5 / 9.5])
    assert table["most held by a rank"].tolist() == [8, 11]
    words = {text.get_text() for text in fig.findobj(Text)}
    lanes = {"rank 1, stage 1", "rank 1, stage 5"}
    assert lanes | {"gpipe: 33 s, 27.3% bubble", "F forward", "waiting"} <= words
    assert "I input gradient" not in words
    assert "gpipe, 4 ranks, 33 s, 27.3% of it waiting: rank 0 runs 8 F, 8 B" in alt
    _, by_rank, alt = draw_schedule(timelines["gpipe"])
    assert by_rank["bubble"].tolist() == pytest.approx([3 / 11] * 4)
    with pytest.raises(UserError, match="at least one"):
        draw_schedule({})
