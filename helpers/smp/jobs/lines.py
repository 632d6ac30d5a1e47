"""The table of every use: what it became, what is lost, what to do by hand, and when the old one
ends.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from helpers.engine.errors import UserError
from helpers.smp.configuration import check_key, version_of
from helpers.smp.distribution.mpi_options import mpi_options
from helpers.smp.jobs.estimators import Estimator, keys_of, part
from helpers.smp.keys import does_nothing, keys
from helpers.smp.reading.catalogue import CONVERTED, LEFT_OUT, REFUSED, Call, catalogue
from helpers.smp.reading.interpreter import Interpreter
from helpers.smp.reading.names import Names
from helpers.smp.reading.sources import Place, Program
from helpers.smp.reading.uses import Use, uses
from helpers.smp.reading.values import Imported, Keyed, Made, Unknown, is_known, unknown_in

# values of arguments that turn a thing off, or leave it as the SDK has it
OFF = {
    "debugger_hook_config": (False,),
    "disable_profiler": (True,),
    "use_spot_instances": (False,),
    "train_use_spot_instances": (False,),
    "enable_sagemaker_metrics": (False,),
    "rules": ([], ()),
    "early_stopping_type": ("Off",),
}
# arguments whose values the run needs
WANTED = ("distribution", "hyperparameters", "instance_type", "instance_count", "max_jobs")
LONGEST = 90


@dataclass(frozen=True, order=True)
class Line:
    """A row of the report."""

    place: Place
    library: str
    text: str
    verdict: str
    became: str
    lost: str = ""
    by_hand: str = ""

    @property
    def ends(self) -> str:
        """When the old one ends, as its own pages say."""
        ending = catalogue().endings.get(self.library)
        return str(ending) if ending else ""


def lines(
    program: Program, names: Names, followed: Interpreter, jobs: list[Estimator]
) -> list[Line]:
    """Every use of a program, in its order."""
    given = _arguments(followed)
    found: list[Line] = []
    for job in jobs:
        found += _distribution(job, program)
    for made in configurations(followed):
        config = made.args[0] if made.args else made.kwargs.get("config")
        found += _configuration(config, program)
    found += [_line(use, given) for use in uses(program, names)]
    for job in jobs:
        found += [_line(use, given) for use in _of_estimator(job, program)]
    return sorted(_once(found))


def _once(found: list[Line]) -> Iterator[Line]:
    """Each use once: what its syntax shows may have been found by its value, too."""
    seen: set[tuple[Place, str]] = set()
    for line in found:
        key = line.place, re.split(r"=|: ", line.text)[0].strip()
        if key not in seen:
            seen.add(key)
            yield line


def configurations(followed: Interpreter) -> list[Made]:
    """Calls of smp.init in a script."""
    short = {node: catalogue().short(times[-1].dotted) for node, times in followed.calls.items()}
    return [followed.calls[node][-1] for node, name in short.items() if name == "smp.init"]


def _arguments(followed: Interpreter) -> dict[tuple[int, str], Any]:
    """Values of arguments, by their line and name."""
    return {
        (line, name): value
        for times in followed.calls.values()
        for name, value in times[-1].kwargs.items()
        if isinstance(name, str)
        for line in times[-1].kwargs.lines.get(name, [])
    }


def _line(use: Use, given: dict[tuple[int, str], Any]) -> Line:
    row = use.row
    if row is None:
        reason = f"nothing is known of {use.name}"
        return Line(
            use.place, use.library, use.text, REFUSED, reason, "", "look it up and do without it"
        )
    line = _told(use.place, use.library, use.text, row)
    argument = use.name.rpartition("(")[2].removesuffix(")")
    number = getattr(use.node, "lineno", None)
    if not use.name.endswith(")") or use.name.endswith("()") or (number, argument) not in given:
        return line
    return _valued(line, argument, given[number, argument])


def _told(place: Place, library: str, text: str, row: Call) -> Line:
    """What the tables' row says of a use."""
    return Line(place, library, text, row.verdict, row.became, row.lost, row.by_hand)


def _valued(line: Line, argument: str, value: Any) -> Line:
    """An argument's line, with what its value says."""
    if value is None:
        return replace(line, verdict=LEFT_OUT, became="None: as without it", lost="", by_hand="")
    if is_known(value) and any(
        type(off) is type(value) and off == value for off in OFF.get(argument, ())
    ):
        words = "it turns a thing off that is off here unless a flag asks for it"
        return replace(line, verdict=LEFT_OUT, became=words, lost="", by_hand="")
    if isinstance(value, Unknown) and line.verdict == CONVERTED and argument in WANTED:
        asks = f"{value.name} is not in the file: --set {value.name}=VALUE"
        return replace(line, by_hand="; ".join(filter(None, [line.by_hand, asks])))
    return line


def _of_estimator(job: Estimator, program: Program) -> Iterator[Use]:
    """The arguments of an estimator, wherever they were put together."""
    for name, value in job.made.kwargs.items():
        if not isinstance(name, str):
            continue
        row_name = f"argument({name})"
        row_name = row_name if row_name in catalogue().rows else f"estimator({name})"
        row = catalogue().find(row_name)
        for line in job.made.kwargs.lines.get(name, []):
            text = f"{name}={_shown(value)}"
            node = SimpleNamespace(lineno=line)
            yield Use(program.place(line), catalogue().library(row_name), row_name, text, row, node)


def _distribution(job: Estimator, program: Program) -> Iterator[Line]:
    distribution = job.get("distribution")
    parameters = part(distribution, "smdistributed", "modelparallel", "parameters")
    version = version_of(parameters) if isinstance(parameters, dict) else 1
    libraries = {"modelparallel": f"SMP v{version}", "dataparallel": "SMDDP"}
    for name, line, value in keys_of(distribution, "distribution"):
        key = name.rpartition("[")[2].removesuffix("]")
        if key in ("enabled", "parameters"):  # said by what they are of
            continue
        row = catalogue().find(f"distribution[{key}]") or catalogue().rows["distribution[*]"]
        library = libraries.get(key, "estimator")
        one = _told(program.place(line), library, f'"{key}": {_shown(value)}', row)
        yield from _options(one, value) if key == "custom_mpi_options" else [one]
    yield from _configuration(parameters, program)


def _options(line: Line, value: Any) -> Iterator[Line]:
    """A line for each of mpirun's options."""
    if not isinstance(value, str):
        yield replace(line, by_hand=f"{unknown_in(value)} is not in the file: read its options")
        return
    options = mpi_options(value)
    if not options:
        yield replace(line, became="no option is given")
    for one in options:
        yield replace(line, text=one.text, verdict=one.verdict, became=one.words)


def _configuration(config: Any, program: Program) -> Iterator[Line]:
    """The keys of a configuration of the library."""
    if not isinstance(config, Keyed):
        return
    version = version_of(key for key in config if isinstance(key, str))
    for key, value in config.items():
        if not isinstance(key, str):
            continue
        for line in config.lines.get(key, []):
            verdict, became, by_hand = _judged(key, value, version)
            text = f'"{key}": {_shown(value)}'
            yield Line(program.place(line), f"SMP v{version}", text, verdict, became, "", by_hand)


def _judged(key: str, value: Any, version: int) -> tuple[str, str, str]:
    """A key's verdict, what it became, and what to do by hand."""
    table = keys(version)
    if key in table and not is_known(value):
        missing = unknown_in(value)
        record = table[key]
        asks = f"{missing} is not in the file: --set {missing}=VALUE"
        verdict = LEFT_OUT if record.note else CONVERTED
        return verdict, record.note or record.became or record.why, asks
    try:
        check_key(key, value, table, version)
    except UserError as error:
        return REFUSED, str(error), "change the configuration as the line says"
    if key not in table:
        return LEFT_OUT, does_nothing()[key], ""
    record = table[key]
    if record.note:
        return LEFT_OUT, record.note, ""
    if value is False and not record.default:
        return LEFT_OUT, "off, as here without it", ""
    if record.only is not None:
        return LEFT_OUT, f"always so here: {record.why}", ""
    return CONVERTED, record.became, ""


def _shown(value: Any) -> str:
    if isinstance(value, Unknown):
        return value.name
    if isinstance(value, Made):
        return f"{value.dotted.rpartition('.')[2]}(...)"
    if isinstance(value, Imported):
        return value.dotted.rpartition(".")[2]
    if isinstance(value, dict) and value:
        return "{...}"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
