"""Measure this machine for the planner: products, memory, small operations, and its links.

    cluster = calibrate("runs/this_machine.json", ranks=4)     # under a minute
    cluster = load_cluster("runs/this_machine.json")

Ranks are started with torchrun; rank_measurements.py is what each of them does.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from helpers.engine.errors import UserError, as_path, cannot_read, cannot_write, check_count
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.links import Link

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 300
HERE_ALONE = {  # ranks listen on this machine's loopback device, and rank 0 keeps their store
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
ERROR = re.compile(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception): ")


def calibrate(path: str | Path, ranks: int | None = None, gpus: bool = True) -> Cluster:
    """Measure this machine with `ranks` processes, save what was found as JSON, and return it.

    On GPUs a rank has one each. Takes well under a minute.

    Args:
        ranks: 4 by default, or as many as there are GPUs if those are fewer. On a machine of one
            GPU it is 1, and the links are those of that GPU to itself.
        gpus: measure these where there are any; else the CPU's cores.

    Raises:
        UserError: a path that is none or that nothing can be written to, ranks that are no whole
            number of at least 2, more of them than GPUs, or a measurement that failed, with its
            last line.
    """
    there = torch.cuda.device_count() if gpus else 0
    if ranks is None:
        ranks = min(4, there or 4)
    least = 1 if there == 1 else 2  # a link needs two
    check_count("ranks", ranks, least)
    if there and ranks > there:
        raise UserError(f"there are {there} GPUs, so at most {there} ranks, not {ranks}")
    path = as_path(path).resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    env = HERE_ALONE | os.environ | {"OMP_NUM_THREADS": "1"}
    if not gpus:
        env["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(prefix="calibrate-") as meet:
        returncode, said = _ended(_torchrun(ranks, Path(meet, "agents"), path), env)
    if returncode:
        raise UserError(f"measuring this machine failed: {_reason(said)}")
    return load_cluster(path)


def _ended(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    """The exit status of a command, and what it said of errors."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes) as process:
        try:
            _, said = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise UserError(f"measuring took over {LIMIT_S} s") from None
        finally:
            process.terminate()  # where it still runs; killed, it would leave its ranks behind
    return process.returncode, said


def _torchrun(ranks: int, meet: Path, path: Path) -> list[str]:
    """The agent meets by a file, and the ranks at rank 0's store: none of both listens beyond this
    machine, as torchrun's --standalone would."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"),
        *("--rdzv-endpoint", str(meet), "--local-addr", "127.0.0.1"),
        *("-m", "helpers.planner.measure.rank_measurements", str(path)),
    ]


def load_cluster(path: str | Path) -> Cluster:
    """The cluster that `calibrate` saved.

    Raises:
        UserError: there is no such file, or it is none of `calibrate`'s.
    """
    path = as_path(path)
    try:
        return cluster_of(json.loads(path.read_text("utf-8"))["cluster"])
    except FileNotFoundError:
        raise UserError(f"no {path}: calibrate() writes it") from None
    except OSError as error:
        raise cannot_read(path, error) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise UserError(f"{path} is not what calibrate() writes: run it again") from None


def cluster_of(fields: dict[str, Any]) -> Cluster:
    """Of a Cluster's fields as plain data."""
    measured = {kind: Link(**link) for kind, link in fields["measured"].items()}
    links = {"intra": Link(**fields["intra"]), "inter": Link(**fields["inter"])}
    attention = fields.get("attention_flops") or {}  # older files have none
    return Cluster(**fields | links | {"measured": measured, "attention_flops": attention})


def _reason(said: str) -> str:
    """The first error among what the ranks and torchrun said, or the last line."""
    lines = said.strip().splitlines() or ["nothing was said"]
    errors = [line for line in lines if ERROR.match(line)]
    return errors[0] if errors else lines[-1]
