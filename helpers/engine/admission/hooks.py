"""Hooks that somebody put on a model: which of them see under a layout what they saw before."""

import itertools
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..errors import UserError
from ..models.architecture import base_of, family_of
from ..models.block_rules import expert_cuts
from ..models.families import Family
from ..plan import ParallelPlan


def check_no_gradient_hooks(model: nn.Module) -> None:
    """Raise a UserError if hooks wait for the gradients of parameters that will be replaced."""
    for name, p in model.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            raise UserError(
                f"{name} has a hook on its gradient, which tp and zero_stage=3 would drop: take it "
                "off, or take zero_stage=1 or 2"
            )


def check_hooks_inside(model: nn.Module, plan: ParallelPlan) -> None:
    """Raise a UserError if a hook would be given another part of the batch than the rank's own: of
    each row under cp and sequence_parallel, of the features inside what tp splits, and what all
    ranks send to a rank's experts inside what ep deals out."""
    family, base = family_of(model), base_of(model)
    rows = plan.cp > 1 or plan.sequence_parallel
    dealt = [path for path, module in model.named_modules() if plan.ep > 1 and expert_cuts(module)]
    for path, module in model.named_modules():
        if module is model or module is base or not _has_hooks(module):
            continue
        if rows or (plan.tp > 1 and _is_split(path, family, model.config)):
            part = "a part of each row" if rows else "a part of the features"
            raise UserError(
                f"{path} has a hook, which would see {part} on each rank: take it off, or take "
                "dp_shard, dp_replicate or pp"
            )
        if _is_inside(path, dealt):
            raise UserError(
                f"{path} has a hook, which would see tokens of all ranks that go to one's experts: "
                "take it off, or take dp_shard without ep"
            )


def _is_split(path: str, family: Family, config: Any) -> bool:
    """Is the module at this path inside what tp splits of a block?"""
    prefix = f"{family.blocks}."
    inner = path.removeprefix(prefix).partition(".")[2] if path.startswith(prefix) else ""
    if family.parallel_residual(config):
        return inner != ""
    return _is_inside(inner, (*family.sublayers, *family.experts))


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)


def _has_hooks(module: nn.Module) -> bool:
    """Other hooks than those by which transformers itself records what modules give."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = itertools.chain(*(getattr(module, kind).values() for kind in kinds))
    return any(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)
