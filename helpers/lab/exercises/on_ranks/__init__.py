"""Exercises on real ranks: the reader's function runs in processes that send to each other.

Read judge.py first: it starts the ranks, calls an exam in each, and puts what they saw into words;
a deadlock is over after five seconds, and named with the lines in which the ranks wait. observed.py
watches what is sent. The exams, each with the mistakes that it knows: split_layers.py (f and g; a
column and a row layer), two_stages.py (1F1B), ring.py (an all-reduce of neighbours), buckets.py
(DDP whose sums overlap the backward), owner_update.py (ZeRO-1), attention_parts.py (tokens on
several ranks). solutions.py has one of each.

Sources: Megatron-LM (Shoeybi et al. 2019, section 3), PipeDream (Narayanan et al. 2019, section
3.2), PyTorch Distributed (Li et al. 2020, section 3.2), ZeRO (Rajbhandari et al. 2020, section
5.1), Ring Attention (Liu et al. 2023, section 3), DeepSpeed Ulysses (Jacobs et al. 2023).
"""
