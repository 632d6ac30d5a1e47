"""The exercises: their solutions pass, their stubs do not, and a wrong answer gets a hint only."""

import math
from fractions import Fraction

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.engine.files.weights import load_config
from helpers.engine.pipeline.schedules import make_schedule
from helpers.planner import cost
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.lookup import find_gpu
from helpers.planner.published.posts import find_post
from helpers.planner.search.search import search_plans
from helpers.planner.shape import model_shape
from helpers.planner.time.tensor_messages import tensor_traffic

pytest.importorskip("transformers")
from helpers.lab.exercises.check import check
from helpers.lab.exercises.judges import MISTAKES
from helpers.lab.exercises.qlora import LEVELS
from helpers.lab.exercises.questions import EXERCISES

RUN, SHARDED = find_post("gptj-tensor-parallel"), find_post("neox-sharded")


def solution_1a():
    messages = 28 * 2
    return messages * 8 * 1024 * 4096 * 2


def target_logits(shards, targets):
    picked = torch.zeros(len(targets))
    for rank, shard in enumerate(shards):
        local = targets - rank * shard.shape[1]
        mine = (local >= 0) & (local < shard.shape[1])
        found = shard.gather(1, local.where(mine, 0)[:, None])[:, 0]
        picked = picked + found.where(mine, 0)
    return picked


def solution_1b(shards, targets):
    highest = torch.stack([shard.max(1).values for shard in shards]).max(0).values
    total = sum((shard - highest[:, None]).exp().sum(1) for shard in shards)
    return (total.log() + highest - target_logits(shards, targets)).mean()


def solution_1c():
    tokens_per_s = RUN.steady_samples_per_s * RUN.seq_len
    return {
        "mfu": cost.mfu(
            tokens_per_s, 6 * RUN.parameters, 8, find_gpu("A100-40").peak_flops["fp16"]
        ),
        "usd": cost.money(RUN.billed_s, RUN.price.usd_per_hour),
        "training_share": RUN.train_s / RUN.billed_s,
    }


def solution_2b(rank, ranks, microbatches):
    made = make_schedule("1f1b", ranks, microbatches)
    return [f"{action.kind}{action.microbatch}" for action in made.ranks[rank]]


def solution_2c(rank, ranks, microbatches):
    made = make_schedule("zero-bubble", ranks, microbatches)
    return [f"{action.kind}{action.microbatch}" for action in made.ranks[rank]]


def solution_4a():
    heads, head = 71, 64
    width = heads * head
    fused = width + (width + 2 * head)
    return 32 * 16 * (fused + 2 * width + 2 * (width + 4 * width))


def solution_4b(weights):
    levels = torch.tensor(LEVELS)
    blocks = weights.view(-1, 64)
    magnitudes = blocks.abs().max(1, keepdim=True).values
    nearest = torch.cdist((blocks / magnitudes).view(-1, 1), levels.view(-1, 1)).argmin(1)
    return (levels[nearest].view_as(blocks) * magnitudes).flatten()


def solution_4c():
    whole = 41_303_293_952
    return {"full": 16 * whole / 4e9, "lora": 22.43, "qlora": 7.30}


def solution_5b(weights, gradients, lr):
    rows = -(-len(weights) // len(gradients))
    whole = weights - lr * sum(gradients)
    return [whole[rank * rows : (rank + 1) * rows] for rank in range(len(gradients))]


def solution_5c():
    state = 16 * 20_554_567_680 / SHARDED.devices
    return {
        "usd": SHARDED.train_s / 3600 * 2 * SHARDED.price.usd_per_hour,
        "gpu_hours": SHARDED.train_s / 3600 * 16,
        "state_gb": state / 1e9,
    }


def solution_3b(rows, batch, epochs, drop_last):
    whole, left = divmod(rows, batch)
    if drop_last or not left:
        return epochs * whole * batch, epochs * whole
    return epochs * rows, epochs * (whole + 1)


def solution_3c(compile_s, native_s, compiled_s):
    gained_s = native_s - compiled_s
    return math.ceil(compile_s / gained_s - 1e-6) if gained_s > 0 else math.inf


def solution_6a():
    count = cost.parameters(model_shape(load_config("gpt3-175b")))
    takes_s = 6 * count * 300e9 / (512 * 0.4 * 989e12)
    return {"days": takes_s / 86400, "usd": takes_s / 3600 * 98.32 * 64}


def solution_6c():
    best = search_plans(load_config("llama2-13b"), make_cluster("p4d.24xlarge", 64), 512, 4096).best
    days = 300e9 / best.tokens_per_s / 86400
    return {"nodes": 64, "days": days, "usd": 300e9 * best.usd_per_token}


SOLUTIONS = {
    "1a traffic": solution_1a(),
    "1b vocabulary loss": solution_1b,
    "1c audit": solution_1c(),
    "2a plan": {"schedule": "zero-bubble", "microbatches": 16},
    "2b 1f1b": solution_2b,
    "2c zero bubble": solution_2c,
    "3a claims": {"rate": 53.09, "time": 34.68, "counted": 2.06},
    "3b trained": solution_3b,
    "3c break-even": solution_3c,
    "4a trainable": solution_4a(),
    "4b nf4": solution_4b,
    "4c which fits": solution_4c(),
    "5a fewest GPUs": {"ZeRO-1": 0, "ZeRO-2": 8, "ZeRO-3": 5},
    "5b sharded step": solution_5b,
    "5c published bill": solution_5c(),
    "6a bill": solution_6a(),
    "6b layout": {"dp_shard": 16, "activation": "full"},
    "6c most machines": solution_6c(),
}
STUBS = {
    "1a traffic": None,
    "1b vocabulary loss": lambda shards, targets: None,
    "1c audit": {"mfu": None, "usd": None, "training_share": None},
    "2a plan": {"schedule": None, "microbatches": None},
    "2b 1f1b": lambda rank, ranks, microbatches: None,
    "2c zero bubble": lambda rank, ranks, microbatches: None,
    "3a claims": {"rate": None, "time": None, "counted": None},
    "3b trained": lambda rows, batch, epochs, drop_last: None,
    "3c break-even": lambda compile_s, native_s, compiled_s: None,
    "4a trainable": None,
    "4b nf4": lambda weights: None,
    "4c which fits": {"full": None, "lora": None, "qlora": None},
    "5a fewest GPUs": {"ZeRO-1": None, "ZeRO-2": None, "ZeRO-3": None},
    "5b sharded step": lambda weights, gradients, lr: None,
    "5c published bill": {"usd": None, "gpu_hours": None, "state_gb": None},
    "6a bill": {"days": None, "usd": None},
    "6b layout": {"dp_shard": None},
    "6c most machines": {"nodes": None, "days": None, "usd": None},
}


@pytest.mark.parametrize("name", EXERCISES)
def test_solution_passes(name, capsys):
    verdict = check(name, SOLUTIONS[name])
    assert verdict.passed and verdict.state == "passed"
    assert f"{name}: passed." in capsys.readouterr().out


@pytest.mark.parametrize("name", EXERCISES)
def test_stub_is_not_done_yet_and_no_error(name, capsys):
    verdict = check(name, STUBS[name])
    assert not verdict.passed and verdict.state == "not done yet"
    assert EXERCISES[name].question in capsys.readouterr().out
    assert check(name, None).state == "not done yet"


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("nonsense", ["text", float("nan"), [], {}, object()])
def test_nonsense_is_answered_in_words(name, nonsense):
    assert not check(name, nonsense).passed


@pytest.mark.parametrize("name", EXERCISES)
def test_hints_go_on_and_stop_at_the_last(name):
    hints = EXERCISES[name].hints
    for number, words in enumerate(hints, 1):
        message = check(name, "wrong", hint=number).message
        assert f"Hint {number} of {len(hints)}: {words}" in message
    assert hints[-1] in check(name, "wrong", hint=99).message


@pytest.mark.parametrize(
    ("factor", "words"),
    [(0.5, "Half of it"), (2, "two sums a layer"), (1 / 8, "not divided by tp"), (7 / 4, "wire")],
)
def test_traffic_names_the_known_mistake(factor, words):
    verdict = check("1a traffic", solution_1a() * factor)
    assert not verdict.passed and words in verdict.message


def test_traffic_with_everything_is_told_so():
    gptj = pytest.importorskip("transformers").GPTJConfig()
    shape = model_shape(gptj)
    total = tensor_traffic(shape, 8, 1024, tp=8, precision="bf16").total
    assert "leave these out" in check("1a traffic", total).message


def test_no_hint_or_question_holds_the_answer():
    answer = f"{solution_1a():,}"
    for exercise in EXERCISES.values():
        words = " ".join((exercise.question, *exercise.hints))
        assert answer not in words and "21.8" not in words and "19.2" not in words


def naive(shards, targets):
    """Without the maximum: right for small logits, infinite for large ones."""
    total = sum(shard.exp().sum(1) for shard in shards)
    return (total.log() - target_logits(shards, targets)).mean()


def own_maximum(shards, targets):
    """Each shard less its own maximum, as if these were one."""
    highest = [shard.max(1).values for shard in shards]
    total = sum((s - m[:, None]).exp().sum(1) for s, m in zip(shards, highest))
    return (total.log() + highest[0] - target_logits(shards, targets)).mean()


def gathered(shards, targets):
    return torch.nn.functional.cross_entropy(torch.cat(shards, 1), targets)


def without_gradient(shards, targets):
    loss = solution_1b(shards, targets)
    return loss.detach() + 0 * shards[0].sum()


def by_token(shards, targets):
    return torch.nn.functional.cross_entropy(torch.cat(shards, 1), targets, reduction="none")


def broken(shards, targets):
    raise KeyError("nothing here")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (naive, "The loss is inf where logits reach"),
        (own_maximum, "not that of the whole vocabulary"),
        (gathered, "as large as all logits"),
        (without_gradient, "its gradient is not"),
        (by_token, "A single number in a tensor is wanted"),
        (broken, "It raised KeyError: 'nothing here'"),
        (lambda shards: 0, "It raised TypeError"),
        (lambda shards, targets: 1.5, "not a float"),
    ],
)
def test_vocabulary_loss_says_what_is_wrong(function, words):
    verdict = check("1b vocabulary loss", function)
    assert not verdict.passed and words in verdict.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mfu": 2.327}, "printed rate"),
        ({"mfu": 21.83}, "per cent"),
        ({"mfu": 0.2183 * 4 / 3}, "hardware utilisation"),
        ({"usd": 19.22 * 8}, "all its GPUs included"),
        ({"usd": 0.6595}, "bill runs from start to upload"),
        ({"training_share": 3.43}, "per cent"),
        ({"usd": "much"}, "usd is not a number"),
        ({"usd": None}, "no 'usd' in the answer yet"),
    ],
)
def test_audit_says_which_number_and_why(change, words):
    verdict = check("1c audit", solution_1c() | change)
    assert not verdict.passed and words in verdict.message


def test_audit_takes_either_flop_convention_and_either_clock():
    gptj = pytest.importorskip("transformers").GPTJConfig()
    flops = cost.train_flops_per_token(model_shape(gptj), RUN.seq_len)
    with_attention = cost.mfu(
        RUN.steady_samples_per_s * RUN.seq_len, flops, 8, find_gpu("A100-40").peak_flops["fp16"]
    )
    assert check("1c audit", solution_1c() | {"mfu": with_attention}).passed
    assert check("1c audit", solution_1c() | {"training_share": 62 / 1836}).passed


def test_every_known_mistake_is_about_a_number_of_an_exercise():
    for mistake in MISTAKES:
        stub = STUBS[mistake.exercise]
        assert mistake.number in stub if mistake.number else stub is None
        assert 0 < Fraction(mistake.times) != 1


def test_unknown_exercise_lists_the_known_ones():
    with pytest.raises(UserError, match="no exercise 'x'; there are: 1a traffic, 1b"):
        check("x", 1)
