"""A micro-batch: rows that go through the model together, and what a rank has of them."""

from inspect import signature
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..context.check import check_rotary
from ..context.parts import Part, share
from ..errors import UserError
from ..models.architecture import text_config
from ..models.causal_loss import check_range, check_tokens, label_places
from ..models.configurations import check_length, longest_row
from ..models.documents import PADDING, Document, documents_of, model_inputs, positions
from ..models.families import WINDOWS, has_alibi
from ..models.objectives import IGNORED, WHOLE, Objective, check_whole

MASKS = ("attention_mask", "token_type_ids")  # as transformers calls them
LONG_ROW = 512  # tokens, from which documents one by one are quicker than one call with a mask


class MicroBatch(NamedTuple):
    """[rows, seq] each; labels may be [rows], see models/objectives.py. Documents of packed rows,
    see models/documents.py.

    positions, part: where ranks of cp have parts of the rows; the labels are then those of
        context/parts.py, which stand beside the token that predicts them.
    places: [n] of what predicts a label, see models/causal_loss.py.
    rows: the documents of each row as numbers on the host, where attention takes them one by one.
    """

    ids: Tensor
    labels: Tensor
    documents: Tensor | None = None
    attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    positions: Tensor | None = None
    part: Part | None = None
    places: Tensor | None = None
    rows: list[list[Document]] | None = None

    def targets(self, objective: Objective) -> Tensor:
        """What is predicted: see objectives.py; of a part [rows, seq]."""
        return objective.targets(self.labels) if self.part is None else self.labels

    def answers(self, objective: Objective) -> Tensor:
        """What is predicted at the places, [n]."""
        beside = self.places + objective.shift if self.part is None else self.places
        return self.labels.flatten().index_select(0, beside)

    def to(self, device: torch.device) -> "MicroBatch":
        """On that device; a copy from pinned memory goes on beside the work before it."""
        moved = (x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for x in self)
        return MicroBatch(*moved)

    def inputs(self, config: Any) -> dict[str, Any]:
        """What the model with this configuration is called with."""
        if self.part is None:
            given = {"input_ids": self.ids, "labels": self.labels, "places": self.places}
            packed = {} if self.documents is None else self._packed(config)
            masks = {name: getattr(self, name) for name in MASKS}
            return given | packed | {name: mask for name, mask in masks.items() if mask is not None}
        given = {"position_ids": self.positions, "places": self.places}
        given |= {"attention_mask": self._no_mask(config)}
        return {"input_ids": self.ids, "shift_labels": self.labels} | given

    def _packed(self, config: Any) -> dict[str, Any]:
        if self.rows is None:
            return model_inputs(self.documents)
        where = {"position_ids": positions(self.documents)}
        return where | {"attention_mask": self._no_mask(config)}

    def _no_mask(self, config: Any) -> Tensor | None:
        """Attention makes its own masks; this keeps the model from making any. ALiBi's takes
        none."""
        return None if has_alibi(config) else self.ids.new_ones(1, 1, 1, 1).bool()


def in_64_bits(batch: MicroBatch) -> MicroBatch:
    """Whole numbers of fewer bits as those that lookups and losses take; in 8 of them 156 would
    pass for IGNORED. What is none is left for check_batch."""
    return MicroBatch(
        *(x.long() if isinstance(x, Tensor) and x.dtype in WHOLE else x for x in batch)
    )


def check_batch(batch: MicroBatch, model: nn.Module, cp: int) -> None:
    """Raise a UserError if a whole batch is none that a laid-out model can train on."""
    if batch.documents is not None:
        check_whole("documents", batch.documents)
    model.objective.check_shapes(batch.ids, batch.labels)
    if not getattr(text_config(model.config), "rope_parameters", None):  # made for any position
        _check_positions(model, batch.ids.shape[1], cp)
    check_tokens(batch.ids, batch.labels, model.vocabulary, model.classes)
    if batch.documents is not None:
        _check_documents(batch, batch.documents, model)
    check_rotary(model.config, batch.ids.shape[1], model.plan, batch.documents is not None)
    _check_masks(batch, cp)
    if batch.token_type_ids is not None:
        _check_types(batch.token_type_ids, model)


def _check_documents(batch: MicroBatch, documents: Tensor, model: nn.Module) -> None:
    """Raise a UserError if these are not the documents of packed rows."""
    if not model.objective.shift:
        raise UserError("rows are packed for causal language models alone, not for this one")
    if documents.shape != batch.ids.shape:
        raise UserError(f"documents are {list(documents.shape)}, ids are {list(batch.ids.shape)}")
    _check_padding(batch.labels, documents)
    if batch.attention_mask is not None:
        raise UserError(
            f"documents make the mask of packed rows: leave attention_mask out, and number padding "
            f"{PADDING}"
        )


def _check_masks(batch: MicroBatch, cp: int) -> None:
    """Raise a UserError if a mask is none of the batch's tokens."""
    for name in MASKS:
        mask = getattr(batch, name)
        if mask is None:
            continue
        if cp > 1:
            raise UserError(f"{name} is not split over cp, whose attention makes its own masks")
        if not isinstance(mask, Tensor):
            raise UserError(f"{name} must be a tensor")
        if mask.shape != batch.ids.shape:
            raise UserError(f"{name} is {list(mask.shape)}, ids are {list(batch.ids.shape)}")
        if name == "attention_mask" and not ((mask == 0) | (mask == 1)).all():
            raise UserError("attention_mask must be zeros, where there is padding, and ones")


def _check_padding(labels: Tensor, documents: Tensor) -> None:
    """Raise a UserError if padding of packed rows predicts a label: what attention gives it is
    another thing over ranks of cp."""
    if not ((documents[:, :-1] != PADDING) | (labels[:, 1:] == IGNORED)).all():
        raise UserError(
            f"padding of packed rows, document {PADDING}, predicts a label: give the token after "
            f"each of padding the label {IGNORED}"
        )


def _check_types(types: Tensor, model: nn.Module) -> None:
    """Raise a UserError if a model takes no types of tokens, or not these. GPT-2's are tokens."""
    check_whole("token_type_ids", types)
    if "token_type_ids" not in signature(type(model).forward).parameters:
        raise UserError(f"{model.class_name} has no types of tokens: leave token_type_ids out")
    known = getattr(text_config(model.config), "type_vocab_size", 0) or model.vocabulary
    check_range("token type", types, known, "type")


def _check_positions(model: nn.Module, length: int, cp: int) -> None:
    """Raise a UserError if the model has no positions for its rows, or for what they are filled up
    with where tp splits them."""
    check_length(model.config, length)
    parts, longest = model.plan.sequence_parts, longest_row(model.config)
    filled = length + -length % parts
    if cp == 1 and 0 < longest < filled:
        raise UserError(
            f"sequence_parallel fills rows of {length} tokens up to {filled}, and the model has "
            f"{longest} positions: give rows of at most {longest - longest % parts}"
        )


def takes_mask(config: Any, length: int) -> bool:
    """Are the documents of rows of this length better kept apart by a mask than taken one by one?
    Short rows are; but ALiBi takes no mask, and one of a row would hide a window."""
    windows = (getattr(text_config(config), name, None) or length for name in WINDOWS)
    return length < LONG_ROW and length <= min(windows) and not has_alibi(config)


def some_rows(batch: MicroBatch, n: int, index: int) -> MicroBatch:
    """Rows `index` of `n`. Where there are too few, one row without labels: it changes nothing, and
    the rank takes part in every collective."""
    part = MicroBatch(*(None if x is None else x.tensor_split(n)[index] for x in batch))
    if len(part.ids):
        return part
    first = MicroBatch(*(None if x is None else x[:1] for x in batch))
    return first._replace(labels=torch.full_like(first.labels, IGNORED))


def as_many_rows(batch: MicroBatch, rows: int) -> MicroBatch:
    """With rows without labels up to so many, of which there is one at least."""
    short = rows - len(batch.ids)
    more = MicroBatch(*(None if x is None else x[:1].repeat_interleave(short, 0) for x in batch))
    more = more._replace(labels=torch.full_like(more.labels, IGNORED))
    pairs = zip(batch, more, strict=True)
    return MicroBatch(*(None if x is None else torch.cat((x, y)) for x, y in pairs))


def own_tokens(
    batch: MicroBatch,
    rank: int,
    ranks: int,
    split: str = "balanced",
    multiple: int = 1,
    pad_id: int | None = None,
    by_documents: bool = True,
) -> MicroBatch:
    """What a rank of cp has of whole rows, on the CPU.

    Args:
        split: one of context.balance.SPLITS.
        multiple: what the number of its tokens must be one of.
        pad_id: of a model whose tokens see those after them: what is added is masked.
        by_documents: does attention take the documents of packed rows one by one?
    """
    if ranks > 1:
        own = share(*batch[:3], rank, ranks, split, multiple)
        return MicroBatch(own.ids, own.targets, positions=own.positions, part=own.part)
    batch = _padded(batch, -batch.ids.shape[1] % multiple, pad_id)
    if batch.documents is None or not by_documents:
        return batch
    return batch._replace(rows=documents_of(batch.documents, batch.ids.shape[1]))


def _padded(batch: MicroBatch, short: int, pad_id: int | None) -> MicroBatch:
    """With so many tokens more in each row."""
    if not short:
        return batch
    if pad_id is not None and batch.attention_mask is None:
        batch = batch._replace(attention_mask=torch.ones_like(batch.ids))
    padded = (
        values if values is None or values.dim() == 1 else F.pad(values, (0, short), value=fill)
        for values, fill in zip(batch, (pad_id or 0, IGNORED, PADDING, 0, 0))
    )
    return MicroBatch(*padded)


def placed(batch: MicroBatch, objective: Objective) -> MicroBatch:
    """With the places of its labels: found on the CPU, where nobody waits for a device."""
    seq = 1 if objective.of_rows else batch.ids.shape[1]
    return batch._replace(places=label_places(batch.targets(objective), seq))
