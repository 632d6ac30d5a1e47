"""A model's shape: the few numbers that its parameters, FLOPs and traffic follow from.

    transformers config --model_shape--> Shape: widths, and one block as a list of linear layers

Each family is one short function that lists the linear layers of a block and how tensor parallelism
cuts them, so the formulas in `cost.py` know no family.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from helpers.engine.errors import UserError


@dataclass(frozen=True)
class Linear:
    """A linear layer of one block: a matrix of inputs x outputs, and a bias of outputs.

    cut: how tensor parallelism splits it. `column`: by outputs, the bias with them. `row`: by
    inputs, the bias on every rank. `kv`: by outputs, in whole key-value heads; a rank holds at
    least one, so with fewer heads than ranks they are held several times.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool
    cut: str

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True)
class Shape:
    """What the formulas need to know of a decoder-only transformer.

    positions: rows of a learned position table, 0 for rotary positions or ALiBi.
    block: the linear layers of one block; block_norm: its normalisation parameters.
    reductions: all-reduces that a block needs in each direction under tensor parallelism: 1 where
        attention and MLP read the same input and are summed before the residual, else 2.
    longest: tokens of a sequence at most; 0 where there is no such limit.
    held, begin, end: of a model that was counted from its class, the parameters of a block, before
        and after the blocks, as they are held; see model/parameters.py.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int
    block: tuple[Linear, ...]
    block_norm: int
    final_norm: int
    reductions: int
    tied: bool
    head_bias: bool = False
    longest: int = 0
    held: tuple[Any, ...] = ()
    begin: tuple[Any, ...] = ()
    end: tuple[Any, ...] = ()

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        if self.held:
            return sum(prod(one.sizes) for one in self.held)
        return sum(linear.parameters for linear in self.block) + self.block_norm

    @property
    def norms(self) -> int:
        """Norms of a block whose output tp splits."""
        vectors = 1 if self.held or self.family == "llama" else 2  # a scale, and a shift
        return self.block_norm // (vectors * self.hidden)

    @property
    def ffn(self) -> int:
        """Width of the MLP's middle layer: what its last linear layer reads."""
        return self.block[-1].inputs

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer that are not the embedding's."""
        return (0 if self.tied else self.vocab * self.hidden) + (
            self.vocab if self.head_bias else 0
        )


def model_shape(config: Any) -> Shape:
    """The shape of the causal language model that this transformers configuration describes.

    Args:
        config: a transformers configuration. Of families with no formula here the model is made on
            the meta device and counted.

    Raises:
        UserError: it is no configuration of a causal language model, or one of its numbers makes no
            sense.
    """
    if isinstance(config, Shape):
        return config
    if isinstance(config, str):
        raise UserError(f"{config!r} is a name: give its configuration, load_config({config!r})")
    family = getattr(config, "model_type", None)
    if family is None:
        raise UserError(f"give a transformers configuration, not {type(config).__name__}")
    try:
        shape = FAMILIES[family](config) if family in FAMILIES else counted_shape(config)
    except (AttributeError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"the configuration of {family!r} cannot be read: {error}") from None
    _check(shape)
    return shape


def _check(shape: Shape) -> None:
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "ffn"):
        number = getattr(shape, name)
        if type(number) is not int or number < 1:
            raise UserError(f"the model's {name} must be a whole number above 0, not {number!r}")
    if shape.heads % shape.kv_heads:
        raise UserError(f"{shape.heads} heads cannot share {shape.kv_heads} key-value heads evenly")


def counted_shape(config: Any) -> Shape:
    """See model/counted.py, which needs what is here."""
    from helpers.planner.model.counted import counted_shape as counted

    return counted(config)


def resized(shape: Shape, layers: int, hidden: int, heads: int) -> Shape:
    """A model of the same family and proportions with other numbers of layers and heads and another
    width; as many key-value heads as heads."""
    factor = hidden / shape.hidden

    def widths(linear: Linear) -> Linear:
        inputs, outputs = round(linear.inputs * factor), round(linear.outputs * factor)
        return replace(linear, inputs=inputs, outputs=outputs)

    return replace(
        shape,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        block=tuple(map(widths, shape.block)),
        block_norm=round(shape.block_norm * factor),
        final_norm=round(shape.final_norm * factor),
    )


def _gptj(config: Any) -> Shape:
    h, ffn = config.hidden_size, config.n_inner or 4 * config.hidden_size
    return Shape(
        **_widths(config),
        positions=0,
        block=(
            Linear("query", h, h, False, "column"),
            Linear("key, value", h, 2 * h, False, "kv"),
            Linear("attention out", h, h, False, "row"),
            Linear("mlp in", h, ffn, True, "column"),
            Linear("mlp out", ffn, h, True, "row"),
        ),
        block_norm=2 * h,
        final_norm=2 * h,
        reductions=1,
        head_bias=True,
    )


def _gpt2(config: Any) -> Shape:
    h, ffn = config.hidden_size, config.n_inner or 4 * config.hidden_size
    return Shape(
        **_widths(config),
        positions=config.max_position_embeddings,
        block=(
            Linear("query", h, h, True, "column"),
            Linear("key, value", h, 2 * h, True, "kv"),
            Linear("attention out", h, h, True, "row"),
            Linear("mlp in", h, ffn, True, "column"),
            Linear("mlp out", ffn, h, True, "row"),
        ),
        block_norm=4 * h,
        final_norm=2 * h,
        reductions=2,
    )


def _gpt_neox(config: Any) -> Shape:
    h, ffn, bias = config.hidden_size, config.intermediate_size, config.attention_bias
    return Shape(
        **_widths(config),
        positions=0,
        block=(
            Linear("query", h, h, bias, "column"),
            Linear("key, value", h, 2 * h, bias, "kv"),
            Linear("attention out", h, h, bias, "row"),
            Linear("mlp in", h, ffn, True, "column"),
            Linear("mlp out", ffn, h, True, "row"),
        ),
        block_norm=4 * h,
        final_norm=2 * h,
        reductions=1 if config.use_parallel_residual else 2,
    )


def _falcon(config: Any) -> Shape:
    h, ffn, bias = config.hidden_size, config.ffn_hidden_size, config.bias
    parallel = config.new_decoder_architecture or config.parallel_attn
    if config.new_decoder_architecture:
        kv_heads, norms = config.num_kv_heads, config.num_ln_in_parallel_attn or 2
    else:
        kv_heads = 1 if config.multi_query else config.num_attention_heads
        norms = 1 if config.parallel_attn else 2
    widths = _widths(config, kv_heads)
    kv = 2 * kv_heads * widths["head_dim"]
    return Shape(
        **widths,
        positions=0,
        block=(
            Linear("query", h, h, bias, "column"),
            Linear("key, value", h, kv, bias, "kv"),
            Linear("attention out", h, h, bias, "row"),
            Linear("mlp in", h, ffn, bias, "column"),
            Linear("mlp out", ffn, h, bias, "row"),
        ),
        block_norm=2 * h * norms,
        final_norm=2 * h,
        reductions=1 if parallel else 2,
    )


def _llama(config: Any) -> Shape:
    h, ffn = config.hidden_size, config.intermediate_size
    widths = _widths(config, config.num_key_value_heads, config.head_dim)
    q = widths["heads"] * widths["head_dim"]
    kv = 2 * widths["kv_heads"] * widths["head_dim"]
    return Shape(
        **widths,
        positions=0,
        block=(
            Linear("query", h, q, config.attention_bias, "column"),
            Linear("key, value", h, kv, config.attention_bias, "kv"),
            Linear("attention out", q, h, config.attention_bias, "row"),
            Linear("mlp gate, up", h, 2 * ffn, config.mlp_bias, "column"),
            Linear("mlp down", ffn, h, config.mlp_bias, "row"),
        ),
        block_norm=2 * h,
        final_norm=h,
        reductions=2,
    )


def _nemotron(config: Any) -> Shape:
    h, ffn = config.hidden_size, config.intermediate_size
    widths = _widths(config, config.num_key_value_heads, config.head_dim)
    q = widths["heads"] * widths["head_dim"]
    kv = 2 * widths["kv_heads"] * widths["head_dim"]
    return Shape(
        **widths,
        positions=0,
        block=(
            Linear("query", h, q, config.attention_bias, "column"),
            Linear("key, value", h, kv, config.attention_bias, "kv"),
            Linear("attention out", q, h, config.attention_bias, "row"),
            Linear("mlp up", h, ffn, config.mlp_bias, "column"),
            Linear("mlp down", ffn, h, config.mlp_bias, "row"),
        ),
        block_norm=4 * h,
        final_norm=2 * h,
        reductions=2,
    )


FAMILIES: dict[str, Callable[[Any], Shape]] = {
    "gptj": _gptj,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "llama": _llama,
    "nemotron": _nemotron,
}


def _widths(
    config: Any, kv_heads: int | None = None, head_dim: int | None = None
) -> dict[str, Any]:
    """The fields of Shape that every family's configuration names alike."""
    heads = config.num_attention_heads
    return {
        "family": config.model_type,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_dim": head_dim or config.hidden_size // heads,
        "vocab": config.vocab_size,
        "tied": bool(config.tie_word_embeddings),
        "longest": getattr(config, "max_position_embeddings", None) or 0,
    }
