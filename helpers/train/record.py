"""What a run leaves behind: a line of metrics a step, and summary.json at its end."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import torch

from helpers.commands import is_first
from helpers.engine.adapters.lora import trainable_parameters
from helpers.engine.files.run_record import Clock, Metrics, versions
from helpers.engine.files.whole import replace_text
from helpers.engine.memory.states import peak_memory_bytes
from helpers.engine.precision.compiling import compilations
from helpers.engine.ranks import over_ranks
from helpers.engine.trainer import StepResult, Trainer
from helpers.planner.cost import mfu
from helpers.planner.hardware.lookup import peak_flops
from helpers.text import tokens
from helpers.train.job import Job
from helpers.train.tracking import Tracking


def tracking_of(job: Job, warnings: list[str], done: int) -> Tracking:
    """The run's trackers, with its facts; on the first rank alone."""
    given = {name: value for name, value in vars(job.args).items() if value is not None}
    facts = given | {"world_size": job.plan.world_size, "weights": job.weights}
    names = job.args.track if is_first() else ()
    return Tracking(names, job.args.out, facts | {"versions": versions()}, warnings, done)


def utilization(job: Job, device: torch.device) -> Callable[[float, int], float | None]:
    """Of tokens a second in rows of a length: the share of the devices' peak, where it is known."""
    peak = peak_flops(device_name(device), job.plan.precision)
    flops = job.flops_per_token if job.adapting is None else None  # a frozen base does less work
    if not peak or not flops:
        return lambda per_second, length: None
    return lambda per_second, length: mfu(per_second, flops(length), job.plan.world_size, peak)


def measured(
    batch: tokens.Batch,
    result: StepResult,
    step_s: float,
    used: Callable[[float, int], float | None],
) -> dict[str, Any]:
    """A step's line of metrics.

    Args:
        step_s: the seconds that the step took, without those of compiling.
    """
    per_second = batch.tokens / step_s
    line = {
        "step": result.step,
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "lr": result.lr,
        "tokens": batch.tokens,
        "samples": batch.samples,
        "step_s": step_s,
        "tokens_per_s": per_second,
        "mfu": used(per_second, batch.input_ids.shape[1]),
    }
    return line | ({"skipped": True} if result.skipped else {})


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def trainable_over_stages(job: Job, trainer: Trainer) -> int:
    """How many numbers the optimizers of all stages update."""
    if job.adapting is None:
        return trainer.model.parameter_count
    stage = trainer.mesh.get_local_rank("pp")
    by_stage = dict(over_ranks((stage, trainable_parameters(trainer.model))))
    return sum(by_stage.values())


def finish(
    job: Job,
    trainer: Trainer,
    metrics: Metrics,
    clock: Clock,
    warnings: list[str],
    tracking: Tracking,
    scores: dict[str, Any] | None = None,
    status: str = "done",
) -> None:
    """Gather what each rank measured, and let the first write summary.json."""
    peaks = over_ranks(peak_memory_bytes(trainer.device))
    states = over_ranks(trainer.state_bytes())
    trainable = trainable_over_stages(job, trainer)
    if not is_first():
        return
    summary = {
        "plan": job.plan.to_dict(),
        "model": job.args.model,
        "weights": job.weights,
        "parameters": trainer.model.parameter_count,
        "trainable_parameters": trainable,
        "world_size": job.plan.world_size,
        "device": device_name(trainer.device),
        "phases_s": clock.phases_s,
        "tokens_per_s": metrics.median_rate("tokens"),
        "samples_per_s": metrics.median_rate("samples"),
        "peak_memory_bytes": peaks,
        "state_bytes": states,
        "final_loss": metrics.lines[-1]["loss"] if metrics.lines else None,
        "skipped_steps": trainer.scaler.skipped,
        "resumed_after": job.resumed_after,
        "compiled": [dataclasses.asdict(one) for one in compilations()],
        "eval": scores,
        "warnings": warnings,
        "versions": versions(),
        "status": status,
    }
    if job.args.track:
        tracking.finish(summary, job.args.out / "findings.json")
        summary["tracked"] = tracking.look
    replace_text(job.args.out / "summary.json", json.dumps(summary, indent=1) + "\n")
    if status != "done":
        return
    for command in tracking.look.values():
        print(f"tracked: {command}")
    line = f"done: {trainer.steps_done} steps"
    if summary["final_loss"] is not None:
        line += f", final loss {summary['final_loss']:.4g}"
    if known := [
        f"{name} {value:.4g}" for name, value in (scores or {}).items() if value is not None
    ]:
        line += f"; held out: {', '.join(known)}"
    print(line)
