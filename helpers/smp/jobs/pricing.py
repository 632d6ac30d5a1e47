"""What a job would take on its machines, by the planner: memory, time and money."""

from dataclasses import dataclass
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.catalog import GIB
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.model.adapters import Adapters
from helpers.planner.search.estimate import estimate


@dataclass(frozen=True)
class Price:
    """What the planner says. Bytes are of the fullest rank; dollars are for machines on demand
    without the service, `usd_per_hour` for all of them."""

    memory_bytes: float
    device_bytes: int
    fits: bool
    step_s: float
    tokens_per_s: float
    usd_per_hour: float | None
    usd_per_million_tokens: float | None
    steps: int | None = None

    def __str__(self) -> str:
        fits = "fits" if self.fits else "does not fit"
        words = (
            f"{fits}: {self.memory_bytes / GIB:.1f} of {self.device_bytes / GIB:.0f} GiB; "
            f"a step {self.step_s:.3g} s, {self.tokens_per_s:,.0f} tokens/s"
        )
        if self.usd_per_million_tokens is None:
            return f"{words}; no price is recorded"
        words += f"; ${self.usd_per_million_tokens:.3g} a million tokens"
        if self.usd is None:
            return words
        return f"{words}; {self.steps} steps take {self.seconds:.0f} s and ${self.usd:,.3g}"

    @property
    def seconds(self) -> float | None:
        """Of all steps; what comes before and after them is not in it."""
        return None if self.steps is None else self.steps * self.step_s

    @property
    def usd(self) -> float | None:
        """What the machines cost for so long."""
        if self.steps is None or self.usd_per_hour is None:
            return None
        return self.seconds / 3600 * self.usd_per_hour


def price(
    config: Any,
    plan: ParallelPlan,
    instance: str,
    nodes: int,
    batch: int,
    seq_len: int,
    steps: int | None = None,
    adapters: Adapters | None = None,
    optimizer: str = "adamw",
) -> Price:
    """What a step takes.

    Args:
        config: a preset's name, or a transformers configuration.
        instance: of EC2, with or without the service's `ml.`.
        batch: samples of a step, over all ranks.
        adapters, optimizer: as estimate's.

    Raises:
        UserError: the plan does not fit the model or the machines, or nothing is known of these.
    """
    config = load_config(config) if isinstance(config, str) else config
    cluster = make_cluster(instance, nodes=nodes)
    choice = estimate(config, plan, cluster, batch, seq_len, adapters=adapters, optimizer=optimizer)
    dollars = choice.usd_per_token
    return Price(
        choice.memory.total,
        cluster.memory_bytes,
        choice.fits,
        choice.time.total_s,
        choice.tokens_per_s,
        None if cluster.usd_per_hour is None else cluster.usd_per_hour * nodes,
        None if dollars is None else dollars * 1e6,
        steps,
    )


def words_of(model: Any, plan: ParallelPlan | None, where: Any, flags: Any) -> str:
    """The price of a job in a line, or why there is none.

    Args:
        model: a preset's name or a configuration, where one is known.
    """
    missing = [
        name
        for name, there in (
            ("a model whose configuration is here", model),
            ("an instance with GPUs", where.instance),
            ("batch_size", flags.get("batch_size")),
            ("seq_len", flags.get("seq_len")),
        )
        if not there
    ]
    if plan is None or missing:
        return f"no price without {', '.join(missing) or 'a plan'}"
    try:
        sizes = [flags[name] for name in ("batch_size", "seq_len")]
        rank, steps = flags.get("lora_rank"), flags.get("steps")
        adapters = Adapters(rank, flags.get("quantize")) if rank else None
        what = steps, adapters, flags.get("optimizer") or "adamw"
        return str(price(model, plan, where.instance, where.nodes, *sizes, *what))
    except UserError as error:
        return f"no price: {error}"
