"""Plans, their checks and the maps of what lies where."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.engine.errors import NoToken, UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import LR_SCHEDULES, lr_factor
from helpers.engine.tensor.check import check_tensor_degree
from helpers.engine.tensor.shards import chunk
from helpers.engine.tensor.split import kv_rows

degrees = st.integers(1, 6)


@given(dp_replicate=degrees, dp_shard=degrees, pp=degrees, tp=degrees)
def test_the_degrees_multiply_to_the_world(
    dp_replicate: int, dp_shard: int, pp: int, tp: int
) -> None:
    plan = ParallelPlan(dp_replicate=dp_replicate, dp_shard=dp_shard, pp=pp, tp=tp)
    assert plan.world_size == dp_replicate * dp_shard * pp * tp == plan.dp * pp * tp
    assert ParallelPlan.from_dict(plan.to_dict()) == plan
    plan.validate(world_size=plan.world_size)
    with pytest.raises(UserError, match=f"needs {plan.world_size} processes"):
        plan.validate(world_size=plan.world_size + 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a\nb", r"a\nb"),
        ("a\r\x1b[31mb\0", r"a\r\x1b[31mb\x00"),
        ("\u2028\ud800", r"\u2028\ud800"),
        ("Größe: 5 µs", "Größe: 5 µs"),
    ],
)
@pytest.mark.parametrize("kind", [UserError, NoToken])
def test_what_cannot_be_printed_is_written_out_in_the_line_of_a_mistake(given, said, kind):
    error = kind(f"not {given}")
    assert str(error) == f"{error}" == f"not {said}"
    assert error._render_traceback_() == [f"UserError: not {said}"]
    with pytest.raises(UserError, match="needs 1 processes") as caught:
        ParallelPlan().validate(world_size=given)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("fields", "said"),
    (
        ({"tp": 0}, "tp must be a whole number"),
        ({"tp": 2.0}, "tp must be a whole number"),
        ({"dp_shard": True}, "dp_shard must be a whole number"),
        ({"tp": 10**400}, "the plan has more than 10000000 ranks"),
        ({"compile": "no"}, "compile must be True or False, not 'no'"),
        ({"offload": None}, "offload must be True or False"),
        ({"partition": "9" * 5000}, "partition must be auto or"),
        ({"zero_stage": 4}, "zero_stage must be one of 1, 2, 3"),
        ({"zero_stage": True}, "zero_stage must be one of 1, 2, 3, not True"),
        ({"zero_stage": 1.0}, "zero_stage must be one of 1, 2, 3, not 1.0"),
        ({"activation": None}, "activation must be none, full"),
        ({"partition": [4, 4]}, "partition must be auto or"),
        ({"partition": None}, "partition must be auto or"),
        ({"placement": None}, "placement must be cluster, spread"),
        ({"placement": ["D", "P"]}, "placement must be cluster, spread"),
        ({"precision": None}, "precision must be one of"),
        ({"schedule": []}, "schedule must be one of"),
        ({"precision": "fp4"}, "precision must be one of"),
        ({"cp": 2.0}, "cp must be a whole number"),
        ({"cp_attention": "rings"}, "cp_attention must be one of ring, gather, ulysses"),
        ({"cp_split": "x"}, "cp_split must be one of balanced, contiguous"),
        ({"activation": "group_0"}, "group_N"),
        ({"activation": "group_" + "9" * 5000}, "group_N"),
        ({"activation": "group_1\u0661"}, "group_N"),
        ({"sequence_parallel": True}, "needs tp above 1"),
        ({"pp": 0}, "pp must be a whole number"),
        ({"microbatches": -1}, "microbatches must be a whole number"),
        ({"schedule": "2f2b"}, "schedule must be one of naive, gpipe"),
        ({"pp": 2, "virtual_stages": 2}, "1f1b has 1 stage a rank"),
        ({"virtual_stages": 2, "schedule": "interleaved"}, "need pp above 1"),
        ({"pp": 2, "partition": "half"}, "layers of each stage as 7,7,7,7"),
        ({"placement": "near"}, "cluster, spread or a permutation"),
        ({"pp": 10**9}, "1000000000 x 1 stages: at most 10000"),
        ({"pp": 2, "virtual_stages": 10**9, "schedule": "interleaved"}, "stages: at most 10000"),
        ({"pp": 2, "microbatches": 10**6}, "microbatches is 1000000: at most 100000"),
    ),
)
def test_a_wrong_field_is_named(fields: dict, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        ParallelPlan(**fields)
    assert "\n" not in caught.value.args[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    (
        ({"pp": 32}, "32 stages are too many for 28 layers"),
        ({"pp": 8, "schedule": "interleaved", "virtual_stages": 4}, "too many for 28 layers"),
        ({"pp": 2, "partition": "14,13"}, "27 layers, the model 28"),
        ({"pp": 2, "partition": "28"}, "1 stages, the pipeline 2"),
        ({"pp": 3, "partition": "14,0,14"}, "leaves stage 1 empty"),
    ),
)
def test_a_pipeline_that_does_not_fit_the_model_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ParallelPlan(**fields).validate(load_config("gptj-6b"))


@pytest.mark.parametrize(
    ("plan", "rows", "expected"),
    (
        (ParallelPlan(), 32, 1),
        (ParallelPlan(microbatches=4), 32, 4),
        (ParallelPlan(pp=2), 32, 8),
        (ParallelPlan(pp=4), 6, 6),
        (ParallelPlan(pp=2, microbatches=3), 32, 3),
    ),
)
def test_micro_batches_are_chosen_from_the_batch(
    plan: ParallelPlan, rows: int, expected: int
) -> None:
    assert plan.microbatches_of(rows) == expected


@pytest.mark.parametrize(
    "fields",
    (
        {},
        {"tp": 2, "sequence_parallel": True},
        {"dp_shard": 4, "zero_stage": 1, "precision": "bf16"},
        {"pp": 2, "partition": "3,1", "schedule": "gpipe", "microbatches": 4},
    ),
)
def test_it_shows_as_the_call_that_makes_it(fields: dict) -> None:
    shown = repr(ParallelPlan(**fields))
    assert shown.count("=") == len(fields)
    assert eval(shown) == ParallelPlan(**fields)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(UserError, match="no field 'zp'"):
        ParallelPlan.from_dict({"zp": 2})
    with pytest.raises(UserError, match="no field"):
        ParallelPlan.from_dict({"zp": 2, 1: 2})


@pytest.mark.parametrize("values", (None, [], "tp=2"))
def test_a_plan_is_read_from_its_fields_alone(values) -> None:
    with pytest.raises(UserError, match="a plan is read from its fields by name, not from"):
        ParallelPlan.from_dict(values)


@pytest.mark.parametrize(
    ("given", "said"),
    (
        ({"config": "gptj-6b"}, "'gptj-6b' is no configuration: give load_config"),
        ({"task": "anything"}, "no task 'anything' has a head; there is lm, mlm"),
        ({"task": []}, "no task .* has a head"),
    ),
)
def test_a_plan_is_checked_against_a_configuration_and_a_known_task(given: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ParallelPlan(tp=2).validate(**given)


@pytest.mark.parametrize(
    ("preset", "tp", "said"),
    (
        ("gptj-6b", 3, "16 attention heads; tp can be 2, 4, 8, 16"),
        ("falcon-40b", 3, "128 attention heads"),
        ("llama2-70b", 5, "64 attention heads"),
    ),
)
def test_a_degree_that_does_not_divide_says_what_would(preset: str, tp: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_tensor_degree(load_config(preset), tp)


def test_a_single_head_can_be_split_over_one_rank_only() -> None:
    with pytest.raises(UserError, match="1 attention heads; tp can be only 1 here"):
        check_tensor_degree(load_config("gptj-tiny", num_attention_heads=1), 2)


@given(rows=st.integers(0, 40), n=st.integers(1, 9))
def test_chunks_are_torchs_and_cover_all_rows(rows: int, n: int) -> None:
    whole = torch.arange(rows)
    chunks = [chunk(whole, 0, n, index) for index in range(n)]
    assert torch.cat(chunks).tolist() == whole.tolist()
    expected = [chunk.tolist() for chunk in whole.chunk(n)] if rows else []
    assert [chunk.tolist() for chunk in chunks if len(chunk)] == expected


@given(
    groups=st.sampled_from((1, 2, 4)),
    sharing=st.sampled_from((2, 4)),
    queries=st.sampled_from((4, 8)),
    head_dim=st.integers(1, 4),
)
def test_shared_keys_and_values_cover_each_query_once(
    groups: int, sharing: int, queries: int, head_dim: int
) -> None:
    ranks, group_rows = groups * sharing, (queries + 2) * head_dim
    rows = torch.arange(groups * group_rows)
    of_queries, of_keys = [], []
    for rank in range(ranks):
        first, keys = kv_rows(group_rows, head_dim, groups, ranks, rank)
        of_queries += rows[first].tolist()
        of_keys.append(rows[keys].tolist())
    expected = rows.view(groups, queries + 2, head_dim)
    assert of_queries == expected[:, :queries].flatten().tolist()
    assert of_keys == [
        group.flatten().tolist() for group in expected[:, queries:] for _ in range(sharing)
    ]
    alone = [kv_rows(head_dim, head_dim, groups, ranks, rank) for rank in range(ranks)]
    assert [rows[one].tolist()[0] // head_dim for (one,) in alone] == [
        rank // sharing for rank in range(ranks)
    ]


@given(
    schedule=st.sampled_from(tuple(LR_SCHEDULES)),
    warmup=st.integers(0, 20),
    total=st.integers(1, 100),
)
def test_the_learning_rate_rises_then_never_does(schedule: str, warmup: int, total: int) -> None:
    """Nor behind its last step; and its first one learns."""
    factors = [lr_factor(step, schedule, warmup, total) for step in range(warmup + total + 9)]
    assert factors[0] > 0 and all(0 <= factor <= 1 for factor in factors)
    rise, rest = factors[: warmup + 1], factors[warmup:]
    assert rise == sorted(rise) and rest == sorted(rest, reverse=True)
    assert factors[warmup] == pytest.approx(1.0)
