"""The arithmetic of a step: in which numbers, by which optimizer, compiled or not.

optimizer.py is AdamW over the shards that a rank owns, the true gradient norm and the learning-rate
schedules; loss_scaling.py keeps fp16's small gradients above zero, and not_finite.py says
where a run that diverged did so first. bf16_products.py makes bf16
quick on a processor without instructions for it, float8.py takes the blocks' products in 8 bits,
and compiling.py compiles blocks one by one. replay.py takes a step twice and compares its bits.

Papers: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization; Micikevicius et al. 2018,
Mixed Precision Training; Micikevicius et al. 2022, FP8 Formats for Deep Learning.
"""
