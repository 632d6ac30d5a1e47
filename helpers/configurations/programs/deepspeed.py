"""DeepSpeed's JSON files as plans."""

from typing import Any

from helpers.configurations.facts import Asked, Facts, Layout, batches, left_over
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.smp.configuration import precision_of

HALF = ("fp16", "bf16")
DECAY_PEAK = 1e-3  # of WarmupDecayLR, whatever the optimizer's rate is; WarmupLR's until 0.17.2


def sizes(facts: Facts) -> None:
    """A configuration of DeepSpeed says nothing of the model."""


def layout(facts: Facts, ranks: int | None, model: Any) -> Layout:
    """The plan.

    Raises:
        UserError: what the file asks for cannot be kept, in one line.
    """
    tp, pp, cp = (facts.get(name, 1) for name in ("tp", "pp", "cp"))
    dp = left_over(ranks or _ranks(facts, tp * pp * cp), tp=tp, pp=pp, cp=cp)
    lost: list[str] = []
    degrees = _shared(facts, dp, lost)
    batch, parts = batches(facts, dp)
    offload = bool(facts.get("offload"))
    precision = _precision(facts)
    _sums(facts, precision, dp * cp, parts, lost)
    _schedule(facts)
    plan = ParallelPlan(
        **degrees,
        tp=tp,
        pp=pp,
        cp=cp,
        cp_attention="ulysses" if cp > 1 else "ring",
        zero_stage=_zero(facts) or 3,  # which is the plan's own, where nothing is shared
        precision=precision,
        reduce_dtype=facts.get("reduce_dtype", "fp32"),
        activation="full" if offload else "none",
        offload=offload,
        compile=bool(facts.get("compile")),
        microbatches=parts if parts > 1 or pp > 1 else 0,
    )
    return Layout(plan, batch, lost)


def _sums(facts: Facts, precision: str, ranks: int, parts: int, lost: list[str]) -> None:
    """In what gradients are sent, and summed over micro-batches: as they are, unless it is said."""
    if precision not in HALF:
        return
    if ranks > 1 and facts.get("reduce_dtype") is None:
        facts.own("reduce_dtype", precision, f"communication_data_type = {precision}")
    masters = not facts.get("autocast")  # beside which gradients are float32
    if masters and parts > 1 and "data_types.grad_accum_dtype" not in facts.keys:
        key = "data_types.grad_accum_dtype"
        lost.append(f"{key} is not said, and is {precision} there: micro-batches' sums are float32")


def _schedule(facts: Facts) -> None:
    """The highest rate, which a schedule takes from the optimizer or puts in its place.

    Raises:
        UserError: the schedule has no such key.
    """
    kind, peak = facts.get("lr_schedule"), facts.get("peak_lr")
    if "lr_schedule" not in facts.said_by:
        # a script that fills in other values, as transformers' Trainer, brings its own schedule
        if facts.open or facts.programs[0] != "deepspeed":
            facts.forget("lr_schedule")
        return
    if kind == "cosine":
        if peak:
            raise UserError(
                "scheduler.params.warmup_max_lr: WarmupCosineLR has no such key, and its highest "
                "learning rate is optimizer.params.lr"
            )
        return
    if peak and peak != facts.get("lr"):
        facts.instead("lr", peak, f"the schedule puts its warmup_max_lr in its place: lr {peak}")
    elif not peak and kind == "linear" and "peak_lr" not in facts.open:
        facts.instead("lr", DECAY_PEAK, "WarmupDecayLR puts its own in its place, 0.001")
        facts.own("lr", DECAY_PEAK, f"scheduler.params.warmup_max_lr = {DECAY_PEAK}")
    elif not peak and "lr" in facts.said_by and "peak_lr" not in facts.open:
        words = "scheduler.params.warmup_max_lr = optimizer.params.lr (0.001 before 0.17.2)"
        facts.silent["peak_lr"] = words


def _ranks(facts: Facts, others: int) -> int:
    """Of a file that says the whole batch and all its parts."""
    batch, micro, parts = (facts.get(name) for name in ("batch", "micro", "accumulation"))
    if not (batch and micro and parts):
        raise Asked("ranks")
    if batch % (micro * parts):
        words = f"{micro} a micro-batch x {parts} micro-batches"
        raise UserError(f"a batch of {batch} does not divide by {words}")
    return batch // (micro * parts) * others


def _zero(facts: Facts) -> int:
    """The stage of ZeRO, 0 where it is off."""
    return int(facts.get("zero", 0))


def _shared(facts: Facts, dp: int, lost: list[str]) -> dict[str, int]:
    """The data ranks as replicas and as ranks that share state."""
    if not _zero(facts):
        return {"dp_replicate": dp, "dp_shard": 1}
    inside, hpz = facts.get("inside"), facts.get("hpz", 1)
    if inside is None and hpz > 1:
        inside = hpz
        lost.append("zero_hpz_partition_size: its optimizer's state is shared by all data ranks")
    if inside is None:
        return {"dp_replicate": 1, "dp_shard": dp}
    if dp % inside:
        raise UserError(f"{inside} ranks that share state do not divide {dp} data ranks")
    return {"dp_replicate": dp // inside, "dp_shard": inside}


def _precision(facts: Facts) -> str:
    precision = precision_of(facts.get("fp16"), facts.get("bf16"))
    return str(facts.get("autocast_dtype", "bf16")) if facts.get("autocast") else precision
