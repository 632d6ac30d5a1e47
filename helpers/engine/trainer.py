"""One training step over a global batch, and what it measured."""

import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from helpers.engine.optimizer import adamw, clip_, gradient_norm, local_parameters, lr_factor
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor import local


@dataclass(frozen=True)
class StepResult:
    """What a step did. The loss and the norm are the whole model's, over the whole batch."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    step_s: float


class Trainer:
    """Trains a model that is laid out already.

    Every rank hands `step` the same global batch and takes its own rows of it, so the samples, and
    the token count that the loss is divided by, do not depend on the layout.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: ParallelPlan,
        mesh: DeviceMesh,
        *,
        lr: float,
        weight_decay: float = 0.01,
        clip: float | None = 1.0,
        schedule: str = "constant",
        warmup_steps: int = 0,
        total_steps: int = 0,
    ) -> None:
        self.model, self.plan, self.mesh = model, plan, mesh
        self.lr, self.clip = lr, clip
        self.schedule, self.warmup_steps, self.total_steps = schedule, warmup_steps, total_steps
        self.parameters = local_parameters(model)
        self.optimizer = adamw(self.parameters.values(), lr, weight_decay)
        self.steps_done = 0
        lr_factor(0, schedule, warmup_steps, total_steps)  # a wrong name fails here, not at step 1

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def step(self, input_ids: Tensor, labels: Tensor) -> StepResult:
        """Forward, backward, clip and update on a global batch.

        Args:
            input_ids, labels: [batch, seq], aligned; -100 labels are ignored.
        """
        started = time.perf_counter()
        loss = self.backward(input_ids, labels)
        norm = gradient_norm(self.model)
        if self.clip is not None:
            clip_(self.model, norm, self.clip)
        lr = self.update()
        numbers = torch.stack(
            [loss.double(), norm.to(loss.device)]
        ).tolist()  # waits for the device
        self.steps_done += 1
        return StepResult(self.steps_done, *numbers, lr, time.perf_counter() - started)

    def backward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Leave the gradient of the batch's mean loss in the parameters; returns that loss."""
        self.model.train()
        tokens = int((labels[:, 1:] != -100).sum())
        rows = slice(None)
        out = self.model(
            input_ids=input_ids[rows].to(self.device),
            labels=labels[rows].to(self.device),
            num_items_in_batch=max(1, tokens),
        )
        out.loss.backward()
        return out.loss.detach()

    def update(self) -> float:
        """One optimizer step at the schedule's learning rate, which is returned."""
        factor = lr_factor(self.steps_done, self.schedule, self.warmup_steps, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * factor
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.parameters[name].grad = local(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)
        return self.lr * factor

    @torch.no_grad()
    def evaluate(self, batches: Any, answers: list[int] | None = None) -> dict[str, float | int]:
        """Mean loss over labelled tokens, and with `answers` the accuracy among those token ids.

        Args:
            batches: of (input_ids, labels), each [batch, seq].
            answers: the token ids that a label can be; the one with the largest logit is chosen.
        """
        self.model.eval()
        loss = torch.zeros((), dtype=torch.float64)
        tokens = right = 0
        for input_ids, labels in batches:
            targets = labels[:, 1:][labels[:, 1:] != -100]
            out = self.model(
                input_ids=input_ids.to(self.device),
                labels=labels.to(self.device),
                num_items_in_batch=1,
                label_logits=answers is not None,
            )
            loss += out.loss.double().cpu()
            tokens += len(targets)
            if answers is not None:
                choice = out.logits[:, answers].argmax(1).cpu()
                right += int((torch.tensor(answers)[choice] == targets).sum())
        result: dict[str, float | int] = {"loss": loss.item() / max(1, tokens), "tokens": tokens}
        if answers is not None:
            result["accuracy"] = right / max(1, tokens)
        return result

    def state_bytes(self) -> dict[str, int]:
        """Bytes of this rank's parameters, gradients and optimizer, counted from live tensors.

        Gradients are freed after a step, so they are counted as what backward makes: one for each
        trainable element.
        """
        parts = self.parameters.values()
        state = self.optimizer.state.values()
        return {
            "parameters": sum(_bytes(local(p)) for p in self.model.parameters()),
            "gradients": sum(_bytes(p) for p in parts),
            "optimizer": sum(_bytes(t) for s in state for t in s.values() if t.dim()),
        }


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory so far: allocated on a GPU, resident for a process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def over_ranks(value: Any) -> list[Any]:
    """One value from each rank, by rank, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
