"""Drawn ideas: each function returns a figure, a table that says the same, and alternative text.

In the order of the notebooks: parallelism_map.py (what each axis of a plan cuts), tensor_block.py
(one block on two ranks), schedule.py (a pipeline step as boxes on a clock), rank_grid.py (ranks on
nodes), stages.py (a model's parts on stages), fusion.py (what a compiler saves), lora.py (what
adapters hold), shards.py (what ZeRO and HSDP hold), profile_trace.py (a profiled step and its
memory), sequence_parts.py (whose keys a rank has, and what each rank computes of attention). They
are made of the boxes and arrows of helpers.lab.figures.drawing.

Papers: Shoeybi et al. 2019, Megatron-LM; Rajbhandari et al. 2019, ZeRO; Huang et al. 2018, GPipe;
Hu et al. 2021, LoRA; Dettmers et al. 2023, QLoRA.
"""
