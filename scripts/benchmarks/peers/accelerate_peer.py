"""Hugging Face accelerate with FSDP2, each block wrapped.

On a CPU accelerate 1.15 ignores the plugin without a word and trains with DDP. Here it is told that
it is in FSDP mode, after which its own FSDP2 code runs; the state that each rank then holds, which
the table shows, says whether it does.
"""

import os

import torch
from torch import Tensor, nn

from benchmarks.peers import plain_peer
from benchmarks.work import CLIP, Work, adamw, rows


class Peer(plain_peer.Peer):
    def lay_out(self, model: nn.Module, work: Work) -> nn.Module:
        os.environ |= {"ACCELERATE_USE_CPU": "true", "ACCELERATE_USE_FSDP": "true"}
        from accelerate import Accelerator
        from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            reshard_after_forward=True,
            cpu_ram_efficient_loading=False,
        )
        self.accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        self.accelerator.state.distributed_type = DistributedType.FSDP
        self.accelerator.state.fsdp_plugin = plugin
        model, self.optimizer = self.accelerator.prepare(model, adamw(model.named_parameters()))
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        return self.optimizer

    def rows(self, ids: Tensor) -> Tensor:
        return rows(ids, self.rank, self.ranks)

    def clip(self) -> Tensor:
        return self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        ids = self.rows(ids)
        loss = self.model(input_ids=ids, labels=ids).loss
        self.accelerator.backward(loss)
        return self.update(loss)
