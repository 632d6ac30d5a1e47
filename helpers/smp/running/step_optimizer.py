"""A script's own optimizer over the engine's parts: its class, its groups, its learning rate."""

import math
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import gradient_norm, scale_
from helpers.engine.trainer import Trainer

BY_ELEMENT = (torch.optim.Adam, torch.optim.AdamW)  # which parts of a tensor can take alone


class StepOptimizer(torch.optim.Optimizer):
    """Takes the place of the script's optimizer; schedules of the learning rate work on it.

    Args:
        inner: the script's, made over the parameters of the model once it is laid out.

    Raises:
        UserError: it is none that can work on parts, or of no parameter of the model, or its groups
            have learning rates of their own.
    """

    def __init__(
        self, inner: torch.optim.Optimizer, model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh
    ) -> None:
        if type(inner) not in BY_ELEMENT:
            raise UserError(
                f"{type(inner).__name__} is not known to work on parts of tensors: take "
                "torch.optim.AdamW or Adam"
            )
        super().__init__(inner.param_groups, inner.defaults)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        held = [[names.get(id(p)) for p in group["params"]] for group in inner.param_groups]
        if not all(name for group in held for name in group):
            raise UserError(
                "the optimizer holds parameters that are no longer the model's: make it after "
                "run.model or run.load"
            )
        self.trainer = Trainer(model, plan, mesh, lr=self._rate(), clip=None)
        self.trainer.optimizer = self._over_parts(type(inner), held)
        self.clip: float | None = None
        self.overflow = False
        self.loss = 0.0
        self._taken = False

    def _over_parts(self, kind: type, held: list[list[str]]) -> torch.optim.Optimizer:
        """The same optimizer over the parts that this rank owns."""
        parts = {part.name: part.tensor for part in self.trainer.parts if part.tensor.numel()}
        groups = []
        for group, names in zip(self.param_groups, held):
            options = {key: value for key, value in group.items() if key != "params"}
            groups.append({**options, "params": [parts[n] for n in names if n in parts]})
        self._held = {name for names in held for name in names}
        return kind([group for group in groups if group["params"]])

    def begin(self) -> None:
        """Before a backward."""
        if self._taken:
            raise UserError(
                "a second backward without a step between: several passes for one step are "
                "`microbatches` of the configuration here"
            )
        self._taken = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing is left to do: a step takes the gradients with it."""

    def clip_master_grads(self, limit: float) -> None:
        """Bring the norm to the limit at the next step, where it is above."""
        self.clip = float(limit)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Norm, clipping and update over the world; skipped where the loss scale was too large."""
        if not self._taken:
            raise UserError("a step without a backward before it")
        self._taken = False
        trainer = self.trainer
        gradients = trainer.gradients()
        gradients = {name: g for name, g in gradients.items() if name in self._held}
        norm = gradient_norm(trainer.parts, gradients, trainer.device).item()
        finite = math.isfinite(self.loss) and math.isfinite(norm)
        self.overflow = trainer.scaler.overflowed(finite)
        if not self.overflow:
            scale_(gradients, norm, self.clip, 1.0)
            trainer.lr = self._rate()
            trainer.update(gradients)
        trainer.steps_done += 1

    def _rate(self) -> float:
        rates = {float(group["lr"]) for group in self.param_groups}
        if len(rates) > 1:
            raise UserError("groups with learning rates of their own are not kept: give them one")
        return rates.pop()

    def local_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing: run.save_checkpoint keeps what the optimizer holds."""
        return {}

    state_dict = local_state_dict  # which a script writes into a file of its own
