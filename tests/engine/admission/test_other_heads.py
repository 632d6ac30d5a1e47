"""Heads for what is not trained here are refused by their names, and not by what breaks in them."""

import pytest
import torch
import transformers

from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from tests.support import tiny
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

ROWS = "AutoModelForSequenceClassification"
HEADS = {
    "token": ("llama", "AutoModelForTokenClassification", {}, "LlamaForTokenClassification has no"),
    "question": (
        "bert-mlm",
        "AutoModelForQuestionAnswering",
        {},
        "BertForQuestionAnswering has no",
    ),
    "none": ("llama", "AutoModel", {}, "LlamaModel has no"),
    "number": ("bert-classes", ROWS, {"num_labels": 1}, "num_labels=1 is for regression"),
    "numbers": ("llama", ROWS, {"problem_type": "regression"}, "is for regression"),
    "labels": (
        "llama",
        ROWS,
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        "is for multi_label_classification",
    ),
    "rows to rows": ("t5", "AutoModelForSeq2SeqLM", {}, "an encoder with a decoder"),
}


def config_of(family: str) -> transformers.PretrainedConfig:
    if family != "t5":
        return tiny.config(family)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return transformers.T5Config(vocab_size=tiny.VOCAB, **sizes)


def refusal(family: str, auto: str, fields: dict) -> str:
    config = config_of(family)
    for name, value in fields.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(config)
    return said(parallelize, model, ParallelPlan(), mesh_of(ParallelPlan()))


@pytest.mark.parametrize("head", HEADS)
def test_a_head_that_is_not_trained_here_is_named(head: str) -> None:
    *model, words = HEADS[head]
    [told] = pool(1).run(refusal, *model)
    assert words in told


def test_one_class_among_several_may_be_named() -> None:
    assert pool(1).run(laid_out) == ["classify-head"]


def laid_out() -> str:
    config = tiny.config("llama")
    config.num_labels, config.pad_token_id = 3, 0
    config.problem_type = "single_label_classification"
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    return parallelize(model, ParallelPlan(), mesh_of(ParallelPlan())).objective.task
