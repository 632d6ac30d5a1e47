"""The profiles that each notebook comes in: settings of its runs, read from run_sizes.json.

tiny         CPU ranks over gloo, a tiny model, bundled text: seconds, anywhere
single_gpu   the same, and one more run on the GPU at a size that fills some of it
multi_gpu    ranks on GPUs over NCCL, and the published model where it fits

Runs on GPUs are in bf16, or in fp16 where a GPU has no bf16: so they are trained.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.shape import Shape
from helpers.tables import read_table

FOLDER = Path(__file__).parent
# flags of scripts/train.py that a profile sets as they are
SETTINGS = ("steps", "batch_size", "seq_len", "data", "eval_data", "task", "lr")
WIDTHS = ("layers", "hidden", "heads")  # where the model is cut


@dataclass(frozen=True)
class Profile:
    """Settings of a notebook's runs. `parameters` is the model's size, for the memory estimate.

    tp, pp, cp, dp_shard: of the parallel run.
    microbatches: of a pipeline; 0 leaves them to the plan.
    device: `cpu` keeps the ranks off the GPUs; `cuda` gives each rank one.
    least_gpus: that a machine must have for it.
    larger: one more run beside the compared pair, or None.
    not_shown: what the profile's results do not show, by its name in not_shown.csv.
    why: reasons for these sizes.
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
    pp: int = 1
    cp: int = 1
    dp_shard: int = 1
    microbatches: int = 0
    least_gpus: int = 0
    larger: "Profile | None" = None
    not_shown: tuple[str, ...] = ()
    why: str = ""

    @property
    def nproc(self) -> int:
        """Ranks of the parallel run."""
        return self.tp * self.pp * self.cp * self.dp_shard

    @property
    def plan(self) -> ParallelPlan:
        """The plan of the parallel run. Raises a UserError if the degrees cannot be."""
        degrees = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "dp_shard": self.dp_shard}
        return ParallelPlan(**degrees, microbatches=self.microbatches, precision=self.precision)

    @property
    def state(self) -> str:
        """The planner's name for what a parameter takes where no data ranks share it: in 16 bits
        the engine sums gradients in float32 beside float32 masters."""
        return "fp32" if self.precision == "fp32" else "half"

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
        self,
        tp: int | None = None,
        pp: int | None = None,
        cp: int | None = None,
        dp_shard: int | None = None,
    ) -> dict[str, Any]:
        """Arguments of `launch("scripts/train.py", ...)` for this profile's parallel run, or with
        a degree of 1 for its baseline on one process."""
        tp, pp, cp = tp or self.tp, pp or self.pp, cp or self.cp
        dp_shard = dp_shard or self.dp_shard
        flags: dict[str, Any] = {"nproc": tp * pp * cp * dp_shard, "tp": tp}
        if self.cp > 1:
            flags["cp"] = cp
        if pp > 1:
            flags |= {"pp": pp, "microbatches": self.microbatches}
        if self.dp_shard > 1:
            flags |= {"dp_shard": dp_shard, "microbatches": self.microbatches}
        for name in ("model", *SETTINGS, *WIDTHS):
            if getattr(self, name) is not None:
                flags[name] = getattr(self, name)
        if self.precision != "fp32":
            flags["precision"] = self.precision
        if self.device == "cpu":
            flags["env"] = {"CUDA_VISIBLE_DEVICES": ""}
        return flags


@dataclass(frozen=True)
class Notebook:
    """A notebook's number and its profiles, smallest first."""

    notebook: int
    profiles: tuple[Profile, ...]


@dataclass(frozen=True)
class NotShown:
    """What the results of some profiles do not show."""

    name: str
    words: str


PROFILES = {
    row.notebook: {profile.name: profile for profile in row.profiles}
    for row in read_table(FOLDER / "run_sizes.json", Notebook)
}
NOT_SHOWN = {row.name: row.words for row in read_table(FOLDER / "not_shown.csv", NotShown)}
