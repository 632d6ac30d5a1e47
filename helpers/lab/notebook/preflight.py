"""The preflight of a notebook: which of its profiles fits this machine.

plan = preflight(1)                       # shows what was found and what was chosen
run = launch("scripts/train.py", **plan.profile.flags())
"""

from dataclasses import dataclass, replace
from typing import Any

from helpers.engine.errors import UserError, need
from helpers.lab.figures.display import show_table
from helpers.lab.machine.hardware import Machine, find_machine
from helpers.lab.notebook.run_sizes import PROFILES, Profile
from helpers.planner.cost import state_bytes

LEAST_GPU_BYTES = 15 * 10**9  # the GPU profiles' smaller runs fit a T4
FILLED = 0.7  # of a GPU's memory by the training state; activations need the rest

CHANGEABLE = (
    "tp",
    "pp",
    "microbatches",
    "steps",
    "batch_size",
    "seq_len",
    "lr",
    "data",
    "eval_data",
    "task",
)


@dataclass(frozen=True)
class Preflight:
    """What a notebook runs with, and why."""

    notebook: int
    machine: Machine
    profile: Profile
    reason: str

    @property
    def untrue(self) -> tuple[str, ...]:
        return self.profile.untrue


def preflight(
    notebook: int,
    profile: str = "auto",
    *,
    machine: Machine | None = None,
    show: bool = True,
    **changes: Any,
) -> Preflight:
    """Look at the machine, pick the notebook's profile for it, and show both in a table.

    Args:
        profile: `auto` takes the largest that the machine can run; or a profile's name.
        machine: another machine than this one, to see what it would get.
        changes: fields to replace (`CHANGEABLE`), such as `steps=10`; None leaves a field alone.

    Raises:
        UserError: no such notebook, profile or field, or the machine cannot run the profile.
    """
    if notebook not in PROFILES:
        raise UserError(f"notebook {notebook} has no profiles; there are: {list(PROFILES)}")
    machine = machine or find_machine()
    ready = runnable(notebook, machine)
    known = ["auto", *PROFILES[notebook]]
    if profile not in known:
        raise UserError(f"unknown profile {profile!r}; notebook {notebook} has: {', '.join(known)}")
    if profile == "auto":
        name, reason = ready[-1], "the largest that this machine can run"
    elif profile in ready:
        name, reason = profile, "asked for"
    else:
        raise UserError(
            f"profile {profile!r} needs {_needs(notebook, profile)}; this machine has "
            f"{machine.words}: "
            f"use profile='auto' or {ready[-1]!r}"
        )
    chosen = _fit(PROFILES[notebook][name], machine, changes)
    record = Preflight(notebook, machine, chosen, reason)
    if show:
        show_table(_table(record), f"Preflight of notebook {notebook}")
    return record


def runnable(notebook: int, machine: Machine) -> list[str]:
    """The notebook's profiles that the machine can run, smallest first."""
    large = [gpu for gpu in machine.gpus if gpu.memory_bytes >= LEAST_GPU_BYTES]
    return [name for name, one in PROFILES[notebook].items() if len(large) >= one.least_gpus]


def _needs(notebook: int, name: str) -> str:
    count = PROFILES[notebook][name].least_gpus
    each = "a GPU with" if count == 1 else f"at least {count} GPUs, each with"
    return f"{each} at least {LEAST_GPU_BYTES / 1e9:.0f} GB"


def _fit(profile: Profile, machine: Machine, changes: dict[str, Any]) -> Profile:
    """The profile on as many GPUs as there are, without the larger run where it does not fit."""
    unknown = [name for name in changes if name not in CHANGEABLE]
    if unknown:
        raise UserError(f"preflight changes {', '.join(CHANGEABLE)}, not {unknown[0]!r}")
    if profile.device == "cuda":
        profile = _on_gpus(profile, len(machine.gpus))
    if profile.larger is not None:
        larger = _on_gpus(profile.larger, len(machine.gpus))
        profile = replace(profile, larger=larger if _fits(larger, machine) else None)
    return replace(profile, **{name: v for name, v in changes.items() if v is not None})


def _on_gpus(profile: Profile, gpus: int) -> Profile:
    """The profile with as many ranks as there are GPUs, a power of two of them."""
    most = 2 ** (gpus.bit_length() - 1)
    tp = min(profile.tp, most)
    pp = min(profile.pp, most // tp)
    return replace(profile, tp=tp, pp=pp, dp_shard=min(profile.dp_shard, most // tp // pp))


def _fits(profile: Profile, machine: Machine) -> bool:
    state = state_bytes(profile.parameters, profile.precision, tp=profile.nproc)  # about, with pp
    return state.total <= FILLED * min(gpu.memory_bytes for gpu in machine.gpus)


def _table(record: Preflight) -> Any:
    pandas = need("pandas", "notebooks")
    machine, profile = record.machine, record.profile
    rows = {
        "found": machine.words,
        "free disk": f"{machine.free_disk_bytes / 1e9:.0f} GB",
        "profile": f"{profile.name}: {record.reason}",
        "runs": _runs_words(profile),
        "data": profile.data,
    }
    if profile.larger is not None:
        rows["one more run"] = _runs_words(profile.larger)
    for i, words in enumerate(profile.untrue, 1):
        rows[f"not shown by this, {i}"] = words
    return pandas.DataFrame({"here": rows}).rename_axis("what")


def _runs_words(profile: Profile) -> str:
    cut = ", ".join(
        f"{name} {value}"
        for name in ("layers", "hidden", "heads")
        if (value := getattr(profile, name)) is not None
    )
    plural = "s" if profile.nproc > 1 else ""
    return (
        f"{profile.model}{f' ({cut})' if cut else ''}, {profile.parameters / 1e6:,.1f} million "
        f"parameters; {_degrees(profile)} on {profile.nproc} {_RANKS[profile.device]}{plural}; "
        f"{profile.steps} steps of {profile.batch_size} x {profile.seq_len} tokens; "
        f"{profile.precision}"
    )


def _degrees(profile: Profile) -> str:
    if profile.dp_shard > 1:
        return f"dp_shard={profile.dp_shard}"
    if profile.pp == 1:
        return f"tp={profile.tp}"
    return f"{f'tp={profile.tp}, ' * (profile.tp > 1)}pp={profile.pp}"


_RANKS = {"cpu": "CPU rank", "cuda": "GPU"}
