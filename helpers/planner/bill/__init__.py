"""All that a training run is billed for, and what a budget buys.

Read failures.py first: how often machines fail, how often to save, and what a failure costs, as
formulas and as a simulation. whole_bill.py adds these to the steps of a plan: hours, goodput,
dollars and kilowatt-hours, each with its range. compute_optimal.py says how many parameters and
tokens a number of FLOPs is best spent on.

Papers: Young 1974 and Daly 2006 (checkpoint intervals), Hoffmann et al. 2022 (arXiv 2203.15556) and
Besiroglu et al. 2024 (2404.10102), Llama 3 (2407.21783, failures).
"""
