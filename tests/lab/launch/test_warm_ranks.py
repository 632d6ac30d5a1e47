"""Warm ranks: the same runs as cold ones, the same words, and nothing that stays or leaks."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from helpers.engine.errors import UserError
from helpers.lab.launch import launch as launch_module
from helpers.lab.launch.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.runs.failure_report import RunFailed
from tests.lab.launch.test_launch import FAULT
from tests.support.matrix import part
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
TRAINING = {"model": "gptj-tiny", "steps": 4, "batch_size": 8, "seq_len": 32, "seed": 3}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="warm ranks are forked"),
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    found = Ranks(2)
    yield found
    found.close()


@pytest.fixture(scope="module")
def single() -> Iterator[Ranks]:
    """One more, whose server is killed and started again."""
    found = Ranks(1, env={"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})
    yield found
    found.close()
    found.close()  # nothing more to do, and no error


def forked(ranks: Ranks) -> list[psutil.Process]:
    """The agents and ranks of runs: all that descends from the server."""
    return [
        process
        for server in psutil.Process(ranks._server.pid).children()
        for process in server.children(recursive=True)
        if lives(process)
    ]


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def quiet(ranks: Ranks) -> bool:
    return wait_for(lambda: not forked(ranks), 3)


@pytest.mark.parametrize("layout", part([{"nproc": 2, "tp": 2}], [{}, {"nproc": 2, "dp_shard": 2}]))
def test_a_warm_run_is_the_cold_one_to_the_last_digit(tmp_path, ranks, layout):
    cold = launch("scripts/train.py", out=tmp_path / "cold", show=False, **TRAINING, **layout)
    for name in ("first", "second"):
        out = tmp_path / name
        warm = launch("scripts/train.py", out=out, ranks=ranks, show=False, **TRAINING, **layout)
        for column in ("loss", "grad_norm", "tokens"):
            assert list(warm.metrics[column]) == list(cold.metrics[column])
        assert warm.command.replace(name, "cold") == cold.command
        assert warm.summary["plan"] == cold.summary["plan"]
        assert "done: 4 steps" in warm.log(0) and "[rank 0] done: 4 steps" in warm.log()
        assert len(warm.log().splitlines()) == len(cold.log().splitlines())  # no other word
    assert quiet(ranks)


def test_nothing_of_one_run_reaches_the_next(tmp_path, ranks):
    script = tmp_path / "leaks.py"
    script.write_text(
        "import os, sys, json, argparse, helpers\n"
        "parser = argparse.ArgumentParser(); parser.add_argument('--out')\n"
        "seen = [getattr(helpers, 'LEAK', None), os.environ.get('LEAK'), os.environ.get('GIVEN')]\n"
        "seen += [os.path.basename(os.getcwd()), sys.argv[0], 'leaks' in sys.modules]\n"
        "out = parser.parse_args().out\n"
        "helpers.LEAK = 1; os.environ['LEAK'] = '1'; sys.modules['leaks'] = sys; os.chdir('/')\n"
        "if os.environ['RANK'] == '0':\n"
        "    open(os.path.join(out, 'seen.json'), 'w').write(json.dumps(seen))\n"
    )
    found = []
    for name, env in (("one", {"GIVEN": "x"}), ("two", {})):
        run = launch(script, nproc=2, out=tmp_path / name, ranks=ranks, env=env, show=False)
        found.append(json.loads((run.path / "seen.json").read_text()))
    first = [None, None, "x", ROOT.name, str(script), False]
    assert found == [first, [*first[:2], None, *first[3:]]]


@pytest.mark.parametrize(("fault", "rank"), [("raises", 1), ("refuses", None)])
def test_a_rank_that_fails_is_named_as_ever(tmp_path, ranks, fault, rank):
    words = []
    for name, warm in (("cold", None), ("warm", ranks)):
        with pytest.raises(RunFailed) as caught:
            launch(FAULT, nproc=2, out=tmp_path / name, ranks=warm, fault=fault, show=False)
        failed = caught.value
        words.append((failed.message.replace(name, "-"), failed.exit_code))
        assert rank is None or failed.rank == rank  # any may be the first to refuse
    assert words[0] == words[1]
    assert quiet(ranks)


@pytest.mark.parametrize(
    ("left", "code"), [("'no'", 1), ("ValueError('no')", 1), ("7", 7), ("None", None)]
)
def test_a_rank_that_leaves_leaves_as_without_warm_ranks(tmp_path, ranks, left, code):
    script = tmp_path / "leaves.py"
    script.write_text(f"import sys; sys.exit({left})")
    try:
        launch(script, out=tmp_path / "out", ranks=ranks, show=False)
        found = None
    except RunFailed as failed:
        found = failed.exit_code
    assert found == code


def test_a_rank_that_is_killed_is_named(tmp_path, ranks):
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, time\n"
        "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else time.sleep(60)\n"
    )
    with pytest.raises(RunFailed, match=r"rank 1 .*SIGKILL") as caught:
        launch(script, nproc=2, out=tmp_path / "run", ranks=ranks, show=False)
    assert caught.value.exit_code == -signal.SIGKILL
    assert quiet(ranks)


@pytest.mark.parametrize("fault", ["leaves_a_child", "leaves_a_child_that_writes"])
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_child_that_a_rank_leaves_holds_nobody(tmp_path, ranks, fault, is_warm):
    """It has the rank's own streams, and would have been waited for until it ends."""
    warm = ranks if is_warm else None
    out = tmp_path / "run"
    launch(FAULT, nproc=2, out=out, ranks=warm, fault=fault, timeout_s=60, show=False)
    for rank in range(2):
        (log,) = out.glob(f"logs/*/*/{rank}/stdout.log")
        assert f"the last words of rank {rank}" in log.read_text()
    assert quiet(ranks)


def test_ranks_do_not_outlive_their_agent(tmp_path, ranks):
    log = tmp_path / "run" / "logs" / "launch.log"
    family: list[psutil.Process] = []

    def kill() -> None:
        wait_for(lambda: log.exists() and log.read_text().count("entering") == 2, 90)
        family.extend(forked(ranks))
        family[0].kill()  # the agent: the server's only child

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RunFailed):
        launch(FAULT, nproc=2, out=tmp_path / "run", ranks=ranks, fault="deaf", show=False)
    killer.join()
    assert len(family) >= 5  # agent, two ranks, and a child of each
    assert wait_for(lambda: not any(map(lives, family)), 10)


def test_time_that_is_over_ends_deaf_ranks(tmp_path, ranks, monkeypatch):
    monkeypatch.setattr(launch_module, "GRACE_S", 0.5)
    with pytest.raises(RunFailed, match="stopped after timeout_s=3") as caught:
        out = tmp_path / "run"
        launch(FAULT, nproc=2, out=out, ranks=ranks, timeout_s=3, fault="deaf", show=False)
    assert "rank 1 was running; its last line: entering the collective" in caught.value.message
    assert quiet(ranks)


KERNEL = """
from helpers.lab.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
launch.GRACE_S = 1.0
ranks = Ranks(2)
print(ranks._server.pid, flush=True)
launch.launch({fault!r}, nproc=2, out={out!r}, ranks=ranks, fault="deaf", show=False)
"""


@pytest.mark.parametrize("number", part([signal.SIGKILL], [signal.SIGINT]))
def test_a_kernel_that_ends_leaves_nothing(tmp_path, number):
    code = KERNEL.format(fault=FAULT, out=str(tmp_path / "run"))
    kernel = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    server = psutil.Process(int(kernel.stdout.readline()))
    try:
        log = tmp_path / "run" / "logs" / "launch.log"
        assert wait_for(lambda: log.exists() and log.read_text().count("entering") == 2, 90)
        family = [kernel.pid, server.pid, *(p.pid for p in server.children(recursive=True))]
        assert len(family) >= 6  # kernel, guard, server, agent, two ranks
        kernel.send_signal(number)
        kernel.communicate(timeout=20)
        assert wait_for(lambda: not any(map(psutil.pid_exists, family)), 10)
    finally:
        kernel.kill()


def test_a_server_that_is_gone_is_started_again(tmp_path, single):
    single._wait()
    for process in psutil.Process(single._server.pid).children():
        process.kill()
    single._server.wait(20)
    run = launch(FAULT, out=tmp_path / "run", ranks=single, fault="fine", show=False)
    assert run.state == "done"


def test_edited_code_is_imported_anew(tmp_path, single):
    launch(FAULT, out=tmp_path / "one", ranks=single, show=False)
    first = single._server.pid
    launch(FAULT, out=tmp_path / "two", ranks=single, show=False)
    assert single._server.pid == first
    single._started_at = 0.0  # before any file of the package was written
    launch(FAULT, out=tmp_path / "three", ranks=single, show=False)
    assert single._server.pid != first and not psutil.pid_exists(first)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nproc": 3}, "nproc is 3, but 2 ranks are warm"),
        ({"nodes": 2}, "warm ranks are on one node"),
        ({"max_restarts": 1}, "warm ranks are on one node"),
        ({"env": {"LD_PRELOAD": "x.so"}}, r"LD_PRELOAD is read when .* Ranks\(2, env="),
    ],
)
def test_what_warm_ranks_cannot_do_is_refused_before_anything_starts(
    tmp_path, ranks, arguments, words
):
    with pytest.raises(UserError, match=words):
        launch(FAULT, out=tmp_path / "run", ranks=ranks, **arguments)
    assert not (tmp_path / "run").exists()


def test_what_libraries_read_when_loaded_is_given_to_the_ranks(tmp_path, single):
    script = tmp_path / "config.py"
    script.write_text(
        "import torch._inductor.config as config\nassert config.force_disable_caches is True\n"
    )
    out = tmp_path / "run"
    assert launch(script, out=out, ranks=single, env=single.env, show=False).state == "done"


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_a_number_of_ranks_is_a_whole_number(count):
    with pytest.raises(UserError, match="a whole number of at least 1"):
        Ranks(count)


def test_a_number_is_no_warm_ranks(tmp_path):
    with pytest.raises(UserError, match=r"ranks is 2: give warm ones, Ranks\(1\)"):
        launch(FAULT, out=tmp_path / "run", ranks=2)


def test_the_socket_is_for_its_owner_alone(ranks):
    ranks._wait()
    assert os.stat(ranks._socket).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(ranks._socket)).st_mode & 0o777 == 0o700
