"""Who is slow: each rank against the median of the others, and all against what is known of them.

    for finding in judge(found, expected_rates(found, record)):
        print(finding.words)         "rank 3 (node-b): product 4.1 GFLOP/s, ..."

A disk is its node's, so nodes are compared by their best rank. What all links of a rank share shows
in its best one; of the other links each is held against the median of its kind, inside a node or
between nodes. A fault that all ranks share shows only against calibrate's record or the table.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from helpers.planner.hardware.cluster import REACHED
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.lookup import gpu_of

if TYPE_CHECKING:
    from helpers.planner.measure.health import RankHealth

# The share by which a rank may lag. Ranks on a CPU share cores and memory with whatever else runs
# there. What is not named is not judged.
MAY_LAG = {
    "cuda": {"product": 0.2, "memory": 0.25, "disk": 0.5, "link": 0.5, "clock": 0.2},
    "cpu": {"product": 0.5, "memory": 0.6, "disk": 0.75, "link": 0.7},
}
OF_A_RANK = ("product", "memory", "clock")  # in this order, which is that of every rank
DISK = ("disk write", "disk read")
UNITS = {"product": (1e9, "GFLOP/s"), "clock": (1.0, "MHz")}
BYTES = (1e9, "GB/s")
# of the peak, in one product at its best: the mean of the GPUs where it was measured
PRODUCT_REACHED = 0.80
MOST_USED = 0.1  # of a GPU's memory, before a run has put anything there


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    rank: whose it is; of a link or a disk the first one's.
    slower: than its peers, or broken; False where a record alone says so, which may be of another
        day.
    """

    rank: int
    words: str
    slower: bool = True


def judge(found: list["RankHealth"], expected: Mapping[str, float] | None = None) -> list[Finding]:
    """What is wrong with these ranks, the slow ones first.

    Args:
        expected: of `expected_rates`; none where nothing is known of this machine.
    """
    may_lag = MAY_LAG["cpu" if found[0].device == "cpu" else "cuda"]
    slow = [*_ranks(found, may_lag), *_disks(found, may_lag["disk"])]
    slow += [*_links(found, may_lag["link"]), *_gpus(found)]
    known = (_against(found, kind, value, may_lag) for kind, value in (expected or {}).items())
    return slow + [finding for findings in known for finding in findings]


def expected_rates(found: list["RankHealth"], record: Cluster | None) -> dict[str, float]:
    """By kind, what a rank should reach: by calibrate's record, else the planner's table of GPUs.

    Ranks that share cores share what these reach together.
    """
    if record is not None:
        share = min(1.0, (record.together or len(found)) / len(found))
        return {
            "product": record.rate("fp32") * share,
            "memory": record.memory_bytes_per_s * share,
            "link": record.measured.get("send", record.intra).bytes_per_s,
        }
    gpu = gpu_of(found[0].device)
    if gpu is None:
        return {}
    peak = gpu.peak_flops.get("fp32")  # of some it is not known
    product = {"product": peak * PRODUCT_REACHED} if peak else {}
    return product | {"memory": gpu.memory_bytes_per_s * REACHED["memory"]}


def amount(kind: str, value: float) -> str:
    """'31.2 GFLOP/s', '5.58 GB/s'."""
    scale, unit = UNITS.get(kind, BYTES)
    return f"{value / scale:.3g} {unit}"


def links(found: list["RankHealth"]) -> dict[tuple[int, int], tuple[float, float]]:
    """Latency and bytes/s of each pair that met, by its two ranks."""
    return {(a, b): link for a, rank in enumerate(found) for b, link in rank.links.items()}


def _ranks(found: list["RankHealth"], may_lag: Mapping[str, float]) -> Iterator[Finding]:
    """Products, memory, and a GPU's clock under load."""
    for kind in OF_A_RANK:
        if kind not in may_lag:
            continue
        rates = {rank: value for rank, one in enumerate(found) if (value := _rate(one, kind))}
        for rank, peers in _laggards(rates, may_lag[kind]):
            yield _slower(f"rank {rank} ({found[rank].node})", rank, kind, rates[rank], peers)


def _disks(found: list["RankHealth"], may_lag: float) -> Iterator[Finding]:
    for kind in DISK:
        nodes: dict[str, float] = {}
        for one in found:
            nodes[one.node] = max(nodes.get(one.node, 0.0), one.rates[kind])
        for node, peers in _laggards(nodes, may_lag):
            rank = next(rank for rank, one in enumerate(found) if one.node == node)
            yield _slower(f"node {node}", rank, kind, nodes[node], peers)


def _links(found: list["RankHealth"], may_lag: float) -> Iterator[Finding]:
    for inside in (True, False):
        pairs = {
            pair: rate
            for pair, (_, rate) in links(found).items()
            if (found[pair[0]].node == found[pair[1]].node) is inside
        }
        best: dict[int, float] = {}
        for pair, rate in pairs.items():
            for rank in pair:
                best[rank] = max(best.get(rank, 0.0), rate)
        # of two ranks that have one link between them, none is the slow one
        slow = dict(_laggards(best, may_lag)) if len(best) > 2 else {}
        for rank, peers in slow.items():
            who = f"rank {rank} ({found[rank].node})"
            yield _slower(who, rank, "best link", best[rank], peers)
        others = {pair: rate for pair, rate in pairs.items() if not slow.keys() & set(pair)}
        for (a, b), peers in _laggards(others, may_lag):
            who = f"link of ranks {a} ({found[a].node}) and {b} ({found[b].node})"
            yield _slower(who, a, "rate", others[a, b], peers)


def _gpus(found: list["RankHealth"]) -> Iterator[Finding]:
    """What nvidia-smi says outright: lost bits, a brake on the clocks, memory that is taken."""
    for rank, one in enumerate(found):
        who, gpu = f"rank {rank} ({one.node}): its GPU", one.gpu
        if errors := gpu.get("ecc.errors.uncorrected.volatile.total"):
            yield Finding(rank, f"{who} has {errors:.0f} uncorrected ECC errors: have it reset")
        if gpu.get("clocks_event_reasons.hw_slowdown") == "Active":
            yield Finding(rank, f"{who} slows its clocks down: look at its cooling and power")
        used, total = gpu.get("memory.used"), gpu.get("memory.total")
        if used and total and used > MOST_USED * total:
            words = f"{who} has {used / total:.0%} of its memory taken: end what runs there"
            yield Finding(rank, words)


def _against(
    found: list["RankHealth"], kind: str, value: float, may_lag: Mapping[str, float]
) -> Iterator[Finding]:
    """Ranks, or pairs of a node, below what is known."""
    if kind == "link":
        rates = {
            f"link of ranks {a} and {b} ({found[a].node})": (a, rate)
            for (a, b), (_, rate) in links(found).items()
            if found[a].node == found[b].node
        }
    else:
        rates = {
            f"rank {rank} ({one.node})": (rank, one.rates[kind]) for rank, one in enumerate(found)
        }
    for who, (rank, rate) in rates.items():
        if rate < (1 - may_lag[kind]) * value:
            words = f"{who}: {kind} {amount(kind, rate)}, below the {amount(kind, value)} known of"
            yield Finding(rank, f"{words} this machine", slower=False)


def _laggards(rates: Mapping, may_lag: float) -> Iterator[tuple]:
    """Those below the median of the others by more than a share, each with that median."""
    for who, rate in rates.items():
        peers = [other for name, other in rates.items() if name != who]
        if peers and rate < (1 - may_lag) * median(peers):
            yield who, median(peers)


def _slower(who: str, rank: int, kind: str, rate: float, peers: float) -> Finding:
    less = f"{1 - rate / peers:.0%} less than its peers' {amount(kind, peers)}"
    return Finding(rank, f"{who}: {kind} {amount(kind, rate)}, {less}")


def _rate(one: "RankHealth", kind: str) -> float | None:
    return one.gpu.get("clocks.sm") if kind == "clock" else one.rates[kind]
