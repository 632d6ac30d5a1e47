"""Who is compared with whom: data that the runner reads. Nothing here imports a peer."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

FAMILIES = ("gptj", "neox", "llama", "gpt2", "falcon")


@dataclass(frozen=True)
class Peer:
    """One way to train the model.

    module: of this package; its class Peer takes the steps.
    ranks: processes; each gets an equal part of the cores as threads.
    options: what the class is made with.
    families: the models that it can train.
    joins: does it want a process group although it is alone?
    """

    name: str
    title: str
    module: str
    ranks: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    families: tuple[str, ...] = FAMILIES
    joins: bool = False


def engine(name: str, title: str, **plan: Any) -> Peer:
    axes = ("dp_replicate", "dp_shard", "pp", "cp", "tp")
    ranks = math.prod(plan.get(axis, 1) for axis in axes)
    return Peer(name, title, "engine_peer", ranks, plan, joins=True)


def over_gloo(name: str, **plan: Any) -> Peer:
    """The peer of that name, with messages by gloo in place of shared memory."""
    whose = name.removesuffix("-gloo")
    peer = engine(name, f"{whose}, messages over gloo", **plan)
    return replace(peer, options={**peer.options, "gloo": True})


ONE = Peer("one", "one process, transformers", "plain_peer", ranks=1)
ONE_KEPT = Peer("one-kept", "the same, freed memory kept", "plain_peer", 1, {"keep": True})
ENGINE_ONE = engine("engine-one", "one process, this engine")

TENSOR = (
    ONE,
    ENGINE_ONE,
    engine("engine-tp", "**this engine, tp=2**", tp=2),
    over_gloo("engine-tp-gloo", tp=2),
    engine("engine-sp", "**this engine, tp=2, sequence parallel**", tp=2, sequence_parallel=True),
    over_gloo("engine-sp-gloo", tp=2, sequence_parallel=True),
    engine("engine-tp4", "**this engine, tp=4**", tp=4),
    over_gloo("engine-tp4-gloo", tp=4),
    Peer("dtensor", "DTensor plan by hand", "dtensor_peer"),
    Peer("tp-plan", 'transformers tp_plan="auto"', "transformers_peer", families=("neox", "llama")),
)
DATA = (
    ONE,
    ONE_KEPT,
    ENGINE_ONE,
    engine("engine-ddp", "**this engine, DDP**", dp_replicate=2),
    over_gloo("engine-ddp-gloo", dp_replicate=2),
    Peer("ddp", "torch DistributedDataParallel", "ddp_peer"),
    engine("engine-zero1", "**this engine, ZeRO-1**", dp_shard=2, zero_stage=1),
    Peer(
        "zero-optimizer",
        "torch DDP + ZeroRedundancyOptimizer",
        "ddp_peer",
        options={"shard_optimizer": True},
    ),
    engine("engine-zero2", "**this engine, ZeRO-2**", dp_shard=2, zero_stage=2),
    Peer("deepspeed2", "DeepSpeed ZeRO-2", "deepspeed_peer", options={"stage": 2}),
    engine("engine-zero3", "**this engine, ZeRO-3**", dp_shard=2, zero_stage=3),
    over_gloo("engine-zero3-gloo", dp_shard=2, zero_stage=3),
    Peer("fully-shard", "torch fully_shard", "fully_shard_peer"),
    Peer(
        "fully-shard-kept",
        "the same, freed memory kept",
        "fully_shard_peer",
        options={"keep": True},
    ),
    Peer("accelerate", "accelerate FSDP2", "accelerate_peer"),
    Peer("deepspeed3", "DeepSpeed ZeRO-3", "deepspeed_peer", options={"stage": 3}),
)


def pipeline(schedule: str, microbatches: int) -> Peer:
    name, title = f"{schedule}-{microbatches}", f"**this engine, {schedule}, m={microbatches}**"
    return engine(name, title, pp=2, schedule=schedule, microbatches=microbatches)


def torch_pipeline(schedule: str, microbatches: int) -> Peer:
    options = {"schedule": schedule, "microbatches": microbatches}
    title = f"torch {schedule}, m={microbatches}"
    return Peer(f"torch-{schedule}-{microbatches}", title, "torch_pipeline_peer", options=options)


PIPELINE = (
    ONE,
    *(pipeline("1f1b", m) for m in (2, 4, 8, 16)),
    over_gloo("1f1b-8-gloo", pp=2, schedule="1f1b", microbatches=8),
    *(pipeline(name, 8) for name in ("naive", "gpipe", "interleaved", "zero-bubble")),
    torch_pipeline("gpipe", 8),
    torch_pipeline("1f1b", 8),
)
RECOMPUTING = ("selective", "group_2", "full")
MEMORY = (
    ONE,
    *(peer for peer in DATA if peer.module == "engine_peer"),
    *(peer for peer in TENSOR if peer.name in ("engine-tp", "engine-sp")),
    *(
        engine(f"engine-one-{what}", f"one process, this engine, {what}", activation=what)
        for what in RECOMPUTING
    ),
    *(
        engine(f"engine-tp-{what}", f"**this engine, tp=2, {what}**", tp=2, activation=what)
        for what in RECOMPUTING
    ),
    *(peer for peer in DATA if peer.name in ("ddp", "fully-shard", "deepspeed3")),
)
COMPILE = (
    ONE,
    Peer("one-compiled", "the same, blocks compiled", "plain_peer", 1, {"compile": True}),
    ENGINE_ONE,
    engine("engine-compiled", "**this engine, compiled**", compile=True),
    engine("engine-bf16", "this engine, bf16", precision="bf16"),
    engine(
        "engine-bf16-compiled", "**this engine, bf16, compiled**", precision="bf16", compile=True
    ),
)
BF16 = (
    ONE,
    Peer(
        "one-autocast", "the same, torch.autocast to bf16", "plain_peer", 1, {"precision": "bf16"}
    ),
    *(
        engine(f"bf16-{name}", f"**this engine, bf16, {what}**", precision="bf16", **plan)
        for name, what, plan in (
            ("one", "one process", {}),
            ("tp", "tp=2", {"tp": 2}),
            ("sp", "tp=2, sequence parallel", {"tp": 2, "sequence_parallel": True}),
            ("ddp", "DDP", {"dp_replicate": 2}),
            ("zero1", "ZeRO-1", {"dp_shard": 2, "zero_stage": 1}),
            ("zero3", "ZeRO-3", {"dp_shard": 2}),
            ("pp", "1f1b, m=8", {"pp": 2, "microbatches": 8}),
            ("cp", "cp=2, ring", {"cp": 2}),
        )
    ),
)
TWO_NODES = (
    ONE,
    engine("fsdp", "**this engine, FSDP over both nodes**", dp_shard=4),
    engine("hsdp", "**this engine, HSDP 2 × 2**", dp_replicate=2, dp_shard=2),
    engine("hsdp-zero2", "this engine, ZeRO-2 2 × 2", dp_replicate=2, dp_shard=2, zero_stage=2),
)


def adapters(name: str, title: str, **plan: Any) -> Peer:
    """Adapters beside a base in 4 bits, by this engine."""
    return replace(engine(name, title, **plan), module="adapters_peer")


def split(schedule: str, stages: int) -> Peer:
    name, title = f"{schedule}-{stages}", f"this engine, {stages} stages, {schedule}, m=8"
    return adapters(name, title, pp=stages, schedule=schedule, microbatches=8)


QLORA = (
    Peer("one", "one process, transformers, peft, bitsandbytes", "peft_peer", ranks=1),
    adapters("engine-one", "**one process, this engine**"),
    *(split(schedule, stages) for stages in (2, 4) for schedule in ("naive", "1f1b")),
)
LONG = (
    ONE,
    ENGINE_ONE,
    *(
        engine(f"{way}-{n}", f"**this engine, cp={n}, {way}**", cp=n, cp_attention=way)
        for n in (2, 4)
        for way in ("ring", "gather", "ulysses")
    ),
    *(
        engine(
            f"contiguous-{n}", f"this engine, cp={n}, ring, contiguous", cp=n, cp_split="contiguous"
        )
        for n in (2, 4)
    ),
    engine("engine-sp", "this engine, tp=2, sequence parallel", tp=2, sequence_parallel=True),
    engine("engine-full", "this engine, one process, recomputing", activation="full"),
    Peer("torch-context", "torch context_parallel", "torch_context_peer"),
)
BENCHMARKS = {
    "tp": TENSOR,
    "fsdp": DATA,
    "memory": MEMORY,
    "pipeline": PIPELINE,
    "compile": COMPILE,
    "bf16": BF16,
    "two-nodes": TWO_NODES,
    "qlora": QLORA,
    "long": LONG,
    "plan": (),  # its layouts are those that a search looks at
    "messages": (),  # trains nothing
    "packed": (),  # two ways of the engine's attention
    "experts": (),  # layouts of the engine alone
    "small-step": (),  # layouts of the engine alone
}
