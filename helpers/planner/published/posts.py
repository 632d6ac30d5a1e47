"""Published posts as their own logs, slides and manuals state them: what the notebooks audit.

    run = find_post("gptj-tensor-parallel")
    run.steady_samples_per_s, run.price.usd_per_hour, run.source

Nothing here was run by this project. posts.json has the posts; its field `kind` says as which class
of this file a post is read.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.planner.hardware.catalog import Price
from helpers.planner.hardware.lookup import find_instance, price
from helpers.planner.published.runs import Published
from helpers.tables import make_row, read_rows

POSTS = Path(__file__).with_name("posts.json")


@dataclass(frozen=True, kw_only=True)
class Post(Published):
    """What every post has: a name by which it is found here."""

    name: str


@dataclass(frozen=True, kw_only=True)
class RentedRun(Post):
    """A run of a model on machines of SageMaker."""

    model: str
    instance: str
    instances: int

    @property
    def devices(self) -> int:
        """GPUs of all its machines."""
        return self.instances * find_instance(self.instance).gpus

    @property
    def price(self) -> Price:
        """Of one machine.

        Raises:
            UserError: no price is recorded.
        """
        return price(self.instance, service="sagemaker")


@dataclass(frozen=True)
class LogLine:
    """One line of a training log."""

    batch: int
    loss: float
    samples_per_s: float
    printed_tflops_per_gpu: float


@dataclass(frozen=True, kw_only=True)
class TrainingLog(RentedRun):
    """A run with its log. `train_s` is the training alone, `billed_s` what was paid.

    timeline_s: of the job's phases one after another, by the log's own time stamps.
    """

    parameters: int
    tp: int
    batch: int
    seq_len: int
    dtype: str
    log: tuple[LogLine, ...]
    steady_samples_per_s: float
    timeline_s: dict[str, int]
    train_s: int
    billed_s: int


@dataclass(frozen=True, kw_only=True)
class Pipeline(RentedRun):
    """A run through a pipeline.

    layers: of each stage, by their numbers in the model.
    ends: parts that are no layers, by their stage.
    losses: as the log printed them, one after another.
    """

    pp: int
    microbatches: int
    layers: tuple[tuple[int, ...], ...]
    ends: dict[int, str]
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ScriptSettings(RentedRun):
    """What a run's script sets.

    misstated: what a slide of the same authors says of the same run instead.
    """

    settings: dict[str, str]
    misstated: dict[str, str]
    train_s: int


@dataclass(frozen=True, kw_only=True)
class Headline(RentedRun):
    """A rate that was reached, and the days that were expected of more machines.

    not_said: what has to be assumed before the two can be compared.
    """

    samples_per_s: int
    more_instances: int
    days: int
    not_said: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Layout(RentedRun):
    """A layout that a manual recommends.

    plan: fields of a ParallelPlan. samples: of a step on each data rank.
    """

    plan: dict[str, Any]
    samples: int
    seq_len: int


@dataclass(frozen=True, kw_only=True)
class Scaling(Post):
    """The same work on more and more machines.

    minutes: by number of machines. printed: times as fast, as the source rounds it.
    """

    minutes: dict[int, float]
    printed: dict[int, float]
    not_said: tuple[str, ...]


@dataclass(frozen=True)
class TrainerLog:
    """What the log of a run of Hugging Face's Trainer ends with.

    batch: samples of an optimizer step, over all GPUs.
    train_loss: the mean over all steps, as the Trainer takes it; not the last one.
    billed_s: of each machine.
    """

    name: str
    batch: int
    runtime_s: float
    samples_per_s: float
    steps_per_s: float
    train_loss: float
    billed_s: int


@dataclass(frozen=True, kw_only=True)
class Comparison(Post):
    """Two runs that were compared, and what the notebook printed of them, in percent."""

    instance: str
    instances: int
    epochs: int
    native: TrainerLog
    compiled: TrainerLog
    printed_training: int
    printed_billed: int


KINDS: dict[str, type[Post]] = {
    "training log": TrainingLog,
    "pipeline": Pipeline,
    "settings": ScriptSettings,
    "headline": Headline,
    "layout": Layout,
    "scaling": Scaling,
    "comparison": Comparison,
}


def find_post(name: str, path: Path = POSTS) -> Any:
    """The post with this name in posts.json, or in another file with its fields.

    Raises:
        UserError: there is none, or a post of the file is wrong.
    """
    posts = _posts(path)
    if not isinstance(name, str) or name not in posts:
        raise UserError(f"no post {name!r:.40} in {path.name}; there is {', '.join(posts)}")
    return posts[name]


@cache
def _posts(path: Path) -> dict[str, Post]:
    posts = [_post(values, where) for where, values in read_rows(path)]
    return {post.name: post for post in posts}


def _post(values: dict[str, Any], where: str) -> Post:
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise UserError(f"{where}: kind is one of {', '.join(KINDS)}, not {kind!r}")
    return make_row(KINDS[kind], values, where)
