"""Which family a model is of: its record, or what its own modules and transformers' plan say.

A model without a record is laid out all the same: ranks share its state, stages its blocks. tp
splits it where transformers publishes a tensor plan of column and row layers with it. Whether that
gives the model's own loss is not believed but tried: see self_check.py.
"""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..errors import UserError
from .chunked_loss import LogitTransform
from .families import FAMILIES, Family, kv_heads, mlp_width

# styles of transformers' tensor plans; the third is of norms of single heads
COLUMN, ROW, HEAD_NORM = "colwise", "rowwise", "replicated_with_grad_allreduce"
FOLLOWED = {COLUMN, ROW, HEAD_NORM}


def family_of(model: nn.Module) -> Family:
    """What is known of a model's architecture: its record, or what its modules and the tensor plan
    that transformers publishes with it say."""
    family = getattr(model, "family", None) or FAMILIES.get(model.config.model_type)
    return family or discover(model, tensor_rules(model.config))


def candidates(model: nn.Module, tp: int, cp: int = 1) -> list[Family]:
    """Ways to lay the model out, the one that can do most first. Where neither layers nor sequences
    are split there is always another: the class's own attention, and the loss of its own logits.

    Raises:
        UserError: cp splits sequences, and the model's attention is not known.
    """
    first = family_of(model)
    if cp > 1 and not first.attention:
        raise UserError(
            f"{first.name} cannot be split by cp={cp}: its attention is not found by a record here "
            "or by transformers' tensor plan; dp_shard and dp_replicate work with it"
        )
    if tp > 1 or cp > 1:
        return [first]
    plain = discover(model)
    ways = [first, plain, replace(plain, whole_logits=True, head=None)]
    return [way for place, way in enumerate(ways) if way not in ways[:place]]


def discover(model: nn.Module, rules: "TensorRules | None" = None) -> Family:
    """The family of a model without a record, by its modules: `rules` say what tp splits.

    What cannot be found is None, and what needs it then refuses.
    """
    names = {id(module): path for path, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    blocks = _blocks(model)
    plain_head = isinstance(head, nn.Linear)
    return Family(
        name=model.config.model_type,
        model_type=model.config.model_type,
        embedding=names.get(id(embedding)),
        blocks=blocks,
        norm=_last_norm(model, blocks) if blocks else None,
        head=names.get(id(head)) if plain_head else None,
        logits=LogitTransform.of(model.config),
        whole_logits=not plain_head,
        attention=rules.attention if rules else "",
        sublayers=rules.sublayers if rules else (),
        column=rules.column if rules else (),
        shared_kv=rules.shared_kv if rules else (),
        row=rules.row if rules else (),
        norms=None,
    )


def base_of(model: nn.Module) -> nn.Module:
    """The model without its head; the model itself where transformers' own name for it is wrong."""
    return getattr(model, "base_model", model)


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the language model."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _blocks(model: nn.Module) -> str | None:
    """The path of the list of blocks: of the lists as long as the model is deep, the largest."""
    depth = getattr(text_config(model.config), "num_hidden_layers", None)
    sizes = {
        path: sum(parameter.numel() for parameter in module.parameters())
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth
    }
    return max(sizes, key=sizes.get) if sizes else None


def _last_norm(model: nn.Module, blocks: str) -> str | None:
    """The path of the norm after the blocks; None where there is none, as in post-norm models."""
    parent = blocks.rpartition(".")[0]
    names = [name for name, _ in model.get_submodule(parent).named_children()]
    norms = [
        name for name in names if ("norm" in name or name.startswith("ln")) and "emb" not in name
    ]
    return f"{parent}.{norms[0]}" if len(norms) == 1 else None


@dataclass(frozen=True)
class TensorRules:
    """What of a block can be split by a plan of column and row layers; paths as in Family."""

    sublayers: tuple[str, ...]
    column: tuple[str, ...]
    shared_kv: tuple[str, ...]
    row: tuple[str, ...]

    @property
    def attention(self) -> str:
        """The attention module, where it is split."""
        return next((path.rpartition(".")[0] for path in self.shared_kv), "")


def tensor_rules(config: Any) -> TensorRules | None:
    """The rules of transformers' own tensor plan that are followed here; None where there are none.

    The plan says "layers.*.self_attn.q_proj": "colwise" and so on. A sublayer is split where all of
    its rules are of columns, rows and norms of single heads; any other is left whole on each rank.
    """
    plan = getattr(config, "base_model_tp_plan", None) or {}
    styles = {
        path.removeprefix("layers.*."): style
        for path, style in plan.items()
        if path.startswith("layers.*.")
    }
    by_sublayer: dict[str, dict[str, str]] = {}
    for path, style in styles.items():
        by_sublayer.setdefault(path.split(".")[0], {})[path] = style
    split = {
        sublayer: rules
        for sublayer, rules in by_sublayer.items()
        if set(rules.values()) <= FOLLOWED and {COLUMN, ROW} <= set(rules.values())
    }
    if not split:
        return None
    followed = {path: style for rules in split.values() for path, style in rules.items()}
    column = [path for path, style in followed.items() if style == COLUMN]
    kv = tuple(path for path in column if path.rpartition(".")[2] in ("k_proj", "v_proj"))
    return TensorRules(
        sublayers=tuple(split),
        column=tuple(path for path in column if path not in kv),
        shared_kv=kv,
        row=tuple(path for path, style in followed.items() if style == ROW),
    )


def check_tensor_degree(config: Any, tp: int) -> None:
    """Raise a UserError if the model's heads or MLP width cannot be split over `tp` ranks."""
    record, rules = FAMILIES.get(config.model_type), tensor_rules(config)
    if record is None and rules is None:
        raise UserError(_no_rules(config))
    name = record.name if record else config.model_type
    if record or rules.attention:
        _check_heads(config, tp, name)
    width = mlp_width(config)
    dense = record or any(path.startswith("mlp.") for path in rules.row)
    if dense and width % tp:
        raise UserError(f"tp={tp} does not divide {name}'s MLP width {width}")


def _no_rules(config: Any) -> str:
    plan = getattr(config, "base_model_tp_plan", None)
    reason = "transformers publishes no tensor plan for it"
    if plan:
        others = sorted(set(plan.values()) - FOLLOWED) or ["layers under other names"]
        reason = (
            f"the tensor plan that transformers publishes has what is not followed: {others[0]}"
        )
    known = ", ".join(record.name for record in FAMILIES.values())
    return (
        f"{config.model_type} cannot be split by tp: there is no record of it here and {reason}; "
        f"dp_shard and dp_replicate work with it (tp with {known} and models like Llama)"
    )


def _check_heads(config: Any, tp: int, name: str) -> None:
    heads, groups = config.num_attention_heads, kv_heads(config)
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


def _groups_fit(groups: int, tp: int) -> bool:
    return groups % tp == 0 or tp % groups == 0
