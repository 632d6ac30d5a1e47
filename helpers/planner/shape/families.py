"""The shape of a transformers configuration.

    shape = model_shape(load_config("gptj-6b"))

Each family is one short function that lists the linear layers of a block and how tensor parallelism
cuts them, so the formulas in `cost.py` know no family. Of others the class itself is counted.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.models.architecture import Same
from helpers.engine.models.configurations import longest_row
from helpers.planner.shape.counted import counted_shape
from helpers.planner.shape.shape import Linear, Shape


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
        shape = _by_formula(config) if family in FAMILIES else counted_shape(config)
    except UserError:
        raise
    except Exception as error:  # of configurations, each its own
        reason = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]
        raise UserError(f"the configuration of {family!r} cannot be read: {reason}") from None
    _check(shape)
    return shape


def _by_formula(config: Any) -> Shape:
    """With its source where the blocks are not those that programs.json counts: what they keep is
    then seen in dry runs."""
    shape, usual = FAMILIES[config.model_type](config), USUAL.get(config.model_type)
    if not hasattr(config, "to_json_string"):  # sizes alone, of a published run
        return shape
    if usual and all(getattr(config, name) in values for name, values in usual.items()):
        return shape
    return replace(shape, source=Same.of(config))


def _check(shape: Shape) -> None:
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "ffn"):
        number = getattr(shape, name)
        if type(number) is not int or number < 1:
            raise UserError(f"the model's {name} must be a whole number above 0, not {number!r}")
    if shape.heads % shape.kv_heads:
        raise UserError(f"{shape.heads} heads cannot share {shape.kv_heads} key-value heads evenly")


def _plain_block(hidden: int, ffn: int, attention_bias: bool) -> tuple[Linear, ...]:
    """As many key-value heads as heads, and an MLP of two layers with biases."""
    return (
        Linear("query", hidden, hidden, attention_bias, "column"),
        Linear("key, value", hidden, 2 * hidden, attention_bias, "kv"),
        Linear("attention out", hidden, hidden, attention_bias, "row"),
        Linear("mlp in", hidden, ffn, True, "column"),
        Linear("mlp out", ffn, hidden, True, "row"),
    )


def _gptj(config: Any) -> Shape:
    h, ffn = config.hidden_size, config.n_inner or 4 * config.hidden_size
    return Shape(
        **_widths(config),
        positions=0,
        block=_plain_block(h, ffn, False),
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
        block=_plain_block(h, ffn, True),
        block_norm=4 * h,
        final_norm=2 * h,
        reductions=2,
    )


def _gpt_neox(config: Any) -> Shape:
    h, ffn, bias = config.hidden_size, config.intermediate_size, config.attention_bias
    return Shape(
        **_widths(config),
        positions=0,
        block=_plain_block(h, ffn, bias),
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
    gate_up = Linear(
        "mlp gate, up", config.hidden_size, 2 * config.intermediate_size, config.mlp_bias, "column"
    )
    return _of_llamas_kind(config, gate_up, vectors=1)


def _nemotron(config: Any) -> Shape:
    up = Linear("mlp up", config.hidden_size, config.intermediate_size, config.mlp_bias, "column")
    return _of_llamas_kind(config, up, vectors=2)


def _of_llamas_kind(config: Any, mlp_in: Linear, vectors: int) -> Shape:
    """Llama, and who has its attention.

    Args:
        vectors: of a norm: a scale, and a shift where it has one.
    """
    h, bias = config.hidden_size, config.attention_bias
    widths = _widths(config, config.num_key_value_heads, config.head_dim)
    q = widths["heads"] * widths["head_dim"]
    kv = 2 * widths["kv_heads"] * widths["head_dim"]
    return Shape(
        **widths,
        positions=0,
        block=(
            Linear("query", h, q, bias, "column"),
            Linear("key, value", h, kv, bias, "kv"),
            Linear("attention out", q, h, bias, "row"),
            mlp_in,
            Linear("mlp down", config.intermediate_size, h, config.mlp_bias, "row"),
        ),
        block_norm=2 * vectors * h,
        final_norm=vectors * h,
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


# each one operation in the engine, which keeps its input
GELUS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")
NO = (0, False, None)
DROPS = {"attn_pdrop": NO, "embd_pdrop": NO, "resid_pdrop": NO}
# what configurations say of blocks that programs.json counts; there dropout is in none of them
USUAL: dict[str, dict[str, tuple]] = {
    "gptj": {"activation_function": GELUS} | DROPS,
    "gpt2": {"activation_function": GELUS} | DROPS,
    "gpt_neox": {
        "hidden_act": GELUS,
        "use_parallel_residual": (True,),
        "attention_dropout": NO,
        "hidden_dropout": NO,
    },
    "falcon": {
        "activation": GELUS,
        "parallel_attn": (True,),
        "alibi": NO,
        "attention_dropout": NO,
        "hidden_dropout": NO,
    },
    "llama": {"hidden_act": ("silu", "gelu"), "attention_dropout": NO},
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
        "longest": longest_row(config),
    }
