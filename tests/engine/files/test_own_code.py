"""Models whose class came with their folder: what is written of them is read as they were."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from helpers.engine.files.weights import save_model
from helpers.engine.parallelize import load_model, parallelize
from helpers.engine.plan import ParallelPlan
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

CODE = """
import transformers
from .halves import HALF

class Halved(transformers.LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.scaling *= HALF
"""
PLANS = [
    ParallelPlan(dp_shard=2, zero_stage=3),
    pytest.param(ParallelPlan(tp=2), marks=pytest.mark.exhaustive),
    pytest.param(ParallelPlan(pp=2), marks=pytest.mark.exhaustive),
]


def read(folder: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def loss_of(model: torch.nn.Module) -> float:
    ids, labels = tiny.batch(0)
    return model(input_ids=ids, labels=labels).loss.item()


def write_anew(source: Path, target: Path, plan: ParallelPlan) -> None:
    save_model(parallelize(read(source), plan, mesh_of(plan)), target)


def write_without(source: Path, target: Path) -> None:
    plan = ParallelPlan()
    save_model(load_model(source, plan, mesh_of(plan)), target)


def test_code_that_was_not_run_is_not_named(tmp_path: Path) -> None:
    """A type that was taken over, whose class transformers has by the same name."""
    source, target = tmp_path / "source", tmp_path / "target"
    transformers.LlamaForCausalLM(tiny.config("llama")).save_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling_old.LlamaForCausalLM"}}
    (source / "config.json").write_text(json.dumps(config))
    pool(1).run(write_without, source, target)
    assert type(read(target)) is transformers.LlamaForCausalLM  # which looks for no such file


@pytest.mark.parametrize("plan", PLANS)
def test_code_goes_where_its_model_goes(tmp_path: Path, plan: ParallelPlan) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(tiny.config("llama")).save_pretrained(source)
    (source / "modeling_halved.py").write_text(CODE)
    (source / "halves.py").write_text("HALF = 0.5\n")
    config = json.loads((source / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling_halved.Halved"}}
    (source / "config.json").write_text(json.dumps(config))
    expected = loss_of(read(source))  # which copies the code for the ranks, too
    pool(2).run(write_anew, source, target, plan)
    assert {"modeling_halved.py", "halves.py"} <= {path.name for path in target.iterdir()}
    again = read(target)
    assert type(again).__name__ == "Halved"
    assert loss_of(again) == expected
