"""The parts of a rank's memory beside its states and activations, each one formula: the end of the
model, what is gathered or on its way, what a block's backward works with. step_events.py says which
of them stand beside each other.
"""

from math import prod

from helpers.engine.models.chunked_loss import columns_at
from helpers.engine.pipeline import schedules
from helpers.engine.tensor.partial_gradients import MESSAGE_BYTES
from helpers.planner.memory.activations import bytes_of, kept_bytes, own_experts_bytes
from helpers.planner.memory.gradient_messages import one_message, sends_now, stage_messages
from helpers.planner.memory.turns import in_halves
from helpers.planner.model.block_tensors import INPUT
from helpers.planner.model.shared_gradients import shared_gradient_bytes
from helpers.planner.model.training_job import Job
from helpers.planner.model.units import Units, sent_in, units_of
from helpers.planner.model.widths import Widths
from helpers.planner.shape.parameters import (
    EXPERTS,
    Held,
    elements,
    experts_share,
    only_experts,
    without_experts,
)

# of the MLP's widest product in 8 bits: its input or gradient in float32 before and after it is
# brought to one scale, and the gradient itself
ROUNDED = Widths(ffn=5, up=0.5)
# what the MLP kept, which is freed as its backward goes on; but offloading, which brings a block's
# activations back together, frees them together
BROUGHT_BACK = Widths(inside=1, ffn=1)
# alive beside each other at the end of a block's backward
LAST = Widths(inside=4, query=1, kv=1)
LAST_OF_INPUT = Widths(inside=4)  # of the half whose gradients of queries, keys and values wait


def loss_work_bytes(job: Job, gathered: float = 0.0) -> float:
    """The most that the loss works with: forward a chunk of tokens at a time, beside the hidden
    states of those that are labelled; or backward.

    Args:
        gathered: bytes of parameters that ZeRO-3 gathers meanwhile, for the last block's backward.

    Source: the engine's models/chunked_loss.py; arXiv 2411.09009 (Cut Your Losses), section 4.
    """
    return max(chunk_bytes(job) + job.hidden_bytes, loss_gradients_bytes(job) + gathered)


def chunk_bytes(job: Job) -> float:
    """The most of a chunk: its logits in float32, which become their gradient, beside themselves
    in the arithmetic's dtype, or where they are capped beside that gradient; the product for the
    gradient of its hidden states, or of the head, where it has one; and the head again, where the
    device wants more columns than it has."""
    low = job.element_bytes / 4 if job.element_bytes < 4 else 0
    beside = max(low, 1) if job.shape.capped else low
    tokens = job.logits_bytes / (4 * job.vocab_rows)
    rows = tokens if job.adapters else max(tokens, job.vocab_rows)
    if columns_at(job.device, job.vocab_rows) != job.vocab_rows:
        rows += job.vocab_rows
    return job.logits_bytes * (1 + beside) + job.element_bytes * job.shape.hidden * rows


def loss_gradients_bytes(job: Job) -> float:
    """Backward: its gradients, brought to the arithmetic's dtype."""
    copies = (job.element_bytes if job.element_bytes < 4 else 0) * _head(job)
    made = 4 * _head(job) + max(chunk_bytes(job), copies) if job.made_late else copies
    return made + job.hidden_bytes


def end_bytes(job: Job) -> float:
    """Kept at the end of the model for one micro-batch's backward: what the last norm keeps, and
    the gradients of hidden states and head where the loss computes them in its forward; else the
    hidden states."""
    hidden_states = job.program.last_norm / job.sequence_ranks + 1
    return hidden_states * job.hidden_bytes + (0 if job.made_late else 4 * _head(job))


def stage_message_bytes(job: Job) -> float:
    """Hidden states of a micro-batch, or their gradient, on their way between stages."""
    return job.hidden_bytes / job.sequence_ranks


def late_matrix_bytes(job: Job) -> float:
    """The largest gradient of a matrix that is made later, on its way into its sum; ZeRO-3 has it
    in the dtype of sums, too."""
    each = job.element_bytes + (job.sum_bytes if _sharded(job) else 0)
    if not experts_share(job.shape):
        return each * _largest_matrix(job)
    return each * _largest_held(job, without_experts(job.block))


def root_bytes(job: Job, rank: int) -> float:
    """Embedding, last norm and head, which ZeRO-3 keeps whole from forward to backward."""
    return job.end_parameters(rank) * job.element_bytes if _sharded(job) else 0.0


def gathered_bytes(job: Job, parameters: float) -> float:
    """So many of blocks, which ZeRO-3 has whole while it computes with them and on their way."""
    return parameters * job.element_bytes if _sharded(job) else 0.0


def lowered_bytes(job: Job, gathered: float) -> float:
    """This rank's part of what is gathered, in the arithmetic's precision: it is sent, and what the
    rank holds is float32."""
    return gathered / job.plan.shards if job.element_bytes < 4 else 0.0


def sent_bytes(job: Job, parameters: float) -> float:
    """Gradients of blocks that ZeRO-3 has sent and whose sums are not there yet."""
    return job.sum_bytes * parameters if _sharded(job) else 0.0


def stage_ends(job: Job, rank: int, stage: int) -> int:
    """Parameters in no block whose first gradients a stage makes. One matrix for both ends of the
    model has gradients from its last stage on."""
    begin = job.begin_parameters(rank) if stage == 0 else 0
    if stage < len(job.layers) - 1:
        both = job.shape.tied and job.rank_of[0] == job.rank_of[-1]
        return begin - (_head(job) if both and begin else 0)
    return job.end_parameters(rank) - (0 if begin else _positions(job, rank))


def left_over_bytes(job: Job, rank: int, stage: int) -> float:
    """The gradients that ZeRO-3 sent last in a backward of a stage, of what is in no block:
    fully_shard holds them until it sends others, in the next, or sees a part of the rank that had
    none to send: another stage's."""
    others = sum(job.layers[other] for other in job.stages_of(rank) if other != stage)
    ends = stage_ends(job, rank, stage)
    if not _sharded(job) or others or 0 == ends < job.end_parameters(rank):
        return 0.0
    # in halves a block's gradients are summed apart, but for experts'
    kind = schedules.INPUT if in_halves(job, rank) else schedules.BACKWARD
    sent = sent_in(job, stage, units_of(job, stage), kind)
    of_block = sent[-1] if sent else 0
    at_first = job.begin_parameters(rank) if stage == 0 < len(job.layers) - 1 else 0
    return job.sum_bytes * (at_first or ends or of_block)


def waiting_head_bytes(job: Job, rank: int) -> float:
    """The head's gradient where it waits for the end of the backward: for the embedding's, if one
    matrix is both, or for the message that this would go in; for the sum of what is in no block,
    with ZeRO-3."""
    waits = _sharded(job) or (job.shape.tied and (job.plan.pp == 1 or sends_now(job, rank)))
    return _head(job) * job.element_bytes if waits else 0.0


def unit_gradient_bytes(job: Job, parameters: float) -> float:
    """At the end of the backward of blocks: their weights' gradients, and those of their input."""
    return parameters * job.element_bytes + last_bytes(job)


def last_bytes(job: Job, halved: bool = False) -> float:
    """What is alive of a block at the end of its backward, or of the half that makes its input's
    gradient, beside its gradients and what waits."""
    return bytes_of(job, LAST_OF_INPUT if halved else LAST)


def dealt_gradient_bytes(job: Job, units: Units, place: int) -> float:
    """Of experts that ranks deal out, in one of the units: a rank's own, in the dtype of sums, and
    never sent."""
    return 4 * (units.parameters[place] - units.gathered[place]) / job.plan.ep


def reduced_bytes(job: Job, parameters: float) -> float:
    """Gradients of blocks, and their copy in the dtype of sums that ZeRO-3 sends."""
    return parameters * (job.element_bytes + job.sum_bytes) if _sharded(job) else 0.0


def working_bytes(job: Job, rank: int, blocks: int = 1) -> float:
    """What the backward of blocks works with: what is recomputed before it, gradients of
    activations beside each other, and a matrix's on its way into its sum. Over cp attention may
    take more, and of a narrow MLP a norm, when what the MLP kept is freed."""
    again, after_attention = 0.0, job.program.kept["none"].ffn
    if job.plan.activation != "none":
        whole = blocks * bytes_of(job, job.program.kept["none"])
        if job.plan.ep > 1:
            whole += blocks * own_experts_bytes(job)
        again = max(0.0, whole - kept_bytes(job, blocks))
    late = in_halves(job, rank)
    # experts' gradients do not come later
    matrix = _largest_held(job, only_experts(job.block)) if late else _largest_matrix(job)
    of_matrix = 0.0 if job.adapters else job.element_bytes * matrix
    gradients = job.program.work or job.program.gradients
    if job.plan.sequence_parallel and not job.program.work:  # of its result, which is gathered
        gradients += INPUT
    stays = Widths(ffn=1 - experts_share(job.shape) if late else 0)  # what its last product had
    of_mlp = bytes_of(job, gradients + stays) + of_matrix
    if job.plan.precision == "fp8":  # brought to one scale, or the matrix in 8 bits
        matrix = _largest_matrix(job)
        of_mlp = max(bytes_of(job, gradients) + 4 * matrix, bytes_of(job, ROUNDED) + matrix)
    if job.plan.offload and job.plan.activation == "none":
        of_mlp += bytes_of(job, BROUGHT_BACK)
    of_attention = context_work_bytes(job) - bytes_of(job, Widths(ffn=after_attention))
    of_attention += 0.0 if job.program.work else score_gradients_bytes(job)
    if _sharded(job):  # its other gradients wait for the block's end
        of_attention += job.element_bytes * _beside_attention(job, late)
    norm = 0 if job.program.work else job.program.norm_gradients
    of_norm = bytes_of(job, Widths(outside=norm, ffn=-after_attention))
    of_experts = all_tokens_bytes(job) if job.plan.ep > 1 else 0.0
    return again + max(of_mlp, of_attention, of_norm, of_experts)


def all_tokens_bytes(job: Job) -> float:
    """Of ranks that deal experts out: hidden states of all their tokens beside as many gradients,
    where a block is computed again; else these beside their sum, when the MLP's tensors are gone.
    """
    freed = job.program.kept["none"].ffn if job.plan.activation == "none" else 0.0
    return bytes_of(job, Widths(inside=2 * job.plan.ep, ffn=-freed))


def score_gradients_bytes(job: Job) -> float:
    """Gradients of scores that stand in memory: in float32, and in the arithmetic's dtype."""
    kept, each = job.program.kept["none"], 1 + 4 / job.element_bytes
    if kept.whole_scores >= 1:
        return bytes_of(job, Widths(whole_scores=each))
    # of less than one of each, what is left of a measured fit, there are none
    return bytes_of(job, Widths(scores=each)) if kept.scores >= 1 else 0.0


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


def table_work_bytes(job: Job, rank: int, first: bool) -> float:
    """The embedding's gradient on its way into its sum. ZeRO-3 sums the head's with it.

    Args:
        first: is there no earlier sum that it is added to?
    """
    element, of_sum, shards = job.element_bytes, job.sum_bytes, job.plan.shards
    low, table = job.plan.precision != "fp32", job.begin_parameters(rank)
    if _sharded(job):
        sent = job.end_parameters(rank) if len(job.layers) == 1 else table
        last = table - _head(job) or table  # whose gradient autograd still has: of positions
        back = of_sum * sent / shards
        return of_sum * sent + max(element * sent, element * last + back)
    made = added_table_bytes(job, rank)
    if not sends_now(job, rank):
        return max(made, (element + of_sum) * table) if first and low else made
    if one_message(job, rank):
        return made
    last = stage_messages(job, 0)[-1]
    back = of_sum * last.elements / shards if job.plan.zero else 0
    if last.parameters > 1:
        waited = element * (last.elements - table)
        return max(made, 2 * of_sum * last.elements + back - waited)
    if job.vocab_rows % shards:  # padded, and copied
        return max(made, 3 * of_sum * table)
    return max(made, element * table + (of_sum * table if low else back))


def added_table_bytes(job: Job, rank: int) -> float:
    """The embedding's gradient when it is made; that of a matrix that is the head, too, is added to
    the head's."""
    twice = job.shape.tied and job.plan.pp == 1
    return (3 if twice else 1) * job.element_bytes * job.begin_parameters(rank)


def swapped_bytes(job: Job, rank: int) -> float:
    """The gradient of a matrix that is embedding and head, from the rank of the other end."""
    ends = job.rank_of[0], job.rank_of[-1]
    if not job.shape.tied or rank not in ends or ends[0] == ends[1]:
        return 0.0
    return job.held_sum_bytes * _head(job) / (job.plan.shards if job.plan.zero else 1)


def shared_message_bytes(job: Job, rank: int) -> float:
    """Gradients of which each tensor rank has one term, copied into the largest message that sums
    several."""
    return min(shared_gradient_bytes(job, rank), MESSAGE_BYTES)


def _positions(job: Job, rank: int) -> int:
    """What a rank has of the model's beginning and not of its end."""
    begin = job.begin_parameters(rank)
    return begin - (_head(job) if begin and job.shape.tied else 0)


def _largest_matrix(job: Job) -> float:
    """Elements of a block's largest matrix on a tensor rank; a matrix of all its experts is one."""
    product = max(linear.parameters for linear in job.shape.block) / job.plan.tp
    return max(product, _largest_held(job, job.block)) if job.shape.held else product


def _largest_held(job: Job, held: tuple[Held, ...]) -> float:
    """Elements of the largest of these that a rank computes with; 0 of none."""
    ranks = {EXPERTS: job.plan.ep}  # of which each computes with its own
    return max((prod(one.on(job.plan.tp)) / ranks.get(one.role, 1) for one in held), default=0.0)


def _beside_attention(job: Job, late: bool) -> float:
    """Elements of a block that are not of its queries, keys and values, on a tensor rank; of these
    the experts', where the others' gradients are made later."""
    if late:
        return job.own_experts if job.plan.ep == 1 else 0.0
    before = sum(linear.parameters for linear in job.shape.block[:2]) / job.plan.tp
    block = without_experts(job.block) if job.plan.ep > 1 else job.block
    return elements(block, job.plan.tp, 0, 1, 0) - before


def _sharded(job: Job) -> bool:
    return job.plan.zero == 3


def _head(job: Job) -> int:
    """Elements of the head on the first tensor rank."""
    return job.vocab_rows * job.shape.hidden
