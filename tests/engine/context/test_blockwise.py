"""Attention in parts is attention: any documents, windows, caps, biases, heads, parts, dropout."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.engine.context import blockwise, formula
from helpers.engine.context.balance import SPLITS
from helpers.engine.context.blockwise import Gradients, Joined, of_sinks
from helpers.engine.context.formula import Scores
from helpers.engine.context.parts import Share, share
from helpers.engine.models.documents import PADDING

HEADS, DIM, SCALE = 4, 8, 0.3


@st.composite
def cases(draw) -> dict:
    rows, length = draw(st.integers(1, 3)), draw(st.integers(1, 21))
    documents = None
    if draw(st.booleans()):
        numbers = st.lists(st.integers(0, 3), min_size=length, max_size=length)
        padding = draw(st.integers(0, length - 1))
        documents = torch.tensor([sorted(draw(numbers)) for _ in range(rows)])
        documents[:, length - padding :] = PADDING
    return {
        "rows": rows,
        "length": length,
        "documents": documents,
        "ranks": draw(st.sampled_from((1, 2, 3, 4))),
        "split": draw(st.sampled_from(SPLITS)),
        "window": draw(st.none() | st.integers(1, 9)),
        "softcap": draw(st.none() | st.floats(0.5, 3.0)),
        "biased": draw(st.booleans()),
        "sinks": draw(st.booleans()),
        "key_heads": draw(st.sampled_from((1, 2, 4))),
        "dropout": draw(st.sampled_from((0.0, 0.0, 0.4))),
        "by_formula": draw(st.booleans()),
    }


def shares_of(case: dict, multiple: int = 1) -> list[Share]:
    ids = torch.arange(case["rows"] * case["length"]).view(case["rows"], -1)
    ranks, how = case["ranks"], (case["split"], multiple)
    return [share(ids, ids, case["documents"], rank, ranks, *how) for rank in range(ranks)]


def visible(case: dict, documents: Tensor, rows: int) -> Tensor:
    """[rows, 1, seq, seq]."""
    length = documents.shape[1]
    behind = torch.arange(length)[:, None] - torch.arange(length)
    seen = (behind >= 0) & (behind < (case["window"] or length + 1))
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return (seen & same & (documents != PADDING).unsqueeze(1)).expand(rows, -1, -1).unsqueeze(1)


def kept(case: dict, shares: list[Share], scores: Scores, length: int) -> Tensor:
    """What dropout leaves of each weight, pair by pair as the parts draw it."""
    factor = torch.ones(case["rows"], HEADS, length, length, dtype=torch.float64)
    for rank, own in enumerate(shares):
        for owner in range(case["ranks"]):
            for these, pairs in own.part.rows(owner, case["window"]):
                for number, (queries, keys, _) in enumerate(pairs):
                    place = (these, slice(None), slice(queries.first, queries.end))
                    place = (*place, slice(keys.first, keys.end))
                    draw = (owner, these.start or 0, number)
                    scores_of = scores_by_rank(scores, rank)
                    factor[place] = formula._dropped(factor[place], scores_of, draw)
    return factor


def scores_by_rank(scores: Scores, rank: int) -> Scores:
    """Each rank draws a seed of its own."""
    return Scores(**{**vars(scores), "seed": scores.seed + 7 * rank})


@settings(max_examples=80, deadline=None)
@given(cases())
def test_parts_are_joined_to_one_softmax_and_so_are_their_gradients(case):
    torch.manual_seed(0)
    shares = shares_of(case)
    rows, length, ranks = case["rows"], shares[0].part.length, case["ranks"]
    documents = torch.zeros(1, length, dtype=torch.long)
    if case["documents"] is not None:
        documents = F.pad(case["documents"], (0, length - case["length"]), value=PADDING)
    q = torch.randn(rows, HEADS, length, DIM, dtype=torch.float64, requires_grad=True)
    k = torch.randn(rows, case["key_heads"], length, DIM, dtype=torch.float64, requires_grad=True)
    v = torch.randn_like(k, requires_grad=True)
    bias = torch.randn(HEADS, length, dtype=torch.float64) if case["biased"] else None
    scores = Scores(SCALE, case["softcap"], case["window"], bias, case["dropout"], 5)

    values = q @ k.repeat_interleave(HEADS // k.shape[1], 1).mT * SCALE
    if case["softcap"]:
        values = case["softcap"] * (values / case["softcap"]).tanh()
    if bias is not None:
        values = values + bias[:, None]
    seen = visible(case, documents, rows)
    padding = ~seen.any(3)
    sinks = torch.randn(HEADS, dtype=torch.float64, requires_grad=True) if case["sinks"] else None
    values = values.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        values = torch.cat((sinks.view(-1, 1, 1).expand(*values.shape[:3], 1), values), -1)
    weights = values.softmax(-1)[..., -length:].masked_fill(~seen, 0.0)
    weights = weights * kept(case, shares, scores, length)
    expected = weights @ v.repeat_interleave(HEADS // v.shape[1], 1)
    grad = torch.randn_like(expected).masked_fill(padding.unsqueeze(3), 0.0)
    expected.backward(grad)

    found = [torch.zeros_like(x) for x in (expected, q, k, v)]
    found += [] if sinks is None else [torch.zeros_like(sinks)]
    inputs = (q, k, v) if sinks is None else (q, k, v, sinks)
    with pytest.MonkeyPatch.context() as patch:
        if case["by_formula"]:
            patch.setattr(blockwise, "_has_kernel", lambda *_: False)
        for rank, own in enumerate(shares):
            attend(rank, own, scores_by_rank(scores, rank), grad, inputs, found, ranks)
    for name, ours, theirs in zip("oqkvs", found, (expected, *(x.grad for x in inputs))):
        assert torch.allclose(ours, theirs, atol=1e-12), name


def attend(rank, own, scores, grad, inputs, found, ranks) -> None:
    """What one rank computes, put where it belongs."""
    q, k, v, *sinks = (x.detach() for x in inputs)
    places = [own.part.places[r].expand(len(q), -1) for r in range(ranks)]

    def index(r: int, like: Tensor) -> Tensor:
        return places[r][:, None, :, None].expand(-1, like.shape[1], -1, DIM)

    mine = q.gather(2, index(rank, q))
    joined = Joined(mine, *sinks)
    theirs = [(k.gather(2, index(r, k)), v.gather(2, index(r, v))) for r in range(ranks)]
    for owner, pair in enumerate(theirs):
        joined.add(*pair, own.part.rows(owner, scores.window), scores, owner)
    found[0].scatter_(2, index(rank, q), joined.out)
    of_q, grad = torch.zeros_like(mine), grad.gather(2, index(rank, q))
    for owner, pair in enumerate(theirs):
        of_pair = [torch.zeros_like(x) for x in pair]
        Gradients(of_q, *of_pair).add(
            grad,
            (mine, *pair),
            joined.out,
            joined.lse,
            own.part.rows(owner, scores.window),
            scores,
            owner,
        )
        for total, term in zip(found[2:4], of_pair):
            total.scatter_add_(2, index(owner, total), term)
    found[1].scatter_add_(2, index(rank, q), of_q)
    if sinks:
        found[4] += of_sinks(grad, joined.out, joined.lse, *sinks)


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from((1, 3, 4)))
def test_no_token_is_lost_at_a_border(case, multiple):
    shares = shares_of(case, multiple)
    assert all(own.ids.shape[1] % multiple == 0 for own in shares)
    ids = torch.arange(case["rows"] * case["length"]).view(case["rows"], -1)
    length = shares[0].part.length
    targets, positions = (torch.full((len(ids), length), -7) for _ in range(2))
    for own in shares:
        places = own.part.places[own.part.rank].expand(len(ids), -1)
        targets.scatter_(1, places, own.targets)
        positions.scatter_(1, places, own.positions)
    last = case["length"] - 1
    assert torch.equal(targets[:, :last], ids[:, 1:]) and (targets[:, last:] == -100).all()
    assert (positions >= 0).all() and (positions < case["length"]).all()  # they exist in a table
    if case["documents"] is None:
        assert torch.equal(positions[0, : last + 1], torch.arange(last + 1))


def test_parts_in_16_bits_are_joined_in_32():
    joined = Joined(torch.zeros(1, HEADS, 8, DIM, dtype=torch.bfloat16))
    assert joined.out.dtype == joined.lse.dtype == torch.float32


def test_no_two_parts_rows_or_pairs_draw_the_same():
    scores = Scores(SCALE, dropout=0.4, seed=5)
    draws = itertools.product(range(3), repeat=3)  # part, row, number of the pair
    masks = [formula._dropped(torch.ones(1, HEADS, 8, 8), scores, draw) for draw in draws]
    assert not any(torch.equal(one, two) for one, two in itertools.combinations(masks, 2))


def test_dropout_leaves_the_mean():
    torch.manual_seed(0)
    own = shares_of({"rows": 1, "length": 8, "documents": None, "ranks": 1, "split": "balanced"})[0]
    q, k, v = (torch.randn(1, HEADS, 8, DIM, dtype=torch.float64) for _ in range(3))

    def result(dropout: float, seed: int) -> Tensor:
        joined = Joined(q)
        joined.add(k, v, own.part.rows(0), Scores(SCALE, dropout=dropout, seed=seed))
        return joined.out

    several = torch.stack([result(0.3, seed) for seed in range(1000)])
    assert several.std(0).mean() > 0.1
    error = several.std(0) / 1000**0.5
    assert ((several.mean(0) - result(0.0, 0)).abs() < 5 * error + 1e-9).all()
