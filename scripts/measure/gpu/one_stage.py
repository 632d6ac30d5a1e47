"""One stage of acceptance.py, in this process or as one rank of it."""

import argparse
import faulthandler
import sys
from pathlib import Path

from report import ROOT, Report
from stages import STAGES

sys.path.insert(0, str(ROOT))  # of the tests, whose tiny models are the truth here, too

from helpers.engine.ranks import run_and_leave

LATE_S = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    faulthandler.enable()  # a crash beneath Python says in which line
    faulthandler.dump_traceback_later(LATE_S, repeat=True)  # and a stage that is late, where it is
    report = Report(args.stage, args.tiny)
    with report.attempt("the stage runs to its end"):
        STAGES[args.stage].run(report)
    report.write(args.json)
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    run_and_leave(main)
