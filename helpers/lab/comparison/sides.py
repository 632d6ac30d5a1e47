"""Is one way of training faster than another? Only over the same work, and in one meaning.

    sides = launch_in_turn("scripts/train.py", {"native": {}, "compiled": {"compile": True}}, ...)
    comparison = compare_runs(sides, at="samples")
    show_table(comparison.speed, "Speed", comparison.sentence)

`at` says what is equal where seconds are compared: the samples, the optimizer steps, or the loss.
What differs besides the one thing that is compared is refused, or named in `allow` and then stated
with the result (helpers.lab.comparison.results).
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.comparison.measures import curve, work_of
from helpers.lab.comparison.results import Comparison
from helpers.lab.launch.launch import launch
from helpers.lab.paths import plain, shown, unused
from helpers.lab.runs.run import Run, load_run
from helpers.planner.hardware.lookup import check_amounts
from helpers.planner.published.equal_work import Difference, Work, check_equal, differences

WINDOW = 0.05  # of the samples: what a loss is the mean of


def launch_in_turn(
    script: str | Path,
    sides: Mapping[str, Mapping[str, Any]],
    *,
    repeats: int = 3,
    seed: int = 0,
    out: str | Path | None = None,
    **common: Any,
) -> dict[str, list[Run]]:
    """Launch every side once a round, with one seed a round, each round beginning with another.

        round 0   native  compiled      seed 0
        round 1   compiled  native      seed 1

    Args:
        sides: by name, the flags that only this side gets.
        repeats: rounds.
        seed: of round 0.
        out: folder of the runs' folders; a new one under runs/ by default.
        common: for all sides: flags of the script, and arguments of `launch`.

    Returns:
        The runs of each side by round, as `compare_runs` takes them.

    Raises:
        UserError: fewer than two sides, two whose folders have one name, or no rounds; and what
            `launch` raises.
    """
    if len(sides) < 2 or repeats < 1:
        raise UserError("to compare takes two sides or more and one round or more")
    if len({plain(name) for name in sides}) < len(sides):
        raise UserError(f"two of the sides {', '.join(sides)} would have one folder: rename one")
    out = Path(out or unused(f"runs/{datetime.now():%Y%m%d-%H%M%S}-comparison"))
    names, runs = list(sides), {name: [] for name in sides}
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            folder = out / f"{plain(name)}-{turn}"
            flags = {**common, **sides[name], "seed": seed + turn}
            done = sum(map(len, runs.values()))
            if common.get("show", True):
                print(f"run {done + 1} of {repeats * len(names)}: {name}", flush=True)
            runs[name].append(launch(script, out=folder, **flags))
    return runs


def compare_runs(
    sides: Mapping[str, Run | str | Path | Sequence[Run | str | Path]],
    at: str = "samples",
    *,
    allow: Collection[str] = (),
    target_loss: float | None = None,
    price_per_hour: float | None = None,
) -> Comparison:
    """Compare runs that differ in one thing.

    Args:
        sides: by name, the repeats of each: runs or their folders, the i-th of each with one seed;
            one run alone needs no list.
        at: samples, steps or loss: what is equal where seconds are compared.
        allow: names of further differences that are meant; the result states them.
        target_loss: for `at="loss"` and `to_target`; the lowest that every run reaches when left
            out. A loss here is the mean over a twentieth of the samples.
        price_per_hour: of all machines of a run together.

    Raises:
        UserError: the sides did not do the same work or differ in several things (the line says in
            which), were not run in turn, or do not reach the loss.
    """
    if len(sides) < 2:
        raise UserError("a comparison needs two sides or more")
    if price_per_hour:
        check_amounts(price_per_hour=price_per_hour)
    loaded = {name: tuple(_load(run) for run in _repeats(runs)) for name, runs in sides.items()}
    works = {name: [work_of(run) for run in runs] for name, runs in loaded.items()}
    _check_repeats(works)
    differs = _check_sides(works, at, allow)
    if "order" not in allow:
        _check_order(loaded)
    every_work = [work for repeats in works.values() for work in repeats]
    fewest = min(work.samples for work in every_work)
    window = max(*(work.batch for work in every_work), int(WINDOW * fewest))
    target_loss = _target(loaded, window, target_loss)
    return Comparison(loaded, at, differs, window, target_loss, price_per_hour)


def _repeats(runs: Any) -> Sequence[Run | str | Path]:
    return [runs] if isinstance(runs, (Run, str, Path)) else runs


def _load(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else load_run(run)


def _check_repeats(works: Mapping[str, list[Work]]) -> None:
    """Sides have equally many runs, and these differ in their seed alone."""
    counts = {name: len(repeats) for name, repeats in works.items()}
    if min(counts.values()) < 1 or len(set(counts.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UserError(f"every side needs the same number of runs, at least one: {said}")
    for name, (first, *repeats) in works.items():
        for number, work in enumerate(repeats, start=2):
            wrong = [d for d in differences(first, work) if d.name not in ("seed", "tokens")]
            if wrong:
                what = ", ".join(map(str, wrong))
                raise UserError(f"run {number} of {name} is no repeat of the first: {what}")


def _check_sides(
    works: Mapping[str, list[Work]], at: str, allow: Collection[str]
) -> dict[str, list[Difference]]:
    """Each repeat against the baseline's of the same number; returns what differs by side."""
    first, *others = works
    differs = {}
    for name in others:
        by_repeat = [
            check_equal(first, baseline, name, other, at, allow)
            for baseline, other in zip(works[first], works[name])
        ]
        differs[name] = by_repeat[0]
    return differs


def _check_order(sides: Mapping[str, tuple[Run, ...]]) -> None:
    """One side's runs all before the other's measure the hour of the day as well."""
    ended = sorted(
        ((run.path / "summary.json").stat().st_mtime_ns, name)
        for name, runs in sides.items()
        for run in runs
    )
    turns = sum(side != next_side for (_, side), (_, next_side) in pairwise(ended))
    distinct = len({time for time, _ in ended}) == len(ended)
    if distinct and len(ended) > len(sides) and turns == len(sides) - 1:
        raise UserError(
            "all runs of one side ended before those of the next: run them in turn "
            '(launch_in_turn), or say allow=["order"]'
        )


def _target(sides: Mapping[str, tuple[Run, ...]], window: int, wanted: float | None) -> float:
    """The loss to reach: `wanted`, or the lowest that every run reaches."""
    lowest = {
        run: float(curve(run, window)["loss"].min()) for runs in sides.values() for run in runs
    }
    worst = max(lowest, key=lowest.__getitem__)
    if wanted is not None and lowest[worst] > wanted:
        raise UserError(
            f"{shown(worst.path)} does not reach a loss of {wanted:g}: its lowest is "
            f"{lowest[worst]:.4g}"
        )
    return lowest[worst] if wanted is None else wanted
