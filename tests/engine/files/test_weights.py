"""Weights in and out: every layout reads, draws and writes the same model."""

import itertools
import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from helpers.engine.adapters.merging import save_merged
from helpers.engine.files import weight_files
from helpers.engine.files.weights import save_model, whole_weights
from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import load_model, parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.shards import is_finite, local
from helpers.text.bundled import bundled
from helpers.text.tokenizer import load_tokenizer
from helpers.train.job import fit_vocabulary
from tests.support import parity, tiny
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said
from tests.support.scripts import script


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model saved by transformers itself."""
    tiny.fresh("gptj", torch.float32).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def theirs(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return model(input_ids=tiny.batch(0)[0]).logits


def load_and_export(folder: Path, tp: int, out: Path) -> torch.Tensor:
    plan = ParallelPlan(tp=tp)
    model = load_model(folder, plan, mesh_of(plan))
    save_model(model, out)
    with torch.no_grad():
        return model(input_ids=tiny.batch(0)[0]).logits


@pytest.mark.parametrize("tp", (1, 2, 4))
def test_a_transformers_folder_in_and_out(folder: Path, tmp_path: Path, tp: int) -> None:
    expected = theirs(folder)
    for logits in pool(tp).run(load_and_export, folder, tp, tmp_path / "out"):
        parity.close("logits", logits, expected, 1e-6)
    parity.close("logits of the export", theirs(tmp_path / "out"), theirs(folder), 0)


def through_stages(folder: Path, plan: ParallelPlan, out: Path) -> None:
    save_model(load_model(folder, plan, mesh_of(plan)), out)


@pytest.mark.parametrize("family", ("gptj", "gpt2", "neox"))
@pytest.mark.parametrize("plan", ({"pp": 2}, {"pp": 2, "schedule": "zero-bubble-v", "tp": 2}))
def test_a_folder_in_and_out_of_a_pipeline(family: str, plan: dict, tmp_path: Path) -> None:
    before = tiny.fresh(family, torch.float32, layers=4)
    before.save_pretrained(tmp_path / "model")
    made = ParallelPlan(**plan)
    pool(made.world_size).run(through_stages, tmp_path / "model", made, tmp_path / "out")
    after = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    for name, value in before.state_dict().items():
        assert torch.equal(after[name], value), name


def exported_of(folder: Path, plan: ParallelPlan, out: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    save_model(parallelize(model, plan, mesh_of(plan)), out)


def test_an_export_has_the_buffers_that_files_hold(tmp_path: Path) -> None:
    """Without the biases by which experts are chosen, transformers begins them at zero."""
    config = transformers.MiniMaxM2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    before = transformers.AutoModelForCausalLM.from_config(config)
    for name, buffer in before.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_()
    before.save_pretrained(tmp_path / "model")
    for export in (exported_of, through_stages):  # of a model that is handed over, and of files
        pool(2).run(export, tmp_path / "model", ParallelPlan(pp=2), tmp_path / "out")
        after = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
        chosen = [name for name in after if name.endswith("e_score_correction_bias")]
        assert len(chosen) == 2 and after.keys() == before.state_dict().keys()
        for name, value in before.state_dict().items():
            assert torch.equal(after[name], value), name


def drawn_in_stages(plan: ParallelPlan) -> dict[str, torch.Tensor]:
    config = tiny.config("gpt2", layers=4)
    model = load_model("gpt2-tiny", plan, mesh_of(plan), config=config, seed=3)
    named = [(name, value.clone()) for name, value in whole_weights(model)]
    assert len(named) == len(dict(named))  # what both ends have comes once
    return dict(named)


def test_initialisation_does_not_know_the_stages() -> None:
    alone = pool(1).run(drawn_in_stages, ParallelPlan())[0]
    for weights in pool(2).run(drawn_in_stages, ParallelPlan(pp=2)):
        assert weights.keys() == alone.keys()
        assert all(torch.equal(weights[name], value) for name, value in alone.items())


def test_weights_in_several_files(folder: Path, tmp_path: Path) -> None:
    pool(1).run(_export_small, folder, tmp_path / "out")
    shards = sorted((tmp_path / "out").glob("model-*-of-*.safetensors"))
    held = [[tensor.nbytes for tensor in load_file(path).values()] for path in shards]
    assert len(held) > 2 and all(sum(sizes) <= 20_000 or len(sizes) == 1 for sizes in held)
    assert all(sum(one) + sum(next_one) > 20_000 for one, next_one in itertools.pairwise(held))
    parity.close("logits", theirs(tmp_path / "out"), theirs(folder), 0)
    logits = pool(2).run(load_and_export, tmp_path / "out", 2, tmp_path / "again")[0]
    parity.close("logits", logits, theirs(folder), 1e-6)


def _export_small(folder: Path, out: Path) -> None:
    weight_files.SHARD_BYTES, before = 20_000, weight_files.SHARD_BYTES
    try:
        plan = ParallelPlan()
        save_model(load_model(folder, plan, mesh_of(plan)), out)
    finally:
        weight_files.SHARD_BYTES = before


def test_older_pickled_weights_without_the_prefix(folder: Path, tmp_path: Path) -> None:
    expected = theirs(folder)
    state = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    torch.save(
        {name.removeprefix("transformer."): tensor for name, tensor in state.items()},
        folder / "pytorch_model.bin",
    )
    (folder / "model.safetensors").unlink()
    for logits in pool(2).run(load_and_export, folder, 2, tmp_path / "out"):
        parity.close("logits", logits, expected, 1e-6)


def drawn(folder: Path, tp: int, seed: int) -> dict[str, torch.Tensor]:
    plan = ParallelPlan(tp=tp)
    model = load_model(folder, plan, mesh_of(plan), seed=seed, from_scratch=True)
    return {name: parity.whole(p.detach()).clone() for name, p in model.named_parameters()} | {
        name: buffer.clone() for name, buffer in model.named_buffers()
    }


def test_initialisation_does_not_depend_on_the_layout(tmp_path: Path) -> None:
    tiny.config("gptj").save_pretrained(tmp_path)
    one = pool(1).run(drawn, tmp_path, 1, 7)[0]
    for ranks in (2, 4):
        for other in pool(ranks).run(drawn, tmp_path, ranks, 7):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)
    another = pool(1).run(drawn, tmp_path, 1, 8)[0]
    assert not torch.equal(one["lm_head.weight"], another["lm_head.weight"])


def load_one(folder: Path) -> None:
    plan = ParallelPlan()
    load_model(folder, plan, mesh_of(plan))


def test_a_missing_weight_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.ln_f.bias"]
    save_file(tensors, folder / "model.safetensors")
    assert "transformer.ln_f.bias" in pool(1).run(said, load_one, folder)[0]


@pytest.mark.parametrize(
    ("family", "kind", "name"),
    [
        ("bert-classes", "Bert", "bert.encoder.layer.1.attention.self.query.weight"),
        ("bert-classes", "Bert", "bert.embeddings.position_embeddings.weight"),
        ("llama", "Llama", "model.embed_tokens.weight"),
        ("llama", "Llama", "model.norm.weight"),
    ],
)
def test_of_a_model_that_classifies_the_head_alone_may_be_missing(
    family: str, kind: str, name: str, tmp_path: Path
) -> None:
    """What is below would be drawn anew, and the rest of the files be worth nothing."""
    config = tiny.config(family)
    config.pad_token_id = 0
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    assert name in pool(1).run(said, load_one, tmp_path)[0]


def test_another_shape_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 128}))
    told = pool(1).run(said, load_one, folder)[0]
    assert "wte.weight" in told and "101" in told and "128" in told


def test_a_broken_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert "model.safetensors" in pool(1).run(said, load_one, folder)[0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(folder: Path, bad: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["transformer.ln_f.weight"][3] = bad
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    told = pool(1).run(said, load_one, folder)[0]
    assert told == "transformer.ln_f.weight in model has values that are not finite"


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_no_plain_floating_point_are_named(folder: Path, dtype) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["transformer.ln_f.weight"] = weights["transformer.ln_f.weight"].to(dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    told = pool(1).run(said, load_one, folder)[0]
    name = str(dtype).removeprefix("torch.")
    assert told.startswith(f"transformer.ln_f.weight in model is of {name}: weights are read as")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda bias: bias * torch.nan, "has values that are not finite"),
        (lambda bias: bias.to(torch.int8), "is of int8: weights are read as"),
    ],
)
def test_buffers_of_files_are_looked_at_as_weights_are(spoil, words: str, tmp_path: Path) -> None:
    """The biases by which experts are chosen: of numbers that are none any expert would be."""
    model = script("docs/small_models").small_model("deepseek_v3")
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("e_score_correction_bias"))
    weights[name] = spoil(weights[name] + 1)
    save_file(weights, path, metadata={"format": "pt"})
    assert f"{name} in model {words}" in pool(1).run(said, load_one, tmp_path / "model")[0]


def test_nothing_is_finite() -> None:
    """As on a rank that ZeRO-3 leaves without rows."""
    assert is_finite(torch.zeros(0, 4))


def load_without_rows(folder: Path) -> list[int]:
    plan = ParallelPlan(dp_shard=4)
    model = load_model(folder, plan, mesh_of(plan))
    return [local(parameter).numel() for parameter in model.parameters()]


def in_and_out(source: Path, target: Path) -> None:
    model = load_model(source, ParallelPlan(), mesh_of(ParallelPlan()))
    assert next(model.parameters()).dtype == torch.float32
    save_model(model, target)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_export_has_the_dtype_that_its_source_names(tmp_path: Path, dtype) -> None:
    tiny.fresh("llama", dtype).save_pretrained(tmp_path / "source")
    pool(1).run(in_and_out, tmp_path / "source", tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype="auto")
    assert again.dtype == dtype and again.config.dtype == dtype
    stored = load_file(tmp_path / "saved" / "model.safetensors").values()
    assert {tensor.dtype for tensor in stored} == {dtype}


def named_after(folder: Path) -> tuple[torch.dtype, torch.dtype]:
    """Runs on a rank: what a configuration says before and after a model is made of it."""
    config, plan = load_config(folder), ParallelPlan()
    before = config.dtype
    load_model(folder, plan, mesh_of(plan), config=config)
    return before, config.dtype


def test_a_configuration_that_is_given_stays_as_it_is(tmp_path: Path) -> None:
    """A second model of the same one was exported in another dtype."""
    tiny.fresh("llama", torch.bfloat16).save_pretrained(tmp_path)
    assert pool(1).run(named_after, tmp_path) == [(torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize("dtype", (torch.int8, torch.float8_e4m3fn, "bf16"))
@pytest.mark.parametrize("save", (save_model, save_merged))
def test_weights_are_written_as_they_are_read(save, dtype: object, tmp_path: Path) -> None:
    model = tiny.fresh("gptj", torch.float32)
    words = said(save, model, tmp_path / "out", dtype)
    assert words.startswith("weights are written as torch.float64, ") and repr(dtype) in words
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", (1.0, "1", True, None))
def test_a_seed_is_a_whole_number(seed: object) -> None:
    """1.0 drew other weights than 1."""
    words = said(load_model, "gptj-tiny", ParallelPlan(), None, seed=seed)
    assert words == f"seed must be a whole number of 64 bits, not {seed!r}"


def trained_in_16_bits(plan: ParallelPlan, out: Path) -> dict[str, torch.Tensor]:
    """Runs on a rank: the float32 numbers that its optimizer works on, of whole parameters."""
    trainer = parity.trainer_of("llama", plan, torch.float32)
    trainer.step(*tiny.batch(0))
    save_model(trainer.model, out)
    return {part.name: part.tensor.detach().clone() for part in trainer.parts}


def test_an_export_of_a_training_in_16_bits_has_its_float32_numbers(tmp_path: Path) -> None:
    """The model itself holds copies, which are rounded."""
    plan = ParallelPlan(precision="bf16")
    (masters,) = pool(1).run(trained_in_16_bits, plan, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert masters.keys() == written.keys()
    for name, value in masters.items():
        assert torch.equal(written[name], value.view(written[name].shape)), name


def save_onto(path: Path) -> str:
    plan = ParallelPlan(pp=2)
    return said(save_model, parity.laid_out("llama", plan, torch.float32), path)


def test_a_folder_that_cannot_be_made_is_said_on_every_rank(tmp_path: Path) -> None:
    """While one rank could not write, the other waited for it."""
    (tmp_path / "file").touch()
    told = pool(2).run(save_onto, tmp_path / "file")
    assert told == [f"cannot write to {tmp_path / 'file'}: File exists"] * 2


def test_a_rank_may_be_left_without_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = tiny.config("llama")
    config.update({"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    assert any(0 in sizes for sizes in pool(4).run(load_without_rows, tmp_path / "model"))


def test_no_such_model() -> None:
    assert "gptj-tiny" in said(load_config, "no-such-model-anywhere")
    assert "config.json" in said(load_config, Path(__file__).parent)


def test_the_vocabulary_is_widened_only_without_weights(folder: Path) -> None:
    args = Namespace(model=str(folder), from_scratch=False, task="lm")
    tokenizer = load_tokenizer(bundled("tokenizer"))
    assert "101" in said(fit_vocabulary, load_config(folder), args, tokenizer)
    args.from_scratch = True
    config = load_config(folder)
    fit_vocabulary(config, args, tokenizer)
    assert config.vocab_size == tokenizer.vocab_size > 101
