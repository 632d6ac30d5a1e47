"""What is known of each architecture, and the two things that all of them share.

Read families.py first: a record a family, where it keeps its parts and how each part is split.
blocks.py has the forwards that transformers' own do not allow to split (GPT-J's rotary positions
among them), attention.py the one attention call, document_mask.py what keeps the documents of a
packed row apart in it. chunked_loss.py is cross-entropy without the logits of all tokens, and
causal_loss.py gives it to a model's own forward. configurations.py finds a configuration (a preset
of presets.json, a folder, the hub) and overrides.py changes its width.

Papers: Shoeybi et al. 2019, Megatron-LM; Su et al. 2021, RoFormer; Wijmans et al. 2024, Cut Your
Losses in Large-Vocabulary Language Models.
"""
