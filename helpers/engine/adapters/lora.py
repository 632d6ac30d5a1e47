"""Low-rank adapters beside frozen linear layers: made, saved and loaded.

    y = W x + alpha / rank * B A x      A: [rank, in] drawn, B: [out, rank] zero; only they train

The layers are peft's, in place in the model, and the files are of peft's own format.

Source: Hu et al. 2021, LoRA, section 4.1.
"""

import json
import math
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import (
    UserError,
    as_path,
    check_access,
    check_count,
    check_seed,
    is_finite_number,
    is_number,
    need,
    whole_reason,
)
from ..files import weights
from ..files.random_weights import seed_of
from ..files.trainer_state import is_adapted
from ..files.weight_files import WeightFiles, stored_names
from ..models.objectives import objective_of
from ..ranks.agreeing import is_first
from .head import head_modules, head_names, head_weights, train_head
from .kinds import check_kind
from .linear_layers import PREFIX, Places, paths_in, places_of, reached

TASK_TYPES = {"lm": "CAUSAL_LM", "classify-head": "SEQ_CLS"}  # what peft calls a task
NAME = "default"  # peft's, of a layer's only adapter
HALVES = ("lora_A", "lora_B")
CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"


def add_adapters(
    model: nn.Module,
    rank: int = 8,
    alpha: float = 16,
    dropout: float = 0.0,
    *,
    seed: int = 0,
    source: str | Path | None = None,
    places: Places | None = None,
) -> nn.Module:
    """Put an adapter beside each linear layer of the blocks and freeze all else, in place.

    Layers are left out that do not compute W x + b alone (routers), whose weight another module
    reads itself, or whose adapter peft would not find again where it was: experts' are no layers.

    Adapters are float32 and drawn by the name of their layer: the same on any device, and whichever
    of the blocks are here.

    Args:
        dropout: of what goes into the adapters.
        source: where the model came from; peft notes it in the files.
        places: of the whole model, where this is a pipeline rank's part.

    Raises:
        UserError: peft is missing, there can be no such rank, alpha or dropout, or no layer takes
            one.
    """
    peft = need("peft", "qlora")
    check_numbers(rank, alpha, dropout)
    check_seed(seed)
    places = places or places_of(model)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=places.targets,
        bias="none",
        task_type=_task_type(model),
        base_model_name_or_path=None if source is None else str(source),
    )
    _inject(model, config, places)
    for path, layer in adapted(model):
        here = "meta" if layer.get_base_layer().weight.is_meta else "cpu"
        first, second = (torch.empty(w.shape, device=here) for w in halves(layer))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, path))
            nn.init.kaiming_uniform_(first, a=math.sqrt(5))  # as peft does
        _set(layer, "lora_A", first)
        _set(layer, "lora_B", nn.init.zeros_(second))
    return model


def _task_type(model: nn.Module) -> str | None:
    """What peft calls the model's task; of one for next words it then asks how it generates, which
    a class of somebody's own may not say."""
    task = objective_of(model).task
    return None if task == "lm" and not model.can_generate() else TASK_TYPES.get(task)


def check_numbers(rank: int, alpha: float, dropout: float) -> None:
    """Raise a UserError if no adapter can have these."""
    check_count("rank", rank)
    if not is_number(dropout) or not 0 <= dropout < 1:
        raise UserError(f"dropout must be a number from 0 to below 1, not {dropout!r:.40}")
    if not is_finite_number(alpha):
        raise UserError(f"alpha must be a finite number, not {alpha!r:.40}")


def _inject(model: nn.Module, config: Any, places: Places) -> None:
    """Adapters without memory, and all else frozen but a head that classifies."""
    if is_adapted(model):
        raise UserError("this model has adapters already: load it anew")
    peft = need("peft", "qlora")
    own = head_names(model)
    head, config.modules_to_save = [*(config.modules_to_save or ()), *own], None
    targets = config.target_modules
    # peft refuses a model without any of the layers, as another rank's stage may be
    if reached(config, paths_in(model)) or not reached(config, places.modules):
        peft.inject_adapter_in_model(config, model, NAME, low_cpu_mem_usage=True)
    if isinstance(targets, set):  # which peft shortens to what tells the modules here apart
        config.target_modules = targets
    model.requires_grad_(False)
    # what peft trains beside adapters, in layers of its own
    config.modules_to_save = list(dict.fromkeys(head)) or None
    model.adapter_config = config
    train_head(model)


def _set(layer: nn.Module, half: str, values: Tensor) -> None:
    device = layer.get_base_layer().weight.device
    getattr(layer, half)[NAME].weight = nn.Parameter(values.to(device, torch.float32))


def halves(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """A [rank, in] and B [out, rank]."""
    return layer.lora_A[NAME].weight, layer.lora_B[NAME].weight


def adapted(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers that have an adapter, by path."""
    for path, module in model.named_modules():
        if hasattr(module, "lora_A"):
            yield path, module


def fuse(model: nn.Module) -> nn.Module:
    """Let the adapters' product be added while it is computed, in place. peft's own layers copy the
    output, scale the product and add the two, each in a pass over memory of its own."""
    for _, layer in adapted(model):
        layer.forward = partial(_forward, layer)
    return model


def _forward(layer: nn.Module, x: Tensor) -> Tensor:
    """W x + scaling * B A x, of x [..., in]; the adapters' part in their own precision."""
    base = layer.get_base_layer()(x)
    first, second = halves(layer)
    inner = F.linear(layer.lora_dropout[NAME](x.to(first.dtype)), first) * layer.scaling[NAME]
    if base.dtype != second.dtype:
        return base + F.linear(inner, second).to(base.dtype)
    return torch.addmm(base.flatten(0, -2), inner.flatten(0, -2), second.t()).view_as(base)


def trainable_parameters(model: nn.Module) -> int:
    """How many numbers an optimizer of this model updates."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """The adapters' parameters by their names in peft's files."""
    beside = {
        f"{PREFIX}{path}.{half}.weight": weight
        for path, layer in adapted(model)
        for half, weight in zip(HALVES, halves(layer), strict=True)
    }
    return beside | {f"{PREFIX}{name}": weight for name, weight in head_weights(model).items()}


def save_adapters(model: nn.Module, folder: str | Path) -> None:
    """Write the adapters of a whole model as peft does: its configuration and one file of weights.

    peft loads them beside the model that they were made for:
    `PeftModel.from_pretrained(base, folder)`. Every rank must call it; the first one writes.
    """
    from safetensors.torch import save_file

    of_rank = adapter_weights(model)
    facts = {name: (weight.shape, weight.dtype) for name, weight in of_rank.items()}
    whole = weights.over_stages(model, facts, lambda name: weights.whole(of_rank[name]))
    values = {name: value.cpu().contiguous() for name, value in whole}
    folder = weights.make_folder(folder)
    if is_first():
        model.adapter_config.save_pretrained(folder)
        save_file(values, folder / FILE, metadata={"format": "pt"})


def load_adapters(model: nn.Module, folder: str | Path, places: Places | None = None) -> nn.Module:
    """Put adapters that peft or `save_adapters` wrote beside a model's layers, in place.

    Args:
        places: of the whole model, where this is a pipeline rank's part.

    Raises:
        UserError: peft is missing, the folder holds no adapters, or they are not this model's.
    """
    peft = need("peft", "qlora")
    folder = as_path(folder)
    for name in (CONFIG, FILE):
        check_access(folder / name)
        if not (folder / name).is_file():
            raise UserError(f"{folder} holds no adapters: it has no {name}")
    places = places or places_of(model)
    try:
        check_kind(folder / CONFIG)
        config = peft.LoraConfig.from_pretrained(folder)
        _check_layers(reached(config, places.modules), folder, places)
        saved = tuple(config.modules_to_save or ())  # of a head; the rest of it is the base's
        _inject(model, config, places)
    except UserError:
        raise
    except Exception as error:  # peft's, of what it cannot use; of all kinds
        raise UserError(
            f"the adapters in {folder} do not fit this model: {whole_reason(error)}"
        ) from None
    here = dict(adapted(model))
    _check_layers(here, folder, places)
    _check_scaling(here, folder)
    _check_names(model, folder, here.keys() | set(reached(config, places.modules)))
    files = WeightFiles(folder, dict.fromkeys(adapter_weights(model), FILE))
    for path, layer in adapted(model):
        for half, held in zip(HALVES, halves(layer), strict=True):
            _set(layer, half, _read(files, f"{PREFIX}{path}.{half}.weight", held))
    with torch.no_grad():
        for name, held in head_weights(model, saved).items():
            held.copy_(_read(files, f"{PREFIX}{name}", held))
    return model


def _read(files: WeightFiles, name: str, held: Tensor) -> Tensor:
    values = files.read([name], held.shape, held.shape, [0] * held.dim(), held.shape)
    return weights.usable(values, name, files)


def rank_and_alpha(folder: Path) -> tuple[int, float]:
    """What a folder of adapters says of them.

    Raises:
        UserError: it has no configuration that can be read.
    """
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
        return config["r"], config["lora_alpha"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{folder} holds no adapters: it has no readable {CONFIG}") from None


def _check_layers(targeted: Iterable[str], folder: Path, places: Places) -> None:
    """Raise a UserError if an adapter stands beside another layer than a block's: the embedding is
    no product, and the loss takes the head's matrix as it is."""
    paths = set(places.paths)
    for path in targeted:
        if path not in paths:
            raise UserError(
                f"{folder} holds an adapter of {path}: adapters here stand beside linear layers "
                "of the blocks, where their modules call these"
            )


def _check_scaling(layers: dict[str, nn.Module], folder: Path) -> None:
    """Raise a UserError if a layer's adapter is multiplied by no number."""
    for path, layer in layers.items():
        scaling = layer.scaling[NAME]
        if not is_finite_number(scaling):
            raise UserError(f"the adapters in {folder} have no finite alpha for {path}")


def _check_names(model: nn.Module, folder: Path, paths: Iterable[str]) -> None:
    """Raise a UserError if a file's adapter has no layer, of those that the configuration targets.
    Other pipeline ranks' layers and head count."""
    known = {f"{PREFIX}{path}.{half}.weight" for path in paths for half in HALVES}
    head = tuple(f"{PREFIX}{path}." for path in head_modules(model))
    for name in sorted(stored_names(folder / FILE)):
        if name not in known and not name.startswith(head):
            raise UserError(f"{folder} holds {name}, for which this model has no place")
