"""A plain DTensor plan: torch's parallelize_module with a table of rules, as in its tutorial."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from benchmarks.peers import plain_peer
from benchmarks.work import BETAS, CLIP, EPS, LR, Work, groups

COLUMN = {
    "gptj": ("attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.fc_in"),
    "neox": ("attention.query_key_value", "mlp.dense_h_to_4h"),
    "llama": (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
    ),
}
ROW = {
    "gptj": ("attn.out_proj", "mlp.fc_out"),
    "neox": ("attention.dense", "mlp.dense_4h_to_h"),
    "llama": ("self_attn.o_proj", "mlp.down_proj"),
}
EMBEDDING = {
    "gptj": "transformer.wte",
    "neox": "gpt_neox.embed_in",
    "llama": "model.embed_tokens",
}


class Peer(plain_peer.Peer):
    def lay_out(self, model: nn.Module, work: Work) -> nn.Module:
        mesh = init_device_mesh("cpu", (self.ranks,))
        blocks = model.base_model.h if work.family == "gptj" else model.base_model.layers
        for block in blocks:
            rules = {path: ColwiseParallel() for path in COLUMN[work.family]}
            rules |= {path: RowwiseParallel() for path in ROW[work.family]}
            parallelize_module(block, mesh, rules)
            if work.family == "gptj":
                block.attn.num_attention_heads //= self.ranks
        ends = {
            EMBEDDING[work.family]: RowwiseParallel(input_layouts=Replicate()),
            "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        return parallelize_module(model, mesh, ends)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return mixed_adamw(self.model)

    def clip(self) -> Tensor:
        return mixed_clip_(self.model)

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        with loss_parallel():  # the backward too needs to know that the logits are split
            loss = self.model(input_ids=ids, labels=ids).loss
            loss.backward()
        return self.update(loss)


def kinds(parameters: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Split parameters and plain ones: one fused kernel takes one kind."""
    parameters = list(parameters)
    split = [p for p in parameters if isinstance(p, DTensor)]
    return split, [p for p in parameters if not isinstance(p, DTensor)]


def mixed_adamw(model: nn.Module) -> torch.optim.AdamW:
    by_decay = groups(model.named_parameters())
    by_kind = [group | {"params": kind} for group in by_decay for kind in kinds(group["params"])]
    by_kind = [group for group in by_kind if group["params"]]
    return torch.optim.AdamW(by_kind, lr=LR, betas=BETAS, eps=EPS, fused=True)


def mixed_clip_(model: nn.Module) -> Tensor:
    """torch's own clipping takes one kind at a time: the norm of both, then each is scaled."""
    both = kinds(p for p in model.parameters() if p.grad is not None)
    gradients = [[p.grad for p in parameters] for parameters in both]
    norms = [plain_peer.whole(nn.utils.get_total_norm(g)) for g in gradients if g]
    norm = torch.stack(norms).norm()
    for parameters in both:
        nn.utils.clip_grads_with_norm_(parameters, CLIP, norm)
    return norm
