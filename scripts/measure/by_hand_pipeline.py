"""A pipeline by hand: some layers on each rank, a batch in parts, in three orders and wrong ways.

    torchrun --nproc-per-node 2 scripts/measure/by_hand_pipeline.py --out runs/demo

Every rank also computes the whole alone, and holds its part of the gradient against that. Writes
demo.json: errors by case; and timeline.json: when each rank computed, a step for each order.
With --broken-rank R, rank R wants a backward before its forward while the others wait for it.
"""

import argparse
import copy
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAST = RANKS - 1
PARTS, ROWS, WIDTH, DEPTH = 8, 128, 512, 4  # micro-batches, rows of each, and a rank's layers
REPEATS = 5  # steps of each order; the shortest is shown, which other programs disturbed least

Order = list[tuple[str, int]]  # F or B, and of which micro-batch


def naive() -> Order:
    """One micro-batch after another."""
    return [(kind, i) for i in range(PARTS) for kind in "FB"]


def gpipe() -> Order:
    """All forwards, then all backwards."""
    return [(kind, i) for kind in "FB" for i in range(PARTS)]


def one_f_one_b() -> Order:
    """As far ahead as there are ranks behind this one, then in turn."""
    ahead = min(LAST - RANK, PARTS)
    order = [("F", i) for i in range(ahead)]
    for i in range(PARTS):
        order += [("F", ahead + i)] if ahead + i < PARTS else []
        order += [("B", i)]
    return order


ORDERS = {"naive": naive, "gpipe": gpipe, "1f1b": one_f_one_b}


class Stage:
    """This rank's layers, and what they keep of each micro-batch between forward and backward."""

    def __init__(self, layers: nn.Module, targets: tuple[Tensor, ...], rows: int) -> None:
        self.layers, self.targets, self.rows = layers, targets, rows
        self.held: dict[int, tuple[Tensor, Tensor]] = {}
        self.sent: list[tuple[dist.Work, Tensor]] = []
        self.loss = torch.zeros((), dtype=torch.float64)

    def forward(self, i: int, x: Tensor) -> None:
        y = self.layers(x.requires_grad_())
        if RANK == LAST:
            y = (y - self.targets[i]).square().sum() / self.rows
            self.loss += y.detach()
        else:
            self.send(y.detach(), RANK + 1)
        self.held[i] = x, y

    def backward(self, i: int, gradient: Tensor | None) -> None:
        x, y = self.held.pop(i)
        y.backward(gradient)
        if RANK > 0:
            self.send(x.grad, RANK - 1)

    def send(self, message: Tensor, to: int) -> None:
        self.sent.append((dist.isend(message, to), message))  # goes on while this rank computes


def receive(kind: str) -> Tensor | None:
    """What the rank before sends for a forward, or the rank behind for a backward."""
    sender = RANK - 1 if kind == "F" else RANK + 1
    if not 0 <= sender < RANKS:
        return None
    message = torch.empty(ROWS, WIDTH, dtype=torch.float64)
    dist.recv(message, sender)
    return message


def run(stage: Stage, order: Order, inputs: tuple[Tensor, ...]) -> list[list]:
    """One step in this order; returns when each computation began and ended."""
    spans = []
    for kind, i in order:
        message = receive(kind)
        began = time.time()
        if kind == "F":
            stage.forward(i, inputs[i].clone() if RANK == 0 else message)
        else:
            stage.backward(i, message)
        spans.append([kind, RANK, i, began, time.time()])
    for work, _ in stage.sent:
        work.wait()
    return spans


def one_rank_in_reverse() -> Order:
    """gpipe, but the last rank goes backward from the last micro-batch to the first."""
    order = gpipe()
    return order[:PARTS] + order[: PARTS - 1 : -1] if RANK == LAST else order


def zeroed(stage: Stage) -> None:
    """Clear the gradients before each micro-batch's backward."""
    backward = stage.backward

    def one(i: int, gradient: Tensor | None) -> None:
        stage.layers.zero_grad()
        backward(i, gradient)

    stage.backward = one


def nothing(stage: Stage) -> None:
    pass


def mean_of_part(stage: Stage) -> None:
    """Divide the loss by the rows of the micro-batch in place of the batch's."""
    stage.rows = ROWS


# case: its order, and what is done to the stage before
CASES: dict[str, tuple[Callable[[], Order], Callable[[Stage], None]]] = {
    **{name: (order, nothing) for name, order in ORDERS.items()},
    "mean of each micro-batch": (gpipe, mean_of_part),
    "gradients zeroed each time": (gpipe, zeroed),
    "one rank in reverse": (one_rank_in_reverse, nothing),
}


def too_early() -> Order:
    """1f1b in which a micro-batch's backward and forward have changed places."""
    order = one_f_one_b()
    first, second = order.index(("F", 3)), order.index(("B", 3))
    order[first], order[second] = order[second], order[first]
    return order


def gradient(layers: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in layers.parameters()])


def by_rank(value: Any) -> list[Any]:
    values: list[Any] = [None] * RANKS
    dist.all_gather_object(values, value)
    return values


def duration(spans: list[list[list]]) -> float:
    """Seconds from the first beginning to the last end on any rank."""
    times = [(began, ended) for rank in spans for *_, began, ended in rank]
    return max(ended for _, ended in times) - min(began for began, _ in times)


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--broken-rank", type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same numbers on every rank
    torch.set_default_dtype(torch.float64)
    inputs, targets = torch.randn(2, PARTS * ROWS, WIDTH)
    whole = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH * RANKS))
    )
    mine = copy.deepcopy(whole[RANK * DEPTH : (RANK + 1) * DEPTH])
    loss = (whole(inputs) - targets).square().sum() / len(inputs)
    loss.backward()
    expected = gradient(whole[RANK * DEPTH : (RANK + 1) * DEPTH])

    def step(order: Order, change: Callable[[Stage], None]) -> tuple[Stage, list[list]]:
        mine.zero_grad()
        stage = Stage(mine, targets.chunk(PARTS), len(inputs))
        change(stage)
        dist.barrier()
        return stage, run(stage, order, inputs.chunk(PARTS))

    if args.broken_rank is not None:
        step(too_early() if args.broken_rank == RANK else one_f_one_b(), nothing)
    errors, steps = {}, []
    for case, (order, change) in CASES.items():
        taken = []
        for _ in range(REPEATS if case in ORDERS else 1):
            stage, spans = step(order(), change)
            taken.append(by_rank(spans))
        off = (gradient(mine) - expected).abs().max() / expected.abs().max()
        found = by_rank(stage.loss.item())[LAST]
        errors[case] = {"loss": abs(found / loss.item() - 1)}
        errors[case] |= {f"gradient, rank {r}": e for r, e in enumerate(by_rank(off.item()))}
        if case in ORDERS:
            steps.append(min(taken, key=duration))
    dist.destroy_process_group()
    if RANK == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "demo.json").write_text(json.dumps({"errors": errors}, indent=1) + "\n")
        (args.out / "timeline.json").write_text(json.dumps({"steps": steps}) + "\n")
        print(f"{RANKS} ranks compared {len(CASES)} cases with the whole")


if __name__ == "__main__":
    main()
