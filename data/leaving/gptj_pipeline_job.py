"""The job of a published notebook of 2022: GPT-J-6B in a pipeline over four machines.

Its settings are retold here, in words of this project; no line is the notebook's.
"""

import sagemaker
from sagemaker.huggingface import HuggingFace

role = sagemaker.get_execution_role()

hyperparameters = {
    "model_name_or_path": "EleutherAI/gpt-j-6b",
    "per_device_train_batch_size": 2,
    "max_steps": 100,
    "learning_rate": 2e-5,
    "max_context_width": 512,
    "activation_checkpointing": True,
}
smp_options = {
    "enabled": True,
    "parameters": {
        "pipeline_parallel_degree": 16,
        "microbatches": 2,
        "active_microbatches": 2,
        "pipeline": "simple",
        "placement_strategy": "cluster",
        "optimize": "memory",
        "ddp": True,
        "auto_partition": True,
        "default_partition": 0,
        "offload_activations": True,
        "shard_optimizer_state": True,
        "fp16": True,
    },
}
mpi_options = {"enabled": True, "processes_per_host": 8}

estimator = HuggingFace(
    entry_point="gptj_pipeline.py",
    source_dir=".",
    role=role,
    instance_type="ml.p3.16xlarge",
    instance_count=4,
    volume_size=500,
    transformers_version="4.17.0",
    pytorch_version="1.10.2",
    py_version="py38",
    distribution={"smdistributed": {"modelparallel": smp_options}, "mpi": mpi_options},
    hyperparameters=hyperparameters,
    debugger_hook_config=False,
    use_spot_instances=False,
)
estimator.fit("s3://a-bucket/train", wait=False)
