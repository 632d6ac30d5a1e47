"""torchtitan's TOML files, of each of its years, as plans or refusals by key."""

import pytest

from helpers.configurations.report import report

BASE = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 4096
steps = 100
[activation_checkpoint]
mode = "full"
"""


def planned(read, more, ranks=8, text=BASE):
    found = read(text + more, "run.toml", ranks)
    assert found.refused == ""
    return found


def test_all_of_a_file(read):
    more = "[parallelism]\ndata_parallel_replicate_degree = 2\ntensor_parallel_degree = 2\n"
    more += "[optimizer]\nlr = 3e-4\n[lr_scheduler]\nwarmup_steps = 10\ndecay_type = 'cosine'\n"
    found = planned(read, more, 16)
    plan = found.plan
    assert (plan.dp_replicate, plan.dp_shard, plan.tp, plan.zero_stage) == (2, 4, 2, 3)
    assert (plan.sequence_parallel, plan.precision, plan.activation) == (True, "bf16", "full")
    assert (found.batch, found.seq_len, found.planner) == (32, 4096, "torchtitan-eager")
    assert found.flags["lr"] == 3e-4 and found.flags["weight_decay"] == 0.1  # torchtitan's own
    assert (found.flags["warmup"], found.flags["lr_schedule"]) == (10, "cosine")
    assert (found.model.num_hidden_layers, found.model.num_key_value_heads) == (32, 8)


@pytest.mark.parametrize(
    ("components", "compiled"),
    [
        ("", True),
        ("components = ['model', 'loss']", True),
        ("components = ['loss']", False),
        ("components = 5", False),
    ],
)
def test_the_model_is_compiled_where_it_is_among_the_components(read, components, compiled):
    found = planned(read, f"[compile]\nenable = true\n{components}\n")
    assert found.plan.compile is compiled
    assert found.planner == ("torchtitan" if compiled else "torchtitan-eager")


@pytest.mark.parametrize(("name", "flavor"), [("llama3", "8B"), ("llama", "1B")])
def test_a_flavor_has_its_norms_epsilon(read, name, flavor):
    """It was that of transformers' Llama, 1e-6."""
    text = BASE.replace("8B", flavor).replace("llama3", name)
    assert planned(read, "", text=text).model.rms_norm_eps == 1e-5


@pytest.mark.parametrize("flavor", ["8B_flex", "8B_varlen", "debugmodel_flex_attn"])
def test_attention_within_texts_is_said(read, flavor):
    found = planned(read, "", text=BASE.replace("8B", flavor))
    assert any("within each text" in one for one in found.lost)
    assert not any("within each text" in one for one in planned(read, "").lost)


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("norm_type = 'layernorm'", True),
        ("norm_type = 'rmsnorm'", False),
        ("attn_mask_type = 'block_causal'", True),
    ],
)
def test_another_form_of_the_model_is_lost_by_its_name(read, said, lost):
    found = planned(read, "", text=BASE.replace("[model]", f"[model]\n{said}"))
    line = next(one for one in found.lines if one.text.startswith(f"model.{said.split()[0]}"))
    assert bool(line.lost) == lost


def test_keys_of_other_years_say_the_same(read):
    new = planned(read, "[parallelism]\ntensor_parallel_degree = 2\n[compile]\nenable = true\n")
    old_text = BASE.replace("local_batch_size = 4", "batch_size = 4\ntensor_parallel_degree = 2")
    old_text = old_text.replace("steps = 100", "steps = 100\ncompile = true")
    old = planned(read, "[experimental]\npipeline_parallel_degree = 1\n", text=old_text)
    assert old.plan == new.plan and old.batch == new.batch and old.flags == new.flags


def test_two_names_of_one_thing_exclude_each_other(read):
    more = "[compile]\nenable = true\n"
    text = BASE.replace("steps = 100", "steps = 100\ncompile = false")
    found = read(text + more, "run.toml", 8)
    assert found.plan is None and "one thing in two ways" in found.refused


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("[parallelism]\nexpert_parallel_degree = 2\n", "experts"),
        ("[parallelism]\npipeline_parallel_schedule_csv = 'a.csv'\n", "schedule"),
        ("[parallelism]\npipeline_parallel_schedule = 'DualPipeV'\n", "1F1B"),
        ("[parallelism]\ntensor_paralel_degree = 2\n", "tensor_parallel_degree"),
        ("[optimizer]\nname = 'Muon'\n", "AdamW"),
        ("[fault_tolerance]\nenable = true\n", "ranks that come and go"),
        ("[nowhere]\na = 1\n", "torchtitan has no key nowhere.a"),
        ("[parallelism]\ntensor_parallel_degree = -2\n", "whole number of at least 1"),
        ("[parallelism]\ntensor_parallel_degree = 'two'\n", "whole number of at least 1"),
        ("[parallelism]\ntensor_parallel_degree = true\n", "whole number of at least 1"),
        ("[parallelism]\ntensor_parallel_degree = 3\n", "does not divide 8 ranks"),
        ("[parallelism]\ndata_parallel_shard_degree = 4\n", "for 4 ranks, and there are 8"),
        ("[parallelism]\ntensor_parallel_degree = 16\n", "does not divide 8 ranks"),
    ],
)
def test_refusals_name_their_key(read, more, words):
    found = read(BASE + more, "run.toml", 8)
    assert found.plan is None and words in found.refused
    assert len(found.refused.splitlines()) == 1


def test_a_model_of_experts_or_images_is_refused(read):
    for name in ("flux", "deepseek_v3", "llama4"):
        found = read(BASE.replace('"llama3"', f'"{name}"'), "run.toml", 8)
        assert found.plan is None and found.refused.startswith("model.name")


def test_a_pipeline(read):
    more = "[parallelism]\npipeline_parallel_degree = 4\n"
    more += (
        "pipeline_parallel_schedule = 'Interleaved1F1B'\npipeline_parallel_microbatch_size = 2\n"
    )
    plan = planned(read, more).plan
    assert (plan.pp, plan.schedule, plan.virtual_stages) == (4, "interleaved", 2)
    assert (plan.microbatches, plan.zero_stage) == (2, 2)  # parameters are not gathered again
    split = "[experimental]\npipeline_parallel_degree = 2\n"
    split += "pipeline_parallel_split_points = 'layers.10'\n"
    assert planned(read, split).plan.partition == "10,22"


def test_accumulation_by_the_whole_batch(read):
    text = BASE.replace("steps = 100", "steps = 100\nglobal_batch_size = 96")
    found = planned(read, "", text=text)
    assert (found.batch, found.plan.microbatches) == (96, 3)
    text = text.replace("96", "90")
    assert "90 does not divide by 32" in read(text, "run.toml", 8).refused


@pytest.mark.parametrize(
    ("option", "activation", "lost"),
    [('"op"', "selective", 0), ('"1"', "full", 0), ('"2"', "selective", 1)],
)
def test_selective_recomputing(read, option, activation, lost):
    text = BASE.replace('mode = "full"', f'mode = "selective"\nselective_ac_option = {option}')
    found = planned(read, "", text=text)
    assert (found.plan.activation, len(found.lost)) == (activation, lost)


def test_eight_bits(read):
    text = BASE.replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]')
    assert planned(read, "", text=text).plan.precision == "fp8"
    text = BASE.replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["quantize.linear.mx"]')
    assert "MX" in read(text, "run.toml", 8).refused


def test_context_parallelism(read):
    more = "[parallelism]\ncontext_parallel_degree = 4\n"
    plan = planned(read, more).plan
    assert (plan.cp, plan.dp_shard, plan.cp_attention) == (4, 2, "gather")
    more += "context_parallel_rotate_method = 'alltoall'\n"
    assert planned(read, more).plan.cp_attention == "ring"


def test_ranks_are_asked_for_where_the_file_leaves_them_open(read):
    found = read(BASE, "run.toml")
    assert found.plan is None and found.asked == ("ranks",) and "--ranks" in found.refused
    said = read(BASE + "[parallelism]\ndata_parallel_shard_degree = 4\n", "run.toml")
    assert said.plan.world_size == 4


def test_every_key_has_a_line_in_its_place(read):
    found = planned(read, "[parallelism]\ntensor_parallel_degree = 2\n")
    assert [line.text.partition(":")[0] for line in found.lines] == [
        "model.name",
        "model.flavor",
        "training.local_batch_size",
        "training.seq_len",
        "training.steps",
        "activation_checkpoint.mode",
        "parallelism.tensor_parallel_degree",
    ]
    assert [line.place.line for line in found.lines] == [3, 4, 6, 7, 8, 10, 12]


def named(name, flavor, more=""):
    text = BASE.replace('name = "llama3"', f'name = "{name}"')
    return text.replace('flavor = "8B"', f'flavor = "{flavor}"\n{more}')


@pytest.mark.parametrize(
    ("name", "flavor", "layers", "vocab", "theta"),
    [
        ("llama", "70B", 80, 32000, 1e4),
        ("llama", "7B", 32, 32000, 1e4),
        ("llama", "13B", 40, 32000, 1e4),
        ("llama", "debugmodel", 2, 32000, 1e4),
        ("llama2", "26B", 80, 32000, 1e4),
        ("llama3", "70B", 80, 128256, 5e5),
    ],
)
def test_llama_without_a_number_is_llama_2(read, name, flavor, layers, vocab, theta):
    """It came out as Llama 3.1: the name is of the months before both had numbers."""
    model = planned(read, "", text=named(name, flavor)).model
    assert (model.num_hidden_layers, model.vocab_size) == (layers, vocab)
    assert model.rope_parameters["rope_theta"] == theta


def test_a_debug_model_is_of_its_year(read):
    """It had 2, 8 and 6 layers; only the last edition's files show which it is."""
    found = planned(read, "", text=named("llama3", "debugmodel"))
    assert found.model is None and "others before files had model.hf_assets_path" in found.lacks
    text = named("llama3", "debugmodel", 'hf_assets_path = "./tests/assets/tokenizer"')
    assert planned(read, "", text=text).model.num_hidden_layers == 6


@pytest.mark.parametrize("flavor", ["debugmodel_moe", "30B-A3B", "235B-A22B"])
def test_flavors_of_experts_are_refused(read, flavor):
    found = read(named("qwen3", flavor), "run.toml", 8)
    assert found.plan is None and "its layers are experts" in found.refused
    assert found.refused.startswith(f"model.flavor: qwen3 {flavor}")


def test_a_flavor_of_one_s_own_has_a_plan_and_no_sizes(read):
    found = planned(read, "", text=named("qwen3", "500M"))
    assert found.model is None and "qwen3 '500M', but of debugmodel, 0.6B" in found.lacks
    assert "debugmodel_moe" not in found.lacks
    assert found.lacks in report(found) and "give --model" in report(found)


def test_a_debug_model_is_not_the_model_that_it_is_named_after(read):
    text = named("transformers_modeling_backend", "debugmodel")
    more = '[hf_transformers]\nmodel = "Qwen/Qwen3-4B-Instruct-2507"\n'
    assert "two layers" in read(text + more, "run.toml", 8).refused
    assert planned(read, more, text=text.replace('"debugmodel"', '"full"')).hub.startswith("Qwen/")


@pytest.mark.parametrize(
    ("more", "want"),
    [
        ("[experimental]\npipeline_parallel_degree = 2\n", 2),
        (
            "[experimental]\npipeline_parallel_degree = 2\n"
            "pipeline_parallel_schedule = 'Interleaved1F1B'\n",
            4,
        ),
        ("[experimental]\npipeline_parallel_degree = 2\npipeline_parallel_microbatches = 1\n", 1),
        ("[parallelism]\npipeline_parallel_degree = 2\n", 4),
    ],
)
def test_a_pipelines_micro_batches_are_those_of_its_year(read, more, want):
    """As many as stages where the keys are experimental; of one sample each since 2025-04."""
    assert planned(read, more).plan.microbatches == want


@pytest.mark.parametrize(
    ("axis", "ranks", "want"),
    [
        ("tensor_parallel_degree", 2, "fp32"),
        ("pipeline_parallel_degree", 2, "fp32"),
        ("tensor_parallel_degree", 4, "bf16"),
        ("context_parallel_degree", 2, "bf16"),
        ("data_parallel_replicate_degree", 2, "bf16"),
    ],
)
def test_without_fsdp_no_precision_is_mixed_beside_tp_and_pp(read, axis, ranks, want):
    found = planned(read, f"[parallelism]\n{axis} = 2\n", ranks)
    assert found.plan.precision == want
    assert any("mixed precision" in one for one in found.lost) == (want == "fp32")
