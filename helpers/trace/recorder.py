"""A trace of some training steps, with named ranges, on every rank.

    for batch in profiled(batches, "runs/one/traces", first=3, last=6):
        trainer.step(batch.input_ids, batch.labels)

Every rank writes FOLDER/rank-N.json.gz in Chrome's format, as torch.profiler does; traces.py reads
and merges them, findings.py says what is slow in them. Before and after these steps no profiler
runs. The ranges, and where in the engine they begin:

    data       fetching a batch: here
    forward    pipeline/runner.py
    backward   pipeline/runner.py
    wait       for the messages of other stages: pipeline/runner.py, trainer.py
    reduce     what the backward did not hide of summing gradients: pipeline/runner.py, trainer.py
    optimizer  the norm, clipping, the update: trainer.py

A range of your own: `with torch.profiler.record_function("augment"): ...`. One with
a `:` or a `#` in its name is taken for one of torch's.
"""

import json
import resource
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from helpers.engine.errors import UserError, check_count
from helpers.engine.memory.states import peak_memory_bytes
from helpers.trace.clocks import clock_offset

RANGES = ("data", "forward", "backward", "wait", "reduce", "optimizer")
STEP = "step "  # the range of a whole step is `step 5`
FACTS = "profiled"  # what a trace file holds besides torch's
CGROUP = Path("/sys/fs/cgroup/memory.max")
MEMINFO = Path("/proc/meminfo")
STATUS = Path("/proc/self/status")
MACHINE = "the machine's memory"  # which its ranks share

Item = TypeVar("Item")
States = Callable[[], dict[str, int]]


def profiled(
    batches: Iterable[Item],
    folder: str | Path,
    first: int,
    last: int,
    *,
    done: int = 0,
    device: torch.device | None = None,
    states: States = dict,
) -> Iterator[Item]:
    """The batches as they are; the steps taken with those from `first` to `last` are traced.

    A step lasts until the next batch is asked for. Every rank must ask for as many. Where the
    batches end, or are no longer wanted, before `last`, the trace ends there too.

    Args:
        folder: of the traces, made where it is missing.
        first, last: steps, both included and counted from 1.
        done: steps that were taken before, by the run that this one resumes.
        device: where the model is; a GPU's work is traced beside the CPU's.
        states: bytes of what is held between steps, asked when the trace begins: the trainer's
            `state_bytes`.

    Raises:
        UserError: the steps are no whole numbers, are none, or lie before the next one.
    """
    for name, step in (("first", first), ("last", last)):
        check_count(name, step)
    if not done < first <= last:
        raise UserError(f"steps {first} to {last} cannot be traced: the next step is {done + 1}")
    recorder = _Recorder(Path(folder), device or torch.device("cpu"), states)
    return _profiled(iter(batches), recorder, first, last, done)


def _profiled(
    source: Iterator[Item], recorder: "_Recorder", first: int, last: int, done: int
) -> Iterator[Item]:
    try:
        for step in count(done + 1):
            if not first <= step <= last:
                yield next(source)
                continue
            if step == first:
                recorder.start()
            with record_function(f"{STEP}{step}"):
                with record_function("data"):
                    batch = next(source)
                yield batch
                recorder.finish(step)
            if step == last:
                recorder.write()
    except StopIteration:  # of the batches
        pass
    finally:
        recorder.write()


class _Recorder:
    """torch's profiler on this rank, and what its trace must say besides."""

    def __init__(self, folder: Path, device: torch.device, states: States) -> None:
        self.folder, self.device, self.states = folder, device, states
        self.trace: profile | None = None

    def start(self) -> None:
        self.facts = {
            "rank": dist.get_rank() if dist.is_initialized() else 0,
            "steps": [],
            "device": self.device.type,
            "state_bytes": self.states(),
            **clock_offset(_everyone(self.device)),
        }
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self.trace = profile(activities=activities, profile_memory=True)
        self.trace.start()

    def finish(self, step: int) -> None:
        """A whole step was traced."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # its kernels belong to it
        self.facts["steps"].append(step)

    def write(self) -> None:
        """End the trace, if one runs."""
        if self.trace is None:
            return
        trace, self.trace = self.trace, None
        facts = self.facts | {"memory": memory_limits(self.device)}
        trace.add_metadata_json(FACTS, json.dumps(facts))  # it takes none once it has stopped
        trace.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"rank-{self.facts['rank']}.json.gz"
        draft = path.with_name(f"part-{path.name}")
        trace.export_chrome_trace(str(draft))
        draft.replace(path)


def _everyone(device: torch.device) -> dist.ProcessGroup | None:
    """All ranks, over gloo: with NCCL the clock would wait for the GPU."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.group.WORLD if device.type == "cpu" else dist.new_group(backend="gloo")


def memory_limits(device: torch.device) -> dict[str, tuple[int, int]]:
    """Bytes taken at most so far, and how many there are, of each kind that has a limit."""
    limits = {}
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        limits["GPU memory"] = torch.cuda.max_memory_reserved(device), total
    machine = [_kilobytes(MEMINFO, "MemTotal")] if MEMINFO.exists() else []
    if CGROUP.exists() and (text := CGROUP.read_text().strip()).isdecimal():
        machine.append(int(text))  # a container's; it is `max` where there is none
    if machine:
        limits[MACHINE] = peak_memory_bytes(torch.device("cpu")), min(machine)
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and STATUS.exists():
        limits["address space (ulimit -v)"] = _kilobytes(STATUS, "VmPeak"), space
    return limits


def _kilobytes(path: Path, name: str) -> int:
    """The bytes that a line `name:  123 kB` says."""
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
