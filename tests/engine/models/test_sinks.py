"""A token before the first is a sink: transformers' formula, whatever the mask and the heads."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from helpers.engine.errors import UserError
from helpers.engine.models.attention import attend
from helpers.engine.tensor.boundary import Boundary

HEADS = 4
cases = st.fixed_dictionaries(
    {
        "groups": st.sampled_from((1, 2, 4)),
        "length": st.integers(1, 9),
        "batch": st.integers(1, 2),
        "scale": st.sampled_from((0.3, 8**-0.5, 2.0)),
        "value": st.sampled_from((3, 8, 11)),
        "mask": st.sampled_from((None, "boolean", "added")),
        "window": st.integers(1, 9),
        "spread": st.sampled_from((1.0, 20.0)),  # sinks that take nothing, or all
    }
)


@settings(deadline=None, max_examples=60)
@given(cases)
def test_attention_with_sinks_is_that_of_the_class(case: dict) -> None:
    torch.manual_seed(0)
    length, kv = case["length"], HEADS // case["groups"]
    inputs = [
        torch.randn(case["batch"], heads, length, width, dtype=torch.float64)
        for heads, width in ((HEADS, 8), (kv, 8), (kv, case["value"]))
    ] + [case["spread"] * torch.randn(HEADS, dtype=torch.float64)]
    seen = torch.ones(1, 1, length, length).tril().bool()
    if case["mask"]:
        seen = seen.triu(1 - case["window"])
    added = torch.zeros_like(seen, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    mask = {None: None, "boolean": seen, "added": added}[case["mask"]]

    def ours(query, key, value, sinks):
        return attend(Boundary(), query, key, value, mask, scale=case["scale"], sinks=sinks)

    def theirs(query, key, value, sinks):
        module = SimpleNamespace(num_key_value_groups=case["groups"], sinks=sinks, training=True)
        return eager_attention_forward(module, query, key, value, added, case["scale"])[0]

    results = []
    for function in (ours, theirs):
        leaves = [one.clone().requires_grad_() for one in inputs]
        out = function(*leaves)
        out.sin().sum().backward()
        results.append([out, *(one.grad for one in leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_a_class_that_caps_its_scores_and_has_sinks_is_refused() -> None:
    state = torch.randn(1, 2, 3, 4)
    with pytest.raises(UserError, match="softcap and sinks"):
        attend(Boundary(), state, state, state, softcap=3.0, sinks=torch.zeros(2))
