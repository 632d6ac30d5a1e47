"""The arguments of a training run, and how a mistake in them is said."""

import argparse
import dataclasses
import inspect
import re
from math import inf, nan
from pathlib import Path
from typing import Any

from helpers.commands import Parser, refuse
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import expanded, load_config
from helpers.engine.plan import DTYPES, ParallelPlan
from helpers.engine.precision.optimizer import LR_SCHEDULES, OPTIMIZERS
from helpers.engine.ranks import DEVICES
from helpers.text.instructions import TEMPLATES
from helpers.watch.watch import EVERY as WATCH_EVERY

# a sentence with one label is a small sample
BATCH_SIZE = {"classify": 128, "lm": 32, "instruct": 32, "mlm": 32, "classify-head": 128}
DIGITS = 20  # Python refuses to read numbers of thousands of digits
A_YEAR_S = 365 * 86400
REVIEWS = "reviews/train.tsv"
BUNDLED = dict.fromkeys(BATCH_SIZE, REVIEWS) | {"instruct": "instructions/train.jsonl"}
AUTO = Path("auto")  # --resume auto, for runs that are started again by machines


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="helpers.train",
        description="Train a language model under a parallel plan.",
        allow_abbrev=False,  # a flag that is cut short is a mistake
    )
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("--model", type=name, default="gptj-tiny", help="preset, folder or hub id")
    add(
        "--tokenizer",
        type=name,
        help="file, folder or hub id; the model's own, else the bundled one",
    )
    add("--data", type=name, help="file or hub data set; the bundled one of the task")
    add("--eval-data", type=name, help="file or hub data set to evaluate on at the end")
    add(
        "--task", choices=tuple(BATCH_SIZE), default="lm", help="mlm and classify-head: of encoders"
    )
    add("--template", choices=tuple(TEMPLATES), default="alpaca", help="of instructions")
    add("--pack", action=switch, default=True, help="let instructions share rows")
    add("--steps", type=whole, help="stop after this many; else after --epochs")
    add("--epochs", type=whole, default=1)
    add("--batch-size", type=whole, help="samples a step, over all ranks; 128 to classify, else 32")
    add("--seq-len", type=whole, default=128)
    add("--lr", type=positive, default=1e-3)
    add("--optimizer", choices=OPTIMIZERS, default="adamw")
    add("--weight-decay", type=from_zero, default=0.01)
    add("--clip", type=positive, default=1.0, help="largest gradient norm")
    add("--lr-schedule", choices=tuple(LR_SCHEDULES), default="linear")
    add("--warmup", type=count, default=0, help="steps over which the learning rate rises")
    add("--seed", type=count, default=0)
    add("--layers", type=whole, help="replaces the preset's")
    add("--hidden", type=whole, help="replaces the preset's width")
    add("--heads", type=whole, help="replaces the preset's")
    add("--lora-rank", type=whole, help="train adapters of this rank beside a frozen model")
    add("--lora-alpha", type=positive, help="their weight is this over the rank; 16")
    add("--lora-dropout", type=from_zero, default=0.0, help="of what goes into adapters")
    add("--quantize", choices=("nf4",), help="hold the frozen model's matrices in 4 bits")
    add("--load-adapters", type=path, help="go on with the adapters in this folder")
    add("--merge", action=switch, default=False, help="write the model with adapters in it, too")
    add("--out", required=True, type=path, help="folder of the run")
    add("--from-scratch", action=switch, default=False, help="random weights, whatever there are")
    add("--save", action=switch, default=False, help="write OUT/model, or OUT/adapters")
    add("--save-dtype", choices=tuple(DTYPES), help="of the files; the model's own")
    add("--checkpoint-every", type=whole, help="steps; none are written without it")
    add("--keep", type=whole, default=2, help="checkpoints that stay")
    add("--background", action=switch, default=False, help="write checkpoints while training")
    add("--timeline", action=switch, default=False, help="write when which stage ran")
    add("--profile", type=steps, metavar="FIRST:LAST", help="steps to trace; writes what is slow")
    looks = f"look at every N-th step for what goes wrong, at every {WATCH_EVERY}th by default"
    add("--watch", nargs="?", const=WATCH_EVERY, type=whole, metavar="N", help=looks)
    add("--replay-check", type=whole, metavar="N", help="take every N-th step twice and compare")
    add("--device", choices=DEVICES, default="auto", help="auto: GPUs where there are any")
    prints = "print every N-th step's line of metrics.jsonl, and the evaluation's"
    add("--log-every", type=whole, metavar="N", help=prints)
    add("--timeout", type=seconds, help="seconds that a rank waits for the others")
    add("--track", type=names, default=(), help="tensorboard, mlflow, trackio, with commas")
    modes, says = ("warn", "refuse"), "measure the ranks first; refuse: those of which one is slow"
    add("--preflight", nargs="?", const="refuse", choices=modes, help=says)
    add("--preflight-record", type=path, help="of calibrate(), to hold the ranks against, too")
    kinds = "from OUT, or from this run's folder; auto: from OUT once it holds a checkpoint"
    add("--resume", nargs="?", const=Path(), type=path, help=kinds)
    plan = parser.add_argument_group("the plan", "degrees of each axis, and switches")
    said = said_of_fields(ParallelPlan)
    for field in dataclasses.fields(ParallelPlan):
        add_plan_field(plan, field, said.get(field.name))
    args = parser.parse_args(argv)
    for flag, value in vars(args).items():
        if value == []:  # what argparse of Python 3.11 makes of --flag=--
            parser.error(f"argument --{flag.replace('_', '-')}: expected one argument")
    check_adapters(args)
    args.batch_size = args.batch_size or BATCH_SIZE[args.task]
    return args


def check_adapters(args: argparse.Namespace) -> None:
    """Refuse flags of adapters where none are asked for, and those that say a thing twice."""
    if args.load_adapters is not None:
        for flag in ("lora_rank", "lora_alpha", "lora_dropout"):
            if getattr(args, flag):
                refuse(f"--{flag.replace('_', '-')} is in the folder of --load-adapters: give one")
    elif args.lora_rank is None:
        for flag in ("lora_alpha", "lora_dropout", "quantize", "merge"):
            if getattr(args, flag):
                refuse(f"--{flag.replace('_', '-')} needs adapters: give --lora-rank")
    written = "save" if args.lora_rank is args.load_adapters is None else "merge"
    if args.save_dtype and not getattr(args, written):
        refuse(f"--save-dtype is of a whole model's files: give --{written}")
    if args.optimizer != "adamw" and (args.checkpoint_every or args.resume is not None):
        refuse(f"checkpoints hold the moments of adamw alone, not of {args.optimizer}")


def config_of(args: argparse.Namespace) -> Any:
    """The configuration of --model with --layers, --hidden and --heads.

    Raises:
        UserError: there is no such model.
    """
    return load_config(
        args.model,
        num_hidden_layers=args.layers,
        hidden_size=args.hidden,
        num_attention_heads=args.heads,
    )


def said_of_fields(kind: type) -> dict[str, str]:
    """What a class's docstring says of each field, for --help."""
    lines = inspect.cleandoc(kind.__doc__ or "").splitlines()
    said: dict[str, str] = {}
    for line in lines:
        field = re.match(r" *(\w+): (.+)", line)
        if field:
            name, said[field[1]] = field[1], field[2].replace("%", "%%")
        elif line.startswith(" ") and said:
            said[name] += " " + line.strip().replace("%", "%%")
    return said


def add_plan_field(group: Any, field: dataclasses.Field, says: str | None) -> None:
    """A flag for a field of the plan: `dp_shard` is --dp-shard; switches are --x and --no-x."""
    options: dict[str, Any] = {"default": field.default, "help": says}
    if isinstance(field.default, bool):
        options["action"] = argparse.BooleanOptionalAction
    elif isinstance(field.default, int):
        options |= {"type": whole if field.default else count, "metavar": "N"}
    else:
        options["help"] = f"{says} By default {field.default}."
    group.add_argument("--" + field.name.replace("_", "-"), **options)


def path(text: str) -> Path:
    """A file or folder that can be, with ~ as the shell reads it."""
    try:
        return expanded(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def name(text: str) -> str:
    """What may be a file, and may stand for something else: a preset, a data set."""
    path(text)
    return text


def whole(text: str) -> int:
    """A whole number of at least 1, below 2^32."""
    return _whole(text, 1, "of at least 1, below 2^32")


def count(text: str) -> int:
    """A whole number from 0 to 2^32 - 1."""
    return _whole(text, 0, f"from 0 to {2**32 - 1}")


def _whole(text: str, least: int, words: str) -> int:
    if not (
        text.isascii() and text.isdecimal() and len(text) <= DIGITS and least <= int(text) < 2**32
    ):
        raise argparse.ArgumentTypeError(f"{text!r:.60} is not a whole number {words}")
    return int(text)


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def steps(text: str) -> tuple[int, int]:
    """FIRST:LAST, both included and counted from 1."""
    first, _, last = text.partition(":")
    short = all(
        part.isascii() and part.isdecimal() and len(part) <= DIGITS for part in (first, last)
    )
    if not (short and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(
            f"{text!r:.60} is not FIRST:LAST, two steps in their order"
        )
    return int(first), int(last)


def positive(text: str) -> float:
    """A number above 0."""
    if not 0 < _number(text) < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return float(text)


def seconds(text: str) -> float:
    """A number above 0 and at most a year's."""
    if positive(text) > A_YEAR_S:
        raise argparse.ArgumentTypeError(f"{text!r:.60} is more than a year")
    return float(text)


def from_zero(text: str) -> float:
    """A number of at least 0."""
    if not 0 <= _number(text) < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return float(text)


def _number(text: str) -> float:
    if not text.isascii() or "_" in text:
        return nan
    try:
        return float(text)
    except ValueError:
        return nan
