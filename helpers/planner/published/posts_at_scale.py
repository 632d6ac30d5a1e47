"""What published posts say of many machines, for the audits in notebook 6.

Nothing here was run by this project; every field is what the named source states.
"""

from dataclasses import dataclass
from typing import Any

from helpers.planner.hardware.lookup import Price, price


@dataclass(frozen=True)
class Headline:
    """A rate that was reached, and the days that were expected of more machines.

    not_said: what has to be assumed before the two can be compared.
    """

    title: str
    model: str
    instance: str
    instances: int
    samples_per_s: float
    more_instances: int
    days: float
    not_said: tuple[str, ...]
    price: Price
    date: str
    source: str


GPT3_ON_P4D = Headline(
    title="175 billion parameters on 120 p4d.24xlarge",
    model="gpt3-175b",
    instance="p4d.24xlarge",
    instances=120,
    samples_per_s=32,
    more_instances=240,
    days=25,
    not_said=("tokens a sample", "tokens of the whole training", "batch", "degrees"),
    price=price("p4d.24xlarge", service="sagemaker"),
    date="2022-03-01",
    source="Train 175+ billion parameter NLP models with model parallel additions and Hugging Face "
    "on Amazon SageMaker, AWS Machine Learning Blog",
)


@dataclass(frozen=True)
class Speedup:
    """The same work on more and more machines.

    minutes: by number of machines. printed: times as fast, as the source rounds it.
    """

    title: str
    minutes: dict[int, float]
    printed: dict[int, float]
    not_said: tuple[str, ...]
    source: str


SHARED_DATA = Speedup(
    title="SageMaker's data parallel library",
    minutes={1: 99, 2: 55, 4: 27, 8: 13.5},
    printed={2: 1.8, 4: 3.7, 8: 7.3},
    not_said=("model", "instance type", "batch"),
    source="a slide on SageMaker's distributed training libraries, 2023",
)


@dataclass(frozen=True)
class Layout:
    """A layout that a manual recommends.

    plan: fields of a ParallelPlan. samples: of a step on each data rank.
    """

    title: str
    model: str
    instance: str
    instances: int
    plan: dict[str, Any]
    samples: int
    seq_len: int
    source: str


_SMP_GUIDE = "SageMaker developer guide, model-parallel-best-practices-v2"
SMP_LAYOUTS = (
    Layout(
        title="Llama-2 7B over 8 GPUs",
        model="llama2-7b",
        instance="p4d.24xlarge",
        instances=1,
        plan={"dp_shard": 8, "activation": "full", "precision": "bf16"},
        samples=4,
        seq_len=4096,
        source=_SMP_GUIDE,
    ),
    Layout(
        title="Llama-2 70B over 256 GPUs",
        model="llama2-70b",
        instance="p4d.24xlarge",
        instances=32,
        plan={"dp_shard": 256, "activation": "full", "precision": "bf16"},
        samples=2,
        seq_len=4096,
        source=_SMP_GUIDE,
    ),
)
