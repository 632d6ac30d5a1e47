"""Tensor and sequence parallelism: each layer's matrices over ranks.

Read collectives.py first: each collective beside its transpose, Megatron's f and g among them.
boundary.py says how work crosses into what is split and out of it, layers.py has the column and row
layers and the two ends of the model that are split by vocabulary, and split.py applies them to a
model's blocks by its family's record, ends.py to its ends. partial_gradients.py knows what ranks
hold whole and sum over tp. shards.py is one parameter over one axis, in_parts.py one of several
matrices. compiled_messages.py gives compiled blocks the same messages as operations of their graph.
check.py says which degrees a model allows, of ep, too, by its configuration alone.

Papers: Shoeybi et al. 2019, Megatron-LM, section 3; Korthikanti et al. 2022, Reducing Activation
Recomputation in Large Transformer Models, section 4.2.
"""
