"""The device: its name in the table, its products, which kernels attention gets, the doctor."""

import subprocess
import sys
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from report import CUDA, DEVICE, ROOT, Report, one_by_one
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

CUDNN = SDPBackend.CUDNN_ATTENTION
# heads, heads of keys and values, width of a head
ATTENTION = {"gptj-6b": (16, 16, 256), "gpt2": (12, 12, 64), "falcon-7b": (71, 1, 64)}
ATTENTION |= {"llama2-70b": (64, 8, 128)}
# a vocabulary as published and up to the next multiple of 64: what would padding it gain?
VOCABULARIES = {"published": 50257, "padded": 50304}


def machine(report: Report) -> None:
    size, tokens, width = (256, 32, 64) if report.tiny else (8192, 2048, 1024)
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        a = torch.randn(size, size, device=DEVICE, dtype=dtype)
        report.figure(f"product, {name}, TFLOP/s", 2 * size**3 / seconds(lambda a=a: a @ a) / 1e12)
    for name, columns in VOCABULARIES.items():
        hidden = torch.randn(tokens, width, device=DEVICE, dtype=torch.bfloat16)
        head = torch.randn(columns, width, device=DEVICE, dtype=torch.bfloat16)
        gradient = torch.randn(tokens, columns, device=DEVICE, dtype=torch.bfloat16)
        report.figure(
            f"head of {columns} columns ({name}), ms", 1e3 * head_s(hidden, head, gradient)
        )
    for name, shape in ATTENTION.items():
        for masked in (False, True):
            words = f"attention of {name}, {'masked' if masked else 'causal'}"
            with report.attempt(words):
                report.figure(words, attention(*shape, tokens, masked))
        if CUDA:
            report.figure(f"attention of {name} by each kernel, ms", by_kernel(*shape, tokens))
    if CUDA:
        known_peak(report)
    said = subprocess.run(
        [sys.executable, "-m", "helpers.lab.doctor"], capture_output=True, text=True, cwd=ROOT
    )
    last = (said.stdout.strip().splitlines() or [said.stderr[-200:]])[-1]
    report.check("the doctor says ready", said.returncode == 0, last)


def known_peak(report: Report) -> None:
    from helpers.planner.hardware.lookup import peak_flops

    properties, name = torch.cuda.get_device_properties(0), torch.cuda.get_device_name()
    report.figure("memory, bytes", properties.total_memory)
    report.figure("NCCL", torch.cuda.nccl.version())
    peak = peak_flops(name, torch.bfloat16) or peak_flops(name, torch.float16)
    report.check("the device's peak is in the table", peak is not None, f"{name}: {peak}")


def seconds(work) -> float:
    return median(one_by_one(work, 10)[0])


def head_s(hidden: torch.Tensor, head: torch.Tensor, gradient: torch.Tensor) -> float:
    """The three products of a head of logits."""

    def products() -> None:
        hidden @ head.t(), gradient @ head, gradient.t() @ hidden

    return seconds(products)


def attention(heads: int, kv: int, width: int, tokens: int, masked: bool) -> dict[str, object]:
    """Forward and backward of one attention: its kernel and its time."""
    attend = attending(heads, kv, width, tokens, masked)
    with Kernels() as kernels:
        attend()
    return {"kernel": kernels.first, "ms": 1e3 * seconds(attend)}


def by_kernel(heads: int, kv: int, width: int, tokens: int) -> dict[str, float | None]:
    """Milliseconds of causal attention by each of the fused kernels; None where one refuses it."""
    attend, found = attending(heads, kv, width, tokens, masked=False), {}
    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, CUDNN):
        with sdpa_kernel(kernel):
            try:
                found[kernel.name] = 1e3 * seconds(attend)
            except RuntimeError:
                found[kernel.name] = None
    return found


def attending(heads: int, kv: int, width: int, tokens: int, masked: bool) -> Callable[[], None]:
    shape = (1, heads, tokens, width)
    of_kv = (1, kv, tokens, width)
    query, key, value = (
        torch.randn(one, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        for one in (shape, of_kv, of_kv)
    )
    mask = None
    if masked:
        mask = torch.ones(1, 1, tokens, tokens, device=DEVICE, dtype=torch.bool).tril()

    def attend() -> None:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=not masked, enable_gqa=heads != kv
        )
        out.sum().backward()

    return attend


class Kernels(TorchDispatchMode):
    """The name of the first operation that is attention's."""

    first = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if not self.first and ("scaled_dot_product" in name or "softmax" in name):
            self.first = name
        return func(*args, **(kwargs or {}))
