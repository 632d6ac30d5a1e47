"""Seconds of a model's blocks on one rank: products, all else, messages.

Messages of the tensor axis stand in the way of computing, so they are added, but for the share that
a program hides. A block takes its host as long as it starts operations, however short they are.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from helpers.engine.memory.recomputing import group_size
from helpers.planner.hardware.catalog import MICRO
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.block_tensors import Program
from helpers.planner.model.training_job import Job
from helpers.planner.model.widths import BYTES, Widths
from helpers.planner.shape.shape import Linear, Shape
from helpers.planner.time.adapted import adapted_s
from helpers.planner.time.context_messages import shown_context_s
from helpers.planner.time.messages import seconds
from helpers.planner.time.roofline import attention_s, product_s
from helpers.planner.time.tensor_messages import tensor_messages

# PyTorch hands a message to a stream of its own, and the next operation waits for that: taken from
# vTrain's runs on one node (arXiv 2410.02077), of which the order is wrong without it
HANDED_OVER_S = 25e-6
# A warp holds a row of scores in its registers. Of rows so long that few warps fit beside each
# other masking, softmax and dropout reach a share of the pace at which other operations stream:
# 1.3 ms for four sequences and eight heads on an A100, with the two products between them.
LONG_ROW = 1024  # github.com/NVIDIA/Megatron-LM, fused_kernels/scaled_upper_triang_masked_softmax.h
LONG_ROW_REACHED = 0.65  # arXiv 2205.05198, table 4: what selective recomputing adds to a layer
# operations instead of a fused softmax: to float32, scale, mask, softmax, to 16 bits and so on
UNFUSED = 8  # github.com/NVIDIA/Megatron-LM, megatron/model/fused_softmax.py


@dataclass(frozen=True)
class BlockTime:
    """Seconds of one block and one micro-batch.

    forward_s; input_s and weight_s of the backward; again_s of what is recomputed; tensor_*: the
    messages of the tensor axis, which the others do not count; context_*: those of the context axis
    that show; backward, both are with what is sent again; host_*: of starting it all.
    """

    forward_s: float
    input_s: float
    weight_s: float
    again_s: float
    tensor_forward_s: float
    tensor_backward_s: float
    context_forward_s: float
    context_backward_s: float
    host_forward_s: float = 0.0
    host_backward_s: float = 0.0


def block_time(job: Job, cluster: Cluster) -> BlockTime:
    """Seconds of one block under the plan's policy of what is recomputed."""
    plan = job.plan
    block = Block(
        job.shape,
        job.program,
        cluster,
        plan.precision,
        plan.tp,
        plan.sequence_parallel,
        job.tokens,
        job.seq_len,
        plan.activation if group_size(plan.activation) == 1 else "full",
        plan.cp,
        plan.cp_attention,
        job.uneven,
    )
    context_s = shown_context_s(job, cluster, *_attention_s(block))
    computing_s, host_s = _computing_s(block), _host_s(block)
    if job.adapters is not None:
        computing_s, host_s = adapted_s(job, cluster, computing_s, host_s)
    return BlockTime(*computing_s, *_messages_s(job, cluster), *context_s, *host_s)


class Block(NamedTuple):
    """All that the computing of one block and one micro-batch depends on."""

    shape: Shape
    program: Program
    cluster: Cluster
    precision: str
    tp: int
    sequence_parallel: bool
    tokens: int
    seq_len: int
    activation: str
    cp: int
    cp_attention: str
    uneven: float

    @property
    def element_bytes(self) -> int:
        return BYTES[self.precision]

    @property
    def factor_bytes(self) -> int:
        """Of an element that a product reads."""
        return 1 if self.precision == "fp8" else self.element_bytes


def beside_products(precision: str) -> str:
    """The dtype of arithmetic outside of the blocks' products: of attention, and of the head."""
    return "bf16" if precision == "fp8" else precision


# a search asks for thousands of plans that differ in other things
@lru_cache(maxsize=4096)
def _computing_s(block: Block) -> tuple[float, float, float, float]:
    """forward_s, input_s, weight_s and again_s."""
    program, activation = block.program, block.activation
    products = _products(block)
    attention_forward_s, attention_backward_s = _attention_s(block)
    others_s = _others_s(block, program.forward, program.operations[0], program.weight_bytes)
    sums_bytes = program.parameter_bytes if block.element_bytes == 2 else 0
    others_back_s = _others_s(block, program.backward, program.operations[1], sums_bytes)
    forward_s = products.forward_s + attention_forward_s + others_s
    again_s = 0.0
    if activation == "full":
        again_s = forward_s - (products.last_s if program.stops_early else 0.0)
        again_s -= attention_forward_s if block.cp > 1 and program.keeps_attention else 0.0
    elif activation == "selective" and program.again == "scores":
        scores = Widths(scores=program.forward.scores)
        again_s = attention_forward_s + _others_s(block, scores, 0)
    elif activation == "selective" and program.again in ("others", "second products"):
        again_s = others_s + (products.second_s if program.again == "second products" else 0.0)
    input_s = products.input_s + attention_backward_s + others_back_s
    return forward_s, input_s, products.weight_s, again_s


def _host_s(block: Block) -> tuple[float, float]:
    """What the host needs to start a block's operations, products, attention and messages, forward
    and backward with what is recomputed before it."""
    program, products = block.program, len(block.shape.block)
    forward, backward = (count + 1 for count in program.operations)
    forward += products
    backward += 2 * products
    if program.fused_scores and _samples_and_heads(block) % program.fused_scores:
        forward += UNFUSED
        backward += UNFUSED
    if block.activation == "full":
        backward += forward
    elif block.activation == "selective" and program.again in ("others", "second products"):
        backward += program.operations[0]
        backward += products // 2 if program.again == "second products" else 0
    each_s = start_s(block.cluster, program)
    return each_s * forward, each_s * backward


def start_s(cluster: Cluster, program: Program) -> float:
    """Seconds that the host needs to start one operation; 0 where it is the device."""
    if cluster.host_operation_s is not None and program.family:
        return cluster.host_operation_s
    return MICRO * program.host_us if cluster.generation else 0.0


def _samples_and_heads(block: Block) -> int:
    return block.tokens // block.seq_len * block.shape.heads // block.tp


# what joining a part's result, and adding up its gradients, reads and writes, in float32
JOINED, SUMMED = Widths(query=8), Widths(query=3, kv=3)


@lru_cache(maxsize=4096)
def _attention_s(block: Block) -> tuple[float, float]:
    """Seconds of attention's own products, forward and backward; over cp of the rank that has most
    of them, with the joining of what comes in parts."""
    shape = block.shape
    both_s = attention_s(
        block.cluster,
        block.program,
        beside_products(block.precision),
        block.tokens,
        block.seq_len,
        shape.heads / block.tp,
        shape.head_dim,
    )
    if block.cp == 1:
        return both_s
    parts = 1 if block.cp_attention == "ulysses" else block.cp
    beside_s = (
        4 * parts * block.tokens * widths.on(shape, block.tp, False, 0)
        for widths in (JOINED, SUMMED)
    )
    pace = block.cluster.memory_bytes_per_s
    return tuple(block.uneven * one_s + moved / pace for one_s, moved in zip(both_s, beside_s))


class Products(NamedTuple):
    """Seconds of a block's matrix products, of the last one forward, and of every second one."""

    forward_s: float
    input_s: float
    weight_s: float
    last_s: float
    second_s: float


def _products(block: Block) -> Products:
    element, of_weight, tokens = (
        block.element_bytes,
        block.program.weight_gradient_bytes,
        block.tokens,
    )
    forward_s = input_s = weight_s = last_s = second_s = 0.0
    matrices = 0
    for linear in block.shape.block:
        inputs, outputs = _local_sizes(linear, block)
        last_s = _product_s(block, tokens, inputs, outputs, element)
        forward_s += last_s
        before, matrices = matrices, matrices + linear.matrices
        second_s += last_s * (matrices // 2 - before // 2) / linear.matrices
        input_s += _product_s(block, tokens, outputs, inputs, element)
        weight_s += _product_s(block, inputs, tokens, outputs, of_weight)
    return Products(forward_s, input_s, weight_s, last_s, second_s)


def _product_s(
    block: Block, rows: float, inner: float, columns: float, result_bytes: int | None
) -> float:
    return product_s(
        block.cluster,
        block.precision,
        rows,
        inner,
        columns,
        block.factor_bytes,
        block.element_bytes if result_bytes is None else result_bytes,
        block.program.products_reached,
    )


def _others_s(block: Block, widths: Widths, operations: int, parameter_bytes: float = 0.0) -> float:
    """Seconds of operations that are no products: their bytes, and the starts of so many.

    Args:
        parameter_bytes: moved beside `widths` for each parameter of the block's matrices.
    """
    if block.seq_len > LONG_ROW:
        widths = replace(widths, scores=widths.scores / LONG_ROW_REACHED)
    elements = widths.on(block.shape, block.tp, block.sequence_parallel, block.seq_len)
    sizes = [_local_sizes(linear, block) for linear in block.shape.block]
    matrices = sum(inputs * outputs for inputs, outputs in sizes)
    moved = block.tokens * block.element_bytes * elements + parameter_bytes * matrices
    return block.cluster.others_s(moved) + operations * block.cluster.operation_s


def _local_sizes(linear: Linear, block: Block) -> tuple[float, float]:
    """Inputs and outputs of a linear layer's part on one tensor rank."""
    if linear.cut == "row":
        return linear.inputs / block.tp, linear.outputs
    share = max(1 / block.tp, 1 / block.shape.kv_heads) if linear.cut == "kv" else 1 / block.tp
    return linear.inputs, linear.outputs * share


def _messages_s(job: Job, cluster: Cluster) -> tuple[float, float]:
    """Seconds of the tensor axis' messages of one block and one micro-batch, forward and backward,
    with the copies around them."""
    rank = max(range(job.plan.pp), key=job.layers_of)
    forward_s, backward_s = tensor_s(job, cluster, rank, "blocks")
    return forward_s / job.layers_of(rank), backward_s / job.layers_of(rank)


def tensor_s(job: Job, cluster: Cluster, rank: int, *parts: str) -> tuple[float, float]:
    """Seconds of the rank's messages for these parts of the model in one micro-batch: forward, and
    backward with what is sent again before it."""
    copies = job.program.message_copies / cluster.memory_bytes_per_s
    hidden = job.program.hidden
    forward_s = backward_s = 0.0
    for message in tensor_messages(job, rank):
        if not message.what.startswith(parts):
            continue
        beside = hidden.tensor
        if message.when == "backward":
            beside = max(beside, hidden.tensor_backward)
        shown = 1 - beside * (1 - hidden.slows)
        handed_s = HANDED_OVER_S if cluster.generation else 0.0
        message_s = shown * (seconds(job, cluster, message) + handed_s)
        message_s += copies * message.payload_bytes
        all_s = message.count / job.microbatches * message_s
        if message.when == "forward":
            forward_s += all_s
        else:
            backward_s += all_s
    return forward_s, backward_s
