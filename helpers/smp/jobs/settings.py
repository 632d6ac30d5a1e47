"""Hyperparameters of a job, and the defaults of its script, as flags of helpers.train."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from helpers.engine.precision.optimizer import LR_SCHEDULES
from helpers.smp.configuration import SmpConfig
from helpers.smp.reading.interpreter import Interpreter
from helpers.smp.reading.values import is_known, unknown_in
from helpers.tables import read_table

HERE = Path(__file__).parent
FALSE = (False, 0, "False", "false", "0", None)
SCHEDULE_WORDS = {"constant_with_warmup": "constant", "cosineannealing": "cosine"}
SHARDED = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "no_shard": 0}
SWITCHES = {"activation": "full", "quantize": "nf4"}
TRAINER = "transformers.TrainingArguments"
TRAINER_DEFAULTS = {"learning_rate": 5e-5, "weight_decay": 0.0}  # where ours are others
OF_OPTIMIZER = ("lr", "weight_decay")
NO_CLIP = 1e9  # where others write 0 for off: no norm is larger


@dataclass(frozen=True)
class Flag:
    """A hyperparameter's name, the flag that it becomes, and how its value is read."""

    name: str
    flag: str
    how: str


@dataclass(frozen=True)
class LeftOut:
    """A hyperparameter that has no flag, and why."""

    name: str
    words: str


@dataclass(frozen=True)
class Setting:
    """A hyperparameter, what became of it, and the flag's value if it has one."""

    name: str
    value: Any
    words: str
    flag: str = ""
    given: Any = None


@dataclass(frozen=True)
class Family:
    """A model that cannot be trained here; `pattern` is of a class or a model's name."""

    pattern: str
    family: str
    words: str


@cache
def flags() -> dict[str, Flag]:
    return {row.name: row for row in read_table(HERE / "settings.csv", Flag)}


@cache
def left_out() -> dict[str, str]:
    return {row.name: row.words for row in read_table(HERE / "settings_left_out.csv", LeftOut)}


def plain(name: str) -> str:
    """A hyperparameter's name as the tables have it."""
    return name.lower().lstrip("-").replace("-", "_")


def foreign_family(*names: str) -> Family | None:
    """The family of a model's class or name that the engine does not train."""
    for row in read_table(HERE / "families.csv", Family):
        if any(re.search(row.pattern, name) for name in names):
            return row
    return None


def of_script(script: Interpreter | None) -> dict[str, Any]:
    """What a script sets where its job says nothing: arguments of its optimizer and of Hugging
    Face's Trainer, then the defaults of its own arguments. Values that are not known are left out.
    """
    if script is None:
        return {}
    last = [times[-1] for times in script.calls.values()]
    trainers = [one.kwargs for one in last if one.dotted == TRAINER]
    optimizers = [one.kwargs for one in last if one.dotted.endswith((".Adam", ".AdamW"))]
    found: dict[str, Any] = {}
    for given in (
        *trainers,
        *({name: one[name] for name in OF_OPTIMIZER if name in one} for one in optimizers),
        *script.parsed,
        *(TRAINER_DEFAULTS for _ in trainers),
    ):
        for name, value in given.items():
            if is_known(value) and value is not None:
                found.setdefault(name, value)
    return found


class Settings:
    """Reads hyperparameters into flags.

    Args:
        dp: data ranks of the plan.
        config: of the library, which says whose a batch is.
    """

    def __init__(self, dp: int = 1, config: SmpConfig | None = None) -> None:
        self.dp, self.config = dp, config
        self.rows: list[Setting] = []

    def read(self, hyperparameters: Mapping[Any, Any]) -> dict[str, Any]:
        """Flags by their names, with _ for -."""
        found: dict[str, Any] = {}
        for key, value in hyperparameters.items():
            if not isinstance(key, str):
                continue
            setting = self._one(key, value)
            self.rows.append(setting)
            if setting.flag and setting.flag not in found and setting.given is not None:
                found[setting.flag] = setting.given
        self._late(found, {plain(k): v for k, v in hyperparameters.items() if isinstance(k, str)})
        return found

    def _one(self, key: str, value: Any) -> Setting:
        name = plain(key)
        row = flags().get(name)
        if row is None:
            words = left_out().get(
                name, "no flag of helpers.train is like it: it is the script's own"
            )
            return Setting(key, value, words)
        if not is_known(value):
            return Setting(
                key, value, f"give --{_dashed(row.flag)}: {unknown_in(value)} is not in the file"
            )
        given, words = self.value(row, value)
        return Setting(key, value, words or f"--{_dashed(row.flag)} {given}", row.flag, given)

    def value(self, row: Flag, value: Any) -> tuple[Any, str]:
        """The flag's value; or None, and why there is none."""
        if row.how in ("count", "per device", "per rank", "accumulation"):
            number = _number(value)
            if number is None or number != int(number) or number < 0:
                return None, f"{value!r} is no count"
            return self._count(row, int(number))
        if row.how in ("number", "share"):
            number = _number(value)
            if number is None:
                return None, f"{value!r} is no number"
            if row.flag == "clip" and not number:
                return NO_CLIP, f"off: --clip {NO_CLIP:g}, and no norm is larger"
            return number, "--warmup: this share of the steps" if row.how == "share" else ""
        if row.how == "switch":
            on = value not in FALSE
            if row.flag == "precision":
                return (row.name, "") if on else (None, "off: the plan's precision")
            if row.flag in SWITCHES:
                return (SWITCHES[row.flag], "") if on else (None, "off")
            return (True, f"--{_dashed(row.flag)}") if on else (None, "off")
        if row.how == "word":
            text = str(value)
            return (text, "") if text and text != "..." else (None, "a placeholder")
        return getattr(self, f"_{row.how}")(str(value))

    def _count(self, row: Flag, number: int) -> tuple[Any, str]:
        if number == 0 and row.flag != "warmup" and row.flag != "seed":
            return None, "0: off"
        if row.how == "per device":
            whole = number * self.dp
            return whole, f"--batch-size {whole}: {number} on each of {self.dp} data ranks"
        if row.how == "per rank":
            whole = self.config.global_batch(number) if self.config else number * self.dp
            return whole, f"--batch-size {whole}: {number} for each rank with samples of its own"
        if row.how == "accumulation":
            if number == 1:
                return None, "1: nothing is accumulated"
            return number, f"--microbatches {number}, and --batch-size times {number}"
        return number, ""

    def _schedule(self, text: str) -> tuple[Any, str]:
        word = SCHEDULE_WORDS.get(text.lower(), text.lower())
        if word in LR_SCHEDULES:
            return word, ""
        return None, f"{text}: there is {', '.join(LR_SCHEDULES)}"

    def _optimizer(self, text: str) -> tuple[Any, str]:
        if "8bit" in text.lower():
            return "adamw8bit", ""
        if "adamw" in text.lower():
            return "adamw", ""
        return None, f"{text}: there is adamw and adamw8bit"

    def _fsdp(self, text: str) -> tuple[Any, str]:
        kind = next((kind for kind in SHARDED if kind in text.lower()), None)
        if kind is None:
            return None, f"{text!r} is no way to shard that is known"
        if not SHARDED[kind]:
            return None, "no_shard: replicas"
        return SHARDED[kind], f"dp_shard of the plan with --zero-stage {SHARDED[kind]}"

    def _late(self, found: dict[str, Any], given: dict[str, Any]) -> None:
        """What depends on other settings: a warm-up's share of the steps, accumulated batches."""
        if isinstance(found.get("warmup"), float):
            steps = _number(given.get("lr_decay_iters")) or found.get("steps")
            share = found.pop("warmup")
            if steps or not share:
                found["warmup"] = round(share * (steps or 0))
            else:
                words = f"not held, as the steps are not known: give --warmup N, {share:g} of them"
                self.rows = [_told(row, words) if row.given == share else row for row in self.rows]
        if "microbatches" in found and "batch_size" in found:
            found["batch_size"] *= found["microbatches"]
        if any((row.flag, row.given) == ("precision", "fp8") for row in self.rows):
            found["precision"] = "fp8"  # bf16 beside it is for all but the blocks' products


def _told(row: Setting, words: str) -> Setting:
    return replace(row, words=words, given=None) if row.flag == "warmup" else row


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == number and abs(number) < 1e15 else None


def _dashed(flag: str) -> str:
    return flag.replace("_", "-")
