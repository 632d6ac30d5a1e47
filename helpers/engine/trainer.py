"""One training step over a global batch, and what it measured."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import record_function

from .data_parallel.layouts import data_group, data_parallel
from .data_parallel.owned_shards import OwnedShard
from .errors import Diverged, UserError
from .memory.states import state_bytes
from .models.causal_loss import check_tokens
from .models.document_mask import PADDING
from .models.objectives import IGNORED
from .pipeline.runner import MicroBatch, Pipeline
from .plan import ParallelPlan
from .precision.bf16_products import products
from .precision.loss_scaling import LossScaler
from .precision.optimizer import adamw, gradient_norm, lr_factor, scale_
from .precision.replay import twice
from .ranks import over_ranks
from .tensor.partial_gradients import sum_partial_gradients
from .tensor.shards import is_finite

MOST_BAD_STEPS = 3  # in a row, after which a run has diverged


class Observer(Protocol):
    """What may look at a step."""

    def before_update(
        self, parts: Iterable[OwnedShard], gradients: dict[str, Tensor], scale: float
    ) -> None: ...

    def after_update(self, parts: Iterable[OwnedShard]) -> None: ...


@dataclass(frozen=True)
class StepResult:
    """What a step did. The loss and the norm are the whole model's, over the whole batch."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    step_s: float
    skipped: bool = False


class Trainer:
    """Trains a model that is laid out already.

    Every rank hands `step` the same global batch and takes its own rows of it, so the samples, and
    the token count that the loss is divided by, do not depend on the layout.

    Args:
        clip: largest gradient norm, None for no limit.
        optimizer: one of optimizer.OPTIMIZERS.
        hook: one of torch's DDP communication hooks, for plans of dp_replicate.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: ParallelPlan,
        mesh: DeviceMesh,
        *,
        lr: float,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        clip: float | None = 1.0,
        lr_schedule: str = "constant",
        warmup_steps: int = 0,
        total_steps: int = 0,
        seed: int = 0,
        optimizer: str = "adamw",
        hook: Callable[..., Any] | None = None,
    ) -> None:
        lr_factor(0, lr_schedule, warmup_steps, total_steps)  # a wrong name fails here already
        check_numbers(eps=eps, clip=1.0 if clip is None else clip)
        if not (0 <= lr < math.inf and 0 <= weight_decay < math.inf):
            raise UserError(f"lr {lr} and weight_decay {weight_decay}: give finite numbers from 0")
        if not all(0 <= beta < 1 for beta in betas):
            raise UserError(f"betas {betas}: give numbers from 0 and below 1")
        self.model, self.plan, self.mesh = model, plan, mesh
        self.lr, self.clip = lr, clip
        self.lr_schedule, self.warmup_steps = lr_schedule, warmup_steps
        self.total_steps = total_steps
        self.data = data_parallel(model, plan, mesh, hook)
        self.parts = self.data.parts
        self.optimizer = adamw(self.parts, lr, weight_decay, betas, eps, optimizer)
        self.scaler = LossScaler.for_precision(plan.precision)
        self.group = data_group(mesh, plan)
        floats = (p.dtype for p in model.parameters() if p.is_floating_point())
        self.pipeline = Pipeline(
            model,
            mesh,
            self.data,
            plan.schedule_of,
            dtype=plan.low_dtype(mesh.device_type) or next(floats),
            sequence_parts=plan.tp if plan.sequence_parallel else 1,
        )
        self.device = self.parts[0].tensor.device
        self.steps_done = 0
        # dropout differs between samples and between stages, not between the ranks of tp
        torch.manual_seed(seed + 1_000_003 * self.group.rank() + 1_009 * self.pipeline.rank)

    def step(
        self,
        input_ids: Tensor,
        labels: Tensor,
        documents: Tensor | None = None,
        *,
        replay: bool = False,
        observer: Observer | None = None,
        **masks: Tensor | None,
    ) -> StepResult:
        """Forward, backward, clip and update on a global batch.

        Args:
            input_ids, labels: [batch, seq], aligned, or labels [batch] of a model that classifies
                rows; -100 labels are ignored.
            documents: [batch, seq] of packed rows, see packing.py.
            masks: `attention_mask` and `token_type_ids`, [batch, seq], as transformers takes them.
            replay: forward and backward twice, and compare: see precision/replay.py.
            observer: looks at the parts before and after the update, and changes nothing.

        Raises:
            Diverged: loss or gradient were not finite in several steps in a row.
            NotRepeatable: two passes differ; weights and optimizer are as before the step.
        """
        started = time.perf_counter()

        def take() -> tuple[float, dict[str, Tensor]]:
            return self.backward(input_ids, labels, documents, **masks).item(), self.gradients()

        loss, gradients = twice(take, self.steps_done + 1) if replay else take()
        with record_function("optimizer"):
            scale = self.scaler.scale
            norm = gradient_norm(self.parts, gradients).item() / scale
            skip = self.scaler.overflowed(math.isfinite(loss) and math.isfinite(norm))
            if not skip:
                if observer:
                    observer.before_update(self.parts, gradients, scale)
                scale_(gradients, norm, self.clip, scale)
                self.update(gradients)
                if observer:
                    observer.after_update(self.parts)
        lr = self.lr * self._lr_factor()
        self.steps_done += 1
        if self.scaler.bad_steps == MOST_BAD_STEPS:
            raise Diverged(self._where_not_finite(gradients))
        if self.device.type == "cuda":  # the update and its gathers are still under way
            torch.cuda.synchronize(self.device)
        elapsed = time.perf_counter() - started
        return StepResult(self.steps_done, loss, norm, lr, elapsed, skip)

    def _where_not_finite(self, gradients: dict[str, Tensor]) -> str:
        """Where it begins, in words, the same on every rank: the first rank's first parameter."""
        weights = {part.name: part.tensor.detach() for part in self.parts}
        places = [
            f"{what} {name}"
            for what, tensors in (("weight", weights), ("gradient", gradients))
            for name, tensor in tensors.items()
            if not is_finite(tensor)
        ]
        by_rank = enumerate(over_ranks(places[:1]))
        first = next((f"the {of[0]} on rank {rank}" for rank, of in by_rank if of), "the loss")
        return (
            f"step {self.steps_done}: loss and gradient are not finite for the {MOST_BAD_STEPS}rd "
            f"step in a row, first in {first}; go on from an earlier checkpoint with a smaller "
            "learning rate"
        )

    def backward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        documents: Tensor | None = None,
        **masks: Tensor | None,
    ) -> Tensor:
        """Leave the gradients of the batch's mean loss with the data ranks; returns that loss."""
        batch = MicroBatch(input_ids, labels, documents, **masks)
        self._check(batch)
        self.model.train()
        labelled = max(1, self.model.objective.count(labels))
        with products(self.plan, self.device):
            batches = self._micro_batches(batch)
            loss = self.pipeline.train(batches, labelled, self.scaler.scale)
        return self._over_samples(loss)

    @record_function("reduce")
    def gradients(self) -> dict[str, Tensor]:
        """The summed gradients of this rank's parts, by name; they are taken out of the model."""
        gradients = self.data.take()
        sum_partial_gradients(self.model, gradients, self.mesh.get_group("tp"))
        self._sum_over_ends(gradients)
        return gradients

    def _sum_over_ends(self, gradients: dict[str, Tensor]) -> None:
        """The matrix that embedding and head share has a gradient from each end of the pipeline."""
        name, messages = self.model.tied_over_ranks, self.pipeline.messages
        first, last = self.pipeline.owners[0], self.pipeline.owners[-1]
        if name not in gradients or messages.rank not in (first, last):
            return
        peer = last if messages.rank == first else first
        gradients[name].add_(messages.swap(gradients[name], peer))

    def update(self, gradients: dict[str, Tensor]) -> None:
        """One optimizer step with these gradients of the parts."""
        factor = self._lr_factor()
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * factor
        for part in self.parts:
            gradient = gradients.get(part.name)
            part.tensor.grad = None if gradient is None else gradient.to(part.tensor.dtype)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.data.publish()

    @torch.no_grad()
    def evaluate(
        self, batches: Iterable[tuple[Tensor, ...]], answers: list[int] | None = None
    ) -> dict[str, float | int]:
        """Mean loss over labelled tokens, and with `answers` the accuracy among those token ids; of
        a model that classifies rows, over rows, and the accuracy among its classes.

        Args:
            batches: of what a step takes: (input_ids, labels), each [batch, seq], and where there
                are documents and masks; the same on every rank.
            answers: the token ids that a label can be; the one with the largest logit is chosen.
        """
        self.model.eval()
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)  # loss, labels, right
        objective = self.model.objective
        wants = answers is not None or objective.of_rows
        for batch in batches:
            self._check(MicroBatch(*batch))
            parts = self._micro_batches(MicroBatch(*batch))
            with products(self.plan, self.device):
                outputs = self.pipeline.forward_only(
                    parts, num_items_in_batch=1, label_logits=wants
                )
            for part, out in zip(parts, outputs):
                targets = objective.targets(part.labels)
                targets = targets[targets != IGNORED]
                totals[0] += out.loss
                totals[1] += len(targets)
                if wants:
                    among = answers or range(self.model.classes)
                    allowed = torch.tensor(among, device=self.device)
                    totals[2] += (allowed[out.logits[:, allowed].argmax(1)] == targets).sum()
        totals = self._over_samples(totals)
        loss, count, right = totals.tolist()
        unit = "rows" if objective.of_rows else "tokens"
        result: dict[str, float | int] = {"loss": loss / max(1, count), unit: int(count)}
        return result | {"accuracy": right / max(1, count)} if wants else result

    def _check(self, batch: MicroBatch) -> None:
        self.model.objective.check_shapes(batch.ids, batch.labels)
        check_tokens(batch.ids, batch.labels, self.model.vocabulary, self.model.classes)
        if batch.documents is not None and not self.model.objective.shift:
            raise UserError("rows are packed for causal language models alone, not for this one")
        for name, values in batch.inputs().items() if batch.documents is None else ():
            if values.shape != batch.ids.shape:
                raise UserError(f"{name} is {list(values.shape)}, ids are {list(batch.ids.shape)}")

    def _micro_batches(self, batch: MicroBatch) -> list[MicroBatch]:
        """This data rank's rows of a global batch in equal parts, on the device; under sequence
        parallelism as long as a multiple of tp."""
        ranks = self.group.size()
        n = self.plan.microbatches_of(-(-len(batch.ids) // ranks))  # the same on every rank
        own = _part(batch, ranks, self.group.rank())
        short = -own.ids.shape[1] % self.plan.tp if self.plan.sequence_parallel else 0
        pad_id = 0  # sees what came before it, and nothing sees it
        if short and not self.model.objective.shift:
            pad_id = self.model.config.pad_token_id or 0
            if own.attention_mask is None:
                own = own._replace(attention_mask=torch.ones_like(own.ids))
        padded = (
            None
            if values is None
            else F.pad(values, (0, short if values.dim() == 2 else 0), value=fill).to(self.device)
            for values, fill in zip(own, (pad_id, IGNORED, PADDING, 0, 0), strict=True)
        )
        own = MicroBatch(*padded)
        return [_part(own, n, index) for index in range(n)]

    def _over_samples(self, sums: Tensor) -> Tensor:
        """Sum over the ranks that see other samples, from the pipeline ranks that have results."""
        for name, group in (("reduce", self.group), ("wait", self.mesh.get_group("pp"))):
            if group.size() > 1:
                with record_function(name):
                    dist.all_reduce(sums, group=group)
        return sums

    def _lr_factor(self) -> float:
        return lr_factor(self.steps_done, self.lr_schedule, self.warmup_steps, self.total_steps)

    def state_bytes(self) -> dict[str, int]:
        """Bytes of this rank's parameters, gradients and optimizer: see memory/states.py."""
        tensors = [part.tensor for part in self.parts]
        return state_bytes(self.model, tensors, self.optimizer, self.data.gradient_bytes)


def check_numbers(**numbers: float) -> None:
    """Raise a UserError if one is not a finite number above 0."""
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise UserError(f"{name} must be a number above 0, not {number!r}")


def _part(batch: MicroBatch, n: int, index: int) -> MicroBatch:
    """Rows `index` of `n`. Where there are too few, one row without labels: it changes nothing, and
    the rank takes part in every collective."""
    part = MicroBatch(*(None if x is None else x.tensor_split(n)[index] for x in batch))
    if len(part.ids):
        return part
    first = MicroBatch(*(None if x is None else x[:1] for x in batch))
    return first._replace(labels=torch.full_like(first.labels, IGNORED))
