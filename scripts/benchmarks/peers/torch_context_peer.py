"""torch's own context parallelism, which is experimental: ring attention behind torch's SDPA."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.peers import plain_peer
from benchmarks.work import Work


class Peer(plain_peer.Peer):
    """Every rank has a part of each row, as torch deals it; labels are shifted before that."""

    def lay_out(self, model: nn.Module, work: Work) -> nn.Module:
        self.mesh = init_device_mesh("cpu", (self.ranks,))
        return model

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        from torch.distributed.tensor.experimental import context_parallel

        targets = nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
        positions = torch.arange(ids.shape[1]).expand_as(ids).contiguous()
        buffers = [ids.clone(), targets, positions]
        with context_parallel(self.mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1]):
            ids, targets, positions = buffers
            logits = self.model(input_ids=ids, position_ids=positions, use_cache=False).logits
            total = nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), reduction="sum"
            )
            tokens = torch.tensor(float((targets != -100).sum()))
            dist.all_reduce(tokens)
            (total / tokens).backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_reduce(loss := total.detach() / tokens)
        return self.update(loss)
