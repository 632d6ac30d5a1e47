"""SageMaker model parallel configurations: the published tables through an imported plan, and the
meaning of each key."""

from dataclasses import replace

import pytest

from helpers.engine.errors import UserError
from helpers.engine.pipeline.partition import Cost, Costs
from helpers.engine.plan import ParallelPlan
from helpers.planner.cost import state_bytes
from helpers.planner.hardware.rank_groups import coordinates, groups
from helpers.smp.configuration import read_smp_config
from helpers.smp.keys import keys

ALL_TWO = {
    "pipeline_parallel_degree": 2,
    "tensor_parallel_degree": 2,
    "ddp": True,
}

# (rdp, pp, tp) by rank, of 8 processes with all degrees 2: the library's documentation
DPT = "000 001 010 011 100 101 110 111"
PTD = "000 100 001 101 010 110 011 111"


def places(found, axes=("dp_replicate", "pp", "tp")):
    table = coordinates(found.plan.degrees, found.plan.placement)
    return " ".join("".join(str(place[axis]) for axis in axes) for place in table)


@pytest.mark.parametrize(
    ("strategy", "table"), [("DPT", DPT), ("cluster", DPT), ("PTD", PTD), (None, DPT)]
)
def test_the_documented_rank_tables(strategy, table):
    chosen = {} if strategy is None else {"placement_strategy": strategy}
    assert places(read_smp_config(ALL_TWO | chosen, 8)) == table


def test_the_documented_groups():
    """8 processes, partitions=2: mp_group and dp_group in the library's documentation."""
    config = {"partitions": 2, "ddp": True}
    spread = read_smp_config(config | {"placement_strategy": "spread"}, 8).plan
    cluster = read_smp_config(config, 8).plan
    for plan, pipeline, data in (
        (spread, [[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (cluster, [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ):
        assert groups(plan.degrees, "pp", plan.placement) == pipeline
        assert groups(plan.degrees, "dp_replicate", plan.placement) == data


def test_twenty_bytes_a_parameter():
    """10 billion parameters in half precision need 200 GB, and 16 of the 20 bytes are shared where
    the optimizer's state is."""
    n = 10**10
    whole = read_smp_config({"fp16": True, "ddp": True}, 4).plan
    assert (whole.precision, whole.dp_replicate, whole.dp_shard) == ("fp16", 4, 1)
    assert state_bytes(n, "smp", whole.tp, whole.dp_shard, whole.zero_stage).total == 200e9
    shared = read_smp_config({"fp16": True, "ddp": True, "shard_optimizer_state": True}, 4).plan
    assert (shared.dp_shard, shared.zero_stage) == (4, 1)
    assert state_bytes(n, "smp", shared.tp, shared.dp_shard, shared.zero_stage).total == (
        (2 + 2 + 16 / 4) * n
    )


def test_the_published_gptj_configuration():
    """The tensor-parallel notebook: 8 GPUs, one batch of 8 for all of them."""
    found = read_smp_config(
        {
            "ddp": True,
            "tensor_parallel_degree": 8,
            "partitions": 1,
            "shard_optimizer_state": True,
            "prescaled_batch": True,
            "fp16": True,
            "optimize": "speed",
            "auto_partition": True,
            "default_partition": 0,
        },
        8,
    )
    assert found.plan == ParallelPlan(
        tp=8, zero_stage=1, precision="fp16", microbatches=1, schedule="1f1b"
    )
    assert found.global_batch(8) == 8
    assert found.memory_weight == 0.2
    assert set(found.left_out) == {"default_partition"}


def test_the_published_roberta_configuration_inside_the_estimators_argument():
    parameters = {
        "microbatches": 4,
        "placement_strategy": "spread",
        "pipeline": "interleaved",
        "optimize": "speed",
        "partitions": 4,
        "ddp": True,
    }
    found = read_smp_config(
        {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
            "mpi": {"enabled": True, "processes_per_host": 8},
        },
        8,
    )
    plan = ParallelPlan(dp_replicate=2, pp=4, microbatches=4, placement="spread")
    assert found.plan == plan
    assert plan.schedule == "1f1b"
    assert found.global_batch(12) == 24


def test_what_pipeline_means():
    pipeline = {"partitions": 4, "microbatches": 8}
    assert read_smp_config(pipeline, 4).plan.schedule == "1f1b"
    assert read_smp_config(pipeline | {"pipeline": "interleaved"}, 4).plan.stages == 4
    assert read_smp_config(pipeline | {"pipeline": "simple"}, 4).plan.schedule == "gpipe"


def test_whose_a_batch_is():
    """dp has the tensor ranks in it: global batch = rdp x batch if prescaled, else dp x batch."""
    plain = read_smp_config(ALL_TWO, 8)
    prescaled = read_smp_config(ALL_TWO | {"prescaled_batch": True}, 8)
    assert (plain.batch_of, plain.global_batch(4)) == ("dp", 16)
    assert (prescaled.batch_of, prescaled.global_batch(4)) == ("rdp", 8)


def test_sharded_data_parallelism_is_zero_3_over_a_part_of_the_data_axis():
    found = read_smp_config(
        {
            "ddp": True,
            "tensor_parallel_degree": 2,
            "sharded_data_parallel_degree": 4,
            "sdp_gradient_clipping": 0.5,
            "bf16": True,
            "sdp_max_live_parameters": 1e9,
            "delayed_parameter_initialization": True,
            "skip_tracing": True,
        },
        16,
    )
    plan = ParallelPlan(dp_replicate=2, dp_shard=4, tp=2, precision="bf16", microbatches=1)
    assert found.plan == plan
    assert found.clip == 0.5
    assert "threshold" in found.left_out["sdp_max_live_parameters"]
    assert read_smp_config({"ddp": True}, 4).clip is None


def test_the_automatic_partition_keeps_its_weight():
    """Heads and embeddings that hold memory and take no time pull layers away from their stage only
    where memory counts."""
    costs = Costs(Cost(0, 6), (Cost(1, 1),) * 8, Cost(0, 0))
    pipeline = {"partitions": 2, "microbatches": 4}
    speed = read_smp_config(pipeline | {"optimize": "speed"}, 2)
    memory = read_smp_config(pipeline | {"optimize": "memory"}, 2)
    given = read_smp_config(pipeline | {"optimize": "memory", "memory_weight": 0.0}, 2)
    assert (speed.memory_weight, memory.memory_weight) == (0.2, 0.8)
    assert read_smp_config(pipeline, 2).memory_weight == 0.8  # its default was memory
    assert memory.with_partition(costs).partition == "2,6"
    assert given.with_partition(costs).partition == "4,4"
    assert replace(memory.with_partition(costs), partition="auto") == memory.plan


def test_offloading_and_sums():
    pipeline = {"partitions": 2, "microbatches": 4, "fp16": True}
    low = read_smp_config(
        pipeline | {"offload_activations": True, "_fp32_grad_accumulation": False}, 2
    )
    assert low.plan.offload
    assert low.plan.reduce_dtype == "fp16"
    assert read_smp_config(pipeline, 2).plan.reduce_dtype == "fp32"


def test_micro_batches_in_flight():
    pipeline = {"partitions": 4, "microbatches": 8}
    assert (
        "4 in flight"
        in (
            read_smp_config(pipeline | {"active_microbatches": 6}, 4).left_out[
                "active_microbatches"
            ]
        )
    )
    with pytest.raises(UserError, match="active_microbatches=2 cannot be kept: 1f1b has 4 of 8"):
        read_smp_config(pipeline | {"active_microbatches": 2}, 4)
    with pytest.raises(UserError, match=r"gpipe has 8 of 8 .* nearest is pipeline=interleaved"):
        read_smp_config(pipeline | {"active_microbatches": 6, "pipeline": "simple"}, 4)


@pytest.mark.parametrize(
    ("shards", "plan"),
    [
        (0, ParallelPlan(dp_shard=16)),
        (1, ParallelPlan(dp_replicate=16)),
        (8, ParallelPlan(dp_replicate=2, dp_shard=8)),
        (16, ParallelPlan(dp_shard=16)),
    ],
)
def test_version_2_hybrid_shard_degree(shards, plan):
    assert read_smp_config({"hybrid_shard_degree": shards}, 16).plan == plan


@pytest.mark.parametrize("shards", (0, 4))
def test_version_2_experts_are_dealt_out_to_all_that_share_the_model(shards):
    given = {"hybrid_shard_degree": shards, "expert_parallel_degree": shards or 16}
    ranks = shards or 16
    expected = ParallelPlan(dp_replicate=16 // ranks, dp_shard=ranks, ep=ranks)
    assert read_smp_config(given, 16).plan == expected


@pytest.mark.parametrize(
    ("config", "plan"),
    [
        ({"hybrid_shard_degree": 8}, ParallelPlan(dp_replicate=2, dp_shard=2, cp=4)),
        (
            {"hybrid_shard_degree": 4, "tensor_parallel_degree": 2},
            ParallelPlan(dp_replicate=2, cp=4, tp=2),
        ),
        ({"cp_comm_type": "p2p"}, ParallelPlan(dp_shard=4, cp=4, cp_attention="ring")),
        (
            {"cp_comm_type": "all_gather", "tensor_parallel_degree": 2},
            ParallelPlan(dp_shard=2, cp=4, tp=2, cp_attention="gather"),
        ),
    ],
)
def test_version_2_context_parallel_degree(config, plan):
    """Of the ranks that share the state; its ranks see the same samples."""
    found = read_smp_config({"context_parallel_degree": 4, **config}, 16)
    assert found.plan == plan
    assert not found.left_out
    assert found.global_batch(3) == 3 * plan.dp


def test_version_2_published_llama_configuration():
    found = read_smp_config(
        {
            "tensor_parallel_degree": 2,
            "hybrid_shard_degree": 4,
            "sm_activation_offloading": True,
            "activation_loading_horizon": 2,
            "random_seed": 12345,
            "context_parallel_degree": 1,
        },
        8,
    )
    assert found.version == 2
    assert found.plan == ParallelPlan(tp=2, dp_shard=4, offload=True)
    assert (found.seed, found.global_batch(2)) == (12345, 8)
    assert set(found.left_out) == {"activation_loading_horizon"}


def test_the_version_follows_from_the_keys_or_is_given():
    assert read_smp_config({"tensor_parallel_degree": 2}, 4).version == 2
    assert read_smp_config({"tensor_parallel_degree": 2, "ddp": True}, 4).version == 1
    with pytest.raises(UserError, match="needs ddp: True"):
        read_smp_config({"tensor_parallel_degree": 2}, 4, version=1)


V1_DOCUMENTED = """
partitions pipeline_parallel_degree microbatches pipeline active_microbatches
optimize memory_weight placement_strategy auto_partition default_partition contiguous horovod ddp
deterministic_server tensor_parallel_degree prescaled_batch shard_optimizer_state
sharded_data_parallel_degree sdp_reduce_bucket_size sdp_param_persistence_threshold
sdp_max_live_parameters sdp_hierarchical_allgather sdp_gradient_clipping ddp_dist_backend
offload_activations activation_loading_horizon fp16 fp16_params bf16
delayed_parameter_initialization skip_tracing checkpoint_attentions _match_weights static_mode
fast_mode _fp32_grad_accumulation tensor_parallel_seed ddp_port
"""
V2_DOCUMENTED = """
hybrid_shard_degree sm_activation_offloading activation_loading_horizon
fsdp_cache_flush_warnings allow_empty_shards tensor_parallel_degree context_parallel_degree
cp_comm_type expert_parallel_degree random_seed
"""


def test_every_documented_key_is_known():
    assert set(keys(1)) == set(V1_DOCUMENTED.split())
    assert set(keys(2)) == set(V2_DOCUMENTED.split())


@pytest.mark.parametrize(
    ("key", "value", "version"),
    [(key, record.default, 1) for key, record in keys(1).items()]
    + [(key, record.default, 2) for key, record in keys(2).items()],
)
def test_the_librarys_defaults_are_read(key, value, version):
    """Alone and at its default, every key gives the plan of no key at all."""
    value = (
        value
        if value is not None
        else {"whole": 1, "flag": False, "number": 0.8}[keys(version)[key].kind]
    )
    value = True if key == "contiguous" else value
    empty = read_smp_config({}, 1, version)
    found = read_smp_config({key: value}, 1, version)
    assert found.plan == empty.plan
    assert found.memory_weight == empty.memory_weight
