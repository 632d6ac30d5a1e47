"""What is known of each architecture, and what all of them share.

Read families.py first: a record a family, where it keeps its parts and how each part is split.
architecture.py finds the same for a model without a record, block_rules.py by its linear layers'
names and shapes; the room `admission` tries whether that gives the class's own results. blocks.py
has forwards in the place of transformers' own that cannot be split. attention.py is the one
attention call; documents.py keeps the documents of a packed row apart in it, sinks.py adds sinks.
objectives.py says what each kind of head is trained for; chunked_loss.py is cross-entropy without
the logits of all tokens, and causal_loss.py gives it to a model's own forward. configurations.py
finds a configuration (a preset of presets.json, a folder, the hub) and overrides.py changes its
depth and width.

Papers: Shoeybi et al. 2019, Megatron-LM; Su et al. 2021, RoFormer; Wijmans et al. 2024, Cut Your
Losses in Large-Vocabulary Language Models.
"""
