"""What a step holds, and how to hold less.

recomputing.py keeps less of a forward and computes it again in the backward; offloading.py keeps it
in host memory and brings it back ahead of need; changed_in_place.py sees that what they bring back
is what the forward saved. cpu_allocator.py lets a process on a CPU keep the memory that a step
frees, and states.py counts what parameters, gradients and optimizer take.

Papers: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost; Korthikanti et al. 2022,
section 5; Ren et al. 2021, ZeRO-Offload.
"""
