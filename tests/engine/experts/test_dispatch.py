"""Experts over ranks of their own equal one process, whatever else there is beside."""

from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("transformers")
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from helpers.engine.errors import UserError
from helpers.engine.experts import dispatch
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.files.weights import save_model, whole_weights
from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import load_model, parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.shards import local
from helpers.engine.trainer import Trainer
from tests.engine.adapters.versions import skip_unknown
from tests.support import parity, tiny
from tests.support.matrix import part
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said
from tests.support.scripts import script

models = script("docs/models")
EP = {"dp_shard": 2, "ep": 2}
LAYOUTS = {
    "ep2": EP,
    "ep4": {"dp_shard": 4, "ep": 4},
    "replicas": EP | {"dp_replicate": 2},
    "tp": EP | {"tp": 2},
    "tp-sp": EP | {"tp": 2, "sequence_parallel": True},
    "1f1b": EP | {"pp": 2, "microbatches": 2},
    "zero-bubble": EP | {"pp": 2, "microbatches": 4, "schedule": "zero-bubble"},
    "recomputing": EP | {"activation": "full"},
    "micro-batches": EP | {"microbatches": 3},
    "cp": {"cp": 2, "ep": 2, "tp": 2, "cp_attention": "ulysses"},
    "cp and shards": {"dp_shard": 2, "cp": 2, "ep": 4, "activation": "full", "microbatches": 2},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_equals_one_process(name: str) -> None:
    plan = ParallelPlan(**LAYOUTS[name])
    pool(plan.world_size).run(parity.check, "gpt-oss", plan)


def rows_seen(plan: ParallelPlan, path: str) -> list[int] | str:
    """Of one step, the rows that a hook is given on a module of the first block's experts."""
    model, seen = models.small_model("mixtral"), []
    module = model.get_submodule(f"model.layers.0.mlp.experts{path}")
    module.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    mesh = mesh_of(plan)
    try:
        model = parallelize(model, plan, mesh)
    except UserError as error:
        return str(error)
    Trainer(model, plan, mesh, lr=tiny.LR).step(*tiny.batch(0))
    return seen


def test_a_hook_sees_its_ranks_tokens_or_is_refused() -> None:
    """Of 8 rows of 17 tokens each rank has a half, of which each goes to two experts."""
    for plan in (ParallelPlan(**EP), ParallelPlan(**EP | {"tp": 2})):
        assert pool(plan.world_size).run(rows_seen, plan, "") == [[68]] * plan.world_size
    assert pool(2).run(rows_seen, ParallelPlan(dp_shard=2), ".act_fn") == [[136]] * 2
    for told in pool(2).run(rows_seen, ParallelPlan(**EP), ".act_fn"):
        words = "model.layers.0.mlp.experts.act_fn has a hook, which would see tokens of all ranks"
        assert told.startswith(words) and "\n" not in told


# of the third no token goes to some rank's experts, the last has none in its first blocks
TYPES = ("mixtral", "nemotron_h", "deepseek_v4", "flint")
OTHERS = ("qwen2_moe", "deepseek_v3", "granitemoe", "aria_text", "jamba", "lfm2_moe")


def admitted(model_type: str, fields: dict) -> tuple[str, bool]:
    """On a rank: is it exact, and has it its own experts alone?"""
    plan = ParallelPlan(**fields)
    mesh = mesh_of(plan)
    verdict = models.verdict(models.small_model(model_type), plan, mesh)
    model = parallelize(models.small_model(model_type), plan, mesh)
    dealt = [model.get_parameter(name) for name in model.dealt]
    whole = [len(local(parameter)) * plan.ep == len(parameter) for parameter in dealt]
    return verdict, bool(dealt) and all(whole)


@pytest.mark.parametrize("model_type", part(TYPES, OTHERS))
def test_other_mixtures_are_exact(model_type: str) -> None:
    skip_unknown(model_type)
    assert set(pool(2).run(admitted, model_type, EP)) == {("exact", True)}


def steps(plan: ParallelPlan, batches: list[tuple[Tensor, ...]]) -> tuple[list, list, dict]:
    trainer = parity.trainer_of("gpt-oss", plan)
    losses = [trainer.step(*batch).loss for batch in batches]
    return losses, trainer.evaluate(batches), dict(whole_weights(trainer.model))


@pytest.mark.parametrize("rows", (1, 3, 5))
def test_rows_that_do_not_come_out_even(rows: int) -> None:
    """A rank with fewer has rows without labels more: messages are as long on every rank."""
    batches = [tuple(x[:rows] for x in tiny.batch(step)) for step in range(3)]
    [(losses, evaluated, weights)] = pool(1).run(steps, ParallelPlan(), batches)
    for found, seen, own in pool(2).run(steps, ParallelPlan(**EP, microbatches=2), batches):
        assert found == pytest.approx(losses, rel=1e-10)
        assert seen == pytest.approx(evaluated, rel=1e-10)
        assert all((own[n] - weight).abs().max() < 1e-9 for n, weight in weights.items())


def losses_in(plan: ParallelPlan) -> list[float]:
    trainer = parity.trainer_of("gpt-oss", plan, torch.float32)
    return [trainer.step(*tiny.batch(0)).loss for _ in range(5)]


@pytest.mark.parametrize("precision", ("bf16", "fp16"))
@pytest.mark.parametrize("more", ({}, {"dp_replicate": 2, "reduce_dtype": "bf16"}))
def test_low_precision_is_that_of_zero_3(precision: str, more: dict) -> None:
    plans = (ParallelPlan(dp_shard=2, ep=ep, precision=precision, **more) for ep in (1, 2))
    [alone, dealt] = (pool(plan.world_size).run(losses_in, plan)[0] for plan in plans)
    assert dealt == pytest.approx(alone, rel=2e-2)
    assert dealt[-1] < dealt[0]


def trained(plan: ParallelPlan, folder: Path | None, count: int) -> list[float]:
    """Losses of steps from the first, or from where a checkpoint is."""
    trainer = parity.trainer_of("gpt-oss", plan)
    if folder is not None and folder.exists():
        Checkpoints(folder).resume(trainer)
    begun = trainer.steps_done
    losses = [trainer.step(*tiny.batch(begun + step)).loss for step in range(count)]
    if folder is not None:
        Checkpoints(folder).save(trainer)
    return losses


CHANGES = ("ep2 to ep4", "zero-3 to ep2", "ep2 to tp")
OTHER_CHANGES = ("ep2 to one", "one to ep2", "tp to zero-3", "cp to ep4", "ep2 to cp and shards")


@pytest.mark.parametrize("change", part(CHANGES, OTHER_CHANGES))
def test_a_checkpoint_goes_on_under_another_plan(change: str, tmp_path: Path) -> None:
    plans = LAYOUTS | {"one": {}, "zero-3": {"dp_shard": 2}}
    first, then = (ParallelPlan(**plans[name]) for name in change.split(" to "))
    [expected] = pool(1).run(trained, ParallelPlan(), None, 4)
    assert pool(first.world_size).run(trained, first, tmp_path / "run", 2)
    for losses in pool(then.world_size).run(trained, then, tmp_path / "run", 2):
        assert losses == pytest.approx(expected[2:], rel=1e-9)


def in_and_out(folder: Path, plan: ParallelPlan, out: Path) -> dict[str, Tensor]:
    model = load_model(folder, plan, mesh_of(plan), dtype=torch.float32)
    assert all(isinstance(model.get_parameter(name), DTensor) for name in model.dealt)
    save_model(model, out)
    return dict(whole_weights(model))


def test_files_are_read_and_written(tmp_path: Path) -> None:
    model = models.small_model("mixtral").float()
    model.save_pretrained(tmp_path / "in")
    for weights in pool(2).run(in_and_out, tmp_path / "in", ParallelPlan(**EP), tmp_path / "out"):
        for name, value in model.named_parameters():
            assert torch.equal(weights[name], value.detach())
    again = type(model).from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert all(torch.equal(again.get_parameter(n), p) for n, p in model.named_parameters())


def kept_to_itself(compute, hidden, chosen, weights, count, group) -> Tensor:
    """As if each rank's tokens went to its own experts alone."""
    each = -(-count // group.size())
    token, place = (chosen // each == group.rank()).nonzero().unbind(1)
    own = compute(
        hidden[token], (chosen[token, place] % each).unsqueeze(1), weights[token, place, None]
    )
    return torch.zeros_like(hidden).index_add(0, token, own)


def refusal(model_type: str, fields: dict) -> str:
    from helpers.engine.admission.admitted import admitted_kind

    plan = ParallelPlan(**fields)
    admitted_kind.cache_clear()
    with patch("helpers.engine.experts.split.by_all_gather", kept_to_itself):
        words = said(parallelize, models.small_model(model_type), plan, mesh_of(plan))
    admitted_kind.cache_clear()
    return words


@pytest.mark.parametrize(
    ("axis", "others"), part({"dp_shard": ""}.items(), {"cp": "the same without ep, "}.items())
)
def test_tokens_that_stay_at_home_are_noticed(axis: str, others: str) -> None:
    for words in pool(2).run(refusal, "mixtral", {axis: 2, "ep": 2}):
        assert f"would not be exact under {axis}=2 with ep=2: its loss would be" in words
        assert words.endswith(f"exact here: {others}dp_shard and dp_replicate")


def refused(model_type: str) -> str:
    plan = ParallelPlan(**EP)
    return said(parallelize, models.small_model(model_type), plan, mesh_of(plan))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    (
        # whose class sorts the tokens itself, and hands over each expert's
        ("llama4_text", "Llama4TextExperts is not told which tokens go to which experts"),
        # whose blocks have two attentions, so that no rules find what is in them
        ("longcat_flash", "longcat_flash has no experts that ep could deal out: leave it out"),
    ),
)
def test_experts_that_cannot_be_dealt_out_are_refused(model_type: str, reason: str) -> None:
    for words in pool(2).run(refused, model_type):
        assert reason in words


def refused_changed() -> str:
    model, plan = models.small_model("mixtral"), ParallelPlan(**EP)
    experts = model.model.layers[0].mlp.experts
    experts.forward = lambda *args: 2 * type(experts).forward(experts, *args)
    return said(parallelize, model, plan, mesh_of(plan))


def test_experts_that_somebody_changed_are_refused() -> None:
    for words in pool(2).run(refused_changed):
        assert "cannot be tried on" in words


def test_one_rank_may_have_all_the_tokens_or_none() -> None:
    assert set(pool(2).run(skewed)) == {True}


def skewed() -> bool:
    """On a rank: tokens that all go to the first rank's experts, and their gradients."""
    group = mesh_of(ParallelPlan(**EP)).get_group("dp_shard")
    hidden = torch.ones(3, 4, requires_grad=True)
    chosen, weights = torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1, requires_grad=True)
    asked = []

    def compute(rows: Tensor, experts: Tensor, share: Tensor) -> Tensor:
        asked.append(len(rows))
        return 2 * rows * share

    out = dispatch.by_all_gather(compute, hidden, chosen, weights, 4, group)
    out.sum().backward()
    right = torch.equal(out, 2 * torch.ones(3, 4)) and torch.equal(hidden.grad, out)
    return right and torch.equal(weights.grad, torch.full((3, 1), 8.0)) and asked in ([6], [])


@pytest.mark.parametrize(
    ("fields", "words"),
    (
        ({"ep": 2}, "ep=2 deals experts out to the ranks of dp_shard=1: give it their number"),
        ({"ep": 2, "dp_shard": 4}, "ep=2 deals experts out to the ranks of dp_shard=4"),
        (EP | {"cp": 2}, "ep=2 deals experts out to the ranks of dp_shard=2 x cp=2: give it"),
        (EP | {"zero_stage": 1}, "ep shards experts as zero_stage=3 does, not 1"),
        ({"ep": 0}, "ep must be a whole number of at least 1, not 0"),
        ({"ep": "2"}, "ep must be a whole number of at least 1, not '2'"),
    ),
)
def test_a_plan_that_cannot_be_is_refused(fields: dict, words: str) -> None:
    assert said(ParallelPlan, **fields).startswith(words)


@pytest.mark.parametrize("preset", ("gptj-tiny", "llama-tiny"))
def test_a_model_without_experts_is_refused(preset: str) -> None:
    with pytest.raises(UserError, match="has no experts that ep could deal out"):
        ParallelPlan(**EP).validate(load_config(preset))
