"""The jobs that a notebook starts: calls of estimators, with their arguments as they were then."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from helpers.smp.reading.catalogue import REFUSED, catalogue
from helpers.smp.reading.interpreter import Interpreter
from helpers.smp.reading.sources import Place, Program
from helpers.smp.reading.values import Keyed, Made, Unknown, same

FROM_RECIPE = ".from_recipe"  # which makes a ModelTrainer
MOST = 20  # jobs of one call, in a loop
NESTED = {  # arguments of ModelTrainer that hold an estimator's
    "source_code": {"entry_script": "entry_point", "source_dir": "source_dir"},
    "compute": {
        "instance_type": "instance_type",
        "instance_count": "instance_count",
        "keep_alive_period_in_seconds": "keep_alive_period_in_seconds",
    },
}
OLDER = {
    "train_instance_type": "instance_type",
    "train_instance_count": "instance_count",
    "distributions": "distribution",
    "train_use_spot_instances": "use_spot_instances",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
}


@dataclass(frozen=True, eq=False)
class Estimator:
    """One call of an estimator. `arguments` are by the names that estimators have today."""

    kind: str
    place: Place
    made: Made = field(repr=False)
    arguments: Keyed = field(repr=False)

    def get(self, name: str, default: Any = None) -> Any:
        return self.arguments.get(name, default)

    @property
    def refused(self) -> str:
        """Why no run is made of it, by its row in the tables."""
        row = catalogue().find(catalogue().short(self.made.dotted) or "")
        return f"{row.became}: {row.by_hand}" if row and row.verdict == REFUSED else ""


def estimators(program: Program, followed: Interpreter) -> list[Estimator]:
    """The estimators of a program, in its order: each call once for each set of arguments."""
    found = []
    for node, times in followed.calls.items():
        short = catalogue().short(times[-1].dotted)
        if not short or short.endswith(".attach") or catalogue().gives(short) != "estimator()":
            continue
        place = program.place(node.lineno)
        kind = short.removesuffix(FROM_RECIPE).rpartition(".")[2]
        found += [Estimator(kind, place, made, _arguments(made)) for made in _different(times)]
    return sorted(found, key=lambda one: one.place)


def _different(times: list[Made]) -> list[Made]:
    """The calls that have arguments of their own."""
    found: list[Made] = []
    for made in times:
        if len(found) < MOST and not any(same(made.kwargs, other.kwargs) for other in found):
            found.append(made)
    return found


def _arguments(made: Made) -> Keyed:
    found = Keyed()
    for name, value in made.kwargs.items():
        if isinstance(name, Unknown):
            continue
        if isinstance(value, Made) and name in NESTED:
            for inner, outer in NESTED[name].items():
                if inner in value.kwargs:
                    found.put(outer, value.kwargs[inner], value.kwargs.lines[inner][-1])
        elif isinstance(value, Made) and name == "distributed":
            found.put("distribution", _distribution(value), made.kwargs.lines[name][-1])
        else:
            found.put(OLDER.get(name, name), value, made.kwargs.lines.get(name, [0])[-1])
    return found


def _distribution(made: Made) -> Keyed:
    """The distribution of an estimator that says the same as ModelTrainer's `distributed`."""
    found = Keyed(torch_distributed=Keyed(enabled=True))
    smp = made.kwargs.get("smp")
    if isinstance(smp, Made):
        inside = Keyed(enabled=True, parameters=smp.kwargs)
        found["smdistributed"] = Keyed(modelparallel=inside)
    if "process_count_per_node" in made.kwargs:
        count = made.kwargs["process_count_per_node"]
        found["mpi"] = Keyed(enabled=True, processes_per_host=count)
    return found


def part(value: Any, *path: str) -> Any:
    """What lies in dictionaries at a path; None where one of them is not there."""
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def keys_of(value: Any, name: str) -> Iterator[tuple[str, int, Any]]:
    """Keys of a distribution with their lines and values, those inside it too; without those of
    the library's own configuration."""
    if not isinstance(value, Keyed):
        return
    for key, inner in value.items():
        for line in value.lines.get(key, []):
            yield f"{name}[{key}]", line, inner
        if key != "parameters":
            yield from keys_of(inner, name)
