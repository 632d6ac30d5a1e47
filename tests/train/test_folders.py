"""Models from folders: of any kind, and only with all of their weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from tests.support import scripts, tiny
from tests.support.matrix import part

LIKE_LLAMA = {
    "vocab_size": 2048,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
FLAGS = {"seq_len": 32, "batch_size": 8, "steps": 3}


def write_model(folder: Path, kind: str, **fields: object) -> Path:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **LIKE_LLAMA | fields)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def run(ranks: int = 1, **flags: object) -> tuple[dict, list[float]]:
    """Its summary and its losses."""
    summary, lines = scripts.trained(ranks, **FLAGS | flags)
    return summary, [line["loss"] for line in lines]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fields"),
    part(
        [("gemma2", {"head_dim": 8, "sliding_window": 8})],
        [
            ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
            ("mistral", {"sliding_window": 8}),
            ("opt", {"word_embed_proj_dim": 32, "ffn_dim": 48, "dropout": 0.0}),
        ],
    ),
)
def test_a_model_without_a_record_trains_alike_in_every_layout(
    tmp_path: Path, kind: str, fields: dict
) -> None:
    folder = write_model(tmp_path / "model", kind, **fields)
    layouts = {"one": {}, "tp": {"tp": 2}, "pp": {"pp": 2}, "zero-3": {"dp_shard": 2}}
    if kind == "opt":  # which can be split neither by tp nor into stages
        del layouts["tp"], layouts["pp"]
    by_layout = {}
    for name, layout in layouts.items():
        out, ranks = tmp_path / name, 2 if layout else 1
        summary, by_layout[name] = run(ranks, model=folder, out=out, save=True, **layout)
        assert summary["weights"].startswith(f"{folder}, digest ")
        transformers.AutoModelForCausalLM.from_pretrained(out / "model")
    for found in by_layout.values():
        assert found == pytest.approx(by_layout["one"], rel=1e-4)


def dangling(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "gone")


def one_shard_without_its_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")


def nothing_but_a_configuration(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def an_index_of_files_that_are_gone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def adapters_beside_the_weights(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (adapters_beside_the_weights, "transformers would put those adapters in"),
        (dangling, "model.safetensors in model leads nowhere"),
        (one_shard_without_its_index, "and no index of its shards"),
        (nothing_but_a_configuration, "has a configuration and no weights"),
        (an_index_of_files_that_are_gone, "model lacks model-00001-of-00001.safetensors"),
    ],
)
def test_a_folder_without_its_weights_or_with_more_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    folder = write_model(tmp_path / "model", "llama")
    spoil(folder)
    before = sorted(tmp_path.rglob("*"))
    assert words in scripts.refusal("--model", folder, "--seq-len", 32, out=tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_tensor_that_a_file_lacks_is_named(tmp_path: Path) -> None:
    model = tiny.fresh("llama", torch.float32)
    model.resize_token_embeddings(2048)
    weights = model.state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path / "model", state_dict=weights)
    done = scripts.process(model=tmp_path / "model", out=tmp_path / "out", **FLAGS)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert "holds no weight 'model.layers.1.mlp.up_proj.weight'" in scripts.the_line(done.stderr)


@pytest.mark.slow
def test_code_that_is_not_run_is_named_in_a_line(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "llama")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling_old.LlamaForCausalLM"}}
    (folder / "config.json").write_text(json.dumps(config))
    done = scripts.process(model=folder, out=tmp_path / "out", **FLAGS | {"steps": 1})
    assert done.returncode == 0, done.stderr
    line = (
        f"modeling_old.LlamaForCausalLM of {folder} is not run: transformers' own llama is trained"
    )
    assert done.stdout.splitlines()[0] == line


@pytest.mark.slow
def test_from_scratch_begins_with_random_weights_and_says_so(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "llama")
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(folder / "config.json", bare)
    found = []
    for name, model in (("with", folder), ("without", bare)):
        summary, losses = run(model=model, out=tmp_path / name, from_scratch=True)
        assert summary["weights"] == "random, of seed 0"
        found.append(losses)
    assert found[0] == found[1]
    _, losses = run(model=folder, out=tmp_path / "read")
    assert losses != found[0]
