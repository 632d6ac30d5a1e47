"""Calls of SMDDP. Each line that uses the library ends with the verdicts of its uses."""

import smdistributed.dataparallel.torch.distributed as dist  # converted
import smdistributed.dataparallel.torch.torch_smddp as backend  # left out
import torch
import torch.distributed
from smdistributed.dataparallel.torch.parallel.distributed import (
    DistributedDataParallel as DDP,  # converted
)

torch.distributed.init_process_group(backend="smddp")  # converted
dist.init_process_group()  # converted
model = DDP(torch.nn.Linear(2, 2))  # converted
print(dist.get_rank(), dist.get_local_rank(), dist.get_world_size())  # converted x3
dist.barrier()  # converted
print(backend)  # left out
