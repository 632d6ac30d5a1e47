"""The exercises about sharded data parallelism, and the ladder's arithmetic."""

import pytest
import torch

pytest.importorskip("transformers")
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.lab.drawings.shards import CUTS, draw_shards
from helpers.lab.exercises.topics import sharding as grading
from helpers.lab.figures.sharding_plots import plot_ladder
from helpers.lab.runs.shard_ladder import SENT_COLUMN, compare_rungs, sent_bytes
from helpers.planner import cost
from helpers.planner.shape.families import model_shape


def test_the_fewest_gpus_by_hand():
    count = cost.parameters(model_shape(load_config("neox-20b")))
    assert 4 * count > 80e9  # ZeRO-1 keeps parameters and gradients whole
    assert 2 * count + 14 * count / 8 < 80e9 < 2 * count + 14 * count / 7
    assert 16 * count / 5 < 80e9 < 16 * count / 4
    assert grading.fewest_gpus({"ZeRO-1": 0, "ZeRO-2": 8, "ZeRO-3": 5}).right


def test_what_is_sent_by_hand():
    shape = model_shape(load_config("neox-tiny"))
    whole = 4 * cost.parameters(shape)
    blocks = 4 * shape.layers * shape.block_parameters

    def sent(**fields):
        return sent_bytes(shape, ParallelPlan(**{"microbatches": 1} | fields))

    assert sent(dp_replicate=4, microbatches=3) == pytest.approx(2 * whole * 3 / 4)
    assert sent(dp_shard=4, zero_stage=1) == pytest.approx(2 * whole * 3 / 4)
    assert sent(dp_shard=4, zero_stage=2, microbatches=2) == pytest.approx(3 * whole * 3 / 4)
    assert sent(dp_shard=4) == pytest.approx((2 * whole + blocks) * 3 / 4)


def test_a_rung_in_another_precision_is_not_compared():
    shape = model_shape(load_config("neox-tiny"))
    with pytest.raises(UserError, match="not in float32"):
        compare_rungs({"ZeRO-3, bf16": {"plan": {"precision": "bf16"}}}, shape)


def test_the_ladder_is_drawn_with_its_numbers():
    shape = model_shape(load_config("neox-tiny"))
    count = cost.parameters(shape)
    found = {
        "plan": ParallelPlan(dp_replicate=4, microbatches=2).to_dict(),
        "state_bytes": [{"parameters": 4 * count, "gradients": 4 * count, "optimizer": 8 * count}],
        "message_bytes": {"all_reduce": 4 * count},
        "step_s": [0.1, 0.3, 0.2],
    }
    table = compare_rungs({"DDP": found}, shape)
    row = table.loc["DDP"]
    assert row["state, predicted MB"] == row["state, measured MB"] == 16 * count / 1e6
    assert row["sent per step, predicted MB"] == pytest.approx(row[SENT_COLUMN])
    assert (row["shortest, ms"], row["step, ms"], row["longest, ms"]) == (100, 200, 300)
    fig, _, sentence = plot_ladder(table)
    assert len(fig.axes) == 3 and "DDP" in sentence


def test_the_idea_shows_every_rung():
    fig, table, alt = draw_shards()
    assert list(table.index) == list(CUTS) and all(name in alt for name in CUTS)
    patches = fig.axes[0].patches
    assert len(patches) == 3 * 3 * 4 * len(CUTS)  # outline, whole and part of each state and rank
    assert torch.tensor([p.get_width() for p in patches]).min() > 0
