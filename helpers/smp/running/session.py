"""A session: what a converted script calls in the place of the library.

    run = Session()
    run.start({"tensor_parallel_degree": 2, "ddp": True})
    model = run.model(model)                                   # or run.load("a folder")
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for input_ids in loader:                                   # each rank's own, as before
        loss = run.backward(input_ids=input_ids, labels=input_ids).loss
        optimizer.step()

Ranks are counted as the library counts them, see groups.py.
"""

import atexit
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from helpers.commands import refuse
from helpers.engine.errors import UserError, need
from helpers.engine.files.checkpoints import Checkpoints, pick
from helpers.engine.files.weights import save_model
from helpers.engine.parallelize import load_model, parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed, pick_device, run_and_leave, world_size
from helpers.engine.trainer import Trainer
from helpers.smp.configuration import SmpConfig, read_smp_config
from helpers.smp.running.groups import Groups
from helpers.smp.running.step_optimizer import StepOptimizer
from helpers.smp.running.user_content import read_content, write_content

STRATEGIES = {"each": "full", "contiguous": "full"}


class Session(Groups):
    """One run of a converted script."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: ParallelPlan | None = None
        self.mesh: Any = None
        self.trainer: Trainer | None = None
        self._config: SmpConfig | None = None
        self._model: nn.Module | None = None
        self._optimizer: StepOptimizer | None = None

    @property
    def started(self) -> bool:
        return self.plan is not None

    @property
    def version(self) -> str:
        """In the place of the library's: which engine runs the script."""
        return f"helpers over torch {torch.__version__}"

    @property
    def device(self) -> torch.device:
        """This rank's."""
        return pick_device()

    def start(
        self,
        config: dict[str, Any] | None = None,
        given: dict[str, Any] | None = None,
        recompute: Any = False,
        strategy: str = "each",
    ) -> None:
        """Meet the other ranks under the plan of the library's configuration; once.

        Args:
            given: the job's own configuration, which the service put over the script's.
            recompute: keep of each block its input alone, and compute the rest again.
            strategy: `each` block by itself, or `group_N`.

        Raises:
            UserError: the configuration cannot be kept, or is for another number of ranks.
        """
        if self.started:
            return
        merged = {**(config or {}), **(given or {})}
        if "partitions" in (given or {}):  # an older name of the same
            merged.pop("pipeline_parallel_degree", None)
        self._config = read_smp_config(merged, world_size())
        activation = STRATEGIES.get(strategy, strategy) if recompute else "none"
        plan = replace(self._config.plan, activation=activation)
        stack = ExitStack()
        self.mesh = stack.enter_context(distributed(plan, self.device))
        atexit.register(stack.close)
        self.plan = plan
        self.meet(plan)

    # the model, its optimizer, and a step

    def creation(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        """In its block `load` makes the model."""
        return nullcontext()

    def load(
        self, source: str | Path | None = None, config: Any = None, seed: int | None = None
    ) -> nn.Module:
        """A model, laid out: built without memory, then filled from files, or drawn at random.

        Args:
            source: a folder, a hub id or a preset; None with a configuration alone.
            seed: of random weights; torch's own where none is given.
        """
        self._check_started()
        self._model = load_model(
            source if source is not None else config.model_type,
            self.plan,
            self.mesh,
            config=config,
            seed=torch.initial_seed() if seed is None else seed,
            device=self.device,
            from_scratch=source is None,
        )
        return self._model

    def model(self, model: nn.Module, *_: Any, **__: Any) -> nn.Module:
        """A model of transformers, laid out as it is: with the weights that it has."""
        self._check_started()
        if model is not self._model:
            self._model = parallelize(model.float().to(self.device), self.plan, self.mesh)
        return self._model

    def optimizer(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> StepOptimizer:
        """The script's optimizer over the parts that this rank owns."""
        if self._model is None:
            raise UserError("make the optimizer after the model is laid out, by run.model")
        self._optimizer = StepOptimizer(optimizer, self._model, self.plan, self.mesh)
        self.trainer = self._optimizer.trainer
        return self._optimizer

    def backward(
        self, *, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> Any:
        """Forward and backward of the whole batch, by the plan's schedule.

        Args:
            input_ids, labels: [batch, seq], this rank's own.
            attention_mask: all ones, for rows are whole.

        Returns:
            transformers' CausalLMOutput with the loss, the mean over the whole batch.

        Raises:
            UserError: rows are padded, or a step was not taken since the last call.
        """
        optimizer = self._ready()
        optimizer.begin()
        ids, labels = self._whole(input_ids, labels, attention_mask)
        loss = optimizer.trainer.backward(ids, labels)
        optimizer.loss = loss.item()
        return _output(loss)

    def evaluate(
        self, *, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> Any:
        """The mean loss over the whole batch; nothing is trained."""
        ids, labels = self._whole(input_ids, labels, attention_mask)
        found = self._ready().trainer.evaluate([(ids, labels)])
        return _output(torch.tensor(found["loss"], device=self.device))

    def _whole(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The rows of all ranks that have samples of their own, in their order."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise UserError(
                "rows are padded, and masks are not gathered here: pad on the right, with "
                "labels of -100, and leave the mask out"
            )
        rows = self.allgather((input_ids.cpu(), labels.cpu()), self._config.batch_of)
        return torch.cat([ids for ids, _ in rows]), torch.cat([wanted for _, wanted in rows])

    # what a run leaves behind

    def save_checkpoint(
        self,
        path: str | Path,
        tag: str = "model",
        partial: bool = True,
        model: nn.Module | None = None,
        user_content: dict[str, Any] | None = None,
        num_kept_partial_checkpoints: int | None = None,
        **_: Any,
    ) -> None:
        """A checkpoint that any plan reads; or with partial=False the whole weights, as a folder
        `tag` that transformers loads. Of the user's content the plain values are kept."""
        if partial:
            trainer = self._ready().trainer
            Checkpoints(Path(path), num_kept_partial_checkpoints or 2).save(trainer)
            write_content(Path(path), trainer.steps_done, user_content or {})
            return
        folder = Path(path) / Path(tag).stem
        save_model(model or self._model, folder)
        write_content(folder, 0, user_content or {})

    def resume_from_checkpoint(
        self, path: str | Path, tag: str | None = None, partial: bool = True, **_: Any
    ) -> dict[str, Any]:
        """Go on from the newest checkpoint in a folder; the user's content that it had."""
        if not partial:
            raise UserError("whole weights are a folder: give it to from_pretrained or run.load")
        trainer = self._ready().trainer
        Checkpoints(Path(path)).load(trainer, pick(Path(path)))
        return read_content(Path(path), trainer.steps_done)

    def by_hand(self, words: str) -> NoReturn:
        """What could not be converted, where it is reached."""
        raise UserError(f"not converted: {words}")

    def leave_after(self, main: Callable[[], Any]) -> NoReturn:
        """Run a script's main, and end as the engine's runs do; a mistake is one line, exit 2."""

        def whole() -> None:
            try:
                main()
            except UserError as error:
                refuse(str(error))

        run_and_leave(whole)

    def _ready(self) -> StepOptimizer:
        if self._optimizer is None:
            raise UserError("give the optimizer to run.optimizer before the first step")
        return self._optimizer

    def _check_started(self) -> None:
        if not self.started:
            raise UserError("the ranks have not met yet: run.start(config) comes first")


def _output(loss: Tensor) -> Any:
    outputs = need("transformers", "hf").modeling_outputs
    return outputs.CausalLMOutput(loss=loss)
