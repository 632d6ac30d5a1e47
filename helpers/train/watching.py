"""The watch in a training run: a look at every so many steps, and where its findings are left."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from helpers.commands import is_first
from helpers.engine.files.whole import replace_text
from helpers.engine.trainer import StepResult, Trainer
from helpers.text.readers import CLASSIFIES
from helpers.text.tokens import Batch
from helpers.train.job import Job
from helpers.watch.observe import Observer
from helpers.watch.watch import Watch, WatchFinding, commonest_share

HELD_OUT_EVERY = 5  # looks, from one evaluation on the held-out data to the next
FILE = "findings.json"


def make_watch(job: Job, trainer: Trainer) -> Watch | None:
    """The watch that the run's flags ask for."""
    if job.args.watch is None:
        return None
    random = job.starts_random and job.adapting is None and trainer.steps_done == 0
    answers = trainer.model.classes or trainer.model.vocabulary
    return Watch(job.args.watch, answers if random else None)


@contextmanager
def looking(watch: Watch | None, trainer: Trainer) -> Iterator[Observer | None]:
    """An observer for the next step where it is due. Compiled blocks keep their one graph, so their
    activations are not counted."""
    if watch is None or not watch.due(trainer.steps_done + 1):
        yield None
        return
    observer = Observer()
    compiled = trainer.plan.compile
    with nullcontext() if compiled else observer.activations_of(trainer.model):
        yield observer


def judge(
    watch: Watch, job: Job, result: StepResult, batch: Batch, observer: Observer | None
) -> list[WatchFinding]:
    """What is new after a step; said by the first rank."""
    padding = 1 - batch.tokens / batch.input_ids.numel()
    label = commonest_share(batch.labels) if job.args.task in CLASSIFIES else None
    new = watch.judge(result, observer, padding, label)
    if is_first():
        for finding in new:
            print(f"warning: {said(finding)}", flush=True)
    return new


def said(finding: WatchFinding) -> str:
    return f"step {finding.step}: {finding.kind}: {finding.words}"


def held_out_due(watch: Watch | None, step: int) -> bool:
    return watch is not None and step % (HELD_OUT_EVERY * watch.every) == 0


def write(watch: Watch | None, out: Path) -> None:
    """Add what the watch found, if there is one, to OUT/findings.json, which a profile may have
    written; on the first rank."""
    if watch is None or not is_first():
        return
    path = out / FILE
    report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"findings": []}
    report["findings"] += [finding.row() for finding in watch.findings]
    report["watched_every"] = watch.every
    replace_text(path, json.dumps(report, indent=1) + "\n")
