"""What no file holds, and what no rule draws: buffers and weights that a class makes itself."""

import itertools
from pathlib import Path

import pytest
import torch
import transformers

from helpers.engine.errors import UserError
from helpers.engine.files.blank import keep_in_float32, parameters_without_memory
from helpers.engine.files.weights import whole_weights
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from tests.engine.adapters.versions import skip_unknown
from tests.support.matrix import part
from tests.support.ranks import mesh_of, pool
from tests.support.scripts import script

small_model = script("docs/small_models").small_model
small_config = script("docs/small_models").small_config
# masks, scales, positions that a class makes; some of them once were whatever the memory held
BUFFERS = ("gpt_bigcode", "ctrl", "falcon_h1", "recurrent_gemma", "mixtral", "gptj")


def buffers(folder: Path, plan: ParallelPlan, from_scratch: bool) -> dict[str, torch.Tensor]:
    model = load_model(folder, plan, mesh_of(plan), from_scratch=from_scratch)
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@pytest.mark.parametrize(
    ("model_type", "from_scratch"),
    part(
        [*zip(BUFFERS, itertools.cycle((False, True))), ("apertus", False)],
        zip(BUFFERS, itertools.cycle((True, False))),
    ),
)
def test_buffers_are_those_of_the_class(
    model_type: str, from_scratch: bool, tmp_path: Path
) -> None:
    small_model(model_type).float().save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = dict(theirs.named_buffers())
    for plan in (ParallelPlan(), ParallelPlan(dp_shard=2)):
        for found in pool(plan.world_size).run(buffers, tmp_path, plan, from_scratch):
            assert found.keys() == expected.keys() != set()
            assert all(torch.equal(found[name], value) for name, value in expected.items())


class Drawn(torch.nn.Module):
    """A class that draws a buffer where it is made, and has a parameter that does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("noise", torch.randn(5))


def test_random_buffers_are_the_same_on_every_rank() -> None:
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        with parameters_without_memory():
            made.append(Drawn())
        assert torch.equal(torch.get_rng_state(), state)  # what the rank draws is not shifted
    one, other = made
    assert torch.equal(one.noise, other.noise)
    assert one.fixed.is_meta and not one.fixed.requires_grad


def drawn_or_refused(folder: Path) -> str | dict[str, torch.Tensor]:
    plan = ParallelPlan()
    try:
        return dict(whole_weights(load_model(folder, plan, mesh_of(plan), from_scratch=True)))
    except UserError as error:
        return str(error)


@pytest.mark.parametrize(
    ("model_type", "name"),
    (
        ("openai-gpt", "transformer.h.0.attn.c_attn.weight"),
        ("data2vec-text", "lm_head.bias"),
        ("apertus", "model.layers.0.mlp.act_fn.alpha_p"),
    ),
)
def test_a_weight_that_no_rule_draws_is_named(model_type: str, name: str, tmp_path: Path) -> None:
    small_config(model_type).save_pretrained(tmp_path)
    words = pool(1).run(drawn_or_refused, tmp_path)[0]
    assert words == (
        f"{model_type} cannot begin with random weights: transformers' rules for them leave out "
        f"{name}; give it weights from files"
    )


@pytest.mark.parametrize("model_type", ("hrm_text", "got_ocr2"))
def test_a_weight_that_stands_beside_the_blocks_is_drawn(model_type: str, tmp_path: Path) -> None:
    config = small_config(model_type)
    config.save_pretrained(tmp_path)
    theirs = dict(transformers.AutoModelForCausalLM.from_config(config).named_parameters())
    ours = pool(1).run(drawn_or_refused, tmp_path)[0]
    for name, value in theirs.items():
        spread = value.std().item() if value.numel() > 1 else 0.0
        assert torch.isfinite(ours[name]).all(), name
        if spread == 0:
            assert torch.equal(ours[name].reshape(value.shape), value), name
        elif value.numel() > 500:
            assert ours[name].std().item() == pytest.approx(spread, rel=0.3), name


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [("deepseek_v3", torch.bfloat16), ("flint", torch.bfloat16), ("rwkv", torch.float16)],
)
def test_what_transformers_keeps_in_float32_is_kept(
    model_type: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Biases of routing, sinks: parameters or buffers."""
    skip_unknown(model_type)
    small_model(model_type).to(dtype).save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    expected = dict(theirs.named_parameters()) | dict(theirs.named_buffers())
    assert {torch.float32, dtype} <= {value.dtype for value in expected.values()}
    for found in pool(1).run(loaded, tmp_path, dtype):
        assert {name: value.dtype for name, value in found.items()} == {
            name: value.dtype for name, value in expected.items()
        }
        assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, {"strictly"}), (torch.float16, {"strictly", "gate"}), (torch.float64, set())],
)
def test_some_are_kept_in_float32_beside_float16_alone(
    dtype: torch.dtype, expected: set[str]
) -> None:
    """Which has less of a range than bfloat16."""
    parts = {name: torch.nn.Linear(1, 1, dtype=dtype) for name in ("gate", "strictly", "other")}
    model = torch.nn.ModuleDict(parts)
    model._keep_in_fp32_modules, model._keep_in_fp32_modules_strict = ["gate"], ["str*ly"]
    keep_in_float32(model, dtype)
    kept = {name for name, part in parts.items() if part.weight.dtype == torch.float32}
    assert kept == expected


def loaded(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    model = load_model(folder, ParallelPlan(), mesh_of(ParallelPlan()), dtype=dtype)
    values = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach().clone() for name, value in values}
