"""Of a model that classifies rows the head trains beside the adapters, whole: it begins at random.

pooler, classifier      float32, in peft's files under their own names (modules_to_save)
"""

from functools import partial

from torch import Tensor, nn

from ..models.architecture import family_of
from ..models.blocks import on_input
from ..models.objectives import objective_of
from ..pipeline.stages import ends_of


def head_modules(model: nn.Module) -> list[str]:
    """The modules after the blocks of a model that classifies rows; of others none."""
    if not objective_of(model).of_rows:
        return []
    return getattr(model, "after_blocks", None) or sorted(ends_of(model, family_of(model))[1])


def train_head(model: nn.Module) -> None:
    """Let the head train in float32, into which comes what the base gives."""
    for path in head_modules(model):
        module = model.get_submodule(path).float().requires_grad_(True)
        module.register_forward_pre_hook(on_input(partial(_as_weights, module)), with_kwargs=True)


def _as_weights(module: nn.Module, x: Tensor) -> Tensor:
    return x.to(next(module.parameters(), x).dtype)


def head_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of the head that are here, by name."""
    return {
        f"{path}.{name}": parameter
        for path in head_modules(model)
        for name, parameter in model.get_submodule(path).named_parameters()
    }
