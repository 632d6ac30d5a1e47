"""What is changed in place after it was saved is refused where hooks keep it, as torch does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.engine.memory.test_activations import POLICIES
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

LAYERS = 6


def halve(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    args[0].mul_(0.5)


def refusal(block: int, rows: int, frozen: list[str], policy: dict[str, Any]) -> str:
    """What a backward says where a hook halves what a block's v_proj is given."""
    plan = ParallelPlan(**policy)
    model = tiny.fresh("llama", torch.float32, LAYERS)
    attention = model.model.layers[block].self_attn
    attention.v_proj.register_forward_pre_hook(halve)
    for name in frozen:
        attention.get_submodule(name).requires_grad_(False)
    model = parallelize(model, plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    try:
        trainer.backward(*tiny.batch(0, rows=rows))
    except (UserError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block", [0, LAYERS - 1])
def test_what_was_saved_and_changed_is_refused(policy: str, block: int) -> None:
    """v_proj is given what q_proj and k_proj have saved; a first block's copy has left the device
    by the backward, a last one's has not."""
    [plain] = pool(1).run(refusal, block, 8, [], {})
    assert "modified by an inplace operation" in plain
    [line] = pool(1).run(refusal, block, 8, [], POLICIES[policy])
    assert line.startswith("UserError: a tensor that the backward needs was changed in place")


def test_so_is_what_is_too_small_to_leave_the_device() -> None:
    [line] = pool(1).run(refusal, 0, 1, [], POLICIES["offload"])
    assert line.startswith("UserError: a tensor that the backward needs was changed in place")


@pytest.mark.parametrize("policy", POLICIES)
def test_what_no_gradient_needs_may_change(policy: str) -> None:
    for plan in ({}, POLICIES[policy]):
        assert pool(1).run(refusal, 0, 8, ["q_proj", "k_proj"], plan) == [""]
