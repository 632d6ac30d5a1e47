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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ..errors import UserError
from ..models.families import Family
from .changed_in_place import none_changed
from .offloading import Offloader

aten = torch.ops.aten

# of a first run and a second one, as torch's checkpoint asks for them (context_fn)
Contexts = Callable[[], tuple[AbstractContextManager, AbstractContextManager]]

# Results that cost a matrix product to make again; everything else is cheap.
COSTLY = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten._scaled_mm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def apply_activations(
    model: nn.Module, family: Family, activation: str, offload: bool, kept: Any = None
) -> None:
    """Wrap the blocks' forwards; names and modules stay.

    Args:
        kept: what attention over cp gave, of context/kept.py, which is not recomputed.

    Raises:
        UserError: the model has no list of blocks.
    """
    if activation == "none" and not offload:
        return
    blocks = blocks_to_wrap(model, family, "activation or offload")
    if group_size(activation) > 1:
        for unit in itertools.chain(*units(model, activation)):
            Group(unit, _contexts(activation, kept))
    elif activation != "none":
        for block in blocks:
            block.forward = _checkpointed(block, block.forward, _contexts(activation, kept))
    if offload:
        offloader = Offloader()
        for block in blocks:
            block.forward = offloader.wrap(block, block.forward)


def blocks_to_wrap(model: nn.Module, family: Family, wrappers: str) -> list[nn.Module]:
    """The blocks of this rank, or a UserError that names what would wrap them."""
    if family.blocks is None:
        raise UserError(
            f"{family.name} has no list of blocks that {wrappers} could wrap: leave that out"
        )
    return list(model.get_submodule(family.blocks))


def heed_switch(model: nn.Module, family: Family) -> None:
    """transformers' own activation_checkpointing_enable() and _disable(), which set a switch that a
    block's forward of our own would not look at."""
    if family.parallel_residual(model.config):
        for block in model.get_submodule(family.blocks).children():
            if hasattr(block, "gradient_checkpointing"):
                block.forward = functools.partial(_switched, block, block.forward)


def _switched(block: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
    if not (block.gradient_checkpointing and block.training):
        return forward(*args, **kwargs)
    caches = kwargs.keys() & {"cache", "past_key_values", "layer_past"}  # would be filled twice
    again = functools.partial(forward, **kwargs | dict.fromkeys(caches))
    return block._gradient_checkpointing_func(again, *args)


def units(model: nn.Module, activation: str) -> list[list[list[nn.Module]]]:
    """Of each stage, its blocks in the groups that are recomputed together."""
    size = group_size(activation)
    stages = [list(stage.blocks.values()) for stage in model.stages]
    return [[s[first : first + size] for first in range(0, len(s), size)] for s in stages]


def group_size(activation: str) -> int:
    """Blocks that are recomputed together."""
    return int(activation.removeprefix("group_")) if activation.startswith("group_") else 1


def _policy(kept: Any, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op in COSTLY and not (kept and kept.computing):  # whose result is kept, not its parts
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _contexts(activation: str, kept: Any) -> Contexts:
    """What surrounds the first run of what is recomputed, and the second: what of the first is kept
    for it, and that it changes nothing in place that it has saved."""
    wanted: list[Contexts] = [lambda: (nullcontext(), none_changed())]
    if kept:
        wanted.append(kept.contexts)
    if activation == "selective":
        policy = functools.partial(_policy, kept)
        wanted.append(functools.partial(create_selective_checkpoint_contexts, policy))
    return lambda: tuple(map(_together, *(contexts() for contexts in wanted)))


@contextmanager
def _together(*contexts: AbstractContextManager) -> Iterator[None]:
    with ExitStack() as stack:
        for one in contexts:
            stack.enter_context(one)
        yield


def _checkpointed(block: nn.Module, forward: Callable, contexts: Contexts) -> Callable:
    again = functools.partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)
    return in_training(block, again, forward)


class Group:
    """Some blocks in a row, run as one by the last of them; those before note their arguments.

    Blocks may differ in their arguments, as where every other layer has a mask of its own. Outside
    training each block runs alone.
    """

    def __init__(self, blocks: list[nn.Module], contexts: Contexts) -> None:
        self.contexts = contexts
        self.forwards = [block.forward for block in blocks]
        self.noted: list[tuple[tuple, dict[str, Any]]] = []
        for block in blocks:
            run = self.run if block is blocks[-1] else self.note
            block.forward = in_training(block, run, block.forward)

    def note(self, *args: Any, **kwargs: Any) -> Any:
        """What this gives goes to the next block, where the true hidden states take its place. It
        is no number, so that a model that uses it elsewhere too does not train wrong in silence."""
        self.noted.append((args, kwargs))
        hidden = args[0] if args else kwargs["hidden_states"]
        return hidden.new_full((), torch.nan).expand(hidden.shape)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        calls, self.noted = [*self.noted, (args, kwargs)], []
        return checkpoint(self.run_all, calls, use_reentrant=False, context_fn=self.contexts)

    def run_all(self, calls: list[tuple[tuple, dict[str, Any]]]) -> Any:
        out: Any = None
        for forward, (args, kwargs) in zip(self.forwards, calls, strict=True):
            if out is not None:
                hidden = out[0] if isinstance(out, tuple) else out
                args, kwargs = _with_hidden(hidden, args, kwargs)
            out = forward(*args, **kwargs)
        return out


def _with_hidden(hidden: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    return ((hidden, *args[1:]), kwargs) if args else ((), kwargs | {"hidden_states": hidden})


def in_training(block: nn.Module, training: Callable, otherwise: Callable) -> Callable:
    """One forward for training steps, another for everything else."""

    def run(*args: Any, **kwargs: Any) -> Any:
        trains = block.training and torch.is_grad_enabled()
        return (training if trains else otherwise)(*args, **kwargs)

    return run
