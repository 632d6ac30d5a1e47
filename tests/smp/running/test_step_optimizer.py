"""A script's optimizer is refused when it is handed over, and not in its first step."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from helpers.engine.plan import ParallelPlan
from helpers.smp.running.step_optimizer import StepOptimizer
from tests.support import parity
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said


def two_rates(model: nn.Module) -> torch.optim.Optimizer:
    first, *others = model.parameters()
    return torch.optim.AdamW([{"params": [first], "lr": 1e-3}, {"params": others, "lr": 1e-4}])


def of_whole_tensors(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters())


def another_models(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(nn.Linear(2, 2).parameters())


def refused(made: Callable[[nn.Module], torch.optim.Optimizer]) -> str:
    plan = ParallelPlan()
    model = parity.laid_out("gptj", plan)
    return said(StepOptimizer, made(model), model, plan, mesh_of(plan))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (two_rates, "groups with learning rates of their own"),
        (of_whole_tensors, "LBFGS is not known to work on parts"),
        (another_models, "make it after run.model"),
    ],
)
def test_what_cannot_work_over_parts(made, words) -> None:
    [found] = pool(1).run(refused, made)
    assert words in found
