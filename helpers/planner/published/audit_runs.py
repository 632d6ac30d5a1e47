"""Training runs that others published with what they measured, as data for audit.py.

Nothing here was run by this project. `said` names what a source does not state and had to be
assumed; `why_not` says why a run is not predicted.
"""

from dataclasses import dataclass, replace
from typing import Any

from helpers.planner.hardware.cluster import REACHED, Cluster, make_cluster
from helpers.planner.model.block_tensors import LLAMA_COMPILED, MEGATRON, Program
from helpers.planner.published.audit_shapes import GPTJ_6B, gpt, llama
from helpers.planner.shape import Shape


@dataclass(frozen=True)
class Run:
    """One published run.

    plan: fields of ParallelPlan.
    batch: samples of a step, over all ranks.
    step_s, memory_gib: measured; None where not published.
    theirs_s: what Calculon predicts for the same run.
    """

    name: str
    source: str
    shape: Shape | None = None
    cluster: Cluster | None = None
    plan: dict[str, Any] | None = None
    batch: int = 0
    seq_len: int = 0
    program: Program | None = None
    step_s: float | None = None
    memory_gib: float | None = None
    theirs_s: float | None = None
    measured: str = ""
    said: str = ""
    why_not: str = ""


# --- Korthikanti et al. 2022, table 5, with tables 1 and 3 for the models and layouts ----------

KORTHIKANTI = "arXiv 2205.05198, table 5"


def _korthikanti() -> list[Run]:
    # name, shape, pp, virtual stages, batch, micro-batches; measured and Calculon's seconds, for
    # full recomputation and for sequence parallelism with selective recomputation
    table = (
        ("22B", gpt(6144, 48, 64), 1, 1, 4, 1, (1.42, 1.40), (1.10, 1.14)),
        ("175B", gpt(12288, 96, 96), 8, 3, 64, 64, (18.13, 18.03), (13.75, 13.64)),
        ("530B", gpt(20480, 105, 128), 35, 3, 280, 280, (49.05, 49.89), (37.83, 34.47)),
        ("1T", gpt(25600, 128, 160), 64, 1, 512, 512, (94.42, 90.08), (71.49, 66.04)),
    )
    runs = []
    for name, shape, pp, virtual, batch, microbatches, *both in table:
        stages = pp * virtual
        layout = {
            "tp": 8,
            "pp": pp,
            "precision": "fp16",
            "microbatches": microbatches,
            "schedule": "interleaved" if virtual > 1 else "1f1b",
            "virtual_stages": virtual if virtual > 1 else 0,
            "partition": ",".join([str(shape.layers // stages)] * stages) if pp > 1 else "auto",
        }
        ways = (
            ("full", layout | {"activation": "full"}),
            ("selective", layout | {"activation": "selective", "sequence_parallel": True}),
        )
        for (way, plan), (step_s, theirs_s) in zip(ways, both):
            runs.append(
                Run(
                    f"{name}, {way}",
                    KORTHIKANTI,
                    shape,
                    make_cluster("dgx-a100", nodes=pp),
                    plan,
                    batch,
                    2048,
                    MEGATRON,
                    step_s=step_s,
                    theirs_s=theirs_s,
                )
            )
    return runs


# --- KempnerForge: H200, four a node ----------------------------------------------------------

KEMPNER = "KempnerInstitute/KempnerForge benchmarks"
L7B, L13B = llama(4096, 32, 32, 8, 14336), llama(5120, 40, 40, 8, 17920)
L70B = llama(8192, 80, 64, 8, 28672)
NDR = "400 Gb/s a GPU assumed"


def _h200(gpus: int) -> Cluster:
    box = make_cluster("hgx-h200", nodes=max(1, gpus // 4))
    return replace(box, name="4 x H200", devices_per_node=min(gpus, 4))


def _kempner() -> list[Run]:
    # model, tp, dp, sequences a data rank and micro-batch, micro-batches; seconds, GB
    sweep = (
        ("7B", L7B, 1, 1, 2, 4, 3.13, 80.7, True),
        ("7B", L7B, 1, 2, 2, 4, 3.50, 62.4, True),
        ("7B", L7B, 2, 1, 4, 2, 2.49, 57.8, True),
        ("7B", L7B, 1, 4, 4, 2, 3.36, 61.1, True),
        ("7B", L7B, 4, 1, 4, 2, 1.30, 39.4, True),
        ("7B", L7B, 2, 2, 4, 2, 2.52, 45.9, True),
        ("7B", L7B, 4, 2, 4, 2, 1.48, 32.7, True),
        ("13B", L13B, 1, 8, 4, 4, 14.81, 88.5, False),
        ("13B", L13B, 4, 2, 4, 4, 4.79, 45.1, True),
        ("7B", L7B, 4, 4, 4, 2, 1.58, 29.4, True),
        ("13B", L13B, 4, 4, 4, 4, 4.87, 39.2, True),
        ("7B", L7B, 4, 8, 4, 2, 1.68, 27.6, True),
        ("13B", L13B, 4, 8, 4, 4, 5.03, 36.3, True),
        ("70B", L70B, 4, 8, 2, 4, 14.85, 93.2, True),
    )
    weak = (
        ("13B", L13B, 4, 2, 4, 4, 4.39, 45.0, True),
        ("13B", L13B, 4, 8, 4, 4, 4.75, 36.2, True),
        ("13B", L13B, 4, 16, 4, 4, 4.84, 34.8, True),
        ("13B", L13B, 4, 32, 4, 4, 4.95, 34.0, True),
        ("13B", L13B, 4, 40, 4, 4, 4.91, 33.9, True),
        ("70B", L70B, 4, 2, 2, 4, 18.09, 128.5, True),
        ("70B", L70B, 4, 8, 2, 4, 14.03, 93.2, True),
        ("70B", L70B, 4, 16, 2, 4, 14.63, 86.8, True),
        ("70B", L70B, 4, 24, 2, 4, 15.07, 84.6, True),
        ("70B", L70B, 4, 32, 2, 4, 14.98, 83.6, True),
        ("70B", L70B, 4, 40, 2, 4, 15.32, 82.9, True),
    )
    large = llama(12288, 96, 96, 8, 39680)
    one = (("175B", large, 4, 90, 8, 1, 19.09, 53.8, True),)
    runs = []
    for where, rows in (("mfu_scaling", sweep), ("weak_scaling_160gpu", weak), ("175b", one)):
        for model, shape, tp, dp, rows_each, microbatches, step_s, gb, compiled in rows:
            plan = {
                "tp": tp,
                "dp_shard": dp,
                "precision": "bf16",
                "activation": "full",
                "microbatches": microbatches,
            }
            runs.append(
                Run(
                    f"{model}, tp {tp}, FSDP {dp}",
                    f"{KEMPNER}/{where}",
                    shape,
                    _h200(tp * dp),
                    plan,
                    rows_each * microbatches * dp,
                    4096,
                    LLAMA_COMPILED if compiled else None,
                    step_s=step_s,
                    memory_gib=gb,
                    said=NDR if tp * dp > 4 else "",
                )
            )
    return runs


# --- torchtitan: H100 of 96 GB and 500 W, Grand Teton -----------------------------------------

TITAN = "pytorch/torchtitan benchmarks, December 2024"
L8B, L405B = L7B, llama(16384, 126, 128, 8, 53248)


def _grand_teton(nodes: int) -> Cluster:
    box = make_cluster("dgx-h100", nodes=nodes)
    return replace(
        box,
        name="8 x H100 96 GB",
        memory_bytes=96 * 2**30,
        memory_bytes_per_s=2.4e12 * REACHED["memory"],
    )


def _titan_row(
    name: str,
    shape: Shape,
    gpus: int,
    tokens_per_s: float,
    gib: float | None,
    batch: int,
    plan: dict[str, Any],
    program: Program | None,
    said: str = "",
) -> Run:
    step_s = batch * 8192 / (tokens_per_s * gpus)
    cluster = _grand_teton(gpus // 8)
    said = said or "the peak at 500 W is not known; 700 W taken"
    return Run(
        name, TITAN, shape, cluster, plan, batch, 8192, program,
        step_s=step_s, memory_gib=gib, said=said,
    )  # fmt: skip


def _titan() -> list[Run]:
    eight = {"dp_shard": 8, "precision": "bf16", "activation": "selective"}
    many = eight | {"dp_shard": 128}
    both = {"dp_shard": 32, "tp": 8, "precision": "bf16", "activation": "full"}
    both |= {"sequence_parallel": True}
    no_fp8 = "float8 is no precision of a plan"
    no_cp = "float8, and the sequence over ranks (CP), are not in a plan"
    runs = [
        _titan_row("8B, FSDP 8", L8B, 8, 5762, 82.4, 16, eight, None),
        _titan_row("8B, FSDP 8, compiled", L8B, 8, 6667, 77.0, 16, eight, LLAMA_COMPILED),
        _titan_row("8B, FSDP 128", L8B, 128, 5605, 67.0, 256, many, None),
        _titan_row("8B, FSDP 128, compiled", L8B, 128, 6514, 62.0, 256, many, LLAMA_COMPILED),
        _titan_row(
            "70B, FSDP 32, tp 8, compiled", L70B, 256, 597.3, None, 512, both, LLAMA_COMPILED
        ),
    ]
    left_out = (
        ("8B, FSDP 8, compiled, float8", "8,532 tokens/s a GPU", no_fp8),
        ("8B, FSDP 128, compiled, float8", "8,380 tokens/s a GPU", no_fp8),
        ("8B, float8, CP 1, 2, 4, 8", "3,890, 2,540, 1,071, 548 tokens/s a GPU", no_cp),
        ("70B, FSDP 32, tp 8, float8", "829; 876 with asynchronous tp", no_fp8),
        ("70B, FSDP 32, tp 8, asynchronous tp", "652.4 tokens/s a GPU", "tp is not asynchronous"),
        ("405B, FSDP 8, tp 8, pp 8, float8", "100; 128 interleaved", no_fp8),
        ("405B with CP 1, 2, 4, 8", "76, 47, 31, 16 tokens/s a GPU", no_cp),
        ("8B, 32 and 64 x H200, float8", "10,938 and 10,753 tokens/s a GPU", no_fp8),
    )
    return runs + [Run(n, TITAN, measured=m, why_not=why) for n, m, why in left_out]


# --- the SageMaker model parallel library's own logs ------------------------------------------

SMP_LOG = "aws/amazon-sagemaker-examples, stored output of the GPT-J notebooks"


def _smp() -> list[Run]:
    tensor = {"tp": 8, "zero_stage": 1, "precision": "fp16", "activation": "full"}
    runs = [
        Run(
            "GPT-J-6B, tp 8", SMP_LOG, GPTJ_6B, make_cluster("p4d.24xlarge"), tensor, 8, 1024,
            MEGATRON, step_s=8 / 14.65,
        ),
        Run(
            "GPT-J-6B, tp 8, pp 2", SMP_LOG, GPTJ_6B, make_cluster("p4d.24xlarge", nodes=2),
            tensor | {"pp": 2, "microbatches": 1}, 16, 512, MEGATRON, step_s=16 / 15.6,
            said="one micro-batch, the library's default",
        ),
    ]  # fmt: skip
    unknown = "its batch, micro-batches or length were not recorded"
    left_out = (
        ("GPT-J-6B, pp 16, 4 x p3.16xlarge", "22 s a step", "weights moved by execution servers"),
        ("GPT-2 1.44B, sharded 2, 2 nodes", "46 samples/s", unknown),
        ("GPT-2 30B, sharded, 256 GPUs", "141 TFLOP/s a GPU", "not said which FLOPs are counted"),
        ("GPT-2 10B, 256 GPUs", "564 samples/s", unknown),
        ("GPT-2 175B, 120 x p4d", "32 samples/s", "length and layout were never published"),
        ("Llama-3.1 8B, p5, CP 8", "2.00 to 2.03 samples/s", "CP is not in a plan"),
    )
    return runs + [Run(n, SMP_LOG, measured=m, why_not=why) for n, m, why in left_out]


# --- others that engines.md names -------------------------------------------------------------

FMS = "foundation-model-stack/fms-fsdp README"


def _others() -> list[Run]:
    l2_7b, l2_13b = llama(4096, 32, 32, 32, 11008, 32000), llama(5120, 40, 40, 40, 13824, 32000)
    l2_34b, l2_70b = llama(8192, 48, 64, 8, 22016, 32000), llama(8192, 80, 64, 8, 28672, 32000)
    hybrid = {"dp_replicate": 16, "dp_shard": 8, "precision": "bf16", "reduce_dtype": "bf16"}
    flat = {"dp_shard": 128, "precision": "bf16", "reduce_dtype": "bf16", "activation": "full"}
    rows = (
        ("7B, HSDP 8 x 16", l2_7b, hybrid, 2, 3760),
        ("13B, HSDP 8 x 16", l2_13b, hybrid, 1, 1700),
        ("34B, FSDP 128", l2_34b, flat, 8, 772),
        ("70B, FSDP 128", l2_70b, flat, 6, 380),
    )
    runs = [
        Run(
            name, FMS, shape, make_cluster("dgx-a100", nodes=16), plan, rows_each * 128, 4096,
            LLAMA_COMPILED, step_s=rows_each * 4096 / tokens_per_s,
            said="1,600 Gb/s a node and sums in bf16 assumed",
        )
        for name, shape, plan, rows_each, tokens_per_s in rows
    ]  # fmt: skip
    left_out = (
        ("7B, 128 x A100, later README", "4,550 tokens/s a GPU", "batch not stated; disputed"),
        ("70B, 128 x A100, later README", "410 tokens/s a GPU", "batch not stated"),
        ("7B and 70B, 96 x H100", "9,600 and 890 tokens/s a GPU", "batch not stated"),
    )
    return runs + [Run(n, FMS, measured=m, why_not=why) for n, m, why in left_out]


# Figure 1 of arXiv 2205.05198 in GiB, as calculon/llm/validation.py reads it off: parameters and
# optimizer, and activations with tensor parallelism alone and with both of the paper's savings.
FIGURE_1 = {
    "22B": (45.5625, 59.25, 9.5625),
    "175B": (45.5625, 66.84375, 12.3515625),
    "530B": (31.640625, 114.0234375, 23.076171875),
    "1T": (32.958984375, 131.25, 26.5625),
}

RUNS = (*_korthikanti(), *_kempner(), *_titan(), *_smp(), *_others())
