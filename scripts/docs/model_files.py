"""A small model's files: are they what transformers and peft make of them?"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from small_models import batch, own_loss
from torch import nn

from helpers.engine.adapters.linear_layers import is_transposed, linear_paths
from helpers.engine.adapters.lora import adapted, halves, save_adapters
from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.errors import UserError
from helpers.engine.files.weights import save_model
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer

EXACT = "exact"
OPTIONS = {"dtype": torch.float32}
ALONE = ParallelPlan()
LOSS = 1e-4  # relative, of losses in float32


def files_verdict(model: nn.Module, mesh: Any) -> str:
    """Is what the engine reads what transformers reads, and is it so again of what it writes?"""
    return _verdict(model, lambda expected, base: _same_values(expected, base, mesh))


def adapters_verdict(model: nn.Module, mesh: Any, quantize: str | None = "nf4") -> str:
    """Has the model with adapters, after a step, the loss that peft has with their files, beside
    weights that bitsandbytes rounds as well?"""
    how = Adapting(4, 8, quantize=quantize)
    return _verdict(model, lambda theirs, base: _same_loss(theirs, base, mesh, how))


def _verdict(model: nn.Module, ask: Callable[[nn.Module, Path], str]) -> str:
    """What `ask` says of a folder that transformers wrote and what it reads of it, or why there is
    no answer."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base")
        try:
            theirs = _read_again(model, base)
        except Exception as error:
            reason = str(error).splitlines()[0].replace(folder, "")[:100]
            return f"transformers does not save and read this small one itself: {reason}"
        try:
            return ask(theirs, base)
        except UserError as error:
            return str(error).replace(folder, "")


def _same_values(expected: nn.Module, base: Path, mesh: Any) -> str:
    laid, written = load_model(base, ALONE, mesh, **OPTIONS), base.parent / "written"
    save_model(laid, written, torch.float32)
    found = {"read": values(laid), "written": values(_load(written))}
    for name, value in values(expected).items():
        for where, of_model in found.items():
            if not torch.equal(of_model[name].reshape(value.shape), value):
                return f"WRONG: {name} as it is {where}"
    return EXACT


def _same_loss(theirs: nn.Module, base: Path, mesh: Any, how: Adapting) -> str:
    import peft

    adapters = base.parent / "adapters"
    ours = adapted_loss(base, adapters, ALONE, mesh, how)
    if how.quantize:
        _round(theirs)
    beside = peft.PeftModel.from_pretrained(theirs, adapters).train()
    ids, labels = batch(theirs.config.get_text_config().vocab_size)
    with torch.no_grad():
        loss = own_loss(beside, ids, labels).item()
        with beside.disable_adapter():
            without = own_loss(beside, ids, labels).item()
    if not abs(ours - loss) <= LOSS * abs(loss):
        return f"WRONG: a loss of {ours:.6g}, with peft {loss:.6g}"
    if abs(without - loss) <= LOSS * abs(loss):
        return "WRONG: its adapters change nothing"
    return EXACT


def adapted_loss(base: Path, written: Path, plan: ParallelPlan, mesh: Any, how: Adapting) -> float:
    """Writes adapters after a step; the loss that the model has with them."""
    model = load_adapted(base, plan, mesh, how)
    if how.adapters is None:
        _move(model)
    ids, labels = batch(model.config.get_text_config().vocab_size)
    trainer = Trainer(model, plan, mesh, lr=1e-2)
    trainer.step(ids, labels)
    save_adapters(model, written)
    return trainer.backward(ids, labels).item()


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, also those that no file holds, by name."""
    return {n: v.detach() for n, v in (*model.named_parameters(), *model.named_buffers())}


def _read_again(model: nn.Module, folder: Path) -> nn.Module:
    """What transformers reads of the model that it writes."""
    model = model.float()
    model.config.dtype = torch.float32
    model.save_pretrained(folder)
    return _load(folder).train()


def _load(folder: Path) -> nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **OPTIONS)


@torch.no_grad()
def _move(model: nn.Module) -> None:
    """Adapters that add something, the same whichever of the layers are here."""
    for path, layer in adapted(model):
        generator = torch.Generator().manual_seed(len(path))
        for half in halves(layer):
            half.copy_(0.1 * torch.randn(half.shape, generator=generator))


@torch.no_grad()
def _round(model: nn.Module) -> None:
    """The linear layers to four bits, as bitsandbytes does it."""
    from bitsandbytes import functional

    for path in linear_paths(model):
        layer = model.get_submodule(path)
        weight = layer.weight.t().contiguous() if is_transposed(layer) else layer.weight.data
        codes, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
        rounded = functional.dequantize_4bit(codes, state)
        layer.weight.copy_(rounded.t() if is_transposed(layer) else rounded)
