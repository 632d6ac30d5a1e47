"""A finished run as tables, and folders that are not one."""

import json
from pathlib import Path

import pytest

from helpers.engine.errors import UserError
from helpers.engine.files.run_record import warmup_steps
from helpers.lab.runs.run import compare, load_run

PHASES = {
    "start": 4.0,
    "load": 1.5,
    "check": 0.5,
    "compile": 0.0,
    "train": 10.0,
    "evaluate": 1.0,
    "save": 0.5,
}


def write_run(folder: Path, *, speeds: list[float], launch: bool = True, **summary) -> Path:
    folder.mkdir()
    rows = [
        {"step": n + 1, "loss": 3.0 - n / 10, "tokens": 50_000, "tokens_per_s": speed}
        for n, speed in enumerate(speeds)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = {"phases_s": PHASES, "final_loss": rows[-1]["loss"], "status": "done"}
    (folder / "summary.json").write_text(json.dumps({**whole, **summary}))
    if launch:
        record = {"command": "torchrun x", "nproc": 2, "state": "done"}
        record |= {"wall_s": 20.0, "before_ranks_s": 2.0}
        (folder / "launch.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    states = [{"parameters": 10, "gradients": 10, "optimizer": 20}] * 2
    return write_run(
        tmp_path / "run",
        speeds=[1.0] * 2 + [100.0] * 18,
        peak_memory_bytes=[70, 90],
        state_bytes=states,
    )


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
    run = load_run(write_run(tmp_path / "run", speeds=[1.0], launch=False))
    assert list(run.phases.index) == [*PHASES, "total"]
    assert run.phases.loc["total", "seconds"] == sum(PHASES.values())
    assert run.wall_s is None and "launched by hand" in repr(run)
    with pytest.raises(UserError, match="not started by launch"):
        run.log()


def test_memory_by_rank(folder):
    memory = load_run(folder).memory
    assert list(memory["peak_bytes"]) == [70, 90]
    assert list(memory.columns[1:]) == ["parameters_bytes", "gradients_bytes", "optimizer_bytes"]
    assert memory.index.name == "rank"


def test_memory_where_the_peak_is_unknown(tmp_path):
    path = write_run(tmp_path / "run", speeds=[1.0], state_bytes=[{"parameters": 4}] * 2)
    memory = load_run(path).memory
    assert memory["peak_bytes"].isna().all() and list(memory["parameters_bytes"]) == [4, 4]


def test_runs_are_compared_without_their_warmup(folder, tmp_path):
    assert warmup_steps(20) == 2
    fast = write_run(tmp_path / "fast", speeds=[1.0] * 2 + [200.0] * 17 + [220.0])
    table = compare(load_run(folder), load_run(fast), names=["one rank", "two ranks"])
    assert list(table.index) == ["one rank", "two ranks"]
    assert list(table["tokens_per_s"]) == [100.0, 200.0]
    assert list(table["relative"]) == [1.0, 2.0]
    assert list(table["p10"]) == [100.0, 200.0]
    assert list(table["tokens"]) == [1_000_000] * 2
    assert table["peak_memory_bytes"].iloc[0] == 90
    assert compare(load_run(folder)).index[0] == "run"
    with pytest.raises(UserError, match="1 names for 2 runs"):
        compare(load_run(folder), load_run(fast), names=["one"])


def test_a_last_line_that_was_cut_off_is_left_out_and_said(folder, capsys):
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text() + '{"step": 21, "lo')
    run = load_run(folder)
    assert len(run.metrics) == len(run.metrics) == 20
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
        compare(run)
        run.cost(1.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "table", "words"),
    [
        ("findings.json", "{}", "findings", "findings.json has no list of findings"),
        ("findings.json", '{"findings": 3}', "findings", "has no list of findings"),
        ("findings.json", '{"findings": [3]}', "findings", "has no list of findings"),
        ("summary.json", '{"peak_memory_bytes": 7}', "memory", "no list of ranks' peak_memory_"),
        ("summary.json", '{"peak_memory_bytes": ["x"]}', "memory", "list of ranks' peak_memory_"),
        ("summary.json", '{"state_bytes": {"a": 1}}', "memory", "no list of ranks' state_bytes"),
        ("summary.json", '{"state_bytes": [3]}', "memory", "no list of ranks' state_bytes"),
        ("summary.json", '{"state_bytes": [{"a": []}]}', "memory", "no list of ranks' state_"),
    ],
)
def test_a_table_of_a_broken_file_is_one_line(file, content, table, words, folder):
    (folder / file).write_text(content)
    with pytest.raises(UserError, match=words) as caught:
        getattr(load_run(folder), table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [None, 3, []])
def test_a_run_is_asked_for_by_its_folder(path):
    with pytest.raises(UserError, match="give the folder of a run, not"):
        load_run(path)


def test_folders_without_a_run(tmp_path):
    with pytest.raises(UserError, match="there is no run folder"):
        load_run(tmp_path / "none")
    with pytest.raises(UserError, match="holds no run"):
        load_run(tmp_path)


def test_a_run_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_run(tmp_path / "run", speeds=[1.0], launch=False)
    assert load_run("~/run").path == tmp_path / "run"
