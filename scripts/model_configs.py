"""Configurations of the models that the workshop trains or plans, as data.

The published ones repeat the values of the models' own Hugging Face configurations; tests count
their parameters. The tiny ones have the same structure in a size that a laptop trains, and the
vocabulary of the bundled tokenizer.
"""

VOCABULARY = 2048
END = 0  # id of <|endoftext|> in the bundled tokenizer

GPTJ = {
    "model_type": "gptj",
    "architectures": ["GPTJForCausalLM"],
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "tie_word_embeddings": False,
    "use_cache": True,
}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "use_cache": True,
}
FALCON = {
    "model_type": "falcon",
    "architectures": ["FalconForCausalLM"],
    "alibi": False,
    "bias": False,
    "parallel_attn": True,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "tie_word_embeddings": True,
    "use_cache": True,
}
NEOX = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
    "layer_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "attention_bias": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "use_parallel_residual": True,
    "tie_word_embeddings": False,
    "use_cache": True,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.02,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "use_cache": True,
}
GPT2_DROPOUT = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
GPT2_IDS = {"vocab_size": 50257, "bos_token_id": 50256, "eos_token_id": 50256}
FALCON_IDS = {"vocab_size": 65024, "bos_token_id": 11, "eos_token_id": 11}
LLAMA2 = {"vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2}
TINY_IDS = {"vocab_size": VOCABULARY, "bos_token_id": END, "eos_token_id": END}

TINY = {
    "gptj-tiny": {
        **GPTJ,
        **TINY_IDS,
        "n_positions": 512,
        "n_embd": 128,
        "n_layer": 4,
        "n_head": 4,
        "rotary_dim": 16,
    },
    "gpt2-tiny": {
        **GPT2,
        **TINY_IDS,
        **NO_DROPOUT,
        "n_positions": 512,
        "n_embd": 128,
        "n_layer": 4,
        "n_head": 4,
    },
    "falcon-tiny": {
        **FALCON,
        **TINY_IDS,
        "max_position_embeddings": 512,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "multi_query": True,
        "new_decoder_architecture": False,
    },
    "neox-tiny": {
        **NEOX,
        **TINY_IDS,
        "max_position_embeddings": 512,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "hidden_act": "gelu",
    },
    "llama-tiny": {
        **LLAMA,
        **TINY_IDS,
        "max_position_embeddings": 512,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}

PUBLISHED = {
    "gptj-6b": {
        **GPTJ,
        "vocab_size": 50400,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "n_positions": 2048,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "rotary_dim": 64,
    },
    "gpt2": {
        **GPT2,
        **GPT2_IDS,
        **GPT2_DROPOUT,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
    },
    "gpt2-xl": {
        **GPT2,
        **GPT2_IDS,
        **GPT2_DROPOUT,
        "n_positions": 1024,
        "n_embd": 1600,
        "n_layer": 48,
        "n_head": 25,
    },
    # GPT-3 was never published as weights; its sizes (arXiv 2005.14165, table 2.1) in GPT-2's form
    "gpt3-175b": {
        **GPT2,
        **GPT2_IDS,
        **NO_DROPOUT,
        "n_positions": 2048,
        "n_embd": 12288,
        "n_layer": 96,
        "n_head": 96,
    },
    "falcon-7b": {
        **FALCON,
        **FALCON_IDS,
        "max_position_embeddings": 2048,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "multi_query": True,
        "new_decoder_architecture": False,
    },
    "falcon-40b": {
        **FALCON,
        **FALCON_IDS,
        "max_position_embeddings": 2048,
        "hidden_size": 8192,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "multi_query": True,
        "new_decoder_architecture": True,
    },
    "neox-20b": {
        **NEOX,
        "vocab_size": 50432,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "max_position_embeddings": 2048,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "hidden_act": "gelu_fast",
    },
    "llama2-7b": {
        **LLAMA,
        **LLAMA2,
        "max_position_embeddings": 4096,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "llama2-13b": {
        **LLAMA,
        **LLAMA2,
        "max_position_embeddings": 4096,
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
    },
    "llama2-70b": {
        **LLAMA,
        **LLAMA2,
        "max_position_embeddings": 4096,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
}

CONFIGS = {**TINY, **PUBLISHED}
