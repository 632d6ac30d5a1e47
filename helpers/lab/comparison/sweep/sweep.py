"""sweep(): tries settings one run after another, keeps everything on disk, and goes on when killed.

A sweep that was killed tells Optuna again what it has tried, and goes on; a run that was killed
with it goes on from its checkpoint.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, check_count, need
from helpers.engine.files.run_record import claim
from helpers.lab.comparison.sweep.result import FILE, Sweep, load_sweep
from helpers.lab.comparison.sweep.runner import Runner
from helpers.lab.comparison.sweep.space import Range, read_space
from helpers.lab.launch.command import find_program
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.paths import ROOT, check_out, shown, unused
from helpers.planner.hardware.lookup import check_amounts

SAMPLERS = ("tpe", "random", "grid")
MOST_SEEDS = 2**31  # a trial takes the sweep's seed and its own number
DIRECTIONS = ("minimize", "maximize")
OBJECTIVES = ("final_loss", "eval_loss", "eval_accuracy")


def sweep(
    script: str | Path,
    space: Mapping[str, Any],
    trials: int,
    *,
    sampler: str = "tpe",
    halving: bool = False,
    objective: str = "final_loss",
    direction: str = "minimize",
    seed: int = 0,
    out: str | Path | None = None,
    price_per_hour: float | None = None,
    checkpoint_every: int | None = None,
    nproc: int = 1,
    ranks: Ranks | None = None,
    env: Mapping[str, str] | None = None,
    threads: int | None = None,
    show: bool = True,
    **flags: Any,
) -> Sweep:
    """Try `trials` settings of a training script, each in a run of its own.

    Args:
        script: as for `launch`; it trains, as helpers.train does.
        space: what may be tried, by the script's flags: see space.py.
        sampler: `tpe` learns from the trials before; `random`; or `grid`, evenly spread.
        halving: stop a trial at a ninth and at a third of its steps unless its loss is among the
            best third of those that came so far.
        objective: `final_loss`, the mean over the last tenth of the steps; or of the evaluation
            `eval_loss` or `eval_accuracy`, with eval_data among the flags.
        out: the sweep's folder; the same call with the folder of a killed one goes on with it.
        price_per_hour: of the machine, for the cost of each trial.
        checkpoint_every: steps; a fourth of the run's by default, so that a killed trial goes on.
        nproc, ranks, env, threads: as for `launch`; `ranks` are kept warm over all trials.
        show: print a line a trial.
        flags: the script's own, the same in every trial; `steps` must be among them.

    Raises:
        UserError: nothing was started: a space or a number that cannot be, or another sweep's
            folder.
        RunFailed: the first trial failed, as every other would; later ones that fail are kept as
            failed.
    """
    optuna = need("optuna", "sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    checked = read_space(space)
    facts = {
        "script": str(script),
        "space": {name: _as_data(values) for name, values in checked.items()},
        "sampler": sampler,
        "halving": halving,
        "objective": objective,
        "direction": direction,
        "seed": seed,
        "nproc": nproc,
        "flags": {name: str(value) for name, value in sorted(flags.items())},
        "price_per_hour": price_per_hour,
        "trials_wanted": trials,
    }
    _check(facts, flags)
    if checkpoint_every is not None:
        check_count("checkpoint_every", checkpoint_every, least=0)
    if out is not None:
        check_out(out)
    find_program(script)
    folder = Path(ROOT / (out if out is not None else unused("runs/sweep")))
    with claim(folder):
        found = _begun(folder, facts)
        options = {"nproc": nproc, "ranks": ranks, "env": env, "threads": threads}
        options |= {"checkpoint_every": checkpoint_every or max(1, flags["steps"] // 4)}
        runner = Runner(found, checked, script, flags, options | {"resume": "auto"}, show)
        runner.run(optuna, trials)
    return found


def _check(facts: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Raise a UserError if one of a sweep's facts cannot be."""
    choices = {"sampler": SAMPLERS, "objective": OBJECTIVES, "direction": DIRECTIONS}
    for name, allowed in choices.items():
        if facts[name] not in allowed:
            raise UserError(f"{name} is one of {', '.join(allowed)}, not {facts[name]!r}")
    trials, seed, objective = facts["trials_wanted"], facts["seed"], facts["objective"]
    if not isinstance(facts["halving"], bool):
        raise UserError(f"halving is True or False, not {facts['halving']!r:.40}")
    if facts["price_per_hour"]:
        check_amounts(price_per_hour=facts["price_per_hour"])
    check_count("trials", trials)
    if type(seed) is not int or not 0 <= seed < MOST_SEEDS:
        raise UserError(f"seed is {seed!r:.40}: it must be a whole number from 0 to 2^31")
    if type(flags.get("steps")) is not int or flags["steps"] < 1:
        raise UserError("steps must be given: every trial takes as many")
    both = sorted(set(facts["space"]) & set(flags))
    if both:
        raise UserError(f"{both[0]} is in the space and a flag, too: give it once")
    if objective.startswith("eval") and not flags.get("eval_data"):
        raise UserError(f"{objective} is of an evaluation: give eval_data")
    if facts["halving"] and facts["direction"] == "maximize":
        raise UserError("halving compares losses on the way: minimize one")


def _as_data(values: Range | list[Any]) -> Any:
    if isinstance(values, list):
        return values
    return [*(["log"] if values.log else []), values.low, values.high]


def _begun(folder: Path, facts: dict[str, Any]) -> Sweep:
    """The sweep of a folder as it was left, or a new one.

    Raises:
        UserError: the folder has another sweep, or a run.
    """
    if not (folder / FILE).exists():
        if (folder / "metrics.jsonl").exists():
            raise UserError(f"{shown(folder)} already holds a run: choose another out")
        return Sweep(folder, facts)
    found = load_sweep(folder)
    # of another number a grid over ranges has other points
    free = ["price_per_hour", *["trials_wanted"] * (facts["sampler"] != "grid")]
    for name, value in facts.items():
        if name not in free and found.facts.get(name) != value:
            before = f"{name.removesuffix('_wanted')} {found.facts.get(name)!r}"
            raise UserError(
                f"{shown(folder)} has a sweep with {before}, not {value!r}: choose another out, or "
                "call it as it was"
            )
    found.facts |= {name: facts[name] for name in free}
    return found
