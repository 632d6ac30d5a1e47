"""Compiled blocks equal the blocks as they are, alone and in every layout, and compile once."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.engine.models.families import LLAMA
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision import compiling as compiled
from helpers.engine.trainer import Trainer
from tests.support import parity, scripts, tiny
from tests.support.matrix import part
from tests.support.ranks import mesh_of, pool

LAYOUTS = {
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sequence_parallel": True},
    "zero3": {"dp_shard": 2},
    "pp2": {"pp": 2, "microbatches": 4},
    "cp2": {"cp": 2},
    "zero1-full": {"dp_shard": 2, "zero_stage": 1, "activation": "full"},
}


def check(family: str, plan: ParallelPlan) -> None:
    """Runs on each rank. A process gives up compiling a function that it has compiled for too many
    tests, and would run it as it is."""
    torch._dynamo.reset()
    before = len(compiled.compilations())
    parity.check(family, plan, torch.float32, 3)
    assert len(compiled.compilations()) > before


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    part(("gpt2",), ("bert-mlm", "deepseek", "gptj", "gpt-oss", "neox", "falcon-new", "llama")),
)
def test_compiled_equals_one_process(family: str) -> None:
    pool(1).run(check, family, ParallelPlan(compile=True))


@pytest.mark.slow
@pytest.mark.parametrize("layout", part(("tp2-sp",), ("zero3", "cp2", "tp2", "pp2", "zero1-full")))
def test_compiled_in_a_layout_equals_one_process(layout: str) -> None:
    plan = ParallelPlan(**LAYOUTS[layout], compile=True)
    pool(2).run(check, "gpt2", plan)


def compile_while_training(layers: int) -> list[list[str]]:
    """Runs on each rank: by step, the names and reasons of what was compiled in it."""
    torch._dynamo.reset()
    plan = ParallelPlan(compile=True)
    model = parallelize(tiny.fresh("gpt2", torch.float32, layers), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    found, seen = [], len(compiled.compilations())
    for step in range(6):
        ids, labels = tiny.batch(step)
        length = 17 - step  # no two batches are as long
        trainer.step(ids[:, :length], labels[:, :length])
        every = compiled.compilations()
        found.append([f"{one.name}: {one.reason}" for one in every[seen:]])
        seen = len(every)
    model.eval()
    trainer.evaluate([tiny.batch(0)])
    assert len(compiled.compilations()) == seen  # evaluation is not compiled
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_layers_share_a_graph_and_lengths_do_not_matter_for_long() -> None:
    """Once for a first length, once more for any; more layers compile no more."""
    few, many = (pool(1).run(compile_while_training, layers)[0] for layers in (2, 6))
    assert few[0] and not any(few[2:]), few
    assert [len(step) for step in few] == [len(step) for step in many], many
    assert compiled.compilations() == []  # this process has compiled nothing


def graphs_of_a_step(family: str, fields: dict) -> list[str]:
    """Runs on each rank: what a step compiles."""
    torch._dynamo.reset()
    plan = ParallelPlan(compile=True, **fields)
    model = parallelize(tiny.fresh(family, torch.float32), plan, mesh_of(plan))
    before = len(compiled.compilations())
    Trainer(model, plan, mesh_of(plan), lr=tiny.LR).step(*tiny.batch(0))
    return [one.name for one in compiled.compilations()[before:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"),
    part(
        [("gptj", "tp2")],
        [(family, "tp2") for family in ("falcon-new", "llama", "olmo2")]
        + [("gptj", "tp2-sp"), ("olmo2", "tp2-sp")],
    ),
)
def test_a_block_with_its_messages_is_one_graph(family: str, layout: str) -> None:
    for names in pool(2).run(graphs_of_a_step, family, LAYOUTS[layout]):
        assert len(names) == 2 and names[1] == "backward", names


def losses_with_dropout(plan: ParallelPlan) -> list[float]:
    """Runs on each rank: of three steps from one seed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = tiny.config("gpt2")
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.1
    whole = tiny.auto_class("gpt2").from_config(config)
    trainer = Trainer(parallelize(whole, plan, mesh_of(plan)), plan, mesh_of(plan), lr=tiny.LR)
    return [trainer.step(*tiny.batch(step)).loss for step in range(3)]


@pytest.mark.slow
def test_dropout_draws_the_same_numbers_compiled() -> None:
    plans = (ParallelPlan(), ParallelPlan(compile=True))
    plain, same = (pool(1).run(losses_with_dropout, plan)[0] for plan in plans)
    assert same == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"activation": "selective"}, "with compile take none, full or group_N"),
        ({"pp": 2, "schedule": "zero-bubble"}, "with compile take gpipe, 1f1b or interleaved"),
    ],
)
def test_what_cannot_be_compiled(fields: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ParallelPlan(**fields, compile=True)


@pytest.mark.slow
def test_without_a_compiler_one_line_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            scripts.ROOT / "scripts" / "train.py",
            "--compile",
            "--out",
            tmp_path / "run",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "CXX": "/no/such/compiler", "PATH": "/nowhere"},
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert scripts.the_line(done.stderr).startswith("compile needs a C++ compiler")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_says_what_was_compiled(tmp_path: Path) -> None:
    sizes = {"model": "gpt2-tiny", "layers": 2, "seq_len": 32, "batch_size": 8, "steps": 6}
    summary, lines = scripts.trained(**sizes, compile=True, out=tmp_path / "run")
    phases = summary["phases_s"]
    spent = sum(one["seconds"] for one in summary["compiled"])
    assert phases["compile"] == pytest.approx(spent, rel=0.01) and phases["train"] > 0
    # what torch's cache on disk holds of a backward comes with its forward, without a line
    forwards = [one for one in summary["compiled"] if one["name"] != "backward"]
    assert forwards and spent > 0
    assert sum(line["step_s"] for line in lines) <= phases["train"]  # none compiles


def test_a_model_without_a_list_of_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="no list of blocks that compile could wrap"):
        compiled.apply_compile(torch.nn.Identity(), replace(LLAMA, blocks=None))
