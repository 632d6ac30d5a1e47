"""A model of 1.5 GB in several files, and the peak of memory that loading one takes."""

import gc
import re
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import nn

from helpers.engine.memory.cpu_allocator import keep_freed_memory

SIZE_BYTES = 1.5e9
HIDDEN, VOCABULARY = 1536, 32_000


def save_large(folder: Path) -> nn.Module:
    """A GPT-NeoX in float32, as transformers writes it; returns the model."""
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_attention_heads=16,
        num_hidden_layers=10,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder, max_shard_size="400MB")
    return model


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def measured(
    load_small: Callable[[], nn.Module], load: Callable[[], nn.Module]
) -> tuple[nn.Module, int]:
    """What a load makes, and its peak beyond the interpreter with all that a load imports, which
    loading a small model of the same kind brings in."""
    keep_freed_memory()  # as in every process of a plan
    load_small()
    gc.collect()
    before = _memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    model = load()
    return model, _memory_bytes("VmHWM") - before


def _memory_bytes(key: str) -> int:
    """A line of /proc/self/status: VmRSS, resident now; VmHWM, the most since the last reset."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+) kB", text)[1]) * 1024
