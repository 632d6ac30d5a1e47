"""Offloading, with and without adapters, against real steps of the engine: what is in host memory,
and the fullest moment of the device."""

import weakref

import pytest

pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")
from torch.utils._python_dispatch import _disable_current_modes

from helpers.engine.adapters.qlora import Adapting
from helpers.engine.memory.offloading import Offloader
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.memory.peak import rank_memory
from helpers.planner.model.adapters import Adapters
from helpers.planner.model.training_job import make_job
from helpers.planner.search.estimate import estimate
from tests.planner.memory.test_adapted import FAMILIES, ROWS, SEQ_LEN, counted
from tests.planner.shapes import llama

LAYERS = 5
HOW = {"all trains": None, "LoRA": Adapters(8), "QLoRA": Adapters(8, "nf4")}


@pytest.fixture
def host(monkeypatch):
    """Bytes that are in host memory, now and at most. They are not seen as the device's, which is
    the same memory here."""
    counts, send = {"now": 0, "most": 0}, Offloader._send

    def gone(size):
        counts["now"] -= size

    def noted(offloader, tensor):
        with _disable_current_modes():
            saved = send(offloader, tensor)
        counts["now"] += saved.host.nbytes
        counts["most"] = max(counts.values())
        weakref.finalize(saved.host, gone, saved.host.nbytes)
        return saved

    monkeypatch.setattr(Offloader, "_send", noted)
    return counts


CASES = [(family, how, "none") for family in ("llama", "gptj") for how in HOW]
CASES += [("falcon", "QLoRA", "none"), ("neox", "LoRA", "full"), ("llama", "QLoRA", "full")]


@pytest.mark.parametrize(("family", "how", "activation"), CASES)
def test_memory_is_the_engines(family, how, activation, host):
    """In host memory all that blocks keep, with blocks recomputed to the byte; on the device within
    10 %: sines and cosines, which some families have a table of in each block, are not counted."""
    config, adapters = FAMILIES[family](), HOW[how]
    config.num_hidden_layers = LAYERS
    plan = ParallelPlan(precision="bf16", activation=activation, offload=True)
    memory = rank_memory(make_job(config, plan, ROWS, SEQ_LEN, adapters=adapters), 0)
    adapting = adapters and Adapting(rank=8, quantize=adapters.quantize)
    found = counted(config, plan, adapting)
    tables = found.at_peak["buffers"]
    assert memory.allocated == pytest.approx(found.peak_bytes - tables, rel=0.10)
    assert memory.host == pytest.approx(host["most"], rel=0.15 if activation == "none" else 1e-6)
    assert host["now"] == 0


def test_selective_sends_out_inputs_alone(host):
    """What torch's checkpoint holds of results stays on the device."""
    config = FAMILIES["llama"]()
    plan = ParallelPlan(precision="bf16", activation="selective", offload=True)
    job = make_job(config, plan, ROWS, SEQ_LEN)
    found = counted(config, plan, None)
    assert rank_memory(job, 0).host == host["most"] > 0
    assert rank_memory(job, 0).allocated == pytest.approx(found.peak_bytes, rel=0.10)


def test_adapters_take_as_long_to_copy_as_they_keep():
    """No step is shorter than the copies, out and back, or than the same without them."""
    slow = make_cluster("g5.12xlarge")
    plan = ParallelPlan(dp_replicate=4, precision="bf16", offload=True)
    shape = llama(1024, 8, 16, 16, 2816, vocab=1000)
    for adapters in HOW.values():
        choice = estimate(shape, plan, slow, 64, 2048, adapters=adapters)
        copies_s = choice.memory.host / slow.host_bytes_per_s
        fast_s = estimate(
            shape, ParallelPlan(dp_replicate=4, precision="bf16"), slow, 64, 2048, adapters=adapters
        ).time.total_s
        assert choice.time.total_s >= max(2 * copies_s, fast_s)
