"""What was found, in words: Markdown for people, the same as data for programs."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from helpers.commands import markdown
from helpers.engine.errors import one_line
from helpers.leave.forms import sweep_line, torchrun_line
from helpers.smp.jobs.job import Job
from helpers.smp.jobs.lines import Line
from helpers.smp.jobs.pricing import words_of
from helpers.smp.jobs.tuners import Sweep
from helpers.smp.leaving import Leaving
from helpers.smp.reading.catalogue import VERDICTS, catalogue

LONGEST = 160  # of a cell


def report(found: Leaving) -> str:
    """All of it as Markdown."""
    parts = [_counts(found), *(_job(n, job) for n, job in enumerate(found.jobs, 1))]
    parts += [_sweep(n, one) for n, one in enumerate(found.sweeps, 1)]
    if found.mistakes:
        rows = ((one.place, one.kind, one.words) for one in found.mistakes)
        parts.append("## Mistakes\n\n" + table(("where", "which", "what it does"), rows))
    if found.unread or found.beside:
        rows = [(place, why) for place, why in found.unread]
        rows += [
            (path, "it uses the libraries, too: give it with the others") for path in found.beside
        ]
        parts.append("## Not read\n\n" + table(("where", "why"), rows))
    if found.lines:
        parts.append("## Every use\n\n" + uses_table(found.lines))
    return "\n\n".join(parts) + "\n"


def uses_table(lines: Iterable[Line]) -> str:
    head = ("where", "what", "verdict", "became, or why", "lost", "by hand")
    rows = (
        (one.place, f"`{one.text}`", one.verdict, one.became, one.lost, one.by_hand)
        for one in lines
    )
    return table(head, rows)


def table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    return markdown(head, (map(_cell, row) for row in rows))


def _cell(value: Any) -> str:
    text = one_line(" ".join(str(value).split())).replace("|", "\\|")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _counts(found: Leaving) -> str:
    counts = Counter((line.library, line.verdict) for line in found.lines)
    libraries = dict.fromkeys(line.library for line in found.lines)
    if not libraries:
        return "Nothing of the closed service is used."
    rows = []
    for library in libraries:
        numbers = [counts[library, verdict] for verdict in VERDICTS]
        ending = catalogue().endings.get(library)
        rows.append((library, *numbers, ending or "", ending.source if ending else ""))
    total = Counter(line.verdict for line in found.lines)
    words = ", ".join(f"{total[verdict]} {verdict}" for verdict in VERDICTS)
    head = ("library", *VERDICTS, "the old one", "source")
    return f"{len(found.lines)} uses: {words}.\n\n{table(head, rows)}"


def _job(number: int, job: Job) -> str:
    words = [f"## Run {number}: {job.name} ({job.place})"]
    if job.refused:
        words.append(f"Refused: {job.refused}.")
    if job.asked:
        asks = " ".join(f"--set {name}=VALUE" for name in job.asked)
        words.append(f"Not in the files, so there is no plan yet: {asks}")
    if job.plan is not None and not job.refused:
        words.append(f"Plan: {job.plan.describe()} on {job.machines}. {words_of_price(job)}.")
        words.append(f"```bash\n{torchrun_line(job)}\n```")
        if job.config is not None:
            words.append("MODEL is the folder model/ beside the run's files, which --out writes.")
    if job.settings:
        rows = ((f"`{one.name}`", repr(one.value), one.words) for one in job.settings)
        words.append(
            "Settings:\n\n" + table(("hyperparameter", "value", "became, or why not"), rows)
        )
    if job.metrics:
        rows = (
            (one.name, f"`{one.old}`", f"`{one.regex}`" if one.regex else "", one.words)
            for one in job.metrics
        )
        words.append(
            "Metrics:\n\n" + table(("name", "expression", "for --log-every", "reads"), rows)
        )
    if job.rules:
        rows = ((one.name, one.words) for one in job.rules)
        words.append("Rules:\n\n" + table(("rule", "became"), rows))
    return "\n\n".join(words)


def words_of_price(job: Job) -> str:
    return words_of(job.config or job.preset, job.plan, job.machines, job.flags)


def _sweep(number: int, sweep: Sweep) -> str:
    head = f"## Sweep {number} ({sweep.place})"
    if sweep.refused:
        return f"{head}\n\nRefused: {sweep.refused}."
    words = [head, f"```bash\n{sweep_line(sweep)}\n```"]
    if sweep.left:
        words.append("Left out:\n\n" + table(("range", "why"), sweep.left.items()))
    return "\n\n".join(words)


def as_data(found: Leaving) -> dict[str, Any]:
    """The report for programs."""
    return {
        "lines": [
            {
                **asdict(line),
                "place": str(line.place),
                "file": line.place.file,
                "cell": line.place.cell,
                "line": line.place.line,
                "ends": line.ends,
            }
            for line in found.lines
        ],
        "jobs": [_job_data(job) for job in found.jobs],
        "sweeps": [
            {
                "place": str(one.place),
                "refused": one.refused,
                "space": one.space,
                "trials": one.trials,
                "left": one.left,
                "command": "" if one.refused else sweep_line(one),
            }
            for one in found.sweeps
        ],
        "mistakes": [{**asdict(one), "place": str(one.place)} for one in found.mistakes],
        "unread": [[str(place), why] for place, why in found.unread],
        "beside": found.beside,
    }


def _job_data(job: Job) -> dict[str, Any]:
    ready = job.plan is not None and not job.refused
    return {
        "name": job.name,
        "place": str(job.place),
        "refused": job.refused,
        "asked": job.asked,
        "plan": job.plan.to_dict() if ready and job.plan else None,
        "nodes": job.machines.nodes,
        "nproc": job.machines.nproc,
        "instance": job.machines.instance,
        "flags": job.run_flags() if ready else {},
        "env": job.env,
        "command": torchrun_line(job) if ready else "",
        "metric_definitions": [one.definition() for one in job.metrics if one.regex],
        "watch": sorted({kind for rule in job.rules for kind in rule.kinds}),
    }


def to_json(found: Leaving) -> str:
    return json.dumps(as_data(found), indent=1, default=str) + "\n"
