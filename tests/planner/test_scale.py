"""Plans on paper: published ratios, what leaves a node, tables and sliders, figures, graders."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("transformers")
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.lab.exercises.topics import planning as grading
from helpers.lab.figures.planning_plots import (
    plot_fit,
    plot_out_of_node,
    plot_scaling,
    plot_sequences,
)
from helpers.lab.figures.what_if_sliders import explore, sliders
from helpers.lab.figures.what_if_tables import memory_table, plan_table
from helpers.planner import cost
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.model.training_job import make_job
from helpers.planner.published.posts import find_post
from helpers.planner.scaling import efficiencies, out_of_node_bytes, speedups
from helpers.planner.search.estimate import estimate
from helpers.planner.shape.families import model_shape

P4D = make_cluster("p4d.24xlarge")
SCALING, HEADLINE = find_post("smddp-scaling"), find_post("gpt3-on-p4d")
LAYOUTS = [find_post(name) for name in ("smp-llama2-7b", "smp-llama2-70b")]
LLAMA = load_config("llama2-7b")


def test_the_published_ratios_follow_from_the_minutes():
    """Golden: 1.8, 3.7 and 7.3 times as fast on 2, 4 and 8 machines."""
    assert SCALING.printed == {2: 1.8, 4: 3.7, 8: 7.3}
    found = speedups(SCALING.minutes)
    assert {count: round(found[count], 1) for count in SCALING.printed} == SCALING.printed
    share = efficiencies(found)
    assert [round(share[count], 3) for count in (1, 2, 4, 8)] == [1.0, 0.9, 0.917, 0.917]


def test_25_days_hold_for_samples_of_2048_tokens_alone():
    """Golden: 23 % of the peak and 26.5 days at 2,048 tokens; at 512 four times as long."""
    count = cost.parameters(model_shape(load_config("gpt3-175b")))
    rate = HEADLINE.samples_per_s * 2048
    assert cost.mfu(rate, 6 * count, 960, 312e12) == pytest.approx(0.23, abs=0.005)
    assert 300e9 / (2 * rate) / 86400 == pytest.approx(26.5, abs=0.1)
    assert 300e9 / (2 * HEADLINE.samples_per_s * 512) / 86400 == pytest.approx(106, abs=0.5)
    usd = cost.money(25 * 86400, HEADLINE.price.usd_per_hour, 240)
    assert usd == pytest.approx(5.43e6, rel=0.001)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.title)
def test_the_manuals_layouts_fit_and_would_not_without_recomputing(layout):
    cluster = make_cluster(layout.instance, layout.instances)

    def needed(**changes):
        plan = ParallelPlan(**layout.plan | changes)
        batch = layout.samples * cluster.devices
        return estimate(load_config(layout.model), plan, cluster, batch, layout.seq_len)

    assert needed().memory.total <= cluster.memory_bytes
    assert needed(activation="none").memory.total > cluster.memory_bytes


@given(st.dictionaries(st.integers(1, 512), st.floats(0.1, 1e6), min_size=1))
def test_scaling_starts_at_one_and_knows_no_unit(rates):
    shares = efficiencies(rates)
    assert shares[min(rates)] == pytest.approx(1)
    again = efficiencies({count: 7 * rate for count, rate in rates.items()})
    assert again == pytest.approx(shares)
    assert speedups(rates)[min(rates)] == 1


@pytest.mark.parametrize("wrong", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_scaling_of_nothing_is_one_line(wrong):
    with pytest.raises(UserError, match="scaling needs"):
        efficiencies(wrong)


def out_of_node(**fields):
    fields = {"precision": "bf16", "activation": "full"} | fields
    return out_of_node_bytes(make_job(LLAMA, ParallelPlan(**fields), 128, 2048), 8)


def test_what_leaves_a_node_by_hand():
    """In bf16 with float32 sums: gathers of 2 bytes, sums of 4, all-reduces of twice 4."""
    shape = model_shape(LLAMA)
    whole = cost.parameters(shape)
    blocks = shape.layers * shape.block_parameters
    fsdp = out_of_node(dp_shard=128)
    assert fsdp["forward"] == pytest.approx(2 * whole * 127 / 128, rel=1e-3)
    assert fsdp["backward"] == pytest.approx((2 * blocks + 4 * whole) * 127 / 128, rel=1e-3)
    hsdp = out_of_node(dp_shard=8, dp_replicate=16)
    assert hsdp == {"last": pytest.approx(2 * 4 * whole * 15 / 16, rel=1e-3)}
    half = out_of_node(dp_shard=8, dp_replicate=16, reduce_dtype="bf16")
    assert half["backward"] == pytest.approx(hsdp["last"] / 2)
    assert out_of_node(dp_replicate=128)["last"] == pytest.approx(
        2 * 4 * whole * 127 / 128, rel=1e-3
    )


@pytest.mark.parametrize("devices", [0, -1, 1.5, "8", None])
def test_a_node_of_no_devices_is_one_line(devices):
    job = make_job(LLAMA, ParallelPlan(dp_shard=8, precision="bf16"), 128, 2048)
    with pytest.raises(UserError, match="devices_per_node must be a whole number of at least 1"):
        out_of_node_bytes(job, devices)


def test_nothing_leaves_one_node():
    assert out_of_node(dp_shard=8) == {}
    assert out_of_node(dp_shard=2, tp=4) == {}


def test_the_memory_table_is_the_planners():
    table = memory_table("llama2-7b", "p4d.24xlarge", dp_shard=8, activation="full", seq_len=4096)
    plan = ParallelPlan(dp_shard=8, activation="full", precision="bf16")
    memory = estimate(LLAMA, plan, P4D, 8, 4096).memory
    column = table["GiB"]
    assert column["all"] * 2**30 == pytest.approx(memory.total)
    assert column.iloc[:7].sum() == pytest.approx(column["all"])
    assert column["free"] == pytest.approx(39.4 - column["all"])


def test_the_plan_table_is_the_planners():
    table = plan_table("llama2-7b", "p4d.24xlarge", 2, tp=2, batch=64, activation="full")
    assert list(table.index) == [
        "copied (DDP)",
        "over all 8, ZeRO-1",
        "over all 8, ZeRO-2",
        "over all 8, ZeRO-3",
        "over 4 of a node (HSDP)",
    ]
    plan = ParallelPlan(
        tp=2,
        dp_shard=8,
        sequence_parallel=True,
        activation="full",
        precision="bf16",
        microbatches=8,
    )
    found = estimate(LLAMA, plan, make_cluster("p4d.24xlarge", 2), 64, 2048)
    row = table.loc["over all 8, ZeRO-3"]
    assert row["step, s"] == pytest.approx(found.time.total_s)
    assert row["GiB per GPU"] * 2**30 == pytest.approx(found.memory.total)
    assert row["dollars per million tokens"] == pytest.approx(1e6 * found.usd_per_token)


def test_tables_of_parts_of_rows():
    """Two ranks of cp beside each data rank share the state with it."""
    table = plan_table("llama2-7b", "p4d.24xlarge", 2, tp=2, cp=2, batch=64, seq_len=4096)
    assert list(table.index) == [
        *(f"over all 8, ZeRO-{stage}" for stage in (1, 2, 3)),
        "over 4 of a node (HSDP)",
    ]
    assert plan_table("llama2-7b", "p4d.24xlarge", 1, tp=4, cp=2).shape[0] == 3
    whole, split = (
        memory_table("llama2-7b", "p4d.24xlarge", seq_len=32768, dp_shard=8 // cp, cp=cp)
        for cp in (1, 8)
    )
    assert split.loc["optimizer", "GiB"] == pytest.approx(whole.loc["optimizer", "GiB"])
    assert 7 < whole.loc["activations", "GiB"] / split.loc["activations", "GiB"] < 8


def test_one_rank_that_has_the_whole_is_one_row():
    assert list(plan_table("llama2-7b", "p4d.24xlarge", 1, tp=8).index) == ["whole: one copy"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nodes": 1, "tp": 3}, "tp=3 x pp=1 does not divide 8 devices"),
        ({"nodes": 128, "batch": 512}, "1024 data ranks want a batch of at least 1024, not 512"),
        ({"nodes": 1, "instance": "p4x"}, "unknown instance 'p4x'"),
    ],
)
def test_what_is_no_layout_is_one_line(fields, words):
    with pytest.raises(UserError, match=words):
        plan_table(**{"model": "llama2-7b", "instance": "p4d.24xlarge"} | fields)


CHOICES = {"nodes": (1, 2, 128), "tp": (1, 2, 8)}
START = {"model": "llama2-7b", "instance": "p4d.24xlarge", "nodes": 1, "tp": 1}


def test_the_table_follows_the_sliders():
    pytest.importorskip("ipywidgets")
    box = sliders(plan_table, "a model", CHOICES, START)
    nodes, tp, shown = box.children
    assert "<caption" in shown.value and "a model: nodes 1, tp 1" in shown.value
    tp.value = 8
    assert "a model: nodes 1, tp 8" in shown.value and "one copy" in shown.value
    nodes.value = 128
    tp.value = 1
    assert "1024 data ranks want a batch" in shown.value and "<table" not in shown.value
    nodes.value = 2
    assert "over 8 of a node (HSDP)" in shown.value


def test_a_slider_has_the_value_that_it_starts_with():
    pytest.importorskip("ipywidgets")
    with pytest.raises(UserError, match="the slider tp starts at 4, which it does not have"):
        sliders(plan_table, "a model", CHOICES, START | {"tp": 4})


def test_without_a_notebook_the_table_alone_is_shown(capsys, tmp_path):
    explore(plan_table, "a model", CHOICES, save_to=tmp_path / "explorer", **START)
    printed = capsys.readouterr().out
    assert printed.startswith("a model: nodes 1, tp 1") and "ZeRO-3" in printed
    assert (tmp_path / "explorer.csv").is_file()


@pytest.mark.slow
def test_headless_the_table_is_an_output_and_the_sliders_have_words():
    """As nbclient and papermill run it."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    code = (
        "from helpers.lab.figures.what_if_sliders import explore\n"
        "from helpers.lab.figures.what_if_tables import plan_table\n"
        f"explore(plan_table, 'a model', {CHOICES!r}, **{START!r})"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    still, moving = notebook.cells[0].outputs
    assert "<table" in still.data["text/html"] and "ZeRO-3" in still.data["text/plain"]
    assert "Sliders stand here" in moving.data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in moving.data


def test_the_figures_hold_the_planners_numbers():
    choices = {
        "copied": estimate(LLAMA, ParallelPlan(dp_replicate=8, precision="bf16"), P4D, 8, 2048),
        "sharded": estimate(LLAMA, ParallelPlan(dp_shard=8, precision="bf16"), P4D, 8, 2048),
    }
    _, table, sentence = plot_fit(choices)
    for name, choice in choices.items():
        assert table.loc[name, "all"] * 2**30 == pytest.approx(choice.memory.total)
    assert sentence == "Of these plans sharded fits 39 GiB."
    two = {"copied": ParallelPlan(dp_replicate=16), "sharded": ParallelPlan(dp_shard=16)}
    cluster = make_cluster("p4d.24xlarge", 2)
    _, table, sentence = plot_out_of_node(
        {name: estimate(LLAMA, plan, cluster, 16, 2048) for name, plan in two.items()}
    )
    assert table.loc["copied", "forward"] == 0 and not table["after the backward"].any()
    assert min(table.loc["copied", "backward"], table.loc["sharded", "forward"]) > 10
    assert sentence.startswith("The fastest step is that of ")
    _, table, sentence = plot_scaling({"a": {8: 8.0, 16: 15.0, 32: 16.0}}, {"b": {8: 1.0}})
    assert table["a"].tolist() == pytest.approx([100, 93.75, 50])
    assert sentence == "a: below 90 % from 32 GPUs on."
    shape = model_shape(LLAMA)
    _, table, sentence = plot_sequences(shape, [1024, 8192], (1, 8), P4D.memory_bytes, "none")
    assert table.loc[8192, "tp=1"] == pytest.approx(8 * table.loc[1024, "tp=1"])
    assert sentence.endswith("room for 1,024 tokens with tp=1 and 8,192 tokens with tp=8.")
    *_, sentence = plot_sequences(shape, [1024], (1,), 10**6, "none")
    assert sentence == "Activations alone leave room for no sample."


def test_what_is_offloaded_has_to_fit_the_machine():
    """A plan was said to fit whatever it keeps in host memory."""
    plan = ParallelPlan(dp_shard=8, precision="bf16", offload=True)
    for host_bytes, fits in ((P4D.host_memory_bytes, True), (2**30, False)):
        cluster = replace(P4D, host_memory_bytes=host_bytes)
        _, table, _ = plot_out_of_node({"offloaded": estimate(LLAMA, plan, cluster, 8, 2048)})
        assert table.loc["offloaded", "fits"] == fits


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"tp": 8, "dp_shard": 2}, "it does not fit"),
        ({"dp_shard": 4, "tp": 4, "activation": "full", "offload": True}, "too slow"),
        ({"dp_shard": 8}, "the plan has 8 ranks"),
        ({"dp_shard": 16, "shards": 2}, "unexpected keyword argument 'shards'"),
        ({"dp_shard": -16}, "dp_shard must be a whole number"),
        (16, "A dictionary is wanted"),
    ],
)
def test_a_wrong_layout_says_why(answer, words):
    result = grading.layout(answer)
    assert not result.right and words in result.words


@pytest.mark.long
def test_a_wrong_number_of_machines_says_why():
    def answer(place, **changes):
        days, usd = grading.by_size()[place]
        return grading.most_machines({"nodes": place, "days": days, "usd": usd} | changes)

    assert answer(32).right
    assert "sooner" in answer(16).words
    assert "more than the cheapest" in answer(64).words
    assert "days is not" in answer(32, days=1).words
    assert "nodes is one of" in answer(32, nodes=65).words
