"""The two figures of a sweep: what each trial came to, and what depends on which flag."""

import math
from itertools import accumulate
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError
from helpers.lab.comparison.sweep.result import DONE, STOPPED, Sweep, Trial
from helpers.lab.figures.style import BLUE, GREEN, ORANGE, Picture, new_figure, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = {DONE: (BLUE, "o"), STOPPED: (ORANGE, "v")}  # a failed trial has no value to be drawn


def plot_trials(found: Sweep) -> Picture:
    """The objective of each trial in the order of the trials, and the best so far."""
    _check(found)
    fig, axes = new_figure()
    for state, (colour, marker) in LOOKS.items():
        of = _of(found, state)
        places = [trial.number for trial in of], [trial.value for trial in of]
        axes.plot(*places, marker, color=colour, label=state if of else None)
    worst, better = (-math.inf, max) if found.maximizes else (math.inf, min)
    values = (trial.value if trial.state == DONE else worst for trial in found.trials)
    so_far = [math.nan if math.isinf(value) else value for value in accumulate(values, better)]
    numbers = [trial.number for trial in found.trials]
    axes.step(numbers, so_far, where="post", color=GREEN, label="best so far")
    axes.set(xlabel="trial", ylabel=found.objective)
    axes.legend(frameon=False)
    title(axes, f"{found.objective} of {len(found.trials)} trials", plain_numbers=True)
    return fig, found.table.assign(**{"best so far": so_far}), found.sentence


def plot_space(found: Sweep) -> Picture:
    """The objective against each flag of the space, the best trial in a ring."""
    _check(found)
    names = list(found.facts["space"])
    fig, axes = new_figure(panels=len(names))
    panels = list(axes) if len(names) > 1 else [axes]
    for panel, name in zip(panels, names):
        _draw_flag(panel, found, name)
    panels[0].set_ylabel(found.objective)
    panels[0].legend(frameon=False)
    title(panels[0], f"{found.objective} over the space")
    return fig, found.table[[*names, found.objective]], found.sentence


def _draw_flag(panel: "Axes", found: Sweep, name: str) -> None:
    words = any(isinstance(trial.flags[name], str | bool) for trial in found.trials)
    values = [float(trial.flags[name]) for trial in found.trials] if not words else []
    if values and min(values) > 0 and max(values) > 10 * min(values):
        panel.set_xscale("log")
    for state, (colour, marker) in LOOKS.items():
        of = _of(found, state)
        places = [str(t.flags[name]) if words else t.flags[name] for t in of]
        panel.plot(places, [t.value for t in of], marker, color=colour, label=state if of else None)
    best = found.best
    place = str(best.flags[name]) if words else best.flags[name]
    ring = {"markersize": 13, "markerfacecolor": "none", "markeredgewidth": 2}
    panel.plot([place], [best.value], "o", markeredgecolor=GREEN, label="the best", **ring)
    panel.set_xlabel(name)


def _of(found: Sweep, state: str) -> list[Trial]:
    return [trial for trial in found.trials if trial.state == state and trial.value is not None]


def _check(found: Sweep) -> None:
    if not found.finished:
        raise UserError("no trial has finished: there is nothing to draw yet")
