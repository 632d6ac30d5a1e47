"""How the processes of a run meet: what tells them of each other, the store, the process group."""

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from ..errors import UserError, reason
from ..memory.cpu_allocator import keep_freed_memory
from ..plan import ParallelPlan
from .agreeing import same_on_all_ranks
from .leaving import UNDER_TORCHRUN, die_with_parent
from .waiting import named

MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")  # beside WORLD_SIZE
# unless the environment says otherwise
ON_A_GPU = {
    # NCCL's watchdog leaves for `torchfrtrace` what each rank has called (after a wait in vain)
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    # segments grow: else memory is lost between those of steps with other lengths
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}
DEVICES = ("auto", "cpu", "cuda")
AGENT_HAS_STORE = "TORCHELASTIC_USE_AGENT_STORE"


def pick_device(kind: str = "auto") -> torch.device:
    """This process's device.

    Args:
        kind: one of DEVICES; auto is a GPU where the machine has any, else its processor.

    Raises:
        UserError: there is no such kind, or the machine has fewer GPUs than ranks.
    """
    if kind not in DEVICES:
        raise UserError(f"a device is one of {', '.join(DEVICES)}, not {kind!r:.40}")
    count = torch.cuda.device_count()
    if kind == "cpu" or (kind == "auto" and not count):
        return torch.device("cpu")
    local = _whole(os.environ, "LOCAL_RANK") if "LOCAL_RANK" in os.environ else 0
    if local >= count:
        ranks = os.environ.get("LOCAL_WORLD_SIZE", local + 1)
        raise UserError(
            f"GPUs of this machine: {count}, ranks on it: {ranks}, and each needs one of its own: "
            "start fewer, or train on the processor with --device cpu"
        )
    return torch.device("cuda", local)


@contextmanager
def distributed(
    plan: ParallelPlan,
    device: torch.device | None = None,
    *,
    timeout_s: float | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[DeviceMesh]:
    """Join the process group, yield the plan's mesh, and leave cleanly.

    Under torchrun the group is torchrun's. Without it, a group of this one process is made, so that
    a plan of one process runs the same code. A script that torchrun starts does well to end by
    `run_and_leave`, as a model outlives this block and holds its groups.

    On a CPU the process keeps from now on what memory it frees: see memory/cpu_allocator.py.

    Args:
        timeout_s: how long a rank waits for the others; torch's 30 minutes unless given.
        facts: of the run, that must be the same on every rank, as the plan must.

    Raises:
        UserError: the number of started processes is not the plan's, or a rank differs.
        RankHung: a rank waited so long in vain; the message names the one that it waited for.
    """
    if UNDER_TORCHRUN in os.environ:
        die_with_parent()
    check_environment(os.environ)
    device = device or pick_device()
    plan.validate(world_size=world_size())
    if device.type == "cuda":
        for name, value in ON_A_GPU.items():
            os.environ.setdefault(name, value)
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()
    # without torch's device_id: it would put the messages of a group in turn, and pipelines' wait
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    if "WORLD_SIZE" in os.environ:
        join(backend, timeout)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        same_on_all_ranks({"plan": plan.to_dict(), **(facts or {})})  # before groups are made
        mesh = plan.mesh(device.type)
        if timeout is not None:
            _limit_waits(timeout)
        with named(mesh):
            yield mesh
    finally:
        dist.destroy_process_group()


def _limit_waits(timeout: timedelta) -> None:
    """In every group of this process: a mesh gives torch's 30 minutes to those that it makes."""
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


def join(backend: str, timeout: timedelta | None = None) -> None:
    """Make the process group of the ranks that the environment tells of, as torch's own env:// does
    it. But where rank 0 hosts the store, and its address is a number, it listens there alone.

    Raises:
        UserError: the ranks cannot meet.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    own = os.environ.get(AGENT_HAS_STORE) != "True" and _is_address(host)
    try:
        if not own:
            dist.init_process_group(backend, timeout=timeout)
            return
        rank, world = int(os.environ["RANK"]), world_size()
        store = store_at(host, port) if rank == 0 else TCPStore(host, port)
        dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=world)
    except (dist.DistNetworkError, OSError) as error:
        raise UserError(f"the ranks cannot meet at {host} port {port}: {reason(error)}") from None


def store_at(host: str, port: int = 0, **options: Any) -> TCPStore:
    """A store that listens at this address alone, by default at a free port.

    torch's own listens on every interface, and whoever reaches a store can leave a pickle in it
    that torchrun's rendezvous opens. Where the address is not this machine's own, as behind a
    translation of addresses, it is torch's.

    Raises:
        OSError: the port is taken.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        listening = socket.create_server(address, family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return TCPStore(host, port, is_master=True, wait_for_workers=False, **options)
    return store_on(listening, **options)


def store_on(listening: socket.socket, **options: Any) -> TCPStore:
    """A store behind a socket that listens already, which is its own from now on."""
    host, port = listening.getsockname()[:2]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
        **options,
    )


def _is_address(host: str) -> bool:
    """Not a name: that may stand for another address on another machine."""
    with suppress(ValueError):
        return bool(ip_address(host))
    return False


def check_environment(variables: Mapping[str, str]) -> None:
    """See that what tells a process its rank is there as a whole, and can be true.

    Raises:
        UserError: of torchrun's variables some are missing, or are no such numbers.
    """
    if "WORLD_SIZE" not in variables:
        return
    missing = [name for name in MEETING if name not in variables]
    if missing:
        raise UserError(
            f"WORLD_SIZE is set and {missing[0]} is not: start ranks by torchrun, or unset it"
        )
    world = world_size(variables)
    rank, port = (_whole(variables, name) for name in ("RANK", "MASTER_PORT"))
    if not rank < world or not 0 < port < 2**16:
        raise UserError(
            f"RANK={rank}, WORLD_SIZE={world}, MASTER_PORT={port}: a rank is below the world's "
            "size, and a port from 1 to 65535"
        )


def start_of_a_node(nodes: int, nproc: int) -> str:
    """How a shell starts the `nproc` ranks of each node; of several nodes, by torchrun's meeting at
    the first, whose address is in HEAD."""
    meet = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint $HEAD:29400"
    return f"torchrun {meet if nodes > 1 else '--standalone'} --nproc-per-node {nproc}"


def world_size(variables: Mapping[str, str] = os.environ) -> int:
    """How many processes were started: torchrun's WORLD_SIZE, and 1 without it.

    Raises:
        UserError: it is no whole number.
    """
    return _whole(variables, "WORLD_SIZE") if "WORLD_SIZE" in variables else 1


def _whole(variables: Mapping[str, str], name: str) -> int:
    text = variables[name]
    if not text.isascii() or not text.isdigit():
        raise UserError(f"{name} is {text!r}: it must be a whole number")
    return int(text)
