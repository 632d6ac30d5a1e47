"""Each program's files as plans: what its keys, once read, say together.

torchtitan.py, accelerate.py, deepspeed.py, and megatron.py for Megatron-LM's flags and NeMo 1's
configurations. Each has `sizes(facts)`, the model where a file has one, and
`layout(facts, ranks, model)`, the plan and the batch, or a refusal in one line. HyperPod's recipes
are read by helpers.smp.recipes.
"""
