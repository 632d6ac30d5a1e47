"""Products in 8 bits: as exact as their format, alike in every layout, and trained with."""

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.engine.adapters.qlora import Adapting
from helpers.engine.errors import UserError
from helpers.engine.models.architecture import family_of
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision import float8
from helpers.engine.precision.float8 import (
    BACKWARD,
    FORWARD,
    Products,
    Rounded,
    by_one_scale,
    product,
    round_rows,
    round_whole,
)
from helpers.engine.tensor.shards import local
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.dry_run import dry_run
from tests.support import parity, tiny
from tests.support.count_blocks import kept_bytes
from tests.support.matrix import each
from tests.support.ranks import mesh_of, pool

# the largest relative error of a rounding, and the largest of what is too small for it, as a share
# of the format's numbers: half the distance of the smallest two
EPS = {FORWARD: 2**-4, BACKWARD: 2**-3}
TINY = {FORWARD: 2**-10, BACKWARD: 2**-17}


def error_of(x: Tensor, rounded: Rounded) -> Tensor:
    """How far each number may be from its rounding."""
    dtype = rounded.values.dtype
    return torch.maximum(x.abs() * EPS[dtype], TINY[dtype] * rounded.inverse.double())


@st.composite
def matrices(draw) -> tuple[Tensor, Tensor]:
    """x [m, k] and w [n, k] in float64 of very different sizes."""
    m, k, n = (draw(st.integers(1, 24)) for _ in range(3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.integers(0, 12))

    def made(rows: int) -> Tensor:
        x = torch.randn(rows, k, generator=generator, dtype=torch.float64)
        return x * 2.0 ** torch.randint(-spread, spread + 1, x.shape, generator=generator)

    return made(m) * draw(st.sampled_from([1e-6, 1.0, 3e4])), made(n)


@settings(deadline=None, max_examples=60)
@given(matrices(), st.sampled_from([FORWARD, BACKWARD]))
def test_a_product_is_within_the_rounding_of_its_format(pair, dtype) -> None:
    x, w = pair
    a, b = round_rows(x, dtype, None), round_whole(w, FORWARD, None)
    found = product(a, b.turned(), torch.float64)
    of_x, of_w = error_of(x, a), error_of(w, b)
    allowed = of_x @ w.abs().t() + x.abs() @ of_w.t() + of_x @ of_w.t()
    assert ((found - x @ w.t()).abs() <= allowed * (1 + 1e-12)).all()
    turned = product(by_one_scale(a).turned(), by_one_scale(a), torch.float64)
    again = error_of(x, by_one_scale(a)) + of_x
    allowed = again.t() @ x.abs() + x.abs().t() @ again + again.t() @ again
    assert ((turned - x.t() @ x).abs() <= allowed * (1 + 1e-12)).all()


@settings(deadline=None, max_examples=30)
@given(matrices(), st.integers(-20, 20))
def test_a_token_is_rounded_alike_whatever_is_beside_it(pair, power: int) -> None:
    """And a scale, which is a power of two, moves the exponent alone."""
    x, _ = pair
    alone = round_rows(x[:1], FORWARD, None)
    beside = round_rows(torch.cat([x[:1], 1e6 * x, x.flip(0)]), FORWARD, None)
    assert torch.equal(alone.values.float(), beside.values[:1].float())
    moved = round_rows(x * 2.0**power, FORWARD, None)
    assert torch.equal(moved.values.float(), round_rows(x, FORWARD, None).values.float())
    assert torch.equal(moved.inverse.log2(), moved.inverse.log2().round())


def test_widened_products_are_those_of_torchs_own_kernel() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(rows, 32, generator=generator) for rows in (16, 48))
    for dtype in (FORWARD, BACKWARD):
        a, b = round_rows(x, dtype, None), round_whole(w, FORWARD, None)
        own = torch._scaled_mm(
            a.values, b.values.t(), scale_a=a.inverse, scale_b=b.inverse.repeat(1, 48),
            out_dtype=torch.float32,
        )  # fmt: skip
        torch.testing.assert_close(product(a, b.turned(), torch.float32), own, rtol=1e-6, atol=1e-6)


def test_what_is_not_finite_stays_so() -> None:
    for bad in (float("inf"), float("nan")):
        x = torch.tensor([[1.0, bad], [1.0, 2.0]])
        assert not round_rows(x, FORWARD, None).values.float()[0].isfinite().all()
        assert round_rows(x, FORWARD, None).values.float()[1].isfinite().all()
    zero = round_whole(torch.zeros(2, 3), FORWARD, None)
    assert (
        not zero.values.float().any() and zero.inverse.isfinite() and (1 / zero.inverse).isfinite()
    )
    assert round_rows(torch.full((1, 2), 1e-38), FORWARD, None).values.float().isfinite().all()


def test_a_token_of_zeros_decides_no_scale() -> None:
    """As the gradient of a row's last token, which predicts nothing, beside gradients of 1e-6."""
    x = 1e-6 * torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([x, torch.zeros(1, 16)])
    alone, beside = (by_one_scale(round_rows(one, BACKWARD, None)) for one in (x, rows))
    assert torch.equal(alone.inverse, beside.inverse)
    assert torch.equal(alone.values.float(), beside.values[:8].float())
    none = by_one_scale(round_rows(torch.zeros(2, 16), BACKWARD, None))
    assert not product(none, none.turned(), torch.float32).any()


# Against torchao


def test_it_computes_what_torchao_does() -> None:
    """The same products by scales of whole tensors, and the same gradients."""
    ao = pytest.importorskip("torchao.float8")
    recipe = ao.Float8LinearConfig.from_recipe_name("tensorwise")
    recipe = replace(recipe, round_scales_to_power_of_2=True, emulate=True)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(64, 48))
    theirs = ao.convert_to_float8_training(copy.deepcopy(plain), config=recipe)
    x = torch.randn(32, 64)
    gradient = torch.randn(32, 48)
    ours = copy.deepcopy(plain)[0]
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    y = Products()(ours, inputs[0], ours.weight, ours.bias, False)
    y.backward(gradient)
    other = theirs(inputs[1])
    other.backward(gradient)
    for mine, its in (
        (y, other),
        (inputs[0].grad, inputs[1].grad),
        (ours.weight.grad, theirs[0].weight.grad),
        (ours.bias.grad, theirs[0].bias.grad),
    ):
        # numbers 2^14 times smaller than the largest are rounded by another scale
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


# Layouts

LAYOUTS = {
    "micro-batches": {"microbatches": 4},
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sequence_parallel": True},
    "tp4": {"tp": 4},
    "ddp2": {"dp_replicate": 2},
    "zero1": {"dp_shard": 2, "zero_stage": 1},
    "zero3": {"dp_shard": 2},
    "tp2-zero3": {"tp": 2, "dp_shard": 2},
    "cp2": {"cp": 2},
    "cp2-tp2-sp": {"cp": 2, "tp": 2, "sequence_parallel": True},
    "pp2": {"pp": 2},
    "zero-bubble": {"pp": 2, "schedule": "zero-bubble"},
    "full": {"activation": "full", "tp": 2},
    "selective": {"activation": "selective"},
}


def train(family: str, plan: ParallelPlan, dtype: torch.dtype, steps: int = 3):
    """Losses and norms of some steps, and the first gradients, whole."""
    mesh = mesh_of(plan)
    model = parallelize(tiny.fresh(family, dtype), plan, mesh, check=False)
    trainer = Trainer(model, plan, mesh, lr=tiny.LR, clip=tiny.CLIP, eps=tiny.EPS[dtype])
    ids, labels, inputs = tiny.masked_batch(family, 0)
    trainer.backward(ids, labels, **inputs)
    gradients, found = trainer.gradients(), []
    whole = {part.name: parity.whole(part.whole(gradients[part.name])) for part in trainer.parts}
    for step in range(steps):
        ids, labels, inputs = tiny.masked_batch(family, step)
        result = trainer.step(ids, labels, **inputs)
        found += [result.loss, result.grad_norm]
    return found, whole


@pytest.mark.parametrize(("family", "layout"), each(("neox", "llama"), LAYOUTS))
def test_every_layout_rounds_as_one_process(family: str, layout: str) -> None:
    """In float64, where no order of sums comes near the middle between two numbers of 8 bits."""
    plan = ParallelPlan(**LAYOUTS[layout], precision="fp8")
    one = ParallelPlan(precision="fp8")
    expected, gradients = pool(1).run(train, family, one, torch.float64)[0]
    for found, whole in pool(plan.world_size).run(train, family, plan, torch.float64):
        assert found == pytest.approx(expected, rel=1e-7)
        for name, value in whole.items():
            parity.close(name, value.reshape(gradients[name].shape), gradients[name], 1e-6)


@pytest.mark.parametrize("family", ("gpt2", "falcon-mqa", "phi3-grouped", "gemma3", "bert-classes"))
def test_so_does_every_kind_of_layer(family: str) -> None:
    """Thirds, transposed weights, key-value heads that ranks share, gathered rows."""
    expected, _ = pool(1).run(train, family, ParallelPlan(precision="fp8"), torch.float64)[0]
    for degrees in ({"tp": 4}, {"pp": 2, "tp": 2, "schedule": "zero-bubble"}):
        plan = ParallelPlan(**degrees, precision="fp8")
        for found, _ in pool(4).run(train, family, plan, torch.float64):
            assert found == pytest.approx(expected, rel=1e-7), degrees


@pytest.mark.parametrize("layout", ("tp2", "tp2-sp", "zero3", "pp2"))
def test_in_float32_losses_agree(layout: str) -> None:
    """Of the first step. A sum in another order may fall on the other side of a middle; then all
    that comes after it is rounded otherwise, too."""
    plan = ParallelPlan(**LAYOUTS[layout], precision="fp8")
    expected, _ = pool(1).run(train, "neox", ParallelPlan(precision="fp8"), torch.float32, 1)[0]
    for found, _ in pool(2).run(train, "neox", plan, torch.float32, 1):
        assert found[0] == pytest.approx(expected[0], rel=1e-5)


def spoiled(what: str) -> list[float]:
    """Losses where ranks of tp round apart."""
    once, scale = float8.once, float8._scale
    if what == "shared":  # each rank rounds its own part of what they share
        float8.once = lambda x, part: x
    else:  # each has its own scale, no power of two
        float8._scale = _any_scale
    try:
        return train("llama", ParallelPlan(tp=4, precision="fp8"), torch.float64)[0]
    finally:
        float8.once, float8._scale = once, scale


def _any_scale(largest: Tensor, dtype: torch.dtype, group) -> Tensor:
    return torch.where(largest == 0, 1.0, torch.finfo(dtype).max / largest).float()


@pytest.mark.parametrize("what", ("shared", "scales"))
def test_ranks_that_round_apart_are_seen(what: str) -> None:
    """Planted faults: the rounded parts of a sum are not the rounded sum."""
    expected, _ = pool(1).run(train, "llama", ParallelPlan(precision="fp8"), torch.float64)[0]
    for found in pool(4).run(spoiled, what):
        assert found != pytest.approx(expected, rel=1e-4)


# What is in 8 bits, and what is not


def layers_in_8_bits(family: str) -> tuple[set[str], set[str], set[torch.dtype]]:
    plan = ParallelPlan(precision="fp8")
    model = parallelize(tiny.fresh(family, torch.float32), plan, mesh_of(plan))
    found = {name for name, module in model.named_modules() if hasattr(module, "float8")}
    blocks = f"{family_of(model).blocks}."
    linears = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    }
    inside = {name for name in linears if name.startswith(blocks)}
    return found, inside, {p.dtype for p in model.parameters()}


@pytest.mark.parametrize("family", ("neox", "gpt2", "bert-mlm", "phi3"))
def test_the_blocks_matrices_alone_are_multiplied_so(family: str) -> None:
    found, inside, dtypes = pool(1).run(layers_in_8_bits, family)[0]
    assert found == inside and found
    assert dtypes == {torch.float32}, "the weights stay masters"


def kept(precision: str) -> tuple[int, set[torch.dtype]]:
    """Bytes that a forward keeps for the backward pass, and of which dtypes."""
    plan = ParallelPlan(precision=precision)
    model = parallelize(tiny.fresh("neox", torch.float32), plan, mesh_of(plan), check=False)
    model.train()
    ids, labels = tiny.batch(0, length=64)
    with kept_bytes(model) as found:
        model(input_ids=ids, labels=labels)
    return sum(found.values()), set(found)


def test_inputs_are_kept_in_8_bits() -> None:
    (full, before), (less, after) = (pool(1).run(kept, one)[0] for one in ("fp32", "fp8"))
    assert less < 0.8 * full
    assert FORWARD in after - before


def small_updates() -> None:
    """Of a weight that 8 bits would swallow; and a step that is not finite changes nothing."""
    plan = ParallelPlan(precision="fp8")
    model = parallelize(tiny.fresh("gpt2", torch.float32), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=1e-5, weight_decay=0.0)
    weight = model.transformer.h[0].mlp.c_fc.weight
    before = weight.detach().clone()
    for step in range(3):
        trainer.step(*tiny.batch(step))
    moved = (local(weight) - before).abs()
    assert 0 < moved.max() < 1e-3 and (moved > 0).float().mean() > 0.9
    with torch.no_grad():
        weight[0, 0] = float("inf")
    assert trainer.step(*tiny.batch(3)).skipped


def test_weights_take_steps_that_8_bits_would_swallow() -> None:
    pool(1).run(small_updates)


def test_one_tensor_is_rounded_once_for_all_its_products(monkeypatch) -> None:
    calls, rounded = [], float8.round_rows
    monkeypatch.setattr(float8, "round_rows", lambda *args: (calls.append(1), rounded(*args))[1])
    products, layer = Products(), nn.Linear(8, 8)
    x = torch.randn(3, 8)
    for _ in range(3):
        products(layer, x, layer.weight, None, False)
    assert len(calls) == 1
    x.mul_(2)
    products(layer, x, layer.weight, None, False)
    assert len(calls) == 2, "a tensor that has changed is another"


# On a GPU all else is in bf16


def beside_bf16(plan: ParallelPlan) -> None:
    """As on a GPU: masters in float32, copies in bf16, products of these in 8 bits."""
    own = ParallelPlan.low_dtype
    ParallelPlan.low_dtype = lambda plan, device_type: own(plan, "cuda")
    try:
        mesh, losses = mesh_of(plan), []
        for one in (plan, replace(plan, precision="bf16")):
            model = parallelize(tiny.fresh("neox", torch.float32), one, mesh)
            trainer = Trainer(model, one, mesh, lr=tiny.LR)
            losses.append([trainer.step(*tiny.batch(step)).loss for step in range(3)])
            held = {p.dtype for p in model.parameters()}
            assert held == ({torch.float32} if plan.zero == 3 else {torch.bfloat16})
            assert all(part.tensor.dtype == torch.float32 for part in trainer.parts)
    finally:
        ParallelPlan.low_dtype = own
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("layout", ("micro-batches", "tp2", "zero1", "zero3", "zero-bubble"))
def test_beside_bf16_as_on_a_gpu(layout: str) -> None:
    plan = ParallelPlan(**LAYOUTS[layout], precision="fp8")
    pool(plan.world_size).run(beside_bf16, plan)


@pytest.mark.parametrize("degrees", ({}, {"tp": 2}, {"dp_shard": 2}, {"pp": 2}), ids=str)
def test_a_dry_run_takes_it_as_on_a_gpu(degrees: dict) -> None:
    """Where it keeps less than bf16 does, and multiplies as much."""
    low, eight = (
        dry_run(
            tiny.config("neox"),
            ParallelPlan(**degrees, precision=precision),
            batch=16,
            seq_len=64,
            device="meta",
        )
        for precision in ("bf16", "fp8")
    )
    assert low.states == eight.states and low.flops == eight.flops
    assert eight.largest["activations"] < low.largest["activations"]


# Refusals


def unsplit() -> str:
    config = transformers.AutoConfig.for_model("mamba", hidden_size=32, num_hidden_layers=2)
    model = transformers.AutoModelForCausalLM.from_config(config)
    plan = ParallelPlan(precision="fp8")
    with pytest.raises(UserError) as raised:
        parallelize(model, plan, mesh_of(plan), check=False)
    return str(raised.value)


def test_what_has_no_such_products_is_refused() -> None:
    assert "precision=fp8 needs blocks of attention and MLP" in pool(1).run(unsplit)[0]
    with pytest.raises(UserError, match="precision=fp8 trains whole matrices"):
        Adapting().check(ParallelPlan(precision="fp8"))
    with pytest.raises(UserError, match="reduce_dtype must be one of fp32, bf16, fp16"):
        ParallelPlan(reduce_dtype="fp8")


def test_a_gpu_without_such_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    for capability in ((8, 0), (9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda one=capability: one)
        float8.check_float8("cpu")
        with pytest.raises(UserError) if capability < (8, 9) else nullcontext() as raised:
            float8.check_float8("cuda")
    assert raised is None


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("fields", ({}, {"tp": 2}))
def test_compiled_blocks_round_alike(fields: dict) -> None:
    expected, _ = pool(1).run(train, "neox", ParallelPlan(precision="fp8"), torch.float32, 1)[0]
    plan = ParallelPlan(precision="fp8", compile=True, **fields)
    for found, _ in pool(plan.world_size).run(train, "neox", plan, torch.float32, 1):
        assert found[0] == pytest.approx(expected[0], rel=1e-5)
