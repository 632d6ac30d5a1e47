"""Models of published runs, by the few numbers that their sources state: the rows of
tables/models.csv."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from helpers.engine.errors import UserError, check_count
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.shape import Shape
from helpers.tables import read_table

MODELS = Path(__file__).parent / "tables/models.csv"
FAMILIES = ("gpt2", "gptj", "llama", "nemotron")


@dataclass(frozen=True)
class PublishedModel:
    """A model by its widths.

    family: gpt2 for Megatron-LM's GPTs too.
    kv_heads: as many as heads, where not given. ffn: the MLP's width, 4·hidden where not given.
    positions: rows of a learned position table. tied: is the head the embedding?
    """

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    vocab: int
    date: str
    source: str
    kv_heads: int | None = None
    ffn: int | None = None
    positions: int = 0
    tied: bool = False

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UserError(f"family is one of {', '.join(FAMILIES)}, not {self.family!r}")
        if self.family == "llama" and self.ffn is None:
            raise UserError("a llama needs its ffn: its MLP has no usual width")
        for size in ("hidden", "layers", "heads"):
            check_count(size, getattr(self, size))

    @property
    def shape(self) -> Shape:
        """What the planner's formulas need to know of it."""
        return model_shape(
            SimpleNamespace(
                model_type=self.family,
                hidden_size=self.hidden,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.kv_heads or self.heads,
                head_dim=self.hidden // self.heads,
                n_inner=self.ffn,
                intermediate_size=self.ffn,
                vocab_size=self.vocab,
                max_position_embeddings=self.positions,
                attention_bias=False,
                mlp_bias=False,
                tie_word_embeddings=self.tied,
            )
        )


@cache
def published_model(name: str) -> PublishedModel:
    """The model with this name in models.csv.

    Raises:
        UserError: there is none, or a row is wrong.
    """
    by_name = {row.name: row for row in read_table(MODELS, PublishedModel)}
    if name not in by_name:
        raise UserError(f"no model {name!r} in {MODELS.name}; there is {', '.join(by_name)}")
    return by_name[name]
