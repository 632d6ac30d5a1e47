"""Attention gets a mask where it needs one, and none where a fused kernel is causal by itself."""

from unittest.mock import patch

import torch
import torch.nn.functional as F

from helpers.engine.admission.packed_rows import check_documents
from helpers.engine.models import documents as packed_rows
from helpers.engine.parallelize import lay_out, parallelize
from helpers.engine.pipeline import micro_batches
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

FAMILIES = (*tiny.FAMILIES, *tiny.PUBLISHED)


def masked(families: tuple[str, ...], packed: bool, long: int = 0) -> dict[str, bool]:
    """By family: does each layer's attention get a mask in a step? Packed rows of `long` tokens and
    more have their documents taken one by one."""
    plan, plain = ParallelPlan(), F.scaled_dot_product_attention
    ids, labels = tiny.batch(0, length=16)
    documents = (torch.arange(16) // 6).expand(8, 16) if packed else None
    found = {}
    for family in families:
        model = parallelize(tiny.fresh(family, torch.float32), plan, mesh_of(plan))
        seen: list[bool] = []

        def attention(*given, attn_mask=None, seen=seen, **more):
            seen.append(attn_mask is not None)
            return plain(*given, attn_mask=attn_mask, **more)

        trainer = Trainer(model, plan, mesh_of(plan), lr=1e-3)
        if packed:  # the trial calls attention, too
            check_documents(model.kind, "cpu", lay_out)
        with (
            patch.object(F, "scaled_dot_product_attention", attention),
            patch.object(micro_batches, "LONG_ROW", long),
        ):
            trainer.step(ids, labels, documents)
        calls = 2 * 8 * 3 if packed and long == 0 else 2  # layers, rows and documents
        assert len(seen) == calls and len(set(seen)) == 1, family
        [found[family]] = set(seen)
    return found


def test_whole_rows_need_none() -> None:
    """ALiBi is in a mask, always."""
    [found] = pool(1).run(masked, FAMILIES, False)
    assert found == {family: family == "falcon-alibi" for family in FAMILIES}


def test_long_packed_rows_need_none_either() -> None:
    """Each of their documents is causal by itself. Of short ones a mask is quicker."""
    families = tuple(family for family in FAMILIES if family != "falcon-alibi")
    [short], [long] = (pool(1).run(masked, families, True, length) for length in (512, 0))
    assert all(short.values()) and not any(long.values())


def looked_for_documents() -> list[int]:
    """How often transformers looks: in a step, and in a forward with positions of one's own."""
    from transformers import masking_utils

    plan = ParallelPlan()
    model = parallelize(tiny.fresh("llama", torch.float32), plan, mesh_of(plan))
    ids, labels = tiny.batch(0)
    counts = []
    with patch.object(
        masking_utils,
        "find_packed_sequence_indices",
        wraps=masking_utils.find_packed_sequence_indices,
    ) as look:
        Trainer(model, plan, mesh_of(plan), lr=1e-3).step(ids, labels)
        counts.append(look.call_count)
        positions = packed_rows.positions(torch.arange(17).expand(8, 17) // 5)
        model(input_ids=ids, labels=labels, position_ids=positions)
        counts.append(look.call_count)
    return counts


def test_documents_are_looked_for_in_positions_that_are_given() -> None:
    assert pool(1).run(looked_for_documents) == [[0, 1]]
