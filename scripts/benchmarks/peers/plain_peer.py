"""transformers' own model in a plain PyTorch loop: one process, and what the torch peers share."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.work import CLIP, Work, adamw, plain_model
from helpers.engine.memory.cpu_allocator import keep_freed_memory
from helpers.engine.precision.compiling import compile_s


class Peer:
    """One process with all cores: what every other peer is a share of.

    `keep`: keep freed memory, as this engine does. `precision`: bf16 by torch.autocast.
    """

    def __init__(
        self,
        work: Work,
        rank: int,
        ranks: int,
        keep: bool = False,
        precision: str = "fp32",
        **options: Any,
    ) -> None:
        if keep:
            keep_freed_memory()
        self.rank, self.ranks = rank, ranks
        self.low = precision == "bf16"
        self.gradient_bytes = 0
        self.model = self.lay_out(self.load(work), work, **options)
        self.optimizer = self.make_optimizer()

    def load(self, work: Work) -> nn.Module:
        return plain_model(work)

    def lay_out(self, model: nn.Module, work: Work, compile: bool = False) -> nn.Module:
        if compile:
            for block in find_blocks(model):
                block.compile()
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        return adamw(self.model.named_parameters())

    def rows(self, ids: Tensor) -> Tensor:
        return ids

    def clip(self) -> Tensor:
        return nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        """One training step on a global batch; the loss of this rank's rows, the gradient norm."""
        ids = self.rows(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        return self.update(loss)

    def update(self, loss: Tensor) -> tuple[float, float]:
        """What follows a backward; the loss and the gradient norm as numbers."""
        self.gradient_bytes = self.gradient_bytes or self.count_gradients()
        norm = self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return whole(loss).item(), whole(norm).item()

    def count_gradients(self) -> int:
        return sum(size(p.grad) for p in self.model.parameters() if p.grad is not None)

    def state(self) -> dict[str, int]:
        """Bytes of this rank's parameters, gradients and optimizer state."""
        moments = [t for s in self.optimizer.state.values() for t in s.values() if t.dim()]
        return {
            "compile_s": compile_s(),
            "parameters": sum(map(size, self.model.parameters())),
            "gradients": self.gradient_bytes,
            "optimizer": sum(map(size, moments)),
        }


def find_blocks(model: nn.Module) -> nn.ModuleList:
    return next(m for m in model.base_model.children() if isinstance(m, nn.ModuleList) and len(m))


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def size(tensor: Tensor) -> int:
    """Bytes of this rank's part of a tensor."""
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.numel() * part.element_size()
