"""What went wrong in silence elsewhere. Each fault is planted here, and must be found.

The check is the parity of rows.py; the faults are those of other projects' issue trackers:
transformers 48167 and 46855, trl 6843, accelerate 4177, Megatron-LM 1464, 1764 and 673.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from helpers.engine import trainer
from helpers.engine.context import attention, blockwise, formula, parts, ring
from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.pipeline import runner
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.tensor_watch import Watch
from tests.engine.context import rows
from tests.support import tiny
from tests.support.parity import laid_out
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said
from tests.support.scripts import script

Patch = tuple[Any, str, Callable]
WRONG = script("measure/wrong_parts").WRONG  # those that notebook 9 shows


def evaluation_times_the_degree() -> list[Patch]:
    """Sums of losses over cp, but not of tokens."""
    real = trainer.Trainer._over_samples

    def sums(self, values: Tensor) -> Tensor:
        tokens = values[1].clone() if values.dim() else None
        values = real(self, values)
        if tokens is not None:
            values[1] = tokens
        return values

    return [(trainer.Trainer, "_over_samples", sums)]


def loss_times_the_degree() -> list[Patch]:
    """The mean over this rank's tokens in place of the batch's."""
    real = runner.Pipeline.train

    def train(self, batches, tokens, scale):
        own = sum(len(batch.places) for batch in batches)
        return real(self, batches, max(1, own), scale)

    return [(runner.Pipeline, "train", train)]


def gradients_that_do_not_come_home() -> list[Patch]:
    """The last hop of a ring's key and value gradients left out."""
    real = ring.backward

    def backward(grad, inputs, out, lse, part, scores, group):
        of_q, of_k, of_v, of_sinks = real(grad, inputs, out, lse, part, scores, group)
        away = ring.Shift(torch.stack((of_k, of_v)), group).wait()
        return of_q, *away, of_sinks

    return [(ring, "backward", backward)]


def softmax_of_each_part() -> list[Patch]:
    """The backward takes each part's weights as if it were alone."""
    real = blockwise._backward

    def backward(grad, out, lse, inputs, pair, scores, draw):
        alone = blockwise._forward(*inputs, pair, scores, draw)
        return real(grad, *alone, inputs, pair, scores, draw)

    return [(blockwise, "_backward", backward)]


def keys_not_joined() -> list[Patch]:
    """Gathered in the order of ranks, attended to as if in that of the row."""
    real = parts.Part.rows

    def of(self, owner, window=None):
        return real(self, self.rank, window)

    return [(parts.Part, "rows", of)]


FAULTS: dict[str, tuple[list[Patch], str, dict]] = {
    "evaluation times the degree": (evaluation_times_the_degree(), "uneven", {}),
    "loss times the degree": (loss_times_the_degree(), "uneven", {"microbatches": 2}),
    "mean of means": ([WRONG["mean of means"]], "uneven", {}),
    "documents forgotten": ([WRONG["documents forgotten"]], "packed", {}),
    "positions counted from 0": ([WRONG["positions counted from 0"]], "plain", {}),
    "labels shifted inside each part": ([WRONG["labels shifted inside each part"]], "plain", {}),
    "gradients do not come home": (gradients_that_do_not_come_home(), "plain", {}),
    "a softmax of each part": (softmax_of_each_part(), "plain", {}),
    "keys not joined": (keys_not_joined(), "plain", {"cp_attention": "gather"}),
}


def complaint(fault: str, kind: str, plan: ParallelPlan) -> str:
    """What the check says with the fault; nothing if it passes."""
    with ExitStack() as stack:
        for place, name, value in FAULTS[fault][0]:
            stack.enter_context(patch.object(place, name, value))
        try:
            rows.check("llama", plan, kind)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    _, kind, fields = FAULTS[fault]
    plan = ParallelPlan(**{"cp": 2, **fields})
    pool(2).run(rows.check, "llama", plan, kind)
    assert all(pool(2).run(complaint, fault, kind, plan))


def is_finite(planted: bool) -> bool:
    """Are all gradients numbers where some ranks have nothing but padding of a row?"""
    real = ring.forward

    def forward(*given):
        out, lse = real(*given)
        return out / (lse > formula.NOTHING).unsqueeze(-1), lse  # the sum of no weights is 0

    with patch.object(ring, "forward", forward if planted else real):
        trainer = rows.trainer_of("llama", ParallelPlan(cp=4, cp_split="contiguous"))
        trainer.backward(*rows.batch("packed"))
        return all(gradient.isfinite().all() for gradient in trainer.gradients().values())


def test_a_row_s_part_that_is_all_padding_makes_no_nan() -> None:
    assert all(pool(4).run(is_finite, False))
    assert not any(pool(4).run(is_finite, True))


# Windows, caps, and layers that are left out: seen by the copy that is tried.

SIZES = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
WINDOWED = {
    "mistral": lambda: transformers.MistralConfig(sliding_window=5, **SIZES),
    "gemma2": lambda: transformers.Gemma2Config(sliding_window=5, **SIZES),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(sliding_window=5, **SIZES),
}


def admitted(name: str, way: str, fault: str) -> str:
    """What is said against a model; nothing if it is laid out."""
    real = attention.Context.attend

    def attend(self, q, k, v, sinks, **scores):
        if fault == "sinks":
            sinks = None
        if fault == "window":
            scores["window"] = None
        if fault == "softcap":
            scores["softcap"] = None
        if fault == "layer":
            self.number = getattr(self, "number", 0) + 1
            if self.number % 2:
                return F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=scores["scale"], enable_gqa=True
                )
        return real(self, q, k, v, sinks, **scores)

    plan = ParallelPlan(cp=2, cp_attention=way)
    config = WINDOWED[name]() if name in WINDOWED else tiny.config(name)
    if fault:  # nothing that was found before may be remembered
        config.initializer_range = 0.0201 + 0.0001 * len(fault)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with patch.object(attention.Context, "attend", attend):
        try:
            parallelize(model, plan, mesh_of(plan))
        except UserError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("way", ("ring", "gather", "ulysses"))
@pytest.mark.parametrize("name", WINDOWED)
def test_windows_and_caps_are_the_class_s_own(name: str, way: str) -> None:
    assert pool(2).run(admitted, name, way, "") == ["", ""]


@pytest.mark.parametrize(
    ("name", "fault"),
    (
        ("mistral", "window"),
        ("gemma2", "softcap"),
        ("gemma3_text", "window"),
        ("llama", "layer"),
        ("gpt-oss", "sinks"),
    ),
)
def test_a_model_that_would_not_be_exact_is_refused(name: str, fault: str) -> None:
    words = pool(2).run(admitted, name, "ring", fault)
    assert all("would not be exact under cp=2" in one for one in words)
    assert all("exact here: dp_shard and dp_replicate" in one for one in words)


def test_what_has_no_attention_of_a_known_kind_is_refused() -> None:
    assert "cannot be split by cp=2" in pool(2).run(mamba)[0]


def mamba() -> str:
    config = transformers.MambaConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2)
    model, plan = transformers.AutoModelForCausalLM.from_config(config), ParallelPlan(cp=2)
    return said(parallelize, model, plan, mesh_of(plan))


@pytest.mark.parametrize(("family", "task"), (("bert-mlm", "mlm"), ("roberta-classes", "classify")))
def test_what_looks_both_ways_is_refused(family: str, task: str) -> None:
    words = pool(2).run(said, laid_out, family, ParallelPlan(cp=2))[0]
    assert f"cp=2 splits the rows of causal language models, not those of {task}" in words


def masked() -> str:
    trainer, (ids, labels, _) = rows.trainer_of("llama", ParallelPlan(cp=2)), rows.batch("plain")
    return said(trainer.step, ids, labels, attention_mask=torch.ones_like(ids))


def test_a_mask_of_the_users_is_refused() -> None:
    assert "attention_mask is not split over cp" in pool(2).run(masked)[0]


# Messages


def sent(activation: str, way: str) -> dict[str, int]:
    """Messages over cp in one step, by kind: attention's, and one of the state's."""
    plan = ParallelPlan(cp=2, cp_attention=way, activation=activation, zero_stage=1)
    trainer = rows.trainer_of("llama", plan)
    with Watch() as watch:
        trainer.backward(*rows.batch("plain"))
    cp = trainer.mesh.get_group("cp").group_name
    found: Counter[str] = Counter()
    for message, count in watch.sent.items():
        found[message.kind] += count * (message.group == cp)
    return dict(+found)


@pytest.mark.parametrize("activation", ("none", "full", "group_2", "selective"))
def test_recomputing_sends_nothing_twice(activation: str) -> None:
    layers = 2
    each = {"ring": 4, "gather": 2, "ulysses": 11}  # forward and backward
    kinds = {
        "ring": dict.fromkeys(("send", "receive"), each["ring"] * layers),
        "gather": {"all_gather": 2 * layers, "reduce_scatter": layers},
        "ulysses": {"all_to_all": each["ulysses"] * layers},
    }
    for way, expected in kinds.items():
        found = Counter(pool(2).run(sent, activation, way)[0])
        assert found - Counter(all_reduce=1, reduce_scatter=1) == expected


def test_grouped_keys_are_sent_once() -> None:
    """As many as the model has, and not one for each head of the queries."""
    assert pool(2).run(bytes_of_keys) == [2 * 8 * 8 * 2 * 8 * 8] * 2


def bytes_of_keys() -> int:
    trainer = rows.trainer_of("llama", ParallelPlan(cp=2))
    with Watch() as watch:
        trainer.evaluate([rows.batch("plain")])
    sizes = {message.payload_bytes for message in watch.sent if message.kind == "send"}
    assert len(sizes) == 1
    return sizes.pop()  # 2 of keys and values, 8 rows, 8 tokens, 2 heads of 8, 8 bytes each


def test_ulysses_needs_a_head_for_every_rank() -> None:
    config = tiny.config("llama")
    with pytest.raises(UserError, match=r"cp=3 does not divide 4 heads.*cp can be 2, 4 with it"):
        ParallelPlan(cp=3, cp_attention="ulysses").validate(config)
    with pytest.raises(UserError, match="2 heads of a rank of tp=2"):
        ParallelPlan(cp=4, tp=2, cp_attention="ulysses").validate(config)
    ParallelPlan(cp=3).validate(config)
    ParallelPlan(cp=4, cp_attention="ulysses").validate(config)


ROTARY = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "original_max_position_embeddings": 12,
    },
}


def step_of_length(kind: str, layout: dict[str, Any], length: int, packed: bool) -> str:
    """Runs on each rank: what a step of such rows is refused by, or nothing."""
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=12 if kind == "dynamic" else 64,
        rope_parameters=ROTARY[kind],
    )
    plan = ParallelPlan(**layout)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model = parallelize(model, plan, mesh_of(plan))
    trained = trainer.Trainer(model, plan, mesh_of(plan), lr=1e-3)
    ids = torch.arange(length).expand(2, length)
    documents = (torch.arange(length) // 5).expand(2, length) if packed else None
    try:
        trained.step(ids, ids, documents)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ROTARY)
def test_frequencies_that_follow_a_rows_length_are_not_split(kind: str) -> None:
    """transformers takes the length from the largest position that it is given, which a rank of cp,
    padding and packing change."""
    tp = {"tp": 2, "sequence_parallel": True}
    wrong = (({"cp": 2}, 16, False), ({"dp_shard": 2}, 16, True), (tp, 15, False))
    for layout, length, packed in wrong:
        told = pool(2).run(step_of_length, kind, layout, length, packed)
        assert all("other frequencies in rows of more than 12" in one for one in told)
    right = (({"cp": 2}, 12, False), (tp, 16, False), ({"dp_shard": 2}, 15, False))
    for layout, length, packed in right:
        assert pool(2).run(step_of_length, kind, layout, length, packed) == ["", ""]
