"""The exercises: their solutions pass, and a wrong answer gets a hint only."""

from fractions import Fraction

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.planner import cost
from helpers.planner.hardware.lookup import find_gpu
from helpers.planner.published.posts import find_post
from helpers.planner.shape.families import model_shape
from helpers.planner.time.tensor_messages import tensor_traffic

pytest.importorskip("transformers")
from helpers.lab.exercises.check import check
from helpers.lab.exercises.judges import MISTAKES, mistake
from helpers.lab.exercises.questions import EXERCISES
from helpers.lab.exercises.solutions import SOLUTIONS, show_solution
from helpers.lab.paths import ROOT
from tests.lab.exercises.wrong_answers import WRONG, Change, answer_of, right

RUN = find_post("gptj-tensor-parallel")
NEOX_20B = 20_554_567_680  # parameters
# counted with a pencil, or read off the posts
BY_HAND = {
    "1a traffic": 28 * 2 * 8 * 1024 * 4096 * 2,
    "1c audit": {"mfu": 0.2183, "usd": 19.22, "training_share": 0.0343},
    "2a plan": {"schedule": "zero-bubble", "microbatches": 16},
    "3a claims": {"rate": 53.09, "time": 34.68, "counted": 2.06},
    "4a trainable": 32 * 16 * ((4544 + 4672) + 2 * 4544 + 2 * (4544 + 4 * 4544)),
    "4c largest rank": {"lora": 120, "qlora": 665},
    "5a fewest GPUs": {"ZeRO-1": 0, "ZeRO-2": 8, "ZeRO-3": 5},
    "5c as on the slide": {"steps": 1 / 12, "state_gb": NEOX_20B / 1e9, "sent_gb": 231.24},
    "8a over the link": {"fsdp_s": 0.9, "hsdp_s": 0.32},
    "8c best interval": {"mtbf_s": 40_500, "interval_s": 2204.5},
    "7c most gained": {"times": 10 / 7, "usd": 1440 / 3600 * 21.957642 * 16},
    "10b whose batch": {"data_ranks": 2, "prescaled": 12, "not_prescaled": 48},
    "6a bill": {"days": 18.0, "usd": 18.0 * 24 * 55.04 * 64},
}
ON_PAPER = [name for name, exercise in EXERCISES.items() if not exercise.on_ranks]


@pytest.mark.parametrize("name", ON_PAPER)
def test_solution_passes(name, capsys):
    verdict = check(name, right(name))
    assert verdict.passed and verdict.state == "passed"
    assert f"{name}: passed." in capsys.readouterr().out


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_counted_by_hand_passes(name):
    verdict = check(name, BY_HAND[name])
    assert verdict.passed, verdict.message


def test_each_exercise_has_a_solution_that_is_shown_when_asked_for(capsys):
    assert list(SOLUTIONS) == list(EXERCISES)
    show_solution("1a")
    shown = capsys.readouterr().out
    show_solution("1a traffic")
    assert shown == capsys.readouterr().out and "messages = 2 * 28" in shown
    with pytest.raises(UserError, match="no exercise '9z'; there are: 1a traffic, 1b"):
        show_solution("9z")


def test_sixty_wrong_answers_at_least():
    assert list(WRONG) == ON_PAPER
    assert sum(map(len, WRONG.values())) >= 60 and min(map(len, WRONG.values())) >= 4


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, place) for name, wrong in WRONG.items() for place in range(len(wrong))],
)
def test_a_wrong_answer_is_refused_and_told_why(name, place):
    answer, words = WRONG[name][place]
    verdict = check(name, answer.made() if isinstance(answer, Change) else answer)
    assert verdict.state == "not yet" and words in verdict.message, verdict.message


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
    with pytest.raises(UserError, match="hint must be a whole number of at least 1, not '2'"):
        check(name, "wrong", hint="2")


def test_traffic_with_everything_is_told_so():
    gptj = pytest.importorskip("transformers").GPTJConfig()
    shape = model_shape(gptj)
    total = tensor_traffic(shape, 8, 1024, tp=8, precision="bf16").total
    assert "leave these out" in check("1a traffic", total).message


def test_no_hint_or_question_holds_the_answer():
    answer = f"{BY_HAND['1a traffic']:,}"
    for exercise in EXERCISES.values():
        words = " ".join((exercise.question, *exercise.hints))
        assert answer not in words and "21.8" not in words and "19.2" not in words


def target_logits(shards, targets):
    width = shards[0].shape[1]
    picked = [shards[target // width][row, target % width] for row, target in enumerate(targets)]
    return torch.stack(picked)


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
    loss = answer_of("1b vocabulary loss")(shards, targets)
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
        (lambda shards: 0, "but 2 were given. Hint"),  # and no line, which would be the judge's
        (lambda shards, targets: 1.5, "not a float"),
        (lambda shards, targets: targets[:3].float(), "not a Tensor of shape [3]"),
        (lambda shards, targets: 1, "not an int"),
    ],
)
def test_vocabulary_loss_says_what_is_wrong(function, words):
    verdict = check("1b", function)  # its number is enough
    assert not verdict.passed and words in verdict.message


def test_audit_takes_either_flop_convention_and_either_count_of_the_training():
    gptj = pytest.importorskip("transformers").GPTJConfig()
    flops = cost.train_flops_per_token(model_shape(gptj), RUN.seq_len)
    with_attention = cost.mfu(
        RUN.steady_samples_per_s * RUN.seq_len, flops, 8, find_gpu("A100-40").peak_flops["fp16"]
    )
    assert check("1c audit", answer_of("1c audit") | {"mfu": with_attention}).passed
    verdict = check("1c audit", answer_of("1c audit") | {"training_share": 62 / 1836})
    assert verdict.passed and "the 129 s in which it started were not billed" in verdict.message


def test_every_known_mistake_is_about_a_number_of_an_exercise_and_is_told():
    for known in MISTAKES:
        wrong = [answer for answer, _ in WRONG[known.exercise] if isinstance(answer, Change)]
        names = {name for change in wrong for name in (*change.put, *change.factors)}
        assert known.number in (names or {""})
        assert 0 < Fraction(known.times) != 1
        assert mistake(known.exercise, float(Fraction(known.times)), known.number) == known.words


def test_unknown_exercise_lists_the_known_ones():
    with pytest.raises(UserError, match="no exercise 'x'; there are: 1a traffic, 1b"):
        check("x", 1)


def test_the_published_script_has_what_10c_finds():
    """The notebook tells a learner to try the answer on it."""
    script = ROOT / "data" / "leaving" / "gptj_pipeline.py"
    assert "activation_checkpointing" in answer_of("10c never read")(script.read_text("utf-8"))
