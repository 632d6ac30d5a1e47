"""What the doctor starts on two ranks: one all-reduce, whose result is known.

torchrun --nproc-per-node 2 -m helpers.lab.machine.two_rank_check --backend gloo --out FOLDER
"""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--backend", required=True)
parser.add_argument("--out", required=True)  # the launcher's, not used
backend = parser.parse_args().backend

device = torch.device("cpu")
if backend == "nccl":
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group(backend)
ranks = dist.get_world_size()
value = torch.full((1024,), dist.get_rank() + 1.0, device=device)
dist.all_reduce(value)
dist.destroy_process_group()
expected = ranks * (ranks + 1) / 2
if not bool((value == expected).all()):
    raise SystemExit(f"the sum over {ranks} ranks is {value[0].item()}, not {expected}")
print(f"{ranks} ranks agree on the sum")
