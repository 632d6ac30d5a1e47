"""What cannot be read of a SageMaker configuration is one clear line."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.smp.configuration import read_smp_config
from helpers.smp.keys import keys


@pytest.mark.parametrize(
    ("config", "world_size", "words"),
    [
        # unknown
        ({"pipeline_paralel_degree": 2}, 2, "did you mean pipeline_parallel_degree?"),
        ({"zzz": 2}, 2, "no version has a key 'zzz'; version 2 has hybrid_shard_degree"),
        ({"fp32_residual_addition": True}, 2, "DistributedTransformerOutputLayer"),
        ({"partitions": 2, "hybrid_shard_degree": 2}, 2, "hybrid_shard_degree is a key of version"),
        # of the wrong kind
        ({"microbatches": "4"}, 1, "microbatches must be a whole number of at least 1, not '4'"),
        ({"microbatches": True}, 1, "microbatches must be a whole number of at least 1, not True"),
        ({"microbatches": 2.0}, 1, "must be a whole number of at least 1, not 2.0"),
        ({"partitions": -2}, 1, "partitions must be a whole number of at least 1, not -2"),
        ({"ddp": "False"}, 1, "ddp must be True or False, not 'False'"),
        ({"fp16": 1}, 1, "fp16 must be True or False, not 1"),
        ({"pipeline": "1f1b"}, 1, "pipeline must be one of interleaved, simple, not '1f1b'"),
        ({"memory_weight": 1.5}, 1, "memory_weight must be a number of at least 0 and at most 1"),
        ({"placement_strategy": "DPX"}, 1, "placement must be cluster, spread or a permutation"),
        ({"placement_strategy": 3}, 1, "placement_strategy must be a word, not 3"),
        ([("partitions", 2)], 2, "a configuration is a dictionary"),
        ({"smdistributed": {"modelparallel": {"enabled": False}}}, 2, "no modelparallel with"),
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, 2, "no modelparallel with"),
        # in conflict
        ({"partitions": 2, "pipeline_parallel_degree": 4}, 8, "one number: keep one of them"),
        ({"fp16": True, "bf16": True}, 1, "fp16 and bf16 exclude each other"),
        ({"partitions": 2}, 8, "without ddp: True there is no data axis, but 8 processes"),
        ({"sharded_data_parallel_degree": 2}, 2, "needs ddp: True"),
        (
            {"ddp": True, "sharded_data_parallel_degree": 2, "partitions": 2},
            8,
            "sharded_data_parallel_degree=2 and pipeline_parallel_degree=2 exclude each other",
        ),
        (
            {"ddp": True, "sharded_data_parallel_degree": 2, "shard_optimizer_state": True},
            8,
            "leave out shard_optimizer_state",
        ),
        (
            {"ddp": True, "sharded_data_parallel_degree": 6},
            8,
            "does not divide the data axis of 8: take 2 or another divisor of it",
        ),
        (
            {"ddp": True, "partitions": 3, "tensor_parallel_degree": 2},
            8,
            "pipeline_parallel_degree=3 x tensor_parallel_degree=2 does not divide 8 ranks",
        ),
        ({"hybrid_shard_degree": 3}, 8, "hybrid_shard_degree=3 does not divide 8 ranks"),
        # what the engine cannot do, and the nearest
        ({"partitions": 2, "auto_partition": False}, 2, "as partition=7,7,7,7"),
        ({"horovod": True}, 1, "ddp is PyTorch's data axis"),
        ({"contiguous": False}, 1, "stages are always runs of neighbouring layers"),
        ({"checkpoint_attentions": True}, 1, "the nearest is activation=selective"),
        ({"context_parallel_degree": 3}, 8, "does not divide the 8 ranks that share the model"),
        ({"expert_parallel_degree": 2}, 8, "some of the 8 ranks that share the model"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(config, world_size, words):
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        read_smp_config(config, world_size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("world_size", [0, -8, 2.0, "8", None, True])
def test_a_number_of_processes_that_is_none(world_size):
    with pytest.raises(UserError, match="world_size must be a whole number of at least 1"):
        read_smp_config({}, world_size)


VALUES = st.one_of(
    st.booleans(),
    st.integers(-2, 20),
    st.floats(),
    st.none(),
    st.sampled_from(["cluster", "DPT", "simple", "nccl", "speed", "p2p", ""]),
)


@given(
    st.dictionaries(st.sampled_from([*keys(1), *keys(2), "other"]), VALUES, max_size=6),
    st.sampled_from([1, 2, 8, 12]),
)
def test_any_configuration_is_a_plan_of_its_size_or_one_line(config, world_size):
    try:
        found = read_smp_config(config, world_size)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert found.plan.world_size == world_size
