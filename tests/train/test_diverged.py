"""Numbers that go bad end the run in one line, and take no good checkpoint with them."""

import json
import math
import random
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import torch.distributed.checkpoint as dcp

from helpers.engine.files.run_record import LossRange
from helpers.lab.launch.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
from tests.support import scripts, tiny

pytestmark = pytest.mark.slow

SMALL = {"layers": 2, "hidden": 64, "heads": 2, "seq_len": 32, "batch_size": 8}


def refuse_constant(name: str) -> NoReturn:
    raise AssertionError(f"metrics.jsonl holds {name}, which is no JSON")


def lines(out: Path) -> list[dict]:
    text = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse_constant) for line in text]


def summary(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text(), parse_constant=refuse_constant)


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All that a checkpoint holds, whole."""
    reader = dcp.FileSystemReader(checkpoint)
    state = {
        name: torch.empty(facts.size, dtype=facts.properties.dtype)
        for name, facts in reader.read_metadata().state_dict_metadata.items()
        if hasattr(facts, "properties")
    }
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 2}, {"dp_shard": 2}])
def test_a_learning_rate_far_too_large_ends_the_run(tmp_path: Path, layout: dict) -> None:
    out, ranks = tmp_path / "run", 2 if layout else 1
    flags = SMALL | layout | {"lr": 1e18, "checkpoint_every": 1, "steps": 30, "watch": 1}
    done = scripts.process(ranks, out=out, lr_schedule="constant", **flags)
    assert done.returncode == 1
    words = set(done.stderr.splitlines())
    [line] = words  # the ranks say the same, if the first leaves any of them the time
    assert "not finite" in line and ("on rank" in line or "the loss" in line)
    assert summary(out)["status"] == "diverged" and len(lines(out)) < 30
    found = json.loads((out / "findings.json").read_text())["findings"]
    assert "not_finite" in [one["kind"] for one in found]
    kept = sorted((out / "checkpoints").iterdir())
    assert kept and all(path.name.startswith("step-") for path in kept)
    for checkpoint in kept:
        assert all(tensor.isfinite().all() for tensor in tensors(checkpoint).values())


def test_a_run_that_skips_every_step_is_not_done(tmp_path: Path) -> None:
    """Weights of which fp16 cannot hold the gradients at any scale that four steps come to."""
    model = tiny.fresh("llama", torch.float32)
    model.resize_token_embeddings(2048)
    with torch.no_grad():
        model.lm_head.weight.mul_(3e4)
    model.save_pretrained(tmp_path / "model")
    flags = {"model": tmp_path / "model", "seq_len": 32, "batch_size": 8, "precision": "fp16"}
    flags |= {"steps": 4, "save": True, "checkpoint_every": 1}
    done = scripts.process(out=tmp_path / "run", **flags)
    assert done.returncode == 1, done.stdout
    assert "all 4 steps were skipped" in scripts.the_line(done.stderr)
    found = summary(tmp_path / "run")
    assert (found["status"], found["skipped_steps"]) == ("diverged", 4)
    assert [line["skipped"] for line in lines(tmp_path / "run")] == [True] * 4
    assert not (tmp_path / "run" / "model").exists()
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = tiny.fresh("llama", torch.float32)
    model.resize_token_embeddings(2048)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    model.save_pretrained(tmp_path / "model")
    flags = {"model": tmp_path / "model", "seq_len": 32, "steps": 2}
    done = scripts.process(2, dp_shard=2, out=tmp_path / "run", **flags)
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    [line] = set(done.stderr.splitlines())
    assert "model.layers.1.mlp.up_proj.weight in model has values that are not finite" in line


def test_a_spike_is_a_warning_and_a_slope_is_none() -> None:
    lately = LossRange()
    falling = [8 - 0.05 * step + (-1) ** step * 0.05 for step in range(40)]
    assert not any(lately.spike(step, loss) for step, loss in enumerate(falling))
    warning = lately.spike(40, 9.0)
    assert warning.startswith("the loss of step 40, 9, is far above the 6.5")
    assert lately.spike(41, 6.0) is None
    assert LossRange().spike(1, 1e9) is None  # nothing is known yet


def spikes(losses: list[float]) -> list[int]:
    lately = LossRange()
    return [step for step, loss in enumerate(losses) if lately.spike(step, loss)]


def test_losses_next_to_zero_spike_by_what_they_differ() -> None:
    dice = random.Random(0)
    learned = [0.0 if dice.random() < 0.9 else dice.random() / 1000 for _ in range(400)]
    assert not spikes(learned) and spikes([*learned, 0.5, 0.0]) == [400]
    assert not spikes([0.01 + abs(dice.gauss(0, 0.003)) for _ in range(400)])


def test_a_loss_that_leaps_up_and_stays_is_one_spike() -> None:
    assert spikes([2.0] * 40 + [4.0] * 60) == [40]
    assert spikes([2.0] * 40 + [4.0, 2.0, 4.0] + [2.0] * 20) == [40, 42]
    assert not spikes([2.0] * 40 + [math.nan, 2.0])


def test_ten_losses_say_what_is_usual_and_none_below_zero_is_an_error() -> None:
    assert not spikes([2.0] * 9 + [9.0]) and spikes([2.0] * 10 + [9.0]) == [10]
    assert not spikes([-1.0] * 40)


def test_spikes_are_in_the_output_the_summary_and_the_panel(
    tmp_path: Path, warm: Ranks, capsys
) -> None:
    """Of a text that is learned by heart, and some words in it that say something else."""
    text = tmp_path / "text.txt"
    text.write_text(
        "\n".join(["the same few words again and again"] * 200 + ["#42 & NAMES! " * 12])
    )
    flags = SMALL | {"data": text, "lr": 1e-2, "batch_size": 1}
    run = launch("scripts/train.py", ranks=warm, out=tmp_path / "run", **flags)
    warnings = run.summary["warnings"]
    said = [line for line in run.log(0).splitlines() if line.startswith("warning: ")]
    assert warnings and said == [f"warning: {warning}" for warning in warnings]
    assert "is far above the" in warnings[0]
    assert f"warning: {warnings[0]}" in capsys.readouterr().out
