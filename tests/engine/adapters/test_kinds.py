"""Plain LoRA is taken from peft's files, and what is more or other than that is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.engine.adapters.kinds import check_kind
from helpers.engine.adapters.lora import load_adapters
from helpers.engine.errors import UserError
from tests.support import tiny

peft = pytest.importorskip("peft")

OTHER: list[tuple[dict[str, Any], str]] = [
    ({"init_lora_weights": "mica"}, "it trains one half of each product alone"),
    ({"init_lora_weights": "pissa_niter_4"}, "it changes the base's weights"),
    ({"init_lora_weights": "of tomorrow\n"}, "init_lora_weights=of tomorrow: adapters here are"),
    ({"alora_invocation_tokens": [5, 6]}, "from their invocation tokens on"),
    ({"layer_replication": [[0, 2], [1, 2]]}, "stand in it more than once"),
    ({"target_parameters": ["experts.down_proj"]}, "beside what is no linear layer"),
    ({"use_bdlora": {"target_modules_bd_a": ["q_proj"], "nblocks": 2}}, "use_bdlora="),
    ({"trainable_token_indices": [1]}, "trainable_token_indices="),
    ({"velora_config": {"num_groups": 4}}, "velora_config="),
    ({"arrow_config": {"top_k": 1}}, "arrow_config="),
    ({"use_dora": True}, "use_dora=True"),
    ({"lora_bias": True}, "lora_bias=True"),
    ({"peft_type": "LOHA"}, "peft_type=LOHA"),
    ({"invented_tomorrow": True}, "invented_tomorrow=True"),
    ({"kasa_config": {}}, "kasa_config={}"),  # which peft takes for its defaults
    ({"lora_alpha": float("inf")}, "no finite alpha for model.layers.0.self_attn.q_proj"),
    ({"alpha_pattern": {"v_proj": float("nan")}}, "no finite alpha"),
    # of these peft raises an AttributeError, a NotImplementedError
    ({"rank_pattern": None}, "do not fit this model"),
    ({"alpha_pattern": ["v_proj"]}, "do not fit this model"),
    ({"bias": "some"}, "do not fit this model"),
    # peft would leave what is in the file of v_proj out, and say so in a warning
    ({"target_modules": ["q_proj"]}, "v_proj.lora_A.weight, for which this model has no place"),
]
PLAIN: list[dict[str, Any]] = [
    {},
    {"invented_tomorrow": None, "target_parameters": []},
    *({"init_lora_weights": start} for start in (True, False, "gaussian", "orthogonal", "eva")),
    {"use_rslora": True, "alpha_pattern": {"v_proj": 3}},
    {"inference_mode": True, "task_type": "FEATURE_EXTRACTION"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    peft.get_peft_model(tiny.fresh("llama", torch.float32), config).save_pretrained(tmp_path)
    return tmp_path


def say(folder: Path, said: dict[str, Any]) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))


@pytest.mark.parametrize(("said", "words"), OTHER, ids=str)
def test_what_is_more_than_a_product_is_refused(said: dict, words: str, folder: Path) -> None:
    say(folder, said)
    with pytest.raises(UserError) as caught:
        load_adapters(tiny.fresh("llama", torch.float32), folder)
    assert words in str(caught.value) and "\n" not in caught.value.args[0]


@pytest.mark.parametrize("said", PLAIN, ids=str)
def test_what_is_plain_is_taken(said: dict, folder: Path) -> None:
    say(folder, said)
    model = load_adapters(tiny.fresh("llama", torch.float32), folder)
    assert any(parameter.requires_grad for parameter in model.parameters())


def test_whatever_peft_says_by_default_is_plain(tmp_path: Path) -> None:
    peft.LoraConfig(target_modules=["q_proj"]).save_pretrained(tmp_path)
    check_kind(tmp_path / "adapter_config.json")


@pytest.mark.parametrize("text", ["[]", "{", '"r"', "\xff"])
def test_what_holds_no_configuration_is_refused(text: str, folder: Path) -> None:
    (folder / "adapter_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="do not fit this model") as caught:
        load_adapters(tiny.fresh("llama", torch.float32), folder)
    assert "\n" not in caught.value.args[0]
