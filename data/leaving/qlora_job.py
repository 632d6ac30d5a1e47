"""The job of a published notebook of 2023: Falcon-40B fine-tuned by QLoRA on one machine.

Its settings are retold here, in words of this project; no line is the notebook's.
"""

import time

import sagemaker
from sagemaker.huggingface import HuggingFace

session = sagemaker.Session()
role = sagemaker.get_execution_role()
job_name = f"qlora-{time.strftime('%Y-%m-%d-%H-%M-%S')}"

hyperparameters = {
    "model_id": "tiiuae/falcon-40b",
    "dataset_path": "/opt/ml/input/data/training",
    "epochs": 3,
    "per_device_train_batch_size": 4,
    "lr": 2e-4,
    "bf16": True,
    "gradient_checkpointing": True,
    "max_seq_length": 2048,
    "lora_r": 64,
    "lora_alpha": 16,
    "lora_dropout": 0.1,
    "load_in_4bit": True,
    "merge_weights": True,
}

estimator = HuggingFace(
    entry_point="qlora.py",
    source_dir=".",
    instance_type="ml.g5.12xlarge",
    instance_count=1,
    base_job_name=job_name,
    role=role,
    volume_size=300,
    transformers_version="4.28",
    pytorch_version="2.0",
    py_version="py310",
    hyperparameters=hyperparameters,
    environment={"HUGGINGFACE_HUB_CACHE": "/tmp/.cache"},
)
estimator.fit({"training": "s3://a-bucket/processed/dolly/train"}, wait=True)
