"""The sizes that each notebook comes in, as data.

tiny         CPU ranks over gloo, a tiny model, bundled text: seconds, anywhere
single_gpu   the same, and one more run on the GPU at a size that fills some of it
multi_gpu    ranks on GPUs over NCCL, and the published model where it fits
"""

from dataclasses import dataclass, replace
from typing import Any

from helpers.engine.models.configurations import load_config
from helpers.planner.cost import Shape, model_shape


@dataclass(frozen=True)
class Profile:
    """Settings of a notebook's runs. `parameters` is the model's size, for the memory estimate.

    tp, pp, dp_shard: of the parallel run.
    microbatches: of a pipeline; 0 leaves them to the plan.
    device: `cpu` keeps the ranks off the GPUs; `cuda` gives each rank one.
    least_gpus: that a machine must have for it.
    larger: one more run beside the compared pair, or None.
    untrue: what the profile's results do not show.
    """

    name: str
    model: str
    tp: int
    steps: int
    batch_size: int
    seq_len: int
    parameters: int
    device: str = "cpu"
    precision: str = "fp32"
    data: str = "data/reviews/train.tsv"
    eval_data: str | None = None
    task: str = "lm"
    lr: float = 1e-3
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    larger: "Profile | None" = None
    untrue: tuple[str, ...] = ()
    pp: int = 1
    dp_shard: int = 1
    microbatches: int = 0
    least_gpus: int = 0

    @property
    def nproc(self) -> int:
        """Ranks of the parallel run."""
        return self.tp * self.pp * self.dp_shard

    @property
    def config(self) -> Any:
        """The model's transformers configuration."""
        return load_config(
            self.model,
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
        )

    @property
    def shape(self) -> Shape:
        """The model's widths, for the planner's formulas."""
        return model_shape(self.config)

    def flags(
        self, tp: int | None = None, pp: int | None = None, dp_shard: int | None = None
    ) -> dict[str, Any]:
        """Arguments of `launch("scripts/train.py", ...)` for this profile's parallel run, or with
        a degree of 1 for its baseline on one process."""
        tp, pp, dp_shard = tp or self.tp, pp or self.pp, dp_shard or self.dp_shard
        more = {"pp": pp, "microbatches": self.microbatches} if pp > 1 else {}
        if self.dp_shard > 1:
            more = {"dp_shard": dp_shard, "microbatches": self.microbatches}
        names = ("model", "steps", "batch_size", "seq_len", "data", "eval_data", "task", "lr")
        flags = {name: getattr(self, name) for name in (*names, "layers", "hidden", "heads")}
        flags = {name: value for name, value in flags.items() if value is not None}
        hidden_gpus = {"env": {"CUDA_VISIBLE_DEVICES": ""}} if self.device == "cpu" else {}
        return {"nproc": tp * pp * dp_shard, "tp": tp, **more, **flags, **hidden_gpus}


_CPU = (
    "Throughput, MFU and cost are illustrative: CPU cores over gloo say nothing of GPUs over NCCL.",
    "The model is tiny: communication weighs more, and matrices run less well, than at size.",
)

_TINY = Profile(
    name="tiny",
    model="gptj-tiny",
    tp=2,
    steps=126,  # two epochs
    batch_size=64,
    seq_len=64,
    parameters=1_316_608,
    eval_data="data/reviews/heldout.tsv",
    task="classify",
    untrue=_CPU,
)

# GPT-J's head count, half its width, 8 of its 28 layers: 10 GB of state in fp32
_CUT_GPTJ = Profile(
    name="cut",
    model="gptj-6b",
    tp=1,
    steps=20,
    batch_size=8,
    seq_len=512,
    parameters=609_260_768,
    device="cuda",
    lr=2e-4,
    layers=8,
    hidden=2048,
    heads=16,
)

_WHOLE_GPTJ = Profile(
    name="published",
    model="gptj-6b",
    tp=8,
    steps=20,
    batch_size=8,
    seq_len=1024,
    parameters=6_050_882_784,
    device="cuda",
    lr=2e-4,
)

# wide enough that an action takes tens of milliseconds; 9 layers, since the head is work too
_TINY_PIPELINE = Profile(
    name="tiny",
    model="gptj-tiny",
    tp=1,
    pp=2,
    microbatches=8,
    steps=20,
    batch_size=16,
    seq_len=64,
    parameters=8_145_152,
    layers=9,
    hidden=256,
    untrue=_CPU,
)

_SINGLE_GPU = replace(
    _TINY,
    name="single_gpu",
    least_gpus=1,
    larger=_CUT_GPTJ,
    untrue=(
        "The compared pair runs on CPU ranks, since NCCL wants a GPU a rank: its throughput and "
        "cost are illustrative, its parity and memory are not.",
        "The run on the GPU is one process: its throughput and MFU are the GPU's, without "
        "communication.",
    ),
)

_MULTI_GPU = replace(
    _CUT_GPTJ,
    name="multi_gpu",
    least_gpus=2,
    tp=8,
    larger=_WHOLE_GPTJ,
    untrue=("The compared pair is a GPT-J cut to fit one GPU; only the larger run is the whole.",),
)

# two stages a rank on up to 8 GPUs, and one process of it fits a GPU of 15 GB
_GPU_PIPELINE = replace(
    _CUT_GPTJ,
    name="multi_gpu",
    least_gpus=2,
    pp=8,
    microbatches=32,
    batch_size=32,
    parameters=304_712_928,
    layers=16,
    hidden=1024,
    larger=replace(_WHOLE_GPTJ, tp=1, pp=8, microbatches=32, batch_size=32),
    untrue=("The compared pair is a GPT-J cut to fit one GPU; only the larger run is the whole.",),
)

# large enough that a step is arithmetic and not Python; fewer steps than an epoch has, since its
# last, smaller batch would be compiled anew
_TINY_COMPILER = Profile(
    name="tiny",
    model="gpt2-tiny",
    tp=1,
    steps=26,
    batch_size=16,
    seq_len=128,
    parameters=3_814_912,
    layers=4,
    hidden=256,
    untrue=(_CPU[0], "The model is tiny: products of small matrices leave less to gain."),
)

_GPU_COMPILER = replace(
    _TINY_COMPILER,
    name="single_gpu",
    least_gpus=1,
    model="gpt2",
    steps=100,
    seq_len=512,
    parameters=124_439_808,
    device="cuda",
    lr=3e-4,
    layers=None,
    hidden=None,
    untrue=(),
)

_TINY_SHARDS = Profile(
    name="tiny",
    model="neox-tiny",
    tp=1,
    dp_shard=4,
    microbatches=2,
    steps=20,
    batch_size=16,
    seq_len=64,
    parameters=4_208_128,
    layers=4,
    hidden=256,
    untrue=_CPU,
)

# GPT-NeoX-20B's blocks at a third of their width, 8 of 44 layers: one process fits 15 GB
_GPU_SHARDS = replace(
    _TINY_SHARDS,
    name="multi_gpu",
    least_gpus=4,  # HSDP has groups of groups
    model="neox-20b",
    dp_shard=8,
    batch_size=32,
    seq_len=512,
    parameters=609_439_744,
    device="cuda",
    lr=2e-4,
    layers=8,
    hidden=2048,
    heads=16,
    untrue=("The model is a GPT-NeoX cut to fit one GPU.",),
)

# what is measured beside the plan of it: three layouts of two ranks, some seconds each
_TINY_SCALE = replace(
    _TINY_PIPELINE,
    tp=2,
    pp=1,
    microbatches=0,
    untrue=(
        "What stands here of hundreds of GPUs is arithmetic of the planner: none of it is run.",
        *_CPU,
    ),
)

# multi-query as Falcon-7B, two layers a stage
_TINY_ADAPTERS = Profile(
    name="tiny",
    model="falcon-tiny",
    tp=1,
    pp=4,
    microbatches=8,
    steps=60,
    batch_size=16,
    seq_len=128,
    parameters=1_640_704,
    data="data/instructions/train.jsonl",
    eval_data="data/instructions/heldout.jsonl",
    task="instruct",
    lr=3e-3,
    layers=8,
    hidden=128,
    untrue=_CPU,
)

_GPU_ADAPTERS = replace(
    _TINY_ADAPTERS,
    name="multi_gpu",
    least_gpus=4,  # the four stages of the published machine
    device="cuda",
    hidden=1024,
    heads=16,
    parameters=87_050_240,
    untrue=("The model is a Falcon cut to fit one GPU, with weights trained for a minute.",),
)

PROFILES: dict[int, dict[str, Profile]] = {
    0: {"tiny": replace(_TINY, steps=30)},
    1: {"tiny": _TINY, "single_gpu": _SINGLE_GPU, "multi_gpu": _MULTI_GPU},
    2: {"tiny": _TINY_PIPELINE, "multi_gpu": _GPU_PIPELINE},
    3: {"tiny": _TINY_COMPILER, "single_gpu": _GPU_COMPILER},
    4: {"tiny": _TINY_ADAPTERS, "multi_gpu": _GPU_ADAPTERS},
    5: {"tiny": _TINY_SHARDS, "multi_gpu": _GPU_SHARDS},
    6: {"tiny": _TINY_SCALE},
}
