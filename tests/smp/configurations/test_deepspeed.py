"""DeepSpeed's JSON files: stages of ZeRO, batches, and what is refused by key."""

import json

import pytest

BASE = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}


def of(read, ranks=8, **more):
    return read(json.dumps(BASE | more), "ds.json", ranks)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_stages(read, stage):
    found = of(read, zero_optimization={"stage": stage, "overlap_comm": True})
    assert found.plan.zero == stage
    assert (found.plan.dp, found.batch, found.plan.microbatches) == (8, 48, 3)


@pytest.mark.parametrize("key", ["_comment", "_comment_2", "comment", "//"])
def test_a_remark_is_no_key(read, key):
    assert of(read, **{key: "see the tutorial"}).refused == ""
    assert of(read, zero_optimization={"stag": 3}).refused != ""


@pytest.mark.parametrize("key", ["mics_shard_size", "zero_hpz_partition_size"])
def test_shares_inside_of_replicas(read, key):
    found = of(read, zero_optimization={"stage": 3, key: 4})
    assert (found.plan.dp_replicate, found.plan.dp_shard) == (2, 4)
    assert bool(found.lost) == (key == "zero_hpz_partition_size")
    assert "do not divide" in of(read, zero_optimization={"stage": 3, key: 3}).refused


def test_the_whole_batch_says_how_many_ranks_there_are(read):
    found = of(read, None, train_batch_size=48, tensor_parallel={"autotp_size": 2})
    assert (found.plan.world_size, found.plan.tp, found.plan.dp) == (16, 2, 8)
    assert of(read, None, train_batch_size=49).refused.startswith("a batch of 49")
    assert of(read, 8, train_batch_size=96).refused.startswith("a batch of 96 is not 48")
    assert of(read, None).asked == ("ranks",)


def test_what_the_script_fills_in(read):
    auto = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
    text = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    text |= {"fp16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "params": auto}}
    found = read(json.dumps(text), "ds.json", 4)
    assert found.batch is None and "lr" not in found.flags
    assert found.plan.world_size == 4 and found.plan.precision == "fp32"


def test_optimizer_schedule_and_precision(read):
    found = of(
        read,
        bf16={"enabled": True},
        gradient_clipping=1.0,
        optimizer={"type": "Adam", "params": {"lr": 1e-4, "weight_decay": 0.1}},
        scheduler={
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 5, "total_num_steps": 50, "warmup_max_lr": 1e-4},
        },
    )
    assert found.plan.precision == "bf16"
    want = {"lr": 1e-4, "weight_decay": 0.1, "clip": 1.0, "warmup": 5, "steps": 50}
    assert want.items() <= found.flags.items() and found.flags["lr_schedule"] == "linear"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, "GPUs"),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, "cpu_offload"),
        ({"zero_optimization": {"stage": 4}}, "there is 0, 1, 2, 3"),
        (
            {"zero_optimization": {"stage": 3, "stage3_param_persitence_threshold": 1}},
            "did you mean",
        ),
        ({"optimizer": {"type": "Lamb"}}, "AdamW"),
        ({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": False}}}, "adam_w_mode"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "exclude each other"),
        ({"fp16": {"enabled": "perhaps"}}, "neither true nor false"),
        ({"data_efficiency": {"enabled": True}}, "data_efficiency.enabled"),
        ({"gradient_accumulation_steps": -1}, "whole number"),
        ({"gradient_accumulation_steps": 2.5}, "whole number"),
        ({"sequence_parallel_size": 3}, "does not divide"),
    ],
)
def test_refusals_name_their_key(read, more, words):
    found = of(read, **more)
    assert found.plan is None and words in found.refused


def test_what_is_off_is_left_out(read):
    zero = {"stage": 1, "offload_param": {"device": "none", "pin_memory": True}}
    found = of(read, zero_optimization=zero, curriculum_learning={"enabled": False, "x": 1})
    assert found.plan is not None


def test_zeros_stay_what_they_mean(read):
    params = {"lr": 1e-4, "weight_decay": 0}
    found = of(read, gradient_clipping=0, optimizer={"type": "AdamW", "params": params})
    assert found.flags["weight_decay"] == 0  # helpers.train's own is not 0
    assert found.flags["clip"] == 1e9  # off, as nothing is as large
    found = of(read, optimizer={"type": "AdamW", "params": {"lr": 0}})
    assert "a number above 0" in found.refused


@pytest.mark.parametrize(
    ("key", "value", "lost"),
    [("bias_correction", False, "False"), ("amsgrad", True, "True"), ("torch_adam", True, "")],
)
def test_what_changes_adams_steps_is_lost_by_its_name(read, key, value, lost):
    found = of(read, optimizer={"type": "AdamW", "params": {"lr": 1e-4, key: value}})
    line = next(one for one in found.lines if one.text.startswith(f"optimizer.params.{key}"))
    assert (found.refused, line.lost) == ("", lost)
