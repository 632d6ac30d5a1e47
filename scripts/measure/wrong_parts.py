"""Four wrong ways to give each rank its part of a sequence. All of them train.

    torchrun --nproc-per-node 2 scripts/measure/wrong_parts.py --out runs/wrong
    torchrun --nproc-per-node 1 scripts/measure/wrong_parts.py --out runs/one     the answer

Rows are packed with instructions. Every way begins with the same weights and takes the same
batches. Writes wrong.json: by way, the loss of each step as the run tells it, the gradient's norm
in the first, and the loss on held-out rows afterwards, evaluated as it should be.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from helpers import text as data
from helpers.commands import is_first
from helpers.engine.context import parts
from helpers.engine.models.documents import Document
from helpers.engine.models.objectives import IGNORED
from helpers.engine.parallelize import load_model
from helpers.engine.pipeline import micro_batches, runner
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed, pick_device, run_and_leave, world_size
from helpers.engine.trainer import Trainer
from helpers.text.bundled import bundled

share, train = parts.share, runner.Pipeline.train


def local_positions(*given: Any, **options: Any) -> parts.Share:
    """Every rank counts its tokens from 0."""
    own = share(*given, **options)
    return own._replace(positions=torch.arange(own.ids.shape[1]).expand_as(own.ids))


def shifted_inside(ids: Tensor, labels: Tensor, *more: Any, **options: Any) -> parts.Share:
    """The row is cut first and its labels are shifted then: a token is lost at every border."""
    own = share(ids, labels, *more, **options)
    beside = share(ids, F.pad(labels, (1, 0), value=IGNORED)[:, :-1], *more, **options).targets
    return own._replace(targets=F.pad(beside[:, 1:], (0, 1), value=IGNORED))


def documents_forgotten(*given: Any, **options: Any) -> parts.Share:
    """Attention takes a row of several documents for one."""
    own = share(*given, **options)
    own.part.documents = [[Document(0, 0, own.part.length)] for _ in own.part.documents]
    return own


def mean_of_means(self: runner.Pipeline, batches: Any, tokens: int, scale: float) -> Tensor:
    """Each rank takes the mean over its own tokens, and the ranks the mean of these."""
    own = sum(len(batch.places) for batch in batches)
    return train(self, batches, max(1, own) * self.model.boundary.context.ranks, scale)


# what is put in whose place
WRONG: dict[str, tuple[Any, str, Callable]] = {
    "positions counted from 0": (micro_batches, "share", local_positions),
    "labels shifted inside each part": (micro_batches, "share", shifted_inside),
    "documents forgotten": (micro_batches, "share", documents_forgotten),
    "mean of means": (runner.Pipeline, "train", mean_of_means),
}


def rows(name: str, args: argparse.Namespace) -> data.TokenData:
    tokenizer = data.load_tokenizer(bundled("tokenizer"))
    examples = data.load_examples(bundled(f"instructions/{name}.jsonl"), "instruct")
    return data.tokenize(examples, tokenizer, "instruct", args.seq_len)


def given(batch: data.Batch) -> tuple[Tensor, Tensor, Tensor]:
    """What the trainer takes of a batch."""
    return batch.input_ids, batch.labels, batch.documents


def batches(found: data.TokenData, args: argparse.Namespace) -> Iterator[data.Batch]:
    for epoch in itertools.count():
        yield from data.batches(found, args.batch_size, seed=args.seed, epoch=epoch)


def run(args: argparse.Namespace, wrong: tuple[Any, str, Callable] | None) -> dict[str, Any]:
    """One way's steps, on ranks that have met."""
    plan = ParallelPlan(cp=world_size())
    device = pick_device()
    mesh = plan.mesh(device.type)
    model = load_model(args.model, plan, mesh, seed=args.seed, device=device)
    trainer = Trainer(model, plan, mesh, lr=args.lr, seed=args.seed)
    training, held_out = rows("train", args), rows("heldout", args)
    with patch.object(*wrong) if wrong else patch.object(parts, "share", share):
        steps = [trainer.step(*given(one)) for one in islice(batches(training, args), args.steps)]
    last = data.batches(held_out, args.batch_size, seed=0, epoch=0)
    evaluated = trainer.evaluate(map(given, last))
    return {
        "losses": [step.loss for step in steps],
        "gradient_norm": steps[0].grad_norm,
        "held_out_loss": evaluated["loss"],
    }


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", default="llama-tiny", help="preset or folder")
    add("--seq-len", type=int, default=256)
    add("--batch-size", type=int, default=8)
    add("--steps", type=int, default=20)
    add("--lr", type=float, default=2e-3)
    add("--seed", type=int, default=0)
    add("--out", required=True, type=Path)
    args = parser.parse_args()
    ranks = world_size()
    ways = {"right": None} | (WRONG if ranks > 1 else {})
    with distributed(ParallelPlan(cp=ranks), pick_device()):
        report = {name: run(args, wrong) for name, wrong in ways.items()}
    if is_first():
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "wrong.json").write_text(json.dumps(report, indent=1) + "\n")
        ways_on = f"{len(report)} way{'s' * (len(report) > 1)} on {ranks} rank{'s' * (ranks > 1)}"
        print(f"{ways_on}, {args.steps} steps each")


if __name__ == "__main__":
    run_and_leave(main)
