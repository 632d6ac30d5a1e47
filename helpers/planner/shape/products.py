"""The matrix products of a block of any class, by its parameters: as five layers.

    query | key, value | attention out | mlp up | mlp down

Every matrix is in one of them, so that their sum is the block's: gates beside the queries, the low
ranks of DeepSeek's attention, routers and shared experts in the MLP. Of experts those count that a
token goes through; the others are idle.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from helpers.engine.models.block_rules import OUT
from helpers.planner.shape.shape import Linear

ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")
ATTENTION_OUT = (*OUT, "c_proj", "wo")
DOWN = ("down", "w2", "fc2", "c_proj", "fc_out")
UP = ("up", "gate", "w1", "w3", "fc1")


def products(
    block: nn.Module, config: Any, heads: int, groups: int, head_dim: int
) -> tuple[Linear, ...]:
    """A block's products.

    Args:
        config: of the text model.
        groups: heads of keys and values.
        head_dim: width of a query and of a key.
    """
    hidden = config.hidden_size
    biased = any("bias" in name for name, _ in block.named_parameters())
    size = dict.fromkeys(("in", "out", "up", "down"), 0.0)
    for path, matrix in _matrices(block):
        size[_kind(path, matrix, hidden)] += _share(path, matrix, block, config) * matrix.numel()
    width = {kind: max(1, round(numbers / hidden)) for kind, numbers in size.items()}
    kv = min(2 * groups * head_dim, width["in"] * 2 * groups // (heads + 2 * groups))
    return (
        Linear("query", hidden, max(1, width["in"] - kv), biased, "column"),
        Linear("key, value", hidden, kv, biased, "kv"),
        Linear("attention out", width["out"], hidden, biased, "row"),
        Linear("mlp up", hidden, width["up"], biased, "column"),
        Linear("mlp down", width["down"], hidden, biased, "row"),
    )


def idle(block: nn.Module, config: Any) -> int:
    """Parameters of a block's experts that a token does not go through."""
    found = _matrices(block)
    return round(sum(m.numel() * (1 - _share(path, m, block, config)) for path, m in found))


def _matrices(block: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What a token's states are multiplied with: no convolutions, nor tables that are read."""
    for path, parameter in block.named_parameters():
        owner, _, name = path.rpartition(".")
        other = isinstance(block.get_submodule(owner), nn.Conv1d | nn.Conv2d | nn.Embedding)
        if parameter.dim() >= 2 and not other and "bias" not in name:
            yield path, parameter


def _kind(path: str, matrix: Tensor, hidden: int) -> str:
    around, name = path.split(".")[0].lower(), path.lower()
    if "attn" in around or "attention" in around:
        layer = path.removesuffix(".weight").rpartition(".")[2]
        return "out" if layer in ATTENTION_OUT else "in"
    if any(word in name for word in DOWN):
        return "down"
    if any(word in name for word in UP):
        return "up"
    rows, columns = matrix.shape[-2:]
    return "down" if rows == hidden and columns != hidden else "up"


def _share(path: str, matrix: Tensor, block: nn.Module, config: Any) -> float:
    """Of a matrix, the part that a token goes through: of experts, those that it is sent to."""
    experts = _experts(path, matrix, block)
    return min(1.0, chosen_experts(config) / experts) if experts else 1.0


def chosen_experts(config: Any) -> int:
    """How many experts a token goes to, by a text model's configuration."""
    return next((getattr(config, name) for name in ACTIVE if getattr(config, name, None)), 1)


def _experts(path: str, matrix: Tensor, block: nn.Module) -> int:
    """How many experts there are where the matrix is one's or all of theirs; else 0."""
    if "shared" in path:
        return 0
    if matrix.dim() > 2:
        return len(matrix)
    if ".experts." not in path:
        return 0
    experts = block.get_submodule(f"{path.split('.experts.')[0]}.experts")
    return len(experts) if isinstance(experts, nn.ModuleList) else 0
