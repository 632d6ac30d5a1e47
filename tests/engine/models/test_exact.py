"""No model, layout or batch trains wrong in silence: it is exact, or refused in one line."""

import pytest
import torch
import transformers

from helpers.engine.errors import UserError
from helpers.engine.models.chunked_loss import LogitTransform, token_loss
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from tests.support import tiny
from tests.support.matrix import each, part
from tests.support.ranks import mesh_of, pool
from tests.support.scripts import script

models = script("docs/models")
LAYOUTS = {
    "one": ParallelPlan(),
    "tp": ParallelPlan(tp=2),
    "sequence": ParallelPlan(tp=2, sequence_parallel=True),
    "pp": ParallelPlan(pp=2),
    "zero-3": ParallelPlan(dp_shard=2),
    "full": ParallelPlan(activation="full"),
    "group_2": ParallelPlan(activation="group_2"),
    "pp-group_2": ParallelPlan(pp=2, activation="group_2"),
}
# what went wrong in silence once: scaled logits and embeddings, softcaps, masks by layer, norms of
# single heads, a norm between two layers, attention under another name
TYPES = (
    "cohere",
    "cohere2",
    "granite",
    "gemma",
    "gemma2",
    "vaultgemma",
    "nanochat",
    "hyperclovax",
    "phi",
    "qwen2",
    "cwm",
    "qwen3",
    "olmo2",
    "gemma3_text",
    "phi3",
    "mixtral",
)


def verdict(model_type: str, layout: str) -> str:
    transformers.logging.set_verbosity_error()
    plan = LAYOUTS[layout]
    return models.verdict(models.small_model(model_type), plan, mesh_of(plan))


@pytest.mark.parametrize(("model_type", "layout"), each(TYPES, LAYOUTS))
def test_a_model_without_a_record_is_exact_or_refused(model_type: str, layout: str) -> None:
    answers = set(pool(LAYOUTS[layout].world_size).run(verdict, model_type, layout))
    assert len(answers) == 1
    words = answers.pop()
    assert words == "exact" or (not words.startswith("WRONG") and "\n" not in words)


@pytest.mark.parametrize("model_type", ("cohere", "granite", "gemma", "gemma2", "qwen2", "phi"))
def test_what_can_be_made_right_is_right_under_every_layout(model_type: str) -> None:
    for layout in ("one", "tp", "sequence", "pp", "zero-3", "group_2"):
        answers = pool(LAYOUTS[layout].world_size).run(verdict, model_type, layout)
        assert set(answers) == {"exact"}, layout


@pytest.mark.parametrize("row", part(("mistral", "mamba"), ("gptj", "opt", "bert", "qwen3_moe")))
def test_the_page_of_models_is_what_the_script_finds(row: str) -> None:
    """Rows of docs/models.md, written anew; all of them with the script itself."""
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    alone = {"one process", "recomputing"}
    found = {
        layout: pool(plan.world_size).run(_page_verdict, row, layout)[0]
        for layout, plan in models.LAYOUTS.items()
    }
    for column in models.ALONE:
        found[column] = pool(1).run(_page_files, row, column)[0]
    found[models.OWN] = pool(2).run(_page_own_size, row, models.wide(found))[0]
    assert alone <= found.keys()
    page = models.PAGE.read_text("utf-8")
    assert models.row(row, found) in page.splitlines()
    for line in models.refusals(row, found):
        assert line in page


def _page_verdict(model_type: str, layout: str) -> str:
    transformers.logging.set_verbosity_error()
    plan = models.LAYOUTS[layout]
    return models.verdict(models.small_model(model_type), plan, mesh_of(plan))


def _page_files(model_type: str, column: str) -> str:
    transformers.logging.set_verbosity_error()
    return models.ALONE[column](models.small_model(model_type), mesh_of(ParallelPlan()))


def _page_own_size(model_type: str, layouts: list[str]) -> str:
    transformers.logging.set_verbosity_error()
    return models.own_size(model_type, {name: mesh_of(models.LAYOUTS[name]) for name in layouts})


def test_the_page_names_no_wrong_model_and_enough_exact_ones() -> None:
    text = models.PAGE.read_text("utf-8")
    assert "WRONG" not in text and "ERROR" not in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    column = {layout: place for place, layout in enumerate(models.COLUMNS, start=1)}
    exact = {
        layout: sum(cells[place].strip(" |") == "exact" for cells in rows)
        for layout, place in column.items()
    }
    assert exact["ZeRO-3"] >= 60 and exact["tp 2"] >= 40 and exact["cp 2"] >= 60, exact
    assert exact["files"] >= 140 and exact["QLoRA"] >= 140, exact


@pytest.mark.parametrize(
    "transform", (LogitTransform(0.25), LogitTransform(softcap=3.0), LogitTransform(2.0, 5.0))
)
def test_scaled_and_capped_logits_have_the_loss_of_the_formula(transform: LogitTransform) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(31, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(31, (7,))
    logits = hidden @ weight.t() * transform.scale
    if transform.softcap:
        logits = transform.softcap * torch.tanh(logits / transform.softcap)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    for late in (False, True):
        loss = token_loss(hidden, weight, None, labels, 0, 31, None, transform, late)
        torch.testing.assert_close(loss, expected)
        ours = torch.autograd.grad(loss, (hidden, weight))
        torch.testing.assert_close(
            ours, torch.autograd.grad(expected, (hidden, weight), retain_graph=True)
        )


class Scaled(transformers.LlamaForCausalLM):
    """A class that does something which no rule here knows."""

    def forward(self, *args, **kwargs):
        labels = kwargs.pop("labels", None)
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * (1 + out.logits.square())
        if labels is not None:
            out.loss = self.loss_function(out.logits, labels, self.config.vocab_size)
        return out


def unknown_logits(plan: ParallelPlan) -> str:
    model = Scaled._from_config(tiny.config("llama"), dtype=torch.float64)
    try:
        parallelize(model, plan, mesh_of(plan))
    except UserError as error:
        return str(error)
    return "whole" if model.family.whole_logits else "chunked"


def test_a_rule_that_is_overlooked_is_found_by_the_check() -> None:
    """A planted fault: the engine's chunked loss does not know what this class does to logits."""
    assert pool(1).run(unknown_logits, ParallelPlan()) == ["whole"]
    [words, _] = pool(2).run(unknown_logits, ParallelPlan(tp=2))
    assert "would not be exact under tp=2" in words and "dp_shard and dp_replicate" in words


def whole_logits(model_type: str, plan: ParallelPlan) -> bool:
    return parallelize(models.small_model(model_type), plan, mesh_of(plan)).family.whole_logits


def test_a_base_that_transformers_calls_by_another_name_is_found() -> None:
    """Llama 4's base is `model`, not `language_model`; its logits were all made at once for that,
    and its MLP stayed whole."""
    for plan in (ParallelPlan(tp=2), ParallelPlan(pp=2)):
        assert pool(2).run(whole_logits, "llama4_text", plan) == [False, False]


def test_attention_says_what_it_does_not_compute() -> None:
    from helpers.engine.models.attention import _interface

    x = torch.zeros(1, 2, 3, 4)
    module = torch.nn.Module()
    module.boundary = None
    with pytest.raises(UserError, match="position_bias"):
        _interface(module, x, x, x, None, position_bias=torch.zeros(3, 3))
