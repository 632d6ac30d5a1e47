"""What is known of each architecture, as data. Adding a family is adding one record here.

Paths are of transformers' own modules, relative to the model or to one block.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from helpers.engine import blocks
from helpers.engine.errors import UserError


@dataclass(frozen=True)
class Family:
    """Where an architecture keeps its parts, and how each part is split.

    Model paths: `embedding`, `blocks` (a ModuleList), `norm`, `head`.
    Block paths: `column` and `row` linear layers; `norms` whose outputs enter the region.
    `forwards`: block path ("" is the block itself) to the forward that replaces transformers'.
    `one_sum`: attention and MLP leave the region together, in the block's own forward.
    """

    name: str
    model_type: str
    embedding: str
    blocks: str
    norm: str
    head: str
    column: tuple[str, ...]
    row: tuple[str, ...]
    norms: tuple[str, ...] = ()
    forwards: dict[str, Callable] = field(default_factory=dict)
    one_sum: bool = False


FAMILIES = {
    family.model_type: family
    for family in (
        Family(
            name="GPT-J",
            model_type="gptj",
            embedding="transformer.wte",
            blocks="transformer.h",
            norm="transformer.ln_f",
            head="lm_head",
            column=("attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.fc_in"),
            row=("attn.out_proj", "mlp.fc_out"),
            forwards={"": blocks.gptj_block, "attn": blocks.gptj_attention},
            one_sum=True,
        ),
    )
}


def family_of(config: Any) -> Family:
    """The record of a transformers configuration's architecture.

    Raises:
        UserError: there is no record for it.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise UserError(f"no family record for model type {config.model_type!r}; there is: {known}")
    return family


def check_tensor_degree(config: Any, tp: int) -> None:
    """Raise a UserError if the model's heads or MLP width cannot be split over `tp` ranks."""
    name = family_of(config).name
    heads = config.num_attention_heads
    if heads % tp:
        fits = [n for n in range(2, heads + 1) if heads % n == 0]
        raise UserError(
            f"tp={tp} does not divide {name}'s {heads} attention heads; tp can be "
            f"{', '.join(map(str, fits))} here"
        )
    width = mlp_width(config)
    if width % tp:
        raise UserError(f"tp={tp} does not divide {name}'s MLP width {width}")


def mlp_width(config: Any) -> int:
    """Width of the MLP's middle layer."""
    for key in ("n_inner", "intermediate_size", "ffn_hidden_size"):
        if getattr(config, key, None):
            return getattr(config, key)
    return 4 * config.hidden_size
