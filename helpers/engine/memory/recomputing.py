"""What is kept from the forward pass for the backward pass, and where.

    none        everything                           no extra work
    selective   results of matrix products           norms, activations, softmax are done again
    full        each block's input                   the whole forward is done again
    group_N     every N-th block's input             the same; while a group runs, its N blocks' all
    offload     in host memory, brought back ahead of need

Sources: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost; Korthikanti et al. 2022,
section 5 (selective); Ren et al. 2021, ZeRO-Offload, section 4 (host memory, overlapped copies).
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ..models.families import Family
from .offloading import Offloader

aten = torch.ops.aten

# Results that cost a matrix product to make again; everything else is cheap.
COSTLY = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def apply_activations(model: nn.Module, family: Family, activation: str, offload: bool) -> None:
    """Wrap the blocks' forwards; names and modules stay."""
    blocks = list(model.get_submodule(family.blocks))
    if group_size(activation) > 1:
        for unit in itertools.chain(*units(model, activation)):
            Group(unit)
    elif activation != "none":
        contexts = {"context_fn": _selective} if activation == "selective" else {}
        for block in blocks:
            block.forward = _checkpointed(block, block.forward, contexts)
    if offload:
        offloader = Offloader()
        for block in blocks:
            block.forward = offloader.wrap(block, block.forward)


def units(model: nn.Module, activation: str) -> list[list[list[nn.Module]]]:
    """Of each stage, its blocks in the groups that are recomputed together."""
    size = group_size(activation)
    stages = [list(stage.blocks.values()) for stage in model.stages]
    return [[s[first : first + size] for first in range(0, len(s), size)] for s in stages]


def group_size(activation: str) -> int:
    """Blocks that are recomputed together."""
    return int(activation.removeprefix("group_")) if activation.startswith("group_") else 1


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in COSTLY else CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _checkpointed(block: nn.Module, forward: Callable, contexts: dict[str, Any]) -> Callable:
    again = functools.partial(checkpoint, forward, use_reentrant=False, **contexts)
    return in_training(block, again, forward)


class Group:
    """Some blocks in a row, run as one: the first runs them all, the others hand their input on.

    All blocks of a model take the same arguments beside the hidden states. Outside training each
    block runs alone.
    """

    def __init__(self, blocks: list[nn.Module]) -> None:
        self.forwards = [block.forward for block in blocks]
        self.gives_tuple = False
        for block in blocks:
            first = block is blocks[0]
            run = _checkpointed(block, self.run_all, {}) if first else self.hand_on
            block.forward = in_training(block, run, block.forward)

    def run_all(self, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        for forward in self.forwards:
            out = forward(hidden, *args, **kwargs)
            self.gives_tuple = isinstance(out, tuple)
            hidden = out[0] if self.gives_tuple else out
        return out

    def hand_on(self, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        return (hidden, None) if self.gives_tuple else hidden


def in_training(block: nn.Module, training: Callable, otherwise: Callable) -> Callable:
    """One forward for training steps, another for everything else."""

    def run(*args: Any, **kwargs: Any) -> Any:
        trains = block.training and torch.is_grad_enabled()
        return (training if trains else otherwise)(*args, **kwargs)

    return run
