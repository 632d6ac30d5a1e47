"""The tables of GPUs, instances and prices: found by the right name, never guessed."""

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.planner.hardware.catalog import gpus, instances, prices
from helpers.planner.hardware.lookup import find_gpu, find_instance, peak_flops, price


@pytest.mark.parametrize(
    ("device_name", "dtype", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB", "bf16", 312e12),
        ("A100-SXM4-80GB", torch.bfloat16, 312e12),
        ("NVIDIA H200", torch.bfloat16, 989e12),
        ("NVIDIA H200", torch.float32, 67e12),
        ("NVIDIA H100 80GB HBM3", "fp8", 1979e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA B200", "bf16", 2250e12),
        ("Tesla V100-SXM2-16GB", torch.float16, 125e12),
        ("Tesla T4", "fp16", 65e12),
        ("NVIDIA A10G", "bf16", 70e12),
    ],
)
def test_peak_of_torchs_device_name(device_name, dtype, peak):
    assert peak_flops(device_name, dtype) == peak


@pytest.mark.parametrize(
    ("device_name", "dtype"),
    [
        ("cpu", "fp32"),
        ("", "bf16"),
        ("NVIDIA GeForce RTX 4090", "bf16"),
        ("NVIDIA A10", "bf16"),  # another chip than the A10G
        ("NVIDIA GB200", "bf16"),
        ("NVIDIA H200 NVL", "bf16"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "bf16"),  # a slice has a slice's peak
        ("Tesla V100-SXM2-16GB", torch.bfloat16),  # no such tensor cores
        ("NVIDIA H200", torch.int8),
    ],
)
def test_unknown_device_or_dtype_has_no_peak(device_name, dtype):
    assert peak_flops(device_name, dtype) is None


def test_peaks_are_dense():
    """Half precision is twice tf32 and fp8 twice half precision; sparsity would break that."""
    for gpu in gpus():
        peaks = gpu.peak_flops
        if "fp8" in peaks:
            assert peaks["fp8"] / peaks["bf16"] == pytest.approx(2, rel=0.01), gpu.name
        if "tf32" in peaks and "bf16" in peaks:
            assert peaks["bf16"] / peaks["tf32"] == pytest.approx(2, rel=0.01), gpu.name
        if gpu.matmul_flops:
            assert 0.5 < gpu.matmul_flops / peaks["bf16"] < 1, gpu.name


def test_every_instance_has_a_known_gpu_and_a_price_or_is_owned():
    priced = {recorded.instance for recorded in prices()}
    for instance in instances():
        assert find_gpu(instance.gpu)
        assert instance.name in priced or instance.name.startswith(("dgx", "hgx")), instance.name
    assert priced <= {instance.name for instance in instances()}


def test_names_are_unique():
    names = [row.name for row in (*gpus(), *instances())]
    torch_names = [gpu.torch_name for gpu in gpus()]
    offers = [(recorded.instance, recorded.service) for recorded in prices()]
    for unique in (names, torch_names, offers):
        assert len(set(unique)) == len(unique)


def test_find_gpu_by_short_and_device_name():
    assert find_gpu("a100-40") is find_gpu("NVIDIA A100-SXM4-40GB")


@pytest.mark.parametrize(("name", "close"), [("A100", "A100-40"), ("h10", "H100")])
def test_unknown_gpu_lists_close_names(name, close):
    with pytest.raises(UserError, match=close) as caught:
        find_gpu(name)
    assert "\n" not in str(caught.value)


def test_unknown_name_with_nothing_close_lists_all():
    with pytest.raises(UserError, match=r"known: V100-16, .*A10G"):
        find_gpu("zzzzzz")
    with pytest.raises(UserError, match=r"close: .*p4d\.24xlarge"):
        find_instance("p4.24xlarge")


def test_prices_are_the_recorded_ones():
    assert price("ml.p4d.24xlarge", service="sagemaker").usd_per_hour == 37.688
    assert price("p4d.24xlarge").usd_per_hour == 32.7726
    assert price("g5.12xlarge", service="sagemaker").usd_per_hour == 7.09
    assert price("p5.48xlarge").date == "2025-03-14"


def test_your_own_price_stands_in_for_any_instance():
    mine = price("my own box", override=2.5)
    assert (mine.usd_per_hour, mine.source) == (2.5, "given by you")
    assert price("my own box", service="my own cloud", override=2.5).service == "my own cloud"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"instance": "p5.48xlarge", "service": "sagemaker"}, "override"),
        ({"instance": "p4d.24xlarge", "service": "azure"}, "ec2, sagemaker"),
        ({"instance": "dgx-a100"}, "known: none, one owns it"),
        ({"instance": "p4d.24xlarge", "override": -1}, "above 0"),
        ({"instance": "p4d.24xlarge", "override": float("nan")}, "above 0"),
    ],
)
def test_a_price_that_is_not_known_says_what_to_do(arguments, words):
    with pytest.raises(UserError, match=words):
        price(**arguments)
