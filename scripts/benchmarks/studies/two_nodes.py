"""FSDP over both of two nodes against HSDP, which shards inside a node and replicates across.

What crosses the link is counted from the interfaces at its ends and held against the planner's
formula. Gathers and all-reduces go round a ring on which the ranks of a node are neighbours, so in
each group that spans both nodes one rank's sending crosses the link each way. A reduce-scatter's
pieces go straight to those that keep them (gloo_exchange.py), half of them over the link; a ring as
NCCL's would send three quarters of that with two ranks on each node.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks import compare
from benchmarks.compare import Rounds, Row
from benchmarks.registry import Peer
from benchmarks.work import Work, config
from helpers.commands import markdown
from helpers.engine.plan import ParallelPlan
from helpers.lab.launch.nodes.network_namespaces import Link, joined
from helpers.planner.model.training_job import make_job
from helpers.planner.time.messages import Message
from helpers.planner.time.overlapped_messages import rank_messages

NODES = 2
HEAD = ("", "step, s", "quartiles", "faster than FSDP", "over the link, MB", "formula, MB", "off")
HEAD += ("losses agree",)


def measure(
    peers: Sequence[Peer],
    work: Work,
    cores: int,
    rounds: Rounds,
    say: Callable[[str], None],
    link: Link,
) -> list[Row]:
    """The peers' steps by turns, each peer's ranks divided over two nodes.

    Raises:
        UserError: this machine cannot make the link.
    """
    with joined(link) as networks:
        return compare.compare(peers, work, cores, rounds, say, networks)


def predicted_bytes(row: Row, work: Work) -> float:
    """What crosses the link in a step, both ways; 0 for one process."""
    if row.peer.ranks == 1:
        return 0.0
    plan = ParallelPlan(**row.peer.options)
    job = make_job(config(work), plan, work.batch, work.seq)
    axis, groups = ("dp_shard", 1) if plan.dp_replicate == 1 else ("dp_replicate", plan.dp_shard)
    across = (m for m in rank_messages(job, rank=0) if m.axis == axis)
    return groups * sum(map(crossing_bytes, across))


def crossing_bytes(message: Message) -> float:
    """What a group on both nodes sends over the link for these messages, both ways."""
    if message.kind == "reduce_scatter":  # half of the ranks that a rank sends to are over there
        return message.count * message.payload_bytes * message.ranks / 2
    return NODES * message.sent_bytes


def table(rows: Sequence[Row], work: Work) -> str:
    """The rows as a Markdown table; times are of the timed steps."""
    return markdown(HEAD, (_cells(row, rows, work) for row in rows))


def _cells(row: Row, rows: Sequence[Row], work: Work) -> list[str]:
    if row.failure:
        return compare.short(HEAD, row.peer.title, row.failure)
    if not row.timed:
        return compare.short(HEAD, row.peer.title, "nothing to compare with")
    found = to_dict(row, work)
    low, middle, high = compare.quartiles([row.step_s[i] for i in row.timed])
    times = faster(row, rows)
    return [
        row.peer.title,
        f"{middle:.2f}{'' if row.quiet else ', noisy'}",
        f"{low:.2f} to {high:.2f}",
        f"{times:.2f}" if times else "",
        f"{found['link_bytes_a_step'] / 1e6:.1f}",
        f"{found['predicted_link_bytes'] / 1e6:.1f}",
        f"{found['off']:+.1%}" if found["off"] is not None else "",
        compare.agreement(row),
    ]


def faster(row: Row, rows: Sequence[Row]) -> float | None:
    """The median over steps of FSDP's time over the row's; None for one process."""
    fsdp = next((one for one in rows if one.peer.name == "fsdp" and not one.failure), None)
    if fsdp is None or row.peer.ranks == 1:
        return None
    return median(fsdp.step_s[i] / row.step_s[i] for i in row.timed if i in fsdp.timed)


def to_dict(row: Row, work: Work) -> dict[str, Any]:
    """A row as plain data."""
    values = compare.to_dict(row)
    if row.failure:
        return values
    measured, predicted = median(row.link_bytes[1:]), predicted_bytes(row, work)
    return values | {
        "link_bytes_a_step": measured,
        "predicted_link_bytes": predicted,
        "off": measured / predicted - 1 if predicted else None,
    }
