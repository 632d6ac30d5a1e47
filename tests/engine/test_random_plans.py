"""What nobody chose equals one process: random families, axes, schedules and savers, and calls of
a trainer in a random order."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.files.manifest import list_checkpoints
from helpers.engine.files.weights import whole_weights
from helpers.engine.parallelize import parallelize
from helpers.engine.pipeline.schedules import SCHEDULES
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny
from tests.support.matrix import part
from tests.support.ranks import mesh_of, pool

FAMILIES = (*tiny.FAMILIES, *tiny.PUBLISHED, *tiny.DECODERS, *tiny.ENCODERS)
# of dp_replicate, dp_shard, pp, cp and tp
FLAT = (
    *((2, 1, 1, 1, 1), (1, 2, 1, 1, 1), (1, 1, 1, 2, 1), (1, 1, 1, 1, 2), (1, 1, 1, 1, 4)),
    *((1, 2, 1, 2, 1), (1, 2, 1, 1, 2), (1, 1, 1, 2, 2), (2, 2, 1, 1, 1), (2, 1, 1, 1, 2)),
)
PIPELINES = ((1, 1, 2, 1, 1), (1, 2, 2, 1, 1), (1, 1, 2, 2, 1), (1, 1, 2, 1, 2), (1, 1, 4, 1, 1))
LAYERS, STEPS, PLANS = 4, 3, 200
MIXTURES = ("gpt-oss",)  # whose experts ranks may deal out


def task_of(family: str) -> str | None:
    return family.rpartition("-")[2] if family in tiny.ENCODERS else None


def drawn(seed: int, families: Sequence[str] = FAMILIES) -> tuple[str, ParallelPlan]:
    """A family, and a plan that fits it."""
    draw = Random(seed).choice
    schedule = draw((*[None] * 5, *SCHEDULES))
    while True:
        replicate, shard, pp, cp, tp = draw(PIPELINES if schedule else FLAT)
        choices = {
            "dp_replicate": replicate,
            "dp_shard": shard,
            "pp": pp,
            "cp": cp,
            "tp": tp,
            "zero_stage": draw((1, 2, 3)),
            "sequence_parallel": tp > 1 and draw((False, True)),
            "cp_attention": draw(("ring", "gather", "ulysses")),
            "cp_split": draw(("balanced", "contiguous")),
            "schedule": schedule or "1f1b",
            "virtual_stages": 2 if schedule == "interleaved" else 0,
            "microbatches": draw((1, 2, 4)),
            "activation": draw(("none", "selective", "full", "group_2")),
            "partition": draw(("auto", "1,3", "3,1")) if pp == 2 else "auto",
        }
        family = draw(families)
        try:
            plan = ParallelPlan(**choices)
            plan.validate(tiny.config(family, LAYERS), task=task_of(family))
        except UserError:
            continue
        return family, plan


def dealt(seed: int) -> ParallelPlan:
    """One under which the experts of a mixture are dealt out."""
    draws = (drawn(1000 * seed + number, MIXTURES) for number in itertools.count())
    plan = next(plan for _, plan in draws if plan.shards > 1)
    return replace(plan, zero_stage=3, ep=plan.shards)


@pytest.mark.parametrize("seed", part(range(10), range(10, PLANS)))
def test_a_random_layout_equals_one_process(seed: int) -> None:
    family, plan = drawn(seed)
    pool(plan.world_size).run(parity.check, family, plan, torch.float64, STEPS, LAYERS)


@pytest.mark.parametrize("seed", part(range(4), range(4, 40)))
def test_a_random_layout_with_experts_dealt_out(seed: int) -> None:
    plan = dealt(seed)
    pool(plan.world_size).run(parity.check, "gpt-oss", plan, torch.float64, STEPS, LAYERS)


@pytest.mark.exhaustive
def test_every_axis_and_schedule_is_drawn() -> None:
    plans = [drawn(seed)[1] for seed in range(PLANS)]
    assert {plan.schedule for plan in plans} == set(SCHEDULES)
    for axis in ("dp_replicate", "dp_shard", "pp", "cp", "tp"):
        assert sum(getattr(plan, axis) > 1 for plan in plans) > PLANS / 10


CALLS = (
    "step",
    "step",
    "evaluate",
    "look",
    "drop",
    "looked before gradients",
    "own update",
    "save",
    "load",
    "lr",
    "no labels",
)
ORDERS, LENGTH = 60, 12
LAYOUTS = (
    ParallelPlan(tp=2),
    ParallelPlan(tp=2, sequence_parallel=True),
    ParallelPlan(dp_replicate=2),
    ParallelPlan(dp_shard=2, zero_stage=1),
    ParallelPlan(dp_shard=2, zero_stage=2, microbatches=2),
    ParallelPlan(dp_shard=2),
    ParallelPlan(dp_shard=2, activation="full"),
    ParallelPlan(cp=2),
    ParallelPlan(pp=2, microbatches=4),
    ParallelPlan(pp=2, microbatches=4, schedule="zero-bubble-v"),
)


def called(seed: int, plan: ParallelPlan, folder: Path) -> list[float]:
    """The numbers that calls of one trainer give, in an order that the seed draws."""
    random, mesh = Random(seed), mesh_of(plan)
    family = random.choice(("llama", "gptj", "gpt2", "neox", "falcon-mqa", "qwen3"))
    model = parallelize(tiny.fresh(family, torch.float64, LAYERS), plan, mesh)
    trainer = Trainer(model, plan, mesh, lr=tiny.LR, clip=tiny.CLIP)
    trainer.runs_on = seed % 3 == 0
    checkpoints = Checkpoints(folder, keep=LENGTH, background=seed % 2 == 0)
    numbers = []
    for call in (*random.choices(CALLS, k=LENGTH), "step", "evaluate"):
        ids, labels = tiny.batch(random.randrange(8), length=16)
        match call:
            case "step":
                numbers.append(trainer.step(ids, labels).loss)
            case "no labels":
                numbers.append(trainer.step(ids, torch.full_like(labels, -100)).loss)
            case "evaluate":
                numbers.append(trainer.evaluate([(ids, labels)])["loss"])
            case "look" if plan.pp == plan.cp == 1:
                with torch.no_grad():
                    model(input_ids=ids, labels=labels)
            case "drop":
                trainer.backward(ids, labels)
                trainer.gradients()
            case "looked before gradients":
                trainer.backward(ids, labels)
                trainer.evaluate([(ids, labels)])
                trainer.gradients()
            case "own update":
                numbers.append(trainer.backward(ids, labels).item())
                gradients = trainer.gradients()
                trainer.evaluate([(ids, labels)])
                trainer.update({name: gradient.clone() for name, gradient in gradients.items()})
                trainer.update(gradients)
            case "save":
                checkpoints.save(trainer)
            case "load":
                checkpoints.finish()
                if there := list_checkpoints(folder):
                    checkpoints.load(trainer, random.choice(there))
            case "lr":
                trainer.lr *= 2
    checkpoints.finish()
    trainer.settle()
    weights = dict(whole_weights(model))
    return numbers + [weights[name].sum().item() for name in sorted(weights)]


@pytest.mark.parametrize("seed", part(range(len(LAYOUTS)), range(len(LAYOUTS), ORDERS)))
def test_calls_in_a_random_order_give_what_one_process_gives(seed: int, tmp_path: Path) -> None:
    [expected] = pool(1).run(called, seed, ParallelPlan(), tmp_path / "one")
    for found in pool(2).run(called, seed, LAYOUTS[seed % len(LAYOUTS)], tmp_path / "two"):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-8)
