"""transformers' own tensor parallelism, by the plan that it publishes with the model."""

import torch
from torch import Tensor

from benchmarks.peers import plain_peer
from benchmarks.peers.dtensor_peer import mixed_adamw, mixed_clip_
from benchmarks.work import Work, plain_model


class Peer(plain_peer.Peer):
    def __init__(self, work: Work, rank: int, ranks: int) -> None:
        from transformers.distributed import DistributedConfig

        self.rank, self.ranks = rank, ranks
        self.gradient_bytes = 0
        config = DistributedConfig(tp_size=ranks, tp_plan="auto")
        self.model = plain_model(work, distributed_config=config)
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return mixed_adamw(self.model)

    def clip(self) -> Tensor:
        return mixed_clip_(self.model)
