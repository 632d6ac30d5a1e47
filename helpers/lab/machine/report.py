"""The doctor's report: a line a fact, each with a verdict and a next step, as text and as a table.

It imports next to nothing, since it must also say that packages are missing.
"""

import html
from dataclasses import dataclass

from helpers.lab.paths import ROOT

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Line:
    """One fact about the machine. `next_step` is empty where there is nothing to do."""

    name: str
    verdict: str
    found: str
    next_step: str = ""


@dataclass(frozen=True)
class Report:
    """All lines, and what the machine is ready for. Shown as a table in a notebook."""

    lines: tuple[Line, ...]
    ready: str

    @property
    def ok(self) -> bool:
        """Whether no line says fail."""
        return all(line.verdict != FAIL for line in self.lines)

    def __str__(self) -> str:
        width = max(len(line.name) for line in self.lines)
        text = []
        for line in self.lines:
            step = f"  -> {line.next_step}" if line.next_step else ""
            text.append(f"{f'[{line.verdict}]':<6} {line.name:<{width}}  {line.found}{step}")
        return "\n".join([*text, "", self.ready])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = 'style="text-align:left"'
        names = ("what", "verdict", "found", "next")
        heads = "".join(f'<th scope="col" {left}>{name}</th>' for name in names)
        return (
            f"<table><caption {left}>Is this machine ready?</caption>"
            f"<thead><tr>{heads}</tr></thead>"
            f"<tbody>{''.join(map(_row, self.lines))}</tbody></table>"
            f"<p><strong>{html.escape(self.ready)}</strong></p>"
        )


def install(requirement: str, extra: str | None = None) -> str:
    """The step that brings a package: the project's own, or pip's where helpers was taken along.

    Args:
        requirement: as pip takes it, such as "torch>=2.11,<3".
        extra: of the project, where that alone is asked for.
    """
    if not (ROOT / "scripts" / "setup").is_file():
        return f'run: pip install "{requirement}"'
    return f'pip install -e ".[{extra}]"' if extra else "run: bash scripts/setup"


def _row(line: Line) -> str:
    cells = (f"[{line.verdict}]", line.found, line.next_step)
    row = "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in cells)
    return f'<tr><th scope="row" style="text-align:left">{html.escape(line.name)}</th>{row}</tr>'
