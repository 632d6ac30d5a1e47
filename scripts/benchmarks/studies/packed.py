"""What documents one by one are worth beside a mask of the row: steps of a small Llama in turn."""

import statistics
import time
from typing import Any, NamedTuple

import torch
import transformers

from helpers.commands import markdown
from helpers.engine.parallelize import parallelize
from helpers.engine.pipeline.micro_batches import MicroBatch
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks.meeting import distributed
from helpers.engine.trainer import Trainer

LAYERS, HIDDEN, HEADS, FFN, VOCABULARY = 4, 512, 8, 1536, 4096


class Case(NamedTuple):
    """Rows of so many tokens, in documents of so many."""

    rows: int
    seq_len: int
    document: int


CASES = (Case(32, 128, 32), Case(8, 512, 64), Case(2, 2048, 200), Case(1, 4096, 256))


class ByDocuments(Trainer):
    """However short the rows."""

    def _one_by_one(self, packed: MicroBatch) -> bool:
        return True


class Masked(Trainer):
    """A mask says what a token may see."""

    def _one_by_one(self, packed: MicroBatch) -> bool:
        return False


def measure(rounds: int) -> list[dict[str, Any]]:
    """Of each case the median seconds of a step by each way, and the largest difference between the
    losses of the two ways."""
    with distributed(ParallelPlan()) as mesh:
        return [_measured(case, rounds, mesh) for case in CASES]


def _measured(case: Case, rounds: int, mesh: Any) -> dict[str, Any]:
    plan, config = ParallelPlan(), _config(case.seq_len)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (case.rows, case.seq_len), generator=generator)
    documents = (torch.arange(case.seq_len) // case.document).repeat(case.rows, 1)
    ways = {
        "documents": (ByDocuments, documents),
        "mask": (Masked, documents),
        "whole": (Trainer, None),
    }
    trainers, seconds, losses = {}, {}, {}
    for name, (kind, _) in ways.items():
        torch.manual_seed(0)
        model = parallelize(transformers.LlamaForCausalLM(config), plan, mesh)
        trainers[name], seconds[name], losses[name] = kind(model, plan, mesh, lr=1e-4), [], []
    for step in range(rounds + 1):
        for name, (_, given) in ways.items():
            began = time.perf_counter()
            losses[name].append(trainers[name].step(ids, ids, given).loss)
            if step:  # the first one warms up
                seconds[name].append(time.perf_counter() - began)
    apart = max(abs(a - b) for a, b in zip(losses["documents"], losses["mask"], strict=True))
    medians = {f"{name}_s": statistics.median(taken) for name, taken in seconds.items()}
    return case._asdict() | medians | {"largest_loss_difference": apart}


def _config(seq_len: int) -> Any:
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=seq_len,
    )


def table(found: list[dict[str, Any]]) -> str:
    """As Markdown."""
    head = ("rows", "documents", "one by one, s", "a mask, s", "not packed, s", "losses differ by")
    rows = (
        (
            f"{one['rows']} × {one['seq_len']}",
            f"of {one['document']}",
            *(f"{one[name]:.2f}" for name in ("documents_s", "mask_s", "whole_s")),
            f"{one['largest_loss_difference']:.0e}",
        )
        for one in found
    )
    return markdown(head, rows)
