"""A trainer's tensors as a checkpoint names them, and how many updates each has had.

Beside what trains these are the parameters that somebody has frozen and the buffers that a model's
files hold, as the biases by which experts are chosen: a script that makes its model anew would go
on with those of its class. The frozen base of adapters alone stays where it came from, and a
checkpoint holds its digest.

A parameter that no token of a batch went through, an expert or a tower, is not updated, and Adam
counts each one's updates apart: a run that goes on with the run's count would correct its moments
for updates that it never had.
"""

from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Diverged, UserError
from ..ranks import over_ranks
from ..tensor.shards import is_finite, local
from .manifest import as_stored
from .weights import stored_buffers


def state_of(trainer: Any, stored: Container[str] | None = None) -> dict[str, Tensor]:
    """The trainer's tensors by name, as they lie in the whole; loading writes into them.

    Parts that are empty here (fewer rows than ranks) have nothing to store or to load.

    Args:
        stored: the names in a checkpoint that is read; those of before hold what trains alone.
    """
    optimizer = trainer.optimizer
    if not isinstance(optimizer, torch.optim.AdamW) or optimizer.defaults["amsgrad"]:
        raise UserError(
            "checkpoints hold the two moments of adamw alone, not those of amsgrad or adamw8bit"
        )
    beside = stored_buffers(trainer.model) | trainer.frozen
    state = {name: of for name, of in beside.items() if stored is None or name in stored}
    for part in trainer.parts:
        if not part.tensor.numel():
            continue
        values = part.tensor.detach()
        moments = optimizer.state[part.tensor]
        if not moments:  # Adam makes them in its first step; a resumed run needs them before
            moments["step"] = torch.zeros((), dtype=torch.float32, device=values.device)
            moments["exp_avg"] = torch.zeros_like(values)
            moments["exp_avg_sq"] = torch.zeros_like(values)
        state[part.name] = part.whole(values)
        for moment in ("exp_avg", "exp_avg_sq"):
            state[f"{part.name}/{moment}"] = part.whole(moments[moment])
    return state


def frozen_of(model: nn.Module) -> dict[str, Tensor]:
    """The frozen parameters of a model without adapters, by name, as they lie in the whole."""
    if is_adapted(model):
        return {}
    frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    for name in model.split_shapes.keys() & frozen.keys():
        frozen[name] = frozen[name].view(model.split_shapes[name])
    return frozen


def adapters_of(model: nn.Module) -> dict[str, Any]:
    """What the tensors of adapters do not tell: what their products are multiplied by, and what
    they stand beside."""
    if not is_adapted(model):
        return {}
    config = model.adapter_config
    scale = {"use_rslora": config.use_rslora, "alpha_pattern": config.alpha_pattern}
    facts = {"adapters": [config.r, config.lora_alpha], "adapters' scale": scale}
    return as_stored(facts | {"a base of digest": getattr(model, "base_digest", None)})


def is_adapted(model: nn.Module) -> bool:
    return hasattr(model, "adapter_config")


def updates_of(trainer: Any) -> int:
    """Updates that the trainer's optimizer has done: steps whose gradients were finite."""
    return trainer.steps_done - trainer.scaler.skipped


def fewer_updates(trainer: Any) -> dict[str, int]:
    """The updates of those of this rank's parts that had fewer than the optimizer did, by name."""
    state = trainer.optimizer.state
    held = [part for part in trainer.parts if "step" in state[part.tensor]]
    if not held:
        return {}
    counts = torch.stack([state[part.tensor]["step"].float() for part in held]).tolist()
    whole = updates_of(trainer)
    return {part.name: int(n) for part, n in zip(held, counts, strict=True) if n < whole}


def set_updates(trainer: Any, fewer: dict[str, int]) -> None:
    """Give every part of this rank its count back."""
    whole = updates_of(trainer)
    for part in trainer.parts:
        if "step" in (moments := trainer.optimizer.state[part.tensor]):
            moments["step"].fill_(fewer.get(part.name, whole))


def check_finite(trainer: Any, state: dict[str, Tensor]) -> None:
    """Raise Diverged, on every rank, if a tensor of one's is not finite. Buffers may hold
    infinities, as masks do."""
    step, buffers = trainer.steps_done, stored_buffers(trainer.model)
    bad = [
        name
        for name, tensor in state.items()
        if (tensor.isnan().any() if name in buffers else not is_finite(tensor))
    ]
    for rank, names in enumerate(over_ranks(bad[:1])):
        if names:
            raise Diverged(
                f"the state after step {step} is not finite ({names[0]} on rank {rank}), so no "
                "checkpoint of it is written"
            )


def check_same_tensors(
    path: Path, stored: dict[str, tuple[int, ...]], state: dict[str, Tensor]
) -> None:
    """Raise a UserError, on every rank, if a checkpoint has not just what the ranks hold."""
    held: dict[str, tuple[int, ...]] = {}
    for of_rank in over_ranks({name: tuple(tensor.shape) for name, tensor in state.items()}):
        held |= of_rank
    for name in sorted(held.keys() | stored.keys()):
        if name in stored and _is_folded(stored[name], held.get(name, ())):
            raise UserError(
                f"{path} was written by an earlier version, which did not split {name} over tp: "
                "export its weights with that version, and begin from them"
            )
        if held.get(name) != stored.get(name):
            there, here = (list(of[name]) if name in of else "nothing" for of in (stored, held))
            raise UserError(
                f"{path} is of another model: of {name} it holds {there}, this model {here}"
            )


def _is_folded(there: tuple[int, ...], here: tuple[int, ...]) -> bool:
    """Is what is one dim there two here, as [experts, 2 * width, hidden] for [experts, 2, width,
    hidden]?"""
    parts = (dim for dim in range(len(here) - 1) if len(here) == len(there) + 1)
    return any(there == (*here[:d], here[d] * here[d + 1], *here[d + 2 :]) for d in parts)


def alone(tensor: Tensor) -> Tensor:
    """The tensor in memory of its own: async_save copies whole storages, and would copy all of a
    parameter for each rank's chunk of it."""
    part = local(tensor)
    if part.untyped_storage().nbytes() == part.nbytes:
        return tensor
    return tensor.clone()
