"""Recipes of each kind, written for these tests."""

HF = """
run:
  name: a-llama
  model_type: hf
  time_limit: "1-02:30:00"
trainer:
  devices: 8
  num_nodes: 4
  accelerator: gpu
  precision: bf16
  max_steps: 50
exp_manager:
  create_tensorboard_logger: True
  checkpoint_callback_params:
    save_top_k: 1
    every_n_train_steps: 10
model:
  model_type: llama_v3
  train_batch_size: 2
  tensor_model_parallel_degree: 2
  context_parallel_degree: 1
  sharding_strategy: hybrid_shard
  shard_degree: 8
  activation_checkpointing: True
  max_context_width: 4096
  max_position_embeddings: ${.max_context_width}
  num_hidden_layers: 4
  hidden_size: 512
  num_attention_heads: 8
  num_key_value_heads: 4
  intermediate_size: 1024
  layernorm_epsilon: 1e-5
  vocab_size: 1000
  do_finetune: False
  optim:
    lr: 1e-4
    weight_decay: 0.01
  lr_decay_iters: ${recipes.trainer.max_steps}
  something_new: 7
"""
FINE_TUNING = """
run:
  name: tuned
  model_type: llm_finetuning_aws
trainer:
  devices: 8
  num_nodes: 1
instance_type: p4d.24xlarge
training_config:
  model_config:
    model_name_or_path: meta-llama/Llama-2-7b-hf
    peft_config: {peft_type: qlora_4bit, r: 16, lora_alpha: 32, lora_dropout: 0.1}
  training_args:
    trainer_type: sft
    learning_rate: 2e-5
    max_epochs: 3
    max_len: 2048
    train_batch_size: 32
"""
NEMO = """
run:
  name: megatron
trainer: {devices: 8, num_nodes: 2, max_steps: 100, precision: bf16}
strategy:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  sequence_parallel: True
data: {global_batch_size: 64, seq_length: 2048}
optim:
  config: {lr: 3e-4, use_distributed_optimizer: True}
"""
FULL = """
run: {name: whole, model_type: llm_finetuning_aws}
trainer: {devices: 8, num_nodes: 1}
training_config:
  model_config: {model_name_or_path: meta-llama/Llama-3.1-8B, peft_config: null}
  training_args:
    trainer_type: sft
    learning_rate: 1e-4
    lr_scheduler: cosine
    lr_warmup_ratio: 0.1
    max_epochs: 5
    max_len: 4096
    merge_weights: true
    packing_samples: false
    save_hf_ckpt: true
    strategy: {fsdp_config: {sharding_strategy: FULL_SHARD}}
    train_batch_size: 8
"""
PRETRAINING = """
run: {name: checkpointless, model_type: hyperpod_checkpointless_nemo}
trainer: {accelerator: gpu, devices: 8, num_nodes: 4, max_steps: 1000}
strategy: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 2}
data: {global_batch_size: 64, micro_batch_size: 1, seq_length: 2048}
log: {ckpt: {every_n_train_steps: 20, save_top_k: 3}}
optim:
  config: {lr: 3e-4, bf16: true, fp16: false, use_distributed_optimizer: true}
  lr_scheduler:
    _target_: nemo.lightning.pytorch.optim.CosineAnnealingScheduler
    warmup_steps: 100
plugins: {_target_: nemo.lightning.pytorch.plugins.MegatronMixedPrecision, precision: bf16-mixed}
"""
