"""Published runs, copied from their own logs, for the audits in the notebooks.

Nothing here was run by this project; every field is what the named source printed or states.
"""

from dataclasses import dataclass

from helpers.planner.hardware.lookup import price
from helpers.planner.hardware.tables import Price


@dataclass(frozen=True)
class LogLine:
    """One line of a training log."""

    batch: int
    loss: float
    samples_per_s: float
    printed_tflops_per_gpu: float


@dataclass(frozen=True)
class PublishedRun:
    """A run that others published. `train_s` is the training alone, `billed_s` what was paid."""

    title: str
    model: str
    parameters: int
    instance: str
    instances: int
    devices: int
    tp: int
    batch: int
    seq_len: int
    dtype: str
    log: tuple[LogLine, ...]
    steady_samples_per_s: float
    timeline_s: dict[str, float]
    train_s: float
    billed_s: float
    price: Price
    date: str
    source: str


GPTJ_TENSOR_PARALLEL = PublishedRun(
    title="GPT-J-6B, tensor parallel 8, one p4d.24xlarge",
    model="gptj-6b",
    parameters=6_050_882_784,
    instance="p4d.24xlarge",
    instances=1,
    devices=8,
    tp=8,
    batch=8,
    seq_len=1024,
    dtype="fp16",
    log=(
        LogLine(9, 10.953125, 17.2209, 853.62),
        LogLine(19, 10.953125, 13.6307, 675.66),
        LogLine(29, 10.828125, 14.6018, 723.80),
        LogLine(39, 10.4453125, 14.6538, 726.37),
        LogLine(49, 9.84375, 14.6429, 725.83),
        LogLine(59, 9.25, 14.6353, 725.45),
        LogLine(69, 8.8984375, 14.6036, 723.88),
        LogLine(79, 8.4765625, 14.6404, 725.71),
        LogLine(89, 8.28125, 14.6056, 723.98),
    ),
    steady_samples_per_s=14.65,
    # From the log's own time stamps, 08:33:41 to 09:06:26: 1965 s, of which 1836 were billed.
    timeline_s={
        "start the machine": 129,
        "download the data": 90,
        "pull the container image": 116,
        "start the script": 52,
        "create the model": 263,
        "partition it": 105,
        "train": 62,
        "save": 34,
        "finish the script": 37,
        "upload the model": 1077,
    },
    train_s=63,
    billed_s=1836,
    price=price("p4d.24xlarge", service="sagemaker"),
    date="2023-02-14",
    source="aws/amazon-sagemaker-examples, stored output of 11_train_gptj_smp_tensor_parallel_"
    "notebook.ipynb, blob edf0b74ff0, commit a155538",
)


@dataclass(frozen=True)
class PublishedPipeline:
    """A pipeline that others published.

    layers: of each stage, by their numbers in the model.
    ends: parts that are no layers, by their stage.
    losses: as the log printed them, one after another.
    """

    title: str
    model: str
    instance: str
    instances: int
    pp: int
    microbatches: int
    layers: tuple[tuple[int, ...], ...]
    ends: dict[int, str]
    losses: tuple[float, ...]
    date: str
    source: str


GPTJ_PIPELINE = PublishedPipeline(
    title="GPT-J-6B, pipeline of 16 stages, four p3.16xlarge",
    model="gptj-6b",
    instance="p3.16xlarge",
    instances=4,
    pp=16,
    microbatches=2,
    layers=((), *((i, i + 1) for i in range(4, 28, 2)), (2, 3), (0,), (1,)),
    ends={0: "wte, drop, ln_f, lm_head"},
    losses=(3.968, 4.003, 3.999),
    date="2022-02-09",
    source="aws/amazon-sagemaker-examples, stored output of train_gptj_smp_notebook.ipynb, "
    "blob b8c7a60773",
)


@dataclass(frozen=True)
class PublishedShards:
    """A run of sharded data parallelism that others published.

    misstated: what a slide of the same authors says of the same run, by what the script says.
    """

    title: str
    model: str
    instance: str
    instances: int
    devices: int
    settings: dict[str, str]
    misstated: dict[str, str]
    train_s: float
    price: Price
    date: str
    source: str


NEOX_SHARDED = PublishedShards(
    title="GPT-NeoXT-Chat-Base-20B with FSDP, two p4d.24xlarge",
    model="neox-20b",
    instance="p4d.24xlarge",
    instances=2,
    devices=16,
    settings={
        "batch of a GPU": "2",
        "epochs": "3",
        "bf16": "True",
        "gradient checkpointing": "True",
        "trainer": "Trainer",
    },
    misstated={
        "batch of a GPU": "8",
        "epochs": "1",
        "bf16": "False",
        "trainer": "Seq2SeqTrainer",
    },
    train_s=9407,
    price=price("p4d.24xlarge", service="sagemaker"),
    date="2023-05-02",
    source="philschmid.de/sagemaker-fsdp-gpt and its notebook, 25_pytorch_fsdp_model_parallelism",
)
