"""Tables and pictures of pipelines: measured beside simulated steps, and parts on stages."""

import pytest

from helpers.engine.errors import UserError
from helpers.engine.pipeline.partition import MEMORY, Cost, Costs, balance
from helpers.engine.pipeline.schedules import make_schedule
from helpers.engine.pipeline.simulator import Span, Timeline, Times, simulate
from helpers.lab.drawings.schedule import draw_schedule
from helpers.lab.drawings.stages import EMBEDDING, HEAD, draw_partition, stages_of
from helpers.lab.figures.pipeline_plots import plot_bubbles
from helpers.lab.runs.pipeline_steps import bubble_table, case_of, compare_schedules
from helpers.planner.published.posts import find_post

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

COSTS = Costs(Cost(0, 1.0), (Cost(2, 1.0),) * 6, Cost(1, 1.0))


def measured(name: str, ranks: int, microbatches: int, stretch: float = 1.0) -> Timeline:
    """A step as a run writes it: without bytes, and `stretch` times as long."""
    step = simulate(make_schedule(name, ranks, microbatches), Times(0.1, 0.1, 0.1))
    spans = tuple(
        tuple(Span(a, start * stretch, end * stretch) for a, start, end in rank)
        for rank in step.spans
    )
    return Timeline(spans, peak_bytes=())


def test_a_step_is_held_against_its_own_actions():
    steps = [measured("1f1b", 2, 8, stretch) for stretch in (3.0, 1.0, 2.0)]
    case = case_of("1f1b:8", steps)
    took, said = case.pair
    assert took is steps[2] and said.makespan_s == pytest.approx(took.makespan_s)
    table = compare_schedules({"1f1b:8": steps, "interleaved:4": [measured("interleaved", 2, 4)]})
    row = table.loc["1f1b:8"]
    assert row["step, ms"] == pytest.approx(2 * 2700)
    assert row["measured / simulated"] == pytest.approx(1)
    for column in ("bubble", "bubble simulated", "bubble by formula"):
        assert row[column] == pytest.approx(1 / 9)
    assert table.loc["interleaved:4", "bubble by formula"] == pytest.approx(1 / 9)


def waiting(late_s: float) -> Timeline:
    """A step whose second rank does everything so much later."""
    step = measured("1f1b", 2, 4)
    late = [Span(s.action, s.start_s + late_s, s.end_s + late_s) for s in step.spans[1]]
    return Timeline((step.spans[0], tuple(late)), peak_bytes=())


def test_a_wait_that_no_action_explains_is_seen():
    row = compare_schedules({"1f1b:4": [waiting(0.5)]}).loc["1f1b:4"]
    assert row["measured / simulated"] > 1.2 and row["bubble"] > row["bubble simulated"]


def test_the_spread_of_a_bubble_is_of_its_measured_steps():
    """Of eleven steps the second least and the second most are the percentiles."""
    steps = [waiting(late / 10) for late in (7, 3, 9, 1, 10, 5, 0, 2, 8, 4, 6)]
    row = bubble_table([case_of("1f1b:4", steps)]).loc[4]
    for column, late in (("10th percentile", 1), ("measured", 5), ("90th percentile", 9)):
        assert row[column] == pytest.approx(waiting(late / 10).bubble), column
    assert row["simulated"] == pytest.approx(row["formula"]) == pytest.approx(1 / 5)
    assert row["10th percentile"] < row["measured"] < row["90th percentile"]


@pytest.mark.parametrize("name", ["1f1b", "1f1b:", "1f1b:x"])
def test_a_case_needs_its_name_and_steps(name):
    with pytest.raises(UserError, match="a case is steps under a name like 1f1b:8"):
        case_of(name, [measured("1f1b", 2, 4)])
    with pytest.raises(UserError, match="not 0 as"):
        case_of("1f1b:4", [])


def test_each_lane_has_its_stages_name_and_missing_numbers_are_explained():
    fig, _, _ = draw_schedule({"interleaved:2": measured("interleaved", 2, 2)})
    names = [text.get_text() for text in fig.axes[0].get_yticklabels()]
    assert names == ["rank 0, stage 0", "rank 0, stage 2", "rank 1, stage 1", "rank 1, stage 3"]
    assert "too narrow" not in fig.axes[0].get_xlabel()
    fig, _, _ = draw_schedule({"1f1b:64": measured("1f1b", 2, 64)})
    assert "a box too narrow for its micro-batch's number has none" in fig.axes[0].get_xlabel()


def test_bubbles_are_drawn_in_the_order_of_their_micro_batches():
    given = {f"1f1b:{m}": [measured("1f1b", 2, m)] * 3 for m in (8, 2, 4)}
    fig, table, sentence = plot_bubbles(given)
    assert list(table.index) == [2, 4, 8]
    assert table["measured"].tolist() == pytest.approx([1 / 3, 1 / 5, 1 / 9])
    assert table["formula"].tolist() == pytest.approx(table["measured"].tolist())
    assert "from 33.3% to 11.1%" in sentence
    assert [text.get_text() for text in fig.axes[0].get_xticklabels()] == ["2", "4", "8"]


def test_measured_timelines_are_drawn_without_memory():
    one = measured("gpipe", 2, 4)
    _, table, _ = draw_schedule(
        {"measured": one, "simulated": simulate(make_schedule("gpipe", 2, 4))}
    )
    assert table["most held by a rank"].isna().tolist() == [True, False]
    _, table, _ = draw_schedule(one)
    assert table["most held"].isna().all()


def test_boxes_stack_to_the_stages_cost():
    layers = balance(COSTS, 3, memory_weight=0)
    fig, table, alt = draw_partition({"mine": stages_of(layers)}, COSTS, memory_weight=0)
    shares = COSTS.shares(0)
    loads = [
        sum(shares[0 if part == EMBEDDING else -1 if part == HEAD else part + 1] for part in stage)
        for stage in stages_of(layers)
    ]
    assert table.loc["mine", "largest stage, in layers"] == pytest.approx(max(loads) / shares[1])
    assert "stage 0: embedding, layer 0, layer 1" in alt and "head." in alt
    numbers = {text.get_text() for text in fig.axes[0].texts}
    assert {"0", "1", "2", "3", "4", "5", "mine"} <= numbers


@pytest.mark.parametrize(
    "stages",
    [
        [[EMBEDDING, 0, 1, 2], [3, 4, HEAD]],
        [[EMBEDDING, 0, 1, 2], [3, 4, 5, 5, HEAD]],
        [[0, 1, 2], [3, 4, 5, HEAD]],
    ],
)
def test_a_partition_has_each_part_once(stages):
    with pytest.raises(UserError, match="does not have each part of the model once"):
        draw_partition({"mine": stages}, COSTS)


def test_the_published_partition_is_as_good_as_ours():
    """28 layers on 16 stages: some stage has two layers, and no stage needs more."""
    pipeline = find_post("gptj-pipeline")
    stages = [list(stage) for stage in pipeline.layers]
    assert len(stages) == pipeline.pp and not stages[0] and list(pipeline.ends) == [0]
    assert sorted(layer for stage in stages for layer in stage) == list(range(28))
    stages[0] = [EMBEDDING, HEAD]
    costs = Costs(Cost(0, 1.02), (Cost(1, 1.0),) * 28, Cost(0.95, 1.02))
    ours = stages_of(balance(costs, 16, MEMORY))
    _, table, _ = draw_partition({"published": stages, "ours": ours}, costs, MEMORY)
    assert table["largest stage, in layers"].tolist() == pytest.approx([2, 2])
    assert table["if all were equal"].tolist() == pytest.approx([1.862, 1.862], abs=0.01)
