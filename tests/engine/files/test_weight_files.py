"""Folders of weights that say a thing twice, or in an older way: as transformers reads them."""

import json
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from helpers.engine.errors import UserError
from helpers.engine.files import weight_files
from helpers.engine.files.tensor_file import stored_names
from helpers.engine.files.weight_files import WeightFiles
from helpers.engine.files.weights import save_model
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from tests.support import parity, scripts, tiny
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said


def model_of(seed: int, tied: bool = False) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    config = tiny.config("llama")
    config.tie_word_embeddings = tied
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model_of(0).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def logits_of(folder: Path) -> torch.Tensor:
    plan = ParallelPlan()
    model = load_model(folder, plan, mesh_of(plan))
    with torch.no_grad():
        return model(input_ids=tiny.batch(0)[0]).logits


def check_read(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        expected = model(input_ids=tiny.batch(0)[0]).logits
    parity.close("logits", pool(1).run(logits_of, folder)[0], expected, 1e-6)


def test_one_file_counts_before_shards_that_lie_beside_it(folder: Path, tmp_path: Path) -> None:
    model_of(1).save_pretrained(tmp_path / "other", max_shard_size="20KB")
    for path in (tmp_path / "other").glob("model*"):
        shutil.copy(path, folder)
    check_read(folder)


def test_safetensors_count_before_an_index_of_pickles(folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "pytorch_model-00001-of-00002.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    check_read(folder)


def test_pickles_of_the_oldest_kind_are_read(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    check_read(folder)


@pytest.mark.parametrize("at", [2, 30, 60, 90, 200])
def test_a_broken_pickle_of_the_oldest_kind_is_one_line(tmp_path: Path, at: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(3, 4)}, path, _use_new_zipfile_serialization=False)
    content = bytearray(path.read_bytes())
    content[at : at + 4] = b"\xff\xfe\x9d\x00"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"pytorch_model.bin in .* cannot be read"):
        stored_names(path)


@pytest.mark.parametrize("times", [1, 2])
def test_a_tied_weight_that_stands_twice_is_one_or_refused(tmp_path: Path, times: int) -> None:
    """transformers would not tie them, against the configuration."""
    folder = tmp_path / "model"
    model_of(0, tied=True).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * times
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if times == 1:
        check_read(folder)
        return
    words = pool(1).run(said, logits_of, folder)[0]
    assert words.startswith("model.embed_tokens.weight and lm_head.weight in model differ")


def test_tied_weights_are_compared_to_their_last_row(tmp_path: Path) -> None:
    """They are read some rows at a time, more than tiny models have."""
    one = torch.zeros(weight_files.ROWS + 1, 1)
    other = one.clone()
    other[-1] = 1
    save_file({"one": one, "other": other}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"one and other in .* differ"):
        WeightFiles.find(str(tmp_path)).check_tied(["one", "other"])


def test_other_weights_have_another_digest(tmp_path: Path) -> None:
    """Also where only the end, or the name, of the last file differs."""
    content = bytes(3 * weight_files.SAMPLE_BYTES)

    def digest(second: str = "second", end: bytes = b"") -> str:
        for name, held in (("first", content), (second, content[: -len(end) or None] + end)):
            (tmp_path / name).write_bytes(held)
        return WeightFiles(tmp_path, {"a": "first", "b": second}).digest

    assert digest() == digest()
    assert len({digest(), digest(end=b"x"), digest(second="third")}) == 3


def test_samples_for_a_digest_lie_all_over_a_file(tmp_path: Path) -> None:
    """Of the two here the second begins in the middle."""
    files, found = WeightFiles(tmp_path, {"a": "large"}), set()
    content = bytearray(8 * weight_files.SAMPLE_BYTES)
    with patch.object(weight_files, "SAMPLES", 2):
        for place in (0, len(content) // 2, len(content) // 2 + weight_files.SAMPLE_BYTES - 1):
            content[place] = 1
            (tmp_path / "large").write_bytes(content)
            found.add(files.digest)
    assert len(found) == 3


BESIDE = "model.layers.0.self_attn"


@pytest.mark.parametrize("name", [f"{BESIDE}.q_proj.bias", f"{BESIDE}.v_proj.weight_scale"])
def test_a_layer_does_not_compute_without_a_tensor_of_its_files(folder: Path, name: str) -> None:
    state = load_file(folder / "model.safetensors") | {name: torch.ones(1)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    words = pool(1).run(said, logits_of, folder)[0]
    assert words.startswith(f"the files hold {name}, and this model's {name.rpartition('.')[0]} ")


@pytest.mark.parametrize(
    "name", [f"{BESIDE}.rotary_emb.inv_freq", f"{BESIDE}.bias", "score.weight"]
)
def test_what_files_hold_beside_layers_is_left_there(folder: Path, name: str) -> None:
    state = load_file(folder / "model.safetensors") | {name: torch.ones(1)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    check_read(folder)


@pytest.fixture
def quantized(folder: Path) -> Path:
    """A folder that says that its weights are in 4 bits."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_quantized_weights_are_refused_before_anything_starts(
    quantized: Path, tmp_path: Path
) -> None:
    words = f"{quantized} has weights quantized by gptq, which are not read here"
    assert words in scripts.refusal("--model", quantized, "--seq-len", 32, out=tmp_path / "out")
    assert pool(1).run(said, logits_of, quantized)[0].startswith(words)


def from_scratch(source: Path, target: Path) -> None:
    plan = ParallelPlan()
    save_model(load_model(source, plan, mesh_of(plan), from_scratch=True), target)


def test_a_model_of_its_sizes_is_saved_as_plain_weights(quantized: Path, tmp_path: Path) -> None:
    pool(1).run(from_scratch, quantized, tmp_path / "out")
    check_read(tmp_path / "out")


def in_and_out(source: Path, target: Path, shard_bytes: int, generates: dict | None = None) -> None:
    plan, before = ParallelPlan(), weight_files.SHARD_BYTES
    weight_files.SHARD_BYTES = shard_bytes
    try:
        model = load_model(source, plan, mesh_of(plan))
        vars(model.generation_config).update(generates or {})
        save_model(model, target)
    finally:
        weight_files.SHARD_BYTES = before


@pytest.mark.parametrize("sizes", [(20_000, 2**30), (2**30, 20_000), (10_000, 20_000)])
def test_what_a_folder_held_before_is_gone(tmp_path: Path, sizes: tuple[int, int]) -> None:
    for seed, size in enumerate(sizes):
        model_of(seed).save_pretrained(tmp_path / str(seed))
        pool(1).run(in_and_out, tmp_path / str(seed), tmp_path / "out", size)
    check_read(tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(again[name], value) for name, value in model_of(1).state_dict().items())
    index = tmp_path / "out" / "model.safetensors.index.json"
    files = {path.name for path in (tmp_path / "out").glob("model*.safetensors")}
    named = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else files
    assert files == named and (len(files) == 1) == (sizes[1] == 2**30)


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.7}])
def test_how_a_model_generates_is_kept(folder: Path, tmp_path: Path, changes: dict) -> None:
    """As published models say it, a temperature without sampling: transformers' own save refuses
    that once it was changed, and of older versions always."""
    says = {"eos_token_id": [3, 4], "do_sample": False, "temperature": 0.6}
    (folder / "generation_config.json").write_text(json.dumps(says))
    pool(1).run(in_and_out, folder, tmp_path / "out", 2**30, changes)
    kept = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert kept.items() >= (says | changes).items()
