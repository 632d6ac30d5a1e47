"""Fine-tuning beside a frozen base: LoRA adapters, and the base in 4 bits.

linear_layers.py says which layers that is about, and kinds.py which of peft's adapters. lora.py
puts them there, saves and loads them; merging.py adds them to the weights; head.py trains a head
that classifies with them. nf4.py holds the layers in 4-bit NF4, quantized while they are read;
qlora.py loads a model with both, laid out over a plan's ranks.

Papers: Hu et al. 2021, LoRA; Dettmers et al. 2023, QLoRA.
"""
