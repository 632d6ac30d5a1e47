"""A GPU's own word on its health, from nvidia-smi: memory in use, ECC, clocks under load.

No GPU has run this yet: the parser is tested on nvidia-smi's text, the rest on a CPU alone.
"""

import csv
import subprocess

import torch

# nvidia-smi --help-query-gpu has the names (of drivers since 535, the clocks_event_reasons)
FIELDS = (
    "uuid",
    "memory.total",
    "memory.used",
    "ecc.errors.uncorrected.volatile.total",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_event_reasons.hw_slowdown",
    "temperature.gpu",
)
SMI = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
LIMIT_S = 30
PRODUCTS, SIDE = 40, 8192  # queued while nvidia-smi looks: an idle GPU's clocks say nothing
State = dict[str, float | str | None]


def gpu_state(device: torch.device) -> State:
    """This rank's GPU as nvidia-smi sees it under load, by FIELDS; memory.used is that before
    anything was put there. Empty where there is no nvidia-smi, or it knows no such GPU."""
    used_bytes = _used_bytes(device)
    a = torch.ones(SIDE, SIDE, device=device)
    for _ in range(PRODUCTS):
        torch.mm(a, a)
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    torch.cuda.synchronize(device)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    found = next((state for state in parse(done.stdout) if uuid in str(state["uuid"])), {})
    return found and found | {"memory.used": used_bytes / 2**20}


def parse(text: str) -> list[State]:
    """The rows of nvidia-smi's CSV without heads and units: numbers where these are, words, and
    None for what the GPU does not have ([N/A], [Not Supported])."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [dict(zip(FIELDS, map(_value, row))) for row in rows if len(row) == len(FIELDS)]


def _used_bytes(device: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _value(text: str) -> float | str | None:
    text = text.strip()
    if text.startswith("["):
        return None
    try:
        return float(text)
    except ValueError:
        return text
