"""Encoders: what the engine's runs learn beside what transformers' own Trainer learns.

    python scripts/measure/encoders.py classify-head --data sst2/train.tsv \\
        --eval-data sst2/dev.tsv --seeds 0 1 2 --out runs/encoders
    python scripts/measure/encoders.py mlm --data text.txt --out runs/masked

All runs of a seed begin with the same weights, which transformers draws, and take the same batches
in the same order, for mlm with the same tokens masked, by the same optimizer and schedule. Beside
the encoder that classifies rows, a GPT-J of its size says the word that stands for a class
(`--task classify`). Where mlm gets no --eval-data, the last tenth of the lines is held out.

Prints a table. A run that stands in --out already is read and not taken again. Exit code 1 where a
run's accuracy is more than a standard error, or its loss more than rounding, from transformers'.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from helpers.commands import markdown, refuse
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import expanded
from helpers.engine.models.objectives import IGNORED, build
from helpers.lab.launch.flags import to_words
from helpers.lab.launch.launch import launch
from helpers.lab.runs.run import load_run
from helpers.text import tokens
from helpers.train.arguments import count, parse, positive, whole
from helpers.train.job import Job, prepare, tokenizer_of

BETAS = 0.9, 0.95  # the engine's own
PLANS = {"one process": {}, "tp=2": {"tp": 2}, "dp_shard=2": {"dp_shard": 2}}
DECODER = {"model": "gptj-tiny", "layers": 4, "hidden": 128, "heads": 4, "task": "classify"}
HELD_OUT = 0.1
OWN, ENGINE = "transformers' Trainer", "this engine"
ROUNDING = 1e-4  # of a loss after hundreds of steps in float32


class Result(NamedTuple):
    """The loss of each step, and what is measured on the held-out rows at the end."""

    losses: list[float]
    scores: dict[str, float]


class OwnTrainer(transformers.Trainer):
    """transformers' loop over batches that are made already; it keeps each step's loss."""

    def __init__(self, batches: list[dict[str, torch.Tensor]], **options: Any) -> None:
        super().__init__(**options)
        self.batches, self.losses = batches, []

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(self.batches, batch_size=None)

    def compute_loss(self, model: nn.Module, inputs: dict[str, torch.Tensor], **options: Any):
        loss = super().compute_loss(model, inputs, **options)
        self.losses.append(loss.item())
        return loss


def by_transformers(job: Job, model: nn.Module, out: Path) -> Result:
    """The job's steps by transformers' Trainer, in this process, on the CPU."""
    args = job.args
    options = transformers.TrainingArguments(
        output_dir=str(out),
        max_steps=job.steps,
        learning_rate=args.lr,
        weight_decay=args.weight_decay,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=args.clip,
        lr_scheduler_type=args.lr_schedule,
        optim="adamw_torch_fused",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    batches = [inputs(batch) for batch in job.batches(0)]
    trainer = OwnTrainer(batches, model=model, args=options)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return Result(trainer.losses, scores_of(model, job))


def inputs(batch: tokens.Batch) -> dict[str, torch.Tensor]:
    return {"input_ids": batch.input_ids, "labels": batch.labels, **batch.masks}


@torch.no_grad()
def scores_of(model: nn.Module, job: Job) -> dict[str, float]:
    """The mean loss of transformers' model on the held-out labels, and the accuracy on rows."""
    model.eval()
    loss, labelled, right = 0.0, 0, 0
    for batch in tokens.batches(job.evaluation, job.args.batch_size, seed=0, shuffle=False):
        outputs = model(**inputs(batch))
        number = int((batch.labels != IGNORED).sum())
        loss, labelled = loss + outputs.loss.item() * number, labelled + number
        if job.evaluation.row_labels is not None:
            right += int((outputs.logits.argmax(-1) == batch.labels).sum())
    scores = {"loss": loss / labelled}
    if job.evaluation.row_labels is None:
        return scores
    return scores | {"rows": labelled, "accuracy": right / labelled}


def first_weights(job: Job, folder: Path) -> nn.Module:
    """transformers' model with weights of its own drawing, which the engine reads in the folder."""
    torch.manual_seed(job.args.seed)
    model = build(job.config, job.head)
    model.save_pretrained(folder)
    source = Path(tokenizer_of(job.args))
    source = source / "tokenizer.json" if source.is_dir() else source
    shutil.copy(source, folder / "tokenizer.json")
    return model


def of_transformers(flags: dict[str, Any], out: Path) -> Result:
    """Its result, and in OUT/first the weights that it began with."""
    kept = out / "transformers.json"
    if kept.is_file():
        return Result(**json.loads(kept.read_text()))
    shutil.rmtree(out / "first", ignore_errors=True)
    job = prepare(parse(to_words(flags | {"out": out / "job"})))
    model = first_weights(job, out / "first")
    result = by_transformers(job, model, out / "trainer")
    kept.write_text(json.dumps(result._asdict()))
    return result


def of_engine(flags: dict[str, Any], plan: dict[str, int], out: Path) -> Result:
    if (out / "summary.json").is_file():
        run = load_run(out)
    else:
        shutil.rmtree(out, ignore_errors=True)
        nproc = math.prod(plan.values())
        run = launch("scripts/train.py", nproc=nproc, out=out, show=False, **flags, **plan)
    return Result(run.metrics["loss"].tolist(), run.summary["eval"])


def results_of(flags: dict[str, Any], out: Path) -> Iterator[tuple[str, Result]]:
    """Of one seed, way after way, transformers' own first."""
    out.mkdir(parents=True, exist_ok=True)
    yield OWN, of_transformers(flags, out)
    read = flags | {"model": out / "first", "tokenizer": out / "first"}
    for name, plan in PLANS.items():
        yield f"{ENGINE}, {name}", of_engine(read, plan, out / name.replace("=", ""))
    if flags["task"] == "classify-head":
        for name in ("one process", "tp=2"):
            folder = out / f"decoder {name.replace('=', '')}"
            yield f"GPT-J, {name}", of_engine(flags | DECODER, PLANS[name], folder)


def apart(result: Result, own: Result) -> float:
    """The largest difference of a step's loss, of that loss."""
    pairs = zip(result.losses, own.losses, strict=True)
    return max(abs(ours / theirs - 1) for ours, theirs in pairs)


def is_equal(result: Result, own: Result) -> bool:
    """Has this encoder learnt what transformers' own has?"""
    ours, theirs = result.scores, own.scores
    if "accuracy" not in theirs:
        return abs(ours["loss"] / theirs["loss"] - 1) <= ROUNDING
    return abs(ours["accuracy"] - theirs["accuracy"]) <= standard_error(own)


def standard_error(result: Result) -> float:
    """Of an accuracy, as that of so many throws of a coin."""
    accuracy, rows = result.scores["accuracy"], result.scores["rows"]
    return math.sqrt(accuracy * (1 - accuracy) / rows)


def table(found: dict[int, dict[str, Result]]) -> str:
    """A line a way, a column a seed; last how far the losses of an encoder's steps are apart."""
    first = next(iter(found.values()))
    measure, digits = ("accuracy", 3) if "accuracy" in first[OWN].scores else ("loss", 5)
    seeds = [f"held-out {measure}, seed {seed}" for seed in found]
    head, rows = ("", *seeds, "mean", "a step's loss differs by at most"), []
    for way in first:
        values = [of_seed[way].scores[measure] for of_seed in found.values()]
        cells = [f"{value:.{digits}f}" for value in (*values, mean(values))]
        far = max(apart(of_seed[way], of_seed[OWN]) for of_seed in found.values())
        rows.append((way, *cells, f"{far:.0e}" if way.startswith(ENGINE) else ""))
    if measure != "accuracy":
        return markdown(head, rows)
    errors = ", ".join(f"{standard_error(of_seed[OWN]):.3f}" for of_seed in found.values())
    return f"{markdown(head, rows)}\n\nStandard errors of {OWN}, seed by seed: {errors}."


def held_out_lines(data: Path, out: Path) -> tuple[Path, Path]:
    """A text in two files, the last tenth of its lines in the second.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        lines = data.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{data} is no text that can be read: {error}") from None
    cut = len(lines) - math.ceil(HELD_OUT * len(lines))
    out.mkdir(parents=True, exist_ok=True)
    files = out / "train.txt", out / "held_out.txt"
    for file, part in zip(files, (lines[:cut], lines[cut:])):
        file.write_text("".join(part), encoding="utf-8")
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("classify-head", "mlm"))
    parser.add_argument("--data", type=expanded, required=True, help="the file to learn from")
    parser.add_argument("--eval-data", type=expanded, help="the held-out file")
    parser.add_argument("--model", default="bert-tiny", help="a preset; weights are random")
    parser.add_argument("--tokenizer", type=expanded, help="the bundled one")
    parser.add_argument("--seeds", type=count, nargs="+", default=[0])
    for name, size in (("steps", 500), ("batch-size", 64), ("seq-len", 32)):
        parser.add_argument(f"--{name}", type=whole, default=size)
    parser.add_argument("--lr", type=positive, default=5e-4)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    out = args.out.resolve()
    flags = {k: v for k, v in vars(args).items() if k not in ("seeds", "out")}
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        if args.eval_data is None and args.task == "mlm":
            flags["data"], flags["eval_data"] = held_out_lines(args.data, out)
        found: dict[int, dict[str, Result]] = {}
        for seed in args.seeds:
            found[seed] = {}
            for way, result in results_of(flags | {"seed": seed}, out / f"seed {seed}"):
                found[seed][way] = result
                print(f"seed {seed}, {way}: {result.scores}", flush=True)
    except UserError as error:
        refuse(str(error))
    print("", table(found), sep="\n")
    return say_differences(found)


def say_differences(found: dict[int, dict[str, Result]]) -> int:
    """Name each encoder that differs from transformers' own; the exit code."""
    differ = [
        f"seed {seed}, {way}: {result.scores} for {of_seed[OWN].scores}"
        for seed, of_seed in found.items()
        for way, result in of_seed.items()
        if way.startswith(ENGINE) and not is_equal(result, of_seed[OWN])
    ]
    print("", *(differ or [f"The encoders of {ENGINE} learn what that of {OWN} does."]), sep="\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
