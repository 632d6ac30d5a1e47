"""A model's sizes as a transformers configuration."""

from dataclasses import dataclass
from typing import Any

from helpers.engine.errors import UserError, need, whole_reason


@dataclass(frozen=True)
class Sizes:
    """The numbers that a file states, or that a name in it stands for.

    kv_heads: as many as heads where not given. ffn: four times the width where not given.
    norm_eps, std, dropout, attention_dropout: the family's own where not given.
    bias: do all linear layers of a Llama's block have one? GPT-2's have.
    hub: where the model's configuration is, for helpers.train --model.
    """

    model_type: str = "llama"
    hidden: int = 0
    layers: int = 0
    heads: int = 0
    vocab: int = 0
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    positions: int | None = None
    rope_theta: float | None = None
    tied: bool = False
    norm_eps: float | None = None
    std: float | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    bias: bool = False
    hub: str = ""
    source: str = ""

    def config(self) -> Any:
        """The model's configuration.

        Raises:
            UserError: the sizes do not fit each other.
        """
        if not self.heads or self.hidden % self.heads:
            raise UserError(f"{self.heads} heads do not divide a width of {self.hidden}")
        given = {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.positions,
            "initializer_range": self.std,
        }
        ffn = self.ffn or 4 * self.hidden
        if self.model_type == "gpt2":
            given |= {"n_inner": ffn, "layer_norm_epsilon": self.norm_eps}
            given |= {"resid_pdrop": self.dropout, "embd_pdrop": self.dropout}
            given |= {"attn_pdrop": self.attention_dropout}
        else:
            given |= {
                "num_key_value_heads": self.kv_heads or self.heads,
                "head_dim": self.head_dim,
                "intermediate_size": ffn,
                "rope_theta": self.rope_theta,
                "rms_norm_eps": self.norm_eps,
                "attention_dropout": self.attention_dropout,
            }
            given |= {"attention_bias": True, "mlp_bias": True} if self.bias else {}
        known = {name: value for name, value in given.items() if value is not None}
        transformers = need("transformers", "hf")
        try:
            make = transformers.AutoConfig.for_model  # whose tokens may lie outside the vocabulary
            return make(self.model_type, bos_token_id=None, eos_token_id=None, **known)
        except (ValueError, TypeError) as error:
            raise UserError(f"no configuration: {whole_reason(error, 120)}") from None
