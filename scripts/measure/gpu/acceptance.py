"""What a GPU must show before a figure of it is believed: stages of minutes, a record of each.

    python scripts/measure/gpu/acceptance.py                    all stages, on the first GPU
    python scripts/measure/gpu/acceptance.py layouts speed      these
    python scripts/measure/gpu/acceptance.py --tiny             the same in small, on a CPU too

Each stage runs in processes of its own, below --limit seconds, without the network, and writes
data/gpu_runs/<UTC>-<stage>.json: checks and figures, the device, the versions, the commit and the
command. The exit code is the number of stages that failed. Messages between two GPUs are what one
GPU cannot show.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from report import ROOT
from stages import STAGES

FOLDER = ROOT / "data" / "gpu_runs"
MOST_S, LAST = 570, 60  # seconds of a stage, and lines that are kept of one without a record
FOUND, STACK = ("  ", "FAILED"), ("  File ", "    ", "  <no Python frame>")  # lines of a stage
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
HERE = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(STAGES)}; all by default")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU too")
    parser.add_argument("--limit", type=float, default=MOST_S, help="seconds of a stage")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the records")
    args = parser.parse_args()
    unknown = [name for name in args.stages if name not in STAGES]
    if unknown:
        parser.error(f"no stage {unknown[0]!r}; there are: {', '.join(STAGES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
    names = args.stages or list(STAGES)
    fine = [run(name, args.out / f"{now}-{name}.json", args) for name in names]
    sys.exit(fine.count(False))


def run(name: str, record: Path, args: argparse.Namespace) -> bool:
    """One stage to its end; whether all of its checks hold."""
    command = [str(Path(__file__).with_name("one_stage.py")), name, "--json", str(record)]
    command += ["--tiny"] * args.tiny
    ranks = STAGES[name].ranks
    starter = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *(starter if ranks > 1 else []), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=args.limit,
            env=os.environ | OFFLINE | HERE,  # the package may not be installed
            cwd=ROOT,
        )
        code, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, said = (
            f"no end after {args.limit:.0f} s",
            (late.stdout or b"").decode(errors="replace"),
        )
    lines = said.splitlines()
    found = [line for line in lines if line.startswith(FOUND) and not line.startswith(STACK)]
    if not record.exists():  # it ended before it could say anything
        failure = {"stage": name, "ok": False, "ended": code, "found": found, "last": lines[-LAST:]}
        record.write_text(json.dumps(failure, indent=1) + "\n")
    print(f"== {name}: {time.monotonic() - began:.0f} s, {record}")
    print("\n".join(found))
    if code != 0:
        print("\n".join(lines[-4:]))
    return code == 0


if __name__ == "__main__":
    main()
