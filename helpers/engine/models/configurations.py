"""A model's configuration from a preset, a folder or the hub, and what is checked before building.

config = load_config("gptj-6b", num_hidden_layers=4)
check_model(config)
"""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError, need
from .architecture import text_config
from .hub import check_hub
from .overrides import override

MOST_LAYERS = 10_000


@cache
def presets() -> dict[str, dict[str, Any]]:
    """The configurations that come with the engine, by name; none has weights."""
    entries = json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8"))
    return {name: entry["config"] for name, entry in entries.items()}


def load_config(source: str | Path, **overrides: Any) -> Any:
    """The transformers configuration of a preset's name, a folder or a hub id.

    `overrides` replace fields of it; those that are None are left alone.

    Raises:
        UserError: nothing is found there, what is found is no configuration, or the overrides do
            not fit it.
    """
    transformers = need("transformers", "hf")
    try:
        if str(source) in presets():
            config = transformers.AutoConfig.for_model(**presets()[str(source)])
        else:
            config = transformers.AutoConfig.from_pretrained(
                find_model(source), trust_remote_code=False
            )
            _refuse_foreign_attention(config, source)
    except UserError:
        raise
    except Exception as error:  # transformers has no kind of its own for a broken configuration
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{source!r} has no configuration that transformers reads: {reason}"
        ) from None
    override(config, **overrides)
    _check_layers(config, source)
    return config


def _check_layers(config: Any, source: str | Path) -> None:
    """A number of layers that no model has: of none nothing is left, of a billion nothing ends."""
    layers = getattr(text_config(config), "num_hidden_layers", 1)
    if isinstance(layers, int) and not 1 <= layers <= MOST_LAYERS:
        raise UserError(f"{source!r} has {layers} layers: from 1 to {MOST_LAYERS} can be trained")


def _refuse_foreign_attention(config: Any, source: str | Path) -> None:
    """transformers fetches and runs attention that is named as on a hub, owner/name."""
    for part in (config, *vars(config).values()):
        name = getattr(part, "_attn_implementation", None)
        if isinstance(name, str) and "/" in name:
            raise UserError(
                f"{source!r} asks for attention code from a hub ({name}), which is never run here: "
                "take attn_implementation out of its config.json"
            )


def find_model(source: str | Path) -> str:
    """A model's folder, or the text itself as a hub id that exists.

    Raises:
        UserError: the folder holds no configuration, or the hub knows no such model.
    """
    folder = expanded(source)
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise UserError(
                f"{source} has no config.json: give a model folder, a hub id or a preset"
            )
        return str(folder)
    try:
        check_hub("model", str(source))
    except UserError as error:
        names = ", ".join(sorted(presets()))
        raise UserError(f"{source!r} is no folder and no preset ({names}): {error}") from None
    return str(source)


def expanded(path: str | Path) -> Path:
    """The path, with the home folder that ~ or ~name stands for.

    Raises:
        UserError: there is no user of that name.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no such home folder; give a path without ~") from None


def check_model(config: Any) -> None:
    """Raise a UserError if transformers cannot build the model as a causal language model."""
    transformers = need("transformers", "hf")
    small = copy.deepcopy(config)
    small.num_hidden_layers = 1
    try:
        with torch.device("meta"):
            transformers.AutoModelForCausalLM.from_config(small, trust_remote_code=False)
    except Exception as error:  # each model class has its own complaints
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"transformers cannot build this {config.model_type}: {reason}") from None


def check_length(config: Any, seq_len: int) -> None:
    """Raise a UserError if the model has no positions for sequences of this length."""
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and seq_len > longest:
        raise UserError(f"seq_len {seq_len} is longer than the model's {longest} positions")
