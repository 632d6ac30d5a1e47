"""What a process frees stays with it, so that the next step need not ask the system again."""

import os
import platform
import subprocess
import sys

import pytest

from helpers.engine.memory.cpu_allocator import SETTINGS, keep_freed_memory

PAGES = """
import resource, torch
from helpers.engine.memory.cpu_allocator import keep_freed_memory, large_blocks_apart
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed

def pages(tensors: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(tensors):
        torch.ones(16 * 2**20)  # 64 MiB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def of_eight() -> int:
    pages(3)  # until there is enough
    return min(pages(8) for _ in range(4))  # threads of a busy machine ask for a few

{before}
print(of_eight())
"""
KEPT = "assert keep_freed_memory()"
IN_A_PLAN = """
with distributed(ParallelPlan(), torch.device("cpu")):
    pass
"""
DURING_A_LOAD = """
keep_freed_memory()
with large_blocks_apart("cpu"):
    print(of_eight())
"""
of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc's malloc")


def pages_by_turn(before: str, **environment: str) -> list[int]:
    """Pages that the system gave a new process for eight tensors of 64 MiB, one after another: each
    time that `before` says so, and after it."""
    command = [sys.executable, "-c", PAGES.format(before=before)]
    said = subprocess.check_output(command, text=True, env=os.environ | environment)
    return [int(count) for count in said.split()]


def pages_of_eight_tensors(before: str, **environment: str) -> int:
    [count] = pages_by_turn(before, **environment)
    return count


@of_glibc
def test_memory_is_asked_for_once_instead_of_in_every_step():
    assert pages_of_eight_tensors("") >= 8 * 32  # pages of 2 MiB, or more and smaller ones
    for before in (KEPT, IN_A_PLAN):
        assert pages_of_eight_tensors(before) < 20


@of_glibc
def test_a_load_gives_large_blocks_back_and_what_follows_keeps_them():
    loading, after = pages_by_turn(DURING_A_LOAD)
    assert loading >= 8 * 32 and after < 20


@of_glibc
def test_the_environment_has_the_last_word():
    assert pages_of_eight_tensors(IN_A_PLAN, MALLOC_MMAP_THRESHOLD_="1048576") >= 8 * 32


def test_another_malloc_is_left_alone(monkeypatch):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()
