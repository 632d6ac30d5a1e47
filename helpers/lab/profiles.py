"""The sizes that a notebook comes in, as data, and the preflight that picks one.

tiny         CPU ranks over gloo, a tiny model, bundled text: seconds, anywhere
single_gpu   the same, and one more run on the GPU at a size that fills some of it
multi_gpu    ranks on GPUs over NCCL, and the published model where it fits

plan = preflight(1)                       # shows what was found and what was chosen
run = launch("scripts/train.py", **plan.profile.flags())
"""

from dataclasses import dataclass, replace
from typing import Any

from helpers.engine.errors import UserError, need
from helpers.engine.weights import load_config
from helpers.lab.machine import Machine, find_machine
from helpers.lab.show import show_table
from helpers.planner.cost import Shape, model_shape, state_bytes

LEAST_GPU_BYTES = 15 * 10**9  # the GPU profiles' smaller runs fit a T4
FILLED = 0.7  # of a GPU's memory by the training state; activations need the rest


@dataclass(frozen=True)
class Profile:
    """Settings of a notebook's runs. `parameters` is the model's size, for the memory estimate.

    device: `cpu` keeps the ranks off the GPUs; `cuda` gives each rank one.
    larger: one more run beside the compared pair, or None.
    untrue: what the profile's results do not show.
    """

    name: str
    model: str
    tp: int
    steps: int
    batch_size: int
    seq_len: int
    parameters: int
    device: str = "cpu"
    precision: str = "fp32"
    data: str = "data/reviews/train.tsv"
    eval_data: str | None = None
    task: str = "lm"
    lr: float = 1e-3
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    larger: "Profile | None" = None
    untrue: tuple[str, ...] = ()

    @property
    def nproc(self) -> int:
        """Ranks of the parallel run."""
        return self.tp

    @property
    def shape(self) -> Shape:
        """The model's widths, for the planner's formulas."""
        config = load_config(
            self.model,
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
        )
        return model_shape(config)

    def flags(self, tp: int | None = None) -> dict[str, Any]:
        """Arguments of `launch("scripts/train.py", ...)` for this profile's parallel run, or with
        `tp=1` for its baseline on one process."""
        tp = tp or self.tp
        names = ("model", "steps", "batch_size", "seq_len", "data", "eval_data", "task", "lr")
        flags = {name: getattr(self, name) for name in (*names, "layers", "hidden", "heads")}
        flags = {name: value for name, value in flags.items() if value is not None}
        hidden_gpus = {"env": {"CUDA_VISIBLE_DEVICES": ""}} if self.device == "cpu" else {}
        return {"nproc": tp, "tp": tp, **flags, **hidden_gpus}


_CPU = (
    "Throughput, MFU and cost are illustrative: CPU cores over gloo say nothing of GPUs over NCCL.",
    "The model is tiny: communication weighs more, and matrices run less well, than at size.",
)

_TINY = Profile(
    name="tiny",
    model="gptj-tiny",
    tp=2,
    steps=126,  # two epochs
    batch_size=64,
    seq_len=64,
    parameters=1_316_608,
    eval_data="data/reviews/heldout.tsv",
    task="classify",
    untrue=_CPU,
)

# GPT-J's head count, half its width, 8 of its 28 layers: 10 GB of state in fp32
_CUT_GPTJ = Profile(
    name="cut",
    model="gptj-6b",
    tp=1,
    steps=20,
    batch_size=8,
    seq_len=512,
    parameters=609_260_768,
    device="cuda",
    lr=2e-4,
    layers=8,
    hidden=2048,
    heads=16,
)

_WHOLE_GPTJ = Profile(
    name="published",
    model="gptj-6b",
    tp=8,
    steps=20,
    batch_size=8,
    seq_len=1024,
    parameters=6_050_882_784,
    device="cuda",
    lr=2e-4,
)

_SINGLE_GPU = replace(
    _TINY,
    name="single_gpu",
    larger=_CUT_GPTJ,
    untrue=(
        "The compared pair runs on CPU ranks, since NCCL wants a GPU a rank: its throughput and "
        "cost are illustrative, its parity and memory are not.",
        "The run on the GPU is one process: its throughput and MFU are the GPU's, without "
        "communication.",
    ),
)

_MULTI_GPU = replace(
    _CUT_GPTJ,
    name="multi_gpu",
    tp=8,
    larger=_WHOLE_GPTJ,
    untrue=("The compared pair is a GPT-J cut to fit one GPU; only the larger run is the whole.",),
)

PROFILES: dict[int, dict[str, Profile]] = {
    0: {"tiny": replace(_TINY, steps=30)},
    1: {"tiny": _TINY, "single_gpu": _SINGLE_GPU, "multi_gpu": _MULTI_GPU},
}

CHANGEABLE = ("tp", "steps", "batch_size", "seq_len", "lr", "data", "eval_data", "task")


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
            f"profile {profile!r} needs {NEEDS[profile]}; this machine has {machine.words}: "
            f"use profile='auto' or {ready[-1]!r}"
        )
    chosen = _fit(PROFILES[notebook][name], machine, changes)
    record = Preflight(notebook, machine, chosen, reason)
    if show:
        show_table(_table(record), f"Preflight of notebook {notebook}")
    return record


NEEDS = {
    "tiny": "nothing",
    "single_gpu": "a GPU with at least 15 GB",
    "multi_gpu": "at least 2 GPUs with at least 15 GB each",
}


def runnable(notebook: int, machine: Machine) -> list[str]:
    """The notebook's profiles that the machine can run, smallest first."""
    large = [gpu for gpu in machine.gpus if gpu.memory_bytes >= LEAST_GPU_BYTES]
    able = {"tiny": True, "single_gpu": len(large) >= 1, "multi_gpu": len(large) >= 2}
    return [name for name in PROFILES[notebook] if able[name]]


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
    """The profile with as many tensor-parallel ranks as there are GPUs, a power of two of them."""
    tp = min(profile.tp, 2 ** (gpus.bit_length() - 1))
    return replace(profile, tp=tp)


def _fits(profile: Profile, machine: Machine) -> bool:
    state = state_bytes(profile.parameters, profile.precision, tp=profile.tp)
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
        f"parameters; tp={profile.tp} on {profile.nproc} {_RANKS[profile.device]}{plural}; "
        f"{profile.steps} steps of {profile.batch_size} x {profile.seq_len} tokens; "
        f"{profile.precision}"
    )


_RANKS = {"cpu": "CPU rank", "cuda": "GPU"}
