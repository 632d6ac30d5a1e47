"""What is known of each architecture, as data. Adding a family is adding one record here.

Paths are of transformers' own modules, relative to the model or to one block.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError
from . import blocks


@dataclass(frozen=True)
class Family:
    """Where an architecture keeps its parts, and how each part is split.

    Model paths: `embedding`, `blocks` (a ModuleList), `norm` (the last one), `head`.
    Block paths:
        attention: the attention module.
        sublayers: modules whose matrices are split: the boundary is crossed before and after each.
        column, row: linear layers split by output and by input.
        fused_qkv: column layers whose output is all queries, then all keys, then all values.
        shared_kv: column layers of keys or values, held whole where ranks outnumber their heads.
        norms: norms before a sublayer.
        dropouts: nn.Dropout modules after a sublayer, outside the boundary.
    `forwards`: block path to a forward of our own, always bound.
    `parallel_residual`: of a configuration, are attention and MLP added to one residual together?
    `parallel_forward`: the block's forward where they do.
    """

    name: str
    model_type: str
    embedding: str
    blocks: str
    norm: str
    head: str
    attention: str
    sublayers: tuple[str, ...]
    column: tuple[str, ...]
    row: tuple[str, ...]
    norms: tuple[str, ...]
    fused_qkv: tuple[str, ...] = ()
    shared_kv: tuple[str, ...] = ()
    dropouts: tuple[str, ...] = ()
    forwards: dict[str, Callable] = field(default_factory=dict)
    parallel_residual: Callable[[Any], bool] = lambda config: False
    parallel_forward: Callable | None = None


GPTJ = Family(
    name="GPT-J",
    model_type="gptj",
    embedding="transformer.wte",
    blocks="transformer.h",
    norm="transformer.ln_f",
    head="lm_head",
    attention="attn",
    sublayers=("attn", "mlp"),
    column=("attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.fc_in"),
    row=("attn.out_proj", "mlp.fc_out"),
    norms=("ln_1",),
    forwards={"attn": blocks.gptj_attention},
    parallel_residual=lambda config: True,
    parallel_forward=blocks.gptj_block,
)

GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    embedding="transformer.wte",
    blocks="transformer.h",
    norm="transformer.ln_f",
    head="lm_head",
    attention="attn",
    sublayers=("attn", "mlp"),
    column=("mlp.c_fc",),
    fused_qkv=("attn.c_attn",),
    row=("attn.c_proj", "mlp.c_proj"),
    norms=("ln_1", "ln_2"),
    dropouts=("attn.resid_dropout", "mlp.dropout"),
)

NEOX = Family(
    name="GPT-NeoX",
    model_type="gpt_neox",
    embedding="gpt_neox.embed_in",
    blocks="gpt_neox.layers",
    norm="gpt_neox.final_layer_norm",
    head="lm_head",
    attention="attention",
    sublayers=("attention", "mlp"),
    # queries, keys and values are interleaved by head, so whole heads are contiguous rows
    column=("attention.query_key_value", "mlp.dense_h_to_4h"),
    row=("attention.dense", "mlp.dense_4h_to_h"),
    norms=("input_layernorm", "post_attention_layernorm"),
    dropouts=("post_attention_dropout", "post_mlp_dropout"),
    parallel_residual=lambda config: config.use_parallel_residual,
    parallel_forward=blocks.neox_block,
)

FALCON = Family(
    name="Falcon",
    model_type="falcon",
    embedding="transformer.word_embeddings",
    blocks="transformer.h",
    norm="transformer.ln_f",
    head="lm_head",
    attention="self_attention",
    sublayers=("self_attention", "mlp"),
    # all three layouts are [groups, queries of a group + 2, head_dim]; with one group (multi-query)
    # its key and value are every rank's
    column=("mlp.dense_h_to_4h",),
    shared_kv=("self_attention.query_key_value",),
    row=("self_attention.dense", "mlp.dense_4h_to_h"),
    norms=("input_layernorm", "post_attention_layernorm", "ln_attn", "ln_mlp"),
    forwards={"self_attention": blocks.falcon_attention},
    parallel_residual=lambda config: config.new_decoder_architecture or config.parallel_attn,
    parallel_forward=blocks.falcon_block,
)

LLAMA = Family(
    name="Llama",
    model_type="llama",
    embedding="model.embed_tokens",
    blocks="model.layers",
    norm="model.norm",
    head="lm_head",
    attention="self_attn",
    sublayers=("self_attn", "mlp"),
    column=("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj"),
    shared_kv=("self_attn.k_proj", "self_attn.v_proj"),
    row=("self_attn.o_proj", "mlp.down_proj"),
    norms=("input_layernorm", "post_attention_layernorm"),
)

FAMILIES = {family.model_type: family for family in (GPTJ, GPT2, NEOX, FALCON, LLAMA)}


def family_of(config: Any) -> Family:
    """The record of a transformers configuration's architecture.

    An architecture without a record of its own gets one made from the tensor plan that transformers
    publishes with it.

    Raises:
        UserError: there is neither.
    """
    family = FAMILIES.get(config.model_type) or published(config)
    if family is None:
        known = ", ".join(record.name for record in FAMILIES.values())
        raise UserError(
            f"{config.model_type} has no family record here and transformers publishes no tensor "
            f"plan for it, so it cannot be laid out; these can: {known}, and models like Llama"
        )
    return family


def published(config: Any) -> Family | None:
    """A record from transformers' own plan, for models built like Llama; None where it has none.

    The plan says "layers.*.self_attn.q_proj": "colwise" and so on.
    """
    plan = getattr(config, "base_model_tp_plan", None) or {}
    rules = {path: style for path, style in plan.items() if path.startswith("layers.*.")}
    column = _paths(rules, "colwise")
    row = _paths(rules, "rowwise")
    if not row or len(column) + len(row) != len(rules):
        return None
    kv = tuple(path for path in column if path.rpartition(".")[2] in ("k_proj", "v_proj"))
    return Family(
        name=config.model_type,
        model_type=config.model_type,
        embedding="model.embed_tokens",
        blocks="model.layers",
        norm="model.norm",
        head="lm_head",
        attention="self_attn",
        sublayers=tuple(path.rpartition(".")[0] for path in row),
        column=tuple(path for path in column if path not in kv),
        shared_kv=kv,
        row=row,
        norms=("input_layernorm", "post_attention_layernorm"),
    )


def _paths(rules: dict[str, str], style: str) -> tuple[str, ...]:
    return tuple(p.removeprefix("layers.*.") for p, rule in rules.items() if rule == style)


def kv_heads(config: Any) -> int:
    """Heads of keys and values: as many as queries, fewer (grouped), or one (multi-query)."""
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        return 1 if config.multi_query else config.num_attention_heads
    heads = getattr(config, "num_kv_heads", None) or getattr(config, "num_key_value_heads", None)
    return heads or config.num_attention_heads


def mlp_width(config: Any) -> int:
    """Width of the MLP's middle layer."""
    for key in ("n_inner", "intermediate_size", "ffn_hidden_size"):
        if getattr(config, key, None):
            return getattr(config, key)
    return 4 * config.hidden_size


def check_tensor_degree(config: Any, tp: int) -> None:
    """Raise a UserError if the model's heads or MLP width cannot be split over `tp` ranks."""
    name = family_of(config).name
    heads, groups, width = config.num_attention_heads, kv_heads(config), mlp_width(config)
    fits = [n for n in range(2, heads + 1) if heads % n == 0 and _groups_fit(groups, n)]
    kinds = ", ".join(map(str, fits)) if len(fits) > 1 else f"only {(fits or [1])[0]}"
    if heads % tp:
        raise UserError(
            f"tp={tp} does not divide {name}'s {heads} attention heads; tp can be {kinds} here, "
            "and data and pipeline parallelism work with any number of heads"
        )
    if not _groups_fit(groups, tp):
        raise UserError(
            f"tp={tp} and {name}'s {groups} key-value heads do not divide each other; "
            f"tp can be {kinds} here"
        )
    if width % tp:
        raise UserError(f"tp={tp} does not divide {name}'s MLP width {width}")


def _groups_fit(groups: int, tp: int) -> bool:
    return groups % tp == 0 or tp % groups == 0
