"""transformers' own tensor parallelism, by the plan that it publishes with the model."""

import torch
from torch import Tensor, nn

from benchmarks.peers import plain_peer
from benchmarks.peers.dtensor_peer import mixed_adamw, mixed_clip_
from benchmarks.work import Work, plain_model


class Peer(plain_peer.Peer):
    def load(self, work: Work) -> nn.Module:
        from transformers.distributed import DistributedConfig

        config = DistributedConfig(tp_size=self.ranks, tp_plan="auto")
        return plain_model(work, distributed_config=config)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return mixed_adamw(self.model)

    def clip(self) -> Tensor:
        return mixed_clip_(self.model)
