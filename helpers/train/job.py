"""What a training run is to do: the arguments, checked, with the data that they name."""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any

from helpers.commands import is_first
from helpers.engine.adapters.lora import CONFIG as ADAPTERS
from helpers.engine.adapters.lora import rank_and_alpha
from helpers.engine.adapters.qlora import Adapting
from helpers.engine.admission.admitted import check_next_words
from helpers.engine.admission.packed_rows import check_documents_of
from helpers.engine.context.check import check_rotary
from helpers.engine.errors import UserError, check_access
from helpers.engine.files import checkpoints
from helpers.engine.files.manifest import list_checkpoints, read_manifest
from helpers.engine.files.run_record import check_folder, claim, versions
from helpers.engine.files.weight_files import WeightFiles
from helpers.engine.files.weights import check_plain, find_weights
from helpers.engine.models.architecture import text_config
from helpers.engine.models.configurations import (
    check_length,
    check_model,
    code_left,
    expanded,
    presets,
)
from helpers.engine.models.objectives import CAUSAL, OBJECTIVES
from helpers.engine.parallelize import lay_out
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.compiling import check_compiler
from helpers.engine.ranks import world_size
from helpers.planner.cost import train_flops_per_token
from helpers.planner.measure.calibrate import load_cluster
from helpers.planner.shape.families import model_shape
from helpers.text import tokens
from helpers.text.bundled import bundled
from helpers.text.encoder_rows import SpecialTokens
from helpers.text.label_words import classes
from helpers.text.readers import Example
from helpers.text.rows import TokenData
from helpers.text.token_files import tokenized
from helpers.text.tokenizer import Tokenizer, load_tokenizer
from helpers.train.arguments import AUTO, BUNDLED, config_of
from helpers.train.same_model import of_model
from helpers.train.tracking import check_trackers


@dataclasses.dataclass
class Job:
    """Everything that is known, and found right, before a process group or a model is made."""

    args: argparse.Namespace
    plan: ParallelPlan
    config: Any
    train: TokenData
    evaluation: TokenData | None
    files: WeightFiles | None  # of a folder
    resume_from: Path | None
    adapting: Adapting | None = None
    own_folder: IO[str] | None = None  # open where the run goes on in a folder that is there
    goes_on: bool = False  # in its own folder
    resumed_after: int = 0  # steps

    def claim_folder(self) -> None:
        """On the first rank: make the run's folder, and keep other runs out of it."""
        if self.own_folder is None and is_first():
            self.own_folder = claim(self.args.out)
            check_folder(self.args.out, self.goes_on)  # as the run that had it a moment ago left it

    @property
    def steps(self) -> int:
        an_epoch = tokens.steps_per_epoch(self.train, self.args.batch_size)
        return self.args.steps or an_epoch * self.args.epochs

    def batches(self, done: int) -> Iterator[tokens.Batch]:
        """The run's global batches after `done` of them: epoch after epoch, up to `steps`."""
        args = self.args
        epoch, start = divmod(done, tokens.steps_per_epoch(self.train, args.batch_size))
        epochs = (
            tokens.batches(self.train, args.batch_size, seed=args.seed, epoch=e, start=s)
            for e, s in zip(itertools.count(epoch), itertools.chain([start], itertools.repeat(0)))
        )
        return itertools.islice(itertools.chain.from_iterable(epochs), self.steps - done)

    @property
    def flops_per_token(self) -> Callable[[int], float] | None:
        """Of a sequence length; None for a model whose FLOPs no formula counts."""
        try:
            shape = model_shape(self.config)
        except UserError:
            return None
        return partial(train_flops_per_token, shape)

    @cached_property
    def weights(self) -> str:
        """Where the first weights come from, in words."""
        if self.files is not None:
            return f"{self.args.model}, digest {self.files.digest}"
        return f"random, of seed {self.args.seed}" if self.starts_random else self.args.model

    @property
    def head(self) -> str:
        """The task that the model's head is for: that of a causal language model, unless an
        encoder's."""
        return head_of(self.args.task)

    @property
    def starts_random(self) -> bool:
        """Are the first weights random?"""
        return random_start(self.args)

    def facts(self) -> dict[str, Any]:
        """What must be the same on every rank."""
        arguments = {f"--{name.replace('_', '-')}": str(v) for name, v in vars(self.args).items()}
        evaluation = self.evaluation and self.evaluation.digest
        data = {"data of digest": self.train.digest, "eval data of digest": evaluation}
        return arguments | data | {"weights": self.weights} | versions()

    def settings(self) -> dict[str, Any]:
        """What a resumed run may change, and is told of."""
        names = ("lr", "lr_schedule", "warmup", "weight_decay", "clip", "optimizer", "precision")
        values = {name: getattr(self.args, name) for name in (*names, "lora_dropout")}
        return values | {"steps": self.steps}

    def fixed(self) -> dict[str, Any]:
        """What a resumed run must share with the one that it goes on from."""
        names = ("batch_size", "seq_len", "seed", "task", "template", "pack", "quantize")
        return {
            **of_model(self.config),
            **{name: getattr(self.args, name) for name in names},
            "adapters": self.adapting and [self.adapting.rank, self.adapting.alpha],
            "tokens": len(self.train.ids),
            "data of digest": self.train.digest,
            "base": self.adapting and self.weights,
        }


def random_start(args: argparse.Namespace) -> bool:
    """Are the first weights random? Of these no files are looked for."""
    return args.from_scratch or args.model in presets()


def prepare(args: argparse.Namespace) -> Job:
    """Check all input and read the data. Raises UserError; writes nothing, but the lock of a folder
    that a run goes on in."""
    if args.resume is not None:
        check_access(folder := args.out / "checkpoints")
        if folder.is_file():
            raise UserError(f"{folder} is a file, and a folder of checkpoints is needed there")
    # before its checkpoints are looked at, which a run that is under way there replaces
    there = args.resume is not None and (args.out / "checkpoints").is_dir()
    own_folder = claim(args.out) if there and is_first() else None
    resume_from = checkpoint_of(args)
    goes_on = args.resume == AUTO or (resume_from is not None and is_inside(resume_from, args.out))
    if is_first():
        check_folder(args.out, goes_on)
    config = config_of(args)
    if is_first() and (left := code_left(config)):
        print(
            f"{left} of {args.model} is not run: transformers' own {config.model_type} is trained"
        )
    plan = ParallelPlan(
        **{field.name: getattr(args, field.name) for field in dataclasses.fields(ParallelPlan)}
    )
    plan.validate(config, world_size=world_size(), task=head_of(args.task))
    if args.preflight_record is not None:
        load_cluster(args.preflight_record)  # what is no such record is said before anything starts
    if is_first():
        check_trackers(args.track)
    if plan.compile:
        check_compiler()
    check_model(config, head_of(args.task))
    if head_of(args.task) == "lm":
        check_next_words(config)
    adapting = adapting_of(args)
    if adapting is not None:
        adapting.check(plan)
    check_length(config, args.seq_len)
    tokenizer = load_tokenizer(tokenizer_of(args))
    files = find_local_weights(args)  # what is missing is said before anything starts
    if files is not None:
        check_plain(config, args.model)
    fit_vocabulary(config, args, tokenizer)
    if args.task == "instruct" and args.pack:
        check_documents_of(config, lay_out)
    check_rotary(config, args.seq_len, plan, args.task == "instruct" and args.pack)
    data = args.data or bundled(BUNDLED[args.task])
    examples = read_examples(data, "train", args)
    labels = learnt_classes(examples, config, args)
    train = tokenized(examples, tokenizer, args.task, args.seq_len, labels, args.pack)
    if args.task == "classify-head":
        config.id2label = dict(enumerate(train.label_names))
        config.label2id = {name: number for number, name in config.id2label.items()}
    if train.truncated and is_first():
        print(_cut(args.task, train, args.seq_len))
    evaluation = None
    if args.eval_data:
        examples = read_examples(args.eval_data, "validation", args)
        labels = train.label_names or None
        evaluation = tokenized(examples, tokenizer, args.task, args.seq_len, labels, args.pack)
    job = Job(args, plan, config, train, evaluation, files, resume_from, adapting)
    job.own_folder, job.goes_on = own_folder, goes_on
    if args.profile and args.profile[1] > job.steps:
        raise UserError(f"--profile asks for step {args.profile[1]}: the run takes {job.steps}")
    if resume_from is not None:
        done = read_manifest(resume_from, job.fixed())["step"]
        if done > job.steps:
            raise UserError(
                f"{resume_from} has taken {done} steps already: --steps {job.steps} is behind it"
            )
        job.resumed_after = done
    return job


def _cut(task: str, train: TokenData, seq_len: int) -> str:
    """What is said of examples that are longer than a row."""
    if task != "instruct":
        return f"{train.truncated} of {len(train)} sentences are cut to {seq_len} tokens"
    return (
        f"{train.truncated} instructions are longer than {seq_len} tokens and are cut: what stands "
        "behind a cut is trained without its prompt (--seq-len)"
    )


def checkpoint_of(args: argparse.Namespace) -> Path | None:
    """The checkpoint that the run goes on from."""
    if args.resume is None or (
        args.resume == AUTO and not list_checkpoints(args.out / "checkpoints")
    ):
        return None
    return checkpoints.pick(args.out if args.resume in (Path(), AUTO) else args.resume)


def is_inside(path: Path, folder: Path) -> bool:
    """By their names, or by where links lead."""
    return (
        folder.absolute() in path.absolute().parents or folder.resolve() in path.resolve().parents
    )


def adapting_of(args: argparse.Namespace) -> Adapting | None:
    """The adapters that the arguments ask for."""
    if args.load_adapters is not None:
        rank, alpha = rank_and_alpha(args.load_adapters)
    elif args.lora_rank is not None:
        rank, alpha = args.lora_rank, args.lora_alpha or 16.0
    else:
        return None
    return Adapting(rank, alpha, args.lora_dropout, args.quantize, args.load_adapters)


def learnt_classes(
    examples: list[Example], config: Any, args: argparse.Namespace
) -> tuple[str, ...] | None:
    """In its order, the classes of a head that has learnt those of the examples; else None."""
    if args.task != "classify-head" or random_start(args):
        return None
    names = classes(examples)
    own = tuple(name for _, name in sorted(config.id2label.items()))
    return own if len(names) > 1 and set(names) <= set(own) else None


def read_examples(source: str | Path, split: str, args: argparse.Namespace) -> list[Example]:
    name = str(source)
    if name.startswith("data/") and not Path(name).exists():
        source = bundled(name.removeprefix("data/"))  # the project's own, from any folder
    return tokens.load_examples(source, args.task, split=split, template=args.template)


def tokenizer_of(args: argparse.Namespace) -> str:
    """Where the tokenizer is: the model's own where it comes with one, else the bundled one."""
    if args.tokenizer:
        return str(args.tokenizer)
    folder = expanded(args.model)
    named = args.model in presets()
    own = not named and (not folder.is_dir() or (folder / "tokenizer.json").is_file())
    return str(folder) if own else str(bundled("tokenizer"))


def find_local_weights(args: argparse.Namespace) -> WeightFiles | None:
    """The files of weights in a folder; None for random weights, and for the hub's.

    Raises:
        UserError: the folder lacks weights, or has adapters that nobody asked for.
    """
    if not expanded(args.model).is_dir() and args.model not in presets():
        return None
    files = find_weights(args.model, args.from_scratch)
    if files and args.load_adapters is None and (files.folder / ADAPTERS).is_file():
        raise UserError(
            f"{args.model} holds {ADAPTERS} beside its weights, and transformers would put those "
            f"adapters in: give --load-adapters {args.model}, or take that file away"
        )
    return files


def fit_vocabulary(config: Any, args: argparse.Namespace, tokenizer: Tokenizer) -> None:
    """Widen the vocabulary of a model without weights to the tokenizer's number of ids, and give it
    the tokenizer's special tokens: where a text ends, or what an encoder's rows are padded with.

    Raises:
        UserError: the model has weights, and fewer rows than the tokenizer has ids, or other
            padding.
    """
    random = random_start(args)
    special = None if head_of(args.task) == "lm" else SpecialTokens.of(tokenizer)
    ids = tokenizer.vocab_size if special is None else special.vocab_size
    text = text_config(config)
    if ids > text.vocab_size:
        if not random:
            raise UserError(
                f"the tokenizer has {ids} ids but {args.model} has weights for "
                f"{text.vocab_size}: give the model's own tokenizer"
            )
        text.vocab_size = ids
    if special is None:
        if random:  # the source's are of another vocabulary; what pads would never be trained
            text.eos_token_id = tokenizer.end_id
            text.bos_token_id = next(iter(tokenizer.begin), tokenizer.end_id)
            text.pad_token_id = None
        return
    if special.moved and not random and special.vocab_size != text.vocab_size:
        raise UserError(
            f"the tokenizer has no tokens that it calls cls, sep, pad and mask, and {args.model} "
            "was trained with some: give the model's own tokenizer"
        )
    if special.pad == text.pad_token_id:
        return
    if not random:
        raise UserError(
            f"{args.model} pads with token {text.pad_token_id}, the tokenizer with "
            f"{special.pad}: give the model's own tokenizer"
        )
    text.pad_token_id = special.pad


def head_of(task: str) -> str:
    """The task of models/objectives.py that a model's head must be for: causal language models
    follow instructions, too, and say the word that a class stands for."""
    return task if task in OBJECTIVES else CAUSAL.task
