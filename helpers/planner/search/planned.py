"""A plan that fits a cluster, what it takes, and the line that starts it."""

import shlex
from dataclasses import dataclass
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import start_of_a_node
from helpers.planner.cost import money, train_flops_per_token
from helpers.planner.hardware.catalog import GIB
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.lookup import check_amounts, find_gpu
from helpers.planner.memory.categories import Memory
from helpers.planner.model.training_job import Job
from helpers.planner.search.ranges import Range, time_range
from helpers.planner.time.step_time import StepTime

# of a machine's own memory, for activations: the rest is the system's, the data's and the program's
HOST_SHARE = 0.8


def fits(memory: Memory, cluster: Cluster) -> bool:
    """Do a rank's bytes fit its device, and those of a node's ranks in host memory the node?"""
    if memory.total > cluster.memory_bytes:
        return False
    host = cluster.host_memory_bytes
    return host is None or memory.host * cluster.devices_per_node <= HOST_SHARE * host


@dataclass(frozen=True, repr=False)
class Choice:
    """A plan, with what it takes."""

    job: Job
    cluster: Cluster
    memory: Memory
    time: StepTime

    def __repr__(self) -> str:
        needs, has = self.memory.total / GIB, self.cluster.memory_bytes / GIB
        return (
            f"Choice({in_words(self.job)} on {self.cluster.nodes} x {self.cluster.name}: "
            f"{self.time.total_s:.3g} s a step, {needs:.1f} of {has:.1f} GiB, "
            f"{'fits' if self.fits else 'does not fit'})"
        )

    @property
    def plan(self) -> ParallelPlan:
        return self.job.plan

    @property
    def fits(self) -> bool:
        """Does every rank fit its device, and what is offloaded the machines' own memory?"""
        return fits(self.memory, self.cluster)

    @property
    def tokens_per_s(self) -> float:
        """Of the whole cluster."""
        return self.job.batch * self.job.seq_len / self.time.total_s

    @property
    def range(self) -> Range:
        """Shares of the predicted seconds between which 8 of 10 measured ones would lie."""
        return time_range(self.job, self.cluster)

    @property
    def range_s(self) -> tuple[float, float]:
        """Seconds of a step between which 8 of 10 measured ones would lie."""
        return self.range.low * self.time.total_s, self.range.high * self.time.total_s

    @property
    def usd_per_token(self) -> float | None:
        """Dollars a token; None where the cluster has no price."""
        if self.cluster.usd_per_hour is None:
            return None
        nodes = self.cluster.nodes
        return money(1 / self.tokens_per_s, self.cluster.usd_per_hour, nodes)

    @property
    def peak_flops(self) -> float | None:
        """One device's dense peak in the plan's precision; None where none is known."""
        if not self.cluster.gpu:
            return None
        return find_gpu(self.cluster.gpu).peak_flops.get(self.plan.precision)

    def mfu(self, peak_flops: float | None) -> float | None:
        """Model FLOPs utilisation against one device's dense peak, as in cost.mfu, of which none is
        known where it is None; None, too, where its count of FLOPs is far from the work: with
        adapters, for a frozen base does less, and where tables, which multiply nothing, are so much
        of the model that it would be above 1."""
        if self.job.adapters is not None or peak_flops is None:
            return None
        check_amounts(peak_flops=peak_flops)
        flops = train_flops_per_token(self.job.shape, self.job.seq_len)
        utilisation = self.tokens_per_s * flops / (self.cluster.devices * peak_flops)
        return utilisation if utilisation <= 1 else None


def check_choice(choice: Any) -> None:
    """Raise a UserError if it is none."""
    if not isinstance(choice, Choice):
        words = "give a choice, as estimate(...) or search_plans(...).best"
        raise UserError(f"{words}, not a {type(choice).__name__}")


def launch_command(choice: Choice, model: str, script: str | None = None) -> str:
    """The torchrun line of a choice: flags for what trains, and for the fields of its plan that are
    not the default. On several nodes HEAD is to hold the first one's address.

    Args:
        script: in the place of the module helpers.train, and with its flags.
    """
    job, cluster = choice.job, choice.cluster
    program = "-m helpers.train" if script is None else shlex.quote(str(script))
    parts = [
        f"{start_of_a_node(cluster.nodes, cluster.devices_per_node)} {program}",
        f"--model {shlex.quote(str(model))} --batch-size {job.batch} --seq-len {job.seq_len}",
    ]
    if job.adapters is not None:
        parts.append(f"--lora-rank {job.adapters.rank}")
        if job.adapters.quantize:
            parts.append(f"--quantize {job.adapters.quantize}")
    if job.optimizer != "adamw":
        parts.append(f"--optimizer {job.optimizer}")
    for name, value in choice.plan.chosen().items():
        flag = "--" + name.replace("_", "-")
        parts.append(flag if value is True else f"{flag} {value}")
    return " ".join([*parts, "--out runs/planned"])


def in_words(job: Job) -> str:
    """A job's plan in one line: degrees and switches."""
    plan, parts = job.plan, [job.plan.describe()]
    if plan.cp > 1:
        parts.append(f"{plan.cp_attention} attention")
    if plan.shards > 1:
        parts.append(f"ZeRO-{plan.zero_stage}")
    if plan.sequence_parallel:
        parts.append("sequence parallel")
    if plan.pp > 1:
        virtual = f" with {plan.virtual_stages} virtual stages" if plan.virtual_stages > 1 else ""
        parts.append(f"{plan.schedule}{virtual}")
    if job.microbatches > 1:
        parts.append(f"{job.microbatches} micro-batches")
    if plan.activation != "none":
        parts.append(f"{plan.activation} recomputation")
    if plan.offload:
        parts.append("offloading")
    return ", ".join(parts)
