"""The model's own forward with a loss that never holds the logits of all tokens."""

from types import MethodType
from typing import Any

from torch import Tensor, nn

from helpers.engine.families import Family


def apply_loss(model: nn.Module, family: Family) -> None:
    """Give `model(input_ids, labels=...)` the head's chunked loss; without labels it is as before.

    Two keywords: `num_items_in_batch` is transformers' own, what the sum over tokens is divided by
    (the labelled tokens of this call where None). `label_logits` adds the logits at the labelled
    places, [tokens, vocabulary]. Labels are transformers': aligned with the ids, -100 is ignored.
    """
    plain = model.forward

    def forward(self: nn.Module, input_ids: Tensor | None = None, **kwargs: Any) -> Any:
        if kwargs.get("labels") is None:
            return plain(input_ids=input_ids, **kwargs)
        return loss_forward(self, family, input_ids, **kwargs)

    model.forward = MethodType(forward, model)


def loss_forward(
    model: nn.Module,
    family: Family,
    input_ids: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    label_logits: bool = False,
    **kwargs: Any,
) -> Any:
    """Shifted cross-entropy of [batch, seq] ids and labels, as transformers defines it."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    hidden = model.base_model(input_ids=input_ids, use_cache=False, **kwargs)[0]
    targets = labels[:, 1:]
    kept = targets != -100
    hidden, targets = hidden[:, :-1][kept], targets[kept]
    head = model.get_submodule(family.head)
    count = targets.numel() if num_items_in_batch is None else num_items_in_batch
    loss = head(hidden, targets) / count
    return CausalLMOutputWithPast(loss=loss, logits=head(hidden) if label_logits else None)
