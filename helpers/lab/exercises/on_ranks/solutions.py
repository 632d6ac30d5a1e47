"""A solution of each exercise on real ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def f_and_g():
    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial):
            partial = partial.clone()
            dist.all_reduce(partial)
            return partial

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Enter.apply, Leave.apply


def split_mlp(x, w1, b1, w2, b2, f, g, rank, ranks):
    part = w1.shape[1] // ranks
    mine = slice(rank * part, (rank + 1) * part)
    inside = torch.tanh(f(x) @ w1[:, mine] + b1[mine])
    return g(inside @ w2[mine]) + b2  # b2 once, behind the sum


def run_stage(stage, batches, rank, shape):
    if rank == 0:
        held, sent, gradient = [], [], torch.empty(shape, dtype=torch.float64)

        def forward(x):
            held.append(stage(x))
            sent.append(dist.isend(held[-1].detach(), 1))

        def backward():
            dist.recv(gradient, 1)
            held.pop(0).backward(gradient)

        forward(batches[0])
        for x in batches[1:]:
            forward(x)  # a send that waits for its receive would wait for ever here
            backward()
        backward()
        return [work.wait() for work in sent]
    total = 0.0
    for target in batches:
        x = torch.empty(shape, dtype=torch.float64)
        dist.recv(x, 0)
        loss = stage(x.requires_grad_(), target) / len(batches)
        loss.backward()
        dist.send(x.grad, 0)
        total += loss.item()
    return total


def ring_all_reduce(x, rank, ranks):
    pieces = list(x.tensor_split(ranks))

    def turn(out, into):
        sending = dist.isend(pieces[out % ranks].clone(), (rank + 1) % ranks)
        received = torch.empty_like(pieces[into % ranks])
        dist.recv(received, (rank - 1) % ranks)
        sending.wait()
        return received

    for step in range(ranks - 1):  # add: the sum of a piece travels on, and grows
        pieces[(rank - step - 1) % ranks] += turn(rank - step, rank - step - 1)
    for step in range(ranks - 1):  # pass on: each finished piece goes around
        pieces[(rank - step) % ranks] = turn(rank - step + 1, rank - step)
    return torch.cat(pieces)


def overlap(model, bucket_bytes):
    waiting, running = [], []

    def send():
        flat = torch.cat([p.grad.flatten() for p in waiting]) / dist.get_world_size()
        running.append((dist.all_reduce(flat, async_op=True), flat, waiting.copy()))
        waiting.clear()

    def ready(parameter):
        waiting.append(parameter)
        if sum(p.grad.nbytes for p in waiting) >= bucket_bytes:
            send()

    def finish():
        if waiting:
            send()
        for work, flat, parameters in running:
            work.wait()
            sizes = [p.numel() for p in parameters]
            for p, mean in zip(parameters, flat.split(sizes)):
                p.grad.copy_(mean.view_as(p))
        running.clear()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(ready)
    return finish


def update(weights, gradient, momentum, lr, beta, rank, ranks):
    share = torch.empty_like(momentum)
    dist.reduce_scatter_tensor(share, gradient)
    momentum.mul_(beta).add_(share / ranks)
    mine = weights.chunk(ranks)[rank] - lr * momentum
    dist.all_gather_into_tensor(weights, mine)


def join(out, lse, rank, ranks):
    largest = lse.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    weight = (lse - largest).exp().unsqueeze(-1)
    total = torch.cat([out * weight, weight], -1)
    dist.all_reduce(total)
    return total[..., :-1] / total[..., -1:]


def ring_attention(q, k, v, rank, ranks):
    part, width = q.shape[-2:]
    places = torch.arange(part)
    top = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=q.dtype)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    pair = torch.stack((k, v))
    for step in range(ranks):
        if step < ranks - 1:  # the next pair travels while this one is used
            sending = dist.isend(pair, (rank + 1) % ranks)
            coming = torch.empty_like(pair)
            receiving = dist.irecv(coming, (rank - 1) % ranks)
        owner = (rank - step) % ranks
        if owner <= rank:  # what comes later is seen by no query
            seen = rank * part + places[:, None] >= owner * part + places
            scores = (q @ pair[0].mT / width**0.5).masked_fill(~seen, -torch.inf)
            before, top = top, torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, kept = (scores - top).exp(), (before - top).exp()
            total = total * kept + weights.sum(-1, keepdim=True)
            out = out * kept + weights @ pair[1]
        if step < ranks - 1:
            sending.wait()
            receiving.wait()
            pair = coming
    return out / total


def heads_and_tokens():
    def to_heads(x, rank, ranks):
        sent = torch.stack(x.chunk(ranks, dim=1))  # by receiver, its heads of my tokens
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return received.flatten(0, 1)

    def to_tokens(x, rank, ranks):
        sent = torch.stack(x.chunk(ranks, dim=0))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return torch.cat(received.unbind(), dim=1)

    return to_heads, to_tokens


ON_RANKS: dict[str, Callable[..., Any]] = {
    "1d f and g": f_and_g,
    "1e column and row": split_mlp,
    "2d two stages": run_stage,
    "5d ring": ring_all_reduce,
    "5e buckets": overlap,
    "5f owner update": update,
    "9a joined": join,
    "9b ring attention": ring_attention,
    "9c heads for tokens": heads_and_tokens,
}
