"""The job of a published notebook of 2023: GPT-NeoXT-Chat-Base-20B sharded over two machines.

Its settings are retold here, in words of this project; no line is the notebook's. Its script is
one of Hugging Face's own, which uses nothing of the service.
"""

import sagemaker
from sagemaker.huggingface import HuggingFace

role = sagemaker.get_execution_role()

hyperparameters = {
    "model_id": "togethercomputer/GPT-NeoXT-Chat-Base-20B",
    "dataset_path": "/opt/ml/input/data/train",
    "gradient_checkpointing": True,
    "bf16": True,
    "optimizer": "adamw_apex_fused",
    "per_device_train_batch_size": 2,
    "block_size": 2048,
    "epochs": 3,
    "fsdp": '"full_shard auto_wrap"',
    "fsdp_transformer_layer_cls_to_wrap": "GPTNeoXLayer",
}

estimator = HuggingFace(
    entry_point="run_clm.py",
    source_dir="./scripts",
    instance_type="ml.p4d.24xlarge",
    instance_count=2,
    volume_size=200,
    role=role,
    job_name="neox-fsdp",
    transformers_version="4.26.0",
    pytorch_version="1.13.1",
    py_version="py39",
    hyperparameters=hyperparameters,
    distribution={"torch_distributed": {"enabled": True}},
    max_run=6 * 60 * 60,
    keep_alive_period_in_seconds=1800,
    metric_definitions=[
        {"Name": "train_loss", "Regex": "'loss': ([0-9]+\\.[0-9]+)"},
        {"Name": "learning_rate", "Regex": "'learning_rate': ([0-9.e-]+)"},
    ],
)
estimator.fit({"train": "s3://a-bucket/train"}, wait=True)
