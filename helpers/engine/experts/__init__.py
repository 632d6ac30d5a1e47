"""Mixtures of experts: of every expert a part on each rank, or some experts on each.

Read split.py first: tp splits each expert's matrices, and the class's own forward computes with a
rank's parts. dispatch.py is expert parallelism: the ranks of dp_shard and cp deal them out, and
gather each other's tokens in place of the experts' weights.
What a class says of its experts' matrices is read in models/block_rules.py; the router is never
split.

Papers: Shazeer et al. 2017, Outrageously Large Neural Networks; Lepikhin et al. 2020, GShard;
Rajbhandari et al. 2022, DeepSpeed-MoE.
"""
