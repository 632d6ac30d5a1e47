"""Adapters beside an encoder in 4 bits, and its head: every layout trains as one process."""

import copy
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from helpers.engine.adapters.head import head_weights
from helpers.engine.adapters.lora import adapter_weights, add_adapters, load_adapters, save_adapters
from helpers.engine.adapters.merging import save_merged
from helpers.engine.adapters.nf4 import load_quantized
from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.engine.adapters.loops import OPTIONS, plain_loop, trained_losses
from tests.engine.adapters.versions import skip_what_is_refused
from tests.support import parity, tiny
from tests.support.ranks import mesh_of, pool
from tests.support.scripts import script

pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

small_config = script("docs/small_models").small_config
TARGETS = 6  # a block's matrices
HOW = Adapting(rank=4, alpha=8, quantize="nf4")
TASKS = {"bert-mlm": "mlm", "bert-classes": "classify-head", "roberta-classes": "classify-head"}
LAYOUTS = {
    "zero-1": ParallelPlan(dp_shard=2, zero_stage=1),
    "zero-3": ParallelPlan(dp_shard=2),
    "pp": ParallelPlan(pp=2),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Path]:
    """Folders that transformers wrote, by family."""
    found = {}
    for family in TASKS:
        found[family] = tmp_path_factory.mktemp("base") / family
        tiny.fresh(family, torch.float32).save_pretrained(found[family])
    return found


def truth(folder: Path, family: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """transformers' forward, peft's layers, torch's loop."""
    model = load_quantized(folder, dtype=torch.float32, task=TASKS[family])
    losses, _ = plain_loop(add_adapters(model, HOW.rank, HOW.alpha), family)
    return losses, {name: value.detach() for name, value in adapter_weights(model).items()}


def trained(folder: Path, family: str, plan: ParallelPlan, out: Path) -> list[float]:
    mesh = mesh_of(plan)
    model = load_adapted(folder, plan, mesh, HOW, task=TASKS[family])
    losses = trained_losses(Trainer(model, plan, mesh, **OPTIONS), family)
    save_adapters(model, out / "adapters")
    save_merged(model, out / "model")
    return losses


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", TASKS)
def test_a_layout_trains_as_one_process(
    family: str, layout: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    plan = LAYOUTS[layout]
    skip_what_is_refused(plan)
    expected, weights = truth(bases[family], family)
    for losses in pool(plan.world_size).run(trained, bases[family], family, plan, tmp_path):
        parity.close("losses", losses, expected, 1e-5)
    bare = load_quantized(bases[family], dtype=torch.float32, task=TASKS[family])
    again = load_adapters(bare, tmp_path / "adapters")
    found = adapter_weights(again)
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        parity.close(name, found[name].detach(), value, 1e-5)
    merged, report = tiny.auto_class(family).from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(report.values())
    ids, _, inputs = tiny.masked_batch(family, 0)
    with torch.no_grad():
        one, other = (m.eval()(input_ids=ids, **inputs).logits for m in (merged, again))
    parity.close("merged logits", one, other, 1e-4)


def test_peft_loads_the_adapters_and_the_head(bases: dict[str, Path], tmp_path: Path) -> None:
    """As they were written, beside the same base in full precision."""
    import peft

    auto, family = tiny.auto_class("bert-classes"), "bert-classes"
    model = add_adapters(auto.from_pretrained(bases[family]), rank=4)
    with torch.no_grad():
        for value in adapter_weights(model).values():
            value.add_(torch.randn_like(value) * 0.1)
    save_adapters(model, tmp_path)
    theirs = peft.PeftModel.from_pretrained(auto.from_pretrained(bases[family]), tmp_path)
    ids, _, inputs = tiny.masked_batch(family, 0)
    with torch.no_grad():
        expected, found = (m.eval()(input_ids=ids, **inputs).logits for m in (model, theirs))
    parity.close("logits", found, expected, 1e-5)


@pytest.mark.parametrize("family", TASKS)
def test_adapters_stand_beside_the_blocks_matrices_alone(
    family: str, bases: dict[str, Path]
) -> None:
    """`dense` is also what heads and poolers call their layers."""
    model = add_adapters(load_quantized(bases[family], task=TASKS[family]), rank=4)
    adapted = {name.partition(".lora_")[0] for name in adapter_weights(model) if ".lora_" in name}
    assert len(adapted) == 2 * TARGETS and all(".encoder.layer." in name for name in adapted)
    head = head_weights(model)
    assert bool(head) == (TASKS[family] == "classify-head")
    assert all(p.requires_grad and p.dtype == torch.float32 for p in head.values())


def classifier(model_type: str) -> nn.Module:
    config = small_config(model_type)
    config.pad_token_id = 0
    torch.manual_seed(0)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def moved(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.add_(torch.randn_like(value) * 0.1)
    return model.eval()


CLASSIFIERS = ("llama", "gemma2", "opt", "megatron-bert", "roberta-prelayernorm", "bert")


@pytest.mark.parametrize("model_type", CLASSIFIERS)
def test_peft_has_the_logits_of_a_classifier(model_type: str, tmp_path: Path) -> None:
    """The last norm is the base's and frozen; peft would take every norm of a block for it."""
    import peft

    base = classifier(model_type)
    model = moved(add_adapters(copy.deepcopy(base), rank=4))
    save_adapters(model, tmp_path)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    again = load_adapters(copy.deepcopy(base), tmp_path).eval()
    ids = torch.randint(5, base.config.vocab_size, (3, 8))
    with torch.no_grad():
        expected, plain = model(input_ids=ids).logits, base(input_ids=ids).logits
        for other in (theirs, again):
            parity.close("logits", other(input_ids=ids).logits, expected, 1e-5)
    assert not torch.allclose(plain, expected, rtol=1e-3)
    assert not any("norm" in name.lower() for name in head_weights(model))


@pytest.mark.parametrize("model_type", ("bert", "llama", "roberta"))
def test_a_classifier_of_peft_goes_on(model_type: str, tmp_path: Path) -> None:
    """peft trains no pooler unless it is told to; here it trains on, and is in the files."""
    import peft

    base = classifier(model_type)
    how = peft.LoraConfig(r=4, task_type="SEQ_CLS", init_lora_weights=False)
    theirs = peft.get_peft_model(copy.deepcopy(base), how).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_adapters(copy.deepcopy(base), tmp_path / "theirs").eval()
    ids = torch.randint(5, base.config.vocab_size, (3, 8))
    with torch.no_grad():
        found, expected = (model(input_ids=ids).logits for model in (ours, theirs))
    parity.close("logits", found, expected, 1e-5)
    save_adapters(moved(ours), tmp_path / "ours")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "ours").eval()
    with torch.no_grad():
        found, expected = (model(input_ids=ids).logits for model in (again, ours))
    parity.close("logits", found, expected, 1e-5)


def test_a_head_that_peft_would_mistake_is_refused() -> None:
    with pytest.raises(UserError, match=r"peft would take model\.vision_model\.head for the head"):
        add_adapters(classifier("modernvbert"))
