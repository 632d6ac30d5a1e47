"""A small model of each causal type of transformers, by what small_models.json says of it."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SMALL = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
LARGEST = 10_000_000  # parameters


def small_config(model_type: str) -> Any:
    """The type's own configuration, made small."""
    config = transformers.AutoConfig.for_model(model_type)
    _shrink(config)
    for name, value in SMALL["types"].get(model_type, {}).items():
        setattr(config, name, value)
    return config


def _shrink(config: Any) -> None:
    renamed = getattr(type(config), "attribute_map", {})
    for name, value in SMALL["fields"].items():
        current = vars(config).get(name)
        if name in renamed or current is None or isinstance(current, list | dict):
            continue
        setattr(config, name, value)
    layers = SMALL["fields"]["num_hidden_layers"]
    for name in SMALL["layer_lists"]:
        kinds = vars(config).get(name)
        if isinstance(kinds, list) and len(kinds) >= layers:
            every = list(dict.fromkeys(kinds))
            first = kinds[:layers]
            setattr(config, name, first if set(every) <= set(first) else (every * layers)[:layers])
    for value in list(vars(config).values()):
        if isinstance(value, transformers.PreTrainedConfig):
            _shrink(value)


def small_model(model_type: str) -> nn.Module:
    """A small model of the type with random weights, in the widest dtype that it takes.

    Raises:
        Exception: of any kind, where transformers cannot build or run it small.
    """
    config = small_config(model_type)
    with torch.device("meta"):
        blank = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))
    size = sum(parameter.numel() for parameter in blank.parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters are not small")
    reasons = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype)
        model.train()
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                parameter.copy_(parameter + 0.2 * noise if parameter.dim() < 2 else 0.1 * noise)
        try:
            trial = copy.deepcopy(model)  # some classes keep states of the last batch
            loss = own_loss(trial, *batch(config.get_text_config().vocab_size))
        except Exception as error:
            reasons.append(error)
            continue
        if torch.isfinite(loss):
            return model
        reasons.append(ValueError("its loss is not finite"))
    raise reasons[0]


def batch(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Ids and labels [4, 12], some of the labels ignored."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, vocabulary, (4, 12), generator=generator)
    labels = ids.where(torch.rand(ids.shape, generator=generator) > 0.2, -100)
    return ids, labels


def own_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return model(input_ids=ids, labels=labels, use_cache=False).loss
