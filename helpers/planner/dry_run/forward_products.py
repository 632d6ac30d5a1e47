"""The FLOPs of a class's own forward, on tensors that have sizes and no values."""

import torch
from torch import nn

from helpers.planner.dry_run.fake_device import SizesOnly, no_values, without_torchs_log
from helpers.planner.dry_run.tensor_watch import Watch


def forward_products(model: nn.Module, batch: int, seq_len: int) -> int:
    """FLOPs of the matrix products and attention, over the whole square of scores, of a causal
    language model's forward over batch x seq_len tokens.

    Args:
        model: on the meta device; it is of no use afterwards.

    Raises:
        UserError: its class asks for values.
    """
    try:
        with without_torchs_log(), SizesOnly(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            with torch.no_grad(), Watch() as watch:
                model(input_ids=torch.zeros((batch, seq_len), dtype=torch.long), use_cache=False)
    except Exception as error:  # of a class's forward
        raise no_values(model.config.model_type, error) from error
    return watch.flops
