"""Models of published runs, by the few numbers that their papers state."""

from types import SimpleNamespace

from helpers.planner.shape import Shape, model_shape


def gpt(hidden: int, layers: int, heads: int, vocab: int = 51200, positions: int = 2048) -> Shape:
    """A GPT of Megatron-LM's form: GPT-2's block, the head tied to the embedding."""
    return model_shape(
        SimpleNamespace(
            model_type="gpt2",
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            n_inner=None,
            vocab_size=vocab,
            max_position_embeddings=positions,
            tie_word_embeddings=True,
        )
    )


def llama(
    hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int = 128256
) -> Shape:
    """A Llama, by default with Llama 3's vocabulary."""
    return model_shape(
        SimpleNamespace(
            model_type="llama",
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=hidden // heads,
            intermediate_size=ffn,
            vocab_size=vocab,
            attention_bias=False,
            mlp_bias=False,
            tie_word_embeddings=False,
        )
    )


GPTJ_6B = model_shape(
    SimpleNamespace(
        model_type="gptj",
        hidden_size=4096,
        num_hidden_layers=28,
        num_attention_heads=16,
        n_inner=None,
        vocab_size=50400,
        tie_word_embeddings=False,
    )
)
