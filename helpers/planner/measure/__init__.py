"""This machine's own speeds, for plans of runs on it.

calibrate.py starts some ranks and saves what they find as a cluster; rank_measurements.py is what
each of them measures: products, memory, small operations, and messages by kind and size.
layer_profile.py times the parts of a model, for a partition by measured costs.

Source: Hockney 1994, the latency and bandwidth of a link as a line through measured times.
"""
