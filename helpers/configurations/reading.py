"""A configuration file as a plan, with a line for each of its keys."""

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers.configurations.facts import Asked, Facts, Layout
from helpers.configurations.keys import TABLES, Judged, find_key, judge, unknown
from helpers.configurations.programs import accelerate, deepspeed, megatron, torchtitan
from helpers.configurations.silent import fill
from helpers.engine.errors import UserError, as_path, one_line
from helpers.engine.plan import MOST_RANKS, ParallelPlan
from helpers.entries.entry import Entry
from helpers.entries.reading import read_entries
from helpers.smp.jobs.lines import Line
from helpers.smp.reading.catalogue import REFUSED
from helpers.smp.reading.sources import Place
from helpers.smp.recipes.recipe import read_recipe
from helpers.tables import read_table

HYPERPOD = "hyperpod"
LAYOUTS: dict[str, ModuleType] = {
    "torchtitan": torchtitan,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "megatron": megatron,
    "nemo": megatron,
}
FROM_SCRATCH = ("torchtitan", "megatron", "nemo")  # which begin with random weights
# own values of a program that say nothing without the model
OF_SIZES = ("divisible", "grouped", *megatron.NUMBERS)
PRECISIONS = ("fp16", "bf16", "precision")  # names of what says the plan's
LONGEST = 120


@dataclass(frozen=True)
class Tool:
    """A program: its name, its title, and keys by which a file is known as its own.

    forms: its files' endings where the keys alone do not tell. unread: why its files are not read,
        and what to give in their place.
    """

    name: str
    title: str
    keys: str
    forms: str = ""
    unread: str = ""

    def knows(self, path: Path, entries: list[Entry]) -> bool:
        """Is a file with these keys the program's?"""
        if self.forms and path.suffix.lower() not in self.forms.split("|"):
            return False
        keys = self.keys.split("|")
        return any(fnmatchcase(one.path, key) for one in entries for key in keys)


@dataclass
class ReadConfiguration:
    """A file that was read.

    program: whose it is, a name of tables/programs.csv.
    plan: None where the file was refused, or does not say how many ranks there are.
    model: a transformers configuration; None where the file has no sizes, and `hub` the name of
        the model where one is known. lacks: what of the sizes is missing, in words.
    batch: samples of a step, over all ranks. seq_len: tokens of a sample.
    flags: of helpers.train, but for these and the plan's.
    lines: what became of each key, in the file's order.
    lost: what the plan does not hold, each in words.
    silent: the program's own values that were taken where the file is silent, each in words.
    open: fields of the plan that the script fills in, here as helpers.train has them.
    from_scratch: does it begin with random weights?
    refused: why there is no plan, in one line. asked: what is to be given, as `ranks`.
    planner: the program as the planner calls it.
    """

    program: str
    path: Path
    plan: ParallelPlan | None = None
    model: Any = None
    hub: str = ""
    batch: int | None = None
    seq_len: int | None = None
    nodes: int | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    open: tuple[str, ...] = ()
    from_scratch: bool = False
    lacks: str = ""
    refused: str = ""
    asked: tuple[str, ...] = ()
    planner: str = "engine"


def read_configuration(
    path: Path, ranks: int | None = None, program: str | None = None
) -> ReadConfiguration:
    """A file of torchtitan, accelerate, DeepSpeed, NeMo 1, Megatron-LM or HyperPod, as a plan.

    Args:
        ranks: of the whole job, where the file does not say them, or to say others.
        program: whose file it is; without it, its keys say so.

    Raises:
        UserError: the file cannot be read, or is none of these, in one line. A file that was read
            and cannot be kept is no error: `refused` says why, and `lines` say each key.
    """
    path = as_path(path)
    if ranks is not None and (type(ranks) is not int or not 1 <= ranks <= MOST_RANKS):
        raise UserError(f"ranks must be a whole number from 1 to {MOST_RANKS}, not {ranks!r:.40}")
    entries = read_entries(path)
    tool = _tool(path, entries, program)
    if tool.name == HYPERPOD:
        return _recipe(path, ranks)
    facts = Facts()
    _judge(tool.name, path, entries, facts)
    found = ReadConfiguration(tool.name, path, lines=facts.lines, refused=facts.refused)
    if not found.refused:
        _lay_out(found, facts, ranks)
    return found


def tools() -> tuple[Tool, ...]:
    """The programs whose files are read."""
    return tuple(tool for tool in _known() if not tool.unread)


def _known() -> tuple[Tool, ...]:
    return read_table(TABLES / "programs.csv", Tool)


def _tool(path: Path, entries: list[Entry], program: str | None) -> Tool:
    names = [tool.name for tool in tools()]
    if program is not None and program not in names:
        raise UserError(f"no program {program!r:.60}; there is {', '.join(names)}")
    for tool in _known():
        if tool.name == program or (program is None and tool.knows(path, entries)):
            if tool.unread:
                raise UserError(f"{path} is {tool.title}, which is not read: {tool.unread}")
            return tool
    titles = ", ".join(tool.title for tool in tools())
    raise UserError(f"{path} is none of these: {titles}; say --program where it is one")


def _judge(program: str, path: Path, entries: list[Entry], facts: Facts, by: str = "") -> None:
    """A line for each key, and its fact.

    by: the file that names this one, so that keys of both may say the same.
    """
    facts.programs.append(program)
    for entry in entries:
        row = find_key(program, entry.path)
        found = judge(row, entry.value) if row else unknown(program, entry.path, entry.value)
        if entry.value is not None:
            facts.keys.add(entry.path)
        if row and found.open:
            facts.open.add(row.to or row.key)
        if row and row.to and found.fact is not None:
            facts_say = facts.put(row.to, found.fact, f"{by}{entry.path}")
            if facts_say:
                found = Judged(REFUSED, facts_say)
        facts.lines.append(_line(program, path, entry, found))
        if row and row.to == "beside" and found.verdict != REFUSED:
            _beside(path, str(entry.value), facts, entry)


def _line(program: str, path: Path, entry: Entry, found: Judged) -> Line:
    text = f"{entry.path}: {entry.value!r:.{LONGEST}}"[: LONGEST + len(entry.path)]
    place = Place(str(path), 0, entry.line)
    return Line(place, program, text, found.verdict, found.words, found.lost, found.by_hand)


def _beside(path: Path, name: str, facts: Facts, entry: Entry) -> None:
    """DeepSpeed's own file, which accelerate's names."""
    other = path.parent / name
    try:
        entries = read_entries(other) if other.is_file() else None
    except (UserError, OSError, ValueError) as error:
        facts.lines.append(_line("accelerate", path, entry, Judged(REFUSED, str(error))))
        return
    if entries is None:
        lacks = Judged(REFUSED, f"there is no file {name[:80]} beside it", by_hand="put it there")
        facts.lines.append(_line("accelerate", path, entry, lacks))
        return
    _judge("deepspeed", other, entries, facts, f"{name}: ")


def _lay_out(found: ReadConfiguration, facts: Facts, ranks: int | None) -> None:
    layout = LAYOUTS[found.program]
    lost = [words for program in facts.programs for words in fill(facts, program)]
    try:
        sizes = layout.sizes(facts)
        found.model = sizes.config() if sizes else None
        found.hub = (sizes.hub if sizes else "") or str(facts.get("hub", ""))
        made: Layout = layout.layout(facts, ranks, sizes)
        if found.model is not None:
            made.plan.validate(found.model)
    except Asked as error:
        found.refused, found.asked = str(error), (error.name,)
        return
    except UserError as error:
        found.refused = str(error)
        return
    found.plan, found.batch, found.lost = made.plan, made.batch, made.lost + lost
    own = facts.silent.items()
    found.silent = [words for name, words in own if found.model or name not in OF_SIZES]
    found.lacks = facts.lacks
    if facts.open & set(PRECISIONS) and made.plan.precision == "fp32":
        found.open = ("precision",)
    found.from_scratch = found.program in FROM_SCRATCH and not facts.get("trained")
    found.planner, found.seq_len = made.planner, facts.get("seq_len")
    found.flags, found.nodes = facts.flags, _nodes(facts, made.plan.world_size)


def _nodes(facts: Facts, ranks: int) -> int | None:
    """The file's, unless somebody has said other ranks than it has."""
    nodes = facts.get("nodes") or None
    own = facts.get("ranks") or facts.get("nproc", 0) * (nodes or 1)
    return nodes if own in (0, ranks) else None


def _recipe(path: Path, ranks: int | None) -> ReadConfiguration:
    """A recipe, which helpers.smp reads."""
    recipe = read_recipe(path)
    job = recipe.job
    flags = dict(job.flags)
    found = ReadConfiguration(HYPERPOD, path, job.plan, job.config, lines=recipe.lines)
    found.batch, found.seq_len = flags.pop("batch_size", None), flags.pop("seq_len", None)
    found.hub, found.nodes = str(flags.pop("model", "")), job.machines.nodes
    found.flags, found.refused = flags, one_line(job.refused or "")
    if job.plan is None and not found.refused:
        found.asked = tuple(job.machines.asked)
        found.refused = f"the file does not say {', '.join(found.asked)}: python -m helpers.leave"
        found.refused += " --set NAME=VALUE"
    own = found.plan.world_size if found.plan else ranks
    if ranks not in (None, own) and not found.refused:
        found.refused = f"the recipe is for {own} ranks, not {ranks}: say others in the recipe"
    return replace(found, plan=None) if found.refused else found
