"""A model's configuration from a preset, a folder or the hub, and what is checked before building.

config = load_config("gptj-6b", num_hidden_layers=4)
check_model(config)
"""

import copy
from pathlib import Path
from typing import Any

import torch

from helpers.engine.errors import UserError, need
from helpers.engine.families import family_of
from helpers.engine.hub import check_hub
from helpers.engine.weight_files import WeightFiles
from helpers.engine.widths import override

PRESETS = Path(__file__).resolve().parents[2] / "data" / "models"


def load_config(source: str | Path, **overrides: Any) -> Any:
    """The transformers configuration of a preset's name, a folder or a hub id.

    `overrides` replace fields of it; those that are None are left alone.

    Raises:
        UserError: nothing is found there, what is found is no configuration, or the overrides do
            not fit it.
    """
    transformers = need("transformers", "hf")
    path = resolve(source)
    if not Path(path).is_dir():
        try:
            check_hub("model", path)
        except UserError as error:
            raise UserError(
                f"{source!r} is no folder and no preset ({presets()}): {error}"
            ) from None
    try:
        config = transformers.AutoConfig.from_pretrained(path)
    except Exception as error:  # transformers has no kind of its own for a broken configuration
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{source!r} has no configuration that transformers reads: {reason}"
        ) from None
    override(config, **overrides)
    return config


def presets() -> str:
    """The names of the model configurations that come with the project, in one line."""
    return ", ".join(sorted(p.parent.name for p in PRESETS.glob("*/config.json"))) or "none here"


def resolve(source: str | Path) -> str:
    """A preset's folder, an existing folder, or the text itself as a hub id."""
    preset = PRESETS / str(source)
    if (preset / "config.json").is_file():
        return str(preset)
    folder = Path(source).expanduser()
    if folder.exists() and not (folder / "config.json").is_file():
        raise UserError(f"{source} has no config.json: give a model folder, a hub id or a preset")
    return str(folder) if folder.exists() else str(source)


def check_model(config: Any) -> None:
    """See that transformers can build the model and that its family is known here.

    Raises:
        UserError: it cannot, or it is not; the line says what works.
    """
    family_of(config)
    transformers = need("transformers", "hf")
    small = copy.deepcopy(config)
    small.num_hidden_layers = 1
    try:
        with torch.device("meta"):
            transformers.AutoModelForCausalLM.from_config(small)
    except Exception as error:  # each model class has its own complaints
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"transformers cannot build this {config.model_type}: {reason}") from None


def check_length(config: Any, seq_len: int) -> None:
    """Raise a UserError if the model has no positions for sequences of this length."""
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and seq_len > longest:
        raise UserError(f"seq_len {seq_len} is longer than the model's {longest} positions")


def fit_vocabulary(config: Any, source: str | Path, tokens: int) -> None:
    """Widen the vocabulary of a model without weights to the tokenizer's `tokens` ids.

    Raises:
        UserError: the model has weights, and fewer rows than the tokenizer has ids.
    """
    if tokens <= config.vocab_size:
        return
    if WeightFiles.find(resolve(source)) is not None:
        raise UserError(
            f"the tokenizer has {tokens} ids but {source} has weights for {config.vocab_size}: "
            "give the model's own tokenizer"
        )
    config.vocab_size = tokens
