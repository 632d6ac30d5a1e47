"""accelerate's YAML files of both versions, with DeepSpeed's file beside them."""

import json

import pytest

BASE = "compute_environment: LOCAL_MACHINE\nnum_machines: 2\nnum_processes: 16\n"


def degrees(found):
    assert found.refused == ""
    plan = found.plan
    return plan.dp_replicate, plan.dp_shard, plan.cp, plan.tp, plan.zero


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("distributed_type: MULTI_GPU\n", (16, 1, 1, 1, 0)),
        ("distributed_type: FSDP\n", (1, 16, 1, 1, 3)),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2}\n", (1, 16, 1, 1, 2)),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: NO_SHARD}\n",
            (16, 1, 1, 1, 0),
        ),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n",
            (2, 8, 1, 1, 3),
        ),
        (
            "distributed_type: FSDP\n"
            "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n",
            (1, 16, 1, 1, 2),
        ),
        (
            "distributed_type: FSDP\nparallelism_config:\n"
            "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 2\n"
            "  parallelism_config_tp_size: 2\n  parallelism_config_cp_size: 2\n",
            (2, 2, 2, 2, 3),
        ),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 1}\n", (1, 16, 1, 1, 1)),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 0}\n", (16, 1, 1, 1, 0)),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nparallelism_config:\n"
            "  {parallelism_config_sp_size: 2, parallelism_config_sp_backend: deepspeed}\n",
            (1, 8, 2, 1, 3),
        ),
        (
            "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_tp_degree: 4\n"
            "  megatron_lm_use_distributed_optimizer: true\n",
            (1, 4, 1, 4, 1),
        ),
    ],
)
def test_layouts(read, text, want):
    found = read(BASE + text, "default_config.yaml")
    assert degrees(found) == want and found.nodes == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("distributed_type: XLA\n", "GPUs and CPUs"),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}\n",
            "fsdp_offload_params",
        ),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_wrap: 1}\n", "no key fsdp_config.fsdp_wrap"),
        ("distributed_type: NO\n", "one process"),
        (
            "distributed_type: DEEPSPEED\nparallelism_config: {parallelism_config_cp_size: 2}\n",
            "beside DeepSpeed there is sp_size alone",
        ),
        ("distributed_type: FSDP\nparallelism_config: {tp_size: 3}\n", "for 3 ranks"),
        ("distributed_type: FSDP\nmixed_precision: int4\n", "no, bf16, fp16, fp8"),
        ("distributed_type: FSDP\ndynamo_config: {dynamo_backend: AOT_EAGER}\n", "inductor"),
        ("distributed_type: FSDP\nnum_proceses: 4\n", "did you mean num_processes"),
    ],
)
def test_refusals_name_their_key(read, text, words):
    found = read(BASE + text, "default_config.yaml", 16)
    assert found.plan is None and words in found.refused


def test_precision_compiling_and_cpus(read):
    text = "distributed_type: MULTI_CPU\nmixed_precision: bf16\nuse_cpu: true\n"
    found = read(BASE + text + "dynamo_config: {dynamo_backend: INDUCTOR}\n", "a.yaml")
    assert (found.plan.precision, found.plan.compile) == ("bf16", True)
    assert found.flags["device"] == "cpu"


def test_the_file_of_deepspeed_beside_it(read, tmp_path):
    other = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "gradient_clipping": 0.5}
    (tmp_path / "ds.json").write_text(json.dumps(other), "utf-8")
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    found = read(BASE + text, "a.yaml")
    assert degrees(found) == (1, 16, 1, 1, 3)
    assert (found.plan.precision, found.flags["clip"]) == ("bf16", 0.5)
    assert [line.place.file for line in found.lines][-1].endswith("ds.json")
    gone = read(BASE + text.replace("ds.json", "no.json"), "a.yaml")
    assert gone.plan is None and "no file no.json beside it" in gone.refused


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("fsdp_version: 2, fsdp_sharding_strategy: NO_SHARD", (1, 16, 1, 1, 3)),
        ("fsdp_version: 2, fsdp_sharding_strategy: HYBRID_SHARD", (1, 16, 1, 1, 3)),
        (
            "fsdp_version: 2, fsdp_sharding_strategy: 1, fsdp_reshard_after_forward: false",
            (1, 16, 1, 1, 2),
        ),
        ("fsdp_reshard_after_forward: false", (1, 16, 1, 1, 3)),
        ("fsdp_sharding_strategy: 2, fsdp_reshard_after_forward: true", (1, 16, 1, 1, 2)),
    ],
)
def test_a_version_of_fsdp_does_not_read_the_others_key(read, said, want):
    found = read(f"{BASE}distributed_type: FSDP\nfsdp_config: {{{said}}}\n", "default_config.yaml")
    assert degrees(found) == want
    assert sum("does not read it" in line.became for line in found.lines) == 1
