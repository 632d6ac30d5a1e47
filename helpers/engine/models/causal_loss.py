"""The model's own forward with a loss that never holds the logits of all tokens, stage by stage."""

from contextlib import nullcontext
from inspect import signature
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import NoToken, UserError
from .architecture import base_of
from .documents import one_document_a_row
from .families import Family
from .objectives import IGNORED, objective_of


def check_tokens(
    ids: Tensor | None, labels: Tensor | None, vocabulary: int, classes: int | None = None
) -> None:
    """Raise NoToken if an id or a label is no token, or none of `classes`; labels may be -100.

    A vocabulary that is split over ranks would take such an id for another rank's.
    """
    if ids is not None:
        check_range("input id", ids, vocabulary)
    if labels is not None:
        labels = labels.where(labels != IGNORED, 0)
        check_range("label", labels, classes or vocabulary, "class" if classes else "token")


def check_answers(answers: Any, vocabulary: int) -> None:
    """Raise a UserError if these are not token ids that a label can be."""
    try:
        ids = torch.as_tensor(answers)
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0)
    whole = not ids.is_floating_point() and not ids.is_complex() and ids.dtype != torch.bool
    if ids.dim() != 1 or not whole or not ids.numel():
        raise UserError(f"answers must be a list of token ids, not {answers!r:.40}")
    check_range("answer", ids, vocabulary)


def check_range(what: str, values: Tensor, count: int, kind: str = "token") -> None:
    """Raise NoToken if a value is not from 0 to below `count`."""
    if not values.numel():
        return
    lowest, highest = (int(value) for value in values.aminmax())
    if lowest >= 0 and highest < count:
        return
    wrong = highest if lowest >= 0 else lowest
    place = (values == wrong).nonzero()[0].tolist()
    raise NoToken(f"{what} {wrong} at {place} is no {kind}: the model has 0 to {count - 1}")


def label_places(targets: Tensor, seq: int) -> Tensor:
    """Where a token, or a row, has a label: numbers [n], all rows of `seq` end to end.

    To know how many there are a host waits for its GPU, so this is best asked of a batch before it
    goes there.

    Args:
        targets: [batch, seq or seq - 1], beside what predicts them; a row's with `seq` 1.
    """
    rows, columns = (targets != IGNORED).nonzero().unbind(1)
    return rows * seq + columns


def apply_loss(model: nn.Module, family: Family) -> None:
    """Give `model(input_ids, labels=...)` the head's chunked loss; without labels it is as before.

    Keywords: `num_items_in_batch` is transformers' own, what the sum over tokens is divided by
    (the labelled tokens of this call where None). `shift_labels` too, labels that stand beside the
    token that predicts them. `places` are the labels' where they are known (label_places).
    `output_logits` adds the logits of all tokens, `label_logits` those at the labelled places,
    [tokens, vocabulary]. `return_dict=False` gives a tuple. `stage` runs one of the model's stages
    (pipeline/stages.py) alone, on what it `received`; all but the last give the hidden states that
    go to the next. Labels are transformers': aligned with the ids, or the rows' classes, see
    objectives.py; -100 is ignored.

    Sets on the model: `objective`, and the number of `classes`, None of a model of tokens.
    """
    plain = model.forward
    model.objective = objective_of(model)
    model.classes = model.config.num_labels if model.objective.of_rows else None

    def forward(self: nn.Module, input_ids: Tensor | None = None, *more: Any, **kwargs: Any) -> Any:
        if more:  # in the class's own order
            named = signature(plain).bind_partial(input_ids, *more).arguments
            return forward(self, **named, **kwargs)
        given = [kwargs.get(name) for name in ("labels", "shift_labels")]
        labels = next((value for value in given if value is not None), None)
        if kwargs.get("stage") is None:
            _check_call(self, labels, kwargs)
        if not kwargs.pop("checked", False):
            if input_ids is not None and kwargs.get("labels") is not None:
                self.objective.check_shapes(input_ids, kwargs["labels"])
                # lookups and losses take no whole numbers of fewer bits
                input_ids, kwargs["labels"] = input_ids.long(), kwargs["labels"].long()
                if hasattr(self, "check_padding"):  # which small copies that are tried have not
                    self.check_padding(self, kwargs["labels"], kwargs.get("attention_mask"))
            check_tokens(input_ids, labels, self.vocabulary, self.classes)
        if labels is not None or kwargs.get("stage") is not None:
            return loss_forward(self, family, plain, input_ids, **kwargs)
        kwargs.pop("output_logits", None)
        with self.boundary.whole_sequence():  # of any length, as generation asks for
            return plain(input_ids=input_ids, **kwargs)

    model.forward = MethodType(forward, model)


def _check_call(model: nn.Module, labels: Tensor | None, kwargs: dict[str, Any]) -> None:
    """Refuse what a laid-out model cannot give."""
    if not model.stages[0].whole:
        raise UserError(
            "this rank has one stage of a pipeline, which cannot be called alone: Trainer.step and "
            "Trainer.evaluate run all stages, and save_model writes a model that can be called"
        )
    if kwargs.get("output_attentions") and model.family.splits:
        raise UserError(
            "attention weights are never made here: load the saved model by transformers with "
            "attn_implementation='eager' for output_attentions"
        )
    if kwargs.get("output_router_logits") and labels is not None:
        raise UserError(
            "output_router_logits adds a loss of the routers, which is not computed here: leave it "
            "out beside labels"
        )
    parted = labels is not None and model.boundary.sequence_parallel
    if kwargs.get("output_hidden_states") and parted:
        raise UserError(
            "under sequence_parallel a rank has a part of each hidden state: ask for "
            "output_hidden_states without labels"
        )


def loss_forward(
    model: nn.Module,
    family: Family,
    plain: Any,
    input_ids: Tensor | None,
    labels: Tensor | None = None,
    shift_labels: Tensor | None = None,
    places: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
    output_logits: bool = False,
    label_logits: bool = False,
    return_dict: bool | None = None,
    stage: Any = None,
    received: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Cross-entropy of [batch, seq] ids and their labels, as transformers defines it."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    options = {"use_cache": False} | kwargs
    run = plain if family.whole_logits else base_of(model, family.blocks)
    packed = options.get("position_ids") is not None
    with nullcontext() if packed else one_document_a_row():
        if stage is None:
            outputs = run(input_ids=input_ids, **options)
        else:
            outputs = stage.run(model, family, run, input_ids, received, **options)
    if stage is not None and not stage.last:
        return outputs
    made = outputs.logits if family.whole_logits else outputs[0]  # [batch, seq, ..] or [batch, ..]
    seq = 1 if model.objective.of_rows else made.shape[1]
    targets = model.objective.targets(labels) if shift_labels is None else shift_labels
    if places is None:
        places = label_places(targets, seq)
    targets = F.pad(targets, (0, seq - targets.shape[1])).flatten().index_select(0, places)
    wanted = "labels" if label_logits else "all" if output_logits else None
    if family.whole_logits:
        loss, logits = _loss_of_logits(made, places, targets, wanted)
    else:
        loss, logits = _loss_of_hidden(model, family, made, places, targets, wanted)
    cache = "cache" if hasattr(outputs, "cache") else "past_key_values"  # until transformers 5.24
    result = CausalLMOutputWithPast(
        loss / (targets.numel() if num_items_in_batch is None else num_items_in_batch),
        logits,
        getattr(outputs, cache, None),
        hidden_states=getattr(outputs, "hidden_states", None),
        attentions=getattr(outputs, "attentions", None),
    )
    return result.to_tuple() if return_dict is False else result


def _loss_of_logits(
    logits: Tensor, places: Tensor, targets: Tensor, wanted: str | None
) -> tuple[Tensor, Tensor | None]:
    """The summed loss at places [n], and the logits that are wanted."""
    at_labels = _at(logits, places)
    wide = at_labels.to(torch.promote_types(at_labels.dtype, torch.float32))
    loss = F.cross_entropy(wide, targets, reduction="sum")
    return loss, {"labels": at_labels, "all": logits}.get(wanted)


def _loss_of_hidden(
    model: nn.Module,
    family: Family,
    hidden: Tensor,
    places: Tensor,
    targets: Tensor,
    wanted: str | None,
) -> tuple[Tensor, Tensor | None]:
    """The same from the hidden states; logits are made for whoever wants them alone."""
    head, predicting = model.get_submodule(family.head), _at(hidden, places)
    top = model.get_submodule(family.top or family.head)
    head.targets = targets
    try:
        loss = top(predicting)  # through what stands before the head, as BERT's transform
    finally:
        head.targets = None
    if wanted is None:
        return loss, None
    return loss, head.transform(top(predicting if wanted == "labels" else hidden))


def _at(x: Tensor, places: Tensor) -> Tensor:
    """Of [batch, seq, ..] or [batch, ..] what stands at the places."""
    return x.flatten(0, -2).index_select(0, places)
