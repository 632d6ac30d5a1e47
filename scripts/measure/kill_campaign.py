"""Runs that are killed at random moments, and cut files: what is left, what is lost, what goes on.

    python scripts/measure/kill_campaign.py --kills 1000 --cuts 200 --seed 0

A kill: a kernel, which is a process that calls `launch`, trains on two ranks, and at a random
moment one of kernel, guard, agent and rank gets SIGKILL, SIGTERM, SIGINT or SIGSTOP. As a SIGSTOP
ends nobody, the reader gives up a second later: the kernel is interrupted, or, if it is the one
that was stopped, killed as Jupyter restarts it. Then no process of the run may be left, no
checkpoint that was published may be gone, and the run must go on from there to the very losses of
an undisturbed one.

A cut: the power fails, and a file of the newest checkpoint, or metrics.jsonl, ends at a random
byte. The run must go on to the same losses, or be refused in one line.

Each kill and cut is drawn from the seed and its own number: `--first 417 --kills 1` repeats one.
Exits with 1 if anything fell short.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from helpers.lab.launch.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.runs.failure_report import RunFailed
from helpers.train.arguments import count

TRAIN = "scripts/train.py"
STEPS, EVERY, POWER_FAILS = 30, 5, 27
RUN = {"model": "neox-tiny", "layers": 2, "hidden": 64, "batch_size": 8, "seq_len": 64}
RUN |= {"steps": STEPS, "checkpoint_every": EVERY, "timeout": 20}
LAYOUTS = {
    "tp": {"tp": 2},
    "pp": {"pp": 2, "microbatches": 2},
    "zero3": {"dp_shard": 2},
    "ddp": {"dp_replicate": 2},
}
VICTIMS = ("kernel", "guard", "agent", "rank")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP")
MARK = "KILL_CAMPAIGN"  # the variable that every process of a run inherits from its kernel
START_S = 10.0  # about what a run takes to its first step
END_S, GONE_S = 120.0, 15.0  # in which a kernel ends, and after it all others


@dataclass(frozen=True)
class Kill:
    """Whom, by what, and when: `wait_s` after that many steps; 0 steps: after the start."""

    number: int
    layout: str
    victim: str
    signal: str
    background: bool
    steps: int
    wait_s: float


def draw_kill(seed: int, number: int) -> Kill:
    """Any four in a row have all layouts and all victims; all else is random."""
    rng = random.Random(f"kill {seed} {number}")
    steps = rng.choice([0, *range(1, STEPS)])
    return Kill(
        number,
        layout=list(LAYOUTS)[number % 4],
        victim=VICTIMS[(number + number // 4) % 4],
        signal=rng.choice(SIGNALS),
        background=rng.random() < 0.5,
        steps=steps,
        wait_s=rng.uniform(0, 0.1 if steps else START_S),
    )


def lines_of(out: Path) -> list[str]:
    """Of metrics.jsonl, by step; one that is being written does not count."""
    metrics = out / "metrics.jsonl"
    return metrics.read_text().split("\n")[:-1] if metrics.exists() else []


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in lines_of(out)]


def checkpoints(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("checkpoints/step-*"))


def come_to(condition: Callable[[], object], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def alive(mark: str) -> list[psutil.Process]:
    """The processes of a run. Those that have ended, and are not asked for yet, do not count."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def find(victim: str, mark: str, kernel: subprocess.Popen, rank: int) -> psutil.Process | None:
    if victim == "kernel":
        return psutil.Process(kernel.pid)
    for process in alive(mark):
        try:
            words, variables = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        is_rank = variables.get("RANK") == str(rank)
        program = {"guard": "process_guard", "agent": "torchrun_agent"}.get(victim, "")
        if is_rank if victim == "rank" else any(program in word for word in words[:4]):
            return process
    return None


def strike(kill: Kill, out: Path) -> str:
    """Start the run, kill, and wait until all is over. What fell short, or nothing."""
    mark = uuid.uuid4().hex
    flags = json.dumps(RUN | LAYOUTS[kill.layout] | {"background": kill.background})
    kernel = subprocess.Popen(
        [sys.executable, __file__, "--kernel", str(out), flags],
        env=os.environ | {MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    over = lambda: kernel.poll() is not None  # noqa: E731
    come_to(lambda: over() or not kill.steps or len(lines_of(out)) >= kill.steps, END_S)
    time.sleep(kill.wait_s)
    found: list[psutil.Process | None] = []
    rank = kill.number % 2
    come_to(lambda: over() or found.append(find(kill.victim, mark, kernel, rank)) or found[-1], 30)
    published = checkpoints(out)
    if found and found[-1]:
        _send(found[-1], kill.signal)
    if kill.signal == "SIGSTOP" and not over():
        time.sleep(1)
        _send(psutil.Process(kernel.pid), "SIGKILL" if kill.victim == "kernel" else "SIGINT")
    wrong = ""
    if not come_to(over, END_S):
        wrong = "the kernel does not end"
        kernel.kill()
    elif not come_to(lambda: not alive(mark), GONE_S):
        wrong = f"left running: {[' '.join(process.cmdline())[:80] for process in alive(mark)]}"
    for process in alive(mark):
        _send(process, "SIGKILL")
    kernel.wait()
    if published and published[-1] not in checkpoints(out):
        wrong = wrong or f"{published[-1]} is gone; there is {checkpoints(out)}"
    return wrong


def _send(process: psutil.Process, name: str) -> None:
    try:
        process.send_signal(getattr(signal, name))
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return


def go_on(out: Path, layout: str, expected: list[float], ranks: Ranks) -> str:
    """Resume the run. What fell short, or nothing."""
    if (out / "summary.json").exists():  # the kill came too late
        return "" if losses(out) == expected else "the finished run has other losses"
    newest = (checkpoints(out) or ["step-0"])[-1]
    done = int(newest.removeprefix("step-"))
    before = lines_of(out)[:done]  # with the times that these steps took
    flags = RUN | LAYOUTS[layout]
    launch(TRAIN, nproc=2, out=out, ranks=ranks, show=False, resume="auto", **flags)
    if losses(out) != expected:
        return f"other losses after {newest}"
    return "" if lines_of(out)[:done] == before else f"{newest} was not gone on from"


def cut(seed: int, number: int, whole: Path, out: Path) -> str:
    """A run as a power failure leaves it, with one file cut. The file and the byte."""
    rng = random.Random(f"cut {seed} {number}")
    shutil.copytree(whole, out)
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoints" / checkpoints(out)[-1])
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:POWER_FAILS]))
    newest = out / "checkpoints" / checkpoints(out)[-1]
    files = [path for path in sorted(newest.rglob("*")) if path.is_file()]
    path = rng.choice([*files, out / "metrics.jsonl"])
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} cut at byte {size}"


def after_a_cut(out: Path, layout: str, expected: list[float], ranks: Ranks) -> tuple[str, str]:
    """`went on` or `refused`, and what fell short."""
    try:
        return "went on", go_on(out, layout, expected, ranks)
    except RunFailed as failed:
        said = failed.message.splitlines()
        fine = failed.exit_code == 2 and any("error: " in line for line in said)
        return "refused", "" if fine else f"refused by {said[:3]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=count, default=16)
    parser.add_argument("--cuts", type=count, default=16)
    parser.add_argument("--first", type=count, default=0, help="number of the first kill and cut")
    parser.add_argument("--seed", type=count, default=0)
    parser.add_argument("--kernel", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kernel:
        out, flags = args.kernel
        launch(TRAIN, nproc=2, out=out, show=False, **json.loads(flags))
        return 0
    wrong, told = [], Counter()
    with tempfile.TemporaryDirectory() as name, closing(Ranks(2)) as ranks:
        folder = Path(name)
        for layout, degrees in LAYOUTS.items():
            launch(TRAIN, nproc=2, out=folder / layout, ranks=ranks, show=False, **RUN | degrees)
        expected = {layout: losses(folder / layout) for layout in LAYOUTS}
        for number in range(args.first, args.first + args.kills):
            kill, out = draw_kill(args.seed, number), folder / "killed"
            said = strike(kill, out) or go_on(out, kill.layout, expected[kill.layout], ranks)
            told[kill.victim, kill.signal] += 1
            wrong += [f"{kill}: {said}"] if said else []
            print(f"{kill}: {said or 'fine'}", flush=True)
            shutil.rmtree(out, ignore_errors=True)
        for number in range(args.first, args.first + args.cuts):
            layout, out = list(LAYOUTS)[number % 4], folder / "cut"
            what = cut(args.seed, number, folder / layout, out)
            how, said = after_a_cut(out, layout, expected[layout], ranks)
            told["cut", how] += 1
            wrong += [f"cut {number} of {layout}, {what}: {said}"] if said else []
            print(f"cut {number} of {layout}, {what}: {said or how}", flush=True)
            shutil.rmtree(out)
    print(f"seed {args.seed}: {args.kills} kills, {args.cuts} cuts, {len(wrong)} fell short")
    print(*(f"  {' '.join(pair)}: {many}" for pair, many in sorted(told.items())), sep="\n")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
