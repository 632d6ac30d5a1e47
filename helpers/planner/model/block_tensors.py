"""What a program does with a block beside its matrix products, and what it keeps, as data.

A program is how blocks are computed: the engine's own way with each family, and two others that
published runs used; programs.json has them. Its numbers are counts of elements a token, by what the
tensors are as wide as. The engine's are counted, not estimated: tests/engine/models/test_blocks.py
runs the engine with a counter on every operation and every tensor that stays alive, and compares.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from helpers.engine.errors import UserError
from helpers.planner.shape import Shape
from helpers.tables import read_table

PROGRAMS = Path(__file__).with_name("programs.json")
KEEPS = ("none", "selective")  # policies whose kept tensors a program lists


@dataclass(frozen=True)
class Widths:
    """Numbers of elements of one token and one block, in tensors as wide as

    outside: the hidden states between the layers that tp splits; sequence parallelism splits them.
    inside: the hidden states where every tensor rank has them whole all the same.
    query, kv, ffn: queries, keys and values together, the MLP's middle; tp splits them.
    scores: a row of attention scores of every head; tp splits them.
    """

    outside: float = 0
    inside: float = 0
    query: float = 0
    kv: float = 0
    ffn: float = 0
    scores: float = 0

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
            + self.scores * part * shape.heads * seq_len
        )


@dataclass(frozen=True)
class Program:
    """How blocks are computed.

    family, precisions: whose blocks the engine computes so, with which arithmetic; no family where
        it is another's way.
    forward, backward: elements that operations other than products read and write.
    operations: how many operations there are, forward and backward.
    kept: elements kept for the backward, for the policies `none` and `selective`.
    parameter_bytes: moved for each parameter in a backward in 16 bits: its gradient, into the dtype
        of sums.
    attention: `one kernel`, or `scores` where these go through memory; then `selective` means that
        they are computed again, else that all but products is.
    logit_bytes: moved for each logit of the loss.
    gradients_in_loss: are the head's gradients computed in the forward?
    weight_gradient_bytes: moved for an element of a weight's gradient by its product, where that
        adds to float32 sums; None where it writes it once.
    stops_early: is recomputation over once everything that is needed is there? The last product
        of a block and its message then are not repeated.
    last_norm: hidden states that the norm before the head keeps.
    message_copies: elements read and written around each message of the tensor axis.
    waits_for_sends, split_sends: of a pipeline, see pipeline_messages.link_s.
    """

    name: str
    forward: Widths
    backward: Widths
    operations: tuple[int, int]
    kept: dict[str, Widths] = field(hash=False)
    date: str
    source: str
    family: str = ""
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    parameter_bytes: float = 0
    attention: str = "one kernel"
    logit_bytes: int = 44
    gradients_in_loss: bool = True
    weight_gradient_bytes: int | None = None
    stops_early: bool = True
    last_norm: int = 1
    message_copies: int = 2
    waits_for_sends: bool = False
    split_sends: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if set(self.kept) != set(KEEPS):
            raise UserError(f"kept is of {' and '.join(KEEPS)}, not of {', '.join(self.kept)}")
        if self.attention not in ("one kernel", "scores"):
            raise UserError(f"attention is 'one kernel' or 'scores', not {self.attention!r}")


INPUT = Widths(outside=1)  # of a block: all that `full` keeps


def program(name: str, path: Path = PROGRAMS) -> Program:
    """The program with this name in programs.json, or in another file with its fields.

    Raises:
        UserError: there is none, or a row is wrong.
    """
    by_name = {row.name: row for row in read_table(path, Program)}
    if name not in by_name:
        raise UserError(f"no program {name!r} in {path.name}; there is {', '.join(by_name)}")
    return by_name[name]


@cache
def program_of(family: str, precision: str) -> Program:
    """The engine's own way of computing a family's blocks."""
    return next(
        row
        for row in read_table(PROGRAMS, Program)
        if row.family == family and precision in row.precisions
    )
