"""Pools of rank processes that are started once and reused by every test.

    pool(4).run(function, *arguments)     # function(*arguments) on 4 ranks joined by gloo

The function runs in the rank processes, so it is a module-level function; what it returns comes
back as a list by rank. The first rank that raises fails the test with its own traceback.
"""

import atexit
import multiprocessing as mp
import os
import queue
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

TIMEOUT_S = 240
MOST_GROUPS = 100  # after which a pool is started anew: each has a socket from a rank to each other


def forks() -> Any:
    """Where processes are forked from one that has imported what all of them need."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "tests.support.preload"])
    return context


class Pool:
    """`world` processes that wait for work; after an error, or with many groups, new ones."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.processes: list[Any] = []

    def _start(self) -> None:
        context = forks()
        self.answers = context.Queue()
        self.inboxes = [context.Queue() for _ in range(self.world)]
        self.store = tempfile.mktemp(prefix="ranks-")
        self.processes = [
            context.Process(
                target=_serve, args=(rank, self.world, self.store, inbox, self.answers), daemon=True
            )
            for rank, inbox in enumerate(self.inboxes)
        ]
        for process in self.processes:
            process.start()

    def run(self, function: Any, *arguments: Any) -> list[Any]:
        if not self.processes:
            self._start()
        for inbox in self.inboxes:
            inbox.put((function, arguments))
        results: dict[int, Any] = {}
        groups = 0
        deadline = time.monotonic() + TIMEOUT_S
        while len(results) < self.world:
            try:
                rank, error, result, groups = self.answers.get(timeout=1.0)
            except queue.Empty:
                self._check_alive(deadline)
                continue
            if error is not None:
                self.close()  # the peers may wait in a collective for ever
                raise AssertionError(f"rank {rank} of {self.world} failed:\n{error}")
            results[rank] = result
        if groups > MOST_GROUPS:
            self.close()
        return [results[rank] for rank in range(self.world)]

    def _check_alive(self, deadline: float) -> None:
        dead = [rank for rank, process in enumerate(self.processes) if not process.is_alive()]
        if dead or time.monotonic() > deadline:
            self.close()
            raise AssertionError(f"ranks {dead} died" if dead else "the ranks hang")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        if self.processes:
            Path(self.store).unlink(missing_ok=True)
        self.processes = []


@cache
def pool(world: int) -> Pool:
    """The session's pool of that many ranks."""
    one = Pool(world)
    atexit.register(one.close)
    return one


def _serve(rank: int, world: int, store: str, inbox: Any, answers: Any) -> None:
    import torch
    import torch.distributed as dist

    threading.Thread(target=_end_with, args=(mp.parent_process(),), daemon=True).start()
    torch.set_num_threads(1)
    _share_a_device()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    while True:
        function, arguments = inbox.get()
        try:
            error, result = None, function(*arguments)
        except BaseException:
            error, result = traceback.format_exc(), None
        answers.put((rank, error, result, dist.get_pg_count()))


def _share_a_device() -> None:
    """gloo looks a hundred times a second for what has come, in a thread of each device, and a
    group has one of its own. 1,300 of them, of ranks that waited, took more than a core."""
    from torch.distributed import ProcessGroupGloo, distributed_c10d

    device = ProcessGroupGloo.create_default_device()

    class Sharing(ProcessGroupGloo):
        def __init__(
            self, store: Any, rank: int, size: int, timeout: timedelta, **newer: bool
        ) -> None:
            if any(newer.values()):  # enable_reconfigure of torch 2.15, which no test asks for
                raise TypeError(f"a test's group does not do {newer}")
            options = ProcessGroupGloo._Options()
            options._devices, options._timeout = [device], timeout
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = Sharing


def _end_with(session: Any) -> None:
    """A session that is killed closes no pool: its ranks see that it is gone, and leave."""
    session.join()
    os._exit(1)


def mesh_of(plan: Any) -> Any:
    """A plan's mesh. Plans of the same degrees share one in each rank process: groups are not
    free, and each keeps threads and sockets as long as the process lives."""
    return _mesh(tuple(plan.degrees.items()), plan.placement)


@cache
def _mesh(degrees: tuple[tuple[str, int], ...], placement: str) -> Any:
    from helpers.engine.plan import ParallelPlan

    return ParallelPlan(**dict(degrees), placement=placement).mesh("cpu")
