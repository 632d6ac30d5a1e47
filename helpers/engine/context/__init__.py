"""Context parallelism: every rank has a part of each sequence, in attention too.

Read balance.py first: which tokens a rank gets, and why not a contiguous part; of packed rows it
knows the documents (models/documents.py). parts.py cuts a batch so that no label and no position is
lost, and stretches.py says which tokens see which.
blockwise.py is attention to keys that come in parts, joined by their log-sum-exp, with formula.py
where torch has no kernel. ring.py, gather.py and ulysses.py bring the parts together, each in its
own way, and attention.py chooses. kept.py keeps results where blocks are recomputed; check.py
refuses.

Papers: Liu et al. 2023, Ring Attention with Blockwise Transformers; Jacobs et al. 2023, DeepSpeed
Ulysses; Dubey et al. 2024, The Llama 3 Herd of Models; Dao et al. 2022, FlashAttention.
"""
