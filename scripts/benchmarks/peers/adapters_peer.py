"""The engine of this project, training adapters beside a base in 4 bits."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.peers import engine_peer
from benchmarks.work import Work, adapters
from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.plan import ParallelPlan


class Peer(engine_peer.Peer):
    def load(self, work: Work, plan: ParallelPlan, mesh: DeviceMesh) -> nn.Module:
        how = Adapting(quantize="nf4", adapters=adapters(work))
        return load_adapted(work.folder, plan, mesh, how)
