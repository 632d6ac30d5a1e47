"""bf16 and fp16 with float32 masters; the loss scaler sees what all ranks see."""

import copy
import math

import pytest
import torch

from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.loss_scaling import LossScaler
from helpers.engine.precision.optimizer import check_settings
from helpers.engine.tensor.shards import local
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny
from tests.support.matrix import each
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

LAYOUTS = {
    "one": {},
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sequence_parallel": True},
    "ddp2": {"dp_replicate": 2},
    "zero1": {"dp_shard": 2, "zero_stage": 1},
    "zero2": {"dp_shard": 2, "zero_stage": 2},
    "zero3": {"dp_shard": 2},
    "tp2-zero3": {"tp": 2, "dp_shard": 2},
    "cp2": {"cp": 2},
    "cp2-zero2": {"cp": 2, "zero_stage": 2, "cp_attention": "gather"},
    "cp2-hsdp": {"cp": 2, "dp_replicate": 2, "cp_attention": "ulysses"},
    "pp2": {"pp": 2},
    "pp2-zero-bubble": {"pp": 2, "schedule": "zero-bubble"},
    "pp2-zero3": {"pp": 2, "dp_shard": 2, "schedule": "zero-bubble"},
}

UPDATE_WITHIN = 0.05  # of its size; 0.03 were seen, and a learning rate of 1.1 of its own is not
EPS = 1e-3  # below it AdamW would turn the rounding of small gradients into whole steps


def make(plan: ParallelPlan, family: str = "gpt2", **options) -> Trainer:
    return parity.trainer_of(family, plan, torch.float32, **options)


def compare_with_fp32(plan: ParallelPlan, tolerance: float) -> None:
    low, full = make(plan, eps=EPS), make(ParallelPlan(**_degrees(plan)), eps=EPS)
    start = {part.name: part.tensor.detach().clone() for part in full.parts}
    for step in range(5):
        ours, theirs = low.step(*tiny.batch(step)), full.step(*tiny.batch(step))
        assert not ours.skipped
        parity.close(f"loss {step}", ours.loss, theirs.loss, tolerance)
        parity.close(f"norm {step}", ours.grad_norm, theirs.grad_norm, tolerance * 4)
    for part in low.parts:
        assert part.tensor.dtype == torch.float32, "the optimizer works on float32 masters"
        expected = next(p for p in full.parts if p.name == part.name)
        ours, theirs = (one.tensor.detach() - start[one.name] for one in (part, expected))
        assert (ours - theirs).norm() <= UPDATE_WITHIN * theirs.norm(), part.name


def _degrees(plan: ParallelPlan) -> dict:
    return plan.to_dict() | {"precision": "fp32", "microbatches": 1}


@pytest.mark.parametrize(("layout", "precision"), each(LAYOUTS, ("bf16", "fp16")))
def test_low_precision_follows_fp32(layout: str, precision: str) -> None:
    plan = ParallelPlan(**LAYOUTS[layout], precision=precision, microbatches=2)
    pool(plan.world_size).run(compare_with_fp32, plan, 0.02)


def small_updates_survive() -> None:
    """A bf16 weight of 1 swallows an update of 1e-4; its float32 master does not."""
    plan = ParallelPlan(precision="bf16")
    trainer = make(plan, weight_decay=0.0)
    part = next(p for p in trainer.parts if p.name.endswith("ln_f.weight"))
    trainer.lr = 1e-4
    before = part.tensor.detach().clone()
    for step in range(20):
        trainer.step(*tiny.batch(step))
    held = local(dict(trainer.model.named_parameters())[part.name])
    assert held.dtype == torch.bfloat16
    assert (part.tensor - before).abs().max() > 1e-4
    assert torch.equal(held, part.tensor.to(torch.bfloat16))


def test_small_updates_survive() -> None:
    pool(1).run(small_updates_survive)


def _infinite_loss(model, args, out):
    if isinstance(out, torch.Tensor):  # of a stage that is not the last
        return out * float("inf")
    out.loss = out.loss * float("inf")
    return out


def overflow_is_seen_by_all(plan: ParallelPlan) -> list:
    trainer = make(plan)
    trainer.scaler.scale = 2.0**16
    before = copy.deepcopy([part.tensor.detach() for part in trainer.parts])
    if torch.distributed.get_rank() == 0:  # one rank alone sees a bad number
        trainer.model.register_forward_hook(_infinite_loss)
    result = trainer.step(*tiny.batch(0))
    same = all(torch.equal(old, p.tensor) for old, p in zip(before, trainer.parts, strict=True))
    return [result.skipped, result.scale, trainer.scaler.scale, trainer.scaler.skipped, same]


@pytest.mark.parametrize("layout", ("tp2", "ddp2", "zero2", "tp2-zero3", "pp2"))
def test_an_overflow_on_one_rank_skips_the_step_on_all(layout: str) -> None:
    plan = ParallelPlan(**LAYOUTS[layout], precision="fp16")
    answers = pool(plan.world_size).run(overflow_is_seen_by_all, plan)
    assert answers == [[True, 2.0**16, 2.0**15, 1, True]] * plan.world_size


def test_the_scale_grows_and_backs_off() -> None:
    scaler = LossScaler(scale=8.0, growth_interval=2)
    finite = (True, True, True, False, False, True)
    assert [scaler.overflowed(step) for step in finite] == [not step for step in finite]
    assert (scaler.scale, scaler.skipped, scaler.good_steps) == (4.0, 2, 1)
    assert scaler.bad_steps == 0  # a smaller scale may mend it


def test_without_a_scale_a_bad_step_is_skipped_and_counted() -> None:
    fixed = LossScaler.for_precision("bf16")
    assert [fixed.overflowed(finite) for finite in (False, True, False, False)] == [1, 0, 1, 1]
    assert (fixed.scale, fixed.skipped, fixed.bad_steps) == (1.0, 3, 2)


@pytest.mark.parametrize("precision", ("bf16", "fp16"))
def test_of_a_checkpoint_only_what_a_scaler_has_goes_on(precision: str) -> None:
    """One that names a method replaced it."""
    scaler = LossScaler.for_precision("bf16")
    scaler.go_on({"overflowed": 1, "skipped": 3}, precision, "bf16")
    assert scaler.overflowed(False) and scaler.skipped == 4


@pytest.mark.parametrize("name", ("lr", "weight_decay", "eps", "clip"))
def test_a_number_that_floating_point_has_not_is_no_setting(name: str) -> None:
    settings = {"lr": 1, "weight_decay": 0, "betas": (0.9, 0.95), "eps": 1e-8, "clip": 1}
    check_settings("adamw", **settings)
    assert name in said(check_settings, "adamw", **settings | {name: 10**400})


GOOD = (0, 1e-3, torch.tensor(1e-3))
BAD = (float("nan"), float("inf"), 10**400, -1.0, "x", None, True, torch.ones(2))


def set_between_steps() -> list[str]:
    trainer, told = make(ParallelPlan()), []
    ids, labels = tiny.batch(0)
    before = [part.tensor.detach().clone() for part in trainer.parts]
    for name, value in [(name, value) for name in ("lr", "clip") for value in BAD]:
        if (name, value) != ("clip", None):
            kept = getattr(trainer, name)
            setattr(trainer, name, value)
            told.append(said(trainer.step, ids, labels))
            setattr(trainer, name, kept)
    with torch.no_grad():
        told.append(said(trainer.step, ids, labels))
    with torch.autocast("cpu", torch.bfloat16):
        told.append(said(trainer.step, ids, labels))
        assert said(trainer.evaluate, [(ids, labels)]) == told[-1]
    assert all(torch.equal(old, part.tensor) for old, part in zip(before, trainer.parts))
    for value in GOOD:
        trainer.lr = value
        assert trainer.step(ids, labels).lr == value
    return told


def test_a_rate_or_limit_that_is_no_number_trains_nothing() -> None:
    """A negative one would climb, in silence."""
    *told, no_grad, autocast = pool(1).run(set_between_steps)[0]
    assert {words.partition(" must be")[0] for words in told} == {"trainer.lr", "trainer.clip"}
    assert "take it outside of no_grad" in no_grad
    assert "take it outside of autocast" in autocast


def evaluated() -> tuple:
    trainer = make(ParallelPlan())
    ids, labels = tiny.batch(0)
    nothing = trainer.evaluate([(ids, torch.full_like(labels, -100))], answers=[1, 2])
    wrong = ([], [-1], [tiny.VOCAB], ["x"], 5, [True], [0.5])
    return nothing, [said(trainer.evaluate, [(ids, labels)], answers) for answers in wrong]


def test_the_mean_over_no_label_is_no_number_and_answers_are_tokens() -> None:
    nothing, told = pool(1).run(evaluated)[0]
    assert (
        nothing["tokens"] == 0 and math.isnan(nothing["loss"]) and math.isnan(nothing["accuracy"])
    )
    assert all("answer" in words for words in told)


def losses_from_fp16(plan: ParallelPlan) -> tuple[list[float], set[torch.dtype]]:
    model = parallelize(tiny.fresh("llama", torch.float32).half(), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR, eps=1e-6)
    losses = [trainer.step(*tiny.batch(step)).loss for step in range(4)]
    return losses, {part.tensor.dtype for part in trainer.parts}


def test_the_masters_of_a_model_in_16_bits_are_float32_under_zero_3_too() -> None:
    """With masters in fp16 Adam's eps was none, and the third loss off by 0.025."""
    layouts = ("ddp2", "zero3")
    plans = [ParallelPlan(**LAYOUTS[layout], precision="fp16") for layout in layouts]
    (ddp, _), (sharded, dtypes) = (pool(2).run(losses_from_fp16, plan)[0] for plan in plans)
    assert dtypes == {torch.float32}
    parity.close("losses", sharded, ddp, 1e-4)
