"""Seconds of a model's parts on one rank: blocks, embedding, head; products, all else, messages.

An operation takes the longer of its arithmetic and its bytes (the roofline). Messages of the tensor
axis stand in the way of computing, so they are added.
"""

from dataclasses import dataclass
from functools import lru_cache

from helpers.engine.memory.recomputing import group_size
from helpers.planner.hardware.cluster import Cluster, tile_fill
from helpers.planner.model.block_tensors import Program, Widths
from helpers.planner.model.training_job import Job
from helpers.planner.shape import Linear, Shape
from helpers.planner.time.messages import seconds, tensor_messages


@dataclass(frozen=True)
class BlockTime:
    """Seconds of one block and one micro-batch.

    forward_s; input_s and weight_s of the backward; again_s of what is recomputed; tensor_*: the
    messages of the tensor axis, which the others do not count.
    """

    forward_s: float
    input_s: float
    weight_s: float
    again_s: float
    tensor_forward_s: float
    tensor_backward_s: float
    tensor_again_s: float


def block_time(job: Job, cluster: Cluster) -> BlockTime:
    """Seconds of one block under the plan's policy of what is recomputed."""
    plan = job.plan
    work = _work(
        job.shape,
        job.program,
        cluster,
        plan.precision,
        plan.tp,
        plan.sequence_parallel,
        job.tokens,
        job.seq_len,
        plan.activation if group_size(plan.activation) == 1 else "full",
    )
    return BlockTime(*work, *_messages_s(job, cluster))


@lru_cache(maxsize=4096)
def _work(
    shape: Shape,
    program: Program,
    cluster: Cluster,
    precision: str,
    tp: int,
    sequence_parallel: bool,
    tokens: int,
    seq_len: int,
    activation: str,
) -> tuple[float, float, float, float]:
    """forward_s, input_s, weight_s and again_s."""
    element = 4 if precision == "fp32" else 2
    forward_s = input_s = weight_s = last_s = 0.0
    for linear in shape.block:
        inputs, outputs = _held(linear, shape, tp)
        last_s = product_s(cluster, precision, tokens, inputs, outputs, element)
        forward_s += last_s
        input_s += product_s(cluster, precision, tokens, outputs, inputs, element)
        weight_s += product_s(
            cluster, precision, inputs, tokens, outputs, element, program.weight_gradient_bytes
        )
    heads = shape.heads / tp
    core_s = attention_s(cluster, program, precision, tokens, seq_len, heads, shape.head_dim)
    width = (shape, tp, sequence_parallel, seq_len)

    def others_s(widths: Widths, operations: int, parameter_bytes: float = 0.0) -> float:
        moved = tokens * element * widths.on(*width) + parameter_bytes * held
        return moved / cluster.memory_bytes_per_s + operations * cluster.operation_s

    held = sum(a * b for a, b in (_held(linear, shape, tp) for linear in shape.block))
    moved_s = others_s(program.forward, program.operations[0])
    of_gradients = program.parameter_bytes if element == 2 else 0
    back_s = others_s(program.backward, program.operations[1], of_gradients)
    again_s = 0.0
    if activation == "full":
        again_s = forward_s + core_s[0] + moved_s - (last_s if program.stops_early else 0.0)
    elif activation == "selective" and program.attention == "scores":
        again_s = core_s[0] + others_s(Widths(scores=program.forward.scores), 0)
    elif activation == "selective":
        again_s = moved_s
    return forward_s + core_s[0] + moved_s, input_s + core_s[1] + back_s, weight_s, again_s


def product_s(
    cluster: Cluster,
    precision: str,
    rows: float,
    inner: float,
    columns: float,
    element_bytes: int,
    result_bytes: int | None = None,
) -> float:
    """Seconds of a matrix product [rows, inner] x [inner, columns]: 2·rows·inner·columns FLOPs, or
    the bytes of the three matrices once, whichever takes longer.

    Args:
        result_bytes: moved for an element of the result, where it is not one in the same dtype.

    Source: Williams et al. 2009, Roofline; cluster.tile_fill for small products.
    """
    fill = tile_fill(rows, columns, cluster.multiprocessors)
    arithmetic_s = 2 * rows * inner * columns / (cluster.rate(precision) * fill)
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
        forward_s = 2 * tokens * seq_len * width / cluster.attention_rate(precision)
        return forward_s, 2.5 * forward_s
    flops = 2 * tokens * seq_len * width
    element = 4 if precision == "fp32" else 2
    moved = element * tokens * (heads * seq_len + 2 * width)
    one_s = max(flops / cluster.rate(precision), moved / cluster.memory_bytes_per_s)
    return 2 * one_s, 4 * one_s


def _held(linear: Linear, shape: Shape, tp: int) -> tuple[float, float]:
    """Inputs and outputs of a linear layer's part on one tensor rank."""
    if linear.cut == "row":
        return linear.inputs / tp, linear.outputs
    share = max(1 / tp, 1 / shape.kv_heads) if linear.cut == "kv" else 1 / tp
    return linear.inputs, linear.outputs * share


def _messages_s(job: Job, cluster: Cluster) -> tuple[float, float, float]:
    """Seconds of the tensor axis' messages of one block and one micro-batch, by when, with the
    copies around them."""
    if job.plan.tp == 1:
        return 0.0, 0.0, 0.0
    rank = max(range(job.plan.pp), key=job.layers_of)
    found = _tensor_s(job, cluster, rank, "blocks")
    blocks = job.layers_of(rank)
    return tuple(found[when] / blocks for when in ("forward", "backward", "again"))


def _tensor_s(job: Job, cluster: Cluster, rank: int, *parts: str) -> dict[str, float]:
    """Seconds of the rank's messages for these parts of the model in one micro-batch, by when."""
    copies = job.program.message_copies / cluster.memory_bytes_per_s
    found = dict.fromkeys(("forward", "backward", "again"), 0.0)
    for message in tensor_messages(job, rank):
        if message.what.startswith(parts):
            one_s = seconds(job, cluster, message) + copies * message.payload_bytes
            found[message.when] += message.count / job.microbatches * one_s
    return found


def embedding_s(job: Job, cluster: Cluster) -> tuple[float, float, float]:
    """Forward, backward and messages of the look-up: rows are read and written once, and their
    gradients added to the table's."""
    once_s = 2 * job.tokens * job.shape.hidden * job.element_bytes / cluster.memory_bytes_per_s
    messages = _end_messages_s(job, cluster, job.rank_of[0], "embedding")
    return once_s + messages[0], 2 * once_s + messages[1], sum(messages)


def head_s(job: Job, cluster: Cluster) -> tuple[float, float, float]:
    """Forward, backward and messages of the output layer and the loss: three products over the
    vocabulary, which the engine does all in its forward, and the logits read and written."""
    plan, tokens, hidden = job.plan, job.tokens, job.shape.hidden
    rows = job.vocab_rows
    first_s, *other_s = (
        product_s(cluster, plan.precision, *sizes, job.element_bytes)
        for sizes in ((tokens, hidden, rows), (tokens, rows, hidden), (rows, tokens, hidden))
    )
    logits_s = tokens * rows * job.program.logit_bytes / cluster.memory_bytes_per_s
    messages = _end_messages_s(job, cluster, job.rank_of[-1], "head", "loss")
    all_s = first_s + sum(other_s) + logits_s
    forward_s = all_s if job.program.gradients_in_loss else first_s + logits_s / 2
    return forward_s + messages[0], all_s - forward_s + messages[1], sum(messages)


def _end_messages_s(job: Job, cluster: Cluster, rank: int, *parts: str) -> tuple[float, float]:
    """Seconds of the messages of an end of the model, forward and backward."""
    if job.plan.tp == 1:
        return 0.0, 0.0
    found = _tensor_s(job, cluster, rank, *parts)
    return found["forward"], found["backward"]
