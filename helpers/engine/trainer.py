"""One training step over a global batch, and what it measured."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import record_function

from .admission.given_model import check_trained, trained
from .admission.packed_rows import documents_one_by_one
from .admission.same_on_all import check_same_batch, check_same_weights
from .data_parallel.axes import data_group, token_group
from .data_parallel.given import anywhere
from .data_parallel.layouts import data_parallel
from .data_parallel.owned_shards import OwnedShard
from .errors import Diverged, UserError, check_seed
from .files.trainer_state import frozen_of
from .memory.states import state_bytes
from .messages.carriers import all_reduce
from .models.architecture import text_config
from .models.causal_loss import check_answers
from .parallelize import check_laid_out, lay_out
from .pipeline.micro_batches import (
    MASKS,
    MicroBatch,
    as_many_rows,
    check_batch,
    in_64_bits,
    own_tokens,
    placed,
    some_rows,
)
from .pipeline.runner import Pipeline
from .plan import ParallelPlan
from .precision.bf16_products import products
from .precision.loss_scaling import MOST_BAD_STEPS, LossScaler
from .precision.not_finite import not_finite
from .precision.optimizer import (
    adamw,
    check_changed,
    check_lr_schedule,
    check_settings,
    gradient_norm,
    lr_factor,
    scale_,
    set_lr,
)
from .precision.replay import twice
from .ranks.agreeing import largest_over_ranks
from .tensor.partial_gradients import sum_partial_gradients

COMPARED_EVERY = 10  # steps, of which the first one's batch is compared over the ranks


class Observer(Protocol):
    """What may look at a step."""

    def before_update(
        self, parts: Iterable[OwnedShard], gradients: dict[str, Tensor], scale: float
    ) -> None: ...

    def after_update(self, parts: Iterable[OwnedShard]) -> None: ...


@dataclass(frozen=True)
class StepResult:
    """What a step did. The loss and the norm are the whole model's, over the whole batch; `scale`
    is what the loss was multiplied by."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    step_s: float
    skipped: bool = False
    scale: float = 1.0


class Trainer:
    """Trains a model that is laid out already.

    Every rank hands `step` the same global batch and takes its own rows of it, so the samples, and
    the token count that the loss is divided by, do not depend on the layout.

    Args:
        clip: largest gradient norm, None for no limit.
        optimizer: one of optimizer.OPTIMIZERS.
        hook: one of torch's DDP communication hooks, for plans of dp_replicate.

    Attributes:
        compare_in: steps until the batch is compared with those of the other ranks.
        runs_on: a step may end before ZeRO-1 or 2 has every rank's new parameters whole: the next
            forward waits for them, block by block, and `settle` for whoever else reads them.
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
        check_settings(optimizer, lr, weight_decay, betas, eps, clip)
        check_lr_schedule(lr_schedule, warmup_steps, total_steps)
        check_seed(seed)
        if not largest_over_ranks(int(any(p.requires_grad for p in model.parameters()))):
            raise UserError("no parameter trains: leave some with requires_grad=True")
        check_laid_out(model, plan)
        self.trains = model.trained_by = trained(model)
        self.model, self.plan, self.mesh = model, plan, mesh
        self.lr, self.last_lr, self.clip = lr, lr, clip
        self.lr_schedule, self.warmup_steps = lr_schedule, warmup_steps
        self.total_steps = total_steps
        self.data = data_parallel(model, plan, mesh, hook)
        self.parts, self.frozen = self.data.parts, frozen_of(model)
        self.optimizer = adamw(self.parts, lr, weight_decay, betas, eps, optimizer)
        self.scaler = LossScaler.for_precision(plan.precision)
        self.group = data_group(mesh, plan)
        self.token_group = token_group(mesh, plan)
        floats = (p.dtype for p in model.parameters() if p.is_floating_point())
        self.pipeline = Pipeline(
            model,
            mesh,
            self.data,
            plan.schedule_of,
            dtype=plan.low_dtype(mesh.device_type) or next(floats),
            sequence_parts=plan.sequence_parts,
        )
        self.device = next(model.parameters()).device
        self.steps_done = 0
        self.compare_in = 0 if mesh.size() > 1 else math.inf
        self.runs_on = False
        # dropout differs between tokens and between stages, not between the ranks of tp
        torch.manual_seed(seed + 1_000_003 * self.token_group.rank() + 1_009 * self.pipeline.rank)

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
            documents: [batch, seq] of packed rows, see models/documents.py. The first token of
                a document would be predicted from the document before: its label is -100.
            masks: `attention_mask` and `token_type_ids`, [batch, seq], as transformers takes them.
            replay: forward and backward twice, and compare: see precision/replay.py.
            observer: looks at the parts before and after the update, and changes nothing.

        Raises:
            UserError: the batch cannot be trained on, or other ranks have another (which the first
                step and every tenth look at); or what trains, or the learning rate, was changed
                from outside.
            Diverged: loss or gradient were not finite in several steps in a row.
            NotRepeatable: two passes differ; weights and optimizer are as before the step.
        """
        if unknown := sorted(masks.keys() - set(MASKS)):
            raise UserError(f"a step takes {', '.join(MASKS)} beside, and no {unknown[0]}")
        if self.compare_in == 0:
            self.compare_in = COMPARED_EVERY
            check_same_weights(self.model)
            check_same_batch(MicroBatch(input_ids, labels, documents, **masks))
        self.compare_in -= 1
        started = time.perf_counter()

        def take() -> tuple[Tensor, dict[str, Tensor]]:
            return self.backward(input_ids, labels, documents, **masks), self.sums()

        loss, gradients = twice(take, self.steps_done + 1, self.model) if replay else take()
        with record_function("optimizer"):
            scale = self.scaler.scale
            norm = gradient_norm(self.parts, gradients, self.device) / scale
            # the one place where a host waits for its GPU, for all three
            loss, norm, complete = torch.stack([loss, norm, self.complete]).cpu().tolist()
            gradients = gradients if complete else self._with_gradient(gradients)
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
            raise Diverged(not_finite(self.steps_done, self.parts, gradients))
        if self.device.type == "cuda":  # which is still at the update
            torch.cuda.current_stream(self.device).synchronize()
        elapsed = time.perf_counter() - started
        return StepResult(self.steps_done, loss, norm, lr, elapsed, skip, scale)

    def backward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        documents: Tensor | None = None,
        **masks: Tensor | None,
    ) -> Tensor:
        """Leave the gradients of the batch's mean loss with the data ranks; returns that loss."""
        if not torch.is_grad_enabled():
            raise UserError("a step needs gradients: take it outside of no_grad and inference_mode")
        check_changed(self.lr, self.clip)
        batch = MicroBatch(input_ids, labels, documents, **masks)
        batches = self._micro_batches(batch)
        check_trained(self.model, self.trains)
        self.model.train()
        labelled = max(1, self.model.objective.count(labels.long()))
        with products(self.plan, self.device):
            loss = self.pipeline.train(batches, labelled, self.scaler.scale)
        self.given = set(self.data.given)
        complete = loss.new_full((), len(self.given) == len(self.parts))
        loss, ranks = self._over_samples(torch.stack([loss, complete])).unbind()
        self.complete = ranks // (self.token_group.size() * self.plan.pp)
        return loss

    def gradients(self) -> dict[str, Tensor]:
        """The summed gradients of this rank's parts, by name, of which any rank had one; they are
        taken out of the model. The loss scale of fp16 is undone: some are not finite where it was
        too large."""
        gradients = self.sums()
        scale_(gradients, 0.0, None, self.scaler.scale)
        return gradients if self.complete else self._with_gradient(gradients)

    def _with_gradient(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        names = anywhere(self.given, self.parts, self.token_group)
        return {name: gradient for name, gradient in gradients.items() if name in names}

    @record_function("reduce")
    def sums(self) -> dict[str, Tensor]:
        """The same of all parts, zeros where no rank had one."""
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
        """One optimizer step with these gradients of the parts, by name.

        Raises:
            UserError: one is of no parameter that trains; in a pipeline it may be another rank's.
        """
        check_changed(self.lr, self.clip)
        unknown = gradients.keys() - {part.name for part in self.parts}
        if unknown and self.plan.pp == 1:
            raise UserError(
                f"no parameter that trains is called {min(unknown)}: name gradients as "
                "trainer.gradients() does"
            )
        self.settle()  # what arrives later would put the values before in the place of the new ones
        self.last_lr = set_lr(self.optimizer, self.last_lr, self.lr * self._lr_factor())
        for part in self.parts:
            gradient = gradients.get(part.name)
            part.tensor.grad = None if gradient is None else gradient.to(part.tensor.dtype)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.data.publish(beside=self.runs_on)

    def settle(self) -> None:
        """Wait until the parameters are those of the last step."""
        self.data.settle()

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

        Returns:
            `loss`, `tokens` or `rows`, and `accuracy`; without a label the means are not a number.
        """
        if answers is not None:
            check_answers(answers, self.model.vocabulary)
        self.model.eval()
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)  # loss, labels, right
        objective = self.model.objective
        among = range(self.model.classes) if objective.of_rows else answers
        allowed = None if among is None else torch.tensor(among, device=self.device)
        for batch in batches:
            parts = self._micro_batches(MicroBatch(*batch))
            with products(self.plan, self.device):
                outputs = self.pipeline.forward_only(
                    parts, num_items_in_batch=1, label_logits=allowed is not None
                )
            for part, out in zip(parts, outputs):
                totals[0] += out.loss
                totals[1] += len(part.places)
                if allowed is not None:
                    chosen = allowed[out.logits.index_select(1, allowed).argmax(1)]
                    totals[2] += (chosen == part.answers(objective)).sum()
        totals = self._over_samples(totals)
        loss, count, right = totals.tolist()
        unit = "rows" if objective.of_rows else "tokens"
        loss, accuracy = (total / count if count else math.nan for total in (loss, right))
        result: dict[str, float | int] = {"loss": loss, unit: int(count)}
        return result if allowed is None else result | {"accuracy": accuracy}

    def _micro_batches(self, batch: MicroBatch) -> list[MicroBatch]:
        """This data rank's rows of a global batch in equal parts, of which a rank of cp has its own
        tokens, on the device; once the model can train on them."""
        batch = in_64_bits(batch)
        check_batch(batch, self.model, self.plan.cp)
        self.model.check_padding(self.model, batch.labels, batch.attention_mask)
        ranks, cp_rank = self.group.size(), self.mesh.get_local_rank("cp")
        n = self.plan.microbatches_of(-(-len(batch.ids) // ranks))  # the same on every rank
        objective, config = self.model.objective, text_config(self.model.config)
        own = some_rows(batch, ranks, self.group.rank())
        if self.plan.ep > 1:  # whose messages are as long on every rank
            own = as_many_rows(own, -(-len(batch.ids) // ranks))
        parts = (some_rows(own, n, index) for index in range(n))
        pad_id = (config.pad_token_id or 0) if self.model.looks_ahead else None
        parted = cp_rank, self.plan.cp, self.plan.cp_split, self.plan.sequence_parts
        one_by_one = batch.documents is None or self.plan.cp > 1 or self._one_by_one(batch)
        how = *parted, pad_id, one_by_one
        return [placed(own_tokens(part, *how), objective).to(self.device) for part in parts]

    def _one_by_one(self, packed: MicroBatch) -> bool:
        return documents_one_by_one(self.model, packed.ids.shape[1], self.device, lay_out)

    def _over_samples(self, sums: Tensor) -> Tensor:
        """Sum over the ranks that see other tokens, from the pipeline ranks that have results."""
        for name, group in (("reduce", self.token_group), ("wait", self.mesh.get_group("pp"))):
            if group.size() > 1:
                with record_function(name):
                    all_reduce(sums, group)
        return sums

    def _lr_factor(self) -> float:
        return lr_factor(self.steps_done, self.lr_schedule, self.warmup_steps, self.total_steps)

    def state_bytes(self) -> dict[str, int]:
        """Bytes of this rank's parameters, gradients and optimizer: see memory/states.py."""
        tensors = [part.tensor for part in self.parts]
        return state_bytes(self.model, tensors, self.optimizer, self.data.gradient_bytes)
