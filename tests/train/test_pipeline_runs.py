"""What a pipeline does besides its sums: what it holds, when it sends, how it ends."""

import itertools
import time
from pathlib import Path

import pytest
import torch

from helpers.engine.parallelize import parallelize
from helpers.engine.pipeline.runner import _Step
from helpers.engine.pipeline.schedules import SCHEDULES
from helpers.engine.pipeline.simulator import simulate
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.lab.launch.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.runs.failure_report import RunFailed
from helpers.trace.timelines import gather, read_timelines
from tests.support import parity, scripts, tiny
from tests.support.ranks import mesh_of, pool


def trainer_of(plan: ParallelPlan, **options) -> Trainer:
    model = parallelize(tiny.fresh("gpt2", torch.float64, layers=4), plan, mesh_of(plan))
    return Trainer(model, plan, mesh_of(plan), lr=tiny.LR, **options)


def most_held(plan: ParallelPlan) -> int:
    """The most forwards whose graphs were alive at once on this rank."""
    trainer, most = trainer_of(plan), 0
    run = _Step.run

    def counting(step: _Step, action, message) -> None:
        nonlocal most
        run(step, action, message)
        most = max(most, len(step.in_flight))

    _Step.run = counting
    try:
        trainer.step(*tiny.batch(0))
    finally:
        _Step.run = run
    return most


@pytest.mark.parametrize("name", [name for name in SCHEDULES if not name.startswith("zero")])
def test_graphs_are_freed_when_the_schedule_says(name: str) -> None:
    plan = ParallelPlan(pp=2, schedule=name, microbatches=8)
    expected = simulate(plan.schedule_of(8)).peak_bytes
    assert pool(2).run(most_held, plan) == list(expected)


def alive_after_a_step(plan: ParallelPlan) -> list[int]:
    """Messages, graphs and put-off gradients that are left after a step."""
    trainer = trainer_of(plan)
    trainer.step(*tiny.batch(0))
    messages, later = trainer.pipeline.messages, getattr(trainer.model, "later", None)
    return [len(messages.inbox), len(messages.sent), len(later.pending) if later else 0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_is_left_after_a_step(name: str) -> None:
    plan = ParallelPlan(pp=2, schedule=name, microbatches=4)
    assert pool(2).run(alive_after_a_step, plan) == [[0, 0, 0]] * 2


def scores(plan: ParallelPlan) -> dict:
    """Loss and accuracy of batches whose rows no micro-batch count divides."""
    return trainer_of(plan).evaluate((tiny.batch(s, rows=5) for s in range(3)), [3, 7, 11])


@pytest.mark.parametrize("layout", ({"pp": 2}, {"pp": 2, "schedule": "interleaved", "tp": 2}))
def test_evaluation_is_that_of_one_process(layout: dict) -> None:
    expected = pool(1).run(scores, ParallelPlan())[0]
    plan = ParallelPlan(**layout)
    for found in pool(plan.world_size).run(scores, plan):
        assert found == pytest.approx(expected, rel=1e-12)


def number_of_parts(count: int) -> None:
    """Loss and gradients do not depend on the number of micro-batches."""
    parity.check("gpt2", ParallelPlan(pp=2, microbatches=count), torch.float64, 2, 4)


@pytest.mark.parametrize("count", (1, 2, 5, 8, 11))
def test_any_number_of_micro_batches(count: int) -> None:
    pool(2).run(number_of_parts, count)


def trains_with_dropout(plan: ParallelPlan) -> list[float]:
    config = tiny.config("gpt2", layers=4)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.1
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=1e-2)
    return [trainer.step(*tiny.batch(0)).loss for _ in range(20)]


def test_a_pipeline_learns_with_dropout() -> None:
    losses = pool(2).run(trains_with_dropout, ParallelPlan(pp=2, activation="full"))[0]
    assert losses[-1] < 0.8 * losses[0]


SMALL = {"model": "gpt2-tiny", "layers": 4, "hidden": 32, "heads": 2, "seq_len": 32, "steps": 4}


@pytest.mark.slow
def test_a_stage_that_dies_ends_the_run_with_its_traceback(tmp_path: Path, warm: Ranks) -> None:
    started = time.monotonic()
    with pytest.raises(RunFailed, match="the second stage has had enough") as caught:
        launch(
            "tests/support/fault_scripts/dying_stage.py",
            nproc=2,
            ranks=warm,
            out=tmp_path / "run",
            show=False,
            pp=2,
            microbatches=4,
            **SMALL,
        )
    assert "rank 1" in str(caught.value)
    assert time.monotonic() - started < 60  # start-up and 30 s


@pytest.mark.slow
def test_a_run_writes_its_timelines(tmp_path: Path) -> None:
    out = tmp_path / "run"
    scripts.trained(2, out=out, pp=2, microbatches=4, timeline=True, **SMALL)
    timelines = read_timelines(out / "timeline.json")
    assert len(timelines) == SMALL["steps"]
    schedule = ParallelPlan(pp=2).schedule_of(4)
    for timeline in timelines:
        for spans, actions in zip(timeline.spans, schedule.ranks, strict=True):
            assert [span.action for span in spans] == list(actions)
            assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(spans))
        spans = {span.action: span for spans in timeline.spans for span in spans}
        for action, span in spans.items():
            # nothing runs before what it needs; a stage sends within its span, so the next one may
            # begin before the span's last line
            if action.stage == (1 if action.kind == "F" else 0):
                assert spans[action._replace(stage=1 - action.stage)].start_s < span.start_s


def gathered(plan: ParallelPlan) -> tuple[tuple[int, int], list, list]:
    """This rank's place in pipeline and replicas, its own spans, and what every rank gathers."""
    trainer = trainer_of(plan)
    trainer.pipeline.timed = True
    for step in range(2):
        trainer.step(*tiny.batch(step))
    history = trainer.pipeline.history
    own = [[[*span.action, span.start_s, span.end_s] for span in spans] for spans in history]
    place = tuple(map(trainer.mesh.get_local_rank, ("pp", "dp_replicate")))
    return place, own, gather(trainer)


@pytest.mark.slow
def test_timelines_are_those_of_the_first_replica() -> None:
    found = pool(4).run(gathered, ParallelPlan(pp=2, dp_replicate=2, microbatches=2))
    own = {place: spans for place, spans, _ in found}
    first = [list(ranks) for ranks in zip(own[0, 0], own[1, 0], strict=True)]
    assert len(first) == 2 and len(own) == 4
    assert all(steps == first for _, _, steps in found)
