"""Random weights: those that transformers' own initialisation draws, the same under every layout.

One piece of the model (the embedding, a block, ...) is drawn at a time, from a seed of that piece's
own, and this rank's slice of it kept, so a thread never holds more than one whole piece.
"""

import hashlib
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import UserError
from ..models.architecture import base_of
from ..pipeline.elsewhere import with_parameters
from ..tensor.shards import local, slice_of


@torch.no_grad()
def draw(model: nn.Module, seed: int, only: Container[str] | None = None) -> None:
    """Initialise as transformers does, piece by piece; buffers that its rules set, always.

    Each piece has random numbers of its own, so as many are drawn at a time as this process has
    threads.

    Args:
        only: the names of the parameters that are drawn, all of them where None.

    Raises:
        UserError: transformers' initialisation leaves one as it is made.
    """
    wanted = {id(p) for name, p in model.named_parameters() if only is None or name in only}
    works, beside = [], []
    inside: set[int] = set()
    for name, piece in pieces(model, base_of(model)):
        own = {id(p) for p in piece.parameters()} & wanted
        wanted -= own  # a tied parameter is that of the first piece that has it
        inside |= set(map(id, piece.modules()))
        works.append(partial(_draw_piece, model, name, seed_of(seed, name), own))
    for name, module in model.named_modules():
        own = {id(p) for p in module.parameters(recurse=False)} & wanted
        if id(module) not in inside and (own or module._buffers):
            beside.append(partial(_draw_piece, model, name, seed_of(seed, name), own, alone=True))
    at_once(works, torch.get_num_threads() if only is None else 1)
    at_once(beside, 1)  # afterwards: they put something in the place of the parameters below


def at_once(works: Sequence[Callable[[], None]], threads: int) -> None:
    """Do all of them, as many at a time as there are threads."""
    if threads == 1:
        for work in works:
            work()
        return
    with ThreadPoolExecutor(threads, "draw") as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


def pieces(module: nn.Module, base: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The parts that are drawn one at a time: children, with what the list of blocks is in and the
    list itself taken apart."""
    for name, child in module.named_children():
        lists = (child, *child.children())
        if child is base or any(isinstance(one, nn.ModuleList) for one in lists):
            yield from pieces(child, base, f"{prefix}{name}.")
        else:
            yield prefix + name, child


def initialise(model: nn.Module, path: str, alone: bool = False) -> None:
    """As transformers does, each part by the model that it is in: a language model inside of
    another has rules of its own.

    Args:
        alone: not what is below.

    Raises:
        UserError: no rule sets a parameter, which classes do where they are made.
    """
    piece, rule = model.get_submodule(path), model._init_weights
    for parameter in piece.parameters(recurse=not alone):
        parameter.fill_(torch.nan)
    for name in (path[:place] for place, sign in enumerate(path) if sign == "."):
        rule = _rule(model.get_submodule(name), rule)
    with with_parameters(piece):
        if alone:
            _rule(piece, rule)(piece)
        else:
            _initialise(piece, rule)
    for name, parameter in piece.named_parameters(recurse=not alone):
        if not parameter.is_meta and parameter.isnan().any():
            raise UserError(
                f"{model.config.model_type} cannot begin with random weights: transformers' rules "
                f"for them leave out {f'{path}.{name}'.lstrip('.')}; give it weights from files"
            )


Rule = Callable[[nn.Module], None]


def _rule(module: nn.Module, outer: Rule) -> Rule:
    from transformers import PreTrainedModel

    return module._init_weights if isinstance(module, PreTrainedModel) else outer


def _initialise(module: nn.Module, rule: Rule) -> None:
    rule = _rule(module, rule)
    for child in module.children():
        _initialise(child, rule)
    rule(module)


@torch.no_grad()  # which each thread has for itself
def _draw_piece(model: nn.Module, path: str, seed: int, own: set[int], alone: bool = False) -> None:
    """Put whole parameters in the place of this rank's slices, initialise, and keep the slices.

    Args:
        own: the parameters whose slices are kept, by their id.
        alone: draw those of the module itself, none of what is below.
    """
    piece = model.get_submodule(path)
    slots = [
        (module, name, parameter)
        for module in piece.modules()
        for name, parameter in module.named_parameters(recurse=False)
    ]
    for module, name, parameter in slots:
        # on the CPU, so that every device draws alike
        device = "cpu" if own and (module is piece or not alone) else "meta"
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        module._parameters[name] = nn.Parameter(whole)
    with RandomStream(seed):
        initialise(model, path, alone)
    for module, name, parameter in slots:
        whole, module._parameters[name] = module._parameters[name], parameter
        if id(parameter) in own:
            shape, offset = slice_of(parameter)
            local(parameter).copy_(whole[_window(shape, offset)])
            own.discard(id(parameter))


class RandomStream(TorchDispatchMode):
    """In this thread, random numbers on the CPU are those of a seed; all others' are untouched."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            if all(argument.name != "generator" for argument in func._schema.arguments):
                name = func._overloadname.removeprefix("default")
                func = getattr(func.overloadpacket, f"{name}_generator".lstrip("_"))
            kwargs = kwargs | {"generator": self.generator}
        return func(*args, **kwargs)


def _window(shape: Sequence[int], offset: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))


def seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big")
