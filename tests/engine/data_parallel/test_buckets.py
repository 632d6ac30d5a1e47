"""What gradients on their way to the data ranks' sums hold in memory."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.engine.data_parallel.buckets import ReduceScattered
from helpers.engine.data_parallel.chunks import from_rank_major, padded_chunk, rank_major
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.parity import laid_out, trainer_of
from tests.support.ranks import mesh_of, pool


def make(plan: ParallelPlan, family: str = "gptj", **sizes: int) -> Trainer:
    return trainer_of(family, plan, torch.float32, **sizes)


def most_under_way(plan: ParallelPlan) -> tuple[int, int]:
    """The most buckets whose message is alive at once, and how many buckets there are."""
    bucket_bytes = "helpers.engine.data_parallel.buckets.BUCKET_BYTES"
    with patch(bucket_bytes, 1):  # every parameter is a bucket
        trainer = make(plan)
    buckets, alive = trainer.data.buckets, []
    send = buckets._send

    def counted(bucket):
        send(bucket)
        alive.append(sum(one.flat is not None for one in buckets.buckets))

    with patch.object(buckets, "_send", counted):
        trainer.step(*tiny.batch(0))
    return max(alive), len(buckets.buckets)


@pytest.mark.parametrize("stage", (1, 2))
def test_zero_frees_what_it_sent_while_the_backward_runs(stage):
    """Kept until the step's end they would be a whole gradient, which is what ZeRO saves;
    waited for at once, nothing would be sent beside the backward."""
    plan = ParallelPlan(dp_shard=2, zero_stage=stage)
    for most, buckets in pool(2).run(most_under_way, plan):
        assert most == ReduceScattered.most_under_way < buckets


def waiting(plan: ParallelPlan) -> tuple[set[torch.dtype], set[torch.dtype]]:
    """The dtypes of gradients that wait, in the model and beside it, after one micro-batch."""
    trainer = make(plan)
    buckets, found = trainer.data.buckets, []
    end = buckets.end

    def noted():
        end()
        own = {p.grad.dtype for b in buckets.buckets for p in b.parameters if p.grad is not None}
        found.append((own, {kept.dtype for kept in buckets.unsent.values()}))

    with patch.object(buckets, "end", noted):
        trainer.step(*tiny.batch(0))
    return found[0]


def test_low_gradients_of_earlier_micro_batches_wait_in_the_sums_dtype_alone():
    plan = ParallelPlan(dp_replicate=2, precision="bf16", microbatches=2)
    assert pool(2).run(waiting, plan) == [(set(), {torch.float32})] * 2


class Operations(TorchDispatchMode):
    """Their names, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def added_twice(plan: ParallelPlan) -> tuple[list[str], float]:
    """The operations of adding a low gradient to one that waits, and the sum's first number."""
    buckets = make(plan).data.buckets
    name, parameter = next(zip(buckets.buckets[0].names, buckets.buckets[0].parameters))
    gradient = torch.ones(parameter.shape, dtype=torch.bfloat16)
    buckets.add(name, gradient)
    with Operations() as operations:
        buckets.add(name, gradient)
    return operations.names, buckets.unsent[name].flatten()[0].item()


def test_a_gradient_that_was_put_off_is_added_without_a_copy_in_the_sums_dtype():
    plan = ParallelPlan(dp_replicate=2, precision="bf16")
    assert pool(2).run(added_twice, plan) == [(["aten.add_.Tensor"], 2.0)] * 2


def test_a_bucket_of_one_even_matrix_is_sent_as_it_lies():
    even, uneven = torch.randn(6, 4), torch.randn(5, 4)
    assert rank_major([even], 2).data_ptr() == even.data_ptr()
    assert rank_major([uneven], 2).data_ptr() != uneven.data_ptr()


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_a_message_of_chunks_has_each_ranks_rows_and_comes_back_whole(shapes, ranks):
    tensors = [torch.randn(shape) for shape in shapes]
    message = rank_major(tensors, ranks)
    sizes = [padded_chunk(tensor, ranks) for tensor in tensors]
    for rank, piece in enumerate(message.view(ranks, -1)):
        for tensor, part in zip(tensors, piece.split(sizes), strict=True):
            rows = -(-len(tensor) // ranks)
            own = tensor[rank * rows :][:rows].flatten()
            assert torch.equal(part[: len(own)], own) and not part[len(own) :].any()
    found = [torch.full_like(tensor, torch.nan) for tensor in tensors]
    from_rank_major(message, found, ranks)
    assert all(map(torch.equal, found, tensors))


def sent_by_stage(plan: ParallelPlan, family: str) -> tuple[list[set[int]], list[int]]:
    """Of each bucket the stages whose parameters it has, and how often it was sent in a step."""
    trainer = make(plan, family, layers=4)
    stage_of = {
        id(p): stage.index
        for stage in trainer.model.stages
        for module in (*stage.blocks.values(), stage.entry)
        for p in module.parameters()
    }
    buckets, sent = trainer.data.buckets, []
    with patch.object(buckets, "start", side_effect=buckets.start) as start:
        trainer.step(*tiny.batch(0))
        sent = [call.args[0].index for call in start.call_args_list]
    stages = [
        {stage_of[id(p)] for p in bucket.parameters if id(p) in stage_of}
        for bucket in buckets.buckets
    ]
    return stages, [sent.count(bucket.index) for bucket in buckets.buckets]


@pytest.mark.parametrize(
    "family, partition", [("gptj", "1,1,1,1"), ("gptj", "1,1,2,0"), ("gpt2", "1,1,2,0")]
)
@pytest.mark.parametrize(
    "layout, each", [({"dp_replicate": 2}, 1), ({"zero_stage": 1}, 1), ({"zero_stage": 2}, 2)]
)
def test_no_bucket_has_two_stages_or_is_sent_with_nothing_but_zeros(
    layout: dict, each: int, family: str, partition: str
):
    """Small models fit in one bucket, half of which would be zeros in each stage's backward."""
    layout = layout if "dp_replicate" in layout else layout | {"dp_shard": 2}
    layout = layout | {"partition": partition}
    plan = ParallelPlan(pp=2, virtual_stages=2, schedule="interleaved", microbatches=2, **layout)
    for stages, sent in pool(4).run(sent_by_stage, plan, family):
        assert [len(some) for some in stages] == [1, 1]
        assert sent == [each, each]


def sums_of_two_micro_batches(plan: ParallelPlan) -> dict[str, list[float]]:
    """Of two parameters, of which rank 1 uses one alone in the second micro-batch."""
    mesh = mesh_of(plan)
    groups = mesh.get_group("dp_shard"), mesh.get_group("dp_replicate")
    used = {name: torch.nn.Parameter(torch.ones(2)) for name in ("always", "once")}
    with patch("helpers.engine.data_parallel.buckets.BUCKET_BYTES", 1):
        buckets = ReduceScattered(used, dict.fromkeys(used, 0), torch.float32, *groups)
    for micro_batch in range(2):
        buckets.begin(sends=True, last=micro_batch == 1)
        both = micro_batch == 0 or groups[0].rank() == 0
        sum(used[name].sum() for name in ("always", "once")[: 1 + both]).backward()
        buckets.end()
    return {name: total.tolist() for name, total in buckets.take().items()}


def test_a_parameter_that_one_rank_alone_uses_in_the_last_micro_batch_is_summed():
    """Both ranks send its bucket, or one would wait for ever."""
    found = pool(2).run(sums_of_two_micro_batches, ParallelPlan(dp_shard=2, zero_stage=2))
    assert found == [{"always": [4.0], "once": [3.0]}] * 2


def gathered_ahead(plan: ParallelPlan) -> list[int]:
    """How many units each unit gathers ahead in the forward."""
    model = laid_out("gptj", plan, torch.float32, layers=8)
    stages = [list(stage.blocks.values()) for stage in model.stages]
    states = [block._get_fsdp_state() for blocks in stages for block in blocks]
    return [len(state._states_to_forward_prefetch) for state in states]


def test_the_last_block_of_a_stage_gathers_nothing_ahead():
    """The next stage of the rank has its turn later, and would be held until then."""
    plan = ParallelPlan(dp_shard=2, pp=2, virtual_stages=2, schedule="interleaved", microbatches=2)
    ahead = pool(4).run(gathered_ahead, plan)
    assert all(sum(each) == len(each) - 2 for each in ahead), ahead


def gradient_error(plan: ParallelPlan) -> float:
    """Of gradients summed in bf16, against those of float32; relative to the norm."""
    ids, labels = tiny.batch(0, rows=128)
    found = []
    for dtype in ("fp32", "bf16"):
        trainer = make(replace(plan, reduce_dtype=dtype))
        trainer.backward(ids, labels)
        whole = trainer.gradients()
        parts = {part.name: part for part in trainer.parts}
        found.append({name: parts[name].whole(gradient) for name, gradient in whole.items()})
    exact, summed = found
    off = sum((summed[name] - exact[name]).square().sum() for name in exact)
    return (off / sum(gradient.square().sum() for gradient in exact.values())).sqrt().item()


@pytest.mark.parametrize(
    "layout",
    [{"dp_replicate": 2}, {"dp_shard": 2, "zero_stage": 1}, {"dp_shard": 2, "zero_stage": 2}],
)
def test_micro_batches_are_not_added_up_in_bf16(layout: dict) -> None:
    """What is sent is rounded once; sums of 64 that are rounded each time would be off by more."""
    one, many = (
        max(pool(2).run(gradient_error, ParallelPlan(microbatches=count, **layout)))
        for count in (1, 64)
    )
    assert 1e-4 < one < 5e-3
    assert many < 1.1 * one


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"dp_replicate": 2, "dp_shard": 2}])
def test_fully_shard_sums_in_the_dtype_that_the_plan_says(layout: dict) -> None:
    """In float32 arithmetic, too."""
    plan = ParallelPlan(microbatches=2, **layout)
    assert 1e-4 < max(pool(plan.world_size).run(gradient_error, plan)) < 1e-2
