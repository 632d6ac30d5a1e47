"""Is this machine ready, and for what? A line a fact, each with a verdict and a next step.

python -m helpers.lab.doctor             exit code 0: ready; 1: a line says fail
python -m helpers.lab.doctor --ranks 4   is one of so many ranks slower than its peers?
doctor(), doctor(ranks=4)                the same as a table in a notebook
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from helpers.commands import Parser, say
from helpers.lab.machine.report import FAIL, OK, WARN, Line, Report, install

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError:  # the one package without which nothing below can be imported
    if __name__ == "__main__":
        sys.exit(f"[fail] torch  not installed  -> {install('torch')}")
    raise

from helpers.engine.errors import UserError
from helpers.lab.launch.launch import launch
from helpers.lab.machine.hardware import Machine, find_machine
from helpers.lab.machine.installed_versions import (
    HELPERS,
    Requirement,
    needed,
    python_version,
    requirements,
    wanted_python,
    within,
)
from helpers.lab.notebook.preflight import PROFILES, runnable
from helpers.lab.paths import ROOT, shown
from helpers.lab.ranks_health import ranks_report
from helpers.lab.runs.failure_report import RunFailed
from helpers.text.bundled import bundled

GB = 1e9
LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES = 3 * GB, 6 * GB
LEAST_DISK_BYTES, GOOD_DISK_BYTES = 0.2 * GB, 2 * GB
ALL_REDUCE_TIMEOUT_S = 90
TWO_RANKS = "helpers.lab.machine.two_rank_check"
SUMS = "SHA256SUMS"
OPTIONAL = {"qlora": "QLoRA", "track": "--track"}  # extras, and what needs them


def doctor(ranks: int | None = None, record: str | Path | None = None) -> Report:
    """Look at everything that the notebooks need. Takes some seconds: two ranks really start.

    Args:
        ranks: look at so many ranks instead, before they are given a job: what each computes, its
            memory and disk, and the link of each pair.
        record: of `calibrate`, to hold these against as well.

    Raises:
        UserError: fewer than two ranks, more than GPUs where there are some, no such record, or a
            record without ranks.
    """
    if ranks is None and record is not None:
        raise UserError("a record is for ranks: give their number, too, as --ranks 4")
    if ranks is not None:
        return ranks_report(ranks, record)
    machine = find_machine()
    lines = [
        *package_lines(),
        device_line(machine),
        *backend_lines(machine),
        memory_line(machine),
        disk_line(machine),
        bundled_data_line(),
        compiler_line(),
        all_reduce_line("gloo"),
    ]
    if len(machine.gpus) >= 2:
        lines.append(all_reduce_line("nccl"))
    return Report(tuple(lines), ready_for(lines, machine))


def package_lines(distribution: str = HELPERS) -> list[Line]:
    """Python and the packages, against the ranges that an installed distribution asks for; of one
    that was copied, whether they are there."""
    try:
        needs = requirements(distribution)
        wanted = wanted_python(distribution)
        new_enough = within(python_version(), wanted)
    except PackageNotFoundError:
        words = f"{distribution} was copied, not installed: nothing says which are wanted"
        return [Line("versions", WARN, words), *map(_package_line, needed())]
    except UserError:
        return [Line("packaging", FAIL, "not installed", install("packaging"))]
    python = f"{python_version()} (wanted {wanted})"
    if new_enough:
        lines = [Line("python", OK, python)]
    else:
        step = f"install Python {wanted}, then {install('torch')}"
        lines = [Line("python", FAIL, python, step)]
    return lines + [_package_line(need) for need in needs if need.extra != "dev"]


def _package_line(need: Requirement) -> Line:
    words = need.installed or "not installed"
    words += f" (wanted {need.wanted})" if need.wanted else ""
    requirement = need.name + need.wanted
    if need.satisfied:
        return Line(need.name, OK, words)
    if need.extra in OPTIONAL:
        step = f"only for {OPTIONAL[need.extra]}: {install(requirement, need.extra)}"
        return Line(need.name, WARN, words, step)
    return Line(need.name, FAIL, words, install(requirement))


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
        step = f"reinstall torch: {install('torch')}"
        lines.append(Line("gloo", FAIL, "missing in this torch", step))
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


def bundled_data_line() -> Line:
    """The bundled data, wherever it came with helpers."""
    try:
        return data_line(bundled(SUMS).parent)
    except UserError as error:
        words, _, step = str(error).partition(": ")
        return Line("data", FAIL, words, step)


def data_line(folder: Path) -> Line:
    """A folder of data against its SHA256SUMS."""
    remake = "make it again: python scripts/data/make_data.py"
    if not (ROOT / "scripts" / "data" / "make_data.py").is_file():
        remake = "copy the project's folder data again"
    sums = folder / SUMS
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
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        try:
            run = launch(
                TWO_RANKS,
                nproc=2,
                out=Path(folder) / "run",
                timeout_s=ALL_REDUCE_TIMEOUT_S,
                show=False,
                backend=backend,
            )
        except (RunFailed, UserError, OSError) as error:
            by_hand = f"torchrun --nproc-per-node 2 -m {TWO_RANKS} --backend {backend} --out runs"
            return Line(name, FAIL, str(error).splitlines()[0], f"for all of it, run: {by_hand}")
        return Line(name, OK, f"started, summed and ended in {run.wall_s:.1f} s")


def ready_for(lines: list[Line], machine: Machine) -> str:
    """The last line: which notebooks, with which profiles."""
    failed = [line.name for line in lines if line.verdict == FAIL]
    if failed:
        return f"Not ready: {', '.join(failed)}. Follow the next steps above, from the top."
    parts = [f"{number} ({', '.join(runnable(number, machine))})" for number in PROFILES]
    return f"Ready for notebooks, with profiles: {'; '.join(parts)}."


def _enough(name: str, available: float, least: float, good: float) -> Line:
    """Bytes of memory or disk, judged."""
    words = f"{available / GB:.1f} GB"
    if available < least:
        return Line(name, FAIL, words, f"at least {least / GB:.1f} GB are needed")
    if available < good:
        return Line(name, WARN, words, f"{good / GB:.0f} GB are better: close other programs")
    return Line(name, OK, words)


def main(words: Sequence[str] = ()) -> int:
    parser = Parser(prog="helpers.lab.doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, help="measure so many ranks: is one of them slow?")
    parser.add_argument("--record", type=Path, help="of calibrate(), to hold the ranks against")
    args = parser.parse_args(words)
    try:
        report = doctor(args.ranks, args.record)
    except UserError as error:
        parser.error(str(error))
    say(str(report))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
