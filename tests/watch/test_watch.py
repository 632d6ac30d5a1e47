"""The watch: a planted trouble is found by its own rule and no other, a healthy run by none."""

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import StepResult, Trainer
from helpers.train.watching import held_out_due, looking, make_watch
from helpers.watch.history import History, Watched
from helpers.watch.losses import loss_not_falling, overfitting, poor_initialisation
from helpers.watch.observe import Activations, Observation, Observer, Sums
from helpers.watch.rules import RULES, table
from helpers.watch.steps import (
    class_imbalance,
    dead_activation,
    exploding_gradient,
    no_gradient,
    not_finite,
    padding,
    saturated_activation,
    update_too_large,
    update_too_small,
    vanishing_gradient,
)
from helpers.watch.watch import Watch, commonest_share
from tests.support import scripts, tiny
from tests.support.ranks import mesh_of, pool

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("gptj", "gpt2", "neox", "falcon-new", "llama")
STEPS = 70
SEEDS = 4


def words(step: int) -> Tensor:
    """Rows that can be learned: each counts up from a random start by a random pace."""
    dice = torch.Generator().manual_seed(step)
    starts = torch.randint(0, tiny.VOCAB, (8, 1), generator=dice)
    paces = torch.randint(1, 4, (8, 1), generator=dice)
    return (starts + paces * torch.arange(17)) % tiny.VOCAB


def noise(step: int) -> Tensor:
    dice = torch.Generator().manual_seed(5000 + step)
    return torch.randint(0, tiny.VOCAB, (8, 17), generator=dice)


def two_batches(step: int) -> Tensor:
    return noise(step % 2)


def nothing(*_: object) -> None:
    pass


@dataclass
class Trouble:
    """A planted trouble: what is other than in a healthy run."""

    config: dict[str, Any] = field(default_factory=dict)
    model: Callable[..., None] = nothing
    trainer: Callable[..., None] = nothing
    before: Callable[..., None] = nothing
    options: dict[str, Any] = field(default_factory=dict)
    ids: Callable[[int], Tensor] = words
    held_out: Tensor | None = None
    batch: dict[str, float] = field(default_factory=dict)
    steps: int = STEPS


def found(kind: str, family: str = "gpt2", seed: int = 0) -> list[str]:
    """The kinds that the watch names in a run with this trouble."""
    trouble = TROUBLES[kind]
    torch.manual_seed(seed)
    config = tiny.config(family, layers=4)
    for name, value in trouble.config.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config)
    trouble.model(model)
    plan = ParallelPlan()
    model = parallelize(model, plan, mesh_of(plan), check=False)
    trainer = Trainer(model, plan, mesh_of(plan), **({"lr": 1e-3, "seed": seed} | trouble.options))
    trouble.trainer(trainer)
    watch = Watch(every=5, answers=tiny.VOCAB)
    for step in range(1, trouble.steps + 1):
        trouble.before(trainer, step)
        ids = trouble.ids(seed * 1000 + step)
        observer = Observer() if watch.due(step) else None
        with observer.activations_of(model) if observer else contextlib.nullcontext():
            result = trainer.step(ids, ids.clone(), observer=observer)
        watch.judge(result, observer, **trouble.batch)
        if trouble.held_out is not None and step % 10 == 0:
            scored = trainer.evaluate([(trouble.held_out, trouble.held_out.clone())])
            watch.history.held_out.append((step, scored["loss"]))
    return [finding.kind for finding in watch.findings]


def blocks(model: nn.Module) -> Any:
    return model.transformer.h


@torch.no_grad()
def scale_(module: nn.Module, factor: float) -> None:
    for parameter in module.parameters():
        parameter.mul_(factor)


def bad_weight(trainer: Trainer, step: int) -> None:
    if step == 5:
        blocks(trainer.model)[0].mlp.c_fc.weight.data[0, 0] = math.inf


def negative_bias(model: nn.Module) -> None:
    blocks(model)[1].mlp.c_fc.bias.data.fill_(-100)


def steep(model: nn.Module) -> None:
    scale_(blocks(model)[1].mlp.c_fc, 300)


def zeroed(model: nn.Module) -> None:
    scale_(blocks(model)[2], 0)


def large(model: nn.Module) -> None:
    scale_(model.transformer.wte, 30)


def detached(model: nn.Module) -> None:
    blocks(model)[1].mlp.register_forward_hook(lambda module, args, out: out.detach())


def faded(model: nn.Module) -> None:
    blocks(model)[2].register_full_backward_hook(lambda module, ins, outs: times(ins, 1e-7))


def grown(trainer: Trainer, step: int) -> None:
    def grow(module: nn.Module, args: Any, out: Tensor) -> None:
        out.register_hook(lambda gradient: gradient * 1e5)

    if step == 40:
        trainer.model.transformer.ln_f.register_forward_hook(grow)


def times(gradients: tuple[Tensor | None, ...], factor: float) -> tuple[Tensor | None, ...]:
    return tuple(None if one is None else one * factor for one in gradients)


def left_out(trainer: Trainer) -> None:
    """Layer 1 is not in the optimizer."""
    own = {id(part.tensor) for part in trainer.parts if ".h.1." in part.name}
    for group in trainer.optimizer.param_groups:
        group["params"] = [one for one in group["params"] if id(one) not in own]


TROUBLES = {
    "none": Trouble(held_out=words(77)),
    "not_finite": Trouble(before=bad_weight, steps=6),
    "learning_rate_zero": Trouble(options={"lr": 0.0}),
    "dead_activation": Trouble(config={"activation_function": "relu"}, model=negative_bias),
    "saturated_activation": Trouble(config={"activation_function": "tanh"}, model=steep),
    "zero_weights": Trouble(model=zeroed),
    "no_gradient": Trouble(model=detached),
    "vanishing_gradient": Trouble(model=faded),
    "exploding_gradient": Trouble(before=grown),
    "weights_unchanged": Trouble(trainer=left_out),
    "update_too_small": Trouble(options={"lr": 1e-9, "weight_decay": 0.0}),
    "update_too_large": Trouble(options={"lr": 0.3}),
    "poor_initialisation": Trouble(model=large),
    "overfitting": Trouble(ids=two_batches, held_out=noise(9), options={"lr": 5e-3}, steps=90),
    "loss_not_falling": Trouble(ids=noise, options={"lr": 1e-6}),
    "padding": Trouble(batch={"padding": 0.8}),
    "class_imbalance": Trouble(batch={"label": 0.95}),
}


def test_every_rule_has_a_planted_trouble() -> None:
    kinds = {rule.kind for rule in RULES}
    assert kinds == set(TROUBLES) - {"none"}
    assert all(set(rule.explains) <= kinds and rule.source for rule in RULES)


@pytest.mark.parametrize("kind", [kind for kind in TROUBLES if kind != "none"])
def test_a_planted_trouble_is_found_by_its_rule_alone(kind: str) -> None:
    assert pool(1).run(found, kind)[0] == [kind]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_run_is_left_in_peace(family: str, request) -> None:
    """Four runs of each family with `--exhaustive`, one by default."""
    for seed in range(SEEDS if request.config.getoption("--exhaustive") else 1):
        assert pool(1).run(found, "none", family, seed)[0] == []


LAYOUTS = {
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sequence_parallel": True},
    "pp2": {"pp": 2},
    "ddp2": {"dp_replicate": 2},
    "zero1": {"dp_shard": 2, "zero_stage": 1},
    "zero3": {"dp_shard": 2},
    "full": {"activation": "full"},
}


def with_ends(model: nn.Module) -> nn.Module:
    """Some of GPT-2's activations are zero, and some of Llama's at an end of a tanh."""
    for module in list(model.modules()):
        if hasattr(module, "c_fc"):
            module.act = nn.ReLU()
        elif hasattr(module, "gate_proj"):
            module.act_fn = nn.Tanh()
            scale_(module.gate_proj, 100)
    return model


def losses_and_first_look(
    plan: ParallelPlan, family: str, watched: bool = True
) -> tuple[list[float], Observation]:
    model = with_ends(tiny.fresh(family, torch.float64))
    model = parallelize(model, plan, mesh_of(plan), check=False)
    trainer, observer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR), Observer()
    with observer.activations_of(model) if watched else contextlib.nullcontext():
        first = trainer.step(*tiny.batch(0, length=16), observer=observer if watched else None)
    rest = [trainer.step(*tiny.batch(step)).loss for step in range(1, 4)]
    return [first.loss, *rest], observer.gather()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_sees_the_same(layout: str, family: str) -> None:
    plan = ParallelPlan(**LAYOUTS[layout], microbatches=2)
    [(_, expected)] = pool(1).run(losses_and_first_look, ParallelPlan(microbatches=2), family)
    for _, seen in pool(plan.world_size).run(losses_and_first_look, plan, family):
        assert seen.units.keys() == expected.units.keys() and seen.silent == expected.silent
        for name, one in expected.units.items():
            for quantity, value in vars(one).items():
                assert getattr(seen.units[name], quantity) == pytest.approx(value, rel=1e-7)
        assert seen.activations.keys() == expected.activations.keys() == {0, 1}
        for layer, one in expected.activations.items():
            again = seen.activations[layer]
            assert 0 < (one.zero if family == "gpt2" else one.ended) < one.count
            assert again.zero / again.count == pytest.approx(one.zero / one.count, abs=1e-12)
            assert again.ended / again.count == pytest.approx(one.ended / one.count, abs=1e-12)


def test_a_watched_run_is_the_same_to_the_last_bit() -> None:
    plan = ParallelPlan(dp_shard=2)
    watched, plain = (
        [losses for losses, _ in pool(2).run(losses_and_first_look, plan, "gpt2", watched)]
        for watched in (True, False)
    )
    assert watched == plain


def test_gradients_are_seen_without_the_loss_scale_of_fp16() -> None:
    whole, scaled = (
        pool(1).run(losses_and_first_look, ParallelPlan(precision=precision), "gpt2")[0][1]
        for precision in ("fp32", "fp16")
    )
    for name, one in whole.units.items():
        assert scaled.units[name].gradient == pytest.approx(one.gradient, rel=0.05)


def test_the_commonest_label() -> None:
    labels = torch.full((4, 5), -100)
    labels[:, 4] = torch.tensor([7, 7, 7, 3])
    assert commonest_share(labels) == commonest_share(torch.tensor([7, 7, 7, 3])) == 0.75
    assert commonest_share(torch.zeros(2, 3, dtype=torch.long)) is None


def test_a_run_looks_at_its_first_step_and_at_every_nth() -> None:
    looked, watch = [], Watch(every=4)
    for done in range(8):
        trainer = SimpleNamespace(steps_done=done, plan=ParallelPlan(), model=nn.Module())
        with looking(watch, trainer) as observer:
            looked += [done + 1] if observer else []
    assert looked == [1, 4, 8]


def test_a_run_looks_at_its_held_out_data_at_every_fifth_look() -> None:
    watch = Watch(every=4)
    assert [step for step in range(1, 45) if held_out_due(watch, step)] == [20, 40]
    assert not held_out_due(None, 20)


def test_a_first_loss_is_expected_of_random_weights_alone() -> None:
    def first_loss(
        random: bool = True, done: int = 0, adapting: object = None, classes: int | None = None
    ) -> float | None:
        job = SimpleNamespace(
            args=SimpleNamespace(watch=10), starts_random=random, adapting=adapting
        )
        model = SimpleNamespace(vocabulary=100, classes=classes)
        trainer = SimpleNamespace(steps_done=done, model=model)
        return make_watch(job, trainer).history.first_loss

    assert first_loss() == pytest.approx(math.log(100))
    assert first_loss(classes=2) == pytest.approx(math.log(2))
    assert first_loss(random=False) is first_loss(done=3) is first_loss(adapting="lora") is None


def test_a_run_leaves_what_its_watch_found(tmp_path) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"text": "a " * (2 if row % 8 else 100), "label": row % 2} for row in range(64)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = {"model": "gpt2-tiny", "layers": 2, "steps": 4, "batch_size": 64}
    summary, _ = scripts.trained(
        out=tmp_path / "run", data=data, task="classify", watch=2, lr=1e-9, **flags
    )
    report = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert {row["kind"] for row in report["findings"]} == {"update_too_small", "padding"}
    assert any(one.startswith("step 1: padding: ") for one in summary["warnings"])


def watch_over(losses: dict[int, float], held_out: dict[int, float]) -> Watch:
    """A watch after these steps, by their numbers, of which it looked at none."""
    watch = Watch(every=5)
    for step, loss in losses.items():
        watch.judge(StepResult(step, loss, 1.0, 1e-3, 1.0))
    watch.history.held_out += held_out.items()
    return watch


def test_a_resumed_run_is_judged_from_its_own_first_step() -> None:
    """Steps 1001 to 1100: the held-out loss was least at 1020, and the training loss falls on."""
    losses = {step: 3 - (step - 1000) / 100 for step in range(1001, 1101)}
    held_out = {1020: 2.0, 1050: 2.2, 1100: 2.5}
    said = overfitting(watch_over(losses, held_out).history)
    assert said == "the held-out loss is 2.5 and was 2 at step 1020: stop there"
    assert overfitting(watch_over(losses, {1020: 2.0, 1100: 2.5}).history) is None  # two are few
    flat = dict.fromkeys(losses, 3.0)
    assert overfitting(watch_over(flat, held_out).history) is None
    assert overfitting(watch_over({}, held_out).history) is None


def test_a_step_that_was_skipped_has_no_part_in_means() -> None:
    losses = dict.fromkeys(range(1, 61), 3.0) | {1: math.nan, 2: math.inf, 59: math.nan}
    history = watch_over(losses | {61: 3.0, 62: 3.0, 63: 3.0}, {1: 1.0, 2: 1.5, 60: 1.5}).history
    said = loss_not_falling(history)
    assert said == "the loss was 3 at first and is 3 after 60 steps"
    assert overfitting(history) is None
    assert poor_initialisation(watch_over({1: math.nan}, {}).history) is None


def test_a_gradient_that_only_begins_at_zero_is_left_in_peace() -> None:
    """LoRA's A has none in the first step, since B is 0 until then."""

    def look(step: int, *silent: str) -> Watched:
        return Watched(step, 3.0, 1.0, 1e-3, Observation(silent=list(silent)))

    first, healthy = look(1, "lora_A", "h.1.mlp"), look(5)
    assert no_gradient(History([first])) is None
    assert no_gradient(History([first, healthy])) is None
    assert no_gradient(History([healthy, look(10, "lora_A")])) is None
    said = no_gradient(History([first, look(5, "h.1.mlp")]))
    assert said.startswith("no gradient reaches h.1.mlp: ")


def test_a_step_without_a_label_is_said_and_has_no_part_in_means() -> None:
    watch = watch_over(dict.fromkeys(range(21, 81), 3.0), {})
    for step in range(1, 21):
        watch.judge(StepResult(step, 0.0, 0.0, 1e-3, 1.0))
    assert loss_not_falling(watch.history) == "the loss was 3 at first and is 3 after 60 steps"
    said = vanishing_gradient(History([Watched(1, 0.0, 0.0, 1e-3, Observation())]))
    assert "have a label?" in said


def test_a_layer_whose_gradient_vanishes_is_told_with_its_share() -> None:
    """Of the root of the mean square: a layer may have more numbers than another."""
    sums = {0: Sums(gradient=4.0, numbers=1.0), 1: Sums(gradient=4e-12, numbers=4.0)}
    said = vanishing_gradient(History([Watched(1, 3.0, 2.0, 1e-3, Observation(layers=sums))]))
    assert said == "layer 1's gradient is 5e-07 of the largest"


def test_the_documentation_has_the_table_of_the_rules() -> None:
    assert table() in (ROOT / "docs" / "profiling.md").read_text()


def look_at(step: int, norm: float, scale: float = 1.0) -> Watched:
    return Watched(step, 3.0, norm, 1e-3, Observation(), scale=scale)


def test_a_scale_of_fp16_that_falls_is_no_trouble() -> None:
    """It begins at 2^16 and is halved until gradients are finite; of 1 there is no half."""
    for norm in (math.inf, math.nan):
        assert not_finite(History([look_at(1, norm, scale=2.0**16)])) is None
        assert "is not finite" in not_finite(History([look_at(1, norm, scale=1.0)]))
    lost = Watched(1, math.nan, 1.0, 1e-3, Observation(), scale=2.0**16)
    assert "is not finite" in not_finite(History([lost]))


def test_a_gradient_explodes_beside_those_that_were_finite() -> None:
    norms = [math.inf, math.nan, math.inf, 1.0, 1.0, 1.0]
    looks = [look_at(step, norm) for step, norm in enumerate(norms, 1)]
    said = exploding_gradient(History([*looks, look_at(7, 500.0)]))
    assert said == "the gradient's norm is 500, and was 1 before"
    assert exploding_gradient(History([*looks, look_at(7, math.inf)])) is None
    assert exploding_gradient(History([*looks[:5], look_at(7, 500.0)])) is None


@pytest.mark.parametrize("rule", (padding, class_imbalance))
def test_a_share_of_a_batch_is_the_mean_over_the_looks(rule: Callable[[History], Any]) -> None:
    def of(*shares: float) -> str | None:
        return rule(History([replace(look_at(1, 1.0), padding=x, label=x) for x in shares]))

    limit = {padding: 0.5, class_imbalance: 0.9}[rule]
    assert of(limit + 0.09, limit - 0.2) is None
    assert "%" in of(limit + 0.09, limit - 0.05)


def of_layers(*layers: Sums, **activations: int) -> list[Watched]:
    """Two looks, of which one layer's activations may be told."""
    counted = {0: Activations(count=1000, **activations)}
    seen = Observation(layers=dict(enumerate(layers)), activations=counted)
    return [replace(look_at(step, 1.0), seen=seen) for step in (1, 2)]


def of_update(share: float) -> list[Watched]:
    return of_layers(Sums(weight=1.0, update=share**2, numbers=1.0))


def of_gradient(share: float) -> list[Watched]:
    both = (Sums(gradient=1.0, numbers=1.0), Sums(gradient=share**2, numbers=1.0))
    return of_layers(*both)


LINES = [  # rule, looks with an amount, the amount just before its line, and just beyond
    (exploding_gradient, lambda norm: [*[look_at(1, 1.0)] * 3, look_at(4, norm)], 99.0, 101.0),
    (vanishing_gradient, of_gradient, 1.1e-5, 0.9e-5),
    (dead_activation, lambda zero: of_layers(zero=zero), 990, 991),
    (saturated_activation, lambda ended: of_layers(ended=ended), 500, 501),
    (update_too_small, of_update, 1.1e-6, 0.9e-6),
    (update_too_large, of_update, 0.49, 0.51),
]


@pytest.mark.parametrize(("rule", "looks", "before", "beyond"), LINES)
def test_a_rule_draws_its_line_where_its_words_say(rule, looks, before, beyond) -> None:
    assert rule(History(looks(before))) is None
    assert rule(History(looks(beyond)))


def test_an_update_is_too_small_if_the_median_layer_says_so() -> None:
    def of(*shares: float) -> str | None:
        layers = {n: Sums(weight=4.0, update=4 * x * x) for n, x in enumerate(shares)}
        looks = [replace(look_at(n, 1.0), seen=Observation(layers=layers)) for n in (1, 2)]
        return update_too_small(History(looks))

    assert of(1e-8, 1e-3, 1e-3) is None
    assert "by 1e-08 of their size" in of(1e-8, 1e-8, 1e-3)


def test_a_norm_next_to_nothing_is_told() -> None:
    assert vanishing_gradient(History([look_at(1, 5e-8)])) == "the gradient's norm is 5.0e-08"
    assert vanishing_gradient(History([look_at(1, 2e-7)])) is None


def test_a_held_out_loss_that_is_no_number_hides_no_overfitting() -> None:
    losses = {step: 3 - step / 100 for step in range(1, 101)}
    held_out = {10: math.nan, 20: 2.0, 50: 2.2, 100: 2.5}
    said = overfitting(watch_over(losses, held_out).history)
    assert said == "the held-out loss is 2.5 and was 2 at step 20: stop there"


class Silent(Observer):
    """An observer that saw nothing."""

    def gather(self) -> Observation:
        return Observation()


@pytest.mark.parametrize(("again", "times_told"), ((17, 1), (18, 2)))
def test_a_rule_is_told_again_after_ten_looks_without_it(again: int, times_told: int) -> None:
    watch, told = Watch(every=1), []
    for step in range(1, 20):
        norm = 1e3 if step in (7, again) else 1.0
        told += watch.judge(StepResult(step, 3.0 / step, norm, 1e-3, 1.0), Silent())
    assert len(told) == times_told


def test_what_follows_from_a_rule_is_not_told_beside_it_or_soon_after() -> None:
    """A loss that is no number at look 6, with a gradient that has exploded until look 9."""
    watch = Watch(every=1)
    norms = [1.0] * 5 + [1e3] * 4 + [1.0] * 15 + [1e3]
    told = []
    for step, norm in enumerate(norms, 1):
        loss = math.nan if step == 6 else 3.0 / step
        told += watch.judge(StepResult(step, loss, norm, 1e-3, 1.0), Silent())
    assert [(one.kind, one.step) for one in told] == [
        ("not_finite", 6),
        ("exploding_gradient", len(norms)),
    ]
