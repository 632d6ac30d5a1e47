"""accelerate's YAML files as plans."""

from dataclasses import replace
from typing import Any

from helpers.configurations.facts import Asked, Facts, Layout, batches, check_ranks, left_over
from helpers.configurations.programs import deepspeed, megatron
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan

STAGES = {"full": 3, "grad": 2, "hybrid": 3, "hybrid_grad": 2, "none": 3}
SIZES = ("dp_replicate", "dp_shard", "cp", "sp", "tp")


def sizes(facts: Facts) -> None:
    """A configuration of accelerate says nothing of the model."""


def layout(facts: Facts, ranks: int | None, model: Any) -> Layout:
    """The plan.

    Raises:
        UserError: what the file asks for cannot be kept, in one line.
    """
    kind = facts.get("kind", "NO")
    ranks = ranks or (1 if kind == "NO" else facts.get("ranks"))
    if facts.get("old_fp16"):
        facts.values.setdefault("precision", "fp16")
    if kind == "DEEPSPEED":
        return _deepspeed(facts, ranks)
    if kind == "MEGATRON_LM":
        return _with_precision(megatron.layout(facts, ranks, None), facts)
    if ranks is None:
        raise Asked("ranks")
    strategy, sized = _strategy(facts), any(facts.get(name) for name in SIZES)
    degrees = _sized(facts, ranks) if sized else _plain(facts, ranks, strategy)
    if kind == "NO" and ranks > 1:
        raise UserError(f"distributed_type NO is one process, and there are {ranks} ranks")
    cp = degrees.get("cp", 1)
    attention = facts.get("cp_attention", "gather") if cp > 1 else "ring"
    batch, parts = batches(facts, ranks // cp // degrees.get("tp", 1))
    plan = ParallelPlan(
        **degrees,
        cp_attention="ulysses" if facts.get("sp", 1) > 1 else attention,
        zero_stage=STAGES[strategy],
        activation="full" if facts.get("activation") else "none",
        precision=facts.get("precision", "fp32"),
        reduce_dtype=_sums(facts, kind, ranks),
        compile=bool(facts.get("compile")),
        microbatches=parts if parts > 1 else 0,
    )
    return Layout(plan, batch)


def _sums(facts: Facts, kind: str, ranks: int) -> str:
    """In what gradients are sent: with FSDP as the arithmetic is (8 bits: bf16), else float32."""
    precision = facts.get("precision", "fp32")
    if kind != "FSDP" or ranks == 1 or precision == "fp32":
        return "fp32"
    dtype = "bf16" if precision == "fp8" else precision
    facts.own("reduce_dtype", dtype, f"the reduce_dtype of FSDP's mixed_precision_policy = {dtype}")
    return dtype


def _strategy(facts: Facts) -> str:
    """What the file's version of FSDP reads; a key of the other version is ignored there."""
    version = facts.get("version", "1")
    names = ("strategy", "reshard") if version == "1" else ("reshard", "strategy")
    if facts.get(names[1]) is not None:
        facts.instead(names[1], None, f"version {version} of FSDP does not read it")
    return str(facts.get(names[0], "full"))


def _plain(facts: Facts, ranks: int, strategy: str) -> dict[str, int]:
    """Without parallelism_config: what FSDP's strategy says, or replicas."""
    if facts.get("kind") != "FSDP" or strategy == "none":
        return {"dp_replicate": ranks}
    if strategy not in ("hybrid", "hybrid_grad"):
        return {"dp_shard": ranks}
    nodes = facts.get("nodes", 1)
    return {"dp_replicate": nodes, "dp_shard": left_over(ranks, num_machines=nodes)}


def _sized(facts: Facts, ranks: int) -> dict[str, int]:
    given = {name: facts.get(name, 1) for name in SIZES}
    if given["cp"] > 1 and given["sp"] > 1:
        raise UserError("cp_size and sp_size are two ways over one axis: keep one")
    check_ranks(ranks, **given)
    sp = given.pop("sp")
    return given | {"cp": max(given["cp"], sp)}


def _deepspeed(facts: Facts, ranks: int | None) -> Layout:
    if facts.get("zero") is None and not facts.get("beside"):
        facts.values["zero"] = 2  # accelerate's own
    for name in ("cp", "tp"):
        if facts.get(name, 1) > 1:
            raise UserError(f"{name}_size is FSDP's: beside DeepSpeed there is sp_size alone")
    if facts.get("sp", 1) > 1:
        facts.values["cp"] = facts.get("sp")  # over all heads, as DeepSpeed's own key
    said = facts.get("precision")
    if said in deepspeed.HALF and not (facts.get("fp16") or facts.get("bf16")):
        facts.values[said] = True  # as accelerate turns it on in DeepSpeed's own configuration
    return _with_precision(deepspeed.layout(facts, ranks, None), facts)


def _with_precision(found: Layout, facts: Facts) -> Layout:
    """The plan in accelerate's precision, where the file says one and the other file none."""
    said = facts.get("precision", "fp32")
    if found.plan.precision == "fp32" and said != "fp32":
        found.plan = replace(found.plan, precision=said)
    compiles = bool(facts.get("compile")) and found.plan.activation != "selective"
    found.plan = replace(found.plan, compile=compiles)
    return found
