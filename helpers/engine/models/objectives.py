"""What a model is trained for: which labels it takes, and what each of them is predicted from.

    task            labels          predicted from          the loss is a mean over
    lm              [batch, seq]    the token before        labelled tokens, but a row's first
    mlm             [batch, seq]    the token in its place  labelled tokens
    classify-head   [batch]         the whole row           rows

A model's class says which: transformers lists its classes by what their heads are for. That its
loss is the one that is named here is not believed but tried: see the room admission.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, need, whole_reason

IGNORED = -100  # a label that is none, as in torch's cross-entropy
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Objective:
    """One line of the table.

    mapping: transformers' list of classes with such a head, in its `modeling_auto`.
    shift: tokens that a label stands after what predicts it.
    of_rows: is a label a whole row's?
    """

    task: str
    auto: str
    mapping: str
    shift: int = 0
    of_rows: bool = False

    def targets(self, labels: Tensor) -> Tensor:
        """The labels that are predicted, each beside what predicts it: [batch, seq - shift], of
        rows [batch, 1]."""
        return labels.unsqueeze(1) if self.of_rows else labels[:, self.shift :]

    def count(self, labels: Tensor) -> int:
        """How many labels there are to predict."""
        return int((self.targets(labels) != IGNORED).sum())

    def check_shapes(self, ids: Tensor, labels: Tensor) -> None:
        """Raise a UserError if these are no ids [batch, seq] and labels of their rows or tokens."""
        check_whole("ids", ids)
        check_whole("labels", labels)
        expected = ids.shape[:1] if self.of_rows else ids.shape
        if ids.dim() == 2 and ids.numel() and labels.shape == expected:
            return
        kind = "labels [batch]" if self.of_rows else "labels [batch, seq] of one shape"
        raise UserError(
            f"a batch is ids [batch, seq] and {kind}, not {list(ids.shape)} and "
            f"{list(labels.shape)}"
        )


CAUSAL = Objective("lm", "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", shift=1)
MASKED = Objective("mlm", "AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES")
CLASSES = Objective(
    "classify-head",
    "AutoModelForSequenceClassification",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    of_rows=True,
)
OBJECTIVES = {one.task: one for one in (CAUSAL, MASKED, CLASSES)}


def check_whole(name: str, values: Any) -> None:
    if not isinstance(values, Tensor) or values.dtype not in WHOLE:
        raise UserError(f"{name} must be a tensor of whole numbers")


def objective_of(model: nn.Module) -> Objective:
    """What the class of a model is for."""
    return objective_named(one.__name__ for one in type(model).__mro__) or CAUSAL


def objective_named(classes: Iterable[str]) -> Objective | None:
    """What the first of these classes that is listed is for; None where none is."""
    from transformers.models.auto import modeling_auto

    for name in classes:
        for objective in OBJECTIVES.values():
            if name in getattr(modeling_auto, objective.mapping).values():
                return objective
    return None


def is_listed(name: str) -> bool:
    """Has transformers a class of this name for an objective? Published code writes some names with
    other capitals."""
    from transformers.models.auto import modeling_auto

    listed = (getattr(modeling_auto, one.mapping).values() for one in OBJECTIVES.values())
    return name.lower() in {known.lower() for names in listed for known in names}


def is_of_transformers(model_class: type) -> bool:
    """Is the class one of transformers', and none that somebody wrote beside them?"""
    return model_class.__module__.startswith("transformers.")


def check_known(config: Any) -> None:
    """Raise a UserError if a configuration's class is one that somebody wrote, and transformers
    knows of no model for it: of the configuration alone nothing can be made."""
    transformers, own = need("transformers", "hf"), type(config)
    autos = ("AutoModel", *(one.auto for one in OBJECTIVES.values()))
    if is_of_transformers(own) or any(
        own in getattr(transformers, a)._model_mapping for a in autos
    ):
        return
    raise UserError(
        f"transformers knows no model of a {own.__name__} yet: make it once by "
        "AutoModelForCausalLM.from_config(config, trust_remote_code=True) where its code came with "
        f"a folder, or name its class by AutoModelForCausalLM.register({own.__name__}, ...)"
    )


def other_task(model_class: type[nn.Module], config: Any) -> str | None:
    """What a model is for that is no line of the table, in words; None where it is one, and of a
    class that is not transformers': it is taken for a causal language model, and fails as one."""
    name = model_class.__name__
    objective = objective_named(one.__name__ for one in model_class.__mro__)
    if objective is not CAUSAL and getattr(config, "is_encoder_decoder", False):
        return f"{name} is an encoder with a decoder, which is not laid out: take one of the two"
    if objective is None and not is_of_transformers(model_class):
        return None
    if objective is None:
        heads = ", ".join(one.auto for one in OBJECTIVES.values())
        return f"{name} has no head that is trained here: take a model of one of {heads}"
    kind = getattr(config, "problem_type", None)
    one_class = config.num_labels > 1 and kind in (None, "single_label_classification")
    if objective.of_rows and not one_class:
        return (
            f"{name} with num_labels={config.num_labels} is for {kind or 'regression'}, and rows "
            "here are of one class among several: take num_labels from 2 on and no problem_type"
        )
    return None


def build(config: Any, task: str | None = None, dtype: torch.dtype | None = None) -> nn.Module:
    """transformers' model of a configuration, with the head for a task.

    Args:
        task: of OBJECTIVES; what the configuration's `architectures` are for where None.

    Raises:
        UserError: there is no such task, or transformers cannot build the model.
    """
    transformers = need("transformers", "hf")
    if task is not None and task not in tuple(OBJECTIVES):  # which may be no key of a dictionary
        raise UserError(f"no task {task!r:.40} has a head; there is {', '.join(OBJECTIVES)}")
    named = objective_named(getattr(config, "architectures", None) or ())
    objective = named or CAUSAL if task is None else OBJECTIVES[task]
    options = {} if dtype is None else {"dtype": dtype}
    auto = getattr(transformers, objective.auto)
    try:
        return auto.from_config(config, trust_remote_code=False, **options)
    except Exception as error:  # each model class has its own complaints
        check_known(config)
        raise UserError(
            f"transformers cannot build this {config.model_type}: {whole_reason(error)}"
        ) from None
