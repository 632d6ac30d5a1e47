"""A model from a preset, a folder or the hub, each rank holding only its slices; and back again.

The model is built without memory, laid out, and only then filled: from safetensors files, of which
a rank reads just its part, or with random numbers (random_weights.py).
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..errors import UserError, as_path, cannot_write
from ..models.architecture import family_of, names_of, tied_names
from ..models.configurations import find_model, load_config, presets
from ..models.objectives import build, objective_of
from ..ranks.agreeing import is_first, on_all_ranks, over_ranks
from ..tensor.shards import is_finite, local, slice_of
from .beside_weights import generate_as, write_configurations
from .blank import give_memory, keep_in_float32, parameters_without_memory, tie
from .names_in_files import FLOATS, as_in_files, check_dtype
from .random_weights import draw
from .weight_files import WeightFiles, write_weights


def blank_model(
    source: str | Path,
    config: Any,
    dtype: torch.dtype,
    from_scratch: bool = False,
    task: str | None = None,
) -> tuple[nn.Module, WeightFiles | None]:
    """A model whose parameters have no memory, and the files to fill it from, where the source has
    some.

    Args:
        config: in place of the source's own, or None.
        from_scratch: take no weights, though the source may have some.
        task: that the model's head is for; see models/objectives.py.
    """
    # a copy, as the class writes its dtype into it
    config = load_config(source) if config is None else copy.deepcopy(config)
    own_dtype = named_dtype(config)  # which the class replaces by the one that it is made in
    files = find_weights(source, from_scratch)
    if files is not None:
        check_plain(config, source)
    with parameters_without_memory():
        model = build(config, task, dtype)
        keep_in_float32(model, dtype)
    model.own_dtype = own_dtype
    if files is None:
        return model, None
    files = files.of(model)
    for names in tied_names(model):
        files.check_tied(names)
    generate_as(model, files.folder)
    return model, files


def check_plain(config: Any, source: str | Path) -> None:
    """Raise a UserError if a source's configuration says that its weights are quantized."""
    said = getattr(config, "quantization_config", None)
    if said is not None:
        said = said if isinstance(said, dict) else said.to_dict()
        raise UserError(
            f"{source} has weights quantized by {said.get('quant_method')}, which are not read "
            "here: give the model that they were made of, or what dequantize() makes of them"
        )


def find_weights(source: str | Path, from_scratch: bool = False) -> WeightFiles | None:
    """The files of a folder or a hub id. None of a preset, which has no weights, and from scratch.

    Raises:
        UserError: there are none, or some are missing.
    """
    if from_scratch or str(source) in presets():
        return None
    files = WeightFiles.find(find_model(source))
    if files is None:
        raise UserError(
            f"{source} has a configuration and no weights: give a folder with model.safetensors, "
            "or --from-scratch (from_scratch=True) to begin with random ones"
        )
    return files


def fill(
    model: nn.Module, files: WeightFiles | None, seed: int, device: torch.device | str
) -> None:
    """Give a model's parameters memory and values: those of `files`, or fresh ones."""
    ties = tied_names(model)
    give_memory(model, device)
    tie(model, ties)
    new = new_head(model, files)
    draw(model, seed, None if files is None else new)
    if files is not None:
        read(model, files, new)


def digest_of_source(files: WeightFiles | None, seed: int) -> bytes:
    """Of where a model's weights come from: other weights have another."""
    return f"{seed} {None if files is None else files.digest}".encode()


def new_head(model: nn.Module, files: WeightFiles | None) -> set[str]:
    """What the files lack of a head that classifies: of a model that was trained for something
    else, and gets a fresh head."""
    if files is None or not objective_of(model).of_rows:
        return set()
    family = family_of(model)
    beside_table = family.embedding.rpartition(".")[0]  # as the vectors of positions are
    body = (f"{family.blocks}.", f"{family.embedding}.", f"{beside_table}.")
    return {
        names[0]
        for names in names_of(model).values()
        if not names[0].startswith(body) and not any(map(files.has, names))
    }


@torch.no_grad()
def read(model: nn.Module, files: WeightFiles, new: set[str] = frozenset()) -> None:
    """Read this rank's slice of every parameter, but of those that are `new`.

    Raises:
        UserError: a parameter is missing from the files, has another shape there, or is not finite.
    """
    for parameter, names in names_of(model).items():
        name = names[0]
        if name in new:
            continue
        shape, offset = slice_of(parameter)
        stored = model.stored_shapes.get(name, parameter.shape)
        values = files.read(names, stored, parameter.shape, offset, shape)
        local(parameter).copy_(usable(values, name, files))
    read_buffers(model, files)


@torch.no_grad()
def read_buffers(model: nn.Module, files: WeightFiles) -> None:
    """Read the buffers that the files hold.

    Raises:
        UserError: one has another shape there, or is not finite.
    """
    for name, buffer in model.named_buffers():
        if not files.has(name):
            continue
        shape = buffer.shape
        values = files.read([name], shape, shape, [0] * buffer.dim(), shape)
        if buffer.is_floating_point():  # tables, as of experts by tokens, are whole numbers
            usable(values, name, files)
        buffer.copy_(values)


def usable(values: Tensor, name: str, files: WeightFiles) -> Tensor:
    """The values, as they were read of a parameter or of a buffer in floating point.

    Raises:
        UserError: they are no floating point of 16 bits or more, or not finite.
    """
    check_dtype(values, name, files.folder.name)
    if not is_finite(values):
        raise UserError(f"{name} in {files.folder.name} has values that are not finite")
    return values


def save_model(model: nn.Module, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write a Hugging Face folder that transformers loads: configuration and whole weights, the
    same files under every plan. Of parameters in low precision their masters are written.

    Every rank must call it; the first one writes. One parameter is whole in memory at a time.

    Args:
        dtype: of the files; the model's own unless given: that of its parameters when it was laid
            out, or where load_model read it the one that its source names.

    Raises:
        UserError: on every rank, where the folder cannot be made, or weights are not read in such a
            dtype.
    """
    check_written(dtype)
    folder, dtype = make_folder(folder), dtype or model.own_dtype
    if is_first():
        write_configurations(model, folder, dtype)
    named = (
        (name, value.to(dtype) if value.is_floating_point() else value)
        for name, value in whole_weights(model, masters=True)
    )
    named = itertools.chain(named, whole_buffers(model))
    write_whole(model, named, folder if is_first() else None)


def check_written(dtype: torch.dtype | None) -> None:
    """Raise a UserError if weights in files are not read in this dtype; None is the model's own."""
    if dtype is not None and dtype not in FLOATS:
        names = ", ".join(map(str, FLOATS))
        raise UserError(f"weights are written as {names}, not as {dtype!r:.40}")


def make_folder(folder: str | Path) -> Path:
    """Make a folder for a model's files, by the first rank. Every rank must call it.

    Raises:
        UserError: on every rank, where it cannot be made.
    """

    def make() -> None:
        if not is_first():
            return
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from None

    path = as_path(folder)
    on_all_ranks(make)
    return path


def write_whole(model: nn.Module, named: Iterable[tuple[str, Tensor]], folder: Path | None) -> None:
    """Write a model's whole weights as transformers does; with no folder they are only asked for:
    making one whole may need every rank."""
    write_weights(named if folder is None else as_in_files(model, named), folder)


def named_dtype(config: Any) -> torch.dtype:
    """The dtype that a configuration names, float32 where it names none."""
    named = getattr(config, "dtype", None) or torch.float32
    return named if isinstance(named, torch.dtype) else getattr(torch, named)


def whole_weights(model: nn.Module, masters: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Names and whole values as transformers has them, one at a time, from whichever pipeline rank
    holds them. Every rank must iterate.

    Args:
        masters: the float32 masters of what the model holds in low precision.
    """
    of_rank = dict(model.named_parameters())
    if masters:
        of_rank |= {name: shard.whole(shard.tensor) for name, shard in model.masters.items()}
    facts = {n: (model.stored_shapes.get(n, p.shape), p.dtype) for n, p in of_rank.items()}
    return over_stages(model, facts, lambda name: whole(of_rank[name]).reshape(facts[name][0]))


def stored_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that files hold, by name, such as the biases by which experts are chosen."""
    return {
        f"{path}.{name}".lstrip("."): buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }


def whole_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers that files hold, of every pipeline rank, as they are; every rank must iterate."""
    of_rank = stored_buffers(model)
    facts = {name: (buffer.shape, buffer.dtype) for name, buffer in of_rank.items()}
    return over_stages(model, facts, of_rank.__getitem__)


def over_stages(
    model: nn.Module,
    of_rank: dict[str, tuple[torch.Size, torch.dtype]],
    make: Callable[[str], Tensor],
) -> Iterator[tuple[str, Tensor]]:
    """Names and values, one at a time, on every pipeline rank; every rank must iterate. Of a model
    that is not laid out its own.

    Args:
        of_rank: shape and dtype of what this rank has, by name.
        make: the value of one of these, which all ranks that have it ask for together.
    """
    if not hasattr(model, "mesh"):
        yield from ((name, make(name)) for name in of_rank)
        return
    group = model.mesh.get_group("pp")
    device = next(model.parameters()).device
    seen: set[str] = set()
    for owner, facts in enumerate(over_ranks(of_rank, group)):
        for name, (shape, dtype) in facts.items():
            if name in seen:
                continue
            seen.add(name)
            here = owner == group.rank()
            value = make(name) if here else torch.empty(shape, dtype=dtype, device=device)
            if group.size() > 1:
                value = value.contiguous()
                dist.broadcast(value, group=group, group_src=owner)
            yield name, value


def whole(parameter: Tensor) -> Tensor:
    """The value of a parameter, made of all ranks' parts where it is split."""
    value = parameter.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value
