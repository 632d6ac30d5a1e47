"""What two models have in common, of which one can go on with the other's weights."""

from contextlib import suppress
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.files.manifest import as_stored
from helpers.engine.models.architecture import text_config

SIZES = {  # what a run's model must share with the one that it goes on from
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
}
# entries of a configuration that may be others where the same weights are
COMPUTES_NOTHING = (
    *("model_type", "dtype", "transformers_version", "_name_or_path", "use_cache", "return_dict"),
    *("id2label", "label2id", "problem_type", "task_specific_params", "initializer_range"),
    *("output_attentions", "output_hidden_states", "chunk_size_feed_forward", "architectures"),
)


def of_model(config: Any) -> dict[str, Any]:
    """What a run's model must share with the one that it goes on from: its kind, its sizes, and
    what it computes of its weights, by the names of the configuration."""
    text = text_config(config)
    sizes = {word: getattr(text, name, None) for word, name in SIZES.items()}
    computes: dict[str, Any] = {}
    for name, value in text.to_dict().items():
        if name in (*SIZES.values(), *COMPUTES_NOTHING) or name.endswith("_token_id"):
            continue
        if "drop" not in name:
            with suppress(UserError):  # of what no manifest holds
                computes |= as_stored({name: value})
    return {"model": config.model_type, **sizes, **computes}
