"""What is known of each architecture, as data. Adding a family is adding one record here.

Paths are of transformers' own modules, relative to the model or to one block.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import blocks
from .chunked_loss import NO_TRANSFORM, LogitTransform


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
        norms: norms before a sublayer; None where all that is outside the sublayers counts as such.
        dropouts: nn.Dropout modules after a sublayer, outside the boundary.
    `forwards`: block path to a forward of our own, always bound.
    `parallel_residual`: of a configuration, are attention and MLP added to one residual together?
    `parallel_forward`: the block's forward where they do.
    `logits`: what the model makes of its head's products.
    `whole_logits`: is the loss taken of the model's own logits, all of them at once?
    """

    name: str
    model_type: str
    embedding: str | None
    blocks: str | None
    norm: str | None
    head: str | None
    attention: str
    sublayers: tuple[str, ...]
    column: tuple[str, ...]
    row: tuple[str, ...]
    norms: tuple[str, ...] | None
    fused_qkv: tuple[str, ...] = ()
    shared_kv: tuple[str, ...] = ()
    dropouts: tuple[str, ...] = ()
    forwards: dict[str, Callable] = field(default_factory=dict)
    parallel_residual: Callable[[Any], bool] = lambda config: False
    parallel_forward: Callable | None = None
    logits: LogitTransform = NO_TRANSFORM
    whole_logits: bool = False

    @property
    def splits(self) -> bool:
        """Is there a layer that tp splits? Such a family has attention by models/attention.py."""
        return bool(self.row)


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
