"""Train a language model under a parallel plan. This is what torchrun starts.

    torchrun --nproc-per-node 2 -m helpers.train --model gptj-tiny --tp 2 --steps 50 --out runs/one

Exit codes: 0 done; 2 the arguments, the plan or the files that they name are wrong (one line,
nothing written); 1 it failed (the traceback, or one line where the disk is full).
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.elastic.multiprocessing.errors import record

from helpers.commands import is_first, refuse
from helpers.engine.adapters.lora import save_adapters
from helpers.engine.adapters.merging import save_merged
from helpers.engine.adapters.qlora import load_adapted
from helpers.engine.errors import Diverged, NotRepeatable, RankHung, UserError
from helpers.engine.files.checkpoints import CheckpointFailed, Checkpoints
from helpers.engine.files.manifest import changed_settings, read_manifest
from helpers.engine.files.run_record import Clock, LossRange, Metrics, is_disk_full
from helpers.engine.files.weights import find_weights, save_model
from helpers.engine.memory.states import forget_peak, peak_memory_bytes
from helpers.engine.parallelize import load_model
from helpers.engine.plan import DTYPES
from helpers.engine.precision.compiling import compile_s
from helpers.engine.ranks import (
    distributed,
    largest_over_ranks,
    on_all_ranks,
    over_ranks,
    pick_device,
)
from helpers.engine.trainer import Trainer
from helpers.text import tokens
from helpers.text.encoder_rows import SpecialTokens, write_tokenizer
from helpers.text.prefetching import prefetched
from helpers.text.tokenizer import copy_tokenizer, load_tokenizer
from helpers.trace import timelines
from helpers.trace.findings import write_findings
from helpers.trace.recorder import profiled
from helpers.train import watching
from helpers.train.arguments import parse
from helpers.train.job import Job, prepare, tokenizer_of
from helpers.train.preflight import preflight
from helpers.train.record import finish, measured, tracking_of, utilization
from helpers.train.tracking import Tracking
from helpers.watch.watch import Watch

# steps of which each asks all ranks for their peak of memory; later ones seldom have another
FIRST_STEPS = 3
AGREE_EVERY = 10  # steps, from one such question to the next
# what summary.json says of a run that ended so
FAILURES = {Diverged: "diverged", NotRepeatable: "not repeatable"}


def run(job: Job, clock: Clock) -> None:
    args, device = job.args, pick_device(job.args.device)
    if args.replay_check and device.type == "cuda":  # whose fastest operations differ in their bits
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    began = time.perf_counter()
    with distributed(job.plan, device, timeout_s=args.timeout, facts=job.facts()) as mesh:
        clock.phases_s["start"] += time.perf_counter() - began
        checkpoints = Checkpoints(
            args.out / "checkpoints", args.keep, args.background, job.fixed(), job.settings()
        )
        with clock.phase("check"):
            warnings = preflight(args, device)
        with clock.phase("load"):
            trainer = load(job, mesh, device, checkpoints)
            trainer.pipeline.timed = args.timeline
            batches = traced_batches(job, trainer)
        clock.move(trainer.model.check_s, "load", "check")
        forget_peak(device)  # loading's is not the training's
        on_all_ranks(job.claim_folder)
        if is_first():
            (args.out / "summary.json").unlink(missing_ok=True)  # of the run that this one goes on
        metrics = Metrics(args.out / "metrics.jsonl" if is_first() else None, trainer.steps_done)
        watch = watching.make_watch(job, trainer)
        tracking = tracking_of(job, warnings, trainer.steps_done)
        try:
            train(job, trainer, batches, metrics, checkpoints, clock, warnings, tracking, watch)
        except (Diverged, NotRepeatable) as error:
            watching.write(watch, args.out)  # before trackers read it
            status = FAILURES[type(error)]
            finish(job, trainer, metrics, clock, warnings, tracking, status=status)
            raise
        finally:
            metrics.close()
        if args.profile:
            with clock.phase("save"):
                over_ranks(None)  # until all traces are there
                if is_first():
                    print(*write_findings(args.out), sep="\n")
        watching.write(watch, args.out)
        if args.timeline:
            steps = timelines.gather(trainer)
            if is_first():
                timelines.write_timelines(args.out / "timeline.json", steps)
        scores = None
        if job.evaluation is not None:
            with clock.phase("evaluate"):
                scores = evaluate(job, trainer)
            log(job, {f"eval_{name}": value for name, value in scores.items()})
        if args.save or args.merge:
            with clock.phase("save"):
                save(job, trainer.model)
        finish(job, trainer, metrics, clock, warnings, tracking, scores)


def save(job: Job, model: nn.Module) -> None:
    """What was trained: the model, or its adapters and if asked for the model with them in it."""
    out = job.args.out
    dtype = DTYPES[job.args.save_dtype] if job.args.save_dtype else None
    if job.adapting is None:
        save_model(model, out / "model", dtype)
    else:
        save_adapters(model, out / "adapters")
        if job.args.merge:
            save_merged(model, out / "model", dtype)
    if is_first() and (job.adapting is None or job.args.merge):
        save_tokenizer(job, out / "model")


def save_tokenizer(job: Job, folder: Path) -> None:
    """The one whose ids the model was trained with."""
    source = tokenizer_of(job.args)
    if job.head != "lm" and SpecialTokens.of(tokenizer := load_tokenizer(source)).moved:
        write_tokenizer(tokenizer, folder)
    else:
        copy_tokenizer(source, folder)


def load(job: Job, mesh: DeviceMesh, device: torch.device, checkpoints: Checkpoints) -> Trainer:
    """The model and its trainer, as they start or as a checkpoint left them."""
    args = job.args
    models: list[nn.Module] = []  # not a result of `on_all_ranks`: those travel to every rank
    options = {"config": job.config, "seed": args.seed, "device": device}
    options |= {"from_scratch": args.from_scratch, "task": job.head}

    def fetch() -> None:  # first, for a rank without them must not miss at the layout's check
        find_weights(args.model, args.from_scratch)

    def load_one() -> None:
        if job.adapting is not None:
            models.append(load_adapted(args.model, job.plan, mesh, job.adapting, **options))
        else:
            models.append(load_model(args.model, job.plan, mesh, **options))

    on_all_ranks(fetch)
    on_all_ranks(load_one)
    trainer = Trainer(
        models[0],
        job.plan,
        mesh,
        lr=args.lr,
        weight_decay=args.weight_decay,
        clip=args.clip,
        lr_schedule=args.lr_schedule,
        warmup_steps=args.warmup,
        total_steps=job.steps,
        seed=args.seed,
        optimizer=args.optimizer,
    )
    trainer.runs_on = True  # until `train` is over
    if job.resume_from is not None:
        checkpoints.load(trainer, job.resume_from)
        changed = changed_settings(read_manifest(job.resume_from, {}), job.settings())
        if changed and is_first():
            print(f"resumed with {'; '.join(changed)}")
    return trainer


def traced_batches(job: Job, trainer: Trainer) -> Iterator[tokens.Batch]:
    """The run's batches, traced from the first to the last of the steps to profile."""
    batches = prefetched(job.batches(trainer.steps_done), pin=trainer.device.type == "cuda")
    if job.args.profile is None:
        return batches
    return profiled(
        batches,
        job.args.out / "traces",
        *job.args.profile,
        done=trainer.steps_done,
        device=trainer.device,
        states=trainer.state_bytes,
    )


def train(
    job: Job,
    trainer: Trainer,
    batches: Iterator[tokens.Batch],
    metrics: Metrics,
    checkpoints: Checkpoints,
    clock: Clock,
    warnings: list[str],
    tracking: Tracking,
    watch: Watch | None = None,
) -> None:
    """Take the run's steps, a line of metrics each, and a checkpoint every so often.

    Raises:
        Diverged: loss or gradient are not finite any more.
        NotRepeatable: a step that was taken twice differs.
    """
    used = utilization(job, trainer.device)
    lately = LossRange()
    peak, new_peaks = 0, trainer.steps_done + FIRST_STEPS
    for batch in batches:
        before_s = compile_s() if job.plan.compile else 0.0
        with clock.phase("train"):
            with watching.looking(watch, trainer) as observer:
                result = trainer.step(
                    batch.input_ids,
                    batch.labels,
                    batch.documents,
                    replay=replay_due(job, trainer),
                    observer=observer,
                    **batch.masks,
                )
            if watch:
                new = watching.judge(watch, job, result, batch, observer)
                warnings += map(watching.said, new)
            compiling_s = compile_s() - before_s if job.plan.compile else 0.0
            clock.move(compiling_s, "train", "compile")
            line = measured(batch, result, result.step_s - compiling_s, used)
            if result.step <= new_peaks or result.step % AGREE_EVERY == 0:
                peak = largest_over_ranks(peak_memory_bytes(trainer.device))
            metrics.add(line | {"peak_memory_bytes": peak})
            log(job, metrics.lines[-1] | {"samples_per_s": line["samples"] / line["step_s"]})
        warning = lately.spike(result.step, result.loss)
        if warning is not None:
            warnings.append(warning)
            if is_first():
                print(f"warning: {warning}", flush=True)
        if job.evaluation is not None and watching.held_out_due(watch, result.step):
            with clock.phase("evaluate"):
                watch.history.held_out.append((result.step, evaluate(job, trainer)["loss"]))
        with clock.phase("save"):
            tracking.log(metrics.lines[-1])
            due = job.args.checkpoint_every and result.step % job.args.checkpoint_every == 0
            if due and not result.skipped:
                checkpoints.save(trainer)
    trainer.settle()
    with clock.phase("save"):
        checkpoints.finish()
    if metrics.lines and all(line.get("skipped") for line in metrics.lines):
        raise Diverged(
            f"all {len(metrics.lines)} steps were skipped, for no loss scale kept their gradients "
            "finite: take precision bf16 or fp32, or more steps"
        )


def log(job: Job, line: dict[str, Any]) -> None:
    """Print a line of metrics, as metrics.jsonl has it, where --log-every asks for its step: for
    what scrapes the log by expressions."""
    every = job.args.log_every
    if every and is_first() and line.get("step", 0) % every == 0:
        print(json.dumps(line), flush=True)


def replay_due(job: Job, trainer: Trainer) -> bool:
    """Is the next step to be taken twice?"""
    every = job.args.replay_check
    return every is not None and (trainer.steps_done + 1) % every == 0


def evaluate(job: Job, trainer: Trainer) -> dict[str, Any]:
    data = job.evaluation
    batches = tokens.batches(data, job.args.batch_size, seed=0, shuffle=False)
    answers = list((data.label_token_ids or {}).values())
    rows = (
        (batch.input_ids, batch.labels, batch.documents, batch.attention_mask) for batch in batches
    )
    return trainer.evaluate(rows, answers or None) | {"samples": len(data)}


@record
def main(started: float) -> None:
    """Train as the command line says.

    Args:
        started: time.perf_counter() when the process began, for the time that starting took.
    """
    clock = Clock()
    try:
        job = prepare(parse())
    except UserError as error:
        refuse(str(error))
    clock.phases_s["start"] = time.perf_counter() - started
    try:
        run(job, clock)
    except UserError as error:  # as of broken files: a mistake in the input, found only now
        refuse(str(error))
    except (CheckpointFailed, Diverged, NotRepeatable, RankHung) as error:
        refuse(str(error), code=1)
    except OSError as error:
        if is_disk_full(error):
            refuse(f"the disk of {job.args.out} is full", code=1)
        if error.filename is None:  # a connection, and no file
            raise
        refuse(f"{error.filename} cannot be read or written: {error.strerror}", code=1)
