"""The two figures of a sweep: what each trial came to, and what depends on which flag."""

import math

from helpers.engine.errors import UserError
from helpers.lab.comparison.sweep.result import DONE, FAILED, STOPPED, Sweep
from helpers.lab.figures.style import BLUE, GREEN, ORANGE, Picture, new_figure, title

LOOKS = {DONE: (BLUE, "o"), STOPPED: (ORANGE, "v"), FAILED: ("#888888", "x")}


def plot_trials(found: Sweep) -> Picture:
    """The objective of each trial in the order of the trials, and the best so far."""
    _check(found)
    fig, axes = new_figure()
    for state, (colour, marker) in LOOKS.items():
        of = [trial for trial in found.trials if trial.state == state and trial.value is not None]
        if of:
            places = [trial.number for trial in of], [trial.value for trial in of]
            axes.plot(*places, marker, color=colour, label=state)
    best, so_far = math.inf, []
    sign = -1 if found.maximizes else 1
    for trial in found.trials:
        if trial.state == DONE:
            best = min(best, sign * trial.value)
        so_far.append(sign * best if math.isfinite(best) else float("nan"))
    numbers = [trial.number for trial in found.trials]
    axes.step(numbers, so_far, where="post", color=GREEN, label="best so far")
    axes.set(xlabel="trial", ylabel=found.objective)
    axes.legend(frameon=False)
    title(axes, f"{found.objective} of {len(found.trials)} trials", plain_numbers=True)
    table = found.table.assign(**{"best so far": so_far})
    return fig, table, found.sentence


def plot_space(found: Sweep) -> Picture:
    """The objective against each flag of the space, the best trial marked."""
    _check(found)
    names = list(found.facts["space"])
    fig, axes = new_figure(panels=len(names))
    panels = list(axes) if len(names) > 1 else [axes]
    for panel, name in zip(panels, names):
        values = found.facts["space"][name]
        if values[0] == "log":
            panel.set_xscale("log")
        for state, (colour, marker) in LOOKS.items():
            of = [t for t in found.trials if t.state == state and t.value is not None]
            shown = [
                str(t.flags[name]) if isinstance(t.flags[name], str) else t.flags[name] for t in of
            ]
            panel.plot(
                shown, [t.value for t in of], marker, color=colour, label=state if of else None
            )
        best = found.best
        panel.plot(
            [best.flags[name]],
            [best.value],
            "o",
            markersize=13,
            markerfacecolor="none",
            markeredgecolor=GREEN,
            markeredgewidth=2,
            label="the best",
        )
        panel.set_xlabel(name)
    panels[0].set_ylabel(found.objective)
    panels[0].legend(frameon=False)
    title(panels[0], f"{found.objective} over the space")
    return fig, found.table[[*names, found.objective]], found.sentence


def _check(found: Sweep) -> None:
    if not found.finished:
        raise UserError("no trial has finished: there is nothing to draw yet")
