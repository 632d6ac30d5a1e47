"""A model under a plan, with a batch: what every other formula of the planner is about.

Read training_job.py first: a Job knows the layers, parameters and tokens of each rank;
job_checks.py says which jobs there can be.
stage_layers.py deals layers out to stages as the engine does; units.py has which blocks of a stage
are gathered and computed again together, shared_gradients.py of which gradients each tensor rank
has a part. block_tensors.py reads programs.json: how many elements a block reads, writes and keeps,
by the engine and by other programs, as wide as widths.py has it. measured_kept.py sees what blocks
keep, and work with, of which no row says it; eight_bits.py says what changes where products are of
8 bits, holds.py what another program holds beside.
adapters.py counts what LoRA and QLoRA train beside a frozen base.

Papers: arXiv 2205.05198 (what Megatron-LM's block keeps), 2106.09685 (LoRA), 2305.14314 (QLoRA).
"""
