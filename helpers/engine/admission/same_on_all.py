"""What must be the same on every rank: the model, its weights, and the batch of a step."""

from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..pipeline.micro_batches import MicroBatch
from ..ranks.agreeing import is_same_on_all

COMPARED = 8  # numbers of a parameter, about, and as many of its end, where rows are added
ORIGIN = ("_name_or_path", "transformers_version")


def check_same_configuration(model: nn.Module) -> None:
    """Raise a UserError on every rank if the ranks hand over models of different kinds."""
    facts = f"{type(model).__name__} {_sizes(model.config.to_dict())}"
    if not is_same_on_all(facts.encode()):
        raise UserError("the ranks hand over different models: make one, the same on every rank")


def _sizes(config: Any) -> Any:
    """What a configuration says of the model, but for where it came from; in an order of its own,
    for some classes fill a dict in that of a set, which differs from process to process."""
    if not isinstance(config, dict):
        return config
    return {key: _sizes(config[key]) for key in sorted(config, key=str) if key not in ORIGIN}


def digest_of_weights(model: nn.Module) -> bytes:
    """Of a few numbers of each parameter: what is drawn without a seed differs in all of them."""
    digest = sha256()
    for p in model.parameters():
        if not p.is_meta:
            numbers = p.detach().flatten()
            for some in (numbers[:: max(1, p.numel() // COMPARED)], numbers[-COMPARED:]):
                digest.update(some.double().cpu().numpy().tobytes())
    return digest.digest()


def check_same_weights(model: nn.Module) -> None:
    """Raise a UserError on every rank if the model that is laid out had different weights on the
    ranks, once: each would train another. A checkpoint's are the same for all."""
    digest, model.digest = model.digest, None
    if digest is not None and not is_same_on_all(digest):
        raise UserError(
            "the ranks held different weights when the model was laid out: call torch.manual_seed "
            "with one seed before it is made, or load the same files on every rank"
        )


def check_same_batch(batch: MicroBatch) -> None:
    """Raise a UserError on every rank if the ranks were handed different batches."""
    given = [x.cpu().contiguous().flatten() for x in batch if isinstance(x, Tensor)]
    if not is_same_on_all(b"".join(x.view(torch.uint8).numpy().tobytes() for x in given)):
        raise UserError(
            "the ranks were handed different batches: hand each of them the whole batch, of which "
            "it takes its own rows, in an order that is drawn from a generator of its own (a "
            "Trainer seeds torch's by the rank)"
        )
