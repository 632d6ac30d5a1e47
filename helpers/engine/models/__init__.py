"""What is known of each architecture, and what all of them share.

Read families.py first: a record a family, where it keeps its parts and how each part is split.
architecture.py finds the same for a model without a record, and self_check.py tries on a small copy
whether a layout gives the class's own loss and gradients, before any model is laid out. blocks.py
has forwards in the place of transformers' own that cannot be split, and rotary.py the two
conventions of rotary positions (GPT-J has one of its own). attention.py is the one attention call,
and document_mask.py keeps the documents of a packed row apart in it. chunked_loss.py is
cross-entropy without the logits of all tokens; causal_loss.py gives it to a model's own forward.
configurations.py finds a configuration (a preset of presets.json, a folder, the hub, which hub.py
asks) and overrides.py changes its width.

Papers: Shoeybi et al. 2019, Megatron-LM; Su et al. 2021, RoFormer; Wijmans et al. 2024, Cut Your
Losses in Large-Vocabulary Language Models.
"""
