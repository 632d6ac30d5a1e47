"""What a program does with a block beside its matrix products, what it keeps, and what it hides.

A program is how blocks are computed: the engine's own way with each family, and others that
published runs used; programs.json has them. Its numbers are counts of elements a token, by what the
tensors are as wide as. The engine's are counted, not estimated: tests/engine/models/test_blocks.py
runs the engine with a counter on every operation and every tensor that stays alive, and compares.

    program("torchtitan")                                # of programs.json
    program_for("megatron", shape, plan, cluster, 2048)  # as its generation of GPUs ran it
"""

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from helpers.engine.data_parallel.buckets import BUCKET_BYTES
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.eight_bits import in_8_bits
from helpers.planner.model.holds import Holds
from helpers.planner.model.measured_kept import measured_kept
from helpers.planner.model.widths import NOTHING, Widths
from helpers.planner.shape.shape import Shape
from helpers.tables import make_row, read_rows

PROGRAMS = Path(__file__).with_name("programs.json")
KEEPS = ("none", "selective")  # policies whose kept tensors a program lists
AGAIN = ("scores", "others", "second products", "nothing")
LIKE = "llama"  # most families that the engine lays out have its blocks


GRADIENTS = Widths(inside=1, up=1)


@dataclass(frozen=True)
class Hidden:
    """What a program computes beside its messages, as shares of these that may run so: of the
    tensor axis, and of that in the backward, beside products of weights' gradients; of ZeRO-3's
    parameters; of gradients on their way into sums; of what ZeRO-1 and 2 gather after the update,
    beside the next forward.

    slows: by what share of a hidden message's seconds the computing beside it takes longer, for
        both want the same memory and the same multiprocessors.
    """

    tensor: float = 0.0
    tensor_backward: float = 0.0
    gathers: float = 1.0
    sums: float = 1.0
    updates: float = 0.0
    slows: float = 0.0


@dataclass(frozen=True)
class Program:
    """How blocks are computed.

    also: older names of the row. like: another row above it, as which it is in all that it does not
        say itself.
    family, precisions: whose blocks the engine computes so, with which arithmetic; no family where
        it is another's way.
    measured: are there published rows to which its constants were fitted?
    edition_of, generations: the name that chooses this row for GPUs of these generations; and with
        `saves` only for plans that split sequences or recompute in part.
    forward, backward: elements that operations other than products read and write.
    operations: how many operations there are, forward and backward, beside products and attention.
    kept: elements kept for the backward, for the policies `none` and `selective`.
    shared, work: kept beside all blocks, and what the backward of one works with beside what is
        computed again, where these were seen; None where `gradients` and rotary tables are all.
    parameter_bytes: moved for each parameter in a backward in 16 bits: its gradient, into the dtype
        of sums.
    weight_bytes: moved for each parameter in a forward, where weights are rounded there.
    stays: kept of the last block alone, where blocks are computed again.
    sends_scales: in 8 bits, do ranks of tp agree on a scale for each token and each matrix?
    attention: `one kernel`, or `scores` where these go through memory.
    products_reached, attention_reached: of what the generation's GPUs reach.
    fused_scores: masking and softmax are one kernel where samples times heads on a rank are a
        multiple of it; 0 where they always are.
    again: what `selective` computes again: `scores`, `others` than products, `second products`,
        which is these and every second product beside them, or `nothing`.
    logit_bytes: moved for each logit of the loss.
    gradients_in_loss: are the head's gradients computed in the forward?
    weight_gradient_bytes: moved for an element of a weight's gradient by its product, where that
        adds to float32 sums; None where it writes it once.
    stops_early: is recomputation over once everything that is needed is there? The last product
        of a block and its message then are not repeated.
    context_copies: of attention's result, which attention over cp keeps beside `none`'s.
    keeps_attention: over cp, is its result kept where blocks are recomputed, and not sent for?
    last_norm: hidden states that the norm before the head keeps.
    gradients: of activations that are alive beside each other in the backward of an MLP.
    norm_gradients: hidden states that the backward of a block's norm works with.
    message_copies: elements read and written around each message of the tensor axis.
    waits_for_sends, split_sends: of a pipeline, see pipeline_messages.link_s.
    sends_by_stage: are a pipeline stage's gradients sent once its own last backward is over, while
        the rank's other stages go on, and are its new parameters there when its first forward is?
    host_us: that the host needs to start one operation or product; the device waits where its own
        work is shorter. On a cluster that was measured it is the cluster's own.
    hidden: what is computed beside messages.
    one_card: of one network card's pace, at which ZeRO-3's messages go from node to node; 0 where
        they use all cards of a node.
    placement: of its ranks, as plan.placement, where it has one of its own.
    bucket_bytes: of a message of the data axes, at least; bucket_rank_bytes: for each of its ranks.
    holds: on a device, beside what blocks keep, by precision; none where it holds what the engine
        does, or nobody has said.
    """

    name: str
    forward: Widths
    backward: Widths
    operations: tuple[int, int]
    kept: dict[str, Widths] = field(hash=False)
    date: str
    source: str
    also: tuple[str, ...] = ()
    like: str = ""
    family: str = ""
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    measured: bool = False
    edition_of: str = ""
    generations: tuple[str, ...] = ()
    saves: bool = False
    parameter_bytes: float = 0
    weight_bytes: float = 0
    stays: Widths = NOTHING
    sends_scales: bool = False
    shared: Widths | None = None
    work: Widths | None = None
    attention: str = "one kernel"
    products_reached: float = 1.0
    attention_reached: float = 1.0
    fused_scores: int = 0
    again: str = "others"
    logit_bytes: int = 44
    gradients_in_loss: bool = True
    weight_gradient_bytes: int | None = None
    stops_early: bool = True
    context_copies: int = 1
    keeps_attention: bool = True
    last_norm: int = 1
    gradients: Widths = GRADIENTS
    norm_gradients: int = 0
    message_copies: int = 2
    waits_for_sends: bool = False
    split_sends: bool = False
    sends_by_stage: bool = False
    host_us: float = 0.0
    hidden: Hidden = Hidden()
    one_card: float = 0.0
    placement: str = ""
    bucket_bytes: float = BUCKET_BYTES
    bucket_rank_bytes: float = 0.0
    holds: dict[str, Holds] = field(default_factory=dict, hash=False)
    note: str = ""

    def __post_init__(self) -> None:
        if set(self.kept) != set(KEEPS):
            raise UserError(f"kept is of {' and '.join(KEEPS)}, not of {', '.join(self.kept)}")
        if self.attention not in ("one kernel", "scores"):
            raise UserError(f"attention is 'one kernel' or 'scores', not {self.attention!r:.40}")
        if self.again not in AGAIN:
            raise UserError(f"again is one of {', '.join(AGAIN)}, not {self.again!r:.40}")


INPUT = Widths(outside=1)  # of a block: all that `full` keeps


@cache
def _rows(path: Path = PROGRAMS) -> tuple[Program, ...]:
    """The programs of a file, with what rows that are like others leave out."""
    written: dict[str, dict] = {}
    found = []
    for where, values in read_rows(path):
        like = values.get("like", "")
        if like and like not in written:
            raise UserError(f"{where}: there is no row {like!r:.40} before it")
        values = {
            name: one for name, one in written.get(like, {}).items() if name != "also"
        } | values
        written[values.get("name", "")] = values
        found.append(make_row(Program, values, where))
    return tuple(found)


def program(name: str, path: Path = PROGRAMS) -> Program:
    """The program with this name in programs.json, or in another file with its fields.

    Raises:
        UserError: there is none, or a row is wrong.
    """
    by_name = {each: row for row in _rows(path) for each in (row.name, *row.also)}
    if name not in by_name:
        raise UserError(f"no program {name!r:.40} in {path.name}; there is {', '.join(by_name)}")
    return by_name[name]


@cache
def program_of(
    shape: Shape, precision: str, device: str, narrow: bool = False, dealt: bool = False
) -> Program:
    """The engine's own way of computing a model's blocks. What those keep that the table does not
    count is seen: of another family, most like Llama's, or of its own with dropout, for one.

    Args:
        device: `cpu` or `cuda`.
        narrow: are rows as long as the shape's window, or longer?
        dealt: do data ranks deal a layer's experts out?

    Raises:
        UserError: as `measured_kept`.
    """
    if precision == "fp8":
        return in_8_bits(program_of(shape, "bf16", device, narrow, dealt))
    rows = _rows()
    counted = {row.family for row in rows}
    family = shape.family if shape.family in counted else LIKE
    row = next(row for row in rows if row.family == family and precision in row.precisions)
    if shape.source is None:
        return row
    seen = measured_kept(shape, row.kept, precision, device, narrow, dealt)
    return replace(row, kept=seen.kept, shared=seen.shared, work=seen.work)


@cache
def program_names() -> list[str]:
    """What `program_for` knows: the names that estimate takes."""
    rows = [row for row in _rows() if not row.family]
    names = ["engine", *(row.edition_of or row.name for row in rows), *(row.name for row in rows)]
    return list(dict.fromkeys(names))


def program_for(
    program: str | Program, shape: Shape, plan: ParallelPlan, cluster: Cluster, seq_len: int
) -> Program:
    """The program that a name means for a model's blocks under a plan on a cluster; a compiled plan
    has the engine's compiled blocks.

    Args:
        program: `engine`, or a row of programs.json; `megatron` is the edition whose tables were
            published for the cluster's generation of GPUs. Or a Program of your own.

    Raises:
        UserError: there is no such program, or it is not known how it multiplies 8 bits.
    """
    if not isinstance(program, str | Program):
        raise UserError(f"program is a name, as 'megatron', or a Program, not {program!r:.40}")
    if program == "engine" and not plan.compile:
        narrow = shape.narrow(seq_len)
        return program_of(shape, plan.precision, cluster.device, narrow, plan.ep > 1)
    if program == "engine":
        program = "engine-compiled"
    if isinstance(program, str):
        saves = plan.sequence_parallel or plan.activation == "selective"
        program = _by_others(program, cluster.generation, saves)
    return in_8_bits(program) if plan.precision == "fp8" else program


def _by_others(name: str, generation: str, saves: bool) -> Program:
    rows = [row for row in _rows() if not row.family]
    editions = [row for row in rows if name and row.edition_of == name]
    of_gpu = [row for row in editions if generation in row.generations] or editions[-1:]
    if of_gpu:
        return next((row for row in of_gpu if row.saves == saves), of_gpu[0])
    found = next((row for row in rows if name in (row.name, *row.also)), None)
    if found is None:
        known = ", ".join(program_names())
        raise UserError(f"no program {name!r:.40} in {PROGRAMS.name}; there is {known}")
    return found
