"""Seconds of one operation: the longer of its arithmetic and its bytes.

Source: Williams et al. 2009, Roofline.
"""

from helpers.planner.hardware.cluster import tile_fill
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.block_tensors import Program
from helpers.planner.model.widths import BYTES

# tensor cores want rows of a multiple of 16 bytes: NVIDIA's guide, as below, section on alignment;
# what is reached else was taken from bigscience's rows with heads of 150 and 108
ALIGNED, UNALIGNED = 8, 0.1


def product_s(
    cluster: Cluster,
    precision: str,
    rows: float,
    inner: float,
    columns: float,
    element_bytes: int,
    result_bytes: int | None = None,
    reached: float = 1.0,
) -> float:
    """Seconds of a matrix product [rows, inner] x [inner, columns]: 2·rows·inner·columns FLOPs, or
    the bytes of the three matrices once, whichever takes longer.

    Args:
        result_bytes: moved for an element of the result, where it is not one in the same dtype.
        reached: by the program, of what the cluster's devices reach.

    Source: tile_fill for products that do not fill the device.
    """
    fill = tile_fill(rows, columns, cluster.multiprocessors, inner)
    arithmetic_s = 2 * rows * inner * columns / (cluster.rate(precision) * reached * fill)
    operands = (rows + columns) * inner * element_bytes
    result = rows * columns * (element_bytes if result_bytes is None else result_bytes)
    return max(arithmetic_s, (operands + result) / cluster.memory_bytes_per_s)


def attention_s(
    cluster: Cluster,
    program: Program,
    precision: str,
    tokens: int,
    seq_len: int,
    heads: float,
    head_dim: int,
) -> tuple[float, float]:
    """Seconds of softmax attention's own products, forward and backward.

    In one kernel, over the half that a causal mask leaves: 4·seq·width/2 FLOPs a token forward and
    2.5 times that backward, at the rate such kernels reach. With scores in memory: two products
    forward over the whole square and four backward, each read and written once.

    Sources: arXiv 2205.14135 (FlashAttention), section 3.1; arXiv 2307.08691 (FlashAttention-2),
    sections 3 and 4; arXiv 2205.05198, section 4.1.
    """
    width = heads * head_dim
    if program.attention == "one kernel":
        rate = cluster.attention_rate(precision) * program.attention_reached
        forward_s = 2 * tokens * seq_len * width / rate
        return forward_s, 2.5 * forward_s
    flops = 2 * tokens * seq_len * width
    moved = BYTES[precision] * tokens * (heads * seq_len + 2 * width)
    rate = cluster.rate(precision) * program.products_reached
    if head_dim % ALIGNED:
        rate *= UNALIGNED
    each_s = max(flops / rate, moved / cluster.memory_bytes_per_s)
    return 2 * each_s, 4 * each_s
