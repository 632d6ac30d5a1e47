"""Seconds of one block whose weights are frozen, and of the adapters beside it.

A frozen matrix has no gradient: 4 FLOPs for an element and token in place of 6. One in 4 bits is
brought out of them in every pass, which reads its codes and writes it. Adapters are two narrow
products, in the arithmetic's precision, and the passes that add their result.

Source: arXiv 2305.14314 (QLoRA), section 3; the engine's adapters/lora.py and nf4.py.
"""

from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.adapters import matrices
from helpers.planner.model.training_job import Job
from helpers.planner.time.roofline import product_s

ADDED = 3  # elements of a result: read twice, written once
OPERATIONS = (6, 10)  # of an adapter, forward and backward: products, scaling, adding, casts

Computing = tuple[float, float, float, float]


def adapted_s(
    job: Job, cluster: Cluster, computing_s: Computing, host_s: tuple[float, float]
) -> tuple[Computing, tuple[float, float]]:
    """forward_s, input_s, weight_s and again_s, and the host's two, with adapters.

    Args:
        computing_s, host_s: of the block where it trains itself.
    """
    forward_s, input_s, _, again_s = computing_s
    adapter_s = [_adapter_s(job, cluster, *sizes) for sizes in matrices(job.shape)]
    beside_s, back_s = (sum(one) for one in zip(*adapter_s, strict=True))
    out_s = _out_of_codes_s(job, cluster)
    sums_s = job.program.parameter_bytes if job.element_bytes == 2 else 0
    sums_s *= sum(one * other for one, other in matrices(job.shape)) / cluster.memory_bytes_per_s
    more_s = beside_s + out_s
    whole = job.plan.activation not in ("none", "selective")
    computing = (
        forward_s + more_s,
        max(0.0, input_s - sums_s) + back_s + out_s,
        0.0,
        again_s + more_s if whole else again_s,
    )
    host_forward_s, host_backward_s = host_s
    each_s = host_forward_s / (job.program.operations[0] + 1 + len(job.shape.block))
    forward, backward = (each_s * count * len(adapter_s) for count in OPERATIONS)
    return computing, (host_forward_s + forward, host_backward_s + backward)


def _adapter_s(job: Job, cluster: Cluster, inputs: int, outputs: int) -> tuple[float, float]:
    """Seconds of one adapter, forward and backward, where each product has two gradients."""
    rank, tokens, element = job.adapters.rank, job.tokens, job.element_bytes
    first_s = product_s(cluster, job.plan.precision, tokens, inputs, rank, element)
    second_s = product_s(cluster, job.plan.precision, tokens, rank, outputs, element)
    added = ADDED * tokens * element / cluster.memory_bytes_per_s
    once_s = first_s + second_s
    return once_s + added * outputs, 2 * once_s + added * inputs


def _out_of_codes_s(job: Job, cluster: Cluster) -> float:
    """Seconds in which a block's matrices come out of 4 bits."""
    if not job.adapters.quantize:
        return 0.0
    elements = sum(one * other for one, other in matrices(job.shape))
    moved = job.adapters.matrix_bytes(job.shape, job.element_bytes) + job.element_bytes * elements
    return moved / cluster.memory_bytes_per_s
