"""f and g by hand: two linear layers over two ranks, right and in three wrong ways.

    torchrun --nproc-per-node 2 scripts/measure/by_hand_collectives.py --out runs/demo

Every rank also computes the whole alone, and holds the split result against it. Writes
demo.json: errors by case, and what the gradient of x looks like with f and without.
With --broken-rank R, rank R cuts B along the wrong side and fails while the others wait for it.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
Operator = Callable[[Tensor], Tensor]


def summed(x: Tensor) -> Tensor:
    x = x.clone()
    dist.all_reduce(x)
    return x


class F(torch.autograd.Function):
    """Forward: nothing. Backward: the ranks' gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


class G(torch.autograd.Function):
    """Forward: the ranks' partial results are summed. Backward: nothing."""

    @staticmethod
    def forward(ctx, partial):
        return summed(partial)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Both(G):
    """All-reduce forward and backward, as an autograd that knows only "all-reduce" would do it."""

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


def nothing(x: Tensor) -> Tensor:
    return x


CASES: dict[str, tuple[Operator, Operator]] = {
    "f and g": (F.apply, G.apply),
    "without f": (nothing, G.apply),
    "without g": (F.apply, nothing),
    "g sums backward too": (F.apply, Both.apply),
}


def layers(x: Tensor, a: Tensor, b: Tensor, f: Operator, g: Operator) -> Tensor:
    """[tokens, hidden] -> [tokens, hidden], over this rank's columns of A and rows of B."""
    inside = torch.tanh(f(x) @ a)
    return g(inside @ b)


def run(x: Tensor, a: Tensor, b: Tensor, f: Operator, g: Operator) -> dict[str, Tensor]:
    """The output, and the gradients of a loss that depends on all of it."""
    x, a, b = (t.detach().clone().requires_grad_() for t in (x, a, b))
    y = layers(x, a, b, f, g)
    (y.square().sum() / 2).backward()
    return {"y": y.detach(), "gradient of x": x.grad, "of A": a.grad, "of B": b.grad}


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference on any rank, over the largest element."""
    worst = (found - expected).abs().max() / expected.abs().max()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.item()


def by_rank(x: Tensor) -> list[list[float]]:
    """The first numbers of x, of every rank."""
    rows = [torch.empty(4, dtype=x.dtype) for _ in range(RANKS)]
    dist.all_gather(rows, x.flatten()[:4].contiguous())
    return [row.tolist() for row in rows]


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--broken-rank", type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same numbers on every rank
    x, a, b = (torch.randn(*shape, dtype=torch.float64) for shape in ((3, 4), (4, 8), (8, 4)))
    whole = run(x, a, b, nothing, nothing)
    my_a, my_b = a.chunk(RANKS, dim=1)[RANK], b.chunk(RANKS, dim=0)[RANK]
    if args.broken_rank == RANK:
        my_b = b.chunk(RANKS, dim=1)[RANK]
    parts = {"of A": (whole["of A"], 1), "of B": (whole["of B"], 0)}
    whole |= {name: grad.chunk(RANKS, dim)[RANK] for name, (grad, dim) in parts.items()}
    split = {case: run(x, my_a, my_b, f, g) for case, (f, g) in CASES.items()}
    errors = {
        case: {name: error(found[name], whole[name]) for name in whole}
        for case, found in split.items()
    }
    gradients = {
        "one process": by_rank(whole["gradient of x"])[:1],
        "with f": by_rank(split["f and g"]["gradient of x"]),
        "without f": by_rank(split["without f"]["gradient of x"]),
    }
    dist.destroy_process_group()
    if RANK == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        report = {"errors": errors, "gradient of x": gradients}
        (args.out / "demo.json").write_text(json.dumps(report, indent=1) + "\n")
        print(f"{RANKS} ranks compared {len(CASES)} cases with the whole")


if __name__ == "__main__":
    main()
