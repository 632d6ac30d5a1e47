"""The job of a published notebook of 2023: GPT-J-6B with tensor parallelism over eight GPUs.

Its settings are retold here, in words of this project; no line is the notebook's. Its rows had
1,024 tokens, though it set max_context_width to 2,048: here both are 1,024.
"""

import sagemaker
from sagemaker.pytorch import PyTorch

role = sagemaker.get_execution_role()
session = sagemaker.Session()
bucket = session.default_bucket()

hyperparameters = {
    "max_steps": 100,
    "seed": 12345,
    "fp16": 1,
    "lr": 2.0e-4,
    "lr_decay_style": "linear",
    "weight_decay": 0.01,
    "max_context_width": 1024,
    "logging_freq": 10,
    "checkpoint_freq": 200,
    "num_kept_checkpoints": 5,
    "save_final_full_model": 1,
    "activation_checkpointing": 1,
    "activation_strategy": "each",
    "shard_optimizer_state": 1,
    "optimize": "speed",
}
model = "gpt-j-6b"
sizes = {
    "gpt-j-6b": {"tensor_parallel_degree": 8, "pipeline_parallel_degree": 1, "train_batch_size": 8},
    "gpt-j-xl": {"tensor_parallel_degree": 4, "pipeline_parallel_degree": 1, "train_batch_size": 8},
}
for name, value in sizes[model].items():
    hyperparameters[name] = value
hyperparameters["model_name"] = "EleutherAI/gpt-j-6b"
hyperparameters["prescaled_batch"] = 1

options = "-x NCCL_DEBUG=WARN -x SMDEBUG_LOG_LEVEL=ERROR -x SMP_DISABLE_D2D=1 "
options += "-x FI_EFA_USE_DEVICE_RDMA=1 -x FI_PROVIDER=efa -x RDMAV_FORK_SAFE=1"

estimator = PyTorch(
    entry_point="gptj_tensor.py",
    source_dir=".",
    role=role,
    sagemaker_session=session,
    instance_type="ml.p4d.24xlarge",
    instance_count=1,
    volume_size=500,
    distribution={
        "mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": options},
        "smdistributed": {
            "modelparallel": {
                "enabled": True,
                "parameters": {
                    "ddp": True,
                    "tensor_parallel_degree": hyperparameters["tensor_parallel_degree"],
                    "partitions": hyperparameters["pipeline_parallel_degree"],
                    "shard_optimizer_state": hyperparameters["shard_optimizer_state"] > 0,
                    "prescaled_batch": hyperparameters["prescaled_batch"] > 0,
                    "fp16": hyperparameters["fp16"] > 0,
                    "optimize": hyperparameters["optimize"],
                    "auto_partition": True,
                    "default_partition": 0,
                    "optimize": hyperparameters["optimize"],
                },
            }
        },
    },
    framework_version="1.12",
    py_version="py38",
    hyperparameters=hyperparameters,
    metric_definitions=[{"Name": "loss", "Regex": "Loss: ([0-9.]+)"}],
    checkpoint_s3_uri=f"s3://{bucket}/checkpoints",
    debugger_hook_config=False,
    disable_profiler=True,
    base_job_name=f"smp-{model}-tp{hyperparameters['tensor_parallel_degree']}",
)
estimator.fit({"train": f"s3://{bucket}/train"}, logs=True)
