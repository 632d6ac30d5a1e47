"""Adapters: how many, what trains, and that peft and transformers read what is written."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from helpers.engine.adapters.linear_layers import is_transposed, linear_paths
from helpers.engine.adapters.lora import (
    adapted,
    adapter_weights,
    add_adapters,
    halves,
    load_adapters,
    save_adapters,
    trainable_parameters,
)
from helpers.engine.adapters.merging import merged_weights, save_merged
from helpers.engine.adapters.nf4 import load_quantized
from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.errors import UserError
from helpers.engine.models.architecture import family_of
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from tests.support import parity, tiny
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

peft = pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

THEIRS = [name for name in tiny.FAMILIES if not name.startswith("falcon")]
IDS = tiny.batch(0)[0]


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def base(request, tmp_path_factory) -> Path:
    """A folder that transformers wrote, named by its family."""
    folder = tmp_path_factory.mktemp("base") / request.param
    tiny.fresh(request.param, torch.float32).save_pretrained(folder)
    return folder


@torch.no_grad()
def logits(model: nn.Module, training: bool = False) -> Tensor:
    return model.train(training)(input_ids=IDS, use_cache=False).logits


def trained(folder: Path, steps: int = 3, **options) -> nn.Module:
    """A model in 4 bits whose adapters have taken a few steps."""
    model = load_quantized(folder, dtype=torch.float32)
    train(add_adapters(model, rank=4, alpha=8, source=folder, **options), steps)
    return model


def train(model: nn.Module, steps: int) -> list[float]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model.train()(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("rank", "count"), [(8, 55_541_760), (64, 444_334_080)])
def test_falcon_40b_has_the_derived_number_of_trainable_parameters(rank: int, count: int) -> None:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(load_config("falcon-40b"))
    add_adapters(model, rank)
    assert trainable_parameters(model) == count
    assert all(parameter.is_meta for parameter in model.parameters())


def test_adapters_stand_beside_every_linear_layer_and_they_alone_train(base: Path) -> None:
    model = load_quantized(base)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plain = logits(model)
    paths = linear_paths(model)
    add_adapters(model, rank=4, alpha=8)
    assert sorted(path for path, _ in adapted(model)) == sorted(paths)
    assert torch.equal(logits(model), plain)  # B is zero
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(names) == 2 * len(paths) and all(".lora_" in name for name in names)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    losses = train(model, 8)
    assert losses[-1] < losses[0] - 0.3
    after = dict(model.named_parameters())
    for name, value in before.items():
        path, _, leaf = name.rpartition(".")
        held = after[f"{path}.base_layer.{leaf}" if path in paths else name]
        assert torch.equal(held, value)
    assert all(layer.lora_B["default"].weight.any() for _, layer in adapted(model))


def test_an_adapter_depends_on_its_layer_and_the_seed_alone(base: Path) -> None:
    whole = adapter_weights(add_adapters(load_quantized(base), rank=4, seed=1))
    part = load_quantized(base)
    family = family_of(part)
    del part.get_submodule(family.blocks)._modules["0"]  # as in a stage of a pipeline
    torch.manual_seed(5)
    found = adapter_weights(add_adapters(part, rank=4, seed=1))
    assert 0 < len(found) < len(whole)
    assert all(torch.equal(value, whole[name]) for name, value in found.items())
    other = adapter_weights(add_adapters(load_quantized(base), rank=4, seed=2))
    assert not any(torch.equal(other[n], value) for n, value in whole.items() if "lora_A" in n)


def test_saved_adapters_give_the_same_logits_again(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    save_adapters(model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    again = load_adapters(load_quantized(base, dtype=torch.float32), tmp_path)
    assert torch.equal(logits(again), logits(model))
    train(model, 2)
    train(again, 2)  # and they go on training alike
    assert torch.equal(logits(again), logits(model))


def test_peft_loads_them_beside_the_same_model(base: Path, tmp_path: Path) -> None:
    """In full precision, so that for Falcon too what transformers loads is the base."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    train(add_adapters(model, rank=4, alpha=8), 3)
    save_adapters(model, tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    before = logits(plain)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path)
    parity.close("logits", logits(theirs), logits(model), 1e-6)
    assert (logits(theirs) - before).abs().max() > 0.1


@pytest.mark.parametrize("base", THEIRS, indirect=True)
def test_peft_loads_them_beside_transformers_own_four_bits(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    save_adapters(model, tmp_path)
    four_bits = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, quantization_config=four_bits
    )
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path)
    # nothing is dropped out; in inference bitsandbytes rounds otherwise on some processors
    assert torch.equal(logits(theirs, training=True), logits(model, training=True))


def test_what_peft_writes_is_read(base: Path, tmp_path: Path) -> None:
    leaves = sorted({path.rpartition(".")[2] for path in linear_paths(load_quantized(base))})
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=leaves, task_type="CAUSAL_LM", init_lora_weights=False
    )
    theirs = peft.get_peft_model(plain, config)
    theirs.save_pretrained(tmp_path)
    ours = load_adapters(transformers.AutoModelForCausalLM.from_pretrained(base), tmp_path)
    parity.close("logits", logits(ours), logits(theirs), 1e-6)


@pytest.mark.parametrize("quantized", (True, False))
def test_merged_weights_are_a_plain_model(base: Path, tmp_path: Path, quantized: bool) -> None:
    if quantized:
        model = trained(base)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        train(add_adapters(model, rank=4, alpha=8), 3)
    save_merged(model, tmp_path)
    plain, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert type(plain) is type(model) and plain.dtype == torch.float32
    parity.close("logits", logits(plain), logits(model), 1e-5)


def merge(folder: Path, out: Path, dtype: torch.dtype | None) -> None:
    plan = ParallelPlan()
    save_merged(load_adapted(folder, plan, mesh_of(plan), Adapting(rank=4)), out, dtype)


@pytest.mark.parametrize("base", ["llama"], indirect=True)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_merged_folder_says_all_that_its_base_does(base: Path, tmp_path: Path, dtype) -> None:
    """Where a chat model's answer ends is said in this file alone."""
    says = {"eos_token_id": [3, 4], "do_sample": False, "temperature": 0.6}
    (base / "generation_config.json").write_text(json.dumps(says))
    pool(1).run(merge, base, tmp_path / "out", dtype)
    kept = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert kept.items() >= says.items()
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert plain.dtype == (dtype or torch.float32)
    assert plain.config.architectures == [type(plain).__name__]
    written = load_file(tmp_path / "out/model.safetensors").values()
    assert {value.dtype for value in written} == {plain.dtype}


def with_product(base: Tensor, layer: nn.Module) -> Tensor:
    """A layer's matrix in bf16 with its adapter's product, by the formula."""
    first, second = halves(layer)
    product = second @ first * layer.scaling["default"]
    turned = is_transposed(layer.get_base_layer())
    return (base.float() + (product.t() if turned else product)).bfloat16()


def test_merged_weights_are_rounded_once(base: Path) -> None:
    model = add_adapters(load_quantized(base), rank=4, alpha=8)
    bare = {name: value.clone() for name, value in merged_weights(model)}
    assert {value.dtype for value in bare.values()} == {torch.bfloat16}
    train(model, 3)
    layers, changed = dict(adapted(model)), set()
    for name, value in merged_weights(model):
        if (path := name.removesuffix(".weight")) in layers:
            assert torch.equal(value, with_product(bare[name], layers[path]))
        if not torch.equal(value, bare[name]):
            changed.add(path)
    assert changed == layers.keys()


@pytest.mark.parametrize("base", ["neox"], indirect=True)
def test_mistakes_are_said_in_one_line(base: Path, tmp_path: Path) -> None:
    model = trained(base, steps=0)
    save_adapters(model, tmp_path / "good")
    cases = {
        "it has no adapter_config.json": (tmp_path, base),
        "for which this model has no place": (tmp_path / "good", small(tmp_path, "neox", layers=1)),
        "do not fit this model: Target modules": (tmp_path / "good", small(tmp_path, "gpt2")),
    }
    for words, (folder, source) in cases.items():
        assert words in said(load_adapters, load_quantized(source), folder)
    file = tmp_path / "good" / "adapter_model.safetensors"
    whole = load_file(file)
    name = next(iter(whole))
    for bad, words in (
        (torch.full_like(whole[name], torch.nan), "has values that are not finite"),
        (whole[name].to(torch.int8), "is of int8: weights are read as"),
    ):
        save_file(whole | {name: bad}, file)
        with pytest.raises(UserError, match=words):
            load_adapters(load_quantized(base), tmp_path / "good")
    file.write_bytes(b"{}")
    with pytest.raises(UserError, match="is broken"):
        load_adapters(load_quantized(base), tmp_path / "good")
    with pytest.raises(UserError, match="has adapters already"):
        add_adapters(model)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"rank": value} for value in (0, "8", 1.5, True, None)),
        *({"dropout": value} for value in (1.0, -0.1, "x", True)),
        *({"alpha": value} for value in ("x", float("nan"))),
        {"seed": 1.0},
    ],
    ids=str,
)
def test_numbers_that_no_adapter_has_are_refused(wrong: dict) -> None:
    (name,) = wrong
    assert f"{name} must be a" in said(add_adapters, torch.nn.Linear(2, 2), **wrong)


NOT_BESIDE_BLOCKS = {
    "an adapter of lm_head": {"target_modules": ["q_proj", "lm_head"]},
    "an adapter of model.embed_tokens": {"target_modules": ["q_proj", "embed_tokens"]},
}


@pytest.mark.parametrize("words", NOT_BESIDE_BLOCKS)
def test_adapters_beside_what_is_in_no_block_are_refused(words: str, tmp_path: Path) -> None:
    import peft

    options = {"target_modules": ["q_proj"], "r": 4} | NOT_BESIDE_BLOCKS[words]
    theirs = peft.get_peft_model(
        tiny.fresh("llama", torch.float32), peft.LoraConfig(task_type="CAUSAL_LM", **options)
    )
    theirs.save_pretrained(tmp_path, save_embedding_layers=False)
    with pytest.raises(UserError, match=words):
        load_adapters(tiny.fresh("llama", torch.float32), tmp_path)


def small(folder: Path, family: str, layers: int = 2) -> Path:
    tiny.fresh(family, torch.float32, layers=layers).save_pretrained(folder / family)
    return folder / family


@pytest.mark.parametrize("base", ["llama"], indirect=True)
def test_the_files_name_the_base_and_the_layers(base: Path, tmp_path: Path) -> None:
    save_adapters(trained(base, steps=0), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    assert sorted(config["target_modules"]) == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
