"""How wide the tensors of a block are, as numbers of elements for each token."""

from dataclasses import dataclass
from operator import add

from helpers.planner.shape.shape import Shape

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}  # of an element


@dataclass(frozen=True)
class Widths:
    """Numbers of elements of one token and one block, in tensors as wide as

    outside: the hidden states between the layers that tp splits; sequence parallelism splits them.
    inside: the hidden states where every tensor rank has them whole all the same.
    query, kv, ffn: queries, keys and values together, the MLP's middle; tp splits them.
    up: what the MLP's first layers make, twice the middle where one of them is a gate; as `ffn`.
    scores: a row of attention scores of every head; tp splits them.
    whole_scores: the same where every tensor rank has them of all heads.
    """

    outside: float = 0
    inside: float = 0
    query: float = 0
    kv: float = 0
    ffn: float = 0
    up: float = 0
    scores: float = 0
    whole_scores: float = 0

    def __add__(self, other: "Widths") -> "Widths":
        """Both."""
        return Widths(*map(add, vars(self).values(), vars(other).values()))

    def on(self, shape: Shape, tp: int, sequence_parallel: bool, seq_len: int) -> float:
        """Elements of one token and one block on one tensor rank."""
        part = 1 / tp
        outside = self.outside * (part if sequence_parallel else 1)
        key_value = 2 * shape.kv_heads * max(part, 1 / shape.kv_heads)
        return (
            (outside + self.inside) * shape.hidden
            + self.query * part * shape.heads * shape.head_dim
            + self.kv * key_value * shape.head_dim
            + self.ffn * part * shape.ffn
            + self.up * part * shape.block[-2].outputs
            + (self.scores * part + self.whole_scores) * shape.heads * seq_len
        )


NOTHING = Widths()
