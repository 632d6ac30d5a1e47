"""Tiny models of each family, and the one-process truth that every layout is held against.

The truth is transformers' own class in a plain PyTorch loop: nothing of the engine runs in it.
"""

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

LR, CLIP, STEPS, DECAY = 1e-3, 0.5, 10, 0.01
# Some gradients are zero but for rounding (a key's bias moves no softmax); Adam would turn that
# rounding into whole steps, and one float32 process would differ from another.
EPS = {torch.float64: 1e-8, torch.float32: 1e-6}
VOCAB = 101  # a prime: no degree divides it


def config(family: str, layers: int = 2) -> Any:
    """A configuration of few layers with uneven vocabulary."""
    import transformers

    ids = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0}
    like_llama = ids | {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    falcon = ids | {
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    neox = ids | {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }
    like_bert = ids | {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 1,
        "num_labels": CLASSES,
    }
    gpt2 = ids | {"n_positions": 64, "n_embd": 32, "n_layer": layers, "n_head": 4}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    makers = {
        "gptj": lambda: transformers.GPTJConfig(
            n_positions=64, n_embd=32, n_layer=layers, n_head=4, rotary_dim=4, **ids
        ),
        "gpt2": lambda: transformers.GPT2Config(**gpt2, **no_dropout),
        "neox": lambda: transformers.GPTNeoXConfig(**neox),
        "neox-sequential": lambda: transformers.GPTNeoXConfig(use_parallel_residual=False, **neox),
        # Falcon's three layouts: one key-value head, one a group of queries, one a query
        "falcon-mqa": lambda: transformers.FalconConfig(
            multi_query=True, parallel_attn=True, bias=True, **falcon
        ),
        "falcon-new": lambda: transformers.FalconConfig(
            new_decoder_architecture=True, num_kv_heads=2, **falcon
        ),
        "falcon-alibi": lambda: transformers.FalconConfig(
            multi_query=False, parallel_attn=False, alibi=True, bias=True, **falcon
        ),
        "llama": lambda: transformers.LlamaConfig(**like_llama),
        # every other layer sees the last few tokens alone
        "gpt-neo": lambda: transformers.GPTNeoConfig(
            **ids,
            hidden_size=32,
            num_layers=layers,
            num_heads=4,
            attention_types=[[["global", "local"], layers // 2]],
            window_size=5,
            max_position_embeddings=64,
            attention_dropout=0.0,
            resid_dropout=0.0,
            embed_dropout=0.0,
        ),
        "bloom": lambda: transformers.BloomConfig(
            **ids,
            hidden_size=32,
            n_layer=layers,
            n_head=4,
            attention_dropout=0.0,
            hidden_dropout=0.0,
        ),
        "opt": lambda: transformers.OPTConfig(
            **ids | {"pad_token_id": 1},
            hidden_size=32,
            ffn_dim=48,
            word_embed_proj_dim=32,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=64,
            dropout=0.0,
        ),
        # queries, keys and values in one matrix: of as many heads, and of fewer
        "phi3": lambda: transformers.Phi3Config(
            **like_llama | {"num_key_value_heads": 4, "pad_token_id": 0}, sliding_window=None
        ),
        "phi3-grouped": lambda: transformers.Phi3Config(
            **like_llama | {"pad_token_id": 0}, sliding_window=None
        ),
        "olmo2": lambda: transformers.Olmo2Config(**like_llama),
        "qwen3": lambda: transformers.Qwen3Config(**like_llama, head_dim=8),
        # one layer sees a window of five tokens, the next all; embeddings and logits are scaled
        "gemma3": lambda: transformers.Gemma3TextConfig(
            **like_llama,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"] * (layers // 2),
            attn_logit_softcapping=20.0,
            final_logit_softcapping=15.0,
            pad_token_id=0,
        ),
        # sinks, every other layer with a window of five tokens; experts
        "gpt-oss": lambda: transformers.GptOssConfig(
            **like_llama,
            head_dim=8,
            sliding_window=5,
            num_local_experts=4,
            num_experts_per_tok=2,
            pad_token_id=0,
            experts_implementation="eager",  # the other takes no float64
        ),
        # attention of low ranks, whose values are narrower than its keys
        "deepseek": lambda: transformers.DeepseekV3Config(
            **like_llama | {"num_key_value_heads": 4},
            q_lora_rank=24,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=6,
            first_k_dense_replace=layers,
        ),
        "bert-mlm": lambda: transformers.BertConfig(**like_bert),
        "bert-classes": lambda: transformers.BertConfig(**like_bert),
        # its padding is a token like others here, and counts no position
        "roberta-mlm": lambda: transformers.RobertaConfig(**like_bert | {"type_vocab_size": 1}),
        "roberta-classes": lambda: transformers.RobertaConfig(**like_bert | {"type_vocab_size": 1}),
        "qwen2": lambda: transformers.Qwen2Config(**like_llama),
        "mistral": lambda: transformers.MistralConfig(sliding_window=None, **like_llama),
    }
    return makers[family]()


FAMILIES = (
    "gptj",
    "gpt2",
    "neox",
    "neox-sequential",
    "falcon-mqa",
    "falcon-new",
    "falcon-alibi",
    "llama",
)
PUBLISHED = ("qwen2", "mistral")  # found out by their modules
DECODERS = (
    "qwen3",
    "gemma3",
    "phi3",
    "phi3-grouped",
    "olmo2",
    "gpt-neo",
    "opt",
    "bloom",
    "gpt-oss",
    "deepseek",
)
ENCODERS = ("bert-mlm", "bert-classes", "roberta-mlm", "roberta-classes")
CLASSES = 3  # that rows are of, where rows are


def reference(
    family: str, dtype: torch.dtype = torch.float64, seed: int = 0, layers: int = 2
) -> nn.Module:
    """transformers' own model with random weights, spread wide so that mistakes show."""

    torch.manual_seed(seed)
    made = auto_class(family).from_config(config(family, layers), dtype=torch.float64)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    make_exact(made)
    return made.to(dtype)


def auto_class(family: str) -> Any:
    import transformers

    heads = {"mlm": "AutoModelForMaskedLM", "classes": "AutoModelForSequenceClassification"}
    return getattr(transformers, heads.get(family.rpartition("-")[2], "AutoModelForCausalLM"))


# What is cast to float32 in some classes, which would drown a float64 comparison, without the cast.


def make_exact(model: nn.Module) -> None:
    """In place; of norms for all of their class, as small copies have it, too."""
    exact = {
        "GPTJAttention": ("_attn", exact_gptj),
        "GPTNeoSelfAttention": ("_attn", exact_gpt_neo),
        "BloomAttention": ("forward", exact_bloom),
        "Olmo2RMSNorm": ("forward", exact_norm),
        "Qwen3RMSNorm": ("forward", exact_norm),
        "GptOssRMSNorm": ("forward", exact_norm),
        "DeepseekV3RMSNorm": ("forward", exact_norm),
        "Gemma3RMSNorm": ("forward", exact_gemma_norm),
    }
    for module in model.modules():
        if type(module).__name__ in exact:
            name, function = exact[type(module).__name__]
            if type(module).__name__.endswith("Norm"):
                type(module).forward = in_float64(function, type(module).forward)
            else:
                setattr(module, name, function.__get__(module))


def in_float64(exact: Callable[..., Tensor], own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The one in float64, else the class's own: other tests of the process take that one."""
    if hasattr(own, "in_float64"):
        return own

    def forward(self, x):
        return exact(self, x) if x.dtype == torch.float64 else own(self, x)

    forward.in_float64 = True
    return forward


def exact_gptj(self, query, key, value, attention_mask=None):
    scores = query @ key.transpose(-1, -2) / self.scale_attn
    if attention_mask is not None:
        scores = scores + attention_mask
    return self.attn_dropout(scores.softmax(-1)) @ value, None


def exact_gpt_neo(self, query, key, value, attention_mask=None):
    length = query.shape[2]
    scores = query @ key.transpose(-1, -2)
    scores = scores.where(self.bias[:, :, :length, :length], torch.finfo(scores.dtype).min)
    if attention_mask is not None:
        scores = scores + attention_mask
    return self.attn_dropout(scores.softmax(-1)) @ value, None


def exact_bloom(self, hidden_states, residual, alibi, attention_mask, **kwargs):
    heads = (*hidden_states.shape[:2], self.num_heads, 3, self.head_dim)
    query, key, value = self.query_key_value(hidden_states).view(heads).transpose(1, 2).unbind(3)
    scores = query @ key.transpose(-1, -2) * self.inv_norm_factor
    scores = scores + alibi.unflatten(0, (-1, self.num_heads)) + attention_mask
    attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    return residual + self.dense(attended), None


def exact_norm(self, x):
    return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def exact_gemma_norm(self, x):
    return (1 + self.weight) * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


def batch(step: int, rows: int = 8, length: int = 17) -> tuple[Tensor, Tensor]:
    """A batch of ids and labels; rows have very different numbers of labelled tokens."""
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, VOCAB, (rows, length), generator=generator)
    labels = ids.clone()
    for row in range(rows):
        labels[row, : 2 * row] = -100
    return ids, labels


def masked_batch(family: str, step: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A batch for a family, and what else its model takes: an encoder's rows have padding, at their
    ends and in their middle, and tokens of two types."""
    ids, labels = batch(step)
    if family not in ENCODERS:
        return ids, labels, {}
    generator = torch.Generator().manual_seed(2000 + step)
    if family.endswith("-classes"):
        labels = torch.randint(CLASSES, ids.shape[:1], generator=generator)
    place = torch.arange(ids.shape[1])
    mask = (place < 17 - torch.arange(len(ids)).unsqueeze(1)) & (place != 5)
    mask |= place == 0
    inputs = {"attention_mask": mask.long()}
    if family.startswith("bert"):
        inputs["token_type_ids"] = torch.randint(2, ids.shape, generator=generator)
    return ids, labels, inputs


def plain_loss(model: nn.Module, ids: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
    """Mean cross-entropy in the model's own precision (transformers' casts to float32)."""
    logits = model(input_ids=ids, use_cache=False, **inputs).logits
    if not any(head in type(model).__name__ for head in ("MaskedLM", "Classification")):
        logits, labels = logits[:, :-1], labels[:, 1:]
    return nn.functional.cross_entropy(logits[labels != -100], labels[labels != -100])


@cache
def truth(family: str, dtype: torch.dtype, layers: int = 2) -> dict[str, Any]:
    """One process's first loss, gradients and norm, and its losses and weights after STEPS."""
    model = reference(family, dtype, layers=layers)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=EPS[dtype], foreach=False)
    losses, norms = [], []
    gradients: dict[str, Tensor] = {}
    for step in range(STEPS):
        ids, labels, inputs = masked_batch(family, step)
        loss = plain_loss(model, ids, labels, **inputs)
        loss.backward()
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        squares = sum(p.grad.double().square().sum().item() for p in model.parameters())
        norms.append(math.sqrt(squares))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    return {"losses": losses, "norms": norms, "gradients": gradients, "weights": weights}


def fresh(family: str, dtype: torch.dtype, layers: int = 2) -> nn.Module:
    """A copy of the reference's starting point, without its patched attention. Norms stay exact:
    of those that tp splits the ranks' sums would differ from the class's as float32 numbers do."""
    model = reference(family, dtype, layers=layers)
    for module in model.modules():
        for name in ("_attn", "forward"):
            if not type(module).__name__.endswith("Norm"):
                module.__dict__.pop(name, None)
    return copy.deepcopy(model)
