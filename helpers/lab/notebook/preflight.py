"""The preflight of a notebook: which of its profiles fits this machine.

plan = preflight(1)                       # shows what was found and what was chosen
run = launch("scripts/train.py", **plan.profile.flags())
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, check_count, is_number, need
from helpers.lab.figures.display import show_table
from helpers.lab.machine.hardware import Machine, find_machine
from helpers.lab.notebook.run_profile import NOT_SHOWN, PROFILES, SETTINGS, WIDTHS, Profile
from helpers.planner.cost import state_bytes

if TYPE_CHECKING:
    import pandas as pd

LEAST_GPU_BYTES = 15 * 10**9  # the GPU profiles' smaller runs fit a T4
FILLED = 0.7  # of a GPU's memory by the training state; activations need the rest
LEAST_STEPS = 4  # notebooks read the first three and the last, and train one run for half as many
RANK_WORDS = {"cpu": "CPU rank", "cuda": "GPU"}

CHANGEABLE = ("tp", "pp", "cp", "microbatches", *SETTINGS)
COUNTS = {"tp", "pp", "cp", "microbatches", "steps", "batch_size", "seq_len"}


@dataclass(frozen=True)
class Preflight:
    """What a notebook runs with, and why."""

    notebook: int
    machine: Machine
    profile: Profile
    reason: str

    @property
    def not_shown(self) -> tuple[str, ...]:
        """What the results do not show, in sentences."""
        return tuple(NOT_SHOWN[name] for name in self.profile.not_shown)


def preflight(
    notebook: int,
    profile: str = "auto",
    *,
    machine: Machine | None = None,
    positive: Mapping[str, float] | None = None,
    show: bool = True,
    **changes: Any,
) -> Preflight:
    """Look at the machine, pick the notebook's profile for it, and show both in a table.

    Args:
        profile: `auto` takes the largest that the machine can run; or a profile's name.
        machine: another machine than this one, to see what it would get.
        positive: other numbers of the notebook by name, which must be above 0.
        changes: fields to replace (`CHANGEABLE`), such as `steps=10`; None leaves a field alone.

    Raises:
        UserError: no such notebook, profile or field, the machine cannot run the profile, or a
            number is none that a run could have.
    """
    for name, number in (positive or {}).items():
        if not is_number(number) or not number > 0:
            raise UserError(f"{name} is {number!r:.40}: it must be a number above 0")
    if notebook not in PROFILES:
        raise UserError(f"notebook {notebook} has no profiles; there are: {list(PROFILES)}")
    machine = machine or find_machine()
    ready = runnable(notebook, machine)
    known = ["auto", *PROFILES[notebook]]
    if profile not in known:
        raise UserError(f"unknown profile {profile!r}; notebook {notebook} has: {', '.join(known)}")
    if profile not in ["auto", *ready]:
        raise UserError(
            f"profile {profile!r} needs {_needs(notebook, profile)}; this machine has "
            f"{machine.words}: use profile='auto' or {ready[-1]!r}"
        )
    auto = profile == "auto"
    chosen = _fit(PROFILES[notebook][ready[-1] if auto else profile], machine, changes)
    reason = "the largest that this machine can run" if auto else "asked for"
    plan = Preflight(notebook, machine, chosen, reason)
    if show:
        show_table(_table(plan), f"Preflight of notebook {notebook}")
    return plan


def runnable(notebook: int, machine: Machine) -> list[str]:
    """The notebook's profiles that the machine can run, smallest first."""
    large = [gpu for gpu in machine.gpus if gpu.memory_bytes >= LEAST_GPU_BYTES]
    profiles = PROFILES[notebook].values()
    return [profile.name for profile in profiles if len(large) >= profile.least_gpus]


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
        profile = _on_gpus(profile, machine)
    if profile.larger is not None:
        larger = _on_gpus(profile.larger, machine)
        profile = replace(profile, larger=larger if _fits(larger, machine) else None)
    given = {name: value for name, value in changes.items() if value is not None}
    for name in COUNTS & given.keys():
        check_count(name, given[name])
    profile = replace(profile, **given)
    if profile.steps < LEAST_STEPS:
        raise UserError(f"steps is {profile.steps}: a notebook's runs take at least {LEAST_STEPS}")
    profile.plan.validate(profile.config)
    rows = profile.batch_size // profile.dp_shard
    if profile.microbatches > rows:
        raise UserError(
            f"microbatches is {profile.microbatches}: a rank's {rows} samples of a batch make at "
            f"most {rows}"
        )
    return profile


def _on_gpus(profile: Profile, machine: Machine) -> Profile:
    """The profile with as many ranks as there are GPUs, a power of two of them, in a precision that
    they have."""
    if profile.precision == "bf16" and not all(gpu.has_bf16 for gpu in machine.gpus):
        profile = replace(profile, precision="fp16")
    most = 2 ** (len(machine.gpus).bit_length() - 1)
    tp = min(profile.tp, most)
    pp = min(profile.pp, most // tp)
    return replace(profile, tp=tp, pp=pp, dp_shard=min(profile.dp_shard, most // tp // pp))


def _fits(profile: Profile, machine: Machine) -> bool:
    state = state_bytes(profile.parameters, profile.state, tp=profile.nproc)  # about, with pp
    return state.total <= FILLED * min(gpu.memory_bytes for gpu in machine.gpus)


def _table(plan: Preflight) -> "pd.DataFrame":
    pandas = need("pandas", "notebooks")
    machine, profile = plan.machine, plan.profile
    rows = {
        "found": machine.words,
        "free disk": f"{machine.free_disk_bytes / 1e9:.0f} GB",
        "profile": f"{profile.name}: {plan.reason}",
        "runs": _runs_words(profile),
        "data": profile.data,
    }
    if profile.larger is not None:
        rows["one more run"] = _runs_words(profile.larger)
    for i, words in enumerate(plan.not_shown, 1):
        rows[f"not shown by this, {i}"] = words
    return pandas.DataFrame({"here": rows}).rename_axis("what")


def _runs_words(profile: Profile) -> str:
    cut = ", ".join(
        f"{name} {value}" for name in WIDTHS if (value := getattr(profile, name)) is not None
    )
    plural = "s" if profile.nproc > 1 else ""
    return (
        f"{profile.model}{f' ({cut})' if cut else ''}, {profile.parameters / 1e6:,.1f} million "
        f"parameters; {_degrees(profile)} on {profile.nproc} {RANK_WORDS[profile.device]}{plural}; "
        f"{profile.steps} steps of {profile.batch_size} x {profile.seq_len} tokens; "
        f"{profile.precision}"
    )


def _degrees(profile: Profile) -> str:
    degrees = {axis: getattr(profile, axis) for axis in ("tp", "cp", "pp", "dp_shard")}
    return ", ".join(f"{axis}={n}" for axis, n in degrees.items() if n > 1) or "tp=1"
