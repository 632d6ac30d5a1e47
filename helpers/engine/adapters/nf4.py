"""The linear layers of a model in four bits, frozen: the base that QLoRA trains adapters on.

    W4: codes of 4 bits; each 64 share a magnitude, which in turn is held in 8 bits
    y = dequantize(W4) x                                        in the precision of x

A matrix is read a window of rows at a time and quantized at once, so neither the model nor a layer
of it ever stands whole in full precision. The arithmetic is bitsandbytes': what is made here window
by window is, bit for bit, what bitsandbytes makes of the whole matrix.

Source: Dettmers et al. 2023, QLoRA, section 3 (NF4, double quantization).
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, check_seed, need
from ..files import random_weights, weights
from ..files.blank import give_memory, tie
from ..files.weight_files import WeightFiles
from ..memory.cpu_allocator import large_blocks_apart
from ..models.architecture import base_of, names_of, tied_names
from .linear_layers import check_apart, is_transposed, linear_paths

BLOCK, NESTED_BLOCK = 64, 256  # weights that share a magnitude; magnitudes that share one
WINDOW = 2**22  # weights that are in full precision at a time

Rows = Callable[[int, int], Tensor]  # rows [begin, end) of a tensor


def nf4_bytes(elements: int) -> int:
    """Bytes of a matrix of so many elements, with its magnitudes and their code books."""
    blocks = -(-elements // BLOCK)
    nested = -(-blocks // NESTED_BLOCK)
    return -(-elements // 2) + blocks + 4 * nested + 4 * (16 + 256 + 1)


def load_quantized(
    source: str | Path,
    *,
    config: Any = None,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    device: torch.device | str = "cpu",
    from_scratch: bool = False,
    task: str | None = None,
) -> nn.Module:
    """A transformers model, all of it frozen, its linear layers in 4 bits.

    Args:
        task: that its head is for, as in parallelize.load_model.
        source: a preset, a folder or a hub id. A preset is drawn from `seed`, as
            parallelize.load_model draws it.
        from_scratch: draw the others, too, whatever weights they have.
        dtype: of all that is not in 4 bits, and of the arithmetic.

    Raises:
        UserError: bitsandbytes is missing, or there is no such model, or its files are broken.
    """
    need("bitsandbytes", "qlora")
    check_seed(seed)
    with large_blocks_apart(torch.device(device).type):
        model, files = weights.blank_model(source, config, dtype, from_scratch, task)
        fill_quantized(model, files, seed, device)
    return model.eval()


@torch.no_grad()
def fill_quantized(
    model: nn.Module, files: WeightFiles | None, seed: int, device: torch.device | str
) -> None:
    """Give a model's parameters, which have no memory, frozen values, its linear layers in 4 bits.

    The model may lack blocks (a stage of a pipeline); its matrices must not be split over ranks.
    """
    ties = tied_names(model)
    check_apart(
        model, set(linear_paths(model)), "which cannot be shared in 4 bits: do not quantize"
    )
    if files is None:
        _draw(model, seed, device)
    else:
        _read(model, files, seed, device)
    tie(model, ties)
    model.requires_grad_(False)
    model.is_loaded_in_4bit = True  # what peft asks before it puts an adapter beside such a layer


def _read(model: nn.Module, files: WeightFiles, seed: int, device: torch.device | str) -> None:
    new = weights.new_head(model, files)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    for name in new:
        path, _, leaf = name.rpartition(".")
        empty = torch.empty_like(model.get_parameter(name), device=device)
        setattr(model.get_submodule(path), leaf, nn.Parameter(empty))
    random_weights.draw(model, seed, new)
    weights.read_buffers(model, files)
    stored = getattr(model, "stored_shapes", {})
    matrices = set(linear_paths(model))
    for parameter, names in names_of(model).items():
        name = names[0]
        if name in new:
            continue
        path, _, leaf = name.rpartition(".")
        shape = stored.get(name, parameter.shape)
        like = torch.empty(0, dtype=parameter.dtype, device=device)
        if path in matrices and leaf == "weight":
            across = is_transposed(model.get_submodule(path))
            rows = _in_files(files, names, shape, dim=1 if across else 0)
            _replace(model, path, rows, shape, like)
        else:
            values = _whole(_in_files(files, names, shape), like, shape)
            setattr(model.get_submodule(path), leaf, nn.Parameter(values))


def _in_files(files: WeightFiles, names: list[str], shape: torch.Size, dim: int = 0) -> Rows:
    """Reads of a tensor along `dim`; along dim 1 a row is a column of what the files hold."""

    def rows(begin: int, end: int) -> Tensor:
        offset, size = [0] * len(shape), list(shape)
        if shape:
            offset[dim], size[dim] = begin, end - begin
        window = files.read(names, shape, shape, offset, size)
        weights.usable(window, names[0], files)
        return window if dim == 0 else window.t()

    return rows


def _draw(model: nn.Module, seed: int, device: torch.device | str) -> None:
    """As many pieces of the model (the embedding, a block, ...) at a time in full precision as this
    process has threads."""
    matrices = set(linear_paths(model))
    names = {id(module): path for path, module in model.named_modules()}

    @torch.no_grad()  # which each thread has for itself
    def draw_piece(name: str, piece: nn.Module) -> None:
        give_memory(piece, "cpu")  # drawn there, so that every device has the same
        with random_weights.RandomStream(random_weights.seed_of(seed, name)):
            random_weights.initialise(model, name)
        for path in [names[id(module)] for module in piece.modules()]:
            if path in matrices:
                _replace(model, path, *_drawn(model.get_submodule(path), device))
        piece.to(device)

    every = list(random_weights.pieces(model, base_of(model)))
    random_weights.at_once([partial(draw_piece, *one) for one in every], torch.get_num_threads())
    if left := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
        raise UserError(f"{left[0]} is not drawn in 4 bits: give the model weights from files")


def _drawn(layer: nn.Module, device: torch.device | str) -> tuple[Rows, torch.Size, Tensor]:
    weight = layer.weight.detach()
    matrix = weight.t() if is_transposed(layer) else weight
    like = torch.empty(0, dtype=weight.dtype, device=device)
    return lambda begin, end: matrix[begin:end], weight.shape, like


def _replace(model: nn.Module, path: str, rows: Rows, stored: torch.Size, like: Tensor) -> None:
    """Put a layer in 4 bits in the place of a linear layer, with the same bias.

    Args:
        rows: of the matrix [out, in].
        stored: the shape in files: [out, in], or [in, out] of transformers' Conv1D.
        like: has the dtype and the device.
    """
    bnb = need("bitsandbytes", "qlora")
    layer = model.get_submodule(path)
    transposed = is_transposed(layer)
    outputs, inputs = reversed(stored) if transposed else stored
    with torch.device("meta"):
        made = bnb.nn.Linear4bit(inputs, outputs, bias=False, compute_dtype=like.dtype)
    codes, state = quantize(rows, (outputs, inputs), like)
    made.weight = bnb.nn.Params4bit(
        codes, quant_state=state, quant_type="nf4", bnb_quantized=True, module=made
    )
    made.bias, made.quant_state, made.transposed = layer.bias, state, transposed
    made.support_avx512bf16_for_cpu = False  # which would reorder the codes in an evaluation
    model.set_submodule(path, made)


def quantize(rows: Rows, shape: tuple[int, int], like: Tensor) -> tuple[Tensor, Any]:
    """NF4 codes [out * in / 2, 1] and bitsandbytes' state of a matrix [out, in] given by rows."""
    bnb = need("bitsandbytes", "qlora")
    elements = shape[0] * shape[1]
    # each filled piece by piece: joined from pieces it would stand twice
    codes = torch.empty(-(-elements // 2), 1, dtype=torch.uint8, device=like.device)
    magnitudes = torch.empty(-(-elements // BLOCK), device=like.device)
    for begin, end in _windows(*shape):
        window = rows(begin, end).to(like).contiguous()
        code, state = bnb.functional.quantize_4bit(window, blocksize=BLOCK, quant_type="nf4")
        first = begin * shape[1]
        codes[first // 2 :][: len(code)] = code
        magnitudes[first // BLOCK :][: len(state.absmax)] = state.absmax
    offset = magnitudes.mean()
    centred = magnitudes - offset
    nested, outer = bnb.functional.quantize_blockwise(centred, blocksize=NESTED_BLOCK)
    state.absmax, state.shape, state.offset, state.state2 = nested, torch.Size(shape), offset, outer
    state.nested = True
    return codes, state


def _whole(rows: Rows, like: Tensor, shape: torch.Size) -> Tensor:
    """All of a tensor, read by windows into the dtype and to the device of `like`."""
    if not shape:
        return rows(0, 1).to(like)
    made = torch.empty(shape, dtype=like.dtype, device=like.device)
    for begin, end in _windows(shape[0], max(1, made[0].numel())):
        made[begin:end] = rows(begin, end)
    return made


def _windows(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Rows a window, so many that no block of weights lies in two."""
    step = max(BLOCK, WINDOW // columns // BLOCK * BLOCK)
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)


def dequantize(layer: nn.Module, codes: Tensor | None = None) -> Tensor:
    """The matrix that a layer in 4 bits computes with, as transformers stores it.

    Args:
        codes: all of the layer's, where it holds a part of them itself.
    """
    bnb = need("bitsandbytes", "qlora")
    codes = layer.weight.data if codes is None else codes
    matrix = bnb.functional.dequantize_4bit(codes, layer.quant_state)
    return matrix.t() if is_transposed(layer) else matrix
