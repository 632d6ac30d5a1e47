"""The doctor's look at ranks before they are given work: who is slow, and by how much.

helpers/planner/measure/health.py is what each of them measures, health_verdict.py who is slow.
"""

import tempfile
from pathlib import Path
from statistics import median

import torch

from helpers.engine.errors import UserError, check_count
from helpers.lab.launch.launch import launch
from helpers.lab.machine.report import FAIL, OK, WARN, Line, Report
from helpers.lab.runs.failure_report import RunFailed
from helpers.planner.measure.calibrate import load_cluster
from helpers.planner.measure.gpu_state import State
from helpers.planner.measure.health import RankHealth, read_health
from helpers.planner.measure.health_verdict import Finding, amount, expected_rates, judge, links

MODULE = "helpers.planner.measure.health"
LIMIT_S = 300
MOST_PAIRS = 28  # of eight ranks; of more, the slowest alone are shown
NEXT = "start no job with it: look at what else runs there, its cooling, its cable"
OLDER = "if nothing else runs here, look for what has changed; else calibrate() again"


def ranks_report(ranks: int, record: str | Path | None = None) -> Report:
    """Start `ranks` on this machine, have them measure themselves and each other, and judge.

    Args:
        record: of `calibrate`, to hold them against; on GPUs without it the planner's table.

    Raises:
        UserError: fewer than two ranks, more than GPUs where there are some, or no such record.
    """
    check_count("ranks", ranks, least=2)  # that are held against each other
    if torch.cuda.is_available() and ranks > torch.cuda.device_count():
        raise UserError(f"there are {torch.cuda.device_count()} GPUs, so at most as many ranks")
    cluster = load_cluster(record) if record is not None else None
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        out = Path(folder) / "run"
        try:
            launch(MODULE, nproc=ranks, out=out, timeout_s=LIMIT_S, show=False, threads=1)
        except (RunFailed, OSError) as error:
            words = str(error).splitlines()[0]
            by_hand = f"torchrun --nproc-per-node {ranks} -m {MODULE} --out runs/health"
            line = Line("ranks", FAIL, words, f"for all of it, run: {by_hand}")
            return Report((line,), "Not ready: the ranks could not be measured.")
        found = read_health(out / "health.json")
    return report_of(found, judge(found, expected_rates(found, cluster)))


def report_of(found: list[RankHealth], findings: list[Finding]) -> Report:
    """A line a rank, a pair and a finding."""
    facts = [_rank_line(rank, one) for rank, one in enumerate(found)]
    wrong = [
        Line(f"rank {one.rank}", FAIL, one.words, NEXT)
        if one.slower
        else Line(f"rank {one.rank}", WARN, one.words, OLDER)
        for one in findings
    ]
    slow = sorted({finding.rank for finding in findings if finding.slower})
    if slow:
        ready = f"Not ready: slower than their peers: {', '.join(f'rank {rank}' for rank in slow)}."
    else:
        ready = f"Ready: none of the {len(found)} ranks is slower than its peers."
    return Report((*facts, *_link_lines(found), *wrong), ready)


def _rank_line(rank: int, one: RankHealth) -> Line:
    rates = (f"{kind} {amount(kind, rate)}" for kind, rate in one.rates.items())
    gpu = f", {_clocks(one.gpu)}, {_ecc(one.gpu)}" if one.gpu else ""
    return Line(f"rank {rank}", OK, f"{one.node}, {one.device}: {', '.join(rates)}{gpu}")


def _clocks(gpu: State) -> str:
    now, most = gpu["clocks.sm"], gpu["clocks.max.sm"]
    return "clocks unknown" if None in (now, most) else f"{now:.0f} of {most:.0f} MHz"


def _ecc(gpu: State) -> str:
    errors = gpu["ecc.errors.uncorrected.volatile.total"]
    return "no ECC" if errors is None else f"{errors:.0f} uncorrected ECC errors"


def _link_lines(found: list[RankHealth]) -> list[Line]:
    pairs = links(found)
    slowest = sorted(pairs, key=lambda pair: pairs[pair][1])[:MOST_PAIRS]
    lines = [
        Line(
            f"link {a}-{b}", OK, f"{pairs[a, b][0] * 1e6:.0f} µs, {amount('link', pairs[a, b][1])}"
        )
        for a, b in sorted(slowest)
    ]
    if len(pairs) > len(slowest):
        rate = amount("link", median(rate for _, rate in pairs.values()))
        more = f"{len(pairs)} pairs, the median {rate}; above are the slowest {len(slowest)}"
        lines.append(Line("links", OK, more))
    return lines
