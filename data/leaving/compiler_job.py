"""The jobs of a published notebook of 2021: GPT-2 with and without the Training Compiler.

Their settings are retold here, in words of this project; no line is the notebook's.
"""

import sagemaker
from sagemaker.huggingface import HuggingFace, TrainingCompilerConfig

role = sagemaker.get_execution_role()
INSTANCE, COUNT, GPUS = "ml.p3.16xlarge", 2, 8
NATIVE_BATCH, COMPILED_BATCH = 10, 20
LEARNING_RATE = 5e-5 / 32

hyperparameters = {
    "model_type": "gpt2",
    "tokenizer_name": "gpt2",
    "dataset_name": "glue",
    "dataset_config_name": "sst2",
    "do_train": True,
    "do_eval": False,
    "fp16": True,
    "num_train_epochs": 400,
    "block_size": 512,
    "overwrite_output_dir": True,
    "save_strategy": "no",
    "logging_strategy": "epoch",
    "output_dir": "/opt/ml/model",
}


def job(name, batch, **more):
    settings = dict(hyperparameters)
    settings["per_device_train_batch_size"] = batch
    settings["learning_rate"] = LEARNING_RATE * batch * GPUS * COUNT
    return HuggingFace(
        entry_point="compiler.py",
        source_dir=".",
        role=role,
        instance_type=INSTANCE,
        instance_count=COUNT,
        volume_size=100,
        base_job_name=name,
        py_version="py38",
        hyperparameters=settings,
        disable_profiler=True,
        debugger_hook_config=False,
        environment={"GPU_NUM_DEVICES": str(GPUS)},
        **more,
    )


native = job(
    "native",
    NATIVE_BATCH,
    transformers_version="4.11",
    pytorch_version="1.9",
    distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
)
compiled = job(
    "compiled",
    COMPILED_BATCH,
    transformers_version="4.11",
    pytorch_version="1.9",
    compiler_config=TrainingCompilerConfig(),
    distribution={"pytorchxla": {"enabled": True}},
)
for one in (native, compiled):
    one.fit(wait=False)
