"""What a program does more, and keeps less, where its blocks multiply 8 bits.

    in_8_bits(program_of(shape, "bf16", "cuda"))

Numbers are rounded before each product: their largest is looked for, they are scaled, cut off and
written in 8 bits, each a pass over memory where nothing fuses them. For the backward products keep
8 bits of what went into them, in place of 16. eight_bits.json has the numbers; the engine's are
counted (tests/engine/models/test_blocks.py).

Source: the engine's precision/float8.py.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError
from helpers.planner.model.widths import NOTHING, Widths
from helpers.tables import read_table

if TYPE_CHECKING:
    from helpers.planner.model.block_tensors import Program

EIGHT_BITS = Path(__file__).with_name("eight_bits.json")


@dataclass(frozen=True)
class EightBits:
    """Beside what a program does in 16 bits, in elements of 16 bits a token.

    name: of the program. forward, backward, operations, weight_bytes: more of these, the last for a
        parameter in each direction. kept: with nothing recomputed. stays, sends_scales: as Program
        says.
    """

    name: str
    forward: Widths
    backward: Widths
    kept: Widths
    operations: tuple[int, int]
    weight_bytes: tuple[float, float]
    date: str
    source: str
    stays: Widths = NOTHING
    sends_scales: bool = False
    note: str = ""


def in_8_bits(program: "Program") -> "Program":
    """A program of 16 bits, with products of blocks in 8.

    Raises:
        UserError: it is not known how it multiplies them.
    """
    if program.weight_bytes:
        return program  # it is one already
    by_name = {row.name: row for row in read_table(EIGHT_BITS, EightBits)}
    more = by_name.get(program.name) or by_name.get(program.like)
    if more is None:
        raise UserError(
            f"no formula knows precision=fp8 of the program {program.name!r:.40}; there is "
            f"{', '.join(by_name)}"
        )
    forward, backward = (a + b for a, b in zip(program.operations, more.operations, strict=True))
    weight_bytes, back_bytes = more.weight_bytes
    return replace(
        program,
        forward=program.forward + more.forward,
        backward=program.backward + more.backward,
        operations=(forward, backward),
        kept=program.kept | {"none": program.kept["none"] + more.kept},
        stays=more.stays,
        sends_scales=more.sends_scales,
        weight_bytes=weight_bytes,
        parameter_bytes=program.parameter_bytes + back_bytes,
    )
