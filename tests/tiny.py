"""Tiny models of each family, and the one-process truth that every layout is held against.

The truth is transformers' own class in a plain PyTorch loop: nothing of the engine runs in it.
"""

import copy
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

LR, CLIP, STEPS, DECAY = 1e-3, 0.5, 10, 0.01
VOCAB = 101  # a prime: no degree divides it


def config(family: str) -> Any:
    """A configuration of two layers with uneven vocabulary."""
    import transformers

    small = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0}
    makers = {
        "gptj": lambda: transformers.GPTJConfig(
            n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, **small
        ),
    }
    return makers[family]()


def reference(family: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    """transformers' own model with random weights, spread wide so that mistakes show."""
    import transformers

    torch.manual_seed(seed)
    made = transformers.AutoModelForCausalLM.from_config(config(family), dtype=torch.float64)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    for module in made.modules():
        if type(module).__name__ == "GPTJAttention":
            module._attn = exact_scores.__get__(module)
    return made.to(dtype)


def exact_scores(self, query, key, value, attention_mask=None):
    """GPT-J's attention without transformers' cast of the scores to float32, which would drown a
    float64 comparison."""
    scores = query @ key.transpose(-1, -2) / self.scale_attn
    if attention_mask is not None:
        scores = scores + attention_mask
    return self.attn_dropout(scores.softmax(-1)) @ value, None


def batch(step: int, rows: int = 8, length: int = 17) -> tuple[Tensor, Tensor]:
    """A batch of ids and labels; rows have very different numbers of labelled tokens."""
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, VOCAB, (rows, length), generator=generator)
    labels = ids.clone()
    for row in range(rows):
        labels[row, : 2 * row] = -100
    return ids, labels


def plain_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in the model's own precision (transformers' casts to float32)."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    targets = labels[:, 1:]
    return nn.functional.cross_entropy(logits[targets != -100], targets[targets != -100])


@cache
def truth(family: str, dtype: torch.dtype) -> dict[str, Any]:
    """One process's first loss, gradients and norm, and its losses and weights after STEPS."""
    model = reference(family, dtype)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    losses, norms = [], []
    gradients: dict[str, Tensor] = {}
    for step in range(STEPS):
        loss = plain_loss(model, *batch(step))
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


def fresh(family: str, dtype: torch.dtype) -> nn.Module:
    """A copy of the reference's starting point, without its patched attention."""
    model = reference(family, dtype)
    for module in model.modules():
        module.__dict__.pop("_attn", None)
    return copy.deepcopy(model)
