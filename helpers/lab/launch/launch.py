"""launch(): start a program on several ranks, follow it, judge how it ended, show that.

The ranks are started by torchrun (through torchrun_agent.py, one for each node), beneath a guard
(process_guard.py) that ends all of them when this process ends, however that happens. Nothing
inherits the kernel's own streams: the merged output comes through a pipe, is shown in one panel,
and stands whole on disk.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, check_count, is_number
from helpers.lab.launch import verdict
from helpers.lab.launch.command import LOG, Job, check_variables, environment, prepare
from helpers.lab.launch.live_panel import Panel
from helpers.lab.launch.nodes import network_namespaces as network
from helpers.lab.launch.nodes.local_nodes import Nodes
from helpers.lab.launch.nodes.network_namespaces import Link
from helpers.lab.launch.processes import Processes
from helpers.lab.launch.progress import ENDED, ENOUGH, LATE, Progress, Until
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.runs.run import Run, load_run

GRACE_S = 3.0  # between SIGTERM and SIGKILL
MOST_RANKS = 1024
MOST_NODES = 254  # each has an address of its own, 127.0.0.N


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
    ranks: Ranks | None = None,
    until: Until | None = None,
    show: bool = True,
    **flags: Any,
) -> Run:
    """Run `script` on `nproc` ranks of this machine by torchrun, to its end.

    Args:
        script: looked for in the project root, then in the current folder; or a module, such as
            helpers.train, which is also what scripts/train.py means where there is no such file.
            It runs in the project root, and gets `--out` with the run's folder.
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
        ranks: warm ranks to run on: nothing is imported anew, and a run starts seconds sooner.
        until: told the last line of metrics every so often; where it says True the run is stopped,
            and returned as it is then.
        show: follow the run in a panel, or in a few printed lines outside a notebook.
        flags: the script's own. `batch_size=8` becomes `--batch-size 8`, True `--flag`, False
            `--no-flag`, None is left out, and a list `--flag a b c`.

    Returns:
        The finished run; or the stopped one, where `until` said so.

    Raises:
        UserError: nothing was started: no such script, a number or a variable that cannot be, a
            folder that cannot be used, or a link that cannot be made.
        RunFailed: a rank failed (with the first one's own words), or the time was over.
        KeyboardInterrupt: as it came, once every process has been ended.
    """
    counts = {"nproc": (nproc, 1), "nodes": (nodes, 1), "max_restarts": (max_restarts, 0)}
    if threads is not None:
        counts["threads"] = threads, 1
    _check(counts, timeout_s, link)
    if ranks is not None:
        if not isinstance(ranks, Ranks):
            raise UserError(
                f"ranks is {ranks!r}: give warm ones, Ranks({nproc}), and their number by nproc"
            )
        ranks.check(nproc, nodes, max_restarts, env)
    check_variables(env)
    job = prepare(script, nproc, out, flags, nodes, max_restarts)
    variables = environment(nodes * nproc, env, threads)
    warm = ranks is not None and ranks.warm
    command = ranks.command(job, GRACE_S) if warm else _agents(job, link)
    processes = Processes(command, variables, job.logs / LOG, GRACE_S)
    progress = Progress(job, processes, Panel(show))
    try:
        with processes:
            how = progress.follow(timeout_s, until)
            rank_lines = verdict.last_words(job) if how == LATE else []
    except KeyboardInterrupt:
        words = verdict.interrupted(job, progress.last_step(), processes.stopped)
        progress.finish("stopped", words)
        interrupt = KeyboardInterrupt(words)
        # in a notebook: without the frames of the launcher
        interrupt._render_traceback_ = lambda: [f"KeyboardInterrupt: {words}"]
        raise interrupt from None
    if how == ENOUGH:
        progress.finish("stopped", "its caller has seen enough")
        return load_run(job.out)
    if how == ENDED:
        state = "failed"
        failure = verdict.failure(job, processes.exit_code, processes.last_lines(15))
    else:
        state = "stopped"
        step = progress.last_step()
        failure = verdict.overtime(job, timeout_s, step, rank_lines, processes.stopped)
    if failure is None:
        progress.finish("done", verdict.noted(job))
        return load_run(job.out)
    progress.finish(state, failure.message.splitlines()[0])
    raise failure


def _check(counts: Mapping[str, tuple[Any, int]], timeout_s: Any, link: Link | None) -> None:
    """`counts`: by name what was given, and the least that works."""
    if sys.platform == "win32":
        raise UserError("launch() needs Linux or macOS; on Windows, use WSL")
    for name, (value, least) in counts.items():
        check_count(name, value, least)
    nproc, nodes = counts["nproc"][0], counts["nodes"][0]
    if nproc > MOST_RANKS:
        raise UserError(f"nproc is {nproc}: at most {MOST_RANKS} on one machine")
    if nodes > MOST_NODES or nodes * nproc > MOST_RANKS:
        most = f"{MOST_NODES} nodes and {MOST_RANKS} ranks"
        raise UserError(f"nodes is {nodes}, of {nproc} ranks each: at most {most} on one machine")
    if timeout_s is not None and not (is_number(timeout_s) and timeout_s > 0):
        raise UserError(f"timeout_s is {timeout_s!r}: it must be a number of seconds above 0")
    if link is not None:
        if not isinstance(link, Link):
            raise UserError(f"link is {link!r:.40}: give a Link, as Link(mbit=400)")
        if nodes != 2:
            raise UserError(f"a link joins two nodes, but nodes is {nodes}: give nodes=2")
        network.check(link)


def _agents(job: Job, link: Link | None) -> list[str]:
    """What the guard starts: torchrun's agent, or what starts one for each node."""
    if job.nodes > 1:
        nodes = Nodes(job.nodes, job.nproc, job.max_restarts, str(job.logs), GRACE_S, link)
        return nodes.command(job.torchrun)
    agent = [sys.executable, "-m", "helpers.lab.launch.torchrun_agent"]
    return [*agent, str(job.logs / "failures.json"), str(GRACE_S), *job.torchrun]
