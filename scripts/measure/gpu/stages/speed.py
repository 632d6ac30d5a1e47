"""Seconds, memory and the share of the device's peak, beside what transformers and peft reach."""

import json
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from report import CUDA, DEVICE, Report, forget_peak, in_a_row, one_by_one, peak_bytes
from torch import Tensor, nn

LEAST_MFU = 0.50  # of GPT-J-6B in bf16
LARGE = {  # its plans, and rows of 1,024 tokens
    "all recomputed": ({"activation": "full"}, 16),
    "nothing recomputed": ({}, 8),
    "nothing recomputed, compiled": ({"compile": True}, 8),
    "4 micro-batches": ({"microbatches": 4}, 32),
}
AS_FAST = 0.97  # of another's speed: less is slower


def large_model(report: Report) -> None:
    """GPT-J-6B by several plans: is a step's time the device's, its memory the dry run's, its pace
    the planner's? How near is the peak?"""
    for name, (fields, batch) in LARGE.items():
        sizes = ("gptj-tiny", 4, 64) if report.tiny else ("gptj-6b", batch, 1024)
        if report.tiny and "compile" in fields:
            continue
        with report.attempt(name):
            time_plan(report, name, fields, *sizes)


def time_plan(
    report: Report, name: str, fields: dict[str, Any], source: str, batch: int, seq: int
) -> None:
    from helpers import ParallelPlan, Trainer, distributed, load_config, load_model, make_cluster

    forget_peak()  # and the last plan's model
    config, device = load_config(source), torch.cuda.get_device_name() if CUDA else "cpu"
    plan, count = ParallelPlan(precision="bf16", **fields), 4
    ids = torch.randint(config.vocab_size, (batch, seq))
    with distributed(plan, DEVICE) as mesh:
        loaded_s, models = one_by_one(
            lambda: load_model(source, plan, mesh, config=config, device=DEVICE), 1, warm=0
        )
        trainer = Trainer(models.pop(), plan, mesh, lr=1e-5)
        first_s = one_by_one(lambda: trainer.step(ids, ids), 1, warm=0)[0][0]
        forget_peak()
        seconds, results = one_by_one(lambda: trainer.step(ids, ids), count, warm=1)
        peak, step_s, said_s = peak_bytes(), median(seconds), median(r.step_s for r in results)
        found = {"batch": batch, "seq_len": seq, "load_s": loaded_s[0], "first_step_s": first_s}
        found |= {"step_s": step_s, "in_a_row_s": in_a_row(lambda: trainer.step(ids, ids), count)}
        found |= {"peak_bytes": peak, "state_bytes": trainer.state_bytes()}
    found |= {
        "tokens_per_s": batch * seq / step_s,
        "mfu": share_of_peak(config, device, batch, seq, step_s),
    }
    if found["mfu"]:  # its peak is known, so it is in the planner's table
        cluster = make_cluster(gpu=device, gpus=1)
        found["predicted"] = predicted(config, plan, batch, seq, cluster)
    report.figure(f"GPT-J, {name}", found)
    missing = 1 - said_s / step_s
    report.check(f"{name}: step_s is the device's, to 1 %", missing < 0.01, f"{missing:.2%} off")
    if found["mfu"]:
        enough = report.tiny or found["mfu"] >= LEAST_MFU
        report.check(f"{name}: MFU is {LEAST_MFU:.0%} at least", enough, f"{found['mfu']:.3f}")
    if peak and not plan.compile:  # a dry run compiles nothing
        ratio = dry_peak(report, config, plan, batch, seq) / peak
        words = f"{name}: the dry run's peak is the device's, to 5 %"
        report.check(words, abs(ratio - 1) < 0.05, f"{ratio:.3f}")


def dry_peak(report: Report, config: Any, plan: Any, batch: int, seq: int) -> int:
    from helpers import dry_run

    run = dry_run(config, plan, batch=batch, seq_len=seq, device="meta")
    report.figure(f"dry run of {plan.activation}, bytes", run.at_peak)
    return run.peak_bytes


def predicted(config: Any, plan: Any, batch: int, seq: int, cluster: Any) -> dict[str, float]:
    """Seconds and bytes of a step, as the planner says."""
    from helpers import estimate

    said = estimate(config, plan, cluster, batch, seq)
    return {"step_s": said.time.total_s, "peak_bytes": said.memory.total}


def calibrated(report: Report) -> None:
    """What this machine measures of itself, and the seconds that the planner then says."""
    from helpers import ParallelPlan, load_config
    from helpers.planner.measure.calibrate import calibrate

    with tempfile.TemporaryDirectory() as folder:
        cluster = calibrate(Path(folder) / "machine.json", gpus=CUDA)
        report.figure("machine", json.loads((Path(folder) / "machine.json").read_text()))
    if cluster.devices > 1:
        return
    for name, (fields, batch) in LARGE.items():
        with report.attempt(name):
            plan = ParallelPlan(precision="bf16", **fields)
            said = predicted(load_config("gptj-6b"), plan, batch, 1024, cluster)
            report.figure(f"GPT-J, {name}", said)


def share_of_peak(config: Any, device: str, batch: int, seq: int, step_s: float) -> float | None:
    from helpers.planner.cost import mfu, train_flops_per_token
    from helpers.planner.hardware.lookup import peak_flops
    from helpers.planner.shape.families import model_shape

    flops = train_flops_per_token(model_shape(config), seq)
    return mfu(batch * seq / step_s, flops, 1, peak_flops(device, torch.bfloat16))


def compiled(report: Report) -> None:
    """GPT-2 in bf16, compiled and not, beside transformers under autocast."""
    from helpers import load_config

    source, batch, seq = ("gpt2-tiny", 4, 64) if report.tiny else ("gpt2", 16, 1024)
    config = load_config(source)
    ids = torch.randint(config.vocab_size, (batch, seq))
    for name, is_compiled in (("bf16", False), ("bf16, compiled", True)):
        with report.attempt(f"this engine, {name}"):
            time_engine(report, name, source, ids, is_compiled)
        with report.attempt(f"transformers, {name}"):
            time_plain(report, name, config, ids, is_compiled)
        ours, theirs = (report.figures.get(f"{who}, {name}") for who in ("engine", "transformers"))
        if ours and theirs:
            gain = theirs["step_s"] / ours["step_s"]
            fine = report.tiny or gain >= AS_FAST
            report.check(f"{name}: as fast as transformers", fine, f"{gain:.2f} times")


def timed(report: Report, name: str, step: Any, ids: Tensor) -> None:
    count = 3 if report.tiny else 10
    forget_peak()
    first_s = one_by_one(step, 1, warm=0)[0][0]
    one_by_one(step, 1, warm=1)
    step_s = in_a_row(step, count)
    found = {"step_s": step_s, "tokens_per_s": ids.numel() / step_s, "first_step_s": first_s}
    report.figure(name, found | {"peak_bytes": peak_bytes()})


def time_engine(report: Report, name: str, source: str, ids: Tensor, compile: bool) -> None:
    from helpers import ParallelPlan, Trainer, distributed, load_model

    plan = ParallelPlan(precision="bf16", compile=compile)
    with distributed(plan, DEVICE) as mesh:
        trainer = Trainer(load_model(source, plan, mesh, device=DEVICE), plan, mesh, lr=1e-4)
        timed(report, f"engine, {name}", lambda: trainer.step(ids, ids), ids)


def time_plain(report: Report, name: str, config: Any, ids: Tensor, compile: bool) -> None:
    import transformers

    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compile else model

    def step() -> float:
        here = ids.to(DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = run(input_ids=here, labels=here, use_cache=False).loss
        return taken(model, loss, optimizer)

    timed(report, f"transformers, {name}", step, ids)


def taken(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> float:
    loss.backward()
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def adapters(report: Report) -> None:
    """Falcon-7B in 4 bits with adapters, rows packed and not, beside peft on transformers."""
    from helpers import Adapting, ParallelPlan, Trainer, distributed, load_adapted, load_config

    source, batch, seq = ("falcon-tiny", 2, 64) if report.tiny else ("falcon-7b", 4, 2048)
    config, plan = load_config(source), ParallelPlan(precision="bf16", activation="full")
    ids = torch.randint(config.vocab_size, (batch, seq))
    packed = (torch.arange(seq) // (seq // 4)).expand(batch, seq).contiguous()
    with distributed(plan, DEVICE) as mesh:
        how = Adapting(rank=16, quantize="nf4")
        loaded_s, models = one_by_one(
            lambda: load_adapted(source, plan, mesh, how, config=config, device=DEVICE), 1, warm=0
        )
        report.figure("loading, s", loaded_s[0])
        model = models.pop()
        step = Trainer(model, plan, mesh, lr=1e-4).step
        for name, documents in (("engine", None), ("engine, packed rows", packed)):
            with report.attempt(name):
                timed(report, name, partial(step, ids, ids, documents), ids)
    del model, step
    forget_peak()
    with report.attempt("peft"):
        time_peft(report, source, ids)
    ours, theirs = (report.figures.get(name) for name in ("engine", "peft"))
    if ours and theirs:
        gain = theirs["step_s"] / ours["step_s"]
        report.check("as fast as peft", report.tiny or gain >= AS_FAST, f"{gain:.2f} times")


def time_peft(report: Report, source: str, ids: Tensor) -> None:
    """peft's adapters on transformers' class, whose layers are in the same 4 bits."""
    import peft

    from helpers.engine.adapters.linear_layers import linear_paths
    from helpers.engine.adapters.nf4 import load_quantized

    base = load_quantized(source, device=DEVICE)
    targets = sorted({path.rpartition(".")[2] for path in linear_paths(base)})
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    base.enable_input_require_grads()
    how = peft.LoraConfig(r=16, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, how).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def step() -> float:
        here = ids.to(DEVICE)
        return taken(model, model(input_ids=here, labels=here, use_cache=False).loss, optimizer)

    timed(report, "peft", step, ids)
