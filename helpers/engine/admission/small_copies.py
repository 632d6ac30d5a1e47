"""Configurations of a model's kind, so small that a layout is tried in milliseconds."""

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..models.architecture import text_config
from ..models.families import KV_HEADS, MLP_WIDTHS, WINDOWS, kv_heads, own_of_layers
from ..models.overrides import fewer_layers, override

VOCABULARY = 61  # a prime: no degree divides it
HEAD, MLP = 16, 24  # widths of a head and of an MLP: products in 16 bits want multiples of 8
HEADS = 4  # some classes count heads by fours

# what models have beside heads, width and MLP: so much of it, or as little as there is
SIZES = {
    "n_routed_experts num_experts num_local_experts moe_num_experts num_moe_experts": 4,
    "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k top_k_experts": 2,
    "n_shared_experts n_group topk_group num_expert_group num_group first_k_dense_replace": 1,
    "chunk_size_feed_forward": 1,
    # layers that are called again, or whose inputs are read once more, further on in the model
    "n_layers_per_attn_res_block loop_layer_index_start n_input_layers n_output_layers": 1,
    "loop_layer_index_end n_recurrent_layers": 2,
    "kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim": HEAD,
    "index_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim": HEAD,
    "qk_head_dim": 2 * HEAD,
    "index_n_heads linear_num_key_heads": 2,
    "linear_num_value_heads linear_num_heads": 4,
    "state_size ssm_state_size mamba_d_state mamba_dt_rank time_step_rank rank": 8,
    "mamba_n_groups n_groups": 1,
    "mamba_chunk_size chunk_size index_topk": 8,
    "decoder_vocab_size vocab_size_per_layer_input entity_vocab_size": VOCABULARY,
    "hidden_size_per_layer_input": HEAD,
}
# of a model's experts, each of which the ranks of tp split
EXPERT_WIDTHS = (
    "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size "
    "moe_layer_ffn_hidden_size moe_shared_expert_intermediate_size moe_ffn_hidden_size"
)
# tokens from which on a layer does something else, which a short row must come to
REACHES = ("attention_chunk_size", "floor_scale", "keep_window_size")
# weights of what a class adds to its loss, if its configuration says so
OTHER_LOSSES = ("router_aux_loss_coef", "router_z_loss_coef", "aux_loss_alpha", "aux_loss_coef")
# what makes up the width of a state space, which is twice the model's: all of it, heads, a head
STATES = ("mamba_d_ssm",)
STATE_HEADS = ("mamba_n_heads", "mamba_num_heads")
STATE_HEAD = ("mamba_d_head", "mamba_head_dim")


def small_configs(config: Any, tp: int, each: int, deep: bool = False) -> Iterator[Any]:
    """Configurations of a model's kind with few layers: first with small widths, and for whoever
    cannot have those with its own.

    Args:
        tp: ranks that must be able to split heads and widths.
        each: layers of each kind.
        deep: first of all with every layer, for a class that may tell them apart by their numbers.
    """
    small = (_few_words, _small_parts, _small_widths)
    few = (_few_layers, *small)
    first = (small, few) if deep else (few, small)  # some have last blocks of a kind of their own
    for shrinks in (
        *first,
        (_few_layers, _few_words, _small_parts),
        (_few_layers, _few_words),
        (),
    ):
        small = copy.deepcopy(config)
        try:
            for change in (_large_losses, *shrinks):
                change(text_config(small), tp, each)
        except Exception:  # configurations check themselves, each in its own way
            continue
        if shrinks:
            _small_towers(small)
        yield small


def _large_losses(config: Any, tp: int, each: int) -> None:
    """What is added to the loss that is trained is as large, and not overlooked."""
    for name in OTHER_LOSSES:
        if getattr(config, name, None):
            setattr(config, name, 1.0)


def _few_layers(config: Any, tp: int, each: int) -> None:
    fewer_layers(config, each)
    if getattr(config, "mlp_only_layers", None):  # the others have experts
        config.mlp_only_layers = [0]


def _few_words(config: Any, tp: int, each: int) -> None:
    config.vocab_size = VOCABULARY
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int) and token >= VOCABULARY:
            setattr(config, name, 1)
    for name, value in list(vars(config).items()):
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(config, name, 0.0)
    for name in (*WINDOWS, *REACHES):
        if getattr(config, name, None):
            setattr(config, name, min(4, getattr(config, name)))
    config._attn_implementation_internal = None  # the class's own


def _small_parts(config: Any, tp: int, each: int) -> None:
    sizes = SIZES | {EXPERT_WIDTHS: MLP * tp}
    for names, size in sizes.items():
        for name in names.split():
            if _counts(config, name) and getattr(config, name) > size:
                setattr(config, name, size)


def _small_widths(config: Any, tp: int, each: int) -> None:
    if not getattr(config, "num_attention_heads", None):
        _narrow(config, HEADS * HEAD)
        return
    many, own = config.num_attention_heads, own_of_layers(config)
    if own:
        config.per_layer_config = None
    heads, groups = small_heads(many, kv_heads(config), tp)
    for name in KV_HEADS:
        if getattr(config, name, None):
            setattr(config, name, groups)
    widths = [name for name in MLP_WIDTHS if getattr(config, name, None)]
    override(config, num_attention_heads=heads, hidden_size=heads * HEAD)
    for name in widths:
        setattr(config, name, MLP * tp)
    _small_rotary(config)
    _small_states(config)
    if own:
        config.per_layer_config = {
            layer: {name: _small_own(name, value, many, tp) for name, value in values.items()}
            for layer, values in own.items()
        }


def _small_own(name: str, value: Any, heads: int, tp: int) -> Any:
    """What a layer has in place of the configuration's own width of a head or heads of keys."""
    if name in KV_HEADS:
        return small_heads(heads, value, tp)[1]
    return 2 * HEAD if name == "head_dim" else value


def small_heads(heads: int, groups: int, tp: int) -> tuple[int, int]:
    """Few heads, and groups of them that share a key and value, for `tp` ranks: a group has several
    where it had several, and ranks have several groups, or a group several ranks, as before."""
    if groups == heads:
        few = math.lcm(HEADS, tp)
        return few, few
    if groups % tp == 0:
        groups = min(groups, 2 * tp)
        return max(HEADS, 2 * groups), groups
    return math.lcm(groups, tp * -(-HEADS // tp)), groups


def _narrow(config: Any, hidden: int) -> None:
    """Another width for a model without attention, and for what is so wide or a few times."""
    before = config.hidden_size
    for name in list(vars(config)):
        if _counts(config, name) and getattr(config, name) % before == 0:
            setattr(config, name, getattr(config, name) // before * hidden)
    if _counts(config, "num_heads") and _counts(config, "head_dim"):
        config.num_heads, config.head_dim = 2 * hidden // HEAD, HEAD


def _small_rotary(config: Any) -> None:
    """Rotary positions that have a number for each pair of a head's dimensions, of a small head."""
    rope = getattr(config, "rope_parameters", None) or {}
    part = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    pairs = int(HEAD * (part or 1)) // 2
    for name in ("short_factor", "long_factor"):
        if isinstance(rope.get(name), list):
            rope[name] = rope[name][:pairs]


def _small_states(config: Any) -> None:
    width = 2 * config.hidden_size
    for names, size in ((STATES, width), (STATE_HEADS, width // HEAD), (STATE_HEAD, HEAD)):
        for name in names:
            if _counts(config, name):
                setattr(config, name, size)


def _small_towers(config: Any) -> None:
    """Few layers and small widths in what no text goes through, as far as it has them."""
    for part in list(vars(config).values()):
        if not hasattr(part, "to_json_string") or part is text_config(config):
            continue
        for shrink in (_few_layers, _small_parts, _small_widths):
            with suppress(Exception):  # as above
                shrink(part, 1, 1)


def _counts(config: Any, name: str) -> bool:
    """Is it a number of things, above none?"""
    value = vars(config).get(name)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
