"""What fine-tuning by adapters holds: a frozen base, and AdamW's state of the adapters alone.

    state = adapted_state(load_config("falcon-40b"), rank=64, quantize=True, base_bytes=2)
    state.parameters, state.gradients, state.optimizer

Counted from the model's shapes on the meta device, where tensors have no memory. The planner's
questions count the same from a Shape: `estimate(..., adapters=Adapters(rank=64, quantize="nf4"))`.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from helpers.engine.adapters.linear_layers import linear_paths
from helpers.engine.adapters.lora import add_adapters, trainable_parameters
from helpers.engine.adapters.nf4 import nf4_bytes
from helpers.engine.adapters.qlora import check_layout
from helpers.engine.errors import UserError, check_count, is_number
from helpers.engine.models.objectives import CAUSAL, build
from helpers.engine.plan import ParallelPlan
from helpers.planner.cost import StateBytes, state_bytes
from helpers.planner.model.stage_layers import balanced_layers
from helpers.planner.shape.parameters import CONV1D, FUSED
from helpers.planner.shape.shape import Shape

ONE_LAYER = (*CONV1D, *FUSED)  # families whose queries, keys and values are one layer
APART = ("gptj", "llama")


@dataclass(frozen=True)
class Adapters:
    """Adapters beside each linear layer of a frozen model's blocks.

    quantize: `nf4` for a base in 4 bits, None for one in the plan's precision.
    """

    rank: int = 8
    quantize: str | None = None

    def check(self, shape: Shape, plan: ParallelPlan) -> None:
        """Raise a UserError if the engine does not train them so, or they cannot be counted."""
        check_count("rank", self.rank)
        if self.quantize not in (None, "nf4"):
            raise UserError(f"quantize is 'nf4' or None, not {self.quantize!r:.40}")
        if shape.held or shape.family not in (*ONE_LAYER, *APART):
            raise UserError(f"no formula knows the layers of {shape.family} that adapters stand at")
        most = max(map(min, matrices(shape)))
        if self.rank > most:
            raise UserError(
                f"rank {self.rank} is more than any matrix of the blocks has: {most} do all that "
                "more could"
            )
        if plan.activation == "selective":
            raise UserError(
                "no formula knows adapters with activation=selective, which keeps the results of "
                "their products beside the model's: take none or full"
            )
        stages = plan.stage_layers or balanced_layers(shape, plan.stages)  # as the engine deals out
        if 0 in stages:
            raise UserError(
                "no formula knows adapters with a stage without layers: the partition is "
                f"{','.join(map(str, stages))}"
            )
        check_layout(plan)

    def refused(self, shape: Shape, plan: ParallelPlan) -> str:
        """Why they cannot be trained under a plan, in a few words; none where they can."""
        try:
            self.check(shape, plan)
        except UserError as error:
            return str(error).partition(":")[0]
        return ""

    def parameters(self, shape: Shape) -> int:
        """Of one block."""
        return self.rank * sum(map(sum, matrices(shape)))

    def matrix_bytes(self, shape: Shape, element_bytes: int) -> int:
        """Of the frozen matrices of one block, as they are held."""
        sizes = [inputs * outputs for inputs, outputs in matrices(shape)]
        return sum(map(nf4_bytes, sizes)) if self.quantize else element_bytes * sum(sizes)


@cache
def matrices(shape: Shape) -> list[tuple[int, int]]:
    """Inputs and outputs of the linear layers of one block, each as the model's class has it."""
    found = []
    for linear in shape.block:
        each = linear.outputs // linear.matrices
        found += [(linear.inputs, each)] * linear.matrices
    if shape.family not in ONE_LAYER:
        return found
    query, key, value, *others = found
    return [(query[0], query[1] + key[1] + value[1]), *others]


def adapted_state(
    config: Any,
    rank: int,
    *,
    quantize: bool = False,
    base_bytes: int | None = None,
    precision: str = "fp32",
) -> StateBytes:
    """Bytes of a model with adapters of `rank` beside a frozen base.

    Args:
        config: a transformers configuration.
        quantize: the base's linear layers in NF4, magnitudes included.
        base_bytes: of each other number of the base; None takes an adapter's.
        precision: of the adapters, a key of cost.BYTES_PER_PARAMETER; this engine's runs in 16 bits
            are `half`.

    Raises:
        UserError: peft is missing, it is no configuration of a causal language model, or there can
            be no such rank, precision or number of bytes.
    Source: LoRA (arXiv 2106.09685), section 4.1; QLoRA (arXiv 2305.14314), section 3.
    """
    if not hasattr(config, "model_type"):
        raise UserError(f"give a configuration, as load_config('gptj-6b'), not {config!r:.40}")
    if base_bytes is None:
        base_bytes = state_bytes(1, precision).parameters
    if not is_number(base_bytes) or not 0 < base_bytes < math.inf:
        raise UserError(f"base_bytes must be a finite number above 0, not {base_bytes!r:.40}")
    with torch.device("meta"):
        model = build(config, CAUSAL.task)
    whole = sum(parameter.numel() for parameter in model.parameters())
    matrices = [model.get_submodule(path).weight.numel() for path in linear_paths(model)]
    trained = trainable_parameters(add_adapters(model, rank))
    base = base_bytes * whole
    if quantize:
        base += sum(nf4_bytes(size) - base_bytes * size for size in matrices)
    adapters = state_bytes(trained, precision)
    return replace(adapters, parameters=base + adapters.parameters)
