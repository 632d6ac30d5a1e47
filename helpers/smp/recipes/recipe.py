"""A recipe as a run: its plan, its flags, its machines, and a line for each of its keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, need
from helpers.engine.plan import ParallelPlan
from helpers.entries.entry import Entry
from helpers.entries.yaml_file import read_yaml
from helpers.planner.hardware.lookup import find_instance
from helpers.smp.configuration import read_smp_config
from helpers.smp.jobs.distributions import Layout, Machines, check_products
from helpers.smp.jobs.job import Job, rank_in
from helpers.smp.jobs.lines import Line
from helpers.smp.reading.catalogue import CONVERTED, REFUSED
from helpers.smp.reading.sources import Place
from helpers.smp.recipes.readings import LAST, OF_GPUS, Key, Readings, keys
from helpers.tables import read_table

HERE = Path(__file__).parent
LIBRARY = "recipe"
IN_NAME = re.compile(r"_(p\d[a-z]*)x\d+(?:_|$)")  # hf_llama3_8b_seq8k_gpu_p5x16_pretrain
FROM_NAME = {"p4": "p4d.24xlarge", "p4d": "p4d.24xlarge", "p5": "p5.48xlarge"}
# the recipes' words for a model -> transformers' own, and what its sizes are called there
MODELS = {"llama": "llama", "llama_v2": "llama", "llama_v3": "llama", "mistral": "mistral"}
MODELS |= {"deepseek_r1_llama_v3": "llama", "deepseek_r1_qwen_v2": "qwen2"}
RENAMED = {"layernorm_epsilon": "rms_norm_eps"}


@dataclass(frozen=True)
class Refusal:
    """A value that shows that a recipe is for something else."""

    key: str
    value: str
    words: str


@dataclass
class Recipe:
    """A recipe that was read."""

    job: Job
    lines: list[Line] = field(default_factory=list)


def read_recipe(
    path: Path,
    answers: Mapping[str, Any] | None = None,
    over: Mapping[str, Any] | None = None,
    said: Place | None = None,
) -> Recipe:
    """A recipe, or a launcher's configuration that names one beside it.

    Args:
        answers: instance_type, num_nodes and lora_rank, where the file lacks them.
        over: values by paths, which take the place of the file's; `said` is where they stand.

    Raises:
        UserError: the file cannot be read, or is neither.
    """
    entries = read_yaml(path, over)
    chosen = next((entry.value for entry in entries if entry.path == "defaults"), None)
    chosen = chosen if isinstance(chosen, list) else []
    named = [one["recipes"] for one in chosen if isinstance(one, dict) and "recipes" in one]
    if named:
        entries = _launched(path, entries, str(named[0]))
    others = [str(one) for one in chosen if not named and one != "_self_"]
    values = {entry.path: entry.value for entry in entries}
    if not {"trainer.devices", "trainer.num_nodes", "run.model_type"} & values.keys():
        raise UserError(f"{path} is no recipe: it has neither trainer.devices nor run.model_type")
    found = Readings(values, Machines())
    kind = _kind(values)
    lines = _lines(found, kind, path, entries)
    if said is not None:
        places = [said if entry.path in (over or {}) else None for entry in entries]
        lines = [replace(line, place=at) if at else line for line, at in zip(lines, places)]
    _place_machines(found, path, dict(answers or {}))
    _place_adapters(found, dict(answers or {}))
    _place_weights(found, kind)
    refused = _refused(values)
    if others and not refused:
        refused = f"its keys stand in other files, too, as {others[0]:.80}: give the whole recipe"
    refused = refused or next((_of_key(line) for line in lines if line.verdict == REFUSED), "")
    layout = Layout(refused=refused) if refused else _layout(found, kind)
    if layout.plan is not None:
        layout = _batches(found, layout.plan)
    name = str(values.get("run.name") or path.stem)
    job = Job(name, Place(str(path), 0, 1), found.where, layout, layout.plan)
    job.flags, job.minutes, job.config = found.flags, found.minutes, _config(found.sizes)
    return Recipe(job, [*lines, *_unsaid(found, path)])


def _unsaid(found: Readings, path: Path) -> list[Line]:
    """A line of the precision where no key has it, as where the service's trainer decides."""
    if "precision" in found.changes:
        return []
    by_hand = "--precision bf16, if the recipe's own trainer had it"
    place = Place(str(path), 0, 1)
    return [Line(place, LIBRARY, "(no precision)", CONVERTED, "precision=fp32", "", by_hand)]


def _launched(path: Path, entries: list[Entry], name: str) -> list[Entry]:
    """The recipe that a launcher's configuration names, with what this says itself."""
    beside = path.parent / "recipes" / f"{name}.yaml"
    if not beside.is_file():
        raise UserError(f"{path} names the recipe {name}, which is not at {beside}")
    return [*(entry for entry in entries if entry.path == "instance_type"), *read_yaml(beside)]


def _kind(values: Mapping[str, Any]) -> str:
    if any(path.startswith("strategy.") for path in values):
        return "nemo"
    return "llmft" if any(path.startswith("training_config.") for path in values) else "hf"


def _refused(values: Mapping[str, Any]) -> str:
    for row in read_table(HERE / "refused.csv", Refusal):
        value = values.get(row.key)
        if value is not None and fnmatchcase(str(value), row.value):
            return f"{row.key} is {value}: {row.words}"
    accelerator = values.get("trainer.accelerator", "gpu")
    if accelerator not in OF_GPUS:
        return f"trainer.accelerator is {accelerator}: the engine trains on GPUs and CPUs"
    return ""


def _lines(found: Readings, kind: str, path: Path, entries: list[Entry]) -> list[Line]:
    """A line for each key, in the file's order, though some are read when all others are."""
    rows = [_row(kind, entry) for entry in entries]
    last = [row.how in LAST for row in rows]
    order = sorted(range(len(entries)), key=lambda n: (last[n], n))
    lines = {n: _line(found, rows[n], path, entries[n]) for n in order}
    return [lines[n] for n in range(len(entries))]


def _row(kind: str, entry: Entry) -> Key:
    return next(row for row in keys(kind) if fnmatchcase(entry.path, row.key))


def _line(found: Readings, row: Key, path: Path, entry: Entry) -> Line:
    verdict, words, by_hand = found.read(row, entry.value)
    text = f"{entry.path}: {entry.value!r}"[:120]
    return Line(Place(str(path), 0, entry.line), LIBRARY, text, verdict, words, "", by_hand)


def _of_key(line: Line) -> str:
    return f"{line.text}: {line.became}" + (f"; {line.by_hand}" if line.by_hand else "")


def _place_machines(found: Readings, path: Path, answers: dict[str, Any]) -> None:
    """Nodes and ranks, from the file, the answers, or the file's own name."""
    found.where.gpus = True  # what is for others was refused
    where, named = found.where, IN_NAME.search(path.stem)
    first = path.stem.split("_")[0]
    by_name = FROM_NAME.get(named[1] if named else first)
    kind = answers.get("instance_type") or found.instance or by_name
    if isinstance(answers.get("num_nodes"), int):
        where.nodes = answers["num_nodes"]
    if kind is not None:
        try:
            instance = find_instance(str(kind))
            where.instance, where.nproc = instance.name, where.nproc or instance.gpus
        except UserError:
            kind = None
    where.asked += [] if where.nodes else ["num_nodes"]
    where.asked += [] if where.nproc else ["instance_type"]


def _place_adapters(found: Readings, answers: dict[str, Any]) -> None:
    """The rank of adapters whose recipe leaves it to the service."""
    if not found.adapts() or "lora_rank" in found.flags:
        return
    rank = rank_in(answers)
    if rank:
        found.flags["lora_rank"] = rank
    else:
        found.where.asked.append("lora_rank")


def _place_weights(found: Readings, kind: str) -> None:
    """NeMo begins with random weights, but where the recipe has a place for others."""
    restores = any(path.startswith("resume.restore_config.") for path in found.values)
    if kind == "nemo" and not restores:
        found.flags["from_scratch"] = True


def _layout(found: Readings, kind: str) -> Layout:
    ranks, smp = found.where.ranks, dict(found.smp)
    if ranks is None or found.where.asked:
        return Layout()
    pp = smp.pop("pipeline_parallel_degree", 1)
    try:
        if ranks % pp:
            raise UserError(f"a pipeline of {pp} does not divide {ranks} ranks")
        return Layout(_planned(found, kind, smp, ranks, pp))
    except UserError as error:
        return Layout(refused=str(error))


def _planned(found: Readings, kind: str, smp: dict[str, Any], ranks: int, pp: int) -> ParallelPlan:
    """The plan of version 2's configuration, over a pipeline where there is one."""
    shards = smp.pop("hybrid_shard_degree", 0)
    if "hybrid" in found.strategy and shards:
        smp["hybrid_shard_degree"] = shards
    elif found.strategy in ("no_shard", "zero1") or kind == "nemo":
        smp["hybrid_shard_degree"] = 1
    plan = read_smp_config(smp, ranks // pp, version=2).plan
    if found.strategy == "zero1":
        shards, rest = divmod(plan.dp_replicate, found.instances)
        if rest:
            words = f"{found.instances} instances of the optimizer do not divide"
            raise UserError(f"{words} {plan.dp_replicate} data ranks")
        plan = replace(plan, dp_shard=shards, dp_replicate=found.instances, zero_stage=1)
    if "grad_op" in found.strategy:
        plan = replace(plan, zero_stage=2)
    unused = {"sequence_parallel"} if plan.tp == 1 else set()
    unused |= {"virtual_stages", "schedule"} if pp == 1 else set()
    changes = {name: value for name, value in found.changes.items() if name not in unused}
    plan = replace(plan, pp=pp, **changes)
    check_products(plan, found.where)
    return plan


def _batches(found: Readings, plan: ParallelPlan) -> Layout:
    """What depends on the plan: whole batches, and their micro-batches."""
    late, flags = {row.how: value for row, value in found.late}, found.flags
    if "per device" in late:
        flags["batch_size"] = int(late["per device"]) * plan.dp
    parts = int(late.get("accumulation", 1))
    if parts > 1 and "batch_size" in flags:
        flags["batch_size"] *= parts
    if "micro" in late and "batch_size" in flags:
        each = int(late["micro"]) * plan.dp
        parts, rest = divmod(flags["batch_size"], each)
        if rest:
            words = f"micro-batches of {late['micro']} on {plan.dp} data ranks do not divide"
            return Layout(refused=f"{words} a batch of {flags['batch_size']}")
    return Layout(replace(plan, microbatches=parts) if parts > 1 else plan)


def _config(sizes: Mapping[str, Any]) -> Any:
    """The model's transformers configuration, where the recipe has its sizes."""
    kind = MODELS.get(str(sizes.get("model_type")))
    if kind is None or "hidden_size" not in sizes:
        return None
    given = {RENAMED.get(name, name): value for name, value in sizes.items() if value is not None}
    given.pop("model_type")
    transformers = need("transformers", "hf")
    try:
        return transformers.AutoConfig.for_model(kind, **given)
    except Exception:  # each configuration has its own complaints, and the run does without a price
        return None
