"""What is known of each architecture, as data. Adding a family is adding one record here.

Paths are of transformers' own modules, relative to the model or to one block.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UserError
from . import blocks


@dataclass(frozen=True)
class Family:
    """Where an architecture keeps its parts, and how each part is split.

    Model paths: `embedding`, `blocks` (a ModuleList), `norm` (the last one; None where the last
        block is the last word), `head` (the linear layer that gives logits), `top` (the module from
        hidden states to logits, where that is more than the head).
    Block paths:
        attention: the attention module.
        sublayers: modules whose matrices are split: what comes into them crosses the boundary.
        column, row: linear layers split by output and by input; what a row gives crosses it back.
        packed: column layers whose output is parts of one size, one after another: how many.
        shared_kv: column layers of keys or values, held whole where ranks outnumber their heads.
        gathered: column layers of all queries, then keys, then values, with fewer heads of these:
            no split of rows gives a rank its heads, so ranks gather the rows that they share.
        per_head: the attention's own parameters that have a number for each head, as sinks.
        experts: modules that hold the matrices of all experts, split by each expert's width; what
            comes into them crosses the boundary, and what they give crosses it back.
    `forwards`: block path to a forward of our own, always bound.
    `parallel_residual`: of a configuration, are attention and MLP added to one residual together?
    `parallel_forward`: the block's forward where they do.
    `bypassed`: of a configuration, linear layers of a block whose matrices its modules read
        themselves: what stands beside or in place of such a layer would have no part.
    `whole_logits`: is the loss taken of the model's own logits, all of them at once?
    `recorded`: is it a record, which every block must fit? What was found out by a model's modules
        need not.
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
    packed: dict[str, int] = field(default_factory=dict)
    shared_kv: tuple[str, ...] = ()
    gathered: tuple[str, ...] = ()
    per_head: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    top: str | None = None
    forwards: dict[str, Callable] = field(default_factory=dict)
    parallel_residual: Callable[[Any], bool] = lambda config: False
    parallel_forward: Callable | None = None
    bypassed: Callable[[Any], tuple[str, ...]] = lambda config: ()
    whole_logits: bool = False
    recorded: bool = True

    @property
    def splits(self) -> bool:
        """Is there a layer that tp splits? Such a family has attention by models/attention.py."""
        return bool(self.row or self.experts)

    @property
    def split_layers(self) -> tuple[str, ...]:
        """Block paths of all linear layers that tp splits."""
        return (*self.column, *self.packed, *self.shared_kv, *self.gathered, *self.row)


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
    packed={"attn.c_attn": 3},
    row=("attn.c_proj", "mlp.c_proj"),
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
)

GPT_NEO = Family(
    name="GPT-Neo",
    model_type="gpt_neo",
    embedding="transformer.wte",
    blocks="transformer.h",
    norm="transformer.ln_f",
    head="lm_head",
    attention="attn.attention",
    sublayers=("attn", "mlp"),
    column=(
        "attn.attention.q_proj",
        "attn.attention.k_proj",
        "attn.attention.v_proj",
        "mlp.c_fc",
    ),
    row=("attn.attention.out_proj", "mlp.c_proj"),
    forwards={"attn.attention": blocks.gpt_neo_attention},
)

BLOOM_ROW = ("self_attention.dense", "mlp.dense_4h_to_h")
BLOOM = Family(
    name="BLOOM",
    model_type="bloom",
    embedding="transformer.word_embeddings",
    blocks="transformer.h",
    norm="transformer.ln_f",
    head="lm_head",
    attention="self_attention",
    sublayers=("self_attention", "mlp"),
    # by head, as GPT-NeoX
    column=("self_attention.query_key_value", "mlp.dense_h_to_4h"),
    row=BLOOM_ROW,
    forwards={"self_attention": blocks.bloom_attention},
    # it multiplies by slices of columns one after another
    bypassed=lambda config: (
        BLOOM_ROW if config.slow_but_exact and config.pretraining_tp > 1 else ()
    ),
)

BERT = Family(
    name="BERT",
    model_type="bert",
    embedding="bert.embeddings.word_embeddings",
    blocks="bert.encoder.layer",
    norm=None,
    head="cls.predictions.decoder",
    top="cls",
    attention="attention.self",
    sublayers=("attention.self", "intermediate"),
    column=(
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "intermediate.dense",
    ),
    row=("attention.output.dense", "output.dense"),
)

ROBERTA = replace(
    BERT,
    name="RoBERTa",
    model_type="roberta",
    embedding="roberta.embeddings.word_embeddings",
    blocks="roberta.encoder.layer",
    head="lm_head.decoder",
    top="lm_head",
)

# of the posts, which the planner has formulas for; and with them all others
FAMILIES = {family.model_type: family for family in (GPTJ, GPT2, NEOX, FALCON, LLAMA)}
RECORDS = FAMILIES | {family.model_type: family for family in (GPT_NEO, BLOOM, BERT, ROBERTA)}


MLP_WIDTHS = ("n_inner", "intermediate_size", "ffn_hidden_size", "ffn_dim")  # a field of each kind
KV_HEADS = ("num_kv_heads", "num_key_value_heads")  # likewise, of heads of keys and values
WINDOWS = ("sliding_window", "window_size")  # of a configuration: keys that a query sees at most


def kv_heads(config: Any) -> int:
    """Heads of keys and values: as many as queries, fewer (grouped), or one (multi-query).

    Raises:
        UserError: not every layer has as many.
    """
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        return 1 if config.multi_query else config.num_attention_heads
    own = {name for fields in own_of_layers(config).values() for name in fields}
    for key in KV_HEADS:
        if key in own:
            raise UserError(
                f"{config.model_type}'s layers have different {key}, and what is split by heads "
                "here has one number of them: leave out tp and cp_attention=ulysses"
            )
        if getattr(config, key, None):
            return getattr(config, key)
    return config.num_attention_heads


def own_of_layers(config: Any) -> dict[int, dict[str, Any]]:
    """What layers have other values of than their configuration, by name, by a layer's number:
    transformers lets nobody read such a field of the whole."""
    if not getattr(config, "per_layer_attributes", None):
        return {}
    return {int(layer): own for layer, own in config.to_dict()["per_layer_config"].items()}


def has_alibi(config: Any) -> bool:
    """Are positions told by ALiBi, which the attention mask carries?"""
    return config.model_type == "bloom" or bool(getattr(config, "alibi", False))


def head_dim(config: Any) -> int:
    """Width of a head."""
    given = getattr(config, "head_dim", None)
    return given or config.hidden_size // config.num_attention_heads


def mlp_width(config: Any) -> int:
    """Width of the MLP's middle layer."""
    for key in MLP_WIDTHS:
        if getattr(config, key, None):
            return getattr(config, key)
    return 4 * config.hidden_size
