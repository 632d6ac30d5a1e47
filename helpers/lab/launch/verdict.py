"""How a run ended, as the error that says so, or none."""

from helpers.engine.errors import UserError
from helpers.engine.files.manifest import list_checkpoints
from helpers.lab.launch.command import Job
from helpers.lab.launch.processes import Stopped
from helpers.lab.paths import shorten, shown
from helpers.lab.runs.failure_report import RunFailed, explain, last_lines, rank_folder
from helpers.lab.runs.run import load_run


def failure(job: Job, exit_code: int, last_lines: list[str]) -> RunFailed | None:
    """Why a run that ended by itself did not end well; None where it did.

    Args:
        last_lines: of its output.
    """
    if exit_code != 0:
        return explain(job.out, job.logs, exit_code, last_lines)
    return _unfinished(job) if job.program.trains else None


def noted(job: Job) -> str:
    """Of a run that ended well: its first warning, how many there are, and where it is tracked."""
    if not job.program.trains:
        return ""
    run = load_run(job.out)
    tracked = [f"tracked: {command}" for command in run.tracked.values()]
    return "; ".join([*_first_warning(run.summary.get("warnings") or []), *tracked])


def _first_warning(warnings: list[str]) -> list[str]:
    more = f" (the first of {len(warnings)} warnings)" if len(warnings) > 1 else ""
    return [f"warning: {warnings[0]}{more}"] if warnings else []


def overtime(
    job: Job, timeout_s: float, step: int | None, rank_lines: list[str], stopped: Stopped
) -> RunFailed:
    """That a run was stopped since its time was over, after `step` or before the first."""
    where = "before the first step" if step is None else f"after step {step}"
    lines = [
        f"stopped after timeout_s={timeout_s:g}, {where}: {stopped}",
        *rank_lines,
        f"Whole logs: {shown(job.logs)}",
    ]
    return RunFailed(shorten("\n".join(lines)), path=job.out)


def interrupted(job: Job, step: int | None, stopped: Stopped) -> str:
    """That a run was interrupted, what is left of it, and how to go on."""
    words, out = f"interrupted: {stopped}", repr(shown(job.out))
    if step is None:
        return words
    words += f"; load_run({out}).metrics has its steps up to {step}"
    whole = list_checkpoints(job.out / "checkpoints")
    if whole and job.program.trains:
        words += f"; launch(..., out={out}, resume=True) goes on from {whole[-1].name}"
    return words


def last_words(job: Job) -> list[str]:
    """A line a running rank: the last thing that it said."""
    if rank_folder(job.logs, 0) is None:
        return ["torchrun had not started the ranks yet"]
    lines = []
    for rank in range(job.nodes * job.nproc):
        folder = rank_folder(job.logs, rank)
        files = [folder / "stdout.log", folder / "stderr.log"] if folder else []
        files.sort(key=lambda file: file.stat().st_mtime_ns)
        said = [line for file in files for line in last_lines(file, 1)]
        lines.append(f"rank {rank} was running; its last line: {said[-1] if said else 'none'}")
    return lines


def _unfinished(job: Job) -> RunFailed | None:
    """Every rank returned 0; a training must have said so in summary.json too."""
    try:
        status = load_run(job.out).summary.get("status")
        words = f"its status is {status!r} instead of 'done'"
    except UserError as error:
        status, words = None, str(error)
    if status == "done":
        return None
    message = f"{job.program.name} ended with code 0 but did not finish: {words}"
    return RunFailed(message, path=job.out, exit_code=0)
