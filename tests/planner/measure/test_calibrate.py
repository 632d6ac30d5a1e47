"""This machine measured: real ranks, saved and read again, and fit to predict with."""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict

import psutil
import pytest
import torch

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.measure import calibrate as calibrate_module
from helpers.planner.measure import rank_measurements
from helpers.planner.measure.calibrate import _reason, calibrate, load_cluster
from helpers.planner.model.training_job import make_job
from helpers.planner.time.step_time import step_time
from tests.lab.launch.test_listening import below, needs_proc
from tests.planner.shapes import gpt


@pytest.fixture(scope="module")
def measuring(tmp_path_factory):
    """The cluster, its file, the seconds that it took, and where its ranks listened."""
    path = tmp_path_factory.mktemp("calibrate") / "new/machine.json"
    others, listening = psutil.Process().children(recursive=True), set()
    started = time.monotonic()
    with ThreadPoolExecutor(1) as thread:
        cluster = thread.submit(calibrate, path, ranks=2)
        while wait([cluster], 1.0).not_done:
            listening |= below(others)
    return cluster.result(), path, time.monotonic() - started, listening


@pytest.fixture
def measured(measuring):
    return measuring[:2]


@pytest.mark.parametrize(
    ("device", "fields"),
    [
        ("NVIDIA H100 80GB HBM3", {"gpu": "H100", "generation": "hopper"}),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", {}),
        ("NVIDIA L40", {}),
        ("NVIDIA A100-SXM-64GB", {}),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", {}),
    ],
)
def test_a_gpu_is_known_by_its_exact_name(monkeypatch, device, fields):
    """Others had the peak of a relative whose name theirs begins with."""
    monkeypatch.setattr(rank_measurements, "_gpu_name", lambda: device)
    assert rank_measurements._of_gpu() == fields


@pytest.mark.exhaustive
@pytest.mark.alone
@pytest.mark.slow
def test_it_takes_less_than_a_minute(measuring):
    assert measuring[2] < 60


@pytest.mark.long
@pytest.mark.slow
def test_it_is_read_again_as_it_was_saved(measured):
    cluster, path = measured
    assert load_cluster(path) == cluster
    rates = cluster.matmul_flops  # the engine widens what the processor multiplies slowly
    assert rates["bf16"] > 0.1 * rates["fp32"]
    saved = json.loads(path.read_text("utf-8"))
    assert saved["torch"] == torch.__version__
    assert set(saved["cluster"]["measured"]) == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "send",
    }


@pytest.mark.long
@needs_proc
@pytest.mark.slow
def test_its_ranks_listen_on_loopback_alone(measuring):
    assert measuring[3] == {"127.0.0.1"}


@pytest.mark.long
@pytest.mark.slow
def test_a_file_of_before_attention_was_measured_is_read(measured, tmp_path):
    cluster, path = measured
    saved = json.loads(path.read_text("utf-8"))
    saved["cluster"]["attention_flops"] = None
    del saved["cluster"]["unit_s"]
    (tmp_path / "old.json").write_text(json.dumps(saved), "utf-8")
    old = load_cluster(tmp_path / "old.json")
    assert old.attention_rate("fp32") == old.rate("fp32") / 2
    assert old.unit_s == 0 < cluster.unit_s


@pytest.mark.long
@pytest.mark.slow
def test_one_gpu_is_measured_by_one_rank(tmp_path, monkeypatch):
    """Its rank measures the processor here: a machine of one GPU is pretended to the caller."""
    monkeypatch.setattr(calibrate_module.torch.cuda, "device_count", lambda: 1)
    cluster = calibrate(tmp_path / "one.json")
    assert cluster.devices == 1 and cluster.measured == {}
    assert cluster.intra.bytes_per_s == pytest.approx(cluster.memory_bytes_per_s, rel=1e-3)
    one = step_time(
        make_job(gpt(64, 4, 4, vocab=500, positions=64), ParallelPlan(), 8, 64), cluster
    )
    assert 0 < one.total_s < 60
    with pytest.raises(UserError, match="there are 1 GPUs, so at most 1 ranks, not 2"):
        calibrate(tmp_path / "two.json", ranks=2)


@pytest.mark.slow
def test_rates_are_of_this_world(measured):
    """A core does 1 to 1,000 GFLOP/s and moves 0.1 to 1,000 GB/s; so do links."""
    cluster, _ = measured
    assert cluster.devices == 2
    assert 1e9 < cluster.rate("fp32") < 1e12 or torch.cuda.is_available()
    assert 1e8 < cluster.memory_bytes_per_s < 1e12 or torch.cuda.is_available()
    assert 1e-8 < cluster.operation_s < 1e-3
    for link in cluster.measured.values():
        assert 1e6 < link.bytes_per_s < 1e13
        assert 1e-7 <= link.latency_s < 0.1


@pytest.mark.alone
@pytest.mark.slow
def test_the_rate_is_the_one_that_a_product_reaches_here(measured):
    """Within a factor of four, whatever else the machine is doing."""
    if torch.cuda.is_available():
        pytest.skip("the ranks measured GPUs")
    cluster, _ = measured
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a = torch.randn(384, 384)
    best_s = min(_seconds(lambda: a @ a) for _ in range(30))
    torch.set_num_threads(threads)
    assert 0.25 < cluster.rate("fp32") / (2 * 384**3 / best_s) < 4


@pytest.mark.slow
def test_steps_are_predicted_with_it(measured):
    cluster, _ = measured
    shape = gpt(64, 4, 4, vocab=500, positions=64)
    one = step_time(make_job(shape, ParallelPlan(), 8, 64), cluster)
    two = step_time(make_job(shape, ParallelPlan(tp=2), 8, 64), cluster)
    assert 0 < one.total_s < 60
    assert two.tensor_s > 0


def _seconds(run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


@pytest.mark.parametrize("ranks", [0, 1, -2, 2.5, "4", True])
def test_ranks_that_cannot_be(ranks, tmp_path):
    with pytest.raises(UserError, match=f"whole number of at least 2, not {ranks!r}"):
        calibrate(tmp_path / "x.json", ranks=ranks)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to .*file/x\.json: File exists"):
        calibrate(tmp_path / "file/x.json", ranks=2)


def test_what_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate_module, "LIMIT_S", 0.5)
    with pytest.raises(UserError, match=r"measuring took over 0\.5 s"):
        calibrate(tmp_path / "x.json", ranks=2)


def test_what_failed_is_the_first_error_that_was_said():
    said = "W1121 a warning\n[rank1]: Traceback\n[rank1]: RuntimeError: no link\nOther: x\n===="
    assert _reason(said) == "[rank1]: RuntimeError: no link"
    assert _reason("a\nb") == "b"
    assert _reason("") == "nothing was said"


def test_a_file_that_is_missing_or_none_of_ours(tmp_path):
    with pytest.raises(UserError, match=r"calibrate\(\) writes it"):
        load_cluster(tmp_path / "none.json")
    for text in ("{}", "not json", '{"cluster": {"name": "x"}}', "[1]"):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(UserError, match=r"is not what calibrate\(\) writes"):
            load_cluster(tmp_path / "other.json")


LINK = asdict(make_cluster("p4d.24xlarge").intra)


@pytest.mark.parametrize("of", ["intra", "measured"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("nodes", value) for value in (None, "x", [], {}, True, 0, -1, 0.5, math.nan, 10**400)),
        *(("wire", value) for value in (None, "x", [], {}, True, 1)),
        *((name, 10**400) for name in ("bytes_per_s", "latency_s")),
    ],
)
def test_a_link_that_cannot_be_is_one_line(of, name, value, tmp_path):
    """An edited file gave tracebacks, or seconds that are none, once a plan was estimated."""
    cluster = asdict(make_cluster("p4d.24xlarge")) | {"few": {}}
    broken = LINK | {name: value}
    cluster |= {"intra": broken} if of == "intra" else {"measured": {"all_reduce": broken}}
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"cluster": cluster}), "utf-8")
    with pytest.raises(UserError, match=r"machine\.json is not what calibrate\(\) writes"):
        load_cluster(path)
