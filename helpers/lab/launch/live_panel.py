"""The live panel: one notebook output, updated in place, that survives a headless run.

Each update carries plain text and HTML, so a saved notebook shows the last state wherever it is
read. Outside a notebook the same facts are printed, sparingly.
"""

import html
import time
from dataclasses import dataclass, field
from typing import Any

from helpers.lab.figures.display import in_notebook, link
from helpers.lab.launch.command import LOG

SHORTEST_UPDATE_S = 0.2
SECONDS_BETWEEN_PRINTS = 5.0
LINES_SHOWN = 8
LINE_WIDTH = 160
# Only a hint: the state is written out as well. Mid-tones, seen on white and on black.
_COLOURS = {"running": "#4a8fd9", "done": "#3f9f5f", "failed": "#d9574a", "stopped": "#c98a1b"}


@dataclass(frozen=True)
class View:
    """What there is to show of a run at one moment."""

    command: str
    logs: str
    state: str  # running, done, failed or stopped
    elapsed_s: float
    metrics: dict[str, Any] = field(default_factory=dict)  # the last line of metrics.jsonl
    steps: int | None = None  # how many there will be, where that is known
    lines: tuple[str, ...] = ()
    note: str = ""
    median_tokens_per_s: float | None = None  # of the whole run, once it is over


def headline(view: View) -> str:
    """'running 12 s · step 10 of 50 · loss 2.314 · 5,210 tokens/s'

    Of a run that is over the pace is the median of all steps, or, where that is not known, said to
    be the last step's.
    """
    joint = {"running": " ", "done": " in "}.get(view.state, " after ")
    parts = [f"{view.state}{joint}{_duration(view.elapsed_s)}"]
    step, loss, speed = (view.metrics.get(key) for key in ("step", "loss", "tokens_per_s"))
    if step is not None:
        parts.append(f"step {step} of {view.steps}" if view.steps else f"step {step}")
    if isinstance(loss, (int, float)):
        parts.append(f"loss {loss:.4g}")
    if view.median_tokens_per_s is not None:
        parts.append(f"median {view.median_tokens_per_s:,.0f} tokens/s")
    elif isinstance(speed, (int, float)):
        last = "" if view.state == "running" else "last step "
        parts.append(f"{last}{speed:,.0f} tokens/s")
    return " · ".join(parts)


def as_text(view: View) -> str:
    lines = [f"$ {view.command}", headline(view), *(f"| {line}" for line in _cut(view.lines))]
    if view.note:
        lines.append(view.note)
    return "\n".join([*lines, f"whole logs: {view.logs}"])


def as_html(view: View) -> str:
    """The same for a browser. No colour is set on text or background: the theme's own are used."""
    lines = html.escape("\n".join(_cut(view.lines)))
    box = (
        "margin:.4em 0;padding:.2em .6em;border:1px solid rgba(128,128,128,.4);"
        # JupyterLab breaks lines inside words, and the page of nbconvert sets no font
        "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;"
        "font-family:var(--jp-code-font-family,monospace)"
    )
    state, numbers = html.escape(headline(view)).split(" ", 1)
    parts = [
        f'<div style="border-left:4px solid {_COLOURS[view.state]};padding-left:.8em">',
        f'<code style="white-space:pre-wrap">{html.escape(view.command)}</code><br>',
        f"<strong>{state}</strong> {numbers}",
        f'<pre style="{box}">{lines}</pre>' if lines else "<br>",
        f"<strong>{html.escape(view.note)}</strong><br>" if view.note else "",
        f"<small>whole logs: {link(view.logs, f'{view.logs}/{LOG}')}</small></div>",
    ]
    return "\n".join(part for part in parts if part)


class Panel:
    """Shows a `View`: in a notebook one output, elsewhere a line now and then."""

    def __init__(self, show: bool = True) -> None:
        self._show = show
        self._notebook = show and in_notebook()
        self._handle: Any = None
        self._last_text = ""
        self._last_note = ""
        self._last_s = float("-inf")

    def update(self, view: View) -> None:
        """Show `view`, unless it comes too soon after the last one."""
        if self._show and self._last_s + SHORTEST_UPDATE_S <= time.monotonic():
            self._draw(view) if self._notebook else self._print(view)

    def finish(self, view: View) -> None:
        """Show `view` as the last word."""
        if self._notebook:
            self._draw(view)
        elif self._show:
            print(headline(view) + (f"\n{view.note}" if view.note else ""), flush=True)

    def _draw(self, view: View) -> None:
        text = as_text(view)
        self._last_s = time.monotonic()
        if text == self._last_text:
            return
        self._last_text = text
        bundle = {"text/plain": text, "text/html": as_html(view)}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def _print(self, view: View) -> None:
        if not self._last_text:
            self._last_text = f"$ {view.command}"
            print(f"{self._last_text}\nwhole logs: {view.logs}", flush=True)
            self._last_s = time.monotonic()
            return
        new_note = view.note != self._last_note
        if not new_note and time.monotonic() < self._last_s + SECONDS_BETWEEN_PRINTS:
            return
        self._last_s, self._last_note = time.monotonic(), view.note
        print("  " + headline(view) + (f" · {view.note}" if view.note else ""), flush=True)


def _cut(lines: tuple[str, ...]) -> list[str]:
    return [
        line if len(line) <= LINE_WIDTH else line[: LINE_WIDTH - 1] + "…"
        for line in lines[-LINES_SHOWN:]
    ]


def _duration(seconds: float) -> str:
    """'0.4 s', '12 s', '3 min 05 s', '2 h 07 min'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
