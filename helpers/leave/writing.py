"""`--write`: scripts with their calls replaced, and the diffs, by the names of files."""

from typing import Any

from helpers.engine.errors import UserError
from helpers.leave.forms import script_line
from helpers.smp.jobs.estimators import part
from helpers.smp.leaving import Leaving, Read
from helpers.smp.reading.values import is_known
from helpers.smp.rewriting.script import SHARED, Rewritten, rewritten

SESSION = '''"""The session that the scripts of this project share."""

from helpers.smp.running import Session

run = Session()
'''


def written(found: Leaving) -> dict[str, str]:
    """For each script NAME.py and NAME.py.diff, or NAME.py.reasons where it was not written.

    Raises:
        UserError: two scripts have one name.
    """
    scripts = [
        read
        for read in found.reads
        if read.source.path.suffix == ".py" and not read.estimators  # these start jobs
    ]
    parallel = [read for read in scripts if any(line.library == "SMP v1" for line in read.lines)]
    shared = len(parallel) > 1
    files: dict[str, str] = {f"{SHARED}.py": SESSION} if shared else {}
    for read in scripts:
        if not read.lines:
            continue
        name = read.source.path.name
        if name in files or f"{name}.reasons" in files:
            raise UserError(
                f"{name} would be written twice: give scripts of one name one at a time"
            )
        one = rewritten(read.source.path, read.program, _given(read, found), shared)
        files |= _files(name, one)
    return files


def started(found: Leaving, files: dict[str, str]) -> dict[str, str]:
    """For each job whose script was written, what starts it: run-N/script.sh."""
    lines = {}
    for number, job in enumerate(found.jobs, 1):
        entry = str(job.estimator.get("entry_point", "")) if job.estimator else ""
        name = entry.rpartition("/")[2]
        if name in files:
            line = script_line(job, f"written/{name}")
            lines[f"run-{number}/script.sh"] = f"#!/usr/bin/env bash\n{line}\n"
    return lines


def in_words(files: dict[str, str]) -> str:
    """The diffs, and why there are none, as a part of the report."""
    parts = []
    for name, text in files.items():
        if name.endswith(".diff"):
            parts.append(f"\n## {name}\n\n```diff\n{text}```\n")
        elif name.endswith(".reasons"):
            rows = "".join(f"- {line}\n" for line in text.splitlines())
            parts.append(f"\n## {name.removesuffix('.reasons')} was not written\n\n{rows}")
    return "".join(parts)


def _files(name: str, one: Rewritten) -> dict[str, str]:
    if one.reasons:
        return {f"{name}.reasons": "\n".join(one.reasons) + "\n"}
    return {name: one.text, f"{name}.diff": one.diff}


def _given(read: Read, found: Leaving) -> dict[str, Any] | None:
    """The configuration that a job gives to the script, where all of it is known."""
    for other in found.reads:
        for job in other.estimators:
            entry = str(job.get("entry_point", "")).rpartition("/")[2]
            given = part(job.get("distribution"), "smdistributed", "modelparallel", "parameters")
            if entry == read.source.path.name and isinstance(given, dict) and is_known(given):
                return dict(given)
    return None
