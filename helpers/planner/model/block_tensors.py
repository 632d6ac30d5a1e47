"""What a program does with a block beside its matrix products, and what it keeps, as data.

A program is how blocks are computed: the engine's own way with each family, and two others that
published runs used. Its numbers are counts of elements a token, by what the tensors are as wide as.
The engine's are counted, not estimated: tests/engine/models/test_blocks.py runs the engine with a
counter on every operation and every tensor that stays alive, and compares.
"""

from dataclasses import dataclass, field, replace

from helpers.planner.shape import Shape


@dataclass(frozen=True)
class Widths:
    """Numbers of elements of one token and one block, in tensors as wide as

    outside: the hidden states between the layers that tp splits; sequence parallelism splits them.
    inside: the hidden states where every tensor rank has them whole all the same.
    query, kv, ffn: queries, keys and values together, the MLP's middle; tp splits them.
    scores: a row of attention scores of every head; tp splits them.
    mask: a row of the causal mask, one for all heads, whole on every tensor rank.
    """

    outside: float = 0
    inside: float = 0
    query: float = 0
    kv: float = 0
    ffn: float = 0
    scores: float = 0
    mask: float = 0

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
            + self.mask * seq_len
        )


@dataclass(frozen=True)
class Program:
    """How blocks are computed.

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
    waits_for_sends, split_sends: of a pipeline, see step_time.link_s.
    """

    name: str
    forward: Widths
    backward: Widths
    operations: tuple[int, int]
    kept: dict[str, Widths] = field(hash=False)
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


INPUT = Widths(outside=1)  # of a block: all that `full` keeps
# the results of products too: what `selective` keeps of most families
PRODUCTS = Widths(outside=1, inside=2, query=2, kv=1, ffn=1)


def _engine(
    name: str,
    forward: Widths,
    backward: Widths,
    operations: tuple[int, int],
    none: Widths,
    selective: Widths = PRODUCTS,
    last_norm: int = 1,
) -> Program:
    kept = {"none": none, "selective": selective}
    return Program(
        name, forward, backward, operations, kept, parameter_bytes=14, last_norm=last_norm
    )


GPTJ = _engine(
    "GPT-J",
    forward=Widths(outside=5, inside=4.3, query=8.95, ffn=2),
    backward=Widths(outside=6, inside=10.2, query=9, ffn=4),
    operations=(29, 49),
    none=Widths(outside=1, inside=1, query=2, kv=1, ffn=2),
)
GPT2 = _engine(
    "GPT-2",
    forward=Widths(outside=10, ffn=2),
    backward=Widths(outside=12, inside=2.3, query=9.1, ffn=4),
    operations=(10, 26),
    none=Widths(outside=2, inside=2, query=2, kv=1, ffn=2),
)
NEOX = _engine(
    "GPT-NeoX",
    forward=Widths(outside=7, inside=3.2, query=10.9, ffn=2),
    backward=Widths(outside=12, inside=2.3, query=34, ffn=4),
    operations=(23, 52),
    none=Widths(outside=1, inside=2, query=5, kv=1, ffn=2),
)
FALCON = _engine(  # transformers gives each of its layers a mask of its own
    "Falcon",
    forward=Widths(outside=7, inside=3.7, query=13, kv=3.6, ffn=2.4),
    backward=Widths(outside=12, inside=0.6, query=11.9, kv=7, ffn=3.1),
    operations=(23, 33),
    none=Widths(outside=1, inside=2, query=3, kv=1.5, ffn=2, mask=1),
)
LLAMA = _engine(
    "Llama",
    forward=Widths(outside=20, inside=0.4, query=10.4, kv=5, ffn=5),
    backward=Widths(outside=52, inside=9, query=16, kv=8.3, ffn=9.1),
    operations=(34, 67),
    none=Widths(outside=4, inside=2, query=2, kv=1, ffn=4),
    selective=Widths(outside=1, inside=2, query=2, kv=1, ffn=2),
    last_norm=2,
)
# its norms compute in float32, which is twice the bytes where all else has 16 bits
LLAMA_LOW = replace(
    LLAMA,
    forward=Widths(outside=42, inside=0.4, query=10.4, kv=5, ffn=5),
    backward=Widths(outside=98.5, inside=9.2, query=16, kv=8.4, ffn=9.2),
    operations=(38, 80),
    kept=LLAMA.kept | {"none": Widths(outside=6, inside=2, query=2, kv=1, ffn=4)},
    last_norm=3,
)
ENGINE = {"gptj": GPTJ, "gpt2": GPT2, "gpt_neox": NEOX, "falcon": FALCON, "llama": LLAMA}

# Megatron-LM of 2022: GPT-2's block with dropout, kernels fused by hand, scores in memory.
# Forward: two norms and two bias-dropout-adds; GELU; a transposition; softmax and dropout. Kept:
# arXiv 2205.05198, equations 1 to 4, in elements of 2 bytes: 10 + 24/t + 5·a·s/(h·t) bytes a token.
MEGATRON = Program(
    "Megatron-LM 2022",
    forward=Widths(outside=11, query=2, ffn=2, scores=4.5),
    backward=Widths(outside=21, query=3, ffn=4, scores=5.5),
    operations=(25, 50),
    kept={
        "none": Widths(outside=5, query=2, kv=1, ffn=2, scores=2.5),
        "selective": Widths(outside=5, query=2, kv=1, ffn=2),
    },
    attention="scores",
    gradients_in_loss=False,
    weight_gradient_bytes=8,
    stops_early=False,
    message_copies=0,
    waits_for_sends=True,
    split_sends=True,
)

# Llama under torch.compile, as torchtitan and KempnerForge run it: chains of element-wise
# operations in one kernel each.
LLAMA_COMPILED = Program(
    "Llama compiled",
    forward=Widths(outside=9, query=2, kv=2, ffn=3),
    backward=Widths(outside=20, query=2, kv=2, ffn=6),
    operations=(9, 18),
    kept={
        "none": Widths(outside=2, inside=2, query=2, kv=1, ffn=3),
        "selective": Widths(outside=1, inside=2, query=2, kv=1, ffn=2),
    },
    parameter_bytes=6,
)


def program_of(shape: Shape, precision: str) -> Program:
    """The engine's own way of computing a family's blocks."""
    if shape.family == "llama" and precision != "fp32":
        return LLAMA_LOW
    return ENGINE[shape.family]
