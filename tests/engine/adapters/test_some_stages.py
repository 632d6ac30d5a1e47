"""Adapters beside some layers alone: a pipeline's stage without any of them has none to train."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from helpers.engine.adapters.lora import save_adapters
from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.errors import UserError
from helpers.engine.files.checkpoints import Checkpoints, pick
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import on_all_ranks
from helpers.engine.trainer import Trainer
from tests.engine.adapters.loops import LR, OPTIONS, STEPS, plain_loop
from tests.support import parity, scripts, tiny
from tests.support.matrix import each
from tests.support.ranks import mesh_of, pool

peft = pytest.importorskip("peft")

ONE = ParallelPlan()
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
LAYERS = [
    *(f"self_attn.{name}" for name in ATTENTION),
    *(f"mlp.{name}" for name in MLP),
]
TARGETS: dict[str, dict[str, Any]] = {
    "the last layer": {"target_modules": ["q_proj"], "layers_to_transform": [3]},
    "paths of one stage": {
        "target_modules": ["model.layers.0.mlp.up_proj", "model.layers.1.self_attn.v_proj"]
    },
    # so many that peft writes down shorter names, of which its stage's have to be the whole's
    "many paths": {
        "target_modules": [f"model.layers.{n}.{layer}" for n in (0, 1, 2) for layer in LAYERS]
    },
}
LAYOUTS = {
    "pp": ParallelPlan(pp=2),
    "interleaved": ParallelPlan(pp=2, schedule="interleaved", virtual_stages=2, microbatches=2),
    "a stage a layer": ParallelPlan(pp=4, activation="full"),
    "no layer": ParallelPlan(pp=2, partition="0,4"),
    "pp x zero-1": ParallelPlan(pp=2, dp_shard=2, zero_stage=1),
    "pp x zero-3": ParallelPlan(pp=2, dp_shard=2),
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny.fresh("llama", torch.float32, layers=4).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def written(base: Path, **options: Any) -> Path:
    """A folder of adapters that peft made, which add something already."""
    options = {"r": 4, "lora_alpha": 8, "init_lora_weights": False} | options
    config = peft.LoraConfig(**options)
    torch.manual_seed(0)
    made = peft.get_peft_model(plain(base), config)
    made.save_pretrained(base.parent / "given")
    return base.parent / "given"


def plain(base: Path) -> nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


def with_peft(base: Path, adapters: Path) -> tuple[list[float], list[float], dict]:
    """Losses, norms and trained adapters of peft's own model in one process."""
    model = peft.PeftModel.from_pretrained(plain(base), adapters, is_trainable=True)
    losses, norms = plain_loop(model)
    trains = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return losses, norms, trains


def trained(base: Path, adapters: Path, plan: ParallelPlan, out: Path) -> list:
    """Losses and norms of the steps, before the last of which a checkpoint is loaded."""

    def fresh() -> Trainer:
        model = load_adapted(base, plan, mesh_of(plan), Adapting(adapters=adapters))
        return Trainer(model, plan, mesh_of(plan), **OPTIONS)

    trainer, checkpoints = fresh(), Checkpoints(out / "checkpoints")
    found = [trainer.step(*tiny.batch(step)) for step in range(STEPS - 1)]
    checkpoints.save(trainer)
    trainer = fresh()
    checkpoints.load(trainer, pick(out / "checkpoints"))
    found.append(trainer.step(*tiny.batch(STEPS - 1)))
    save_adapters(trainer.model, out / "adapters")
    return [[one.loss for one in found], [one.grad_norm for one in found]]


@pytest.mark.parametrize(("targets", "layout"), each(TARGETS, LAYOUTS))
def test_they_train_as_peft_trains_them(
    targets: str, layout: str, base: Path, tmp_path: Path
) -> None:
    adapters, plan = written(base, **TARGETS[targets]), LAYOUTS[layout]
    losses, norms, expected = with_peft(base, adapters)
    for ours in pool(plan.world_size).run(trained, base, adapters, plan, tmp_path):
        parity.close("losses", ours[0], losses, 1e-5)
        parity.close("norms", ours[1], norms, 1e-4)
    again = peft.PeftModel.from_pretrained(plain(base), tmp_path / "adapters", is_trainable=True)
    found = {name: p for name, p in again.named_parameters() if p.requires_grad}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        parity.close(name, found[name].detach(), value, 1e-5)


def resumed_by(pairs: list[tuple[Path, Adapting]], out: Path) -> list[str]:
    """What is said of a checkpoint of the first base and adapters by a trainer of each pair."""
    said, checkpoints = [], Checkpoints(out)
    for number, (base, how) in enumerate(pairs):
        model = load_adapted(base, ONE, mesh_of(ONE), how)
        trainer = Trainer(model, ONE, mesh_of(ONE), lr=LR)
        if number == 0:
            checkpoints.save(trainer)
        try:
            said.append(str(checkpoints.resume(trainer)))
        except UserError as error:
            said.append(str(error))
    return said


def test_a_checkpoint_of_adapters_of_another_scale_is_refused(base: Path, tmp_path: Path) -> None:
    """Their tensors are alike."""
    scales = [{}, {"lora_alpha": 16}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 2}}, {}]
    pairs = []
    for number, scale in enumerate(scales):
        folder = tmp_path / f"given-{number}"
        written(base, target_modules=["q_proj"], **scale).rename(folder)
        pairs.append((base, Adapting(adapters=folder)))
    first, alpha, *others, same = pool(1).run(resumed_by, pairs, tmp_path / "out")[0]
    assert (first, same) == ("True", "True")
    assert alpha == "the checkpoint was made with adapters [4, 8], this run has [4, 16]"
    assert len(others) == 2 and all("made with adapters' scale" in words for words in others)


def test_a_checkpoint_of_adapters_beside_another_base_is_refused(
    base: Path, tmp_path: Path
) -> None:
    """A checkpoint holds nothing of the base, and another one's tensors are as large."""
    moved, other = shutil.copytree(base, tmp_path / "moved"), tmp_path / "other"
    torch.manual_seed(1)
    tiny.auto_class("llama").from_config(plain(base).config).save_pretrained(other)
    pairs = [(one, Adapting(rank=4, quantize="nf4")) for one in (base, moved, other)]
    (said,) = pool(1).run(resumed_by, pairs, tmp_path / "out")
    assert said[:2] == ["True", "True"]
    assert said[2].startswith("the checkpoint was made with a base of digest")


def refusal(base: Path, adapters: Path, plan: ParallelPlan) -> str:
    how = Adapting(adapters=adapters)
    try:
        on_all_ranks(lambda: load_adapted(base, plan, mesh_of(plan), how) and None)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"target_modules": ["query"]}, "do not fit this model: Target modules"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "holds an adapter of model.embed_tokens"),
        ({"layer_replication": [[0, 2], [1, 4]]}, "layers of the model stand in it more than once"),
    ],
    ids=str,
)
def test_every_rank_refuses_what_no_stage_has(said: dict, words: str, base: Path) -> None:
    folder = written(base, target_modules=["q_proj"])
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))
    for found in pool(2).run(refusal, base, folder, ParallelPlan(pp=2)):
        assert words in found and "\n" not in found


def test_a_run_trains_saves_and_resumes_them(tmp_path: Path) -> None:
    base, config = tmp_path / "base", tiny.config("llama", layers=4)
    config.vocab_size = 2048  # the bundled tokenizer's
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
    adapters = written(base, **TARGETS["the last layer"])
    flags = {"model": base, "load_adapters": adapters, "seq_len": 16, "batch_size": 4}
    flags |= {"checkpoint_every": 1, "save": True, "merge": True, "lr_schedule": "constant"}
    lines = {}
    for name, more in {"one": {}, "two": {"ranks": 2, "pp": 2}}.items():
        for steps in (1, 2):
            resume = {"resume": True} if steps == 2 else {}
            _, found = scripts.trained(steps=steps, out=tmp_path / name, **flags, **more, **resume)
        lines[name] = [line["loss"] for line in found]
    parity.close("losses", lines["two"], lines["one"], 1e-5)
    config = json.loads((tmp_path / "two/adapters/adapter_config.json").read_text())
    assert config["layers_to_transform"] == [3]
