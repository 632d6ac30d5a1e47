"""Data parallelism: who sums which gradients, and who keeps which state.

Read layouts.py first: the table of DDP, ZeRO-1, 2, 3 and HSDP, and the class behind each row;
axes.py says over which ranks.
buckets.py sums gradients while the backward runs, all-reduced for DDP and reduce-scattered for
ZeRO-1 and 2; chunks.py is the message that such a sum is, and gathers.py brings back what was
updated. ZeRO-3 is torch's fully_shard, and hsdp.py its second sum over the replicas. given.py says
which parameters have a gradient at all, and ddp_hooks.py lets torch's hooks compress DDP's sums.
owned_shards.py is what one rank's optimizer updates and where that lies in the whole.

Papers: Li et al. 2020, PyTorch Distributed; Rajbhandari et al. 2020, ZeRO; Zhang et al. 2022, MiCS;
Zhao et al. 2023, PyTorch FSDP.
"""
