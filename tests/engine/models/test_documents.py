"""Attention of documents one by one is that of a mask over the row, whatever they are like."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.models.attention import attend
from helpers.engine.models.documents import PADDING, attention_mask, documents_of
from helpers.engine.tensor.boundary import Boundary

rows = st.lists(st.integers(1, 7), max_size=5)  # or padding alone
cases = st.fixed_dictionaries(
    {
        "rows": st.lists(rows, min_size=1, max_size=3),
        "front": st.integers(0, 2),  # of padding
        "groups": st.sampled_from((1, 2, 4)),
        "window": st.none() | st.integers(1, 8),
        "bias": st.booleans(),
        "softcap": st.none() | st.just(3.0),
        "sinks": st.booleans(),
        "value": st.sampled_from((8, 5)),  # its width
    }
)


def numbers_of(of_rows: list[list[int]], front: int) -> torch.Tensor:
    width = front + max(map(sum, of_rows)) + 1
    documents = torch.full((len(of_rows), width), PADDING)
    for row, lengths in enumerate(of_rows):
        numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
        documents[row, front : front + len(numbers)] = torch.tensor(numbers)
    return documents


@settings(deadline=None, max_examples=60)
@given(cases)
def test_documents_one_by_one_are_as_under_a_mask(case):
    documents = numbers_of(case["rows"], case["front"])
    batch, length = documents.shape
    if case["softcap"] and (case["bias"] or case["window"]):
        case["bias"], case["window"] = False, None  # no class has both
    case["sinks"] &= not case["softcap"]  # nor these
    torch.manual_seed(0)
    sizes = (4, 4 // case["groups"], 4 // case["groups"])
    widths = (8, 8, case["value"])
    given_states = [
        torch.randn(batch, heads, length, width, dtype=torch.float64)
        for heads, width in zip(sizes, widths, strict=True)
    ]
    sinks = torch.randn(4, dtype=torch.float64)
    bias = torch.randn(4, length, dtype=torch.float64) if case["bias"] else None
    mask = attention_mask(documents)
    if case["window"]:
        mask = mask & torch.ones_like(mask).triu(1 - case["window"])
    if bias is not None:
        mask = bias[None, :, None].expand(batch, -1, length, -1).masked_fill(~mask, -torch.inf)

    def result(boundary: Boundary, **how) -> list[torch.Tensor]:
        states = [state.clone().requires_grad_() for state in given_states]
        own = sinks.clone().requires_grad_()
        states += [own] if case["sinks"] else []
        out = attend(
            boundary, *states[:3], softcap=case["softcap"], sinks=(states[3:] or [None])[0], **how
        )
        real = (documents != PADDING)[:, :, None, None]  # what padding gets is nothing to anybody
        (out * real).square().sum().backward()
        return [out * real, *(state.grad for state in states)]

    one_by_one = Boundary(documents=documents_of(documents, length))
    found = result(one_by_one, window=case["window"], key_bias=bias)
    for ours, theirs in zip(found, result(Boundary(), mask=mask), strict=True):
        close = 1e-4 if case["softcap"] else 1e-9  # whose softmax is in float32
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close)


def test_a_number_that_comes_again_is_another_documents():
    again = torch.tensor([[0, 0, 1, 1, 0, 0, PADDING, PADDING, 1]])
    others = torch.tensor([[0, 0, 1, 1, 2, 2, PADDING, PADDING, 3]])
    assert attention_mask(again).equal(attention_mask(others))
    assert documents_of(again, 9) == documents_of(others, 9)
