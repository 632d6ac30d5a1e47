"""A finished run as tables, and folders that are not one."""

import json
import math
from pathlib import Path

import pytest

from helpers.engine.errors import UserError
from helpers.engine.files.run_record import warmup_steps
from helpers.lab.runs.run import compare, load_run
from tests.lab.comparison.finished_runs import PHASES, write_speeds


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_speeds(tmp_path / "run", [1.0] * 2 + [100.0] * 18)


def test_every_second_is_in_the_table_and_on_the_bill(folder):
    run = load_run(folder)
    phases = run.phases
    assert list(phases.index) == ["torchrun", *PHASES, "rest", "total"]
    assert phases.loc["total", "seconds"] == run.wall_s == 20.0
    assert phases.loc["rest", "seconds"] == pytest.approx(0.5)
    assert phases.loc["train", "share"] == pytest.approx(0.5)
    assert phases["seconds"][:-1].sum() == pytest.approx(20.0)
    cost = run.cost(price_per_hour=36.0)  # a cent a second, a million tokens
    assert cost.loc["total", "cost"] == pytest.approx(0.20)
    assert cost.loc["train", "cost"] == pytest.approx(0.10)
    assert cost.loc["total", "cost_per_million_tokens"] == pytest.approx(0.20)
    with pytest.raises(UserError, match="price_per_hour is -1"):
        run.cost(-1)


def test_a_run_started_by_hand_has_only_its_own_phases(tmp_path):
    run = load_run(write_speeds(tmp_path / "run", [1.0], launch=False))
    assert list(run.phases.index) == [*PHASES, "total"]
    assert run.phases.loc["total", "seconds"] == sum(PHASES.values())
    assert run.wall_s is None and "launched by hand" in repr(run)
    with pytest.raises(UserError, match="not started by launch"):
        run.log()


def test_runs_are_compared_without_their_warmup(folder, tmp_path):
    assert warmup_steps(20) == 2
    fast = write_speeds(tmp_path / "fast", [1.0] * 2 + [200.0] * 17 + [220.0])
    table = compare({"one rank": load_run(folder), "two ranks": load_run(fast)})
    assert list(table.index) == ["one rank", "two ranks"]
    assert list(table["tokens_per_s"]) == [100.0, 200.0]
    assert list(table["relative"]) == [1.0, 2.0]
    assert list(table["p10"]) == list(table["p90"]) == [100.0, 200.0]
    back = compare({"two ranks": load_run(fast), "one rank": load_run(folder)})
    assert list(back["relative"]) == [1.0, 0.5]


def test_a_step_without_a_speed_is_left_out(tmp_path):
    path = write_speeds(tmp_path / "run", [1.0] * 2 + [None] * 9 + [100.0] * 9)
    row = compare({"run": load_run(path)}).loc["run"]
    assert row["p10"] == row["tokens_per_s"] == 100 and row["steps"] == 20


def test_a_last_line_that_was_cut_off_is_left_out_and_said(folder, capsys):
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text() + '{"step": 21, "lo')
    run = load_run(folder)
    for _ in range(2):  # read once, and said once
        assert len(run.metrics) == 20
    [note] = capsys.readouterr().out.splitlines()
    assert note.endswith("metrics.jsonl is cut off and was left out")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("metrics.jsonl", '{"step": 1}\nnonsense\n{"step": 3}\n', r"metrics.jsonl, line 2 is not"),
        ("metrics.jsonl", "[1]\n", r"metrics.jsonl, line 1 is not"),
        ("metrics.jsonl", "[" * 100_000 + "\n", r"metrics.jsonl, line 1 is not"),
        ("metrics.jsonl", '{"step": 1}\n', r"metrics.jsonl has no tokens_per_s"),
        ("metrics.jsonl", None, "there is no .*metrics.jsonl: the run did not get that far"),
        ("summary.json", None, "there is no .*summary.json: the run did not get that far"),
        ("summary.json", "{", r"summary.json cannot be read"),
        ("summary.json", "[]", r"summary.json is not a JSON object"),
        ("summary.json", "{}", r"summary.json has no phases_s"),
        ("summary.json", '{"phases_s": {"train": "x"}}', r"summary.json has no phases_s"),
        ("launch.json", '{"command": ', r"launch.json cannot be read"),
    ],
)
def test_a_broken_file_is_one_line(file, content, words, folder):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(UserError, match=words) as caught:
        run = load_run(folder)
        compare({"run": run})
        run.cost(1.0)
    assert "\n" not in str(caught.value)


def test_of_no_run_there_is_nothing_to_compare():
    with pytest.raises(UserError, match="to compare takes at least one run"):
        compare({})


@pytest.mark.parametrize("content", ["{}", '{"findings": 3}', '{"findings": [3]}'])
def test_broken_findings_are_one_line(content, folder):
    (folder / "findings.json").write_text(content)
    with pytest.raises(UserError, match=r"findings\.json has no list of findings$"):
        _ = load_run(folder).findings


def test_folders_without_a_run(tmp_path):
    with pytest.raises(UserError, match="there is no run folder"):
        load_run(tmp_path / "none")
    with pytest.raises(UserError, match="holds no run"):
        load_run(tmp_path)


def test_a_run_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_speeds(tmp_path / "run", [1.0], launch=False)
    assert load_run("~/run").path == tmp_path / "run"


def rewritten(folder: Path, change) -> Path:
    """The run with other lines of metrics: `change` gives them from those that there are."""
    file = folder / "metrics.jsonl"
    lines = change([json.loads(line) for line in file.read_text().splitlines()])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("value", [None, "3", "x", [], {}, True, -1, math.inf, math.nan, 10**400])
@pytest.mark.parametrize("rows", [slice(5, 6), slice(None)])
def test_what_no_step_counts_is_one_line(value, rows, folder):
    def change(lines):
        return [line | ({"tokens": value} if line in lines[rows] else {}) for line in lines]

    run = load_run(rewritten(folder, change))
    with pytest.raises(UserError, match=r"row [16] has tokens .*, which no step has") as e:
        run.cost(1.0)
    assert "\n" not in str(e.value) and len(str(e.value)) < 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines + lines, "has step 1 after step 20"),
        (lambda lines: lines + lines[12:], "has step 13 after step 20"),
        (lambda lines: lines[:9] + lines[8:], "has step 9 after step 9"),
        (lambda lines: lines[::-1], "has step 19 after step 20"),
    ],
)
def test_lines_of_several_runs_are_not_summed(change, words, folder):
    run = load_run(rewritten(folder, change))
    for ask in (
        lambda run: compare({"run": run}),
        lambda run: run.cost(1.0),
        lambda run: run.losses,
    ):
        with pytest.raises(UserError, match=words):
            ask(run)


@pytest.mark.parametrize("loss", ["x", [], {}, True, 10**400])
def test_a_loss_that_is_no_number_is_one_line(loss, folder):
    run = load_run(rewritten(folder, lambda lines: [line | {"loss": loss} for line in lines]))
    with pytest.raises(UserError, match=r"metrics.jsonl, row 1 has loss "):
        _ = run.losses


def test_losses_that_are_not_finite_are_none(folder):
    values = [None, math.nan, math.inf, -math.inf]
    run = load_run(
        rewritten(folder, lambda lines: [a | {"loss": b} for a, b in zip(lines, values)])
    )
    assert run.losses.isna().all() and list(run.losses.index) == [1, 2, 3, 4]


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, 10**400, True])
def test_seconds_that_cannot_be_are_one_line(value, tmp_path):
    phases_s = PHASES | {"train": value}
    run = load_run(write_speeds(tmp_path / "run", [1.0], phases_s=phases_s))
    with pytest.raises(UserError, match=r"summary\.json has no phases_s in seconds"):
        _ = run.phases
    folder = write_speeds(tmp_path / "launched", [1.0])
    (folder / "launch.json").write_text(json.dumps({"wall_s": value}))
    with pytest.raises(UserError, match="which launch\\(\\) does not write"):
        load_run(folder)


@pytest.mark.parametrize("price", ["3", None, True, math.inf, math.nan])
def test_a_price_that_cannot_be_is_one_line(price, folder):
    with pytest.raises(UserError, match="give a price of 0 or more"):
        load_run(folder).cost(price)


def test_a_run_that_was_launched_again_is_priced_by_what_its_last_launch_trained(folder):
    """The bill is of the launch that went on after step 15, and so are its tokens."""
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"resumed_after": 15}))
    run = load_run(folder)
    for logs in ("logs", "logs-2"):
        (folder / logs).mkdir()
        price = run.cost(36.0).loc["total", "cost_per_million_tokens"]
        assert price == pytest.approx(0.20 if logs == "logs" else 0.80)


def test_a_log_that_is_not_there_is_one_line(folder):
    (folder / "logs").mkdir()
    run = load_run(folder)
    for ask, words in (
        (run.log, "there is no .*launch.log"),
        (lambda: run.log(0), "has no log of rank 0"),
        (lambda: run.log(-1), "rank must be a whole number"),
    ):
        with pytest.raises(UserError, match=words):
            ask()
