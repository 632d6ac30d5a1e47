"""A job with everything that an estimator takes, with the verdicts of each line."""

import sagemaker
from sagemaker.debugger import (
    CollectionConfig,  # left out
    DebuggerHookConfig,  # converted
    ProfilerConfig,  # converted
    Rule,  # converted
    rule_configs,  # converted
)
from sagemaker.huggingface import HuggingFace, TrainingCompilerConfig  # converted x2
from sagemaker.tuner import (
    CategoricalParameter,  # converted
    ContinuousParameter,  # converted
    HyperparameterTuner,  # converted
)

rules = [
    Rule.sagemaker(rule_configs.loss_not_decreasing()),  # converted x2
    Rule.sagemaker(rule_configs.vanishing_gradient()),  # converted x2
    Rule.sagemaker(rule_configs.overfit()),  # converted x2
    Rule.sagemaker(rule_configs.confusion()),  # converted, refused
]
hooks = DebuggerHookConfig(  # converted
    hook_parameters={"save_interval": "25"},  # converted
    collection_configs=[  # left out
        CollectionConfig(name="losses")  # left out
    ],
)
estimator = HuggingFace(  # converted
    entry_point="train.py",  # converted
    role="a role",  # left out
    instance_type="ml.p4d.24xlarge",  # converted
    instance_count=2,  # converted
    max_run=3600,  # converted
    use_spot_instances=True,  # converted
    max_wait=7200,  # left out
    keep_alive_period_in_seconds=600,  # converted
    hyperparameters={"lr": 1e-4, "epochs": 2, "my_own": 3},  # converted
    metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],  # converted
    checkpoint_s3_uri="s3://a-bucket/checkpoints",  # converted
    rules=rules,  # converted
    debugger_hook_config=hooks,  # converted
    profiler_config=ProfilerConfig(),  # converted x2
    compiler_config=TrainingCompilerConfig(),  # converted x2
    distribution={  # converted
        "smdistributed": {"dataparallel": {"enabled": True}}  # converted x2
    },
)
plain = HuggingFace(  # converted
    entry_point="train.py",  # converted
    instance_type="ml.p4d.24xlarge",  # converted
    instance_count=1,  # converted
    debugger_hook_config=False,  # left out
    disable_profiler=True,  # left out
    use_spot_instances=False,  # left out
)
tuner = HyperparameterTuner(  # converted
    estimator,
    objective_metric_name="eval_loss",  # converted
    objective_type="Minimize",  # converted
    hyperparameter_ranges={  # converted
        "lr": ContinuousParameter(1e-5, 1e-3, scaling_type="Logarithmic"),  # converted x2
        "warmup_steps": CategoricalParameter([0, 10]),  # converted
    },
    max_jobs=12,  # converted
    max_parallel_jobs=3,  # left out
    early_stopping_type="Auto",  # converted
)
tuner.fit("s3://a-bucket/train")  # converted
print(tuner.best_training_job(), sagemaker.__version__)  # converted
