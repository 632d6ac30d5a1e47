"""The comparison of runs: what it computes, and each published mistake that it refuses."""

import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.planner.published.equal_work import Difference, Work, check_equal, differences
from helpers.planner.published.speed_claims import Claim, claim, side_by_side

pd = pytest.importorskip("pandas")
from helpers.lab.comparison import plots as figures  # noqa: E402
from helpers.lab.comparison.measures import curve, steady_s, work_of  # noqa: E402
from helpers.lab.comparison.sides import compare_runs, launch_in_turn  # noqa: E402
from helpers.lab.figures import display as show  # noqa: E402
from helpers.lab.runs.run import load_run  # noqa: E402
from tests.lab.comparison.finished_runs import STEP_S, write_run  # noqa: E402
from tests.lab.figures.test_figures import text_of  # noqa: E402

COMPILED = {"compile_s": 10.0, "step_s": STEP_S / 2}


@pytest.fixture
def write(tmp_path):
    return lambda name, **what: write_run(tmp_path / name, **what)


@pytest.fixture
def sides(write):
    """Three repeats of each, in turn; compiled steps take half the time after 10 s of compiling."""
    native = [write(f"native-{i}", seed=i, ended=10.0 * i) for i in range(3)]
    compiled = [write(f"compiled-{i}", seed=i, ended=10.0 * i + 5, **COMPILED) for i in range(3)]
    return {"native": native, "compiled": compiled}


# --- the published mistakes --------------------------------------------------------------------


def test_unequal_samples_are_refused(write):
    sides = {"native": [write("a", steps=48)], "compiled": [write("b", steps=32, **COMPILED)]}
    with pytest.raises(UserError, match="did not do the same work: samples 384 against 256") as e:
        compare_runs(sides)
    assert "\n" not in str(e.value)


def test_unequal_optimizer_steps_are_refused_though_samples_are_equal(write):
    """Twice the batch: the same samples in half the optimizer steps, as if that were one run."""
    sides = {
        "native": [write("a", steps=40, batch=8)],
        "compiled": [write("b", steps=20, batch=16, **COMPILED)],
    }
    for at in ("samples", "steps"):
        with pytest.raises(UserError, match="steps 40 against 20, batch 8 against 16;"):
            compare_runs(sides, at=at)
    found = compare_runs(sides, allow=["steps", "batch"])  # told to: and it is stated
    assert "they differ in steps 40 against 20, batch 8 against 16" in found.sentence
    assert found.sentence.startswith("At 320 samples each")


def test_dropped_remainders_are_refused_and_counted(write):
    """1588 rows per epoch: 3 batches of 512 leave out 52 of them, one batch of 1024 leaves 564."""
    rows = {"dataset_samples": 1588, "epochs": 1}
    sides = {
        "native": [write("a", steps=3, batch=512, **rows)],
        "compiled": [write("b", steps=1, batch=1024, **COMPILED, **rows)],
    }
    with pytest.raises(UserError, match="dropped 52 against 564"):
        compare_runs(sides, allow=["samples", "steps", "tokens", "batch"])
    whole = load_run(write("c", steps=4, batch=512, last=52, **rows))
    assert work_of(whole).dropped == 0
    some = load_run(write("d", steps=2, batch=512, dataset_samples=1588, epochs=1, lr=1))
    assert work_of(some).dropped == 564


def test_two_meanings_of_faster_are_refused(sides):
    """The bar chart said 53 % of the rate, the line below it 34 % of the time; both are 1.53."""
    bar, line = Claim(53.09, "rate", "training"), Claim(34.68, "time", "training")
    with pytest.raises(UserError, match='two meanings of "faster"') as caught:
        side_by_side({"the chart": bar, "the print": line})
    assert "53.1 % more in the same time (training)" in str(caught.value)
    assert side_by_side({"the chart": bar, "the print": line.as_("rate")}) == {
        "the chart": pytest.approx(1.531, abs=1e-3),
        "the print": pytest.approx(1.531, abs=1e-3),
    }
    with pytest.raises(UserError, match="two clocks"):
        side_by_side({"a": bar, "b": Claim(20, "rate", "billed")})
    alone = compare_runs({name: runs[0] for name, runs in sides.items()})
    assert alone.sentence == compare_runs({name: runs[:1] for name, runs in sides.items()}).sentence
    with pytest.raises(UserError, match="clock is one of training, with compile, billed"):
        alone.ratios("compiled", "wall")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 1}, "seed 0 against 1"),
        ({"data": "others.tsv"}, "data reviews.tsv against others.tsv"),
        ({"seq_len": 32}, "seq_len 64 against 32"),
    ],
)
def test_another_data_set_seed_or_length_is_refused(changed, words, write):
    sides = {"native": [write("a")], "compiled": [write("b", **COMPILED, **changed)]}
    with pytest.raises(UserError, match=words):
        compare_runs(sides)


def test_two_things_at_once_are_refused(write):
    sides = {"native": [write("a")], "compiled": [write("b", lr=2e-3, **COMPILED)]}
    with pytest.raises(UserError, match=r"differ in 2 things: lr .* against .*, compile False"):
        compare_runs(sides)
    assert "lr 0.001 against 0.002" in compare_runs(sides, allow=["lr"]).sentence


@pytest.mark.parametrize(
    ("other", "words"),
    [(0.0014142135623730952, "lr 0.001 against 0.001414"), (0.0010000001, "against 0.0010000001")],
)
def test_numbers_have_the_digits_that_tell_them_apart(other: float, words: str) -> None:
    assert words in str(Difference("lr", 0.001, other))


def test_what_is_wrong_in_a_later_repeat_is_found(write):
    sides = {
        "native": [write("a0", ended=1), write("a1", seed=1, ended=3)],
        "compiled": [write("b0", ended=2, **COMPILED), write("b1", seed=2, ended=4, **COMPILED)],
    }
    with pytest.raises(UserError, match="seed 1 against 2"):
        compare_runs(sides)
    sides["compiled"][1] = write("b2", seed=1, steps=41, **COMPILED)
    with pytest.raises(UserError, match="run 2 of compiled is no repeat of the first: samples 320"):
        compare_runs(sides)
    sides["compiled"].pop()
    with pytest.raises(UserError, match="same number of runs, at least one: native 2, compiled 1"):
        compare_runs(sides)


def test_runs_one_side_after_the_other_are_refused(sides):
    folders = [*sides["native"], *sides["compiled"]]
    for time, folder in enumerate(folders):
        os.utime(folder / "summary.json", (time, time))
    with pytest.raises(UserError, match="run them in turn"):
        compare_runs(sides)
    assert compare_runs(sides, allow=["order"])


def test_steps_that_hold_compile_time_are_refused(write):
    folder = write("a", compile_s=10.0, first_step_s=10.5)
    summary = json.loads((folder / "summary.json").read_text())
    summary["phases_s"]["train"] -= 10.0  # counted in its own phase, and in the first step again
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match="took 30 s, its phase train 20 s: a step must not hold"):
        compare_runs({"native": [write("b")], "compiled": [folder]}).bill  # noqa: B018


# --- what comes out ----------------------------------------------------------------------------


def test_speed_is_of_steady_steps_and_of_all_with_compiling(sides):
    found = compare_runs(sides, price_per_hour=3600.0)
    row = found.speed.loc["compiled"]
    assert found.speed.loc["native", "samples/s"] == pytest.approx(16)
    assert row["samples/s"] == pytest.approx(32)
    assert row["with compile"] == pytest.approx(320 / 20)
    assert row["times as fast, training"] == pytest.approx(2)
    assert row["times as fast, with compile"] == pytest.approx(1)
    assert row["times as fast, billed"] == pytest.approx(28 / 28)
    assert found.bill.loc["compiled"].to_dict() == {
        "before": 6.0,
        "compile": 10.0,
        "train": 10.0,
        "rest": 2.0,
        "billed": 28.0,
        "cost": 28.0,
    }
    assert "2.00 times as fast as native (2.00 to 2.00 over 3 repeats), 1.00 with" in found.sentence
    assert "differ in compile False against True" in found.sentence
    assert found.work.loc["compiled", "not as native"] == "compile False against True"


def test_a_layouts_check_is_before_training(write):
    """`check=always` takes seconds that end when training begins: they are paid before any loss."""
    bills = {}
    for check_s in (0.0, 5.0):
        sides = {name: [write(f"{name}-{check_s}", check_s=check_s)] for name in ("a", "b")}
        found = compare_runs(sides, at="loss")
        bills[check_s] = found.bill.loc["a"], found.to_target.loc["a", "billed s"]
    (plain, plain_s), (checked, checked_s) = bills.values()
    assert checked["before"] - plain["before"] == checked_s - plain_s == 5.0
    assert checked["rest"] == plain["rest"] == 2.0


def test_ratios_are_taken_seed_by_seed(write):
    """A slow hour meets both sides of a round: the ratio does not see it."""
    sides = {
        "native": [write(f"a{i}", seed=i, step_s=STEP_S * (1 + i), ended=2 * i) for i in range(3)],
        "compiled": [
            write(f"b{i}", seed=i, step_s=STEP_S * (1 + i) / 2, compile_s=1, ended=2 * i + 1)
            for i in range(3)
        ],
    }
    assert compare_runs(sides).ratios("compiled", "training") == pytest.approx([2, 2, 2])


def test_break_even_is_where_both_have_taken_the_same_time(sides):
    row = compare_runs(sides).break_even.loc["compiled"]
    assert row["samples"] == pytest.approx(10.0 / (1 / 16 - 1 / 32))
    assert row["seconds"] == pytest.approx(row["samples"] / 16)
    assert 10.0 + row["samples"] / 32 == pytest.approx(row["seconds"])


def test_a_compiler_that_gains_nothing_is_never_paid_back(write):
    sides = {"native": [write("a")], "compiled": [write("b", compile_s=10.0)]}
    found = compare_runs(sides)
    assert found.break_even["samples"].isna().all()
    assert "never paid back" in figures.plot_break_even(found)[2]


def test_equal_loss_is_reached_in_different_samples(write):
    """Twice the batch at half the descent a sample: faster steps, but no faster to the loss."""
    sides = {
        "native": [write("a", steps=40)],
        "large batch": [write("b", steps=40, batch=16, falls=0.001, step_s=2 * STEP_S)],
    }
    found = compare_runs(sides, at="loss", allow=["batch"], target_loss=2.7)
    table = found.to_target
    assert table.loc["large batch", "samples"] == pytest.approx(
        2 * table.loc["native", "samples"], rel=0.06
    )
    assert found.ratios("large batch", "training") == pytest.approx([0.5], rel=0.06)
    assert found.sentence.startswith("To a loss of 2.7, large batch is 0.5")
    assert "samples" not in found.sentence  # how many it took is the result, not a mistake
    with pytest.raises(UserError, match="/a does not reach a loss of 1: its lowest is 2"):
        compare_runs(sides, at="loss", allow=["batch"], target_loss=1.0)
    with pytest.raises(UserError, match="batch 8 against 16"):
        compare_runs(sides, at="loss")


def test_a_worse_loss_is_in_the_sentence(write):
    sides = {"native": [write("a")], "compiled": [write("b", falls=0.001, **COMPILED)]}
    assert "at a loss 0.31 higher" in compare_runs(sides).sentence


def test_allowed_unequal_samples_are_compared_a_sample(write):
    sides = {"native": [write("a")], "compiled": [write("b", steps=80, **COMPILED)]}
    found = compare_runs(sides, allow=["samples", "steps", "tokens"])
    assert found.sentence.startswith("For one sample, compiled is 2.00 times")
    assert found.ratios("compiled", "with compile") == pytest.approx([20 / 320 / (30 / 640)])


def test_sides_of_one_folder_are_refused_before_the_first_run(tmp_path):
    with pytest.raises(UserError, match="two of the sides a b, a-b would have one folder"):
        launch_in_turn("scripts/train.py", {"a b": {}, "a-b": {"compile": True}}, out=tmp_path)
    assert not any(tmp_path.iterdir())


def test_unknown_words_are_refused(sides):
    with pytest.raises(UserError, match="at is one of samples, steps, loss, not 'epochs'"):
        compare_runs(sides, at="epochs")
    with pytest.raises(UserError, match="two sides or more"):
        compare_runs({"native": sides["native"]})


@settings(deadline=None)  # it writes files, on a disk that others use
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    window=st.integers(1, 100),
)
def test_the_smoothed_loss_is_the_mean_over_the_last_samples(sizes, window, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    losses = [(7 * i) % 5 + 0.5 for i in range(len(sizes))]
    lines = [
        {"step": i, "loss": x, "samples": n, "step_s": 1.0}
        for i, (x, n) in enumerate(zip(losses, sizes))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = curve(load_run(folder), window)["loss"]
    for i in range(len(sizes)):
        first = i  # whole steps, until they hold the window
        while first > 0 and sum(sizes[first : i + 1]) < window:
            first -= 1
        taken = list(zip(losses, sizes))[first : i + 1]
        mean = sum(x * n for x, n in taken) / sum(n for _, n in taken)
        assert found[i] == pytest.approx(mean)


def test_a_step_without_a_loss_has_no_part_in_the_mean(write):
    """Three steps are a window; with the second skipped the mean is that of the others."""
    folder = write("a", steps=4)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def found(losses: list) -> list[float]:
        told = ({**line, "loss": loss} for line, loss in zip(lines, losses))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
        return curve(load_run(folder), window=24)["loss"].tolist()

    assert found([4.0, None, 3.0, 2.0]) == [4.0, 4.0, 3.5, 2.5]
    with pytest.raises(UserError, match="has a loss that is a number"):
        found([None] * 4)


def test_settings_are_the_launchs_flags_where_the_summary_has_none(write):
    folder = write("a")
    summary = json.loads((folder / "summary.json").read_text())
    del summary["settings"]
    (folder / "summary.json").write_text(json.dumps(summary))
    launched = json.loads((folder / "launch.json").read_text())
    launched["flags"] = {"lr": 0.001, "save": True, "steps": 40, "out": "runs/a"}
    (folder / "launch.json").write_text(json.dumps(launched))
    settings = work_of(load_run(folder)).settings
    assert (settings["lr"], settings["save"], settings["model"]) == (0.001, True, "gpt2-tiny")
    assert not {"steps", "out"} & set(settings)


def test_warm_up_is_no_part_of_the_steady_state(write):
    run = load_run(write("a", first_step_s=30.0))
    assert steady_s(run, "steps") == STEP_S
    assert steady_s(run, "samples") == STEP_S / 8


@given(ratio=st.floats(0.01, 100), meaning=st.sampled_from(["rate", "time"]))
def test_a_claim_says_the_same_in_both_meanings(ratio, meaning):
    made = claim(ratio, meaning, "training")
    assert made.ratio == pytest.approx(ratio)
    assert made.as_("time").as_("rate").ratio == pytest.approx(ratio)


def test_claims_that_cannot_be():
    for percent, meaning, words in (
        (100, "time", "100 % .* cannot be"),
        (-100, "rate", "-100 % .* cannot be"),
        (5, "speed", "meaning is one of"),
        ("5", "rate", "percent must be a number, not '5'"),
    ):
        with pytest.raises(UserError, match=words):
            Claim(percent, meaning, "training")
    for ratio in (0.0, "1.5"):
        with pytest.raises(UserError, match="above 0"):
            claim(ratio, "rate", "training")
    with pytest.raises(UserError, match="give claims by name"):
        side_by_side({})


works = st.builds(
    Work,
    samples=st.integers(1, 3),
    steps=st.integers(1, 3),
    batch=st.integers(1, 3),
    asked=st.none() | st.integers(3, 4),
    settings=st.dictionaries(st.sampled_from(["seed", "lr", "compile"]), st.integers(0, 1)),
)


@given(first=works, other=works)
def test_unequal_work_never_passes_unless_allowed(first, other):
    found = [d.name for d in differences(first, other)]
    assert sorted(found) == sorted(d.name for d in differences(other, first))
    assert check_equal("a", first, "a", first, "samples") == []
    check_equal("a", first, "b", other, "samples", allow=found)
    if {"samples", "steps", "batch", "seed"} & set(found) or len(found) > 1:
        with pytest.raises(UserError, match="|".join(found)):
            check_equal("a", first, "b", other, "samples")


# --- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plot", "said", "seen"),
    [
        (figures.plot_speeds, "predicts no GPU", "all steps and compiling"),
        (figures.plot_losses, "reached by native after 320 and compiled after 320 samples", "loss"),
        (lambda c: figures.plot_losses(c, "seconds"), "compiled after 20 seconds", "compiled"),
        (figures.plot_times, "compiled trains for 10 s of 28 s", "start, load and check"),
        (figures.plot_costs, "native costs 0.00778 dollars", "cost of the run"),
        (
            figures.plot_break_even,
            "10 s more and has gained that back after 320 samples",
            "samples",
        ),
    ],
)
def test_every_plot_has_its_table_and_sentence(plot, said, seen, sides):
    pytest.importorskip("matplotlib")
    fig, table, sentence = plot(compare_runs(sides, price_per_hour=1.0))
    assert said in sentence and sentence.endswith(".")
    assert any(seen in text for text in text_of(fig))
    assert {"compiled"} <= set(table.index)
    assert show.png(fig, "alt").startswith(b"\x89PNG")


def test_a_plot_of_cost_needs_a_price(sides):
    with pytest.raises(UserError, match="give price_per_hour"):
        figures.plot_costs(compare_runs(sides))
    with pytest.raises(UserError, match="against is samples or seconds"):
        figures.plot_losses(compare_runs(sides), "epochs")


# --- real runs ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_runs_in_turn(tmp_path, warm):
    """Two real sides that differ in one thing, which changes no sum."""
    pytest.importorskip("transformers")
    tiny = {"model": "gpt2-tiny", "layers": 2, "hidden": 32, "heads": 2, "seq_len": 32}
    sides = launch_in_turn(
        "scripts/train.py",
        {"keeping": {}, "recomputing": {"activation": "full"}},
        repeats=2,
        out=tmp_path,
        ranks=warm,
        show=False,
        steps=6,
        batch_size=8,
        **tiny,
    )
    ended = sorted(
        ((run.path / "summary.json").stat().st_mtime_ns, run.path.name)
        for runs in sides.values()
        for run in runs
    )
    order = [name for _, name in ended]
    assert order == ["keeping-0", "recomputing-0", "recomputing-1", "keeping-1"]
    found = compare_runs(sides)
    assert abs(found.speed["loss"].diff().iloc[1]) < 1e-4
    assert found.work["samples"].tolist() == [48, 48]
    assert found.sentence.endswith("they differ in activation none against full.")
    with pytest.raises(UserError, match="seed 0 against 1"):
        compare_runs({"first": sides["keeping"][:1], "second": sides["keeping"][1:]})


@pytest.mark.parametrize("value", [None, "3", [], True, -1, 0, math.inf, math.nan, 10**400])
@pytest.mark.parametrize("name", ["samples", "step_s"])
def test_steps_that_cannot_be_are_not_compared(name, value, write):
    folder, other = write("a"), write("b", **COMPILED)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[3][name] = value
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for sides in ({"a": folder, "b": other}, {"b": other, "a": folder}):
        with pytest.raises(UserError, match=f"metrics.jsonl, row 4 has {name} .*, which no step"):
            compare_runs(sides)


@pytest.mark.parametrize("name", ["plan", "versions", "settings"])
@pytest.mark.parametrize("value", ["x", 3, [1]])
def test_settings_without_names_are_one_line(name, value, write):
    folder = write("a")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {name: value}))
    with pytest.raises(UserError, match=f"summary.json has no {name} by name"):
        work_of(load_run(folder))
