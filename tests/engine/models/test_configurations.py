"""Configurations in which a language model is a part, or has no attention heads."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import model_type_to_module_name

from helpers.engine.models.architecture import family_of, text_config
from helpers.engine.models.configurations import (
    AFTER_PADDING,
    check_length,
    check_model,
    load_config,
    longest_row,
)
from helpers.engine.plan import ParallelPlan
from helpers.planner.shape.families import model_shape
from tests.support.refusals import said
from tests.support.scripts import script

small_config = script("docs/small_models").small_config
LIKE_LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
HEADLESS = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm")
COMPOSITE = ("gemma3", "fuyu", "got_ocr2")


def saved(model_type: str, folder: Path) -> Path:
    small_config(model_type).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", HEADLESS + COMPOSITE)
def test_it_is_read_and_can_be_built(model_type: str, tmp_path: Path) -> None:
    config = load_config(saved(model_type, tmp_path))
    assert config.model_type == model_type
    check_model(config)


@pytest.mark.parametrize("model_type", HEADLESS + COMPOSITE)
def test_its_depth_can_be_another(model_type: str, tmp_path: Path) -> None:
    config = load_config(saved(model_type, tmp_path), num_hidden_layers=3)
    assert text_config(config).num_hidden_layers == 3


@pytest.mark.parametrize("model_type", HEADLESS)
def test_without_heads_its_width_stays(model_type: str, tmp_path: Path) -> None:
    for name in ("hidden_size", "num_attention_heads"):
        words = said(load_config, saved(model_type, tmp_path), **{name: 64})
        assert words == f"{model_type} has no attention heads: its width stays as it is"


def test_the_positions_are_those_of_the_language_model(tmp_path: Path) -> None:
    config = load_config(saved("gemma3", tmp_path))
    text_config(config).max_position_embeddings = 16
    check_length(config, 16)
    assert "longer than the model's 16 positions" in said(check_length, config, 17)


def test_mpt_takes_as_many_tokens_as_its_alibi_is_made_for() -> None:
    config = transformers.MptConfig(d_model=32, n_heads=4, n_layers=1, max_seq_len=16)
    check_length(config, 16)
    assert "longer than the model's 16 positions" in said(check_length, config, 17)


TABLE = 24  # positions
WIDTHS = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 1}
WIDTHS |= {"num_attention_heads": 4, "max_position_embeddings": TABLE, "pad_token_id": 2}
OWN = {
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 8},
    "longformer": {"attention_window": 4},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 16},
    "xmod": {"default_language": "en_XX"},
}


@pytest.mark.parametrize("model_type", AFTER_PADDING)
def test_positions_behind_padding_are_fewer(model_type: str) -> None:
    """The longest row runs, and one of a token more has no position."""
    config = transformers.AutoConfig.for_model(model_type, **WIDTHS | OWN.get(model_type, {}))
    model, longest = transformers.AutoModel.from_config(config).eval(), longest_row(config)
    assert longest == TABLE - 1 - (1 if model_type == "mpnet" else 2)
    model(input_ids=torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 5))
    assert f"the model's {longest} positions" in said(check_length, config, longest + 1)


def test_rotary_positions_of_esm_are_none_of_a_table() -> None:
    config = transformers.EsmConfig(**WIDTHS, position_embedding_type="rotary")
    assert longest_row(config) == TABLE
    transformers.EsmModel(config)(input_ids=torch.full((1, TABLE), 5))


def test_every_type_that_counts_behind_padding_is_known() -> None:
    """By the words of transformers' files."""
    heads = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )
    folder, found = Path(transformers.__file__).parent / "models", set()
    for model_type in set().union(*heads):
        files = (folder / model_type_to_module_name(model_type)).glob("modeling_*.py")
        if any("padding_idx + 1, sequence_length + " in file.read_text() for file in files):
            found.add(model_type)
    assert found and found <= AFTER_PADDING.keys()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_layers": 2}, "no 'num_layers': did you mean n_layer or num_labels or num_hidden"),
        ({"n_layers": 2}, "no 'n_layers': did you mean n_layer"),
        ({"layers": 2}, "no 'layers': did you mean n_layer"),
        ({"nosuch": 2}, "a configuration of gptj has no 'nosuch'"),
        ({"save_pretrained": 2}, "has no 'save_pretrained'"),
        ({"_attn_implementation": "a/b"}, "has no '_attn_implementation'"),
        ({"num_hidden_layers": "2"}, "does not take this num_hidden_layers: "),
        ({"num_hidden_layers": 1.5}, "does not take this num_hidden_layers: "),
        ({"n_layer": True}, "does not take this n_layer: "),
        ({"hidden_size": "x"}, "does not take this hidden_size: "),
        ({"vocab_size": "x"}, "does not take this vocab_size: "),
        ({"num_attention_heads": 0}, "heads=0 does not divide hidden=128"),
    ],
)
def test_an_override_is_a_field_of_its_type(fields: dict, words: str) -> None:
    assert words in said(load_config, "gptj-tiny", **fields)


@pytest.mark.parametrize("value", ["2", 1.5, True])
def test_types_are_those_of_strict_configurations_too(value: object) -> None:
    words = said(load_config, "llama-tiny", num_hidden_layers=value)
    assert words.startswith("llama does not take this num_hidden_layers: ")


def test_a_field_goes_by_each_of_its_names() -> None:
    for name in ("n_layer", "num_hidden_layers"):
        assert load_config("gptj-tiny", **{name: 2}).n_layer == 2
    assert load_config("gptj-tiny", num_labels=3).num_labels == 3


def test_what_transformers_cannot_build_is_said_in_one_line() -> None:
    config = small_config("emu3").get_text_config()
    assert said(check_model, config).startswith("transformers cannot build this emu3_text")


@pytest.mark.parametrize(
    ("preset", "fields", "words"),
    [
        ("gptj-tiny", {"attn_pdrop": 1.0}, "has attn_pdrop 1.0: it must be from 0 and below 1"),
        ("gptj-tiny", {"attn_pdrop": 1}, "has attn_pdrop 1: it must be from 0 and below 1"),
        ("llama-tiny", {"num_key_value_heads": 3}, "has 4 attention heads, no multiple of its 3"),
    ],
)
def test_numbers_that_only_a_step_would_show_are_refused(
    preset: str, fields: dict, words: str
) -> None:
    assert words in said(load_config, preset, **fields)


class NewConfig(transformers.LlamaConfig):
    model_type = "new_llama"


class NewLlama(transformers.LlamaForCausalLM):
    config_class = NewConfig


def test_a_configuration_of_ones_own_is_told_what_to_do_and_then_known() -> None:
    """What was said of it before transformers knew its class is not said again."""
    config, plan = NewConfig(**LIKE_LLAMA), ParallelPlan(tp=2)
    for asks in (plan.validate, check_model, model_shape):
        assert said(asks, config).startswith("transformers knows no model of a NewConfig yet: ")
    transformers.AutoModelForCausalLM.register(NewConfig, NewLlama)
    plan.validate(config)
    check_model(config)
    assert model_shape(config).layers == 2


def test_tokens_without_a_table_are_refused_in_one_line() -> None:
    """CANINE hashes characters into several."""
    with torch.device("meta"):
        model = transformers.CanineForSequenceClassification(transformers.CanineConfig())
    assert said(family_of, model).startswith("canine has no one table of tokens' vectors")


def written_with(layers: int, folder: Path, **sizes) -> transformers.PreTrainedConfig:
    """What transformers reads in the file of a configuration that has this number of layers."""
    kind = transformers.Gemma3TextConfig if "sliding_window" in sizes else transformers.Qwen3Config
    kind(**LIKE_LLAMA | {"num_hidden_layers": 4} | sizes).save_pretrained(folder / "own")
    load_config(folder / "own", num_hidden_layers=layers).save_pretrained(folder / "written")
    return transformers.AutoConfig.from_pretrained(folder / "written")


MIXED = {"sliding_window": 8, "layer_types": ["full_attention"] + 3 * ["sliding_attention"]}


@pytest.mark.parametrize("layers, sizes", ((2, {}), (6, {}), (2, MIXED)))
def test_what_is_said_of_each_layer_is_said_of_another_number(
    layers: int, sizes: dict, tmp_path: Path
) -> None:
    """A run with --layers of a model with `layer_types` ended in a traceback when it was saved."""
    read = written_with(layers, tmp_path, **sizes)
    assert read.num_hidden_layers == layers
    assert (
        read.layer_types
        == (sizes or {"layer_types": 6 * ["full_attention"]})["layer_types"][:layers]
    )


def test_layers_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    words = said(written_with, 6, tmp_path, **MIXED)
    assert "4 layers differ, and nothing says of what kind 6 would be: take at most 4" in words


@pytest.mark.skipif(not hasattr(transformers, "OlmoHybridConfig"), reason="not in this version")
def test_layers_that_would_be_read_as_others_are_refused(tmp_path: Path) -> None:
    """OLMo Hybrid wants a layer of attention; its first ones are none."""
    kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    sizes = LIKE_LLAMA | {"num_hidden_layers": 4, "layer_types": kinds}
    transformers.OlmoHybridConfig(**sizes).save_pretrained(tmp_path)
    words = said(load_config, tmp_path, num_hidden_layers=2)
    assert "transformers takes no olmo_hybrid of 2 layers (" in words


def test_layers_of_two_kinds_in_turn_can_be_fewer(tmp_path: Path) -> None:
    """GPT-Neo's file has them in another form than its configuration."""
    sizes = {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "hidden_size": 32}
    transformers.GPTNeoConfig(**sizes, num_heads=4).save_pretrained(tmp_path / "own")
    load_config(tmp_path / "own", num_hidden_layers=3).save_pretrained(tmp_path / "written")
    read = transformers.AutoConfig.from_pretrained(tmp_path / "written")
    assert read.attention_layers == ["global", "local", "global"]
