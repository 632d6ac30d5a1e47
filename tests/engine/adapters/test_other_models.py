"""Adapters of models without a record: what peft computes with the files of them, or a refusal."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from helpers.engine.adapters.linear_layers import places_of
from helpers.engine.adapters.lora import add_adapters, load_adapters
from helpers.engine.adapters.merging import save_merged
from helpers.engine.adapters.nf4 import fill_quantized, load_quantized
from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.engine.adapters.versions import skip_unknown, skip_without_conversion
from tests.support import tiny
from tests.support.ranks import mesh_of, pool
from tests.support.scripts import script

peft = pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

small_model = script("docs/small_models").small_model
files = script("docs/model_files")
PP = ParallelPlan(pp=2)
HOW = Adapting(rank=4, alpha=8)
# what ended in a traceback once, or was another model to peft: layers that are named as experts of
# older classes, as blocks, or otherwise in files; routers; kernels that take weights as they are;
# scalars; a tower for images as deep as the language model; transformers' Conv1D
TYPES = (
    "deepseek_v3",
    "qwen3_next",
    "laguna",
    "inkling2_text",
    "ctrl",
    "phimoe",
    "mamba",
    "nemotron_h",
    "jamba",
    "axk2",
    "apertus",
    "got_ocr2",
    "openai-gpt",
    "llama",
)


def verdict(model_type: str, bits: str | None) -> str:
    return files.adapters_verdict(small_model(model_type), mesh_of(ParallelPlan()), bits)


@pytest.mark.parametrize(
    ("model_type", "bits"), [*((name, "nf4") for name in TYPES), ("llama", None), ("laguna", None)]
)
def test_peft_has_the_same_loss_with_the_files(model_type: str, bits: str | None) -> None:
    skip_unknown(model_type)
    assert pool(1).run(verdict, model_type, bits) == ["exact"]


def loss(base: Path, written: Path, plan: ParallelPlan, how: Adapting) -> float:
    return files.adapted_loss(base, written, plan, mesh_of(plan), how)


def test_blocks_that_differ_are_adapted_on_every_stage(tmp_path: Path) -> None:
    """The stages have attention of two kinds: the files name both, and are read again by ranks that
    have one of them."""
    base, one, two, last = (tmp_path / name for name in ("base", "one", "two", "last"))
    model = small_model("qwen3_next").float()
    model.config.dtype = torch.float32
    model.save_pretrained(base)
    for how, written in ((HOW, two), (Adapting(adapters=two), last)):
        alone = pool(1).run(loss, base, one, ParallelPlan(), how)
        assert pool(2).run(loss, base, written, PP, how) == pytest.approx(alone * 2, rel=1e-5)
    config = json.loads((last / "adapter_config.json").read_text())
    assert {"q_proj", "in_proj_qkvz"} <= set(config["target_modules"])
    beside = peft.PeftModel.from_pretrained(model, last)
    trained = {name for name, _ in beside.named_parameters() if "lora_A" in name}
    assert len(trained) == len(load_file(last / "adapter_model.safetensors")) / 2


def test_adapters_train_beside_a_base_of_two_dtypes(tmp_path: Path) -> None:
    """In bf16, biases of routing are float32, and are shared by ZeRO-3 as they are."""
    skip_unknown("flint")
    small_model("flint").float().save_pretrained(tmp_path)
    one, first, again = ParallelPlan(precision="bf16"), tmp_path / "first", tmp_path / "again"
    pool(1).run(loss, tmp_path, first, one, HOW)
    on = Adapting(adapters=first)
    alone = pool(1).run(loss, tmp_path, again, one, on)
    for plan in (replace(one, dp_shard=2), replace(one, pp=2)):
        found = pool(2).run(loss, tmp_path, again, plan, on)
        assert found == pytest.approx(alone * 2, rel=5e-3)


def test_what_is_left_out() -> None:
    paths = {
        name: " ".join(places_of(small_model(name)).paths)
        for name in ("mamba", "phimoe", "jamba", "nemotron_h")
    }
    assert "in_proj" in paths["mamba"] and "out_proj" not in paths["mamba"]
    assert "q_proj" in paths["phimoe"] and "router" not in paths["phimoe"]
    assert "dt_proj" not in paths["jamba"] and "out_proj" in paths["jamba"]
    assert "o_proj" in paths["nemotron_h"] and "out_proj" not in paths["nemotron_h"]
    skip_without_conversion()
    beside = places_of(small_model("deepseek_v3"))
    assert any("shared_experts.gate_proj" in path for path in beside.paths)  # held in four bits
    assert not any("gate_proj" in name for name in beside.targets)  # an expert's, to peft


def test_adapters_of_experts_are_refused(tmp_path: Path) -> None:
    skip_without_conversion()
    model = small_model("deepseek_v3").float()
    targets = ["gate_proj", "up_proj", "down_proj"]
    peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets)).save_pretrained(
        tmp_path
    )
    with pytest.raises(UserError, match="beside what is no linear layer, as experts"):
        load_adapters(small_model("deepseek_v3").float(), tmp_path)


def bloom(folder: Path, slow: bool) -> Path:
    """A base whose two layers before the residuals are multiplied by slices, if `slow`."""
    config = transformers.BloomConfig(
        vocab_size=64, hidden_size=32, n_layer=2, n_head=4, slow_but_exact=slow, pretraining_tp=2
    )
    transformers.BloomForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("bits", (None, "nf4"))
def test_layers_that_their_module_does_not_call_are_left_out(
    bits: str | None, tmp_path: Path
) -> None:
    base, how = bloom(tmp_path / "base", slow=True), Adapting(rank=4, alpha=8, quantize=bits)
    model = (
        load_quantized(base) if bits else transformers.AutoModelForCausalLM.from_pretrained(base)
    )
    names = {path.rpartition(".")[2] for path in places_of(model).paths}
    assert names == {"query_key_value", "dense_h_to_4h"}
    merged, found = pool(1).run(trained_and_merged, base, how, tmp_path / "merged")[0]
    assert merged == pytest.approx(found, rel=1e-5)


def trained_and_merged(base: Path, how: Adapting, out: Path) -> tuple[float, float]:
    """The loss after a step: of the merged model, and of the one with adapters."""
    plan = ParallelPlan()
    trainer = Trainer(load_adapted(base, plan, mesh_of(plan), how), plan, mesh_of(plan), lr=1e-1)
    ids = torch.randint(64, (4, 12), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        trainer.step(ids, ids)
    for name, parameter in trainer.model.named_parameters():
        assert not parameter.requires_grad or parameter.detach().any(), name
    save_merged(trainer.model, out)
    model = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    batches = [(ids, ids)]
    with torch.no_grad():
        return files.own_loss(model, ids, ids).item(), trainer.evaluate(batches)["loss"]


@pytest.mark.parametrize("targets", (["dense"], ["dense_h_to_4h", "dense_4h_to_h"]), ids=str)
def test_adapters_of_these_are_refused(targets: list[str], tmp_path: Path) -> None:
    for slow in (False, True):
        base = bloom(tmp_path / str(slow), slow)
        plain = transformers.AutoModelForCausalLM.from_pretrained(base)
        config = peft.LoraConfig(r=4, target_modules=targets)
        peft.get_peft_model(plain, config).save_pretrained(tmp_path / "adapters")
        bare = transformers.AutoModelForCausalLM.from_pretrained(base)
        if not slow:
            load_adapters(bare, tmp_path / "adapters")
            continue
        with pytest.raises(UserError, match=rf"holds an adapter of .*\.{targets[-1]}: "):
            load_adapters(bare, tmp_path / "adapters")


def test_blocks_without_such_a_layer_are_refused() -> None:
    model = small_model("rwkv").float()
    for block in model.rwkv.blocks:
        block.attention, block.feed_forward = nn.Identity(), nn.Identity()
    with pytest.raises(UserError, match="rwkv has no linear layer beside which peft puts"):
        add_adapters(model)


MLP = ("gate_proj", "up_proj", "down_proj")


class OneMLP(transformers.LlamaForCausalLM):
    """Its second block has the matrices of the first one's MLP; and it does not generate."""

    can_generate = classmethod(lambda cls: False)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for name in MLP:
            one, other = (getattr(layer.mlp, name) for layer in self.model.layers)
            other.weight = one.weight


def test_adapters_of_their_own_beside_one_matrix(tmp_path: Path) -> None:
    model = add_adapters(OneMLP(tiny.config("llama")), rank=2)
    with pytest.raises(UserError, match=r"0.mlp.gate_proj and .*1.mlp.gate_proj have one matrix"):
        save_merged(model, tmp_path)
    with pytest.raises(UserError, match="cannot be shared in 4 bits"):
        fill_quantized(OneMLP(tiny.config("llama")), None, 0, "cpu")


def test_peft_is_not_asked_to_generate() -> None:
    assert add_adapters(OneMLP(tiny.config("llama")), rank=2).adapter_config.task_type is None
