"""Of a model that classifies rows the head trains beside the adapters, whole: it begins at random.

pooler, classifier      float32, in peft's files under their own names (modules_to_save)
"""

from functools import partial

from torch import Tensor, nn

from ..errors import UserError
from ..models.architecture import family_of
from ..models.blocks import on_input
from ..models.objectives import objective_of
from ..pipeline.stages import ends_of


def head_modules(model: nn.Module) -> list[str]:
    """Of a model that classifies rows, what its base model has no weights of, and the pooler, which
    few bases have trained; the last norm is frozen with the blocks. Of other models none."""
    if not objective_of(model).of_rows:
        return []
    after = getattr(model, "after_blocks", None) or sorted(ends_of(model, family_of(model))[1])
    base = f"{model.base_model_prefix}."
    return [path for path in after if not path.startswith(base) or path.endswith(".pooler")]


def head_names(model: nn.Module) -> list[str]:
    """What peft is told of it: the ends of paths.

    Raises:
        UserError: another module's path ends so, too.
    """
    paths = head_modules(model)
    names = [path.rpartition(".")[2] for path in paths]
    inside = tuple(f"{path}." for path in paths)
    for path, _ in model.named_modules():
        if path not in paths and path.endswith(tuple(names)) and not path.startswith(inside):
            raise UserError(
                f"peft would take {path} for the head: train the model without adapters"
            )
    return names


def train_head(model: nn.Module) -> None:
    """Let the head train in float32, into which comes what the base gives."""
    for path in head_modules(model):
        module = model.get_submodule(path).float().requires_grad_(True)
        module.register_forward_pre_hook(on_input(partial(_as_weights, module)), with_kwargs=True)


def _as_weights(module: nn.Module, x: Tensor) -> Tensor:
    return x.to(next(module.parameters(), x).dtype)


def head_weights(model: nn.Module, ends: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """The parameters of the head that are here, by name.

    Args:
        ends: of the paths of those of its modules that are meant.
    """
    return {
        f"{path}.{name}": parameter
        for path in head_modules(model)
        if path.endswith(ends)
        for name, parameter in model.get_submodule(path).named_parameters()
    }
