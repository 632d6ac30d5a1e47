"""A published comparison of a compiler with native PyTorch, and what its own logs say.

    print(audit(P4D))       # +53 % reported, +2.1 % counted; 3000 optimizer steps against 1000; ...

The logs hold, of each run, what Hugging Face's Trainer printed at its end. Its samples a second are
the rows of the data set times the epochs over the runtime, whether a row was trained on or not; its
steps a second are optimizer steps over the runtime. From these two and the batch follows how many
samples there were. Nothing here was run by this project.
"""

from collections.abc import Collection
from dataclasses import dataclass

from helpers.engine.errors import UserError
from helpers.planner.published.claims import Claim, claim
from helpers.planner.published.work import Work, check_equal


@dataclass(frozen=True)
class TrainerLog:
    """What a run's log ends with.

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
    billed_s: float


@dataclass(frozen=True)
class PublishedComparison:
    """Two runs that were compared, and what the notebook printed of them, in percent."""

    title: str
    instance: str
    instances: int
    epochs: int
    native: TrainerLog
    compiled: TrainerLog
    printed_training: int
    printed_billed: int
    date: str
    source: str


P3 = PublishedComparison(
    title="GPT-2 on SST-2, two p3.16xlarge",
    instance="p3.16xlarge",
    instances=2,
    epochs=400,
    native=TrainerLog("native", 160, 2355.3449, 270.873, 1.698, 0.985729, 2797),
    compiled=TrainerLog("compiled", 320, 1649.8624, 386.699, 1.212, 1.702011, 2206),
    printed_training=29,
    printed_billed=21,
    date="2021-12-03",
    source="aws/amazon-sagemaker-examples, stored notebook output, blob 422040ceec",
)

P4D = PublishedComparison(
    title="GPT-2 on SST-2, two p4d.24xlarge",
    instance="p4d.24xlarge",
    instances=2,
    epochs=1000,
    native=TrainerLog("native", 512, 1305.6774, 1216.227, 2.298, 2.340201, 2582),
    compiled=TrainerLog("compiled", 1024, 852.8778, 1861.932, 1.173, 3.286979, 1980),
    printed_training=34,
    printed_billed=23,
    date="2022-10-13",
    source="aws/amazon-sagemaker-examples, stored notebook output, blob 68b71253d2",
)

# The post's own notebook, on one g4dn.12xlarge, stores no output. These are its batches: 10 and 20
# samples on each of 4 GPUs, with dataloader_drop_last.
POST_BATCHES = (40, 80)


@dataclass(frozen=True)
class Recount:
    """A run's log, recounted.

    rows: of the data set, an epoch.
    """

    log: TrainerLog
    rows: int
    steps_per_epoch: int
    work: Work

    @property
    def samples_per_s(self) -> float:
        """Samples that were trained on, a second."""
        return self.work.samples / self.log.runtime_s


def recount(log: TrainerLog, epochs: int) -> Recount:
    """Rows, steps and samples of a run, from what its log printed.

    Steps an epoch are rows over batch, rounded down where the last, smaller batch was dropped and
    up where it was kept; only one of them fits the logged steps.

    Raises:
        UserError: neither fits: the log is of another batch or number of epochs.
    """
    rows = round(log.samples_per_s * log.runtime_s / epochs)
    steps_per_epoch = round(log.steps_per_s * log.runtime_s / epochs)
    if steps_per_epoch == rows // log.batch:
        an_epoch = steps_per_epoch * log.batch
    elif steps_per_epoch == -(-rows // log.batch):
        an_epoch = rows
    else:
        raise UserError(
            f"{steps_per_epoch} steps an epoch of {rows} rows are none of batch {log.batch}: "
            f"check the batch and the epochs ({epochs})"
        )
    work = Work(
        samples=an_epoch * epochs,
        steps=steps_per_epoch * epochs,
        batch=log.batch,
        asked=rows * epochs,
        settings={"compiler": log.name == "compiled"},
    )
    return Recount(log, rows, steps_per_epoch, work)


@dataclass(frozen=True)
class Audit:
    """What a comparison reported, and what its logs say.

    Attributes:
        reported: the bar chart's percent: the ratio of the Trainer's samples a second.
        counted: the same of samples that were trained on.
        training, billed: the printed percents, of seconds saved.
    """

    comparison: PublishedComparison
    native: Recount
    compiled: Recount
    reported: Claim
    counted: Claim
    training: Claim
    billed: Claim

    @property
    def steps_share(self) -> float:
        """Optimizer steps of the compiled run, of the native one's."""
        return self.compiled.work.steps / self.native.work.steps

    def check(self, allow: Collection[str] = ()) -> None:
        """The comparison's rule, applied: see helpers.planner.published.work.

        Raises:
            UserError: the runs did not do the same work.
        """
        check_equal("native", self.native.work, "compiled", self.compiled.work, "samples", allow)

    def __str__(self) -> str:
        native, compiled = self.native, self.compiled
        return (
            f"{self.comparison.title}: {self.reported.percent:+.0f} % samples a second reported, "
            f"{self.counted.percent:+.1f} % counted, with {compiled.work.dropped:,} of "
            f"{compiled.work.asked:,} samples dropped by the compiled run and "
            f"{native.work.dropped:,} by the native one; {compiled.work.steps:,} optimizer steps "
            f"against {native.work.steps:,}; mean training loss {compiled.log.train_loss:.2f} "
            f"against {native.log.train_loss:.2f}."
        )


def audit(comparison: PublishedComparison) -> Audit:
    """Recompute a published comparison from its own logs."""
    native, compiled = comparison.native, comparison.compiled
    one, other = recount(native, comparison.epochs), recount(compiled, comparison.epochs)
    return Audit(
        comparison,
        one,
        other,
        reported=claim(compiled.samples_per_s / native.samples_per_s, "rate", "training"),
        counted=claim(other.samples_per_s / one.samples_per_s, "rate", "training"),
        training=claim(native.runtime_s / compiled.runtime_s, "time", "training"),
        billed=claim(native.billed_s / compiled.billed_s, "time", "billed"),
    )


def drop_last_inflation(rows: int, native_batch: int, compiled_batch: int) -> float:
    """By how much counting dropped rows favours the larger batch: 1.026 is 2.6 % too much."""
    if rows < max(native_batch, compiled_batch):
        raise UserError(f"{rows} rows hold no whole batch of {max(native_batch, compiled_batch)}")
    kept = [rows // batch * batch for batch in (native_batch, compiled_batch)]
    return kept[0] / kept[1]
