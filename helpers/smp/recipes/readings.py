"""What each key of a recipe says, by the table keys.csv: flags, the plan, machines, the model."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from helpers.smp.jobs.distributions import Machines
from helpers.smp.jobs.settings import Flag, Settings
from helpers.smp.reading.catalogue import CONVERTED, LEFT_OUT, REFUSED
from helpers.smp.reading.values import is_known, unknown_in
from helpers.tables import read_table

HERE = Path(__file__).parent
PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "bf16-true": "bf16"}
PRECISIONS |= {"16": "fp16", "16-mixed": "fp16", "fp16": "fp16"}
PRECISIONS |= {"32": "fp32", "32-true": "fp32", "fp32": "fp32", "False": "fp32"}
OF_GPUS = ("gpu", "auto", "cuda")
OF_PLAN = ("activation", "precision", "offload")
AFTER_THE_PLAN = ("per device", "micro", "accumulation")
SWITCHES = ("track", "half", "zero1", "sequence", "fp8")  # nothing where they are not true
LAST = ("share",)  # read when the others have said all
ADAPTERS = ("model.peft.", "training_config.model_config.peft_config.")
OF_ADAPTERS = ("lora_rank", "lora_alpha", "lora_dropout", "merge")
Judged = tuple[str, str, str]  # a verdict, what the key became, what to do by hand


@dataclass(frozen=True)
class Key:
    """A key of recipes of a kind, and what becomes of it."""

    kind: str
    key: str
    how: str
    flag: str = ""
    words: str = ""


@cache
def keys(kind: str) -> tuple[Key, ...]:
    """The keys of a kind, those without * first, the longest first, so that the nearest fits."""
    rows = [row for row in read_table(HERE / "keys.csv", Key) if row.kind in (kind, "any")]
    return tuple(sorted(rows, key=lambda row: (row.key.count("*"), -len(row.key))))


@dataclass
class Readings:
    """All that the keys have said so far.

    values: of all keys, by their paths. smp: keys of the library's configuration. changes: fields
    of the plan. sizes: of the model. late: what depends on the plan. instances: of the optimizer,
    which share nothing.
    """

    values: Mapping[str, Any]
    where: Machines = field(default_factory=Machines)
    instance: str | None = None
    smp: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    late: list[tuple[Key, Any]] = field(default_factory=list)
    minutes: int | None = None
    strategy: str = ""
    instances: int = 1

    def read(self, row: Key, value: Any) -> Judged:
        """What becomes of a key with this value."""
        if row.how == "left":
            return LEFT_OUT, row.words, ""
        if value is None or value == "" or (isinstance(value, str) and "${" in value):
            return LEFT_OUT, "no value: as without it", ""
        if not is_known(value):
            name = str(unknown_in(value))
            self.where.asked.append(name)
            return CONVERTED, row.words, f"{name} is not in the file: --set {name}=VALUE"
        if row.flag in OF_ADAPTERS and not self.adapts():
            return LEFT_OUT, "no adapters are trained", ""
        if row.how in SWITCHES and value is not True:
            return LEFT_OUT, "off", ""
        method: Callable[[Key, Any], Judged] | None = getattr(self, f"_is_{row.how}", None)
        return method(row, value) if method else self._flag(row, value)

    def adapts(self) -> bool:
        """Are adapters trained? Where no kind is named they are if there is a rank."""
        said = self._of_adapters()
        return said.get("peft_type", self._rank()) not in (None, "", False)

    def _of_adapters(self) -> dict[str, Any]:
        found = {k: v for k, v in self.values.items() if k.startswith(ADAPTERS)}
        return {key.rpartition(".")[2]: value for key, value in found.items()}

    def _rank(self) -> Any:
        said = self._of_adapters()
        return said.get("rank", said.get("r"))

    def _flag(self, row: Key, value: Any) -> Judged:
        """A flag that settings of jobs have, too, read in the same way."""
        if row.how in AFTER_THE_PLAN:
            if type(value) is not int or not 1 <= value <= 10**9:
                return REFUSED, f"{value!r} is not a whole number", "give a whole number"
            self.late.append((row, value))
            return CONVERTED, f"--{row.flag.replace('_', '-')}", ""
        given, words = Settings().value(Flag(row.key, row.flag, row.how), value)
        if given is None:
            return LEFT_OUT, words, "give --lr-schedule" if row.how == "schedule" else ""
        if row.flag in OF_PLAN:
            self.changes.setdefault(row.flag, given)
        elif row.flag == "profile":
            self.flags[row.flag] = "3:6"
        else:
            self.flags.setdefault(row.flag, given)
        return CONVERTED, words or f"--{row.flag.replace('_', '-')} {given}", ""

    def _is_name(self, row: Key, value: Any) -> Judged:
        return CONVERTED, row.words, ""

    def _is_minutes(self, row: Key, value: Any) -> Judged:
        found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", str(value))
        if not found:
            return LEFT_OUT, f"{value!r} is no time limit", ""
        days, hours, minutes, _ = (int(part or 0) for part in found.groups())
        self.minutes = (days * 24 + hours) * 60 + minutes
        return CONVERTED, row.words, ""

    def _is_machines(self, row: Key, value: Any) -> Judged:
        if row.flag == "instance":
            value = value[0] if isinstance(value, list) and value else value
            self.instance = self.instance or str(value)
            return CONVERTED, row.words, ""
        if type(value) is not int or value < 1:
            return _no_count(value, "them")
        setattr(self.where, row.flag, value)
        return CONVERTED, row.words, ""

    def _is_accelerator(self, row: Key, value: Any) -> Judged:
        if value in OF_GPUS:
            return CONVERTED, row.words, ""
        return REFUSED, f"{value}: the engine trains on GPUs and CPUs", "take machines with GPUs"

    def _is_precision(self, row: Key, value: Any) -> Judged:
        found = PRECISIONS.get(str(value))
        if found is None:
            return REFUSED, f"{value!r:.60} is not here", "bf16, 16 or 32"
        if self.changes.get("precision") != "fp8":
            self.changes["precision"] = found
        return CONVERTED, f"precision={found}", ""

    def _is_track(self, row: Key, value: Any) -> Judged:
        before = self.flags.get("track")
        self.flags["track"] = f"{before},{row.flag}" if before else row.flag
        return CONVERTED, f"--track {row.flag}", ""

    def _is_checkpoint(self, row: Key, value: Any) -> Judged:
        if self.values.get("exp_manager.checkpoint_callback_params.save_top_k") == 0:
            return LEFT_OUT, "save_top_k is 0: no checkpoints are written", ""
        return self._flag(replace(row, how="count"), value)

    def _is_share(self, row: Key, value: Any) -> Judged:
        """A part of the steps, where their number is known."""
        if type(value) not in (int, float) or not 0 <= value <= 1:
            return REFUSED, f"{value!r:.60} is not a part of the steps", "give a number from 0 to 1"
        steps = 0 if value == 0 else self.flags.get("steps")
        if steps is None:
            words = f"not held: {value:g} of the steps, and their number depends on the data"
            return LEFT_OUT, words, f"give --{row.flag} N, {value:g} of the run's steps"
        self.flags.setdefault(row.flag, round(value * steps))
        return CONVERTED, f"--{row.flag} {self.flags[row.flag]}", ""

    def _is_plan(self, row: Key, value: Any) -> Judged:
        if type(value) is not int:
            return REFUSED, f"{value!r:.60} is no degree", "give a whole number"
        if value in (0, 1) and row.flag != "hybrid_shard_degree":
            return LEFT_OUT, "as without it", ""
        self.smp[row.flag] = value
        return CONVERTED, row.words, ""

    def _is_offload(self, row: Key, value: Any) -> Judged:
        if type(value) is not bool:
            return _no_switch(value)
        self.changes["offload"] = value
        return (CONVERTED, row.words, "") if value else (LEFT_OUT, "off", "")

    def _is_pack(self, row: Key, value: Any) -> Judged:
        if type(value) is not bool:
            return _no_switch(value)
        if not value:  # it is on without a flag
            self.flags["pack"] = False
        return CONVERTED, "--pack" if value else "--no-pack", ""

    def _is_half(self, row: Key, value: Any) -> Judged:
        self.changes.setdefault("precision", row.flag)
        return CONVERTED, f"precision={row.flag}", ""

    def _is_target(self, row: Key, value: Any) -> Judged:
        """A schedule by the name of its class."""
        word = str(value).rpartition(".")[2].removesuffix("Scheduler")
        return self._flag(replace(row, how="schedule"), word)

    def _is_strategy(self, row: Key, value: Any) -> Judged:
        self.strategy = str(value).lower()
        return CONVERTED, row.words, ""

    def _is_zero1(self, row: Key, value: Any) -> Judged:
        self.strategy = "zero1"
        return CONVERTED, row.words, ""

    def _is_model(self, row: Key, value: Any) -> Judged:
        self.sizes[row.key.rpartition(".")[2]] = value
        return CONVERTED, "the model's configuration", ""

    def _is_fp8(self, row: Key, value: Any) -> Judged:
        if self.adapts():
            return LEFT_OUT, "adapters train beside products of 16 bits", ""
        self.changes["precision"] = "fp8"
        return CONVERTED, "precision=fp8", ""

    def _is_finetune(self, row: Key, value: Any) -> Judged:
        if value is True:
            return CONVERTED, "training starts from the model's weights", ""
        self.flags["from_scratch"] = True
        return CONVERTED, "--from-scratch", ""

    def _is_peft(self, row: Key, value: Any) -> Judged:
        if str(value) not in ("lora", "qlora_4bit"):
            return REFUSED, f"{value} is no way to adapt that is here", "take lora or qlora_4bit"
        by_hand = "" if self._rank() else "its rank is not in the file: --set lora_rank=N"
        if str(value) == "lora":
            return CONVERTED, "--lora-rank", by_hand
        self.flags["quantize"] = "nf4"
        return CONVERTED, "--lora-rank, --quantize nf4", by_hand

    def _is_dpo(self, row: Key, value: Any) -> Judged:
        if self.values.get("model.dpo.enabled") is not True:
            return LEFT_OUT, "off", ""
        return REFUSED, "preference tuning is not here", "train on the preferred texts alone"

    def _is_trainer(self, row: Key, value: Any) -> Judged:
        if value != "sft":
            return REFUSED, f"{value} is not here", "train on the preferred texts alone"
        self.flags["task"] = "instruct"
        return CONVERTED, "--task instruct", ""

    def _is_ring(self, row: Key, value: Any) -> Judged:
        return self._is_plan(replace(row, flag="context_parallel_degree", words="cp"), value)

    def _is_sequence(self, row: Key, value: Any) -> Judged:
        self.changes["sequence_parallel"] = True
        return CONVERTED, "sequence_parallel", ""

    def _is_recompute(self, row: Key, value: Any) -> Judged:
        if value not in ("full", "selective"):
            return REFUSED, f"{value!r:.60} is not here", "full, selective or null"
        self.changes["activation"] = value
        return CONVERTED, f"activation={value}", ""

    def _is_instances(self, row: Key, value: Any) -> Judged:
        if type(value) is not int or value < 1:
            return _no_count(value, "them")
        self.instances = value
        return CONVERTED, row.words, ""

    def _is_virtual(self, row: Key, value: Any) -> Judged:
        if type(value) is not int or value < 1:
            return _no_count(value, "stages")
        self.changes |= {"virtual_stages": value, "schedule": "interleaved"}
        return CONVERTED, "schedule=interleaved with virtual_stages", ""


def _no_switch(value: Any) -> Judged:
    return REFUSED, f"{value!r:.60} is neither true nor false", "give one of them"


def _no_count(value: Any, what: str) -> Judged:
    return REFUSED, f"{value!r:.60} is no number of {what}", "give a whole number"
