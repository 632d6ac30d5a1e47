"""The planner's bytes against what real ranks hold and send."""

import pytest
import torch

pytest.importorskip("transformers")
from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.planner import cost
from helpers.planner.dry_run.tensor_watch import Watch
from helpers.planner.shape.families import model_shape
from helpers.planner.time.tensor_messages import tensor_traffic
from tests.support.ranks import mesh_of, pool

BATCH, SEQ_LEN = 4, 32
ODD_VOCABULARY = 131  # over 4 ranks: 33, 33, 33, 32


def measure(tp: int) -> tuple[dict[str, int], list[int]]:
    """Runs on each rank: the state it holds after a step, and the messages of that step."""
    plan = ParallelPlan(tp=tp)
    config = load_config("gptj-tiny", vocab_size=ODD_VOCABULARY)
    model = load_model("gptj-tiny", plan, mesh_of(plan), config=config)
    trainer = Trainer(model, plan, mesh_of(plan), lr=1e-3)
    tokens = torch.randint(ODD_VOCABULARY, (BATCH, SEQ_LEN), generator=torch.manual_seed(0))
    with Watch() as watch:
        trainer.backward(tokens, tokens)
    trainer.update(trainer.gradients())
    sums = [sent for sent in watch.sent.elements() if sent.kind == "all_reduce"]
    return trainer.state_bytes(), [sent.payload_bytes for sent in sums]


@pytest.mark.slow
@pytest.mark.parametrize("tp", [2, 4])
def test_state_and_traffic_of_gptj_ranks(tp):
    shape = model_shape(load_config("gptj-tiny", vocab_size=ODD_VOCABULARY))
    for rank, (state, sent) in enumerate(pool(tp).run(measure, tp)):
        share = cost.tensor_parallel_share(shape, tp, rank)
        assert vars(cost.state_bytes(share.total, "fp32")) == state
        # the last token of each sample has no label, so it is in no message of the loss
        expected = tensor_traffic(shape, BATCH, SEQ_LEN, tp)
        unlabelled = expected.loss // SEQ_LEN
        assert sum(sent) == expected.total - unlabelled
        large = [size for size in sent if size > expected.loss]
        assert len(large) == 2 * shape.layers * shape.reductions + 2


STATES = {  # a layout, and bytes per parameter of (parameters, gradients, optimizer) on one rank
    "ddp2": ({"dp_replicate": 2}, (4, 4, 8)),
    "zero1": ({"dp_shard": 2, "zero_stage": 1}, (4, 4, 8 / 2)),
    "zero2": ({"dp_shard": 2, "zero_stage": 2}, (4, 4 / 2, 8 / 2)),
    "zero3": ({"dp_shard": 2}, (4 / 2, 4 / 2, 8 / 2)),
    "zero3-4": ({"dp_shard": 4}, (4 / 4, 4 / 4, 8 / 4)),
    "hsdp": ({"dp_replicate": 2, "dp_shard": 2}, (4 / 2, 4 / 2, 8 / 2)),
    # the sums are in float32, and the optimizer keeps float32 masters beside its moments
    "bf16": ({"dp_replicate": 2, "precision": "bf16"}, (2, 4, 12)),
    "bf16-zero1": ({"dp_shard": 2, "zero_stage": 1, "precision": "bf16"}, (2, 4, 12 / 2)),
}


def state_of(plan: ParallelPlan) -> dict[str, int]:
    """Runs on each rank: the state after a step of several micro-batches."""
    config = load_config("neox-tiny")
    model = load_model("neox-tiny", plan, mesh_of(plan), config=config)
    trainer = Trainer(model, plan, mesh_of(plan), lr=1e-3)
    tokens = torch.randint(config.vocab_size, (8, SEQ_LEN), generator=torch.manual_seed(0))
    trainer.step(tokens, tokens)
    return trainer.state_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_state_by_zero_stage(name):
    fields, bytes_each = STATES[name]
    plan = ParallelPlan(**fields, microbatches=2)
    count = cost.parameters(model_shape(load_config("neox-tiny")))
    for state in pool(plan.world_size).run(state_of, plan):
        expected = [count * each for each in bytes_each]
        assert list(state.values()) == expected
    if plan.precision == "fp32":
        formula = cost.state_bytes(
            count, dp_shard=plan.dp_shard, zero_stage=plan.zero_stage if plan.dp_shard > 1 else 0
        )
        assert list(state.values()) == list(vars(formula).values())
