"""The benchmark's runner on models too small to time: who is compared, and do the losses agree."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.engine.pipeline.schedules import make_schedule
from helpers.engine.pipeline.simulator import Timeline, Times, simulate
from helpers.engine.plan import ParallelPlan
from helpers.planner.model.training_job import make_job
from helpers.planner.time.shared_cores import simulate_shared
from tests.planner.shapes import gpt
from tests.support import scripts

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import compare, limit, registry  # noqa: E402 the scripts' folder
from benchmarks.studies import naive_split, regret  # noqa: E402 the scripts' folder
from benchmarks.work import Work  # noqa: E402 the scripts' folder

TINY = ["--layers", "2", "--hidden", "32", "--heads", "2", "--vocab", "128", "--seq", "16"]


def benchmark(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts/benchmark.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def measured(tmp_path: Path, *arguments: str) -> tuple[dict, str]:
    out = tmp_path / "found.json"
    short = ["--rounds", "1", "--patience", "0", "--json", str(out)]
    done = benchmark(*arguments, *TINY, *short)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family", "peers"),
    [
        pytest.param("tp", "gptj", "engine-tp,dtensor", marks=pytest.mark.exhaustive),
        pytest.param("tp", "neox", "engine-sp,tp-plan", marks=pytest.mark.exhaustive),
        pytest.param("fsdp", "neox", "engine-zero3,fully-shard", marks=pytest.mark.exhaustive),
        pytest.param("pipeline", "gptj", "1f1b-8-gloo,torch-1f1b-8", marks=pytest.mark.exhaustive),
        ("fsdp", "neox", "ddp"),
        pytest.param("qlora", "falcon", "engine-one", marks=pytest.mark.exhaustive),
        pytest.param("bf16", "neox", "one-autocast,bf16-tp", marks=pytest.mark.exhaustive),
    ],
)
def test_peers_take_the_same_steps(tmp_path, name, family, peers):
    found, printed = measured(tmp_path, name, "--families", family, "--peers", peers)
    (result,) = found["results"]
    rows = {row["name"]: row for row in result["rows"]}
    assert set(rows) == {"one", *peers.split(",")}
    for row in rows.values():
        assert "failure" not in row, row
        assert row["agrees"], row
        assert row["loss"][-1] < row["loss"][0]
        assert row["title"] in printed
    assert found["versions"]["torch"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_memory_is_counted_and_predicted(tmp_path):
    found, _ = measured(tmp_path, "memory", "--peers", "engine-zero3,engine-tp-full")
    (result,) = found["results"]
    rows = {row["name"]: row for row in result["rows"]}
    for name in ("engine-zero3", "engine-tp-full"):
        assert rows[name]["state_bytes"] == pytest.approx(
            rows[name]["predicted_state_bytes"], rel=0.01
        )
    assert rows["engine-zero3"]["state_bytes"] < 0.6 * rows["one"]["state_bytes"]


def layout(predicted_s: float, step_s: list[float], loss: float, **plan: int) -> regret.Row:
    job = make_job(gpt(64, 4, 4, vocab=500, positions=64), ParallelPlan(**plan), 4, 64)
    return regret.Row(job, predicted_s, step_s, [loss])


def test_regret_is_what_the_pick_takes_over_the_fastest():
    pick = layout(1.0, [3.0, 2.0, 9.0], 5.0, tp=2)
    best = layout(2.0, [2.0, 1.0, 2.0], 5.0, dp_shard=2)
    last = layout(3.0, [8.0, 8.0, 8.0], 5.01, pp=2)
    found = regret.Regret([pick, best, last], pick, [0.0])
    assert found.best is best
    assert found.regret == 1.5
    assert found.rank_correlation == pytest.approx(0.5)
    assert found.disagree == [last]
    words = regret.section(found, "three layouts")
    assert "**Regret 1.50.**" in words
    assert "DO NOT AGREE with 5.00000: pp=2" in words
    assert "| 2 | 1 | dp_shard=2, ZeRO-3 | 2000 | 2000 | 1500 to 2000 |" in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("tp --peers nobody", "no peer 'nobody'"),
        ("tp --heads 7", "--heads 7 must share --hidden 512 in even numbers"),
        ("tp --hidden 504 --heads 9", "two ranks share the heads"),
        ("pipeline --rounds -1", "--rounds: '-1' is not a whole number"),
        ("memory --seq 0", "--seq: '0' is not a whole number"),
        ("tp --minutes nan", "--minutes: 'nan' is not a number of at least 0"),
        ("plan --page no/folder/page.md", "there is no folder no/folder to write page.md in"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit) as refused:
        scripts.module("benchmark").parse(arguments.split())
    assert refused.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def row(name: str, step_s: list[float], loss: list[float], others: list[float]) -> compare.Row:
    peer = next(peer for peer in registry.TENSOR if peer.name == name)
    norm = [1.0] * len(loss)
    return compare.Row(peer, step_s=step_s, loss=loss, norm=norm, others=others, cpu_s=step_s)


def test_a_share_pairs_undisturbed_steps_after_the_warm_up():
    quiet = [0.0] * 5
    one = row("one", [9, 2, 2, 2, 2], [5, 4, 3, 2, 1], quiet)
    other = row("engine-tp", [9, 1, 4, 8, 2], [5, 4, 3, 2, 1], [0, 0, 0, 0.5, 0])
    compare.judge([one, other], warmup=1)
    assert other.timed == [1, 2, 4]
    assert other.share == [2.0, 0.5, 1.0]
    assert other.quiet
    assert other.agrees


def test_without_quiet_steps_all_count_and_the_table_says_so():
    noise = [0.9] * 3
    one = row("one", [2, 2, 2], [3, 2, 1], noise)
    other = row("engine-tp", [1, 1, 1], [3, 2, 1], noise)
    compare.judge([one, other], warmup=1)
    assert other.timed == [1, 2]
    assert "noisy" in compare.table([one, other])


def test_a_peer_with_other_losses_is_flagged():
    one = row("one", [1, 1], [5, 4], [0, 0])
    other = row("engine-tp", [1, 1], [5, 4.01], [0, 0])
    compare.judge([one, other], warmup=1)
    assert not other.agrees
    assert "**NO**" in compare.table([one, other])


def test_a_step_is_held_against_the_best_product(monkeypatch):
    """Twice the seconds, half of the limit; what has no gradients of most weights has none."""
    monkeypatch.setattr(limit, "product_flops", lambda precision, cores: 2e9)
    work = Work("neox", 2, 64, 4, 512, batch=2, seq=32, steps=2, folder="")
    parameters = 512 * 64 * 2 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64
    flops = 64 * (6 * parameters + 12 * 2 * 64 * 32)
    one = row("one", [9, flops / 1e9], [5, 4], [0, 0])
    adapters = compare.Row(registry.QLORA[1], step_s=[1, 1], loss=[5, 4], norm=[1, 1])
    adapters.others, adapters.cpu_s = [0, 0], [1, 1]
    compare.judge([one, adapters], warmup=1)
    compare.hold_against_limit([one, adapters], work, cores=2)
    assert one.of_limit == pytest.approx(0.5, rel=0.01) and adapters.of_limit is None
    assert "| 0.50 |" in compare.table([one])


def test_a_product_has_a_pace():
    assert 1e8 < limit.product_flops("fp32", cores=1) < 1e14


def ran(name: str, step: Timeline) -> compare.Row:
    """A pipeline whose only step was this."""
    peer = next(peer for peer in registry.QLORA if peer.name == name)
    spans = ([[*span.action, span.start_s, span.end_s] for span in rank] for rank in step.spans)
    return compare.Row(peer, memory=[{"spans": [found]} for found in spans])


def test_a_pipelines_gain_follows_from_the_naive_split():
    times = Times(forward_s=1.0, backward_s=2.0)
    naive = simulate(make_schedule("naive", 4, 8), times)
    pipeline = simulate_shared(make_schedule("1f1b", 4, 8), times, cores=2)
    rows = [ran("naive-4", naive), ran("1f1b-4", pipeline)]
    (gain,) = naive_split.gains(rows, cores=2)
    assert gain.measured == pytest.approx(gain.shared) and 1.5 < gain.shared <= 2
    assert gain.free == pytest.approx(4 * 8 / (8 + 4 - 1))
    assert "| 4 | 96.00 |" in naive_split.table(rows, cores=2)
    assert naive_split.table(rows[:1], cores=2) == ""


def test_a_peer_that_failed_says_why():
    one = row("one", [1, 1], [5, 4], [0, 0])
    other = compare.Row(registry.TENSOR[2], failure="deepspeed is not installed")
    compare.judge([one, other], warmup=1)
    assert "deepspeed is not installed" in compare.table([one, other])


def test_tables_without_one_process_to_compare_with():
    from benchmarks import work
    from benchmarks.studies import long_sequences, two_nodes

    sizes = {"layers": 2, "hidden": 32, "heads": 2, "vocab": 128, "batch": 4, "seq": 16}
    one = work.Work("neox", **sizes, steps=2, folder="")
    rows = [
        compare.Row(peer, step_s=[1.0, 1.0], link_bytes=[1.0, 1.0]) for peer in registry.TENSOR[:2]
    ]
    rows[0].failure = "it ended"
    compare.judge(rows, warmup=1)
    for table in (long_sequences.table({16: rows}), two_nodes.table(rows, one)):
        assert "it ended" in table and "nothing to compare with" in table


def test_what_crosses_the_link_of_two_nodes():
    """Of a model of 2 layers: FSDP gathers all forward and the blocks again backward round a
    ring, and sends half of each gradient straight across; HSDP sums both shards across."""
    from benchmarks import work
    from benchmarks.studies import two_nodes
    from transformers import GPTNeoXForCausalLM

    sizes = {"layers": 2, "hidden": 32, "heads": 2, "vocab": 128, "batch": 4, "seq": 16}
    one = work.Work("neox", **sizes, steps=1, folder="")
    model = GPTNeoXForCausalLM(work.config(one))
    whole = sum(4 * p.numel() for p in model.parameters())
    blocks = sum(4 * p.numel() for p in model.gpt_neox.layers.parameters())
    rows = {peer.name: compare.Row(peer) for peer in registry.TWO_NODES}
    found = {name: two_nodes.predicted_bytes(row, one) for name, row in rows.items()}
    assert found["one"] == 0
    assert found["fsdp"] == pytest.approx(2 * 3 / 4 * (whole + blocks) + 2 * whole, rel=1e-3)
    assert found["hsdp"] == found["hsdp-zero2"] == pytest.approx(2 * whole, rel=1e-3)
