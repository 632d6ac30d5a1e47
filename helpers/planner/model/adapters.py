"""What fine-tuning by adapters holds: a frozen base, and AdamW's state of the adapters alone.

    state = adapted_state(load_config("falcon-40b"), rank=64, quantize=True, base_bytes=2)
    state.parameters, state.gradients, state.optimizer

Counted from the model's shapes on the meta device, where tensors have no memory.
"""

from typing import Any

import torch

from helpers.engine.adapters.lora import add_adapters, trainable_parameters
from helpers.engine.adapters.nf4 import linear_paths, nf4_bytes
from helpers.engine.errors import need
from helpers.planner.cost import StateBytes


def adapted_state(
    config: Any, rank: int, *, quantize: bool = False, base_bytes: int = 4
) -> StateBytes:
    """Bytes of a model with adapters of `rank`, which are float32 as their gradients and moments.

    Args:
        config: a transformers configuration.
        quantize: the base's linear layers in NF4, magnitudes included.
        base_bytes: of each other number of the base.

    Raises:
        UserError: peft is missing, or there can be no such rank.
    Source: LoRA (arXiv 2106.09685), section 4.1; QLoRA (arXiv 2305.14314), section 3.
    """
    transformers = need("transformers", "hf")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    whole = sum(parameter.numel() for parameter in model.parameters())
    matrices = [model.get_submodule(path).weight.numel() for path in linear_paths(model)]
    trained = trainable_parameters(add_adapters(model, rank))
    base = base_bytes * whole
    if quantize:
        base += sum(nf4_bytes(size) - base_bytes * size for size in matrices)
    return StateBytes(parameters=base + 4 * trained, gradients=4 * trained, optimizer=8 * trained)
