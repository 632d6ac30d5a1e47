"""PyTorch's DistributedDataParallel, alone or with its ZeroRedundancyOptimizer (ZeRO-1)."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers import plain_peer
from benchmarks.work import BETAS, EPS, LR, Work, groups, rows


class Peer(plain_peer.Peer):
    """`shard_optimizer`: each rank keeps and updates a part of the optimizer's state."""

    def lay_out(self, model: nn.Module, work: Work, shard_optimizer: bool = False) -> nn.Module:
        self.shard_optimizer = shard_optimizer
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def make_optimizer(self) -> torch.optim.Optimizer:
        if not self.shard_optimizer:
            return super().make_optimizer()
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            groups(self.model.named_parameters()),
            torch.optim.AdamW,
            lr=LR,
            betas=BETAS,
            eps=EPS,
            fused=True,
        )

    def rows(self, ids: Tensor) -> Tensor:
        return rows(ids, self.rank, self.ranks)
