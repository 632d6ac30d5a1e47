"""Loops of one's own over a laid-out model, with torch's own backward and optimizers."""

import pytest
import torch
import transformers
from torch import Tensor, nn

from helpers.engine.errors import UserError
from helpers.engine.files.weights import whole_weights
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import gradient_norm
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.parity import close, laid_out, trainer_of
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

LR = 0.05
# several ranks, and a model of which each has a term of some gradients
APART = {
    "tp": ("qwen3", ParallelPlan(tp=2)),
    "one key-value head": ("falcon-mqa", ParallelPlan(tp=2)),
    "sequence": ("llama", ParallelPlan(tp=2, sequence_parallel=True)),
    "ddp": ("llama", ParallelPlan(dp_replicate=2)),
    "zero-1": ("llama", ParallelPlan(dp_shard=2, zero_stage=1)),
    "zero-3": ("llama", ParallelPlan(dp_shard=2)),
    "cp": ("llama", ParallelPlan(cp=2)),
}


def laid(family: str, plan: ParallelPlan) -> nn.Module:
    return laid_out(family, plan, check=False)


def refused(case: str) -> list[str]:
    """What a backward of one's own says: from the loss, a part of it, and a loss of the logits."""
    family, plan = APART[case]
    model = laid(family, plan)
    ids, labels = tiny.batch(0, length=16)
    losses = (
        model(input_ids=ids, labels=labels).loss,
        model(input_ids=ids, labels=labels, return_dict=False)[0] / 2,
        model(input_ids=ids).logits.square().mean(),
    )
    return [said(loss.backward) for loss in losses]


@pytest.mark.parametrize("case", APART)
def test_a_backward_that_sums_nothing_over_ranks_is_refused(case: str) -> None:
    for told in pool(2).run(refused, case):
        assert len(told) == 3 and all("trainer.backward" in one for one in told)


@pytest.mark.parametrize("shape", ((8, 15), (8, 17), (7, 16), (8,)))
def test_labels_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    assert pool(1).run(says_of_labels, shape) == [f"not [8, 16] and {list(shape)}"]


def says_of_labels(shape: tuple[int, ...]) -> str:
    model, ids = laid("llama", ParallelPlan()), tiny.batch(0, length=16)[0]
    words = said(model, input_ids=ids, labels=torch.zeros(shape).long())
    return words.partition("of one shape, ")[2]


def losses_of_kinds(kinds: list[torch.dtype]) -> list[float]:
    model, ids = laid("llama", ParallelPlan()), tiny.batch(0)[0]
    return [model(input_ids=ids.to(kind), labels=ids.to(kind)).loss.item() for kind in kinds]


def test_whole_numbers_of_any_kind_are_labels() -> None:
    kinds = [torch.int64, torch.int32, torch.int8, torch.uint8]
    (losses,) = pool(1).run(losses_of_kinds, kinds)
    assert len(set(losses)) == 1


def says_of_kinds(kind: torch.dtype | None) -> str:
    model, ids = laid("llama", ParallelPlan()), tiny.batch(0)[0]
    return said(model, input_ids=ids, labels=ids.tolist() if kind is None else ids.to(kind))


@pytest.mark.parametrize("kind", (torch.float32, torch.bool, None), ids=str)
def test_labels_that_are_no_whole_numbers_are_refused(kind: torch.dtype | None) -> None:
    assert pool(1).run(says_of_kinds, kind) == ["labels must be a tensor of whole numbers"]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    ids, labels = tiny.batch(number)
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def check_weights(model: nn.Module, own: nn.Module) -> None:
    expected = dict(own.named_parameters())
    for name, value in whole_weights(model):
        close(name, value, expected[name].detach(), 1e-4)


def trained(family: str, plan: ParallelPlan, kind: str) -> None:
    """Four steps beside transformers' own class, whose loss is rounded to float32."""
    own, model = tiny.fresh(family, torch.float64), laid(family, plan)
    for number, losses in enumerate(zip(*(steps(m, kind) for m in (own, model)), strict=True)):
        close(f"loss {number}", *losses, 1e-5)
    check_weights(model, own)


def steps(model: nn.Module, kind: str) -> list[float]:
    makers = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9),
        "adafactor": lambda: transformers.Adafactor(
            model.parameters(), lr=1e-2, relative_step=False, scale_parameter=False
        ),
    }
    optimizer = makers[kind]()
    return [step(model, optimizer, number) for number in range(4)]


def test_a_backward_that_is_whole_on_every_rank_is_taken() -> None:
    pool(2).run(trained, "llama", ParallelPlan(tp=2), "sgd")


@pytest.mark.parametrize("family", ("gpt2", "phi3", "falcon-new"))
def test_an_optimizer_may_look_at_shapes(family: str) -> None:
    pool(1).run(trained, family, ParallelPlan(), "adafactor")


def shapes(family: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    own, model = tiny.fresh(family, torch.float64), laid(family, ParallelPlan())
    return tuple({n: p.shape for n, p in m.named_parameters()} for m in (own, model))


@pytest.mark.parametrize("family", ("gpt2", "phi3"))
def test_one_process_holds_parameters_as_their_class_does(family: str) -> None:
    [(own, ours)] = pool(1).run(shapes, family)
    assert own == ours


def heard(family: str) -> int | str:
    """Parameters of which a hook that was there before hears nothing, or why there may be none."""
    model, silent = tiny.fresh(family, torch.float64), set()
    for name, parameter in model.named_parameters():
        silent.add(name)
        parameter.register_hook(lambda _, name=name: silent.discard(name))
    plan = ParallelPlan()
    try:
        model = parallelize(model, plan, mesh_of(plan), check=False)
    except UserError as error:
        return str(error)
    ids, labels = tiny.batch(0)
    model(input_ids=ids, labels=labels).loss.backward()
    return len(silent)


@pytest.mark.parametrize("family", ("gpt2", "phi3"))
def test_hooks_of_parameters_that_are_replaced_are_refused(family: str) -> None:
    [told] = pool(1).run(heard, family)
    assert "register it afterwards" in str(told)


def test_hooks_of_parameters_that_stay_hear_of_them() -> None:
    assert pool(1).run(heard, "llama") == [0]


def with_own_optimizer(plan: ParallelPlan) -> None:
    """A Trainer with an optimizer of torch's in the place of its own."""
    own, model = tiny.fresh("llama", torch.float64), laid("llama", plan)
    trainer = Trainer(model, plan, mesh_of(plan), lr=LR, clip=None)
    trainer.optimizer = torch.optim.SGD([x.tensor for x in trainer.parts], lr=LR, momentum=0.9)
    optimizer = torch.optim.SGD(own.parameters(), lr=LR, momentum=0.9)
    for number in range(4):
        close("loss", trainer.step(*tiny.batch(number)).loss, step(own, optimizer, number), 1e-5)
    check_weights(model, own)


@pytest.mark.parametrize("layout", ({"tp": 2}, {"dp_shard": 2}, {"pp": 2}, {"cp": 2}))
def test_a_trainer_takes_another_optimizer(layout: dict[str, int]) -> None:
    pool(2).run(with_own_optimizer, ParallelPlan(**layout))


def norm_of_gradients(plan: ParallelPlan) -> float:
    trainer = trainer_of("llama", plan, torch.float32, lr=LR)
    trainer.backward(*tiny.batch(0))
    return gradient_norm(trainer.parts, trainer.gradients(), trainer.device).item()


def test_gradients_are_not_those_of_a_scaled_loss() -> None:
    fp32, fp16 = (
        pool(1).run(norm_of_gradients, ParallelPlan(precision=p)) for p in ("fp32", "fp16")
    )
    assert fp16 == pytest.approx(fp32, rel=0.02)
