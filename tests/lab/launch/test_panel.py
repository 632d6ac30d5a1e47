"""What a reader sees of a run, and how it is followed."""

import dataclasses
import io
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from helpers.lab import paths
from helpers.lab.launch import live_panel as panel
from helpers.lab.launch import output_reader as follow
from helpers.lab.launch.live_panel import Panel, View, as_html, as_text, headline
from helpers.lab.launch.output_reader import Metrics, Output
from helpers.lab.launch.progress import Progress

VIEW = View(
    command="torchrun scripts/train.py",
    logs="runs/one/logs",
    state="running",
    elapsed_s=12.3,
    metrics={"step": 10, "loss": 2.3144, "tokens_per_s": 5210.4},
    steps=50,
    lines=("[rank 0] <b>bold</b> & more", "x" * 500),
)


class Text(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.feed(source)

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs).get("style", "")))


def test_the_headline():
    assert headline(VIEW) == "running 12 s · step 10 of 50 · loss 2.314 · 5,210 tokens/s"
    bare = dataclasses.replace(VIEW, state="failed", metrics={}, elapsed_s=0.44)
    assert headline(bare) == "failed after 0.4 s"
    odd = dataclasses.replace(VIEW, metrics={"step": 3, "loss": None}, steps=None, elapsed_s=185)
    assert headline(odd) == "running 3 min 05 s · step 3"


def test_the_pace_of_a_run_that_is_over_is_its_median_or_said_to_be_the_last_steps():
    over = dataclasses.replace(VIEW, state="done", median_tokens_per_s=4980.2)
    assert headline(over).endswith("loss 2.314 · median 4,980 tokens/s")
    unknown = dataclasses.replace(over, median_tokens_per_s=None)
    assert headline(unknown).endswith("loss 2.314 · last step 5,210 tokens/s")


@pytest.mark.parametrize(
    ("summary", "ends"),
    [('{"tokens_per_s": 4980.2}', "median 4,980 tokens/s"), ("{", "last step 5,210 tokens/s")],
)
def test_the_median_is_read_from_the_summary_of_a_run_that_is_done(tmp_path, capsys, summary, ends):
    (tmp_path / "summary.json").write_text(summary)
    job = SimpleNamespace(
        out=tmp_path, logs=tmp_path, command="c", flags={}, nproc=1, nodes=1, steps=1
    )
    processes = SimpleNamespace(elapsed_s=1.0, last_lines=lambda count: [])
    progress = Progress(job, processes, Panel())
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "tokens_per_s": 5210.4}\n')
    progress.finish("done")
    assert capsys.readouterr().out.strip().endswith(ends)


def test_both_forms_say_the_same_and_no_line_becomes_markup():
    text, page = as_text(VIEW), Text(as_html(VIEW))
    for line in text.splitlines():
        assert line.removeprefix("| ").removeprefix("$ ") in page.text
    assert "[rank 0] <b>bold</b> & more" in page.text
    assert not any(tag == "b" for tag, _ in page.tags)
    assert max(len(line) for line in text.splitlines()) <= panel.LINE_WIDTH + 2


def test_the_theme_keeps_its_colours():
    for _, style in Text(as_html(VIEW)).tags:
        names = [rule.split(":")[0].strip() for rule in style.split(";")]
        assert "color" not in names and "background" not in names


def test_prints_are_sparse_outside_a_notebook(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(panel.time, "monotonic", lambda: now[0])
    shown = Panel()
    for tick in range(600):
        now[0] = tick / 10
        shown.update(VIEW)
    shown.finish(dataclasses.replace(VIEW, state="done"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["$ torchrun scripts/train.py", "whole logs: runs/one/logs"]
    assert lines[-1].startswith("done in 12 s")
    assert len(lines) == 2 + 59 // 5 + 1
    silent = Panel(show=False)
    silent.update(VIEW)
    silent.finish(VIEW)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n\nthree", ["one", "two", "three"]),
        (b"10%\r20%\r30%\r\nnext\r", ["30%", "next"]),
        (b"\x1b[31mred\x1b[0m\n", ["red"]),
        ("é".encode()[:1] + b"\n", ["\ufffd"]),
        (b"", []),
    ],
)
def test_lines_as_a_terminal_would_leave_them(data, lines, tmp_path):
    output = Output(io.BufferedReader(io.BytesIO(data)), tmp_path / "log")
    output.run()
    assert output.last(5) == lines
    assert (tmp_path / "log").read_bytes() == data


def test_a_line_without_end_stays_small(tmp_path):
    output = Output(io.BufferedReader(io.BytesIO(b"x" * 5_000_000)), tmp_path / "log")
    output.run()
    assert [len(line) for line in output.last(5)] == [follow.LONGEST_LINE]
    assert (tmp_path / "log").stat().st_size == 5_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_full_disk_is_said_and_the_pipe_is_still_read(tmp_path):
    pipe = io.BufferedReader(io.BytesIO(b"line\n" * 100_000))
    (tmp_path / "log").symlink_to("/dev/full")
    output = Output(pipe, tmp_path / "log")
    output.run()
    assert "No space left" in output.error
    assert output.last(1) == ["line"]


def test_metrics_wait_for_whole_lines(tmp_path):
    file = tmp_path / "metrics.jsonl"
    metrics = Metrics(file)
    metrics.read()
    assert metrics.last == {}
    file.write_text('{"step": 1}\n{"st')
    metrics.read()
    assert metrics.last == {"step": 1}
    with file.open("a") as more:
        more.write('ep": 2}\n')
    metrics.read()
    assert metrics.last == {"step": 2}
    resumed = Metrics(file)
    resumed.read()
    assert resumed.last == {}


@pytest.mark.parametrize("line", ["5", "[1, 2]", "null", "nonsense", "[" * 100_000])
def test_a_line_that_is_no_row_leaves_the_last_one(tmp_path, line):
    file = tmp_path / "metrics.jsonl"
    metrics = Metrics(file)
    file.write_text('{"step": 1}\n')
    metrics.read()
    with file.open("a") as more:
        more.write(f"{line}\n")
    metrics.read()
    assert metrics.last == {"step": 1}


def test_paths_name_no_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.shown(paths.ROOT / "runs" / "one") == "runs/one"
    assert paths.shown(tmp_path / "run") == "run"
    inside = f'File "{paths.ROOT}/scripts/train.py"'
    assert paths.shorten(inside) == 'File "scripts/train.py"'
    assert paths.shorten(f"{sys.modules['pytest'].__file__}:1") == "pytest/__init__.py:1"
    elsewhere = f"/data{paths.ROOT}/x"
    assert paths.shorten(elsewhere) == elsewhere
