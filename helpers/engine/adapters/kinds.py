"""Which of peft's adapters are plain LoRA: a product beside each layer, of which both halves train.

Under the same names peft has others, which compute something else, train half of it, or began by
a change of the base. So what a configuration says is plain by what is known of it, and all else
that is switched on is refused, whichever version of peft wrote it.
"""

import json
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import UserError, need

# keys that say which layers, how large a product, or where it came from
PLAIN = {
    *("peft_version", "auto_mapping", "task_type", "inference_mode"),
    *("base_model_name_or_path", "revision"),
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    "fan_in_fan_out",  # which peft sets right itself
    *("bias", "modules_to_save"),  # if these train, the weights are in the file, and looked for
    "ensure_weight_tying",  # of the embedding and the head, beside which nothing stands here
    # how to begin; and what a quantization has in which no base is held here
    *("eva_config", "corda_config", "lora_ga_config", "loftq_config"),
    *("use_qalora", "qalora_group_size", "megatron_core", "runtime_config"),
}
# of init_lora_weights: they say where A and B began, and leave all else as it is
STARTS = ("true", "false", "none", "gaussian", "eva", "orthogonal")
BASE_CHANGED = (
    "it changes the base's weights; convert them by path_initial_model_for_weight_conversion of "
    "save_pretrained"
)
WHY = {
    "alora_invocation_tokens": "they work from their invocation tokens on, which is not done here",
    "layer_replication": "layers of the model stand in it more than once, which is not done here",
    "target_parameters": "beside what is no linear layer, as experts, no adapter stands here",
    "init_lora_weights=mica": "it trains one half of each product alone",
    **{
        f"init_lora_weights={start}": BASE_CHANGED
        for start in ("pissa", "olora", "corda", "loftq", "lora_ga")
    },
}
OTHERWISE = "adapters here are plain LoRA, a product beside each layer that trains whole"


def check_kind(file: Path) -> None:
    """Raise a UserError if a configuration's adapters are more than a product beside layers.

    Raises:
        ValueError: the file holds no such configuration.
    """
    said = json.loads(file.read_text("utf-8"))
    if not isinstance(said, dict):
        raise ValueError(f"{file.name} holds no configuration")
    for name, value in said.items():
        if not _is_plain(name, value):
            words = " ".join(f"{name}={value}".split())
            why = next((WHY[key] for key in WHY if words.startswith(key)), OTHERWISE)
            raise UserError(f"the adapters in {file.parent} say {words:.80}: {why}")


def _is_plain(name: str, value: Any) -> bool:
    if name == "init_lora_weights":
        return str(value).lower() in STARTS
    if name == "peft_type":
        return value == "LORA"
    if name in PLAIN or value in (None, []) or value == _defaults().get(name):
        return True
    # what peft knows, or is configured by a table, may be on where that is empty
    return not value and value != {} and name not in _defaults()


@cache
def _defaults() -> dict[str, Any]:
    """What peft takes where nothing is said."""
    return {
        field.name: field.default if field.default is not MISSING else field.default_factory()
        for field in fields(need("peft", "qlora").LoraConfig)
        if (field.default, field.default_factory) != (MISSING, MISSING)
    }
