"""Pipeline parallelism: layers over ranks, micro-batches on their way through them.

Read schedules.py first: gpipe, 1F1B, interleaved and zero-bubble as lists of actions, and
simulator.py, which says whether such a list can run and what bubble it has. partition.py balances
layers over stages, stages.py cuts a model into them, and elsewhere.py has what takes the place of
other stages' modules. micro_batches.py says what a rank has of a batch, messages.py sends hidden
states and gradients between ranks, and runner.py does a rank's actions one after another.
split_backward.py computes the gradients of the inputs now and of the weights later, as zero-bubble
schedules ask.

Papers: Huang et al. 2018, GPipe; Narayanan et al. 2019, PipeDream, and 2021, Efficient Large-Scale
Language Model Training; Qi et al. 2023, Zero Bubble Pipeline Parallelism.
"""
