"""How speed grows with machines, and what leaves a machine.

speedups({1: 99, 2: 55})            # {1: 1.0, 2: 1.8}: minutes for the same work
efficiencies({8: 30e3, 16: 54e3})   # {8: 1.0, 16: 0.9}: tokens/s by number of GPUs
out_of_node_bytes(job, 8)           # {"forward": ..., "backward": ...}
"""

from collections import defaultdict
from collections.abc import Mapping

from helpers.engine.errors import UserError, check_count
from helpers.planner.hardware.links import axes_span
from helpers.planner.hardware.lookup import is_amount
from helpers.planner.model.training_job import Job
from helpers.planner.time.data_messages import data_messages
from helpers.planner.time.messages import ranks_and_strides


def speedups(times: Mapping[int, float]) -> dict[int, float]:
    """How many times as fast as with the fewest: times of the same work, by number of machines."""
    _check(times)
    first = times[min(times)]
    return {count: first / time for count, time in times.items()}


def efficiencies(rates: Mapping[int, float]) -> dict[int, float]:
    """Work a machine, as a share of what it is with the fewest: rates by number of machines.

    With the batch of each machine held fixed this is weak scaling, with that of all held fixed
    strong scaling.
    """
    _check(rates)
    fewest = min(rates)
    return {count: rate / count / (rates[fewest] / fewest) for count, rate in rates.items()}


def out_of_node_bytes(job: Job, devices_per_node: int) -> dict[str, float]:
    """Bytes of the data axes that a node sends to other nodes in a step, by when they are sent:
    beside the `forward`, the `backward` or the `last` backward, or in the `step`.

    Each group with ranks in several nodes passes its message from node to node once, whatever the
    number of its ranks in one; groups that lie inside a node send nothing out.

    Source: Patarasuk and Yuan 2009, section 4, for a ring through the nodes one after another.

    Raises:
        UserError: devices_per_node is no whole number from 1 on.
    """
    check_count("devices_per_node", devices_per_node)
    bytes_out: dict[str, float] = defaultdict(float)
    for message in data_messages(job, 0):
        axes = ranks_and_strides(job, message.axis)
        span = axes_span(axes, devices_per_node, job.plan.world_size)
        if span.nodes > 1:
            bytes_out[message.when] += message.sent_bytes * devices_per_node / span.least
    return dict(bytes_out)


def _check(numbers: Mapping[int, float]) -> None:
    if not isinstance(numbers, Mapping):
        raise UserError(f"give numbers by number of machines, as {{1: 99}}, not {numbers!r:.40}")
    if not numbers:
        raise UserError("scaling needs at least one number of machines")
    for count, value in numbers.items():
        if not (is_amount(count) and is_amount(value)):
            raise UserError(f"scaling needs numbers above 0, not {value!r:.40} for {count!r:.40}")
