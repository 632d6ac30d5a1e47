"""Is this machine ready, and for what? A line a fact, each with a verdict and a next step.

python -m helpers.lab.doctor        exit code 0: ready; 1: a line says fail
doctor()                            the same as a table in a notebook
"""

import hashlib
import html
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError:  # the one package without which nothing below can be imported
    if __name__ == "__main__":
        sys.exit("[fail] torch  not installed  -> run: bash scripts/setup")
    raise

from helpers.engine.errors import UserError
from helpers.lab.launch.launch import launch
from helpers.lab.machine.hardware import Machine, find_machine
from helpers.lab.machine.installed_versions import (
    python_version,
    read_requirements,
    wanted_python,
    within,
)
from helpers.lab.notebook.preflight import PROFILES, runnable
from helpers.lab.paths import ROOT, shown
from helpers.lab.runs.failure_report import RunFailed

OK, WARN, FAIL = "ok", "warn", "fail"
SETUP = "run: bash scripts/setup"
GB = 1e9
LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES = 3 * GB, 6 * GB
LEAST_DISK_BYTES, GOOD_DISK_BYTES = 0.2 * GB, 2 * GB
ALL_REDUCE_TIMEOUT_S = 90


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


def doctor() -> Report:
    """Look at everything that the notebooks need. Takes some seconds: two ranks really start."""
    machine = find_machine()
    lines = [
        *package_lines(ROOT / "pyproject.toml"),
        device_line(machine),
        *backend_lines(machine),
        memory_line(machine),
        disk_line(machine),
        data_line(ROOT / "data"),
        compiler_line(),
        all_reduce_line("gloo"),
    ]
    if len(machine.gpus) >= 2:
        lines.append(all_reduce_line("nccl"))
    return Report(tuple(lines), ready_for(lines, machine))


def package_lines(pyproject: Path) -> list[Line]:
    """Python and the packages, against the ranges of pyproject.toml."""
    if not pyproject.is_file():
        return [
            Line("versions", WARN, "no pyproject.toml beside helpers/: nothing to compare with")
        ]
    wanted = wanted_python(pyproject)
    new_enough = within(python_version(), wanted)
    lines = [
        Line(
            "python",
            OK if new_enough else FAIL,
            f"{python_version()} (wanted {wanted})",
            "" if new_enough else f"install Python {wanted}, then {SETUP}",
        )
    ]
    for need in read_requirements(pyproject):
        if need.extra == "dev":
            continue
        found = f"{need.installed or 'not installed'} (wanted {need.wanted})"
        if need.satisfied:
            lines.append(Line(need.name, OK, found))
        elif need.extra == "qlora":
            step = 'only for QLoRA: pip install -e ".[qlora]"'
            lines.append(Line(need.name, WARN, found, step))
        else:
            lines.append(Line(need.name, FAIL, found, SETUP))
    return lines


def device_line(machine: Machine) -> Line:
    if machine.gpus:
        return Line("devices", OK, machine.words)
    if machine.cores < 2:
        return Line("devices", WARN, machine.words, "two ranks share one core: runs take longer")
    return Line("devices", OK, machine.words)


def backend_lines(machine: Machine) -> list[Line]:
    """gloo for CPU ranks; NCCL where there are GPUs."""
    lines = []
    if dist.is_available() and dist.is_gloo_available():
        lines.append(Line("gloo", OK, "available"))
    else:
        lines.append(Line("gloo", FAIL, "missing in this torch", f"reinstall torch: {SETUP}"))
    nccl = dist.is_available() and dist.is_nccl_available()
    if machine.gpus:
        step = "" if nccl else "install a CUDA build of torch"
        lines.append(Line("nccl", OK if nccl else FAIL, "available" if nccl else "missing", step))
    elif nccl and torch.version.cuda:
        step = "if there is a GPU: check its driver with nvidia-smi"
        lines.append(Line("nccl", OK, "available, but torch finds no GPU", step))
    else:
        lines.append(Line("nccl", OK, "not available, and not needed without GPUs"))
    return lines


def memory_line(machine: Machine) -> Line:
    if machine.memory_bytes is None:
        return Line("memory", WARN, "unknown on this system", "about 6 GB are needed")
    return _enough("memory", machine.memory_bytes, LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES)


def disk_line(machine: Machine) -> Line:
    return _enough("free disk", machine.free_disk_bytes, LEAST_DISK_BYTES, GOOD_DISK_BYTES)


def data_line(folder: Path) -> Line:
    """The bundled data against data/SHA256SUMS."""
    remake = "make it again: python scripts/data/make_data.py"
    sums = folder / "SHA256SUMS"
    if not sums.is_file():
        return Line("data", FAIL, f"{shown(sums)} is missing", remake)
    wrong = []
    entries = [line.split(maxsplit=1) for line in sums.read_text().splitlines() if line.strip()]
    for expected, name in entries:
        path = folder / name.lstrip("*")
        if not path.is_file():
            wrong.append(f"{shown(path)} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            wrong.append(f"{shown(path)} was changed")
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return Line("data", FAIL, wrong[0] + more, remake)
    return Line("data", OK, f"as published, files: {len(entries)}")


def compiler_line(find: Callable[[str], str | None] = shutil.which) -> Line:
    """torch.compile writes C++ for the CPU."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    compiler = next((name for name in names if name and find(name)), None)
    if compiler:
        return Line("C++ compiler", OK, Path(compiler).name)
    step = "for torch.compile: install g++, or on macOS run xcode-select --install"
    return Line("C++ compiler", WARN, "none found", step)


def all_reduce_line(backend: str) -> Line:
    """Two ranks, started as every notebook starts them, add a tensor over the backend."""
    name = f"two ranks, {backend}"
    script = Path(__file__).with_name("rank_check.py")
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        try:
            run = launch(
                script,
                nproc=2,
                out=Path(folder) / "run",
                timeout_s=ALL_REDUCE_TIMEOUT_S,
                show=False,
                backend=backend,
            )
        except (RunFailed, UserError, OSError) as error:
            by_hand = f"torchrun --nproc-per-node 2 {shown(script)} --backend {backend} --out runs"
            return Line(name, FAIL, str(error).splitlines()[0], f"for all of it, run: {by_hand}")
        return Line(name, OK, f"started, summed and ended in {run.wall_s:.1f} s")


def ready_for(lines: list[Line], machine: Machine) -> str:
    """The last line: which notebooks, with which profiles."""
    failed = [line.name for line in lines if line.verdict == FAIL]
    if failed:
        return f"Not ready: {', '.join(failed)}. Follow the next steps above, from the top."
    parts = [f"{number} ({', '.join(runnable(number, machine))})" for number in PROFILES]
    return f"Ready for notebooks, with profiles: {'; '.join(parts)}."


def _enough(name: str, found_bytes: float, least: float, good: float) -> Line:
    words = f"{found_bytes / GB:.1f} GB"
    if found_bytes < least:
        return Line(name, FAIL, words, f"at least {least / GB:.1f} GB are needed")
    if found_bytes < good:
        return Line(name, WARN, words, f"{good / GB:.0f} GB are better: close other programs")
    return Line(name, OK, words)


def _row(line: Line) -> str:
    cells = (f"[{line.verdict}]", line.found, line.next_step)
    row = "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in cells)
    return f'<tr><th scope="row" style="text-align:left">{html.escape(line.name)}</th>{row}</tr>'


def main() -> int:
    report = doctor()
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
