"""What silently goes wrong in parallel training, one named test each."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from helpers.engine.data_parallel.buckets import BUCKET_BYTES
from helpers.engine.errors import UserError
from helpers.engine.models.architecture import family_of
from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.boundary import Boundary
from helpers.engine.tensor.check import check_tensor_degree
from helpers.engine.tensor.shards import local
from helpers.engine.tensor.split import fuse_gelu
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.tensor_watch import Watch
from tests.support import parity, tiny
from tests.support.matrix import product
from tests.support.parity import laid_out, trainer_of
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

# Fused projections


def gpt2_thirds() -> None:
    plan, rank = ParallelPlan(tp=2), dist.get_rank()
    plain = tiny.fresh("gpt2", torch.float64).transformer.h[0].attn.c_attn.weight
    mine = local(laid_out("gpt2", plan).transformer.h[0].attn.c_attn.weight).flatten(1)
    query, key, value = (third.chunk(2, 1)[rank] for third in plain.chunk(3, 1))
    assert torch.equal(mine, torch.cat([query, key, value], 1))


def test_gpt2_splits_each_third_of_its_transposed_projection() -> None:
    pool(2).run(gpt2_thirds)


def neox_heads() -> None:
    plan, rank = ParallelPlan(tp=2), dist.get_rank()
    plain = tiny.fresh("neox", torch.float64).gpt_neox.layers[0].attention.query_key_value.weight
    mine = local(laid_out("neox", plan).gpt_neox.layers[0].attention.query_key_value.weight)
    heads = plain.view(4, 3, 8, 32)[2 * rank : 2 * rank + 2]
    assert torch.equal(mine, heads.reshape(-1, 32))


def test_neox_splits_its_interleaved_projection_by_whole_heads() -> None:
    pool(2).run(neox_heads)


def shared_kv_gradients(family: str, name: str) -> None:
    """A key-value head that several ranks use gets gradients from each of them."""
    trainer = trainer_of(family, ParallelPlan(tp=4))
    assert name in trainer.model.partial_gradients
    trainer.backward(*tiny.batch(0))
    before = trainer.data.take()[name].clone()
    trainer.backward(*tiny.batch(0))
    after = trainer.gradients()[name]
    truth = tiny.truth(family, torch.float64)["gradients"][name]
    parity.close(name, after, truth, 1e-10)
    assert (before - truth).abs().max() > 1e-4, "one rank's own gradient is only a part"


@pytest.mark.parametrize(
    ("family", "name"),
    (
        ("falcon-mqa", "transformer.h.0.self_attention.query_key_value.weight"),
        ("llama", "model.layers.0.self_attn.k_proj.weight"),
    ),
)
def test_shared_keys_and_values_sum_their_gradients_over_tp(family: str, name: str) -> None:
    pool(4).run(shared_kv_gradients, family, name)


def test_falcon_7b_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match=r"71 attention heads.*data and pipeline parallelism"):
        check_tensor_degree(load_config("falcon-7b"), 2)
    check_tensor_degree(load_config("falcon-40b"), 8)


# Sums


def sums(family: str, layers: int) -> tuple[int, int]:
    """All-reduces of activations a block, forward and backward."""
    plan = ParallelPlan(tp=2)
    model = laid_out(family, plan)
    ids, labels = tiny.batch(0)

    def of_activations(watch: Watch) -> int:  # [batch, seq, hidden]; the loss sends smaller ones
        size = ids.numel() * model.config.hidden_size * 8
        return sum(n for sent, n in watch.sent.items() if sent.payload_bytes == size)

    with Watch() as forward:
        loss = model(input_ids=ids, labels=labels, checked=True).loss  # as a Trainer calls it
    with Watch() as backward:
        loss.backward()
    # the embedding's sum, and the one by which the head's gradient leaves
    return tuple((of_activations(watch) - 1) / layers for watch in (forward, backward))


@pytest.mark.parametrize(
    ("family", "expected"),
    (
        ("gptj", 1),
        ("neox", 1),
        ("falcon-mqa", 1),
        ("falcon-new", 1),
        ("gpt2", 2),
        ("neox-sequential", 2),
        ("llama", 2),
    ),
)
def test_parallel_residual_needs_one_sum_a_layer_and_direction(family: str, expected: int) -> None:
    assert pool(2).run(sums, family, 2)[0] == (expected, expected)


def biased_rows() -> None:
    ids, _ = tiny.batch(0)
    plain = tiny.reference("gptj")
    for block in plain.transformer.h:
        block.mlp.fc_out.bias.data += 3.0
    expected = plain(input_ids=ids).logits
    for block in plain.transformer.h:
        block.attn.__dict__.pop("_attn")
    plan = ParallelPlan(tp=2)
    model = parallelize(plain, plan, mesh_of(plan))
    parity.close("logits", model(input_ids=ids).logits, expected, 1e-10)


def test_a_row_bias_is_added_once() -> None:
    pool(2).run(biased_rows)


def norms_under_sp(family: str) -> None:
    """Left alone, a norm's gradient under sequence parallelism covers one rank's tokens."""
    plan = ParallelPlan(tp=2, sequence_parallel=True)
    trainer = trainer_of(family, plan)
    name = f"{family_of(trainer.model).norm}.weight"
    truth = tiny.truth(family, torch.float64)["gradients"][name]
    trainer.backward(*tiny.batch(0))
    alone = trainer.data.take()[name]
    assert (alone - truth).abs().max() > 1e-4
    trainer.backward(*tiny.batch(0))
    parity.close(name, trainer.gradients()[name], truth, 1e-10)


@pytest.mark.parametrize("family", ("gptj", "gpt2", "llama"))
def test_norms_in_a_sequence_parallel_model_sum_their_gradients(family: str) -> None:
    pool(2).run(norms_under_sp, family)


def norm_counted_once(plan: ParallelPlan) -> float:
    trainer = trainer_of("gpt2", plan, clip=None)
    return trainer.step(*tiny.batch(0)).grad_norm


def test_the_gradient_norm_counts_replicated_parameters_once() -> None:
    truth = tiny.truth("gpt2", torch.float64)["norms"][0]
    for plan in (
        ParallelPlan(tp=2, dp_replicate=2),
        ParallelPlan(tp=2, dp_shard=2),
        ParallelPlan(dp_replicate=2, dp_shard=2, zero_stage=1),
    ):
        assert pool(4).run(norm_counted_once, plan)[0] == pytest.approx(truth, rel=1e-12)


def strange_gradients(name: str) -> None:
    plan, some = ParallelPlan(), "transformer.h.0.ln_1.weight"
    model = laid_out("gpt2", plan)
    model.transformer.wpe.requires_grad_(False)
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    trainer.backward(*tiny.batch(0))
    gradients, before = trainer.gradients(), model.get_parameter(some).clone()
    with pytest.raises(UserError, match=f"no parameter that trains is called {name}: name"):
        trainer.update(gradients | {name: torch.zeros(1)})
    assert torch.equal(model.get_parameter(some), before)
    trainer.update({some: gradients[some]})  # some of them are enough
    assert not torch.equal(model.get_parameter(some), before)


@pytest.mark.parametrize("name", ("module.lm_head.weight", "transformer.wpe.weight"))
def test_gradients_of_nothing_that_trains_are_refused(name: str) -> None:
    pool(1).run(strange_gradients, name)


# Data ranks


def few_rows(plan: ParallelPlan, rows: int) -> None:
    """Fewer rows than data ranks and micro-batches: the loss is still the mean over all tokens."""
    ids, labels = tiny.batch(0, rows=rows)
    expected = tiny.plain_loss(tiny.reference("gpt2"), ids, labels)
    trainer = trainer_of("gpt2", plan)
    parity.close("loss", trainer.backward(ids, labels), expected, 1e-10)
    trainer.update(trainer.gradients())


@pytest.mark.parametrize(
    "plan", ({"dp_replicate": 4}, {"dp_shard": 4}, {"dp_shard": 4, "zero_stage": 2}), ids=str
)
@pytest.mark.parametrize("rows", (1, 3, 5))
def test_uneven_tokens_and_too_few_rows(plan: dict, rows: int) -> None:
    pool(4).run(few_rows, ParallelPlan(**plan, microbatches=2), rows)


@pytest.mark.parametrize(
    "layout",
    (
        {"dp_replicate": 2},
        {"dp_shard": 2, "zero_stage": 1},
        {"dp_shard": 2, "zero_stage": 2},
        {"dp_shard": 2},
        {"tp": 2},
    ),
    ids=str,
)
def test_accumulation_changes_no_number(layout: dict) -> None:
    pool(2).run(parity.check, "gpt2", ParallelPlan(**layout, microbatches=3))


def messages(plan: ParallelPlan) -> int:
    """Messages of gradients in one step; the loss's are of 16 bytes."""
    trainer = trainer_of("gpt2", plan)
    with Watch() as watch:
        trainer.backward(*tiny.batch(0))
    return sum(n for sent, n in watch.sent.items() if sent.payload_bytes > 16)


def test_accumulation_sends_gradients_once_except_where_they_are_sharded() -> None:
    ddp, zero1 = ParallelPlan(dp_replicate=2), ParallelPlan(dp_shard=2, zero_stage=1)
    zero2 = ParallelPlan(dp_shard=2, zero_stage=2)
    for plan, factor in ((ddp, 1), (zero1, 1), (zero2, 4)):
        once, four = (pool(2).run(messages, replace(plan, microbatches=n))[0] for n in (1, 4))
        assert once > 0 and four == factor * once


def hooked() -> None:
    plan, last = ParallelPlan(dp_replicate=2), []

    def compress(group, bucket):
        last.append(bucket.is_last())
        return default_hooks.bf16_compress_hook(group, bucket)

    with patch("helpers.engine.data_parallel.buckets.BUCKET_BYTES", 2**14):  # several
        compressed = trainer_of("gpt2", plan, hook=compress)
    loss = compressed.backward(*tiny.batch(0))
    truth = tiny.truth("gpt2", torch.float64)
    parity.close("loss", loss, truth["losses"][0], 1e-10)
    gradients = compressed.gradients()
    errors = []
    for part in compressed.parts:
        expected = truth["gradients"][part.name].reshape(gradients[part.name].shape)
        errors.append((gradients[part.name] - expected).abs().max().item())
        assert errors[-1] <= 0.02 * expected.abs().max(), part.name
    assert max(errors) > 1e-9, "nothing was compressed"
    assert last[-1] and not any(last[:-1]) and len(last) > 1


def test_torchs_communication_hooks_compress_the_reduction() -> None:
    pool(2).run(hooked)


def hooked_for_steps(name: str) -> None:
    """The weights after some steps with a hook that asks more of a bucket, and without one."""
    plan, group = ParallelPlan(dp_replicate=2), None
    low_rank = powerSGD_hook.PowerSGDState(
        group, start_powerSGD_iter=2, matrix_approximation_rank=9
    )
    hook = {
        "fp16": lambda g, b: default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)(
            g, b
        ),
        "low rank": lambda _, b: powerSGD_hook.powerSGD_hook(low_rank, b),
    }[name]
    # of several buckets powerSGD's callbacks hang on gloo, under torch's DDP, too
    size = 2**14 if name == "fp16" else BUCKET_BYTES
    with patch("helpers.engine.data_parallel.buckets.BUCKET_BYTES", size):
        compressed, plain = trainer_of("gpt2", plan, hook=hook), trainer_of("gpt2", plan)
    for step in range(4):
        found, expected = (t.step(*tiny.batch(step)).loss for t in (compressed, plain))
    assert found != expected, "nothing was compressed"
    assert abs(found - expected) < 1e-3 * expected


@pytest.mark.parametrize("name", ("fp16", "low rank"))
def test_hooks_may_ask_a_bucket_all_that_torchs_answers(name: str) -> None:
    pool(2).run(hooked_for_steps, name)


# Dropout


RATES = {  # inside the region, and outside
    "gpt2": (["attn_pdrop"], ["resid_pdrop", "embd_pdrop"]),
    "falcon-mqa": (["attention_dropout"], ["hidden_dropout"]),
}


def dropped(
    p_inside: float, p_outside: float, plan: ParallelPlan, family: str = "gpt2"
) -> tuple[float, float]:
    config = tiny.config(family)
    inside, outside = RATES[family]
    for name in (*inside, *outside):
        setattr(config, name, p_inside if name in inside else p_outside)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=1e-3, seed=5)
    first = trainer.backward(*tiny.batch(0)).item()
    return first, float(torch.rand(()))  # and where the shared stream stands


@pytest.mark.parametrize("family", RATES)
def test_outside_the_region_dropout_is_that_of_one_process(family: str) -> None:
    one = pool(1).run(dropped, 0.0, 0.2, ParallelPlan(), family)[0]
    for answer in pool(2).run(dropped, 0.0, 0.2, ParallelPlan(tp=2), family):
        assert answer == pytest.approx(one, rel=1e-12)


def test_the_shared_stream_stays_in_step_and_recomputation_draws_the_same() -> None:
    for extra in ({}, {"sequence_parallel": True}):
        plain = pool(2).run(dropped, 0.2, 0.2, ParallelPlan(tp=2, **extra))
        assert plain[0] == plain[1], "all ranks see one loss and one stream"
        again = pool(2).run(dropped, 0.2, 0.2, ParallelPlan(tp=2, activation="full", **extra))
        assert again == plain


def seed_of_dropout(plan: ParallelPlan) -> int:
    trainer_of("gpt2", plan, seed=5)
    return torch.initial_seed()


def test_ranks_of_other_tokens_and_other_stages_draw_other_masks() -> None:
    for degree in ("dp_replicate", "dp_shard", "cp", "pp"):
        first, second = pool(2).run(seed_of_dropout, ParallelPlan(**{degree: 2}))
        assert first == 5 != second, degree
    assert pool(2).run(seed_of_dropout, ParallelPlan(tp=2)) == [5, 5]


def turns() -> tuple[float, float, float]:
    """Losses of one batch: evaluated, in training, and evaluated again."""
    config, plan = tiny.config("gpt2"), ParallelPlan()
    config.resid_pdrop = 0.3
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).double()
    trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=1e-3)
    first = trainer.evaluate([tiny.batch(0)])["loss"]
    trained = trainer.backward(*tiny.batch(0)).item()
    return first, trained, trainer.evaluate([tiny.batch(0)])["loss"]


def test_dropout_is_on_in_training_and_off_in_evaluation() -> None:
    first, trained, again = pool(1).run(turns)[0]
    assert first == again and abs(trained - first) > 1e-6


def masks() -> tuple[list[float], float]:
    torch.manual_seed(3)
    boundary = Boundary(mesh_of(ParallelPlan(tp=2))["tp"])
    with boundary.own_stream(True):
        inside = torch.rand(4).tolist()
    return inside, float(torch.rand(()))


def test_inside_the_region_each_rank_draws_its_own() -> None:
    (first, after), (second, also_after) = pool(2).run(masks)
    assert first != second and after == also_after


def recompute_gradients(activation: str) -> list[float]:
    config = tiny.config("gpt2")
    config.attn_pdrop = config.resid_pdrop = 0.3
    torch.manual_seed(0)
    plan = ParallelPlan(tp=2, activation=activation)
    model = parallelize(transformers.GPT2LMHeadModel(config).double(), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=1e-3, seed=5)
    trainer.backward(*tiny.batch(0))
    return [g.double().sum().item() for g in trainer.gradients().values()]


def test_recomputed_dropout_gives_the_same_gradients() -> None:
    none, full = (pool(2).run(recompute_gradients, a) for a in ("none", "full"))
    assert full == none


# Wiring


def tied_stays_tied(plan: ParallelPlan) -> None:
    trainer = trainer_of("gpt2", plan)
    for step in range(2):
        trainer.step(*tiny.batch(step))
    model = trainer.model
    assert model.lm_head.weight is model.transformer.wte.weight
    assert sum(p.shape[0] == tiny.VOCAB for _, p in model.named_parameters()) == 1


@pytest.mark.parametrize("plan", ({"tp": 2}, {"dp_shard": 2}, {"dp_replicate": 2}), ids=str)
def test_tied_embedding_and_head_stay_one_parameter(plan: dict) -> None:
    pool(2).run(tied_stays_tied, ParallelPlan(**plan))


def state_dicts(plan: ParallelPlan) -> None:
    source = tiny.reference("gpt2", torch.float64, seed=1).state_dict()
    plain = tiny.fresh("gpt2", torch.float64)
    plain.load_state_dict(source)  # before sharding: transformers' own
    before = parallelize(plain, plan, mesh_of(plan))
    after = laid_out("gpt2", plan)
    after.load_state_dict(before.state_dict())  # after: the layout's own
    ids, _ = tiny.batch(0)
    expected = tiny.reference("gpt2", torch.float64, seed=1)(input_ids=ids).logits
    for model in (before, after):
        parity.close("logits", model(input_ids=ids).logits, expected, 1e-10)


@pytest.mark.parametrize("plan", ({"tp": 2}, {"dp_shard": 2}), ids=str)
def test_state_dicts_load_before_and_after_sharding(plan: dict) -> None:
    pool(2).run(state_dicts, ParallelPlan(**plan))


def first_loss(family: str, plan: ParallelPlan) -> None:
    ids, labels = tiny.batch(0)
    theirs = tiny.fresh(family, torch.float32)(input_ids=ids, labels=labels).loss
    ours = laid_out(family, plan, torch.float32)(input_ids=ids, labels=labels).loss
    parity.close("loss", ours, theirs, 1e-6)


@pytest.mark.parametrize(("family", "tp"), product((*tiny.FAMILIES, *tiny.PUBLISHED), ("2", "1")))
def test_step_0_loss_is_transformers_own(family: str, tp: str) -> None:
    pool(int(tp)).run(first_loss, family, ParallelPlan(tp=int(tp)))


def twice(first: dict) -> None:
    plan = ParallelPlan(**first)
    model = laid_out("gptj", plan)
    with pytest.raises(UserError, match="laid out already"):
        parallelize(model, plan, mesh_of(plan))


def after_fully_shard() -> None:
    from torch.distributed.fsdp import fully_shard

    plan = ParallelPlan(tp=2)
    model = tiny.fresh("gptj", torch.float64)
    fully_shard(model)
    with pytest.raises(UserError, match="laid out already"):
        parallelize(model, plan, mesh_of(plan))


def test_a_model_is_laid_out_once() -> None:
    pool(2).run(twice, {"tp": 2})
    pool(2).run(twice, {"dp_shard": 2})
    pool(2).run(after_fully_shard)


def missing_module() -> None:
    plan = ParallelPlan(tp=2)
    model = tiny.fresh("gptj", torch.float64)
    del model.transformer.h[1].mlp.fc_in
    with pytest.raises(UserError, match=r"mlp\.fc_in"):
        parallelize(model, plan, mesh_of(plan))


def test_a_rule_that_matches_no_module_is_an_error() -> None:
    pool(2).run(missing_module)


def test_a_model_whose_blocks_nothing_is_known_of_is_refused_under_tp_alone() -> None:
    config = transformers.AutoConfig.for_model("mamba")
    with pytest.raises(UserError, match=r"mamba cannot be split by tp: .*tp with GPT-J"):
        check_tensor_degree(config, 2)


def test_the_modules_of_other_models_say_how_they_are_split() -> None:
    record = family_of(tiny.fresh("qwen2", torch.float32))
    assert "self_attn.q_proj" in record.column and "mlp.down_proj" in record.row


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast"])
def test_gelu_in_one_pass_is_transformers_own(name: str) -> None:
    """Its value and gradient; transformers' constants have ten digits."""
    from transformers.activations import ACT2FN

    own, model = ACT2FN[name], torch.nn.Sequential(ACT2FN[name])
    fuse_gelu(model)
    results = []
    for activation in (own, model):
        x = torch.linspace(-6, 6, 1001, dtype=torch.float64, requires_grad=True)
        activation(x).sum().backward()
        results.append((activation(x).detach(), x.grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)
    nodes = model(x).grad_fn
    assert "Gelu" in type(nodes).__name__


def other_plans() -> list[str]:
    """What is said of a model that is laid out by another plan than the trainer's, or by none."""
    plan = ParallelPlan(dp_shard=2)
    laid = laid_out("llama", plan)
    cases = [(laid, ParallelPlan(dp_replicate=2)), (laid, ParallelPlan(dp_shard=2, zero_stage=1))]
    cases.append((laid, ParallelPlan(dp_shard=2, precision="bf16")))  # ZeRO-3 would train in fp32
    cases.append((tiny.fresh("llama", torch.float64), plan))
    staged = ParallelPlan(pp=2)
    for schedule in ("zero-bubble", "zero-bubble-v"):  # one hung, the other was a KeyError
        cases.append((laid_out("llama", staged), replace(staged, schedule=schedule)))
    return [said(Trainer, model, other, mesh_of(other), lr=tiny.LR) for model, other in cases]


def test_a_trainer_has_the_plan_of_its_model() -> None:
    for replicas, stage, bits, bare, *schedules in pool(2).run(other_plans):
        assert "dp_replicate=1" in replicas and "says 2" in replicas
        assert "zero_stage=3" in stage and "says 1" in stage
        assert "precision=fp32" in bits and "says bf16" in bits
        assert "parallelize(model, plan, mesh) comes first" in bare
        assert [" says zero-bubble" in words for words in schedules] == [True, True]
