"""Adapters beside a base in 4 bits: every layout trains as one plain process does."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.torch_version import TorchVersion

from helpers.engine.adapters.lora import adapter_weights, add_adapters, load_adapters, save_adapters
from helpers.engine.adapters.merging import save_merged
from helpers.engine.adapters.nf4 import load_quantized
from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.errors import UserError
from helpers.engine.files import weights
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.shards import local
from helpers.engine.trainer import Trainer
from helpers.planner.model.adapters import adapted_state
from tests.engine.adapters.loops import OPTIONS, STEPS, plain_loop, trained_losses
from tests.engine.adapters.versions import skip_what_is_refused
from tests.support import parity, scripts, tiny
from tests.support.matrix import each, part
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

HOW = Adapting(rank=4, alpha=8, quantize="nf4")
LAYOUTS = {
    "ddp": ParallelPlan(dp_replicate=2),
    "zero-1": ParallelPlan(dp_shard=2, zero_stage=1),
    "zero-2": ParallelPlan(dp_shard=2, zero_stage=2, microbatches=2),
    "zero-3": ParallelPlan(dp_shard=2, microbatches=2),
    "zero-3 recomputed": ParallelPlan(dp_shard=2, activation="full"),
    "cp": ParallelPlan(cp=2),
    "cp recomputed": ParallelPlan(cp=2, zero_stage=1, activation="full", cp_attention="gather"),
    "pp": ParallelPlan(pp=2),
    "pp x ddp": ParallelPlan(pp=2, dp_replicate=2),
    "pp x zero-3": ParallelPlan(pp=2, dp_shard=2),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Folders that transformers wrote, by family."""

    @cache
    def of(family: str) -> Path:
        folder = tmp_path_factory.mktemp("base") / family
        tiny.fresh(family, torch.float32).save_pretrained(folder)
        return folder

    return of


def truth(folder: Path, how: Adapting = HOW) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and adapters of one process: transformers' forward, peft's layers, torch's loop."""
    if how.quantize:
        model = load_quantized(folder, dtype=torch.float32)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    losses, _ = plain_loop(add_adapters(model, how.rank, how.alpha))
    return losses, {name: weight.detach() for name, weight in adapter_weights(model).items()}


def trained(folder: Path, plan: ParallelPlan, how: Adapting = HOW, **options: Any) -> tuple:
    mesh = mesh_of(plan)
    model = load_adapted(folder, plan, mesh, how)
    trainer = Trainer(model, plan, mesh, **OPTIONS | options)
    return trainer, trained_losses(trainer)


def losses_of(folder: Path, plan: ParallelPlan, how: Adapting, out: Path) -> list[float]:
    """Runs on each rank; writes the adapters and the merged model."""
    trainer, losses = trained(folder, plan, how)
    save_adapters(trainer.model, out / "adapters")
    save_merged(trainer.model, out / "model")
    return losses


def check(folder: Path, plan: ParallelPlan, how: Adapting, out: Path) -> None:
    if how.quantize:
        skip_what_is_refused(plan)
    expected, weights = truth(folder, how)
    for losses in pool(plan.world_size).run(losses_of, folder, plan, how, out):
        parity.close("losses", losses, expected, 1e-5)
    if how.quantize:
        bare = load_quantized(folder, dtype=torch.float32)
    else:
        bare = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    again = load_adapters(bare, out / "adapters")
    found = adapter_weights(again)
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        parity.close(name, found[name].detach(), value, 1e-5)
        assert value.abs().max() > 0
    plain, report = transformers.AutoModelForCausalLM.from_pretrained(
        out / "model", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ids = tiny.batch(0)[0]
    with torch.no_grad():
        merged, beside = (m.eval()(input_ids=ids).logits for m in (plain, again))
    parity.close("merged logits", merged, beside, 1e-4)


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        *each(("gpt2", "falcon-new"), LAYOUTS),
        *each(("gptj", "neox", "falcon-mqa", "falcon-alibi", "llama"), ("zero-3", "pp"), every=2),
    ],
)
def test_a_layout_trains_as_one_process(family: str, layout: str, bases, tmp_path: Path) -> None:
    check(bases(family), LAYOUTS[layout], HOW, tmp_path)


@pytest.mark.parametrize(
    ("family", "layout"), each(("gpt2", "falcon-new"), ("ddp", "zero-3", "pp"))
)
def test_and_beside_a_base_in_full_precision(
    family: str, layout: str, bases, tmp_path: Path
) -> None:
    check(bases(family), LAYOUTS[layout], Adapting(rank=4, alpha=8), tmp_path)


def bf16_losses(folder: Path, plan: ParallelPlan) -> list[float]:
    return trained(folder, plan)[1]


@pytest.mark.parametrize("degrees", part([{"dp_shard": 2}], [{"dp_replicate": 2}, {"pp": 2}]))
def test_bf16_stays_near(degrees: dict[str, int], bases) -> None:
    plan = ParallelPlan(precision="bf16", **degrees)
    skip_what_is_refused(plan)
    expected, _ = truth(bases("falcon-new"))
    for losses in pool(2).run(bf16_losses, bases("falcon-new"), plan):
        parity.close("losses", losses, expected, 2e-2)


def shards(folder: Path) -> tuple[int, int, int]:
    """Runs on each rank: bytes of codes here, of codes in all, and of what is trained in all."""
    plan = LAYOUTS["zero-3"]
    model = load_adapted(folder, plan, mesh_of(plan), HOW)
    codes = [p for p in model.parameters() if p.dtype == torch.uint8]
    trains = [p for p in model.parameters() if p.requires_grad]
    here, whole = sum(local(p).nbytes for p in codes), sum(p.numel() for p in codes)
    return here, whole, sum(p.numel() for p in trains)


def test_ranks_share_the_codes(bases) -> None:
    skip_what_is_refused(LAYOUTS["zero-3"])
    expected = sum(w.numel() for w in truth(bases("falcon-new"))[1].values())
    for here, whole, trains in pool(2).run(shards, bases("falcon-new")):
        assert 0 < here == whole / 2
        assert trains == expected


def eight_bits(folder: Path) -> tuple[list[float], set[torch.dtype]]:
    """Runs on each rank; parts of 4,096 numbers and more have moments of 8 bits."""
    how = Adapting(rank=128, alpha=8, quantize="nf4")
    trainer, losses = trained(folder, LAYOUTS["ddp"], how, optimizer="adamw8bit")
    _, plain = trained(folder, LAYOUTS["ddp"], how)
    parity.close("losses", losses, plain, 1e-2)
    losses = [trainer.step(*tiny.batch(0)).loss for _ in range(STEPS)]
    return losses, {s["state1"].dtype for s in trainer.optimizer.state.values()}


def test_moments_of_8_bits(bases) -> None:
    for losses, dtypes in pool(2).run(eight_bits, bases("llama")):
        assert torch.uint8 in dtypes
        assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"tp": 2}, "tp=2 splits"),
        ({"dp_shard": 2, "ep": 2}, "ep=2 deals experts out, which are frozen here"),
        ({"pp": 2, "schedule": "zero-bubble"}, "choose 1f1b"),
    ],
)
def test_plans_that_adapters_do_not_allow(plan: dict[str, Any], words: str) -> None:
    assert words in said(HOW.check, ParallelPlan(**plan))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"quantize": "fp4"}, "quantize must be 'nf4' or None, not 'fp4'"),
        ({"quantize": True}, "quantize must be 'nf4' or None, not True"),
        ({"rank": 0}, "rank must be a whole number"),
        ({"alpha": float("nan")}, "alpha must be a finite number"),
        ({"alpha": 10**400}, "alpha must be a finite number"),
        ({"dropout": 1.0}, "dropout must be a number"),
    ],
)
def test_adapters_that_there_are_not(how: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Adapting(**how).check(ParallelPlan())


def test_a_torch_that_would_cast_codes_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.11.0+cu130"))
    assert "torch 2.12 on, and this is 2.11.0" in said(HOW.check, LAYOUTS["zero-3"])
    HOW.check(LAYOUTS["zero-2"])
    Adapting(rank=4, alpha=8).check(LAYOUTS["zero-3"])
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.12.0+cpu"))
    HOW.check(LAYOUTS["zero-3"])


# --- train.py --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--quantize", "nf4"], "--quantize needs adapters: give --lora-rank"),
        (["--merge"], "--merge needs adapters"),
        (["--load-adapters", "/none"], "/none holds no adapters"),
        (["--load-adapters", "/none", "--lora-rank", 4], "--lora-rank is in the folder"),
        (["--save-dtype", "bf16"], "--save-dtype is of a whole model's files: give --save"),
        (["--save-dtype", "bf16", "--save", "--lora-rank", 4], "whole model's files: give --merge"),
        (["--optimizer", "adamw8bit", "--checkpoint-every", 2], "checkpoints hold the moments"),
    ],
)
def test_mistakes_are_refused(arguments: list, words: str, tmp_path: Path) -> None:
    assert words in scripts.refusal(*arguments, out=tmp_path / "out")


def run(out: Path, **flags: object) -> list[dict[str, Any]]:
    """The lines of metrics of a run on the bundled instructions."""
    _, lines = scripts.trained(
        model="falcon-tiny", task="instruct", layers=2, seq_len=256, batch_size=4,
        lr_schedule="constant", lr=3e-3, out=out, **flags,
    )  # fmt: skip
    return lines


@pytest.mark.exhaustive
def test_stages_and_shards_count_together_what_is_trained(tmp_path: Path) -> None:
    flags = {"model": "falcon-tiny", "task": "instruct", "seq_len": 256, "batch_size": 4}
    flags |= {"layers": 2, "steps": 1, "lora_rank": 4}
    whole = adapted_state(weights.load_config("falcon-tiny", num_hidden_layers=2), 4)
    summary, _ = scripts.trained(4, pp=2, dp_shard=2, **flags, out=tmp_path / "run")
    assert 4 * summary["trainable_parameters"] == whole.gradients


def test_a_run_saves_resumes_and_goes_on(tmp_path: Path) -> None:
    """Adapters are the checkpoint's whole content; the base comes from its seed again."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    fresh = {"lora_rank": 4, "quantize": "nf4"}
    lines = run(one, steps=4, checkpoint_every=2, save=True, merge=True, **fresh)
    again = run(two, steps=4, resume=one / "checkpoints/step-00000002", **fresh)
    assert [line["step"] for line in again] == [3, 4]
    assert [line["loss"] for line in again] == [line["loss"] for line in lines[2:]]
    summary = json.loads((one / "summary.json").read_text())
    state = adapted_state(weights.load_config("falcon-tiny", num_hidden_layers=2), 4, quantize=True)
    assert summary["state_bytes"] == [vars(state)]
    assert 4 * summary["trainable_parameters"] == state.gradients < 4 * summary["parameters"]
    config = json.loads((one / "adapters/adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (4, "falcon-tiny")
    model = transformers.AutoModelForCausalLM.from_pretrained(one / "model")
    assert model.config.num_hidden_layers == 2
    further = run(three, steps=1, load_adapters=one / "adapters", quantize="nf4")
    assert further[0]["loss"] < lines[0]["loss"]  # of the same first batch
