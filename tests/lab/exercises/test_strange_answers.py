"""Answers of types that nobody asked for: right ones pass, wrong ones are told in a line."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")
from helpers.lab.exercises.check import check
from helpers.lab.exercises.on_ranks import judge
from helpers.lab.exercises.questions import EXERCISES
from helpers.lab.exercises.topics import planning
from tests.lab.exercises.wrong_answers import answer_of

BYTES = 3758096384


class Incomparable:
    """Of a package that refuses to be compared."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("no comparison")


def refused(name, answer, words):
    verdict = check(name, answer)
    assert verdict.state == "not yet" and words in verdict.message, verdict.message
    assert "\n" not in verdict.message and len(verdict.message) < 1000
    return verdict


@pytest.mark.parametrize(
    "right",
    [
        np.int64(BYTES),
        np.array([BYTES]),
        np.array(BYTES),
        pd.Series([BYTES]),
        pd.Series({"bytes": BYTES}),
        torch.tensor([[BYTES]]),
        Fraction(BYTES),
        Decimal(BYTES),
        float(BYTES),
    ],
)
def test_a_right_number_of_any_type_passes(right):
    assert check("1a traffic", right).passed


@pytest.mark.parametrize(
    "wrong",
    [
        10**400,
        torch.ones((), device="meta"),
        torch.tensor(1j),
        torch.ones(2),
        np.ones(2),
        pd.Series([1, 2]),
        pd.NA,
        math.nan,
        True,
        np.True_,
        torch.tensor(True),
        "3.5 GiB",
    ],
)
def test_what_is_no_number_is_said_to_be_none(wrong):
    refused("1a traffic", wrong, "A number of bytes is wanted, not a")
    answer = answer_of("8a over the link")
    refused("8a over the link", answer | {"hsdp_s": wrong}, "hsdp_s is no finite number")
    refused("8b steps lost", lambda done, every: wrong, "A number of steps is wanted")


def test_false_is_not_the_number_of_gpus():
    right = answer_of("5a fewest GPUs")
    refused("5a fewest GPUs", right | {"ZeRO-1": False}, "ZeRO-1 is no finite number")


def test_a_plans_fields_may_be_a_packages_numbers():
    assert check("6b layout", {"dp_shard": np.int64(16), "activation": "full"}).passed
    wrong = {"dp_shard": np.ones(2), "activation": "full"}
    refused("6b layout", wrong, "dp_shard must be a whole number")


def test_the_question_and_the_judge_agree_on_a_gpus_memory():
    assert "of 39.4 GiB" in EXERCISES["6b layout"].question
    refused("6b layout", {"dp_shard": 16}, "of 39.4 GiB")


def test_the_question_states_the_judges_limit():
    assert f"at most {planning.MOST_S} s" in EXERCISES["6b layout"].question


@pytest.mark.parametrize("name", ["1d f and g", "5d ring"])
def test_what_is_no_function_starts_no_ranks(name, monkeypatch):
    monkeypatch.setattr(judge, "on_ranks", None)
    for wrong in (np.ones(2), [str, str], Incomparable()):
        refused(name, wrong, "A function is wanted, or a pair if the question says so, not a")


def test_the_stub_of_a_pair_starts_no_ranks(monkeypatch):
    monkeypatch.setattr(judge, "on_ranks", None)
    for name in ("1d f and g", "9c heads for tokens"):
        assert check(name, (None, None)).state == "not done yet"


@pytest.mark.parametrize("wrong", [["input"], {}, np.ones(2), pd.NA, 3, Incomparable()])
def test_a_reason_that_is_no_word(wrong):
    refused("7a diagnosis", answer_of("7a diagnosis") | {"a": wrong}, "case a: a kind is one of")


@pytest.mark.parametrize("wrong", [torch.ones(3), np.ones(2), pd.NA, -math.inf, math.nan, 10**400])
def test_steps_that_are_no_number(wrong):
    refused("3c break-even", lambda *case: wrong, "steps")


def test_two_counts_may_be_an_array():
    right = answer_of("3b trained")
    for kind in (list, np.array, torch.tensor, pd.Series):
        assert check("3b trained", lambda *case, kind=kind: kind(right(*case))).passed
    refused("3b trained", lambda *case: np.ones(3), "Two numbers are wanted")


def test_a_loss_in_float64_is_right():
    right = answer_of("1b vocabulary loss")
    assert check("1b vocabulary loss", lambda *case: right(*case).double()).passed


@pytest.mark.parametrize("name", ["1b vocabulary loss", "2b 1f1b", "3b trained", "10c never read"])
def test_an_answer_that_ends_the_program_or_floods_is_a_line(name):
    def ends(*case):
        raise SystemExit("usage: ...")

    def floods(*case):
        raise ValueError("many words\n" * 1000)

    for answer, words in ((ends, "SystemExit: usage"), (floods, "ValueError: many words")):
        message = check(name, answer).message
        assert words in message and "\n" not in message and len(message) < 600


def test_names_that_are_no_texts():
    for wrong in ([["steps"]], [{}], [None], [np.ones(2)]):
        refused("10c never read", lambda source, wrong=wrong: wrong, "A set of names is wanted")


def test_what_cannot_be_compared_is_told():
    class Set(set):
        def __iter__(self):
            raise RuntimeError("no end")

    words = "It returns a Set, of no use here: RuntimeError: no end."
    refused("10c never read", lambda source: Set(), words)
    assert "read as" in check("10a words for flags", lambda word: "x" * 5000).message
    assert len(check("10a words for flags", lambda word: "x" * 5000).message) < 400


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (lambda *sizes: itertools.count(), "rank 0 has 16 actions or more"),
        (lambda *sizes: ["F" + 5000 * "9"], "an action is written F0, B0, I0 or W0"),
        (lambda *sizes: ["F٣"], "an action is written F0, B0, I0 or W0"),
    ],
)
def test_orders_without_end(order, words):
    refused("2b 1f1b", order, words)


def test_an_order_may_be_an_array():
    right = answer_of("2b 1f1b")
    assert check("2b 1f1b", lambda *sizes: np.array(right(*sizes))).passed
