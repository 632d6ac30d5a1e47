"""One run as a comparison needs it: the work it did, its loss along the way, and all in one row."""

from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, need
from helpers.engine.files.run_record import warmup_steps
from helpers.lab.paths import shown
from helpers.lab.runs.run import Run
from helpers.planner.published.equal_work import Work

if TYPE_CHECKING:
    import pandas as pd

# counted from the steps, or of no concern to what is learnt and how fast
LEFT_OUT = ("steps", "epochs", "batch_size", "out", "resume")
BEFORE = ("torchrun", "start", "load", "check")  # phases that end when training begins
SLACK = 1.01  # between the steps' own clocks and the phase's


def work_of(run: Run) -> Work:
    """What a run did, from its metrics, and was told, from its summary or its flags."""
    samples, _, _ = map(run.numbers, ("samples", "step_s", "loss"))
    told = _told(run)
    rows, epochs = run.summary.get("dataset_samples"), told.get("epochs")
    whole = type(rows) is int and type(epochs) is int and told.get("steps") is None
    return Work(
        samples=int(samples.sum()),
        steps=len(samples),
        batch=int(samples.max()),
        tokens=int(run.numbers("tokens").sum()) if "tokens" in run.metrics else None,
        asked=rows * epochs if whole else None,
        settings={name: value for name, value in told.items() if name not in LEFT_OUT},
    )


def _told(run: Run) -> dict[str, Any]:
    """Settings by name: the plan, the model, the versions, and the script's own flags."""
    summary = run.summary
    flags = run.named("settings") or run.flags
    named = {name: summary.get(name) for name in ("model", "parameters", "device")}
    every = {**flags, **named, **run.named("plan"), **run.named("versions")}
    return {name: value for name, value in every.items() if value is not None}


def curve(run: Run, window: int = 1) -> "pd.DataFrame":
    """A row per step.

    Args:
        window: samples whose mean loss is taken, at least the step's own: runs of different batch
            sizes are so smoothed alike.

    Returns:
        Columns `samples` and `seconds` so far, the seconds of the steps alone, and `loss`. A step
        whose loss is no number has no part in the mean.

    Raises:
        UserError: no step has a loss that is a number.
    """
    pandas = need("pandas", "notebooks")
    losses, samples = run.numbers("loss"), run.numbers("samples")
    if losses.isna().all():
        raise UserError(f"no step of {shown(run.path)} has a loss that is a number")
    counted, samples = samples.where(losses.notna(), 0), samples.cumsum()
    summed = pandas.DataFrame({"samples": counted, "loss": counted * losses.fillna(0.0)}).cumsum()
    # how many steps ended before the window begins, and what had been summed by then
    before = samples.searchsorted(samples - max(window, 1), side="right")
    inside = summed - summed.reindex(before - 1, fill_value=0.0).to_numpy()
    loss = inside["loss"] / inside["samples"]
    seconds = run.numbers("step_s").cumsum()
    return pandas.DataFrame({"samples": samples, "seconds": seconds, "loss": loss})


def measures(run: Run, window: int, target_loss: float) -> dict[str, float]:
    """A run in one row.

    Returns:
        samples, steps: that it took.
        s a sample, s a step: seconds in the steady state.
        before, compile, train, rest, billed: as `seconds_by_part`, and their sum.
        loss: the mean of the last `window` samples.
        samples to loss, steps to loss, s to loss: until `curve` first is `target_loss` or less.
    """
    along, parts = curve(run, window), seconds_by_part(run)
    reached = along[along["loss"] <= target_loss].iloc[0]
    return {
        "samples": along["samples"].iloc[-1],
        "steps": len(along),
        "s a sample": steady_s(run, "samples"),
        "s a step": steady_s(run, "steps"),
        **parts,
        "billed": sum(parts.values()),
        "loss": along["loss"].iloc[-1],
        "samples to loss": reached["samples"],
        "steps to loss": reached.name + 1,
        "s to loss": reached["seconds"],
    }


def steady_s(run: Run, unit: str) -> float:
    """Median seconds per sample or a step, the warm-up left out.

    Args:
        unit: `samples` or `steps`.
    """
    amount = run.numbers("samples") if unit == "samples" else 1
    each_s = run.numbers("step_s") / amount
    return float(each_s.iloc[warmup_steps(len(each_s)) :].median())


def seconds_by_part(run: Run) -> dict[str, float]:
    """Where the billed seconds of a run went: `before` training, `compile`, `train` and `rest`.

    Raises:
        UserError: the steps took longer than the phase that they are in, so the compile time is in
            both, or lines of an earlier launch are among them.
    """
    seconds = run.phases["seconds"]
    steps_s, train_s = run.numbers("step_s").sum(), seconds["train"]
    if steps_s > SLACK * train_s:
        raise UserError(
            f"the steps of {shown(run.path)} took {steps_s:.4g} s, its phase train {train_s:.4g} s:"
            f" a step must not hold compile time, and a resumed run cannot be compared"
        )
    parts = {"compile": seconds["compile"], "train": train_s}
    before = sum(seconds.get(name, 0.0) for name in BEFORE)
    rest = seconds["total"] - before - sum(parts.values())
    return {"before": before, **parts, "rest": rest}
