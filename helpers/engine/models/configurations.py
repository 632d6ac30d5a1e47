"""A model's configuration from a preset, a folder or the hub, and what is checked before building.

config = load_config("gptj-6b", num_hidden_layers=4)
check_model(config)
"""

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..errors import (
    UserError,
    as_path,
    check_access,
    check_count,
    is_finite_number,
    is_number,
    need,
    whole_reason,
)
from .architecture import text_config
from .objectives import OBJECTIVES, build, is_listed
from .overrides import override

# what a configuration's numbers can be at most; the larger ones are only typing errors
MOST = {"num_hidden_layers": 10_000} | dict.fromkeys(
    ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "n_inner"),
    10_000_000,
)
MOST |= {"vocab_size": 100_000_000, "max_position_embeddings": 10**10}
MOST_OF_A_STEP = 100_000_000  # samples, or tokens of one: beyond all that was ever trained
# types that count positions from beyond padding's id; None: the configuration's
AFTER_PADDING = {"mpnet": 1} | dict.fromkeys(
    (
        *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke"),
        *("markuplm", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    )
)
NO_NAME = re.compile("[\0-\x1f\x7f\ud800-\udfff]")  # control characters, half characters
LONGEST_PATH, LONGEST_NAME = 4096, 255  # bytes, of Linux's PATH_MAX and NAME_MAX


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
            folder = find_model(source)
            _refuse_own_code(transformers.PretrainedConfig.get_config_dict(folder)[0], source)
            config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
            _refuse_foreign_attention(config, source)
    except UserError:
        raise
    except Exception as error:  # transformers has no kind of its own for a broken configuration
        raise UserError(
            f"{source!r} has no configuration that transformers reads: {whole_reason(error)}"
        ) from None
    override(text_config(config), **overrides)
    _check_numbers(text_config(config), source)
    return config


def _check_numbers(config: Any, source: str | Path) -> None:
    """Sizes that no model has: of none nothing is left, and a billion layers never end; and numbers
    that transformers takes and that only a step would show."""
    of_layers = getattr(config, "per_layer_attributes", None) or ()  # none of the whole
    sizes = {name: getattr(config, name, None) for name in MOST if name not in of_layers}
    for name, size in sizes.items():
        if isinstance(size, bool | float | str):
            raise UserError(f"{source!r} has {name} {size!r:.40}: it must be a whole number")
        if isinstance(size, int) and not 1 <= size <= MOST[name]:
            raise UserError(f"{source!r} has {name} {size}: from 1 to {MOST[name]} can be trained")
    for name, value in vars(config).items():
        if not is_number(value):
            continue
        drops = "dropout" in name or "pdrop" in name
        if not is_finite_number(value) or (drops and not 0 <= value < 1):
            limits = "from 0 and below 1" if drops else "finite"
            raise UserError(f"{source!r} has {name} {value!r:.40}: it must be {limits}")
    heads, of_keys = sizes.get("num_attention_heads") or 1, sizes.get("num_key_value_heads") or 1
    if heads % of_keys:
        raise UserError(
            f"{source!r} has {heads} attention heads, no multiple of its {of_keys} key-value heads"
        )
    turned = getattr(config, "rotary_dim", None)
    width, rest = divmod(sizes.get("hidden_size") or 0, heads)
    if isinstance(turned, int) and not rest and not 0 < turned <= width:
        raise UserError(f"{source!r} has rotary_dim {turned}, and heads of {width}")


def _refuse_own_code(told: dict[str, Any], source: str | Path) -> None:
    """Raise a UserError if a model needs code that comes with it: of its type, or of a class that
    transformers has no other of that name for."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    classes = told.get("auto_map")
    classes = classes if isinstance(classes, dict) else {}
    models = [classes[one.auto] for one in OBJECTIVES.values() if one.auto in classes]
    foreign = [name for name in models if not is_listed(str(name).rpartition(".")[2])]
    hand = (
        "which is never run here: in a script of your own hand parallelize the model that "
        "transformers makes with trust_remote_code=True, see docs/engine.md"
    )
    if classes and told.get("model_type") not in CONFIG_MAPPING_NAMES:
        named = models[0] if models else next(iter(classes.values()))
        raise UserError(
            f"{source!r} has no configuration that transformers reads: it comes with code of its "
            f"own ({named}), {hand}"
        )
    if foreign:
        raise UserError(
            f"{source!r} comes with code of its own ({foreign[0]}), {hand}; or take auto_map out "
            f"of its config.json for transformers' own {told['model_type']}"
        )


def code_left(config: Any) -> str:
    """The class in code that came with a configuration, and in whose place transformers' own of the
    same name stands; empty where there is none."""
    classes = getattr(config, "auto_map", None) or {}
    return next((str(classes[o.auto]) for o in OBJECTIVES.values() if o.auto in classes), "")


def _refuse_foreign_attention(config: Any, source: str | Path) -> None:
    """transformers fetches and runs attention that is named as on a hub, owner/name."""
    for part in (config, *vars(config).values()):
        name = getattr(part, "_attn_implementation", None)
        if isinstance(name, str) and "/" in name:
            raise UserError(
                f"{source!r} asks for attention code from a hub ({name}), which is never run here: "
                "take attn_implementation out of its config.json"
            )


def check_hub(kind: str, name: str) -> None:
    """See that the hub has a model or data set of that name, or that a copy lies in its cache.

    It is asked once and quietly, before anything loads from it.

    Args:
        kind: "model" or "dataset".

    Raises:
        UserError: the hub says no, cannot be reached, or is switched off and nothing is cached.
    """
    hub = need("huggingface_hub", "hf")
    try:
        hub.snapshot_download(name, repo_type=kind, local_files_only=True)
        return
    except Exception:  # not in the cache, or not whole there: the hub decides
        if hub.constants.HF_HUB_OFFLINE:
            raise UserError(f"HF_HUB_OFFLINE is set and no {kind} {name!r} is cached") from None
    try:
        hub.HfApi().repo_info(name, repo_type=kind, timeout=10)
    except (hub.errors.RepositoryNotFoundError, hub.errors.HFValidationError):
        raise UserError(f"the hub has no {kind} {name!r} that you may read") from None
    except Exception as error:
        # the client's network errors are of many kinds; all mean that the hub was not reached
        raise UserError(f"the hub cannot be asked for {name!r}: {type(error).__name__}") from None


def find_model(source: str | Path) -> str:
    """A model's folder, or the text itself as a hub id that exists.

    Raises:
        UserError: the folder holds no configuration, or the hub knows no such model.
    """
    folder = expanded(source)
    check_access(folder / "config.json")
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
        UserError: there is no user of that name, or no file can have such a name.
    """
    text = str(path)
    if not text or NO_NAME.search(text):
        raise UserError(f"{text!a:.80} is no name that a file can have")
    encoded = text.encode()
    if len(encoded) >= LONGEST_PATH or max(map(len, encoded.split(b"/"))) > LONGEST_NAME:
        raise UserError(f"{text[:60]}... is longer than a file's name can be")
    try:
        return as_path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no such home folder; give a path without ~") from None


def check_model(config: Any, task: str | None = None) -> None:
    """Raise a UserError if transformers cannot build the model with the head for a task: of a
    causal language model where neither the task nor the configuration says another."""
    small = copy.deepcopy(config)
    text_config(small).num_hidden_layers = 1
    with torch.device("meta"):
        build(small, task)


def check_length(config: Any, seq_len: int) -> None:
    """Raise a UserError if the model has no positions for sequences of this length."""
    longest = longest_row(config)
    if longest and seq_len > longest:
        raise UserError(f"seq_len {seq_len} is longer than the model's {longest} positions")


def longest_row(config: Any) -> int:
    """Tokens of a sequence at most; 0 where there is no such limit."""
    text = text_config(config)
    # MPT's ALiBi is made for just so many tokens
    name = "max_seq_len" if text.model_type == "mpt" else "max_position_embeddings"
    longest = getattr(text, name, None)
    if longest is None or longest < 1:
        return 0
    turned = getattr(text, "position_embedding_type", None) == "rotary"  # as some of ESM's
    if turned or text.model_type not in AFTER_PADDING:
        return longest
    padding = AFTER_PADDING[text.model_type] or text.pad_token_id or 0
    return longest - padding - 1


def check_counts(batch: int, seq_len: int) -> None:
    """Raise a UserError if one of them is no whole number above 0, or beyond all reason."""
    for name, number in (("batch", batch), ("seq_len", seq_len)):
        check_count(name, number)
        if number > MOST_OF_A_STEP:
            raise UserError(f"{name} must be at most {MOST_OF_A_STEP:,}, not {number:,}")
