"""Parameters of several matrices in one, held so that tp can split each of them.

    in files [3 * out, in]    held [3, out, in]    a rank of tp has [3, out/tp, in]

Where nothing splits them they are held as files have them: an optimizer may look at shapes.
"""

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from ..errors import UserError


def view_in_parts(model: nn.Module, layer: nn.Module, path: str, parts: int) -> None:
    """Hold [parts * out, in] as [parts, out, in], and transformers' Conv1D [in, parts * out] as
    [in, parts, out], in which each part can be split; no memory moves."""
    dim = 0 if isinstance(layer, nn.Linear) else -1
    for name in ("weight", "bias"):
        if getattr(layer, name) is not None:
            fold(model, layer, path, name, dim, parts)


def fold(model: nn.Module, module: nn.Module, path: str, name: str, dim: int, parts: int) -> None:
    """Hold a parameter of the module at `path` with its dim [parts * n] as two, [parts, n].

    Raises:
        UserError: somebody waits for the gradient of a parameter that is replaced.
    """
    parameter = getattr(module, name)
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        raise UserError(
            f"{path}.{name} has a hook on its gradient, which laying the model out would drop: "
            "register it afterwards"
        )
    model.stored_shapes[f"{path}.{name}"] = parameter.shape
    folded = parameter.detach().unflatten(dim, (parts, -1))
    setattr(module, name, nn.Parameter(folded, requires_grad=parameter.requires_grad))


def unfold(model: nn.Module) -> None:
    """Hold parameters in the shapes that files have, where tp does not split them."""
    for name, shape in model.stored_shapes.items():
        path, _, leaf = name.rpartition(".")
        folded = model.get_parameter(name)
        model.split_shapes[name] = folded.shape
        plain = nn.Parameter(folded.detach().view(shape), requires_grad=folded.requires_grad)
        setattr(model.get_submodule(path), leaf, plain)
    model.stored_shapes = {}


def keep_shapes(model: nn.Module) -> None:
    """Let state dicts have the shapes that files have, whatever shapes parameters are held in."""
    if model.stored_shapes:
        model.register_state_dict_post_hook(as_stored)
        model.register_load_state_dict_pre_hook(as_held)


def as_stored(model: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """A state dict has the shapes of the model's class, save of tensors that are split."""
    for name, shape in model.stored_shapes.items():
        tensor = state.get(prefix + name)
        if tensor is not None and not isinstance(tensor, DTensor):
            state[prefix + name] = tensor.reshape(shape)


def as_held(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    held = dict(model.named_parameters())
    for name in model.stored_shapes:
        tensor = state.get(prefix + name)
        if tensor is not None and not isinstance(tensor, DTensor):
            state[prefix + name] = tensor.reshape(held[name].shape)
