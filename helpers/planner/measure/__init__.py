"""This machine's own speeds, for plans of runs on it.

calibrate.py starts some ranks and saves what they find as a cluster; rank_measurements.py is what
each of them measures: products, memory, and messages by kind and size; small_steps.py has them
train small models, for what operations and messages take beside that.
layer_profile.py times the parts of a model, for a partition by measured costs.
Before a job, health.py has its ranks measure themselves and the link of each pair, gpu_state.py
asks nvidia-smi, and health_verdict.py names who is slow.

Source: Hockney 1994, the latency and bandwidth of a link as a line through measured times.
"""
