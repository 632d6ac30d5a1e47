"""The preflight: the right profile for a machine, as data that the launcher can take."""

import dataclasses

import pytest

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.lab.machine.hardware import Device, Machine
from helpers.lab.notebook.preflight import preflight
from helpers.lab.notebook.run_profile import NOT_SHOWN, PROFILES, Profile
from helpers.lab.paths import ROOT
from helpers.planner.cost import parameters, state_bytes, tensor_parallel_share
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.shape.families import model_shape

pytest.importorskip("pandas")


def machine(*gpu_gb: float) -> Machine:
    devices = tuple(Device("some GPU", int(gb * 1e9)) for gb in gpu_gb)
    return Machine(devices, 8, 32 * 10**9, 100 * 10**9)


def every_profile() -> list[Profile]:
    named = [profile for profiles in PROFILES.values() for profile in profiles.values()]
    return named + [profile.larger for profile in named if profile.larger]


@pytest.mark.parametrize(
    ("gpus", "name", "tp"),
    [
        ((), "tiny", 2),
        ((8,), "tiny", 2),  # a GPU too small for the larger run
        ((80,), "single_gpu", 2),
        ((42,) * 2, "multi_gpu", 2),
        ((42,) * 3, "multi_gpu", 2),  # three do not divide the heads
        ((42,) * 8, "multi_gpu", 8),
        ((42,) * 16, "multi_gpu", 8),
    ],
)
def test_auto_takes_the_largest_that_fits(gpus, name, tp):
    record = preflight(1, machine=machine(*gpus), show=False)
    assert (record.profile.name, record.profile.tp, record.profile.nproc) == (name, tp, tp)
    assert record.not_shown and record.reason


@pytest.mark.parametrize(
    ("gpus", "name", "pp"),
    [
        ((), "tiny", 2),
        ((80,), "tiny", 2),  # NCCL wants a GPU a rank
        ((42,) * 3, "multi_gpu", 2),
        ((42,) * 8, "multi_gpu", 8),
        ((42,) * 16, "multi_gpu", 8),
    ],
)
def test_a_pipeline_has_as_many_ranks_as_there_are_gpus(gpus, name, pp):
    profile = preflight(2, machine=machine(*gpus), show=False).profile
    assert (profile.name, profile.pp, profile.nproc) == (name, pp, pp)
    assert profile.flags()["pp"] == pp and "pp" not in profile.flags(pp=1)
    assert len(gpus) < 16 or profile.larger.flags()["pp"] == 8


@pytest.mark.parametrize(
    ("gpus", "name", "dp_shard"),
    [
        ((), "tiny", 4),
        ((80,) * 3, "tiny", 4),
        ((80,) * 4, "multi_gpu", 4),
        ((80,) * 9, "multi_gpu", 8),
    ],
)
def test_shards_want_four_gpus(gpus, name, dp_shard):
    profile = preflight(5, machine=machine(*gpus), show=False).profile
    assert (profile.name, profile.dp_shard, profile.nproc) == (name, dp_shard, dp_shard)
    assert profile.flags()["dp_shard"] == dp_shard


def test_the_whole_model_is_run_only_where_its_state_fits():
    assert preflight(1, machine=machine(*[42] * 8), show=False).profile.larger.model == "gptj-6b"
    # 6.05 billion x 16 bytes over 2 GPUs is 48 GB on each
    assert preflight(1, machine=machine(42, 42), show=False).profile.larger is None
    assert preflight(1, machine=machine(84, 84), show=False).profile.larger.tp == 2


def test_tiny_ranks_are_kept_off_the_gpus():
    flags = preflight(1, "tiny", machine=machine(80), show=False).profile.flags()
    assert flags["env"] == {"CUDA_VISIBLE_DEVICES": ""}
    assert "env" not in preflight(1, machine=machine(80, 80), show=False).profile.flags()


def test_runs_on_gpus_are_in_16_bits():
    """bf16, or fp16 where one of the GPUs has no bf16. Ranks on the processor stay in float32."""
    new, old = Device("a GPU", 10**11), Device("a T4", 10**11, has_bf16=False)
    for gpus, precision in (((new, new), "bf16"), ((new, old), "fp16")):
        here = Machine(gpus, 8, 32 * 10**9, 100 * 10**9)
        for notebook in (1, 2):
            profile = preflight(notebook, machine=here, show=False).profile
            for one in (profile, profile.larger):
                assert one.flags()["precision"] == one.plan.precision == precision
                assert one.state == "half"
        assert preflight(3, machine=here, show=False).profile.precision == precision
        tiny = preflight(1, "tiny", machine=here, show=False).profile
        assert "precision" not in tiny.flags() and tiny.state == "fp32"


def test_the_state_of_a_profile_is_what_the_engine_holds():
    for precision in ("fp32", "bf16", "fp16"):
        profile = dataclasses.replace(PROFILES[1]["tiny"], precision=precision)
        held = tensor_parallel_share(profile.shape, profile.tp).total
        run = dry_run(profile.config, profile.plan, batch=4, seq_len=16)
        assert sum(run.states.values()) == state_bytes(held, profile.state).total


def test_flags_are_the_training_scripts_own():
    """Every flag but the launcher's own is an option of helpers.train."""
    script = (ROOT / "helpers" / "train" / "arguments.py").read_text()
    of_the_plan = {field.name for field in dataclasses.fields(ParallelPlan)}
    for profile in every_profile():
        flags = profile.flags()
        assert profile.flags(tp=1, pp=1, cp=1, dp_shard=1)["nproc"] == 1
        for name in set(flags) - {"nproc", "env"} - of_the_plan:
            assert f'"--{name.replace("_", "-")}"' in script, name
        assert None not in flags.values()


@pytest.mark.parametrize("profile", every_profile(), ids=lambda profile: profile.name)
def test_profiles_state_their_models_own_size(profile):
    pytest.importorskip("transformers")
    from helpers.engine.models.configurations import load_config

    config = load_config(
        profile.model,
        num_hidden_layers=profile.layers,
        hidden_size=profile.hidden,
        num_attention_heads=profile.heads,
    )
    assert parameters(model_shape(config)) == profile.parameters
    assert config.num_attention_heads % profile.tp == 0
    assert profile.pp == 1 or config.num_hidden_layers >= 2 * profile.pp  # interleaved runs too
    assert profile.seq_len <= config.max_position_embeddings
    assert (ROOT / profile.data).is_file()


def test_everything_that_is_not_shown_has_words():
    named = {name for profile in every_profile() for name in profile.not_shown}
    assert named == set(NOT_SHOWN)


def test_changes_replace_fields_and_none_leaves_them():
    profile = preflight(1, machine=machine(), show=False, steps=7, lr=None).profile
    assert (profile.steps, profile.lr) == (7, PROFILES[1]["tiny"].lr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"notebook": 99}, r"notebook 99 has no profiles; there are: \[0, 1"),
        ({"notebook": 1, "profile": "huge"}, "unknown profile 'huge'; notebook 1 has: auto, tiny"),
        (
            {"notebook": 1, "profile": "multi_gpu"},
            "needs at least 2 GPUs, each with .* use profile='auto'",
        ),
        ({"notebook": 1, "model": "gpt2"}, "not 'model'"),
        (
            {"notebook": 1, "profile": "tiny", "tp": 3},
            "tp=3 does not divide GPT-J's 4 attention heads",
        ),
        (
            {"notebook": 1, "profile": "tiny", "tp": -2},
            "tp must be a whole number of at least 1, not -2",
        ),
        (
            {"notebook": 1, "profile": "tiny", "steps": -5},
            "steps must be a whole number of at least 1, not -5",
        ),
        (
            {"notebook": 1, "profile": "tiny", "steps": 2.5},
            "steps must be a whole number of at least 1, not 2.5",
        ),
        ({"notebook": 3, "profile": "tiny", "steps": 3}, "steps is 3: a notebook's runs take at"),
        ({"notebook": 2, "profile": "tiny", "pp": 20}, "20 stages are too many"),
        (
            {"notebook": 2, "profile": "tiny", "microbatches": 1000},
            "microbatches is 1000: a rank's",
        ),
        (
            {"notebook": 4, "profile": "tiny", "positive": {"rank": 0}},
            "rank is 0: it must be a number above 0",
        ),
        (
            {"notebook": 1, "profile": "tiny", "positive": {"price_per_hour": float("nan")}},
            "price_per_hour is nan",
        ),
        (
            {"notebook": 1, "profile": "tiny", "positive": {"price_per_hour": "abc"}},
            "price_per_hour is 'abc': it must be a number above 0",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments, words):
    with pytest.raises(UserError, match=words) as caught:
        preflight(**arguments, machine=machine(), show=False)
    assert "\n" not in str(caught.value)


def test_the_table_says_what_is_not_shown(capsys):
    preflight(1, machine=machine())
    text = capsys.readouterr().out
    assert text.startswith("Preflight of notebook 1")
    assert "no GPU, 8 CPU cores" in text and "illustrative" in text
