"""A rank that the others wait for in vain is named, and what it is doing."""

import math
import re
from pathlib import Path

import pytest

from helpers.engine.ranks.waiting import Doing, in_words
from helpers.lab.launch.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.runs.failure_report import RunFailed

ROOT = Path(__file__).parents[2]
HUNG = ROOT / "tests/support/fault_scripts/hung_rank.py"
LINE = 1 + HUNG.read_text("utf-8").splitlines().index("    time.sleep(60)")
SMALL = {"model": "gptj-tiny", "steps": 6, "seq_len": 16, "batch_size": 4}
LIMIT_S, AFTER_S = 5, 10


def told(out: Path, warm: Ranks, **flags: object) -> str:
    """The line with which a run whose last rank hangs fails, said in time."""
    layout = {name: flags[name] for name in ("tp", "pp", "dp_shard") if name in flags}
    nproc = math.prod(layout.values())
    with pytest.raises(RunFailed) as failed:
        options = {"nproc": nproc, "ranks": warm, "out": out, "show": False}
        launch(HUNG, timeout=LIMIT_S, **options, **SMALL, **flags)
    written = [path.stat().st_mtime for path in out.glob("logs/**/stderr.log")]
    last_step = (out / "metrics.jsonl").stat().st_mtime
    assert min(at for at in written if at > last_step) - last_step < LIMIT_S + AFTER_S
    [line] = re.findall(f"rank {nproc - 1} has not joined .*", str(failed.value))
    return line


@pytest.mark.parametrize(
    ("layout", "call"),
    [
        ({"tp": 2}, r"all-reduce \d+ \(tp, transformer\.wte, step 3, micro-batch 0\)"),
        ({"pp": 2, "microbatches": 2}, r"message \d+ \(pp, step 3, micro-batch \d\)"),
        ({"dp_shard": 2}, r"all-gather \d+ \(dp_shard, model, step 3, micro-batch 0\)"),
        ({"tp": 2, "dp_shard": 2}, r".*step 3, micro-batch 0\)"),  # groups of some of the ranks
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_sleeping_rank(tmp_path, warm, layout, call):
    line = told(tmp_path / "run", warm, **layout)
    assert re.fullmatch(
        rf"rank \d has not joined {call}; it is in hung_rank\.py:{LINE} \(hang\)", line
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_stopped_rank_cannot_say_where_it_is(tmp_path, warm):
    line = told(tmp_path / "run", warm, tp=2, stopped=True)
    assert line.endswith("; it does not answer")


def waiting(*ranks: int) -> Doing:
    return Doing("a.py:1 (f)", True, "all-reduce", 418, ranks, ("tp", "h.3"))


def test_ranks_of_several_groups():
    """2 sleeps, 3 waits for it, and 0 and 1 wait for 3 along another axis."""
    found = {0: waiting(0, 1), 1: waiting(1, 3), 3: waiting(2, 3)}
    found[2] = Doing("readers.py:91 (read)", False)
    expected = "rank 2 has not joined all-reduce 418 (tp, h.3); it is in readers.py:91 (read)"
    assert in_words(found, 4, found[0]) == expected
    assert in_words(found | {1: found[2]}, 4, found[0]) == (
        "ranks 1, 2 have not joined all-reduce 418 (tp, h.3); "
        "rank 1 is in readers.py:91 (read); rank 2 is in readers.py:91 (read)"
    )
    del found[2]
    assert in_words(found, 4, found[3]).endswith(
        "rank 2 has not joined all-reduce 418 (tp, h.3); it does not answer"
    )
    found[2] = waiting(0, 2)
    assert in_words(found, 4, found[0]).startswith("all ranks wait for each other, this one in")


@pytest.mark.parametrize(("world", "names"), [(4, "1, 2, 3 have"), (6, "1, 2, 3 .. have")])
def test_a_line_tells_of_three_ranks_at_most(world, names):
    asker = waiting(*range(world))
    silent = "; ".join(f"rank {rank} does not answer" for rank in (1, 2, 3))
    expected = f"ranks {names} not joined all-reduce 418 (tp, h.3); {silent}"
    assert in_words({0: asker}, world, asker) == expected
