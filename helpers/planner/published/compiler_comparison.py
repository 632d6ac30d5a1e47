"""A published comparison of a compiler with native PyTorch, and what its own logs say.

    print(audit_comparison(find_post("compiler-on-p4d")))      # +53 % reported, +2.1 % counted; ...

The logs hold, of each run, what Hugging Face's Trainer printed at its end. Its samples a second are
the rows of the data set times the epochs over the runtime, whether a row was trained on or not; its
steps a second are optimizer steps over the runtime. From these two and the batch follows how many
samples there were. Nothing here was run by this project.
"""

from collections.abc import Collection
from dataclasses import dataclass

from helpers.engine.errors import UserError
from helpers.planner.published.equal_work import Work, check_equal
from helpers.planner.published.posts import Comparison, TrainerLog
from helpers.planner.published.speed_claims import Claim, claim


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

    comparison: Comparison
    native: Recount
    compiled: Recount
    reported: Claim
    counted: Claim
    training: Claim
    billed: Claim

    def check(self, allow: Collection[str] = ()) -> None:
        """The comparison's rule, applied: see helpers.planner.published.equal_work.

        Raises:
            UserError: the runs did not do the same work.
        """
        check_equal("native", self.native.work, "compiled", self.compiled.work, "samples", allow)

    def __str__(self) -> str:
        native, compiled = self.native, self.compiled
        return (
            f"{self.comparison.title}: {self.reported.percent:+.0f} % samples per second reported, "
            f"{self.counted.percent:+.1f} % counted, with {compiled.work.dropped:,} of "
            f"{compiled.work.asked:,} samples dropped by the compiled run and "
            f"{native.work.dropped:,} by the native one; {compiled.work.steps:,} optimizer steps "
            f"against {native.work.steps:,}; mean training loss {compiled.log.train_loss:.2f} "
            f"against {native.log.train_loss:.2f}."
        )


def audit_comparison(comparison: Comparison) -> Audit:
    """Recompute a published comparison from its own logs."""
    native, compiled = comparison.native, comparison.compiled
    native_count = recount(native, comparison.epochs)
    compiled_count = recount(compiled, comparison.epochs)
    counted = compiled_count.samples_per_s / native_count.samples_per_s
    return Audit(
        comparison,
        native_count,
        compiled_count,
        reported=claim(compiled.samples_per_s / native.samples_per_s, "rate", "training"),
        counted=claim(counted, "rate", "training"),
        training=claim(native.runtime_s / compiled.runtime_s, "time", "training"),
        billed=claim(native.billed_s / compiled.billed_s, "time", "billed"),
    )
