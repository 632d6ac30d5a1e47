"""Run a schedule: this rank's actions on a batch's micro-batches, one after another.

Without a pipeline the schedule is forward and backward in turn, and nothing is sent.

    F   take what the stage before sent, run the stage, send the result on
    B   take its gradient, run backward, send the gradient of what was received back
    I   the same without the weights' gradients; W these, later

Receives are posted `AHEAD` actions early, so messages travel while the rank computes. Of a forward
only its graph and its input are kept, and the backward frees both.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import record_function

from ..models.architecture import text_config
from .messages import MessageKey, PipelineMessages
from .micro_batches import MicroBatch
from .schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule
from .simulator import Span

AHEAD = 2  # actions whose messages are on their way while one runs

HISTORY = 10  # training batches whose times are kept

Run = Callable[[Action, Tensor | None], None]


class InFlight(NamedTuple):
    """What a forward leaves for its backward: the stage's input and the end of its graph."""

    received: Tensor | None
    end: GradientEdge


class Pipeline:
    """This rank's part of a pipeline.

    Args:
        model: laid out, with this rank's `stages`.
        data: what sums gradients over data ranks: data_parallel/layouts.py.
        schedule_of: the schedule of so many micro-batches.
        dtype: of hidden states.
        sequence_parts: ranks over which sequence parallelism splits hidden states.

    Attributes:
        timed: note when each action runs, on a GPU by waiting for it.
        history: these times, of the last training batches, in seconds since the epoch; what lies
            between is waiting for messages.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        data: Any,
        schedule_of: Callable[[int], Schedule],
        dtype: torch.dtype,
        sequence_parts: int = 1,
    ) -> None:
        self.model, self.data, self.schedule_of = model, data, schedule_of
        self.messages = PipelineMessages(mesh)
        self.rank = self.messages.rank
        self.owners = schedule_of(1).rank_of
        self.stages = {stage.index: stage for stage in model.stages}
        self.dtype, self.sequence_parts = dtype, sequence_parts
        self.timed = False
        self.history: deque[list[Span]] = deque(maxlen=HISTORY)

    def train(self, batches: Sequence[MicroBatch], tokens: int, scale: float) -> Tensor:
        """Forward and backward of all micro-batches; gradients are left with `data`.

        Args:
            tokens: labelled tokens of the whole batch, which each micro-batch's loss is divided by.
            scale: that the loss is multiplied by before its backward.

        Returns:
            The summed loss in float64, 0 on ranks without the last stage.
        """
        actions = self.schedule_of(len(batches)).ranks[self.rank]
        step = _Step(self, batches, tokens, scale, actions)
        self._walk(actions, batches, self._timing(step.run) if self.timed else step.run)
        if any(action.kind == WEIGHT for action in actions):
            self.data.begin(last=True, complete=True)
            with record_function("reduce"):
                self.data.end()
        return step.loss

    def forward_only(self, batches: Sequence[MicroBatch], **options: Any) -> list[Any]:
        """The model's outputs by micro-batch, nothing kept for a backward; empty on ranks without
        the last stage."""
        every = self.schedule_of(len(batches)).ranks[self.rank]
        outputs = []

        def run(action: Action, received: Tensor | None) -> None:
            out = self._run_stage(action, batches[action.microbatch], received, options)
            if self.stages[action.stage].last:
                outputs.append(out)
            else:
                self._send(FORWARD, action.stage + 1, action.microbatch, out)

        self._walk([action for action in every if action.kind == FORWARD], batches, run)
        return outputs

    def _walk(
        self,
        actions: Sequence[Action],
        batches: Sequence[MicroBatch],
        run: Run,
    ) -> None:
        """Do the actions in order, each with the message that it needs."""
        for index, action in enumerate(actions):
            for coming in actions[index : index + 1 + AHEAD]:
                self._expect(coming, batches)
            key = self._needs(action)
            message = None if key is None else self._take(key)
            with self._part(batches[action.microbatch]):
                run(action, message)
        with record_function("wait"):
            self.messages.finish()

    def _part(self, batch: MicroBatch) -> AbstractContextManager:
        """For so long attention knows what this rank has of the rows, and their documents."""
        return self.model.boundary.working_on(batch.part, batch.rows)

    @record_function("wait")
    def _take(self, key: MessageKey) -> Tensor:
        return self.messages.take(key)

    def _timing(self, run: Run) -> Run:
        spans: list[Span] = []
        self.history.append(spans)
        on_gpu = next(self.model.parameters()).is_cuda

        def timed(action: Action, message: Tensor | None) -> None:
            started = time.time()
            run(action, message)
            if on_gpu:
                torch.cuda.synchronize()
            spans.append(Span(action, started, time.time()))

        return timed

    def _needs(self, action: Action) -> MessageKey | None:
        """The message that an action waits for."""
        kind, stage, i = action
        if kind == FORWARD:
            return None if self.stages[stage].first else MessageKey(FORWARD, stage, i)
        if kind == WEIGHT or self.stages[stage].last:
            return None
        return MessageKey(INPUT, stage, i)

    def _expect(self, action: Action, batches: Sequence[MicroBatch]) -> None:
        key = self._needs(action)
        if key is None:
            return
        sender = self.owners[key.stage + (-1 if key.kind == FORWARD else 1)]
        ids = batches[key.microbatch].ids
        width = text_config(self.model.config).hidden_size
        shape = (len(ids), ids.shape[1] // self.sequence_parts, width)
        self.messages.expect(
            key, sender, lambda: torch.empty(shape, dtype=self.dtype, device=ids.device)
        )

    def _send(self, kind: str, stage: int, microbatch: int, tensor: Tensor) -> None:
        self.messages.send(MessageKey(kind, stage, microbatch), tensor.detach(), self.owners[stage])

    def _run_stage(
        self, action: Action, batch: MicroBatch, received: Tensor | None, options: dict[str, Any]
    ) -> Any:
        options = batch.inputs(self.model.config) | options
        if self.messages.group.size() > 1:
            options = options | {"stage": self.stages[action.stage], "received": received}
        with record_function("forward"):
            return self.model(checked=True, **options)


class _Step:
    """One batch on its way through this rank."""

    def __init__(
        self,
        pipeline: Pipeline,
        batches: Sequence[MicroBatch],
        tokens: int,
        scale: float,
        actions: Sequence[Action],
    ) -> None:
        self.pipeline, self.batches = pipeline, batches
        self.tokens, self.scale = tokens, scale
        self.loss = torch.zeros((), dtype=torch.float64, device=batches[0].ids.device)
        self.in_flight: dict[tuple[int, int], InFlight] = {}
        self.splits_backward = any(action.kind == WEIGHT for action in actions)
        self.final = [action for action in actions if action.kind in (BACKWARD, INPUT)][-1]

    def run(self, action: Action, message: Tensor | None) -> None:
        how = {FORWARD: self.forward, BACKWARD: self.backward, INPUT: self.input}
        how.get(action.kind, self.weight)(action, message)

    def forward(self, action: Action, received: Tensor | None) -> None:
        _, stage, i = action
        if received is not None:
            received.requires_grad_()
        out = self.pipeline._run_stage(
            action, self.batches[i], received, {"num_items_in_batch": self.tokens}
        )
        if self.pipeline.stages[stage].last:
            self.loss += out.loss.detach()
            out = out.loss * self.scale
        else:
            self.pipeline._send(FORWARD, stage + 1, i, out)
            if not out.requires_grad:  # of first stages in which nothing trains
                out.requires_grad_()
        self.in_flight[stage, i] = InFlight(received, get_gradient_edge(out))

    def backward(self, action: Action, gradient: Tensor | None) -> None:
        _, stage, i = action
        forward = self.in_flight.pop((stage, i))
        last = action == self.final
        self.pipeline.data.begin(last, complete=last and not self.splits_backward)
        with record_function("backward"):
            torch.autograd.backward(forward.end, gradient)
        if forward.received is not None:  # before the sums over data ranks, for which nobody waits
            self.pipeline._send(INPUT, stage - 1, i, forward.received.grad)
        with record_function("reduce"):
            self.pipeline.data.end()

    def input(self, action: Action, gradient: Tensor | None) -> None:
        with self.pipeline.model.later.put_off((action.stage, action.microbatch)):
            self.backward(action, gradient)

    @record_function("backward")
    def weight(self, action: Action, _: None) -> None:
        key = (action.stage, action.microbatch)
        self.pipeline.model.later.compute(key, self.pipeline.data.add)
