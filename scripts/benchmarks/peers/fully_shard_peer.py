"""PyTorch's fully_shard on every block and the rest, as its tutorial has it."""

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.peers import plain_peer
from benchmarks.work import Work, rows


class Peer(plain_peer.Peer):
    """`reshard`: free a block's parameters after its forward (ZeRO-3), or keep them (ZeRO-2)."""

    def lay_out(self, model: nn.Module, work: Work, reshard: bool = True) -> nn.Module:
        mesh = init_device_mesh("cpu", (self.ranks,))
        blocks = model.base_model.h if work.family == "gptj" else model.base_model.layers
        for block in blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        return fully_shard(model, mesh=mesh, reshard_after_forward=reshard)

    def rows(self, ids: Tensor) -> Tensor:
        return rows(ids, self.rank, self.ranks)
