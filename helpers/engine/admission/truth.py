"""What a model's class makes of a small copy of it in one process: the truth that layouts are held
against."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..models.architecture import text_config
from ..models.objectives import IGNORED, Objective, objective_of
from .kinds import kinds_of_blocks, without_memory

LARGEST = 50_000_000  # parameters of a copy that is tried: some classes cannot be made small
ROWS = 5  # of its batch: more than a block has results, which a batch must not pass for


class Truth(NamedTuple):
    """A small model of the class, a batch, and what the class makes of it: of its buffers, too, for
    some change while it trains."""

    model: nn.Module
    batch: dict[str, Tensor]
    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def check_copy(model_class: type[nn.Module], config: Any, own: Any) -> None:
    """Raise a ValueError if a small copy is none, or lacks kinds of blocks that the configuration
    of its own has."""
    blank, whole = without_memory(model_class, config), without_memory(model_class, own)
    if (size := sum(parameter.numel() for parameter in blank.parameters())) > LARGEST:
        raise ValueError(f"its smallest copy has {size:,} parameters")
    if missing := kinds_of_blocks(whole) - kinds_of_blocks(blank):
        raise ValueError(f"a small copy lacks {len(missing)} of its kinds of blocks")


def truth_of(
    model_class: type[nn.Module], config: Any, dtype: torch.dtype, length: int, device: str
) -> Truth:
    """Of random weights and a random batch of `length` tokens a row.

    Raises:
        ValueError: the class's loss is none that is computed here. Each class has its own
            complaints beside.
    """
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model = without_dropout(model_class._from_config(config, dtype=dtype).train())
        _randomize(model)
        objective = objective_of(model)
        batch = _batch(objective, config, length)
        labels = batch.pop("labels")
        plain = copy.deepcopy(model)  # some classes keep states of the last batch
        logits = model(**batch, use_cache=False).logits
        loss = loss_of(objective, logits, labels)
        again = copy.deepcopy(plain)
        if getattr(again, "loss_type", "") is None:  # its default, without the warning
            again.loss_type = "ForCausalLM"
        own = again(**batch, labels=labels, use_cache=False).loss
    if not torch.isfinite(loss) or not torch.allclose(loss, own.to(loss.dtype), rtol=1e-5):
        if not torch.equal(logits, copy.deepcopy(plain)(**batch, use_cache=False).logits):
            raise ValueError(
                "it computes something else each time, as with dropout that is neither an "
                "nn.Dropout nor a field of its configuration"
            )
        kind = "shifted " if objective.shift else ""
        routers = getattr(config, "output_router_logits", False)
        leave = ", but also the routers': set its output_router_logits to False" if routers else ""
        raise ValueError(f"its loss is not the {kind}cross-entropy of its logits{leave}")
    loss.backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    buffers = dict(model.named_buffers())
    return Truth(plain, batch | {"labels": labels}, loss.detach(), gradients, buffers)


def without_dropout(model: nn.Module) -> nn.Module:
    """The same, whose layers drop nothing, whether or not its configuration says how much."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def loss_of(objective: Objective, logits: Tensor, labels: Tensor) -> Tensor:
    targets = objective.targets(labels)
    if not objective.of_rows:
        logits = logits[:, : targets.shape[1]].flatten(0, 1)
    return nn.functional.cross_entropy(logits, targets.flatten())


def _batch(objective: Objective, config: Any, length: int) -> dict[str, Tensor]:
    """Ids [ROWS, length], labels, some of them ignored; and where attention looks both ways padding
    in the middle of a row, and two types of tokens."""
    text = text_config(config)
    ids = torch.randint(text.vocab_size, (ROWS, length))
    if objective.of_rows:
        labels = torch.randint(config.num_labels, (ROWS,))
        if text.pad_token_id is not None:  # a causal model looks at the last token that is another
            ids[1::2, -2:] = text.pad_token_id
    else:
        labels = ids.where(torch.rand(ids.shape) > 0.2, IGNORED)
    batch = {"input_ids": ids, "labels": labels}
    if objective.shift:
        return batch
    batch["attention_mask"] = (torch.arange(length) % 4 != 2).long().expand(ROWS, -1)
    if getattr(text, "type_vocab_size", 0) > 1:
        batch["token_type_ids"] = torch.randint(2, (ROWS, length))
    return batch


@torch.no_grad()
def _randomize(model: nn.Module) -> None:
    """Norms and biases too: at their first values, ones and zeros, much would go unseen."""
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        parameter.copy_(parameter + 0.3 * noise if parameter.dim() < 2 else 0.15 * noise)
