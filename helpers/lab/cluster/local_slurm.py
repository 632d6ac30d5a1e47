"""Slurm itself, on this machine alone: a controller and two nodes, for as long as a `with` block.

    with local_slurm() as slurm:
        job = slurm.submit(slurm_script(run, minutes=10, gpus=False))
        slurm.wait(job)

From the shell: bash scripts/cluster/local_slurm JOB.sh. What a batch script does on a cluster can
so be seen before it waits in the cluster's queue. It takes Debian's packages slurm-wlm and munge,
and Linux. Nothing of it outlives the block: daemons and jobs carry a marker by which they are
ended, as the guard of a launch does it.

Sources: slurm.conf(5), munged(8).
"""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers.commands import Parser
from helpers.engine.errors import UserError
from helpers.lab.launch import process_guard as guard
from helpers.lab.machine.hardware import cores
from helpers.lab.paths import ROOT

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "scontrol", "scancel", "srun")
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
START_S, GRACE_S, POLL_S = 60.0, 3.0, 0.2
# Nodes are named by addresses, since a job's agents meet at the first one's name. CPUs are said and
# not counted: both nodes share this machine's cores.
CONFIG = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=2
MinJobAge=300
NodeName=127.0.0.1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName=127.0.0.2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


@dataclass(frozen=True)
class LocalSlurm:
    """A running Slurm of two nodes; its own files are in `folder`."""

    folder: Path
    environment: dict[str, str]

    def submit(self, script: str, folder: Path = ROOT) -> int:
        """Queue a batch script as from `folder`; the job's number.

        Raises:
            UserError: sbatch refuses it, in its own words.
        """
        log = self.folder / "job-%j.log"
        words = self._run("sbatch", "--parsable", f"--output={log}", text=script, folder=folder)
        return int(words.split(";")[0])

    def state(self, job: int) -> str:
        """Slurm's word for it: PENDING, RUNNING, COMPLETED, FAILED …"""
        return self._field(job, "JobState")

    def restarts(self, job: int) -> int:
        """How often it was queued again."""
        return int(self._field(job, "Restarts"))

    def requeue(self, job: int) -> None:
        """Take the job from its nodes and queue it again, as after the loss of one."""
        self._run("scontrol", "requeue", str(job))
        while self.state(job) != "PENDING":  # its processes are being ended
            time.sleep(POLL_S)
        # a job that was taken back waits two minutes on purpose: begin at once
        self._run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait(self, job: int, timeout_s: float = 300.0) -> str:
        """Its state once it has ended.

        Raises:
            UserError: it has not ended in time.
        """
        deadline = time.monotonic() + timeout_s
        while (state := self.state(job)) not in ENDED:
            if time.monotonic() > deadline:
                raise UserError(f"job {job} is still {state} after {timeout_s:g} s")
            time.sleep(POLL_S)
        return state

    def log(self, job: int) -> str:
        """What the job has printed, of all its starts."""
        path = self.folder / f"job-{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _field(self, job: int, name: str) -> str:
        words = self._run("scontrol", "show", "job", str(job))
        return re.search(rf"\b{name}=(\S+)", words)[1]

    def _run(self, *command: str, text: str | None = None, folder: Path | None = None) -> str:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, env=self.environment, cwd=folder
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise UserError(f"{command[0]} refuses: {said[-1] if said else done.returncode}")
        return done.stdout.strip()


def missing() -> list[str]:
    """The programs of Slurm that are not on this machine."""
    return [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name, path=PATH) is None]


@contextmanager
def local_slurm() -> Iterator[LocalSlurm]:
    """Start it, and end it with all its jobs.

    Raises:
        UserError: Slurm is not installed, or does not start, in its own last words.
    """
    if lacking := missing():
        names = ", ".join(lacking)
        raise UserError(f"Slurm is not installed ({names}): apt-get install slurm-wlm munge")
    marker = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        slurm = _configured(Path(name), marker)
        try:
            _start(slurm)
            yield slurm
        finally:
            guard.end_all(lambda: guard.family(marker), GRACE_S)


def _configured(folder: Path, marker: str) -> LocalSlurm:
    folder.joinpath("state").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    config = CONFIG.format(
        host=platform.node(),
        user=_user(),
        folder=folder,
        ports=_free_ports(3),
        cpus=max(4, cores()),
    )
    path = folder / "slurm.conf"
    path.write_text(config)
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(path), guard.MARKER: marker}
    return LocalSlurm(folder, environment)


def _start(slurm: LocalSlurm) -> None:
    folder = slurm.folder
    munge = [f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    _daemon(slurm, "munged", "--foreground", "--force", *munge)
    _until(slurm, "munged", lambda: (folder / "munge.socket").exists())
    _daemon(slurm, "slurmctld", "-D")
    for name in re.findall(r"NodeName=(\S+)", (folder / "slurm.conf").read_text()):
        (folder / name).mkdir()
        _daemon(slurm, "slurmd", "-D", "-N", name)
    _until(slurm, "slurmctld", lambda: _idle_nodes(slurm) == 2)


def _daemon(slurm: LocalSlurm, *command: str) -> None:
    with slurm.folder.joinpath(f"{command[0]}.out").open("ab") as log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=slurm.environment,
            start_new_session=True,
        )


def _idle_nodes(slurm: LocalSlurm) -> int:
    try:
        return slurm._run("scontrol", "show", "nodes").count("State=IDLE ")
    except UserError:
        return 0  # the controller does not answer yet


def _until(slurm: LocalSlurm, name: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            said = slurm.folder.joinpath(f"{name}.out").read_text(errors="replace").splitlines()
            raise UserError(f"{name} does not start: {said[-1] if said else 'no word'}")
        time.sleep(POLL_S)


def _free_ports(count: int) -> Sequence[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def main() -> int:
    parser = Parser(
        prog="scripts/cluster/local_slurm",
        description="Run a batch script on a Slurm of this machine.",
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0, help="the longest to wait for it")
    args = parser.parse_args()
    if not args.script.is_file():
        parser.error(f"there is no file {args.script}")
    try:
        with local_slurm() as slurm:
            job = slurm.submit(args.script.read_text(), Path.cwd())
            state = slurm.wait(job, 60 * args.minutes)
            print(slurm.log(job), end="")
    except UserError as error:
        parser.error(str(error))
    print(f"job {job}: {state.lower()}")
    return 0 if state == "COMPLETED" else 1


if __name__ == "__main__":
    sys.exit(main())
