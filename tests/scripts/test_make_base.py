"""The bundled base is not taught in the words it is asked in, and its script makes such a model."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
from helpers.engine.models.configurations import load_config
from helpers.lab.notebook.run_profile import PROFILES
from tests.support.scripts import script

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture(scope="module")
def make_base():
    return script("data/make_base")


def instructions() -> list[dict[str, str]]:
    lines = (DATA / "instructions/train.jsonl").read_text("utf-8").splitlines()
    return [
        json.loads(line)
        for line in lines + (DATA / "instructions/heldout.jsonl").read_text("utf-8").splitlines()
    ]


def test_every_kind_is_asked_in_other_words_and_without_the_inputs_of_the_instructions(make_base):
    tasks = make_base.Tasks()
    drawn = [tasks.one() for _ in range(2000)]
    assert {one.kind for one in drawn} == set(make_base.WORDINGS) == set(tasks.makers)
    asked = {word for wordings, _ in make_base.KINDS for word in wordings}
    assert not asked & {word for wordings in make_base.WORDINGS.values() for word in wordings}
    prompts = "\n".join(one.prompt for one in drawn)
    assert "### Instruction" not in prompts
    kept_out = {record["input"] for record in instructions()} - {""}
    lines = set(prompts.splitlines())
    assert len(kept_out) > 250 and not kept_out & lines


def test_a_few_steps_make_a_folder_that_transformers_loads(make_base, tmp_path, monkeypatch):
    sizes = ["--layers", "1", "--hidden", "32", "--heads", "2"]
    argv = ["make_base.py", "--out", str(tmp_path), "--steps", "2", *sizes]
    monkeypatch.setattr(sys, "argv", argv)
    make_base.main()
    from transformers import FalconForCausalLM

    model = FalconForCausalLM.from_pretrained(tmp_path)
    assert model.config.num_hidden_layers == 1 and model.config.hidden_size == 32


def test_the_learning_rate_rises_and_falls(make_base):
    rates = [make_base.lr_at(step, 2500) for step in range(2500)]
    top = rates.index(max(rates))
    assert 90 <= top <= 100 and 0.04 < rates[-1] / max(rates) < 0.06


def test_the_bundled_base_has_the_sizes_of_notebook_4():
    base, wanted = load_config(DATA / "base"), PROFILES[4]["tiny"].config
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "multi_query"):
        assert getattr(base, name) == getattr(wanted, name)
