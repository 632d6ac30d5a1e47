"""Step times: published runs, limits that must hold, and the parts against what they stand for."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import predicted_bubble
from helpers.engine.plan import ParallelPlan
from helpers.planner.audit import memory
from helpers.planner.audit.rows import Errors, rows
from helpers.planner.hardware.cluster import make_cluster, tile_fill
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.links import Link
from helpers.planner.model.block_tensors import program
from helpers.planner.model.training_job import make_job
from helpers.planner.published.models import published_model
from helpers.planner.published.runs import cluster_of, figure_1, job_of, runs
from helpers.planner.search.estimate import estimate
from helpers.planner.time.block_time import block_time
from helpers.planner.time.makespan import makespan_s, quick_makespan_s
from helpers.planner.time.messages import Message, message_s
from helpers.planner.time.overlapped_messages import late_data_s
from helpers.planner.time.pipeline_messages import link_s
from helpers.planner.time.roofline import attention_s, product_s
from helpers.planner.time.stage_time import stage_times, with_data_messages
from helpers.planner.time.step_time import step_time
from tests.planner.shapes import GPTJ_6B, gpt, llama

P4D = make_cluster("p4d.24xlarge", nodes=4)
LLAMA = llama(4096, 32, 32, 8, 14336)


def job(shape=GPTJ_6B, batch=64, seq_len=1024, **plan):
    plan = {"precision": "bf16"} | plan
    return make_job(shape, ParallelPlan(**plan), batch, seq_len)


# --- published runs ---------------------------------------------------------------------------


def test_published_step_times_within_5_percent_and_10_at_worst():
    """Korthikanti's eight, 1 in 70 of the rows that share the constants; with constants that were
    fitted to all other sources, 6 in the mean."""
    found = [row for row in rows() if row.run.source == memory.KORTHIKANTI]
    fitted = Errors.of([row.fitted for row in found])
    assert fitted.count == 8
    assert fitted.size <= 0.05
    assert abs(fitted.worst) <= 0.10
    assert Errors.of([row.unseen for row in found]).size <= 0.06


def test_published_activations_within_5_percent():
    for row in figure_1():
        _, plain, saved = memory.first_rank_gib(row.model)
        assert plain == pytest.approx(row.activations_gib, rel=1e-6)
        assert saved == pytest.approx(row.saved_activations_gib, rel=1e-6)


def test_published_states_and_the_embedding_that_they_leave_out():
    """The paper counts 18 bytes for each of 12·layers·hidden^2 parameters, over tp and pp."""
    states = {row.model: row.states_gib for row in figure_1()}
    for run in memory.eight()[::2]:
        name, shape = run.title.split(",")[0], published_model(run.model).shape
        ours, *_ = memory.first_rank_gib(name)
        published = states[name]
        ranks = 8 * run.plan.get("pp", 1)
        assert published == pytest.approx(
            18 * 12 * shape.layers * shape.hidden**2 / ranks / 2**30, rel=1e-6
        )
        table = 18 * (shape.vocab / 8 + shape.positions) * shape.hidden / 2**30
        assert ours == pytest.approx(published + table, rel=0.002)


def test_every_published_run_is_predicted_or_says_why_not():
    assert all(bool(run.why_not) != bool(run.measured_s) for run in runs())
    assert all(run.measured for run in runs() if run.why_not)


# Milliseconds of a layer of 22B forward and backward: arXiv 2205.05198, table 4
LAYER_OF_22B_MS = {
    ("none", False): (7.7, 11.9),
    ("none", True): (7.2, 11.8),
    ("full", False): (7.7, 19.5),
    ("selective", False): (7.7, 13.2),
    ("selective", True): (7.2, 13.1),
}


@pytest.mark.parametrize("way", LAYER_OF_22B_MS)
def test_a_layer_takes_what_was_measured(way):
    activation, sequence_parallel = way
    run = memory.eight()[0]
    run = replace(
        run, plan=run.plan | {"activation": activation, "sequence_parallel": sequence_parallel}
    )
    time = block_time(job_of(run), cluster_of(run))
    forward_s = time.forward_s + time.tensor_forward_s
    backward_s = time.input_s + time.weight_s + time.again_s + time.tensor_backward_s
    measured = [ms / 1000 for ms in LAYER_OF_22B_MS[way]]
    assert [forward_s, backward_s] == pytest.approx(measured, rel=0.08)


# --- parts ------------------------------------------------------------------------------------

# rows and columns of a result, and the multiprocessors of a GPU
PRODUCTS = (st.integers(1, 20000), st.integers(1, 20000), st.sampled_from([40, 108, 132]))


@settings(deadline=None)
@given(*PRODUCTS, st.integers(1, 100000))
def test_tiles_keep_some_or_all_of_a_gpu_busy(rows, columns, multiprocessors, inner):
    alone = tile_fill(rows, columns, multiprocessors)
    assert 0 < alone <= tile_fill(rows, columns, multiprocessors, inner) <= 1


@settings(deadline=None)
@given(*PRODUCTS, st.floats(1, 1e5), st.floats(1, 10))
def test_a_longer_inner_dimension_takes_no_less_time(rows, columns, multiprocessors, inner, times):
    """As of gradients of weights, summed over more tokens."""
    short, long = (n / tile_fill(rows, columns, multiprocessors, n) for n in (inner, times * inner))
    assert long >= short * (1 - 1e-9)


def test_tiles_of_known_sizes():
    assert tile_fill(256 * 9, 128 * 12, 108) == 1.0  # 108 tiles: each multiprocessor has one
    assert tile_fill(256 * 9, 128 * 13, 108) == pytest.approx(117 / 216)  # 9 more: another round
    assert tile_fill(7, 9, 0) == 1.0


def test_a_few_tiles_share_their_inner_dimension():
    narrow = (2048, 512, 108)  # 32 tiles
    assert tile_fill(*narrow) == tile_fill(*narrow, 1024) == pytest.approx(32 / 108)
    assert tile_fill(*narrow, 8192) == pytest.approx(96 / 108)  # three for each
    assert tile_fill(*narrow, 2048) == pytest.approx(64 / 108)  # no part is shorter than 1,024
    many = (256 * 9, 128 * 13, 108)
    assert tile_fill(*many, 8192) == tile_fill(*many)


def test_a_product_takes_its_arithmetic_or_its_bytes():
    large = product_s(P4D, "bf16", 8192, 8192, 8192, 2)
    assert large >= 2 * 8192**3 / P4D.rate("bf16")
    thin = product_s(P4D, "bf16", 8192, 1, 8192, 2)
    assert thin == pytest.approx((8192**2 + 2 * 8192) * 2 / P4D.memory_bytes_per_s)


def test_a_message_takes_its_starts_and_its_bytes():
    link = Link(bytes_per_s=1e9, latency_s=1e-5)
    sum_of_8 = Message("tp", "all_reduce", 8e6, 1, 8, "", "")
    assert message_s(sum_of_8, link) == pytest.approx(6e-5 + 2 * 7e6 / 1e9)
    gather = replace(sum_of_8, kind="all_gather")
    assert message_s(gather, link) == pytest.approx(3e-5 + 7e6 / 1e9)
    send = replace(sum_of_8, kind="send")
    assert message_s(send, link) == pytest.approx(1e-5 + 8e6 / 1e9)


def test_attention_grows_with_the_square_of_the_sequence():
    program = job().program
    once, _ = attention_s(P4D, program, "bf16", 1024, 1024, 16, 256)
    longer, backward = attention_s(P4D, program, "bf16", 2048, 2048, 16, 256)
    assert longer == 4 * once
    assert backward == 2.5 * longer


def test_recomputing_takes_less_than_a_forward_and_more_than_nothing():
    full = block_time(job(activation="full"), P4D)
    cheap = block_time(job(activation="selective"), P4D)
    assert 0 < cheap.again_s < full.again_s < full.forward_s
    assert block_time(job(), P4D).again_s == 0


def test_tensor_ranks_share_the_work_and_pay_in_messages():
    one, eight = block_time(job(), P4D), block_time(job(tp=8), P4D)
    assert one.forward_s / 8 < eight.forward_s < one.forward_s / 4
    assert eight.tensor_forward_s > 0 == one.tensor_forward_s
    sequential = block_time(job(gpt(4096, 28, 16), tp=8), P4D)  # two messages per block, not one
    assert sequential.tensor_forward_s == pytest.approx(2 * eight.tensor_forward_s)


# --- the step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_equal_stages_have_the_bubble_of_the_closed_form(schedule):
    """With free links and blocks alone; the ends of the model are made weightless."""
    free = Link(1e30, 0.0)
    fast = replace(P4D, measured={}, intra=free, inter=free, operation_s=0, generation="")
    shape = replace(gpt(4096, 32, 32, vocab=1, positions=1), longest=0)
    virtual = {"virtual_stages": 2} if schedule == "interleaved" else {}
    partition = ",".join(["4"] * 8) if virtual else ",".join(["8"] * 4)
    made = job(shape, 16, pp=4, microbatches=16, schedule=schedule, partition=partition, **virtual)
    time = step_time(made, fast)
    stage = stage_times(made, fast)[1]
    bubble = predicted_bubble(
        schedule, 4, 16, virtual.get("virtual_stages", 1),
        stage.forward_s, stage.input_s, stage.weight_s,
    )  # fmt: skip
    pipeline_s = time.total_s - time.optimizer_s - time.data_s
    assert time.bubble_s / pipeline_s == pytest.approx(bubble, abs=0.005)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["naive", "gpipe", "1f1b", "interleaved", "zero-bubble"]),
    st.sampled_from([2, 4]),
    st.sampled_from([4, 8, 16]),
    st.sampled_from([1, 8]),
)
def test_the_closed_form_is_near_the_simulator(schedule, pp, microbatches, tp):
    made = job(
        LLAMA, microbatches, 2048, pp=pp, tp=tp, microbatches=microbatches, schedule=schedule
    )
    stages = stage_times(made, P4D)
    exact, quick = makespan_s(made, P4D, stages), quick_makespan_s(made, P4D, stages)
    assert quick == pytest.approx(exact, rel=0.06)


@pytest.mark.parametrize("schedule", ["naive", "gpipe"])
def test_sends_that_a_program_waits_for_are_counted_once(schedule):
    """By naive and gpipe twice: 2.8 and 1.5 % too long. They are a part of the stages' times."""
    plan = {"tp": 8, "pp": 4, "microbatches": 4, "schedule": schedule}
    made = job(LLAMA, 4, 2048, **plan)
    made = replace(made, program=program("megatron-2021"))
    stages = stage_times(made, P4D)
    exact, quick = makespan_s(made, P4D, stages), quick_makespan_s(made, P4D, stages)
    assert quick == pytest.approx(exact, rel=0.005)


def test_the_parts_of_a_step_add_up_and_none_is_negative():
    for plan in (
        {"dp_shard": 32},
        {"dp_shard": 4, "tp": 8, "zero_stage": 1},
        {"pp": 4, "tp": 8, "microbatches": 16},
        {"pp": 2, "dp_replicate": 2, "tp": 8, "microbatches": 8, "activation": "full"},
    ):
        time = step_time(job(**plan), P4D)
        parts = [getattr(time, name) for name in vars(time)]
        assert all(part >= -1e-12 for part in parts), plan
        assert time.total_s == pytest.approx(sum(parts))


def test_sharding_inside_a_node_shows_less_than_over_nodes():
    """Why MiCS and HSDP pay: with little to compute the gathers over nodes show."""
    over_nodes = step_time(job(batch=32, seq_len=256, dp_shard=32), P4D)
    in_node = step_time(job(batch=32, seq_len=256, dp_shard=8, dp_replicate=4), P4D)
    assert in_node.data_s < over_nodes.data_s


def test_half_the_network_never_takes_less_time():
    slow = replace(P4D, inter=replace(P4D.inter, bytes_per_s=P4D.inter.bytes_per_s / 2))
    for plan in ({"dp_shard": 32}, {"dp_replicate": 4, "tp": 8}, {"pp": 4, "tp": 8}):
        made = job(**plan)
        assert step_time(made, slow).total_s >= step_time(made, P4D).total_s


GPT2 = gpt(768, 12, 12)
SMALL = {"dp_shard": 4, "zero_stage": 1, "microbatches": 2}


def test_a_faster_link_is_never_slower_whichever_rank_is_busiest():
    """The ranks with the embedding and with the head have larger gradients, and the busiest may be
    another."""
    plan = {"pp": 4, "tp": 4, "sequence_parallel": True, "schedule": "interleaved"}
    seconds = [
        step_time(
            job(GPT2, 32, **SMALL, **plan),
            make_cluster(gpu="A100-80", gpus=8, nodes=8, intra_gb_s=gb_s, inter_gb_s=1),
        ).total_s
        for gb_s in (50, 100, 150, 300)
    ]
    assert seconds == sorted(seconds, reverse=True)


def test_more_samples_never_take_less_time():
    cluster = make_cluster(gpu="A100-80", gpus=8, nodes=4, intra_gb_s=300, inter_gb_s=1)
    plan = {"pp": 2, "cp": 2, "tp": 2, "schedule": "gpipe"}
    seconds = [step_time(job(GPT2, b, **SMALL, **plan), cluster).total_s for b in (32, 64, 96)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("schedule", ("1f1b", "interleaved", "gpipe"))
@pytest.mark.parametrize("zero_stage", (1, 2))
@pytest.mark.parametrize("instance", ("p3.16xlarge", "g5.48xlarge"))
def test_no_rank_is_over_before_its_own_messages_are(instance, zero_stage, schedule):
    cluster = make_cluster(instance, nodes=2)
    plan = {"dp_shard": 4, "pp": 4, "zero_stage": zero_stage, "schedule": schedule}
    made = job(GPT2, 16, precision="fp16", **plan)
    stages = with_data_messages(made, cluster, stage_times(made, cluster))
    total_s = step_time(made, cluster).total_s
    for rank in range(4):
        own = [stages[stage] for stage in made.stages_of(rank)]
        forward_s = sum(stage.forward_s for stage in own)
        backward_s = sum(stage.input_s + stage.weight_s for stage in own)
        late_s = late_data_s(made, cluster, rank, forward_s, backward_s)
        assert made.microbatches * (forward_s + backward_s) + late_s < total_s


def test_ranks_that_share_cores_take_turns():
    """Four ranks on two cores: data ranks take twice the time of two, and a bubble is free."""
    cores = Cluster(
        "two cores", 1, 4, 2**30, {"fp32": 1e11}, 1e10, Link(1e30, 0), Link(1e30, 0),
        operation_s=0, together=2, overlaps=False,
    )  # fmt: skip
    small = gpt(64, 8, 4, vocab=100, positions=64)

    def total_s(**plan):
        return step_time(job(small, 16, 64, precision="fp32", **plan), cores).total_s

    one = total_s()
    assert total_s(dp_replicate=2) == pytest.approx(one / 2, rel=0.15)
    assert total_s(dp_replicate=4) == pytest.approx(one / 2, rel=0.15)
    assert total_s(pp=4, microbatches=16) == pytest.approx(one / 2, rel=0.15)


def test_links_of_a_pipeline():
    made = job(pp=2, tp=8, batch=2, microbatches=2)
    whole = link_s(made, P4D)
    split = link_s(job(pp=2, tp=8, batch=2, microbatches=2, sequence_parallel=True), P4D)
    assert link_s(job(tp=8), P4D) == 0 < split < whole


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("p4d.24xlarge", 0), "nodes must be a whole number of at least 1, not 0"),
        (("p4d.24xlarge", 2.5), "nodes must be a whole number of at least 1, not 2.5"),
        (("p9.huge", 1), "unknown instance 'p9.huge'"),
        (("p4d.24xlarge", 1, "azure"), "service is one of ec2, sagemaker, oracle, nebius, not"),
    ],
)
def test_a_cluster_that_makes_no_sense(arguments, words):
    with pytest.raises(UserError, match=words):
        make_cluster(*arguments)


def test_a_precision_that_the_gpu_has_not():
    volta = make_cluster("p3.16xlarge")
    with pytest.raises(UserError, match="has no matrix products in bf16; it has fp32"):
        step_time(job(), volta)


def test_the_host_starts_the_ends_of_the_model_too():
    """Their operations were counted and then left out."""
    cluster = replace(make_cluster("ND96asr_v4"), host_operation_s=1e-3)  # all wait for the host
    shape = published_model("llama3-8b").shape
    job = estimate(shape, ParallelPlan(tp=2, pp=4), cluster, 4, 512).job
    layers = job.layers[-1] * block_time(job, cluster).host_forward_s
    assert stage_times(job, cluster)[-1].forward_s == pytest.approx(layers + 20e-3)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([0.3, 0.5, 0.8]),
    st.sampled_from([512, 1024, 2048]),
    st.sampled_from([128, 512, 2048]),
    st.sampled_from(["none", "full"]),
)
def test_slower_products_make_no_pipeline_of_split_backwards_faster(share, hidden, seq_len, saver):
    """Where the host is the slower one, each half of a backward waits for its own operations."""
    one = job(
        gpt(hidden, 16, 8), 16, seq_len, pp=4, schedule="zero-bubble", microbatches=8,
        activation=saver,
    )  # fmt: skip
    slow = {dtype: share * flops for dtype, flops in P4D.matmul_flops.items()}
    slower = replace(P4D, matmul_flops=slow)
    assert step_time(one, slower).total_s >= step_time(one, P4D).total_s * (1 - 1e-9)


def test_gradients_of_experts_do_not_come_later() -> None:
    """Of a mixture's products, only those of attention can fill a bubble."""
    mixture = pytest.importorskip("transformers").MixtralConfig(num_hidden_layers=8)
    whole, halves = (
        stage_times(job(mixture, 8, 4096, pp=2, microbatches=8, schedule=schedule), P4D)[0]
        for schedule in ("1f1b", "zero-bubble")
    )
    assert halves.input_s + halves.weight_s == pytest.approx(whole.input_s + whole.weight_s)
    attention, experts = 2 * 4096 * (4096 + 1024), 2 * 3 * 4096 * 14336
    share = attention / (attention + experts)
    assert halves.weight_s == pytest.approx(share * whole.weight_s, rel=0.01)
