"""The parts of a rank's memory beside its states and activations, each one formula: the end of the
model, what is gathered or on its way, what a block's backward works with. step_events.py says which
of them stand beside each other.
"""

from helpers.engine.data_parallel.buckets import BUCKET_BYTES, ReduceScattered
from helpers.engine.memory.recomputing import group_size
from helpers.planner.memory.activations import block_bytes, bytes_of
from helpers.planner.memory.microbatches_in_flight import in_halves
from helpers.planner.model.training_job import Job
from helpers.planner.model.widths import Widths

# of the MLP's widest product in 8 bits: its input or gradient in float32 before and after it is
# brought to one scale, and the gradient itself
ROUNDED = Widths(ffn=5, up=0.5)
# what the MLP kept, which is freed as its backward goes on; but offloading, which brings a block's
# activations back together, frees them together
BROUGHT_BACK = Widths(inside=1, ffn=1)
# alive beside each other in a block's backward, and at its end
GRADIENTS, LAST = Widths(inside=2, up=1), Widths(inside=4, query=1, kv=1)


def unsent_bytes(job: Job, rank: int) -> float:
    """Gradients that ZeRO-1 and 2 have whole until they send them: those that come after their
    block's backward, added up; and those of a rank that has too few for two messages.

    Source: the engine's data_parallel/buckets.py.
    """
    if job.plan.zero not in (1, 2):
        return 0.0
    if in_halves(job, rank):
        return 4 * job.parameters_of(rank)
    at_once = one_message(job, rank) and job.microbatches == 1
    return job.element_bytes * job.parameters_of(rank) if at_once else 0.0


def one_message(job: Job, rank: int) -> bool:
    """Do all gradients of a rank go in one message, when its backward is over?"""
    return _in_messages(job) and job.sum_bytes * job.parameters_of(rank) <= BUCKET_BYTES


def _in_messages(job: Job) -> bool:
    """Are gradients copied into messages, be it only to have them in the dtype of sums?"""
    low = job.plan.precision != "fp32"
    return not _sharded(job) and (low or job.plan.dp * job.plan.cp > 1)


def last_message_bytes(job: Job, rank: int, gradients: float) -> float:
    """All gradients of a rank when its last message is made, which is a copy of what it sends, and
    for ZeRO-1 and 2 this rank's part of what comes back.

    Args:
        gradients: when all are there.
    """
    if not _in_messages(job):
        return 0.0
    message = bucket_bytes(job, rank)
    if one_message(job, rank):
        sums = message / job.plan.shards if job.plan.zero == 2 and job.microbatches > 1 else 0.0
        gradients = message + sums
    elif _sends_each_time(job):
        return 0.0
    return gradients + message * (1 + (1 / job.plan.shards if job.plan.zero else 0))


def sent_last_bytes(job: Job, rank: int) -> float:
    """This rank's share of the first message of what waited so."""
    if not unsent_bytes(job, rank):
        return 0.0
    matrix = _head(job) if job.rank_of[-1] == rank else _largest_matrix(job)
    message = max(bucket_bytes(job, rank), job.sum_bytes * matrix)
    return message / job.plan.shards


def loss_work_bytes(job: Job) -> float:
    """The most that the loss works with: forward a chunk of tokens at a time, beside the hidden
    states of those that are labelled; or backward.

    Source: the engine's models/chunked_loss.py; arXiv 2411.09009 (Cut Your Losses), section 4.
    """
    return max(chunk_bytes(job) + job.hidden_bytes, loss_gradients_bytes(job))


def chunk_bytes(job: Job) -> float:
    """The most of a chunk: its logits in float32, which become their gradient, beside themselves
    in the arithmetic's dtype; and the product for the head's gradient, where it has one."""
    low = job.element_bytes / 4 if job.element_bytes < 4 else 0
    made = 0 if job.adapters else job.element_bytes * _head(job)
    return job.logits_bytes * (1 + low) + made


def loss_gradients_bytes(job: Job) -> float:
    """Backward: its gradients, brought to the arithmetic's dtype, while ZeRO-3 gathers a block."""
    copies = (job.element_bytes if job.element_bytes < 4 else 0) * _head(job)
    made = 4 * _head(job) + max(chunk_bytes(job), copies) if _made_late(job) else copies
    return made + job.hidden_bytes + gathered_bytes(job)


def _made_late(job: Job) -> bool:
    """Is the head's gradient made in the backward? As the engine's pipeline/stages.py decides."""
    return job.plan.schedule == "gpipe"


def end_bytes(job: Job) -> float:
    """Kept at the end of the model for one micro-batch's backward: what the last norm keeps, and
    the gradients of hidden states and head where the loss computes them in its forward; else the
    hidden states."""
    hidden_states = job.program.last_norm / job.sequence_ranks + 1
    return hidden_states * job.hidden_bytes + (0 if _made_late(job) else 4 * _head(job))


def stage_messages_bytes(job: Job, rank: int) -> float:
    """Hidden states and their gradients on their way between pipeline ranks: what was sent last,
    and receives that are posted ahead, two of them where gradients come back.

    Source: the engine's pipeline/messages.py.
    """
    if job.plan.pp == 1:
        return 0.0
    messages = 1 if job.rank_of[-1] == rank else 3
    return messages * job.hidden_bytes / job.sequence_ranks


def root_bytes(job: Job, rank: int) -> float:
    """Embedding, last norm and head, which ZeRO-3 keeps whole from forward to backward."""
    return job.end_parameters(rank) * job.element_bytes if _sharded(job) else 0.0


def gathered_bytes(job: Job) -> float:
    """A block's parameters, which ZeRO-3 has whole while it computes with them and on their way."""
    return _unit(job) * job.element_bytes if _sharded(job) else 0.0


def sent_bytes(job: Job, rank: int) -> float:
    """Gradients that were sent and whose sums are not there yet: for ZeRO-3 the block's after this
    one, for ZeRO-1 and 2 the largest matrices of a block, each a message, if they are sent in every
    micro-batch: what waits for the last is less and less of what waits."""
    stage, of_sum = job.plan.zero, job.sum_bytes
    if stage == 3:
        return 0.0 if in_halves(job, rank) else of_sum * _unit(job)
    if not _sends_each_time(job) or one_message(job, rank):
        return 0.0
    bucket = max(bucket_bytes(job, rank), of_sum * _largest_matrix(job))
    return min(ReduceScattered.most_under_way * bucket, of_sum * job.parameters_of(rank))


def bucket_bytes(job: Job, rank: int) -> float:
    """Of gradients in a message: of all of the rank's where those are fewer."""
    return min(BUCKET_BYTES, job.sum_bytes * job.parameters_of(rank))


def left_over_bytes(job: Job, rank: int) -> float:
    """The gradients that ZeRO-3 sent last in a micro-batch, of what is in no block: fully_shard
    holds them until it sends others in the next, or in that of another stage."""
    if not _sharded(job) or len(job.stages_of(rank)) > 1:
        return 0.0
    of_block = 0 if in_halves(job, rank) else _unit(job)  # whose sums fully_shard does not send
    return job.sum_bytes * (job.end_parameters(rank) or of_block)


def head_gradient_bytes(job: Job) -> float:
    """The head's gradient after the loss, before it is one of the rank's summed gradients."""
    return waiting_head_bytes(job) or _head(job) * job.sum_bytes


def waiting_head_bytes(job: Job) -> float:
    """The head's gradient where it waits for the end of the backward: for the embedding's, if one
    matrix is both; for the sum of what is in no block, with ZeRO-3."""
    waits = _sharded(job) or (job.shape.tied and job.plan.pp == 1)
    return _head(job) * job.element_bytes if waits else 0.0


def block_gradient_bytes(job: Job) -> float:
    """At the end of a block's backward: its weights' gradients, and those of its input."""
    return _unit(job) * job.element_bytes + bytes_of(job, LAST)


def reduced_bytes(job: Job) -> float:
    """A block's gradients, and their copy in the dtype of sums that ZeRO-3 sends."""
    return _unit(job) * (job.element_bytes + job.sum_bytes) if _sharded(job) else 0.0


def working_bytes(job: Job, rank: int) -> float:
    """What one block's backward works with: what is recomputed before it, gradients of activations,
    of which the widest two stand beside each other, and a matrix's on its way into its sum. Over cp
    attention may take more, when what the MLP kept is freed."""
    again, after_attention = 0.0, job.program.kept["none"].ffn
    if job.plan.activation != "none":
        whole = bytes_of(job, job.program.kept["none"]) * group_size(job.plan.activation)
        again = max(0.0, whole - block_bytes(job))
    kept_apart = in_halves(job, rank) if _sharded(job) else job.plan.precision != "fp32"
    kept_apart = kept_apart and job.adapters is None
    of_matrix = job.element_bytes * _largest_matrix(job) if kept_apart else 0.0
    of_mlp = bytes_of(job, GRADIENTS) + of_matrix
    if job.plan.precision == "fp8" and not in_halves(job, rank):  # the matrix in 8 bits, and turned
        matrix = _largest_matrix(job)
        of_mlp = max(of_mlp + 2 * matrix, bytes_of(job, ROUNDED) + matrix)
    if job.plan.offload and job.plan.activation == "none":
        of_mlp += bytes_of(job, BROUGHT_BACK)
    of_attention = context_work_bytes(job) - bytes_of(job, Widths(ffn=after_attention))
    if _sharded(job) and not in_halves(job, rank):  # the MLP's gradients wait for the block's end
        made = sum(linear.parameters for linear in job.shape.block[2:]) / job.plan.tp
        of_attention += job.element_bytes * made
    return again + max(of_mlp, of_attention)


def context_work_bytes(job: Job) -> float:
    """The most that the backward of attention over cp works with: keys and values that come or were
    gathered, gradients in float32, and what is on its way.

    Source: the engine's context/ring.py, gather.py and ulysses.py.
    """
    n, way = job.plan.cp, job.plan.cp_attention
    if n == 1:
        return 0.0
    if way == "ring":
        own, wide = Widths(query=2, kv=min(3, n)), Widths(query=1, kv=3)
    elif way == "gather":
        own, wide = Widths(query=2, kv=n + 1), Widths(query=1, kv=n)
    else:
        repeated = max(1.0, n * job.plan.tp / job.shape.kv_heads)
        own, wide = Widths(query=3, kv=repeated), Widths(query=6, kv=repeated)
    return bytes_of(job, own) + bytes_of(job, wide) * 4 / job.element_bytes


def table_work_bytes(job: Job, rank: int) -> float:
    """The embedding's gradient on its way into its sum, and what is on its way then. ZeRO-3 sums
    the head's with it. A matrix that is both has two gradients, which autograd adds up first."""
    element, of_sum = job.element_bytes, job.sum_bytes
    if _sharded(job):
        return (element + of_sum) * job.end_parameters(rank)
    table, low = job.begin_parameters(rank), job.plan.precision != "fp32"
    twice = job.shape.tied and job.plan.pp == 1 and not low
    made = 2 * element if twice else element if low or job.microbatches > 1 else 0
    if not _sends_each_time(job) or one_message(job, rank):
        return made * table
    attention = sum(linear.parameters for linear in job.shape.block[:2]) / job.plan.tp
    under_way = max(ReduceScattered.most_under_way * bucket_bytes(job, rank), of_sum * attention)
    return (made + of_sum) * table + under_way


def swapped_bytes(job: Job) -> float:
    """The gradient of a matrix that is embedding and head, from the pipeline's other end."""
    if not job.shape.tied or job.plan.pp == 1:
        return 0.0
    return job.sum_bytes * _head(job) / (job.plan.shards if job.plan.zero else 1)


def _sends_each_time(job: Job) -> bool:
    """Do ZeRO-1 or 2 send gradients in every micro-batch, while others may be in flight?"""
    stage, plan = job.plan.zero, job.plan
    return stage in (1, 2) and not plan.splits_backward and (stage == 2 or job.microbatches == 1)


def _largest_matrix(job: Job) -> float:
    """Elements of a block's largest matrix on a tensor rank."""
    return max(linear.parameters for linear in job.shape.block) / job.plan.tp


def _unit(job: Job) -> int:
    """Parameters that ZeRO-3 gathers together."""
    return job.block_parameters * group_size(job.plan.activation)


def _sharded(job: Job) -> bool:
    return job.plan.zero == 3


def _head(job: Job) -> int:
    """Elements of the head on the first tensor rank."""
    return job.vocab_rows * job.shape.hidden
