"""Seconds, memory and the share of the device's peak, beside what transformers and peft reach."""

import gc
from functools import partial
from statistics import median
from typing import Any

import torch
from report import CUDA, DEVICE, Report, forget_peak, in_a_row, one_by_one, peak_bytes
from torch import Tensor, nn

LEAST_MFU = 0.50  # of GPT-J-6B in bf16, all recomputed
AS_FAST = 0.97  # of another's speed: less is slower


def large_model(report: Report) -> None:
    """GPT-J-6B: is a step's time the device's, its memory the dry run's? How near is the peak?"""
    from helpers import ParallelPlan, Trainer, distributed, dry_run, load_config, load_model

    source, batch, seq = ("gptj-tiny", 4, 64) if report.tiny else ("gptj-6b", 16, 1024)
    count = 3 if report.tiny else 6
    config, plan = load_config(source), ParallelPlan(precision="bf16", activation="full")
    ids = torch.randint(config.vocab_size, (batch, seq))
    with distributed(plan, DEVICE) as mesh:
        loaded_s, models = one_by_one(
            lambda: load_model(source, plan, mesh, config=config, device=DEVICE), 1, warm=0
        )
        report.figure("loading, s", loaded_s[0])
        trainer = Trainer(models.pop(), plan, mesh, lr=1e-5)
        trainer.step(ids, ids)
        forget_peak()
        seconds, results = one_by_one(lambda: trainer.step(ids, ids), count)
        peak, step_s, said_s = peak_bytes(), median(seconds), median(r.step_s for r in results)
        report.figure("a step, s", step_s)
        report.figure("steps in a row, s", in_a_row(lambda: trainer.step(ids, ids), count))
        report.figure("peak of a step, bytes", peak)
        report.figure("state, bytes", trainer.state_bytes())
        missing = 1 - said_s / step_s
        report.check(
            "step_s is the device's time, to 1 %", missing < 0.01, f"{missing:.2%} missing"
        )
    share_of_peak(report, config, batch, seq, step_s)
    predicted = dry_run(config, plan, batch=batch, seq_len=seq, device="meta")
    report.figure("peak of a dry run, bytes", predicted.at_peak)
    if peak:
        ratio = predicted.peak_bytes / peak
        report.check(
            "the dry run's peak is the device's, to 5 %", abs(ratio - 1) < 0.05, f"{ratio:.3f}"
        )


def share_of_peak(report: Report, config: Any, batch: int, seq: int, step_s: float) -> None:
    from helpers.planner.cost import train_flops_per_token
    from helpers.planner.hardware.lookup import peak_flops
    from helpers.planner.shape import model_shape

    flops = train_flops_per_token(model_shape(config), seq) * batch * seq
    peak = peak_flops(torch.cuda.get_device_name(), torch.bfloat16) if CUDA else None
    report.figure("tokens per second", batch * seq / step_s)
    if peak:
        mfu = flops / step_s / peak
        report.check(
            f"MFU is {LEAST_MFU:.0%} at least", report.tiny or mfu >= LEAST_MFU, f"{mfu:.3f}"
        )


def compiled(report: Report) -> None:
    """GPT-2 compiled and not, in bf16 and in float32, beside transformers under autocast."""
    from helpers import load_config

    source, batch, seq = ("gpt2-tiny", 4, 64) if report.tiny else ("gpt2", 16, 1024)
    config = load_config(source)
    ids = torch.randint(config.vocab_size, (batch, seq))
    for precision in ("bf16", "fp32"):
        for name, is_compiled in ((precision, False), (f"{precision}, compiled", True)):
            with report.attempt(f"this engine, {name}"):
                time_engine(report, source, ids, precision, is_compiled)
            with report.attempt(f"transformers, {name}"):
                time_plain(report, config, ids, precision, is_compiled)
    for name in ("bf16", "bf16, compiled"):
        ours, theirs = (report.figures.get(f"{who}, {name}") for who in ("engine", "transformers"))
        if ours and theirs:
            gain = theirs["step_s"] / ours["step_s"]
            fine = report.tiny or gain >= AS_FAST
            report.check(f"{name}: as fast as transformers", fine, f"{gain:.2f} times")


def timed(report: Report, name: str, step: Any, ids: Tensor) -> None:
    count = 3 if report.tiny else 20
    forget_peak()
    first_s = one_by_one(step, 1, warm=0)[0][0]
    one_by_one(step, 1, warm=1)
    step_s = in_a_row(step, count)
    found = {"step_s": step_s, "tokens_per_s": ids.numel() / step_s, "first_step_s": first_s}
    report.figure(name, found | {"peak_bytes": peak_bytes()})


def time_engine(report: Report, source: str, ids: Tensor, precision: str, compile: bool) -> None:
    from helpers import ParallelPlan, Trainer, distributed, load_model

    plan = ParallelPlan(precision=precision, compile=compile)
    with distributed(plan, DEVICE) as mesh:
        trainer = Trainer(load_model(source, plan, mesh, device=DEVICE), plan, mesh, lr=1e-4)
        name = f"engine, {precision}{', compiled' if compile else ''}"
        timed(report, name, lambda: trainer.step(ids, ids), ids)


def time_plain(report: Report, config: Any, ids: Tensor, precision: str, compile: bool) -> None:
    import transformers

    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compile else model

    def step() -> float:
        here = ids.to(DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = run(input_ids=here, labels=here, use_cache=False).loss
        return taken(model, loss, optimizer)

    timed(report, f"transformers, {precision}{', compiled' if compile else ''}", step, ids)


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
        model = load_adapted(source, plan, mesh, how, config=config, device=DEVICE)
        step = Trainer(model, plan, mesh, lr=1e-4).step
        for name, documents in (("engine", None), ("engine, packed rows", packed)):
            with report.attempt(name):
                timed(report, name, partial(step, ids, ids, documents), ids)
    del model, step
    gc.collect()
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
