"""Settings for every test."""

import fcntl
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that needs the hub would pass here by chance

ONE_IN = 4  # cases of a test runs where the command names no tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole", action="store_true", help="run all cases, and what takes long, of all files"
    )
    parser.addoption(
        "--exhaustive", action="store_true", help="run all combinations of the matrices too"
    )
    parser.addoption(
        "--gpus", action="store_true", help="let the tests see this machine's GPUs; else hidden"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--gpus"):  # most tests start more ranks than a machine has GPUs
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # from a shell's `&`: kernels do hear it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:  # a core for each: threads would wait for each other's
        import torch

        torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # a long file that came last would be waited for
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        every = Counter(item.path for item in items)
        items.sort(key=lambda item: (-slow[item.path], -every[item.path], item.path))
    if config.getoption("--exhaustive"):
        return
    chosen = [item for item in items if not item.get_closest_marker("exhaustive")]
    if not (config.getoption("--whole") or _says_which(config)):
        chosen = list(_part(chosen))
    if left_out := list(set(items) - set(chosen)):
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def _says_which(config: pytest.Config) -> bool:
    """Does the command name files, marks, or words of what it asks for?"""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return named or bool(config.option.keyword or config.option.markexpr)


def _part(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The first of each test's cases and every so-many-th, and none that takes long."""
    seen: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("long"):
            continue
        test = item.nodeid.partition("[")[0]
        if seen[test] % ONE_IN == 0:
            yield item
        seen[test] += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that is marked `alone` waits for those of other workers, and they for it."""
    alone = item.get_closest_marker("alone") is not None
    runs = item.config.rootpath / "runs"
    runs.mkdir(exist_ok=True)
    with (runs / ".tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        return (yield)


@pytest.fixture(scope="session")
def warm() -> Iterator[Any]:
    """Four warm ranks for launches that are not about how ranks start."""
    from helpers.lab.launch.warm.ranks import Ranks

    ranks = Ranks(4)
    yield ranks
    ranks.close()


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system of a size, as `18m`, and takes it away after the test."""
    folder = tmp_path / "disk"

    def mounted(size: str) -> Path:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("needs the right to mount")
        return folder

    yield mounted
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)
