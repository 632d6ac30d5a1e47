"""The model's own forward with a loss that never holds the logits of all tokens, stage by stage."""

from types import MethodType
from typing import Any

from torch import Tensor, nn

from .families import Family


def apply_loss(model: nn.Module, family: Family) -> None:
    """Give `model(input_ids, labels=...)` the head's chunked loss; without labels it is as before.

    Keywords: `num_items_in_batch` is transformers' own, what the sum over tokens is divided by
    (the labelled tokens of this call where None). `label_logits` adds the logits at the labelled
    places, [tokens, vocabulary]. `stage` runs one of the model's stages (pipeline/stages.py) alone,
    on what it `received`; all but the last give the hidden states that go to the next. Labels are
    transformers': aligned with the ids, -100 is ignored.
    """
    plain = model.forward

    def forward(self: nn.Module, input_ids: Tensor | None = None, **kwargs: Any) -> Any:
        if kwargs.get("labels") is None and kwargs.get("stage") is None:
            return plain(input_ids=input_ids, **kwargs)
        return loss_forward(self, family, input_ids, **kwargs)

    model.forward = MethodType(forward, model)


def loss_forward(
    model: nn.Module,
    family: Family,
    input_ids: Tensor,
    labels: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
    label_logits: bool = False,
    stage: Any = None,
    received: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Shifted cross-entropy of [batch, seq] ids and labels, as transformers defines it."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    if stage is None:
        hidden = model.base_model(input_ids=input_ids, use_cache=False, **kwargs)[0]
    else:
        hidden = stage.run(model, family, input_ids, received, **kwargs)
        if not stage.last:
            return hidden
    targets = labels[:, 1:]
    kept = targets != -100
    hidden, targets = hidden[:, :-1][kept], targets[kept]
    head = model.get_submodule(family.head)
    count = targets.numel() if num_items_in_batch is None else num_items_in_batch
    loss = head(hidden, targets) / count
    return CausalLMOutputWithPast(loss=loss, logits=head(hidden) if label_logits else None)
