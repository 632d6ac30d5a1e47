"""Does a layout compute what the model's own class does? Tried on a few small layers, not believed.

    trial = Trial(type(model), model.config, tp=2)
    trial.difference(lay_out, ranks=1, gradients=...)     # None, or in words what is not the same

Before a model is laid out, a copy with few layers, small widths and random weights is laid out in
the same way, and its loss and every gradient are held against the class's own. It takes
milliseconds, and what a rule of this engine overlooks (a scale of the logits, a mask by layer, a
norm between two layers) shows as a difference.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UserError, named_reason
from ..models.architecture import text_config
from ..models.configurations import longest_row
from ..models.documents import positions
from ..models.objectives import IGNORED, is_of_transformers, objective_of, other_task
from .small_copies import VOCABULARY, small_configs
from .truth import ROWS, Truth, check_copy, loss_of, truth_of, without_dropout

# of the loss; many classes compute norms or softmax in float32 whatever their dtype
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}

SHORT_ROW, LONG_ROW = 10, 128  # tokens
# of a configuration, by which copies are made small and rows not too long
NAMES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
NAMES += ("max_position_embeddings",)

FAILS = "it fails with"  # so a difference begins that is none, but an error

LayOut = Callable[[nn.Module, int], nn.Module]  # a model and a pipeline rank, to this rank's stage


class WholeRows:
    """How a batch is handed to a laid-out model, where each rank has all of its tokens."""

    def inputs(self, batch: dict[str, Tensor], config: Any) -> dict[str, Any]:
        """What the model with this configuration is called with."""
        return batch

    def working(self) -> AbstractContextManager:
        """In which forward and backward run."""
        return nullcontext()

    def whole(self, term: Tensor) -> Tensor:
        """A loss or gradient over all tokens, of this rank's term of it."""
        return term


class WrongInParts(NamedTuple):
    """A parameter whose gradient is another where a batch comes in parts.

    rounded_to: its dtype, where that is why.
    """

    name: str
    rounded_to: torch.dtype | None


Gradients = Callable[[nn.Module], dict[str, Tensor]]  # whole gradients, by name


@dataclass(frozen=True)
class Trial:
    """Small copies of a model, to try layouts on.

    tp: ranks that must be able to split their heads and widths.
    each: blocks of each kind.
    """

    model_class: type[nn.Module]
    config: Any
    tp: int = 1
    each: int = 1
    device: str = "cpu"

    @cached_property
    def truth(self) -> Truth:
        """Raises a UserError if the class itself cannot be run so."""
        reasons, unfit = [], []
        for config in small_configs(self.config, self.tp, self.each, deep=self._is_own):
            try:
                check_copy(self.model_class, config, self.config)
            except Exception as error:  # each class has its own complaints
                unfit.append(named_reason(error))
                continue
            for dtype in (torch.float64, torch.float32):  # some experts' products take no float64
                try:
                    return truth_of(self.model_class, config, dtype, self._length, self.device)
                except Exception as error:
                    reasons.append(named_reason(error))
        reason = reasons[1] if reasons else unfit[0]  # of the first in float32
        raise UserError(
            other_task(self.model_class, self.config)
            or f"a small {self.config.model_type} could not be run by transformers to check the "
            f"layout against ({reason}){self._unnamed}"
        )

    @property
    def _unnamed(self) -> str:
        """What a small copy is made by, and the configuration has under other names alone."""
        missing = [name for name in NAMES if not hasattr(text_config(self.config), name)]
        if not self._is_own or not missing:
            return ""
        return (
            f"; its configuration has no {', '.join(missing)}, by which it is made small: name "
            "them in the attribute_map of its class"
        )

    @property
    def _is_own(self) -> bool:
        """Is the class none of transformers', so that nobody went through it? It may tell blocks
        apart by their numbers and have windows under names of its own."""
        return not is_of_transformers(self.model_class)

    @property
    def _length(self) -> int:
        """Tokens of a row, which ranks of tp can share."""
        if not self._is_own:
            return self.tp * -(-SHORT_ROW // self.tp)
        longest = min(LONG_ROW, longest_row(self.config) or LONG_ROW)
        return max(self.tp, longest - longest % self.tp)

    @cached_property
    def packed(self) -> dict[str, Tensor]:
        """A row of three documents as a MicroBatch has it, the first longer than a small window."""
        lengths = max(1, self._length // 11) * torch.tensor([6, 3, 2])
        documents = torch.arange(3).repeat_interleave(lengths).unsqueeze(0)
        ids = 1 + torch.arange(documents.numel()).unsqueeze(0) % (VOCABULARY - 1)
        labels = ids.where(positions(documents) > 0, IGNORED)
        return {"ids": ids, "labels": labels, "documents": documents}

    def difference(
        self, lay_out: LayOut, ranks: int, gradients: Gradients, rows: WholeRows | None = None
    ) -> str | None:
        """What is not the same where `lay_out` lays the small model out over pipeline ranks.

        Args:
            ranks: of the pipeline.
            rows: how the batch is handed over; of each row a part where ranks of cp share it.
        """
        rows = rows or WholeRows()
        truth = self.truth
        limit = TOLERANCE[truth.loss.dtype]
        try:
            models = [lay_out(copy.deepcopy(truth.model), rank) for rank in range(ranks)]
            with rows.working():
                loss = rows.whole(_run(models, truth, rows))
            found = _added(map(gradients, models))
            found = {
                name: rows.whole(found.get(name, torch.zeros_like(expected)))
                for name, expected in truth.gradients.items()
            }
        except UserError as error:
            return str(error)
        except Exception as error:  # whatever breaks a class's forward
            return f"{FAILS} {named_reason(error)}"
        if not abs(loss - truth.loss) <= limit * abs(truth.loss):
            return f"its loss would be {loss.item():.6g} for {truth.loss.item():.6g}"
        if wrong := wrong_gradient(found, truth.gradients, limit):
            return f"the gradient of {wrong} would be wrong"
        wrong = _wrong_buffer(models, truth)
        return wrong and f"its buffer {wrong}, which a forward changes, would be wrong"

    @cached_property
    def mixes_rows(self) -> bool:
        """Does what is predicted in a row depend on the other rows of its batch?"""
        model, batch = self.truth.model, {**self.truth.batch}
        del batch["labels"]
        some = {name: value[: ROWS // 2] for name, value in batch.items()}
        with torch.no_grad():
            whole, part = (
                copy.deepcopy(model)(**rows, use_cache=False).logits for rows in (batch, some)
            )
        apart, largest = (whole[: len(part)] - part).abs().max(), whole.abs().max()
        return not apart <= max(1e-5, TOLERANCE[part.dtype]) * largest  # of logits near 0, too

    @cached_property
    def wrong_gradient_in_parts(self) -> WrongInParts | None:
        """A parameter to which a batch gives another gradient than its rows' terms of the loss have
        together. A class may add to it in the backward alone, as what balances experts, once for
        each part of a batch; or have a parameter of few bits, to which each part's is rounded."""
        truth, objective, found = self.truth, objective_of(self.truth.model), []
        labelled = objective.count(truth.batch["labels"])
        for batch in self._halves():
            model = copy.deepcopy(truth.model)  # some classes keep states of the last batch
            labels = batch.pop("labels")
            loss = loss_of(objective, model(**batch, use_cache=False).logits, labels)
            (loss * objective.count(labels) / labelled).backward()
            found.append(gradients_of(model))
        total = {n: torch.zeros_like(g) for n, g in truth.gradients.items()} | _added(iter(found))
        name = wrong_gradient(total, truth.gradients, TOLERANCE[truth.loss.dtype])
        if name is None:
            return None
        dtype = truth.gradients[name].dtype
        added = wrong_gradient(total, truth.gradients, torch.finfo(dtype).eps) is not None
        return WrongInParts(name, None if added else dtype)

    def wrong_buffer_in_parts(self, in_turn: bool) -> str | None:
        """A buffer that a batch leaves with other values than its rows do in two parts: one part
        after another, or each in a model of its own."""
        truth, models = self.truth, []
        for batch in self._halves():
            if not (in_turn and models):
                models.append(copy.deepcopy(truth.model))
            del batch["labels"]
            with torch.no_grad():
                models[-1](**batch, use_cache=False)
        return _wrong_buffer(models, truth)

    def _halves(self) -> Iterator[dict[str, Tensor]]:
        for rows in (slice(ROWS // 2), slice(ROWS // 2, None)):
            yield {name: value[rows] for name, value in self.truth.batch.items()}

    @cached_property
    def looks_ahead(self) -> bool:
        """Does what follows a token change what is predicted from it?"""
        model, ids = self.truth.model, self.truth.batch["input_ids"]
        other = ids.clone()
        other[:, -1] = (other[:, -1] + 1) % VOCABULARY
        with torch.no_grad():
            first, changed = (
                copy.deepcopy(model)(input_ids=rows, use_cache=False).logits[:, :-1]
                for rows in (ids, other)
            )
        return not torch.allclose(first, changed, rtol=TOLERANCE[first.dtype], atol=1e-6)

    def differs_with(self, attention: str) -> bool:
        """Does the class itself give another loss with this implementation of attention than with
        its own? Falcon's adds ALiBi twice by the formula."""
        truth = self.truth
        config, weights = copy.deepcopy(truth.model.config), truth.model.state_dict()
        if config._attn_implementation == attention:
            return False
        other = self.model_class._from_config(config, attn_implementation=attention).to(truth.loss)
        other.load_state_dict(weights)
        batch = dict(truth.batch)
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = without_dropout(other.train())(**batch, use_cache=False).logits
        loss = loss_of(objective_of(other), logits, labels)
        return not abs(loss - truth.loss) <= 10 * TOLERANCE[loss.dtype] * abs(truth.loss)

    def fails_in(self, lay_out: LayOut, dtype: torch.dtype) -> str | None:
        """What the small model, laid out, ends in with its parameters in this dtype and its buffers
        in float32; None where it runs."""
        model = lay_out(copy.deepcopy(self.truth.model).float(), 0)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        try:
            model(**self.truth.batch, num_items_in_batch=1).loss.backward()
            with torch.no_grad():  # where some compute otherwise
                model.eval()(**self.truth.batch, num_items_in_batch=1)
        except Exception as error:  # each class has its own complaints
            return named_reason(error)
        return None

    def calls_blocks(self, lay_out: LayOut) -> bool:
        """Does the small model, laid out, call those of its blocks that it uses? A class may call
        their forward instead, past all hooks."""
        model, called = lay_out(copy.deepcopy(self.truth.model), 0), set()
        blocks = [block for stage in model.stages for block in stage.blocks.values()]
        for block in blocks:
            block.register_forward_pre_hook(lambda block, _: called.add(block))
        model(**self.truth.batch, num_items_in_batch=1).loss.backward()
        used = {b for b in blocks if any(p.grad is not None for p in b.parameters())}
        return used <= called

    def keeps_documents(
        self, lay_out: LayOut, inputs: dict[str, Any], gradients: Gradients
    ) -> bool:
        """Does the small model, laid out and given `packed` by these inputs, have the loss and the
        gradients that the class gives to each document alone? One is longer than its windows."""
        truth, limit = self.truth, TOLERANCE[self.truth.loss.dtype]
        try:
            model = lay_out(copy.deepcopy(truth.model), 0)
            packed = model(**inputs, num_items_in_batch=1).loss
            packed.backward()
        except Exception:  # whatever breaks a class's forward
            return False
        alone, expected = self._documents_alone
        if not abs(packed - alone) <= limit * abs(alone):
            return False
        return wrong_gradient(gradients(model), expected, limit) is None

    @cached_property
    def _documents_alone(self) -> tuple[Tensor, dict[str, Tensor]]:
        """What the class makes of the documents of `packed`, each alone: loss and gradients."""
        losses, gradients = [], []
        for number in range(3):
            model = copy.deepcopy(self.truth.model)  # some classes keep states of the last batch
            row = self.packed["documents"][0] == number
            own = self.packed["ids"][:, row].to(self.device)
            logits = model(own[:, :-1], use_cache=False).logits[0]
            losses.append(nn.functional.cross_entropy(logits, own[0, 1:], reduction="sum"))
            losses[-1].backward()
            gradients.append(gradients_of(model))
        return sum(losses).detach(), _added(iter(gradients))


def wrong_gradient(
    found: dict[str, Tensor], expected: dict[str, Tensor], limit: float
) -> str | None:
    """The first parameter whose gradient is missing or another, by name."""
    largest = max(gradient.abs().max() for gradient in expected.values() if gradient.numel())
    for name, gradient in expected.items():
        if name not in found or not is_same_gradient(found[name], gradient, limit, largest):
            return name
    return None


def _wrong_buffer(models: list[nn.Module], truth: Truth) -> str | None:
    """The first of their buffers that the class leaves with other values, by name."""
    limit = TOLERANCE[truth.loss.dtype]
    for name, buffer in itertools.chain(*(model.named_buffers() for model in models)):
        own, right = map(_wide, (buffer, truth.buffers.get(name, buffer)))
        same = own.shape == right.shape
        if not same or not torch.allclose(own, right, rtol=10 * limit, atol=limit, equal_nan=True):
            return name
    return None


def _wide(numbers: Tensor) -> Tensor:
    """In double precision, whether they are real or complex."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float64))


def is_same_gradient(actual: Tensor, expected: Tensor, limit: float, largest: Tensor) -> bool:
    """Within ten times the limit of a loss. A gradient that is zero but for rounding has the
    rounding of the model's largest."""
    if not expected.numel():
        return actual.shape == expected.shape
    scale = max(expected.abs().max(), 1e-3 * largest)
    return bool((actual - expected).abs().max() <= 10 * limit * scale)


def _run(models: list[nn.Module], truth: Truth, rows: WholeRows) -> Tensor:
    """Forward through all stages of all ranks and backward through them again, on one batch."""
    labelled = objective_of(truth.model).count(truth.batch["labels"])
    inputs = rows.inputs(truth.batch, truth.model.config) | {"num_items_in_batch": labelled}
    stages = [(stage, model) for model in models for stage in model.stages]
    passed: list[tuple[Tensor | None, Tensor]] = []  # what each received, and what it gave
    received = None
    for stage, model in sorted(stages, key=lambda pair: pair[0].index):
        options = {}
        if len(stages) > 1:
            stage.listen()
            options = {"stage": stage, "received": received}
        out = model(**inputs, **options)
        out = out if isinstance(out, Tensor) else out.loss
        passed.append((received, out))
        received = out.detach().requires_grad_()
    loss = passed[-1][1]
    gradient = None
    for given, out in reversed(passed):
        out.backward(gradient)
        gradient = None if given is None else given.grad
    return loss.detach()


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Those that there are, by name."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _added(gradients: Iterator[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A parameter that two ranks hold has the sum of their gradients."""
    total: dict[str, Tensor] = {}
    for of_rank in gradients:
        for name, gradient in of_rank.items():
            total[name] = total[name] + gradient if name in total else gradient
    return total
