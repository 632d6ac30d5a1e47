"""Train a language model under a parallel plan. This is what torchrun starts.

    torchrun --nproc-per-node 2 scripts/train.py --model gptj-tiny --tp 2 --steps 50 --out runs/one

Exit codes: 0 done; 2 the arguments or the plan are wrong (one line, nothing started or written);
1 it failed (the traceback).
"""

import time

STARTED = time.perf_counter()  # before the imports: they are a part of the bill

import argparse  # noqa: E402
import itertools  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

import torch  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import record  # noqa: E402

from helpers.engine import data, weights  # noqa: E402
from helpers.engine.errors import UserError  # noqa: E402
from helpers.engine.optimizer import SCHEDULES  # noqa: E402
from helpers.engine.plan import ParallelPlan, distributed, pick_device  # noqa: E402
from helpers.engine.record import Clock, Metrics, check_folder, versions, write_summary  # noqa: E402
from helpers.engine.trainer import Trainer, over_ranks, peak_memory_bytes  # noqa: E402
from helpers.planner.cost import mfu, train_flops_per_token  # noqa: E402
from helpers.planner.hardware import peak_flops  # noqa: E402
from helpers.planner.shape import model_shape  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
FIRST = os.environ.get("RANK", "0") == "0"


class Parser(argparse.ArgumentParser):
    """One line and exit code 2, from the first rank alone."""

    def error(self, message: str) -> NoReturn:
        refuse(message)


def refuse(message: str) -> NoReturn:
    """Say what is wrong with the input, once, and leave."""
    if FIRST:
        print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", default="gptj-tiny", help="preset, folder or hub id")
    add("--tokenizer", help="file, folder or hub id; the model's own, else the bundled one")
    add("--data", default=str(ROOT / "data/reviews/train.tsv"), help="file or hub data set")
    add("--eval-data", help="file or hub data set to evaluate on at the end")
    add("--task", choices=("lm", "classify"), default="lm")
    add("--steps", type=whole, help="stop after this many; else after --epochs")
    add("--epochs", type=whole, default=1)
    add("--batch-size", type=whole, default=32, help="samples a step, over all ranks")
    add("--seq-len", type=whole, default=128)
    add("--lr", type=positive, default=1e-3)
    add("--weight-decay", type=float, default=0.01)
    add("--clip", type=positive, default=1.0, help="largest gradient norm")
    add("--schedule", choices=tuple(SCHEDULES), default="linear")
    add("--warmup", type=int, default=0, help="steps over which the learning rate rises")
    add("--seed", type=int, default=0)
    add("--layers", type=whole, help="replaces the preset's")
    add("--hidden", type=whole, help="replaces the preset's width")
    add("--heads", type=whole, help="replaces the preset's")
    add("--out", required=True, type=Path, help="folder of the run")
    add("--save", action="store_true", help="write the trained model to OUT/model")
    for axis in ("tp",):
        add("--" + axis.replace("_", "-"), type=whole, default=1)
    return parser.parse_args(argv)


def whole(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


@dataclass
class Job:
    """Everything that is known, and found right, before a process group or a model is made."""

    args: argparse.Namespace
    plan: ParallelPlan
    config: Any
    train: data.TokenData
    evaluation: data.TokenData | None

    @property
    def steps(self) -> int:
        an_epoch = data.steps_per_epoch(self.train, self.args.batch_size)
        return self.args.steps or an_epoch * self.args.epochs

    def batches(self) -> Iterator[data.Batch]:
        """The run's global batches: epoch after epoch, `steps` of them."""
        args = self.args
        epochs = (
            data.batches(self.train, args.batch_size, seed=args.seed, epoch=epoch)
            for epoch in itertools.count()
        )
        return itertools.islice(itertools.chain.from_iterable(epochs), self.steps)


def prepare(args: argparse.Namespace) -> Job:
    """Check all input and read the data. Raises UserError; writes nothing."""
    if FIRST:
        check_folder(args.out)
    overrides = {
        "num_hidden_layers": args.layers,
        "hidden_size": args.hidden,
        "num_attention_heads": args.heads,
    }
    config = weights.load_config(args.model, **overrides)
    plan = ParallelPlan(tp=args.tp)
    plan.validate(config, world_size=int(os.environ.get("WORLD_SIZE", 1)))
    weights.check_length(config, args.seq_len)
    tokenizer = data.load_tokenizer(args.tokenizer or default_tokenizer(args.model))
    weights.fit_vocabulary(config, args.model, tokenizer.vocab_size)
    train = tokens(args.data, "train", args, tokenizer)
    evaluation = None
    if args.eval_data:
        labels = train.label_names or None
        evaluation = tokens(args.eval_data, "validation", args, tokenizer, labels)
    return Job(args, plan, config, train, evaluation)


def tokens(source, split, args, tokenizer, labels=None) -> data.TokenData:
    examples = data.load_examples(source, args.task, split=split)
    return data.tokenize(examples, tokenizer, args.task, args.seq_len, labels)


def default_tokenizer(model: str) -> str:
    """The model's own tokenizer where it comes with one, else the bundled one."""
    folder = Path(weights.resolve(model))
    if folder.is_dir() and not (folder / "tokenizer.json").is_file():
        return str(ROOT / "data/tokenizer")
    return str(folder)


def run(job: Job, clock: Clock) -> None:
    args, device = job.args, pick_device()
    began = time.perf_counter()
    with distributed(job.plan, device) as mesh:
        if FIRST:
            args.out.mkdir(parents=True, exist_ok=True)
        clock.phases_s["start"] += time.perf_counter() - began
        with clock.phase("load"):
            model = weights.load_model(
                args.model, job.plan, mesh, config=job.config, seed=args.seed, device=device
            )
            trainer = Trainer(
                model,
                job.plan,
                mesh,
                lr=args.lr,
                weight_decay=args.weight_decay,
                clip=args.clip,
                schedule=args.schedule,
                warmup_steps=args.warmup,
                total_steps=job.steps,
            )
        metrics = Metrics(args.out / "metrics.jsonl" if FIRST else None)
        with clock.phase("train"):
            train(job, trainer, metrics, device)
        metrics.close()
        scores = None
        if job.evaluation is not None:
            with clock.phase("evaluate"):
                scores = evaluate(job, trainer)
        if args.save:
            with clock.phase("save"):
                weights.save_model(model, args.out / "model")
        finish(job, trainer, metrics, clock, scores, device)


def train(job: Job, trainer: Trainer, metrics: Metrics, device: torch.device) -> None:
    """Take the run's steps, a line of metrics each."""
    peak = peak_flops(device_name(device), torch.float32)
    for batch in job.batches():
        result = trainer.step(batch.input_ids, batch.labels)
        per_second = batch.tokens / result.step_s
        flops = train_flops_per_token(model_shape(job.config), batch.input_ids.shape[1])
        metrics.add(
            {
                "step": result.step,
                "loss": result.loss,
                "grad_norm": result.grad_norm,
                "lr": result.lr,
                "tokens": batch.tokens,
                "samples": batch.samples,
                "step_s": result.step_s,
                "tokens_per_s": per_second,
                "mfu": peak and mfu(per_second, flops, job.plan.world_size, peak),
                "peak_memory_bytes": max(over_ranks(peak_memory_bytes(device))),
            }
        )


def evaluate(job: Job, trainer: Trainer) -> dict[str, Any]:
    found = job.evaluation
    batches = data.batches(found, job.args.batch_size, seed=0, shuffle=False)
    answers = list((found.label_token_ids or {}).values())
    pairs = ((batch.input_ids, batch.labels) for batch in batches)
    return trainer.evaluate(pairs, answers or None) | {"samples": len(found)}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def finish(job, trainer, metrics, clock, scores, device) -> None:
    """Gather what each rank measured, and let the first write summary.json."""
    peaks = over_ranks(peak_memory_bytes(device))
    states = over_ranks(trainer.state_bytes())
    if not FIRST:
        return
    summary = {
        "plan": job.plan.to_dict(),
        "model": job.args.model,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "world_size": job.plan.world_size,
        "device": device_name(device),
        "phases_s": clock.phases_s,
        "tokens_per_s": metrics.median_rate("tokens"),
        "samples_per_s": metrics.median_rate("samples"),
        "peak_memory_bytes": peaks,
        "state_bytes": states,
        "final_loss": metrics.lines[-1]["loss"],
        "eval": scores,
        "versions": versions(),
        "status": "done",
    }
    write_summary(job.args.out / "summary.json", summary)
    print(f"done: {len(metrics.lines)} steps, loss {summary['final_loss']:.4f}, {scores or ''}")


@record
def main() -> None:
    clock = Clock()
    try:
        job = prepare(parse())
    except UserError as error:
        refuse(str(error))
    clock.phases_s["start"] = time.perf_counter() - STARTED
    run(job, clock)


if __name__ == "__main__":
    main()
