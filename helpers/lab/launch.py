"""launch(): start a script on several ranks, follow it, stop it, and say why it failed.

The ranks are started by torchrun (through agent.py, one for each node), beneath a guard (guard.py)
that ends all of them when this process ends, however that happens. Nothing inherits the kernel's
own streams: the merged output comes through a pipe, is shown in one panel, and stands whole on
disk.
"""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab import guard, network
from helpers.lab.failures import RunFailed, attempts, explain, last_lines, rank_folder
from helpers.lab.follow import Metrics, Output
from helpers.lab.job import Job, environment, prepare
from helpers.lab.network import Link
from helpers.lab.nodes import Nodes
from helpers.lab.panel import LINES_SHOWN, Panel, View
from helpers.lab.paths import ROOT, shorten, shown
from helpers.lab.runs import Run, load_run

GRACE_S = 3.0  # between SIGTERM and SIGKILL
QUIET_S = 60.0  # without a line or a step for so long, say that a rank may be waiting


def launch(
    script: str | Path,
    *,
    nproc: int = 1,
    nodes: int = 1,
    max_restarts: int = 0,
    link: Link | None = None,
    out: str | Path | None = None,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    threads: int | None = None,
    show: bool = True,
    **flags: Any,
) -> Run:
    """Run `script` on `nproc` ranks of this machine by torchrun, to its end.

    Args:
        script: looked for in the project root, then in the current folder. It runs in the project
            root, and gets `--out` with the run's folder.
        nproc: ranks to start on each node, one a device.
        nodes: torchrun's agents, which meet by rendezvous: all on this machine, as a cluster's
            would run one on each of its nodes.
        max_restarts: times that torchrun may start the ranks again after a failure, and that an
            agent which was killed is started again. scripts/train.py goes on from its last
            checkpoint with `resume="auto"` and `checkpoint_every`.
        link: give each of two nodes a network of its own, joined by this link (Linux, root).
        out: the run's folder, relative to the project root; by default a new one under runs/.
        timeout_s: stop everything after so many seconds.
        env: environment variables beyond those of this process.
        threads: CPU threads a rank; by default the cores divided among the ranks.
        show: follow the run in a panel, or in a few printed lines outside a notebook.
        flags: the script's own. `batch_size=8` becomes `--batch-size 8`, True `--flag`, False
            `--no-flag`, None is left out, and a list `--flag a b c`.

    Returns:
        The finished run.

    Raises:
        UserError: nothing was started: no such script, a folder that cannot be used, or a link
            that cannot be made.
        RunFailed: a rank failed (with the first one's own words), or the time was over.
        KeyboardInterrupt: as it came, once every process has been ended.
    """
    if sys.platform == "win32":
        raise UserError("launch() needs Linux or macOS; on Windows, use WSL")
    if nproc < 1:
        raise UserError(f"nproc is {nproc}: at least one rank is needed")
    if nodes < 1 or max_restarts < 0:
        raise UserError(f"nodes is {nodes} and max_restarts {max_restarts}: 1 and 0 are the least")
    if link is not None:
        if nodes != 2:
            raise UserError(f"a link joins two nodes, but nodes is {nodes}: give nodes=2")
        network.check(link)
    job = prepare(script, nproc, out, flags, nodes, max_restarts)
    return _Launch(job, timeout_s, Panel(show), link).run(environment(nodes * nproc, env, threads))


class _Launch:
    """One launch, from the first process to the last."""

    def __init__(
        self, job: Job, timeout_s: float | None, panel: Panel, link: Link | None = None
    ) -> None:
        self.job = job
        self.link = link
        self.timeout_s = timeout_s
        self.panel = panel
        self.metrics = Metrics(job.out / "metrics.jsonl")
        self.marker = uuid.uuid4().hex  # every process of the run carries it
        self.process: subprocess.Popen[bytes] | None = None
        self.output: Output | None = None
        self.lines_before: list[str] = []  # the last ones before torchrun tells how it is stopped
        self.left: set[int] = set()
        self.stopping_s = 0.0
        self.started_s, self.started_at = time.monotonic(), time.time()

    def run(self, variables: dict[str, str]) -> Run:
        self._write_record("running")
        try:
            self._start(variables)
            in_time = self._follow()
            running = [] if in_time else self._what_runs()
        except KeyboardInterrupt:
            self._stop()
            words = f"interrupted: {self._ended_words()}"
            self._finish("stopped", words)
            raise KeyboardInterrupt(words) from None
        finally:
            self._stop()
        failure = self._failure() if in_time else self._overtime(running)
        if failure is None:
            self._finish("done")
            return load_run(self.job.out)
        self._finish("failed" if in_time else "stopped", failure.message.splitlines()[0])
        raise failure

    def _start(self, variables: dict[str, str]) -> None:
        python, grace = sys.executable, str(GRACE_S)
        self.process = subprocess.Popen(
            [python, "-I", "-S", guard.__file__, grace, *self._agents()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env={**variables, guard.MARKER: self.marker},
        )
        self.output = Output(self.process.stdout, self.job.logs / "launch.log")
        self.output.start()

    def _agents(self) -> list[str]:
        """What the guard starts: torchrun's agent, or what starts one for each node."""
        job = self.job
        if job.nodes > 1:
            nodes = Nodes(job.nodes, job.nproc, job.max_restarts, str(job.logs), GRACE_S, self.link)
            return nodes.command(job.torchrun)
        failures = str(job.logs / "failures.json")
        return [sys.executable, "-m", "helpers.lab.agent", failures, str(GRACE_S), *job.torchrun]

    def _follow(self) -> bool:
        """Show the run until it ends (True) or its time is over (False)."""
        while True:
            try:
                self.process.wait(0.1)
                return True
            except subprocess.TimeoutExpired:
                pass
            if self.timeout_s is not None and self._elapsed_s() > self.timeout_s:
                return False
            self.metrics.read()
            self.panel.update(self._view("running", self._quiet_words()))

    def _stop(self) -> None:
        """End every process of the run; nothing happens where all have ended by themselves."""
        if self.process is None:
            return
        stopping_s = time.monotonic()
        if self.output and self.process.poll() is None:
            self.lines_before = self.output.last(LINES_SHOWN)
        self.process.stdin.close()  # the guard takes this as: end them all
        try:
            self.process.wait(GRACE_S + guard.WAIT_FOR_KILL_S + 1)
        except subprocess.TimeoutExpired:
            self.process.kill()
        # the guard has done this already, unless it was itself killed
        self.left = guard.end_all(lambda: guard.family(self.marker), GRACE_S)
        self.process.wait()
        if self.output:
            self.output.join(timeout=1)
        self.metrics.read()
        self.stopping_s = time.monotonic() - stopping_s

    def _failure(self) -> RunFailed | None:
        code = self.process.returncode
        if code != 0:
            code = 128 - code if code < 0 else code
            return explain(self.job.out, self.job.logs, code, self.output.last(15))
        if self.job.script.name == "train.py":
            return self._unfinished()
        return None

    def _unfinished(self) -> RunFailed | None:
        """Every rank returned 0; a training script must have said so in summary.json too."""
        try:
            status = load_run(self.job.out).summary.get("status")
            words = f"its status is {status!r} instead of 'done'"
        except UserError as error:
            status, words = None, str(error)
        if status == "done":
            return None
        message = f"{self.job.script.name} ended with code 0 but did not finish: {words}"
        return RunFailed(message, path=self.job.out, exit_code=0)

    def _overtime(self, running: list[str]) -> RunFailed:
        step = self.metrics.last.get("step")
        where = "before the first step" if step is None else f"after step {step}"
        lines = [
            f"stopped after timeout_s={self.timeout_s:g}, {where}: {self._ended_words()}",
            *running,
            f"Whole logs: {shown(self.job.logs)}",
        ]
        return RunFailed(shorten("\n".join(lines)), path=self.job.out)

    def _what_runs(self) -> list[str]:
        """A line a rank: the last thing that it said."""
        if rank_folder(self.job.logs, 0) is None:
            return ["torchrun had not started the ranks yet"]
        lines = []
        for rank in range(self.job.nodes * self.job.nproc):
            folder = rank_folder(self.job.logs, rank)
            files = [folder / "stdout.log", folder / "stderr.log"] if folder else []
            files.sort(key=lambda file: file.stat().st_mtime_ns)
            said = [line for file in files for line in last_lines(file, 1)]
            lines.append(f"rank {rank} was running; its last line: {said[-1] if said else 'none'}")
        return lines

    def _ended_words(self) -> str:
        if self.left:
            return f"processes {sorted(self.left)} could not be ended, not even by SIGKILL"
        return f"every process was ended in {self.stopping_s:.1f} s"

    def _quiet_words(self) -> str:
        if self.output.error:
            return self.output.error
        heard_s = max(self.output.last_heard_s, self.metrics.last_heard_s)
        quiet_s = time.monotonic() - heard_s
        if quiet_s < QUIET_S:
            return ""
        return f"no output for {QUIET_S:.0f} s: a rank may be waiting in a collective"

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def _view(self, state: str, note: str = "") -> View:
        # of a failed run the last lines are the peers' complaints; the error that follows says why
        lines = self.lines_before
        if self.output and not lines and state != "failed":
            lines = self.output.last(LINES_SHOWN)
        return View(
            command=self.job.command,
            logs=shown(self.job.logs),
            state=state,
            elapsed_s=self._elapsed_s(),
            metrics=self.metrics.last,
            steps=self.job.steps,
            lines=tuple(map(shorten, lines)),
            note=note,
        )

    def _finish(self, state: str, note: str = "") -> None:
        self._write_record(
            state, wall_s=round(self._elapsed_s(), 3), before_ranks_s=self._before_ranks_s()
        )
        self.panel.finish(self._view(state, note))

    def _before_ranks_s(self) -> float | None:
        """torchrun makes the ranks' log folders right before it starts the ranks."""
        started = attempts(self.job.logs)
        if not started:
            return None
        return round(max(0.0, started[0].stat().st_mtime - self.started_at), 3)

    def _write_record(self, state: str, **measured: float | None) -> None:
        record = {
            "command": self.job.command,
            "nproc": self.job.nproc,
            "nodes": self.job.nodes,
            "state": state,
            **measured,
        }
        (self.job.out / "launch.json").write_text(json.dumps(record, indent=1) + "\n")
