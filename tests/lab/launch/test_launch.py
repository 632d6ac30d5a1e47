"""launch() against ranks that go wrong: the right words, and no process left behind."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from helpers.engine.errors import UserError
from helpers.lab.launch import command as job
from helpers.lab.launch import launch as launch_module
from helpers.lab.launch import process_guard as guard
from helpers.lab.launch import progress, verdict
from helpers.lab.launch.flags import to_words
from helpers.lab.launch.launch import launch
from helpers.lab.launch.nodes.network_namespaces import Link
from helpers.lab.launch.processes import Stopped
from helpers.lab.paths import shown
from helpers.lab.runs.failure_report import RunFailed
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "tests" / "support" / "fault_scripts"
FAULT = "tests/support/fault_scripts/fault.py"


@pytest.fixture
def mark() -> Iterator[dict[str, str]]:
    """An environment variable by which every process of one test is found, also when it fails."""
    variables = {"FAULT_MARK": uuid.uuid4().hex}
    yield variables
    for process in marked(variables):
        process.kill()


@pytest.fixture(scope="module")
def start_s(tmp_path_factory) -> float:
    """Seconds that a launch of next to nothing takes here and now: the machine may be busy."""
    began = time.monotonic()
    launch(FAULT, nproc=2, out=tmp_path_factory.mktemp("run"), show=False)
    return time.monotonic() - began


def marked(mark: dict[str, str]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("FAULT_MARK") == mark["FAULT_MARK"]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def said(out: Path, words: str) -> bool:
    """Whether both ranks have said `words`."""
    return [words in file.read_text() for file in out.glob("logs/*/*/*/stdout.log")] == [True] * 2


def fail(fault: str, out: Path, mark: dict[str, str], **options) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        launch(FAULT, nproc=2, out=out, env=mark, fault=fault, **options)
    assert marked(mark) == []
    assert caught.value.path == out
    return caught.value


def test_a_run_that_goes_well(tmp_path, mark, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    run = launch(FAULT, nproc=2, out=tmp_path / "run", env=mark, threads=3, steps=20)
    assert run.state == "done"
    assert run.flags == {"steps": 20}
    assert list(run.metrics["step"]) == list(range(20))
    assert 0 < run.before_ranks_s < run.wall_s
    assert "rank 1 is done 3" in run.log(1)
    assert "[rank 0] rank 0 is done 3" in run.log()
    assert marked(mark) == []
    printed = capfd.readouterr()
    assert printed.err == "" and len(printed.out.splitlines()) < 8
    assert f"$ torchrun --standalone --nproc-per-node 2 {FAULT} --steps 20 --out run" in printed.out
    assert str(ROOT) not in printed.out and str(tmp_path) not in printed.out


@pytest.mark.parametrize("fault", ["collective", "recorded"])
def test_the_first_failing_rank_is_quoted(fault, tmp_path, mark):
    error = fail(fault, tmp_path, mark)
    assert (error.rank, error.exit_code) == (1, 1)
    first, *rest = error.message.splitlines()
    assert first == "rank 1 failed: ValueError: boom of rank 1"
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-2] == "ValueError: boom of rank 1"
    assert f'  File "{FAULT}", line' in rest[-4] or f'  File "{FAULT}", line' in rest[-5]
    assert "Connection" not in error.message and str(ROOT) not in error.message


def test_a_killed_rank_is_named_and_not_the_peer_that_lost_it(tmp_path, mark):
    error = fail("killed", tmp_path, mark)
    assert (error.rank, error.exit_code) == (1, -signal.SIGKILL)
    first, *rest = error.message.splitlines()
    assert first == ("rank 1 was killed by signal 9 (SIGKILL); out of memory is the usual cause")
    assert "allocating" in rest and "Connection" not in error.message


def test_refused_arguments_are_one_line(tmp_path, mark):
    error = fail("refuses", tmp_path, mark)
    assert error.exit_code == 2
    assert error.message == "tp is 3, but the model has 4 heads: choose 1, 2 or 4"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nproc": 0}, "nproc must be a whole number of at least 1, not 0"),
        ({"nproc": 2.0}, "nproc must be a whole number of at least 1, not 2.0"),
        ({"nproc": True}, "nproc must be a whole number of at least 1, not True"),
        ({"nodes": "2"}, "nodes must be a whole number of at least 1, not '2'"),
        ({"max_restarts": -1}, "max_restarts must be a whole number of at least 0, not -1"),
        ({"nproc": 10**6}, "nproc is 1000000: at most 1024 on one machine"),
        ({"out": "x" * 300}, "longer than a file's name can be"),
        ({"script": "x" * 5000}, "there is no script xxx"),
        ({"threads": "x"}, "threads must be a whole number of at least 1, not 'x'"),
        ({"threads": 0}, "threads must be a whole number of at least 1, not 0"),
        ({"link": 400, "nodes": 2}, "link is 400: give a Link, as Link(mbit=400)"),
        ({"timeout_s": -1}, "timeout_s is -1: it must be a number of seconds above 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"timeout_s": "5"}, "timeout_s is '5'"),
        ({"out": "a\nb"}, "is no name that a file can have"),
        ({"out": "a\0b"}, "is no name that a file can have"),
        ({"out": 5}, "out is 5: give the name of a folder"),
        ({"out": True}, "out is True"),
        ({"script": 5}, "script is 5"),
        ({"script": "a\nb"}, r"there is no script a\nb"),
        ({"nodes": 10**12}, "nodes is 1000000000000, of 1 ranks each: at most 254 nodes and 1024"),
        ({"nodes": 200, "nproc": 8}, "at most 254 nodes and 1024 ranks"),
        ({"env": {1: 1}}, "env has 1: 1, which no process can be given"),
        ({"env": {"A": "a\0b"}}, "env has 'A'"),
        ({"env": "x"}, "env is 'x': give variables, as {'NAME': 'value'}"),
        ({"model": ["a\0b", "c"]}, "no command line can carry"),
        ({"out": ".."}, "which holds the project: name a folder in it"),
        ({"out": "."}, "which holds the project"),
        ({"script": "scripts/no.py"}, "there is no script scripts/no.py"),
        ({"nodes": 3, "link": Link(mbit=400)}, "a link joins two nodes, but nodes is 3"),
        ({"out": __file__}, "is a file, not a folder"),
        ({"config": {"a": 1}}, "config is a dict, which no flag can carry"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_anything_starts(
    arguments, words, tmp_path, monkeypatch
):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        launch(**{"script": FAULT, "out": tmp_path / "new", **arguments})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_hanging_ranks_that_ignore_sigterm_end_in_time(
    tmp_path, mark, monkeypatch, capsys, start_s
):
    monkeypatch.setattr(progress, "QUIET_S", 1.0)
    monkeypatch.setattr(launch_module, "GRACE_S", 1.0)
    timeout_s = round(2 + 2 * start_s)
    began = time.monotonic()
    error = fail("deaf", tmp_path, mark, timeout_s=timeout_s)
    assert time.monotonic() - began < timeout_s + 5
    first, *rest = error.message.splitlines()
    stopped = f"stopped after timeout_s={timeout_s}, before the first step: every process was"
    assert first.startswith(stopped)
    assert "rank 0 was running; its last line: entering the collective" in rest
    assert "rank 1 was running; its last line: entering the collective" in rest
    assert (error.rank, error.exit_code) == (None, None)
    assert "no output for 1 s: a rank may be waiting in a collective" in capsys.readouterr().out


def test_a_flood_stays_on_disk(tmp_path, mark, capsys, start_s):
    began = time.monotonic()
    run = launch(FAULT, nproc=2, out=tmp_path, env=mark, fault="floods")
    assert time.monotonic() - began < 10 + 3 * start_s
    assert run.log(0).count("\n") == run.log(1).count("\n") == 100_000
    assert run.log().count("\n") >= 200_000
    assert len(capsys.readouterr().out) < 2000
    assert marked(mark) == []


def test_a_deaf_peer_does_not_delay_the_verdict(tmp_path, mark, monkeypatch, start_s):
    """torchrun alone would wait 30 s for it."""
    monkeypatch.setattr(launch_module, "GRACE_S", 1.0)
    began = time.monotonic()
    error = fail("deaf_peer", tmp_path, mark)
    assert error.message.startswith("rank 1 failed: ValueError: boom of rank 1")
    assert time.monotonic() - began < 12 + 3 * start_s


@pytest.fixture
def kernel(tmp_path, mark) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a process that, like a notebook's kernel, launches ranks that ignore SIGTERM."""

    def start(grace_s: float = 1.0) -> subprocess.Popen:
        code = f"from helpers.lab.launch import launch; launch.GRACE_S = {grace_s}; launch.launch("
        code += f"{FAULT!r}, nproc=2, out={str(tmp_path)!r}, fault='deaf')"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **mark},
        )
        started.append(process)
        assert wait_for(lambda: said(tmp_path, "entering"), 60)
        return process

    started: list[subprocess.Popen] = []
    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.alone
def test_an_interrupt_ends_all_and_says_so(kernel, mark):
    process = kernel(grace_s=launch_module.GRACE_S)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert time.monotonic() - began < 5
    assert marked(mark) == []
    assert "interrupted: every process was ended in" in out
    assert "KeyboardInterrupt: interrupted: every process was ended in" in err


def test_an_interrupted_run_says_what_was_kept_and_how_to_go_on(tmp_path):
    started = job.prepare("scripts/train.py", 2, tmp_path / "one", {"steps": 9})
    where = repr(shown(tmp_path / "one"))
    ended = Stopped(0.4)
    assert verdict.interrupted(started, None, ended) == f"interrupted: {ended}"
    words = verdict.interrupted(started, 7, ended)
    assert f"load_run({where}).metrics has its steps up to 7" in words and "resume" not in words
    kept = tmp_path / "one" / "checkpoints" / "step-00000005"
    kept.mkdir(parents=True)
    (kept / "manifest.json").write_text("{}")
    words = verdict.interrupted(started, 7, ended)
    assert words.endswith(f"launch(..., out={where}, resume=True) goes on from step-00000005")


def test_a_killed_kernel_leaves_nothing(kernel, mark):
    process = kernel()
    assert len(marked(mark)) >= 7  # the kernel, guard, torchrun, two ranks, a child of each
    process.kill()
    assert wait_for(lambda: not marked(mark), 8)


@pytest.mark.parametrize(
    "module", ["helpers/lab/launch/process_guard.py", "helpers.lab.launch.torchrun_agent"]
)
def test_a_killed_guard_or_torchrun_leaves_nothing(module, kernel, mark):
    process = kernel()
    [victim] = [p for p in marked(mark) if any(word.endswith(module) for word in p.cmdline()[:5])]
    victim.kill()
    _, err = process.communicate(timeout=30)
    assert marked(mark) == []
    assert "RunFailed: torchrun was killed by signal 9 (SIGKILL)" in err


def notebook(tmp_path: Path, mark: dict[str, str], fault: str):
    import nbformat

    setup = (
        f"import os; os.environ.update({mark!r})\nfrom helpers.lab.launch import launch as module"
    )
    out = str(tmp_path / "run")
    call = f"module.GRACE_S = 1\nmodule.launch({FAULT!r}, nproc=2, fault={fault!r}, out={out!r})"
    cells = [nbformat.v4.new_code_cell(source) for source in (setup, call, "reached = True")]
    return nbformat.v4.new_notebook(
        cells=cells,
        metadata={"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
    )


def test_a_failed_rank_fails_the_notebook(tmp_path, mark):
    import nbformat
    import papermill

    nbformat.write(notebook(tmp_path, mark, "raises"), tmp_path / "in.ipynb")
    with pytest.raises(papermill.PapermillExecutionError, match="boom of rank 1"):
        papermill.execute_notebook(
            tmp_path / "in.ipynb", tmp_path / "out.ipynb", cwd=ROOT, progress_bar=False
        )
    assert wait_for(lambda: not marked(mark), 8)
    done = nbformat.read(tmp_path / "out.ipynb", 4)
    panel, error = next(c.outputs for c in done.cells if "launch(" in c.source)
    assert "rank 1 failed: ValueError: boom of rank 1" in panel.data["text/plain"]
    assert "<strong>failed</strong>" in panel.data["text/html"]
    assert error.ename == "RunFailed"
    assert str(ROOT) not in "\n".join(error.traceback)
    assert done.cells[-1].execution_count is None


def test_a_cell_timeout_leaves_nothing(tmp_path, mark, start_s):
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError

    client = NotebookClient(
        notebook(tmp_path, mark, "deaf"),
        timeout=round(3 + 2 * start_s),  # for the first cell's imports, or the ranks' start
        resources={"metadata": {"path": str(ROOT)}},
    )
    with pytest.raises(CellTimeoutError):
        client.execute()
    assert said(tmp_path / "run", "entering")
    assert wait_for(lambda: not marked(mark), 8)
    text = client.nb.cells[1].outputs[0].data["text/plain"]
    assert "[rank 0] entering the collective" in text and "done" not in text


def test_a_training_that_did_not_finish_is_a_failure(tmp_path, mark):
    with pytest.raises(
        RunFailed, match=r"train.py ended with code 0 but did not finish: .*summary"
    ):
        launch(SCRIPTS / "train.py", out=tmp_path, env=mark, show=False)


def test_a_folder_with_a_run_is_kept(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UserError, match="already holds a run"):
        launch(FAULT, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    resumed = job.prepare(FAULT, 1, tmp_path, {"resume": True})
    again = job.prepare(FAULT, 1, tmp_path, {"resume": True})
    assert (resumed.logs.name, again.logs.name) == ("logs", "logs-2")


def test_new_folders_never_collide(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "ROOT", tmp_path)
    script = SCRIPTS / "fault.py"
    outs = [job.prepare(script, 1, None, {"model": "org/gpt-j"}).out for _ in range(3)]
    assert len(set(outs)) == 3
    assert {out.parent for out in outs} == {tmp_path / "runs"}
    assert all("-gpt-j-" in out.name for out in outs)
    assert "-fault-" in job.prepare(script, 1, None, {}).out.name


def test_flags_go_to_the_script_and_into_the_record(tmp_path):
    flags = {"batch_size": 8, "tie": False, "at": [1, 2]}
    prepared = job.prepare(FAULT, 1, tmp_path, flags | {"x": None})
    words = prepared.torchrun[prepared.torchrun.index(FAULT) + 1 :]
    assert words == [*to_words(flags), "--out", str(tmp_path)]
    assert prepared.flags == flags


@pytest.mark.parametrize("linux", [True, False])
def test_a_family_is_found_and_ended(linux, mark, monkeypatch):
    """macOS has no /proc; its way, by ps, is tried here as well."""
    if linux and not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    monkeypatch.setattr(guard, "_LINUX", linux)
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'], env={})"]
    already = guard.family("other", root=os.getpid())  # rank processes that other tests keep
    child = subprocess.Popen(command, env={**os.environ, **mark, guard.MARKER: "one"})
    try:
        assert wait_for(lambda: len(guard.family("one")) == 2, 10)  # the second by descent alone
        assert guard.family("other") == set()
        family = guard.family("other", root=os.getpid()) - already
        assert family == guard.family("one") and child.pid in family
        assert guard.end_all(lambda: guard.family("one"), 1.0) == set()
    finally:
        child.kill()
        child.wait()
