"""A model's shape: the few numbers that its parameters, FLOPs and traffic follow from: widths, and
one block as a list of linear layers.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.models.architecture import Same
from helpers.engine.pipeline.partition import Costs


@dataclass(frozen=True)
class Linear:
    """A linear layer of one block: a matrix of inputs x outputs, and a bias of outputs.

    name: of what it makes; "key, value" are two matrices beside each other.
    cut: how tensor parallelism splits it. `column`: by outputs, the bias with them. `row`: by
    inputs, the bias on every rank. `kv`: by outputs, in whole key-value heads; a rank holds at
    least one, so with fewer heads than ranks they are held several times.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool
    cut: str

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)

    @property
    def matrices(self) -> int:
        """How many it stands for, each a product of its own where they are not fused."""
        return self.name.count(",") + 1


@dataclass(frozen=True)
class Shape:
    """What the formulas need to know of a decoder-only transformer.

    positions: rows of a learned position table, 0 for rotary positions or ALiBi.
    block: the linear layers of one block; block_norm: its normalisation parameters, of a class that
        was counted their scales.
    reductions: all-reduces that a block needs in each direction under tensor parallelism: 1 where
        attention and MLP read the same input and are summed before the residual, else 2, or 3 where
        it has experts and one beside them that every token goes through.
    capped: do logits go through a softcap?
    longest: tokens of a sequence at most; 0 where there is no such limit.
    window: tokens that the narrowest of its layers sees at most; 0 where all see every earlier one.
    recurrent: is there a recurrence in place of attention in some layers?
    held, begin, end: of a model that was counted from its class, the parameters of a block, before
        and after the blocks, as they are held; see parameters.py.
    kinds, kind_of: of one whose blocks differ, each kind and the kind of each layer, see kinds.py;
        `held` is then the largest's, and `block` the mean.
    mix: how many blocks of each kind that mean is of.
    costs: of one that was counted, what the engine balances its layers by.
    idle: parameters of all blocks' experts that a token does not go through.
    source: of one that was counted, its configuration.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int
    block: tuple[Linear, ...]
    block_norm: int
    final_norm: int
    reductions: int
    tied: bool
    head_bias: bool = False
    capped: bool = False
    longest: int = 0
    window: int = 0
    recurrent: bool = False
    held: tuple[Any, ...] = ()
    begin: tuple[Any, ...] = ()
    end: tuple[Any, ...] = ()
    kinds: tuple[Any, ...] = ()
    kind_of: tuple[int, ...] = ()
    mix: tuple[int, ...] = ()
    costs: Costs | None = None
    idle: int = 0
    source: Same | None = None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """A search asks for it hundreds of thousands of times, of hundreds of parts."""
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        """Without its hash, which is another one in another process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        if self.held:
            return sum(one.elements for one in self.held)
        return sum(linear.parameters for linear in self.block) + self.block_norm

    @property
    def norms(self) -> int:
        """Norms of a block whose output tp splits."""
        vectors = 1 if self.held or self.family == "llama" else 2  # a scale, and a shift
        return self.block_norm // (vectors * self.hidden)

    def narrow(self, seq_len: int) -> bool:
        """Are rows as long as the window of a layer, or longer? Classes then make a mask."""
        return 0 < self.window <= seq_len

    @property
    def ffn(self) -> int:
        """Width of the MLP's middle layer: what its last linear layer reads."""
        return self.block[-1].inputs


def check_shape(shape: Any) -> None:
    """Raise a UserError if it is none."""
    if not isinstance(shape, Shape):
        words = "give a model's shape, as model_shape(load_config('gptj-6b'))"
        raise UserError(f"{words}, not a {type(shape).__name__}")


def token_flops(shape: Shape, seq_len: int) -> float:
    """Of the matrix products of a token's forward, in a row of `seq_len`.

    2 FLOPs for each matrix element, and 4·seq·width for the attention scores and their use. The
    embedding look-up multiplies nothing; the output layer does.

    Source: arXiv 2205.05198, appendix A, by layer; llm-analysis for grouped heads.
    """
    matrices = sum(linear.inputs * linear.outputs for linear in shape.block)
    scores = 4 * seq_len * shape.heads * shape.head_dim
    return shape.layers * (2 * matrices + scores) + 2 * shape.hidden * shape.vocab
