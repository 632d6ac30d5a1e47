"""Files as the hub has them: other names than the class's, a tensor for each expert, pieces."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from helpers.engine.adapters.nf4 import load_quantized
from helpers.engine.files.weight_files import WeightFiles
from helpers.engine.files.weights import save_model, whole_weights
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from tests.support.matrix import part
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said
from tests.support.scripts import script

# two for each way in which transformers renames, stacks, joins, splits or turns
TYPES = (
    "mixtral",
    "qwen3_moe",
    "deepseek_v3",
    "granitemoe",
    "jamba",
    "gpt_neox",
    "nemotron_h",
)
LARGER = ("axk2", "hrm_text", "olmo_hybrid")
PLANS = ({}, {"dp_shard": 2}, {"dp_shard": 3}, {"pp": 2})
NO_STAGES = ("hrm_text",)  # are refused over pp


def saved(model_type: str, folder: Path) -> Path:
    """A small model of the type as transformers itself writes it."""
    model = script("docs/small_models").small_model(model_type).float()
    model.config.dtype = model.dtype
    model.save_pretrained(folder)
    return folder


def in_and_out(folder: Path, plan: ParallelPlan, out: Path) -> dict[str, torch.Tensor]:
    model = load_model(folder, plan, mesh_of(plan), dtype=torch.float32)
    save_model(model, out)
    return {name: value.clone() for name, value in whole_weights(model)}


@pytest.mark.parametrize("model_type", part(TYPES, LARGER))
def test_what_transformers_saves_is_loaded_and_written_again(
    model_type: str, tmp_path: Path
) -> None:
    folder = saved(model_type, tmp_path / "theirs")
    theirs = load_file(folder / "model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = dict(model.named_parameters())
    assert not theirs.keys() <= expected.keys()  # else this type shows nothing
    for plan in (ParallelPlan(**degrees) for degrees in PLANS):
        if plan.pp > 1 and model_type in NO_STAGES:
            continue
        out = tmp_path / plan.describe().replace(" ", "")
        for weights in pool(plan.world_size).run(in_and_out, folder, plan, out):
            assert weights.keys() == expected.keys()
            assert all(torch.equal(weights[name], value) for name, value in expected.items())
        named = json.loads((out / "config.json").read_text())["architectures"]
        assert named == [type(model).__name__]  # not the class that ZeRO-3 makes of it
        ours = load_file(out / "model.safetensors")
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_experts_keep_their_order_from_the_tenth_on(tmp_path: Path) -> None:
    """By their letters the tenth would come before the second."""
    config = script("docs/small_models").small_config("mixtral")
    config.num_local_experts = 12
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    for degrees in ({}, {"dp_shard": 2}):
        plan = ParallelPlan(**degrees)
        ranks = pool(plan.world_size)
        for weights in ranks.run(in_and_out, tmp_path / "model", plan, tmp_path / "out"):
            for name, value in model.named_parameters():
                assert torch.equal(weights[name], value), name


def opened(folder: Path) -> tuple[int, int]:
    """Runs on a rank: how many tensors of experts the files have, and how many are read."""
    plan, read = ParallelPlan(dp_shard=2), []
    plain = WeightFiles.open

    class Told:
        def __init__(self, name: str, tensor) -> None:
            self.name, self.tensor = name, tensor

        def get_shape(self) -> list[int]:
            return self.tensor.get_shape()

        def __getitem__(self, window) -> torch.Tensor:
            read.append(self.name)
            return self.tensor[window]

    WeightFiles.open = lambda files, stored: Told(stored, plain(files, stored))
    try:
        load_model(folder, plan, mesh_of(plan), dtype=torch.float32)
    finally:
        WeightFiles.open = plain
    stored = load_file(folder / "model.safetensors")
    experts = [name for name in stored if ".experts." in name]
    return len(experts), len([name for name in read if name in experts])


def test_a_rank_reads_its_own_experts_alone(tmp_path: Path) -> None:
    folder = saved("mixtral", tmp_path)
    for every, own in pool(2).run(opened, folder):
        assert own == every // 2


def refusal(folder: Path) -> str:
    plan = ParallelPlan()
    return said(load_model, folder, plan, mesh_of(plan), dtype=torch.float32)


def change(folder: Path, name: str, value: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name: value}
    tensors = {name: value for name, value in tensors.items() if value is not None}
    save_file(tensors, path, metadata={"format": "pt"})


EXPERT = "model.layers.1.block_sparse_moe.experts.1.w1.weight"
FAULTS = {
    "missing": (None, "cannot be made of"),
    "another shape": (lambda old: old[:-1], "cannot be made of"),
    "not finite": (lambda old: old * torch.inf, "has values that are not finite"),
    "8 bits": (lambda old: old.to(torch.float8_e4m3fn), "is of float8_e4m3fn"),
    "whole numbers": (lambda old: old.to(torch.int8), "is of int8"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_expert_that_is_wrong_is_named(fault: str, tmp_path: Path) -> None:
    folder = saved("mixtral", tmp_path / "model")
    spoil, words = FAULTS[fault]
    old = load_file(folder / "model.safetensors")[EXPERT]
    change(folder, EXPERT, None if spoil is None else spoil(old))
    told = pool(1).run(refusal, folder)[0]
    assert words in told and told.startswith(("model.layers.1.mlp.experts.gate_up_proj", EXPERT)), (
        told
    )


def test_an_expert_fewer_in_all_is_named(tmp_path: Path) -> None:
    """Of which transformers would make a model with random experts."""
    folder = saved("mixtral", tmp_path / "model")
    experts = max(
        int(name.split("experts.")[1].split(".")[0])
        for name in load_file(folder / "model.safetensors")
        if "experts." in name
    )
    for matrix in ("w1", "w2", "w3"):
        change(folder, EXPERT.replace("1.w1", f"{experts}.{matrix}"), None)
    assert "gate_up_proj in model has shape" in pool(1).run(refusal, folder)[0]


@pytest.mark.parametrize("name", ("model.².weight", f"model.{'9' * 5000}.weight"))
def test_names_that_transformers_cannot_sort_are_said(name: str, tmp_path: Path) -> None:
    folder = saved("mixtral", tmp_path / "model")
    change(folder, name, torch.zeros(1))
    words = pool(1).run(refusal, folder)[0]
    assert words.startswith("model has weights under names that cannot be read")
    assert len(words) < 400


def in_four_bits(folder: Path) -> float:
    """Runs on a rank: how far the experts, which stay as they are, are from transformers'."""
    model = load_quantized(folder, dtype=torch.float32)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    right = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return float((model.get_parameter(name) - right.get_parameter(name)).abs().max())


def test_a_model_in_4_bits_reads_them_too(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    assert pool(1).run(in_four_bits, saved("mixtral", tmp_path)) == [0.0]
