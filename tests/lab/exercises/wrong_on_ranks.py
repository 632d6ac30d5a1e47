"""Wrong answers to the exercises on real ranks, each with words of what must be said of it.

What learners do: a sum that is missing or made twice, the wrong neighbour, gradients that are sums
where means are wanted, messages behind the backward, an order that waits for itself.
"""

from typing import Any

import torch
import torch.distributed as dist

from helpers.lab.exercises.on_ranks.solutions import (
    f_and_g,
    heads_and_tokens,
    join,
    overlap,
    ring_all_reduce,
    ring_attention,
    split_mlp,
)
from helpers.lab.exercises.on_ranks.solutions import update as right_update


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def operator(forward, backward):
    def make(x):
        class Operator(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return forward(x.view_as(x))

            @staticmethod
            def backward(ctx, gradient):
                return backward(gradient)

        return Operator.apply(x)

    return make


def same(x):
    return x


RIGHT_F, RIGHT_G = f_and_g()


def mlp_without_f(x, w1, b1, w2, b2, f, g, rank, ranks):
    return split_mlp(x, w1, b1, w2, b2, same, g, rank, ranks)


def mlp_without_g(x, w1, b1, w2, b2, f, g, rank, ranks):
    return split_mlp(x, w1, b1, w2, b2, f, same, rank, ranks)


def bias_on_each(x, w1, b1, w2, b2, f, g, rank, ranks):
    return split_mlp(x, w1, b1, w2, b2 / ranks, f, lambda y: g(y + b2), rank, ranks) - b2 / ranks


def bias_forgotten(x, w1, b1, w2, b2, f, g, rank, ranks):
    return split_mlp(x, w1, b1, w2, 0 * b2, f, g, rank, ranks)


def whole_on_each(x, w1, b1, w2, b2, f, g, rank, ranks):
    return torch.tanh(x @ w1 + b1) @ w2 + b2


def other_rows(x, w1, b1, w2, b2, f, g, rank, ranks):
    return split_mlp(x, w1, b1, w2.flip(0), b2, f, g, rank, ranks)


def other_stage_bias(x, w1, b1, w2, b2, f, g, rank, ranks):
    return split_mlp(x, w1, b1, w2, b2.detach(), f, g, rank, ranks)


def run(stage, batches, rank, shape, order=None, mean=True, back=True, loss_mean=True):
    """1F1B, gpipe or one by one, with what is left out."""
    ahead = {"gpipe": len(batches), "single": 1}.get(order, 2)
    held, sent = [], []
    total = 0.0
    divide = len(batches) if mean else 1
    if rank == 0:
        left = list(batches)
        while left or held:
            while left and len(held) < ahead:
                held.append(stage(left.pop(0)))
                sent.append(dist.isend(held[-1].detach().clone(), 1))
            gradient = torch.empty(shape, dtype=torch.float64)
            dist.recv(gradient, 1)
            hidden = held.pop(0)
            if back:
                hidden.backward(gradient)
        return [work.wait() for work in sent]
    for target in batches:
        x = torch.empty(shape, dtype=torch.float64)
        dist.recv(x, 0)
        loss = stage(x.requires_grad_(), target) / divide
        loss.backward()
        dist.send(x.grad, 0)
        total += loss.item() * (1 if loss_mean else len(batches))
    return total


def gpipe(stage, batches, rank, shape):
    return run(stage, batches, rank, shape, "gpipe")


def one_by_one(stage, batches, rank, shape):
    return run(stage, batches, rank, shape, "single")


def sum_of_losses(stage, batches, rank, shape):
    return run(stage, batches, rank, shape, mean=False)


def no_gradient_back(stage, batches, rank, shape):
    return run(stage, batches, rank, shape, back=False)


def summed_report(stage, batches, rank, shape):
    return run(stage, batches, rank, shape, loss_mean=False)


def no_report(stage, batches, rank, shape):
    run(stage, batches, rank, shape)


def newest_first(stage, batches, rank, shape):
    """The gradient goes to the micro-batch that was sent last."""
    if rank:
        return run(stage, batches, rank, shape)
    held, sent = [], []
    for x in batches:
        held.append(stage(x))
        sent.append(dist.isend(held[-1].detach().clone(), 1))
        if len(held) == 2:
            held.pop().backward(received(shape))
    held.pop().backward(received(shape))
    return [work.wait() for work in sent]


def in_pairs(stage, batches, rank, shape):
    """Two forwards, then two backwards: no more is held than by 1F1B."""
    if rank:
        return run(stage, batches, rank, shape)
    for pair in (batches[:2], batches[2:]):
        held = [stage(x) for x in pair]
        sent = [dist.isend(hidden.detach().clone(), 1) for hidden in held]
        for hidden, work in zip(held, sent):
            hidden.backward(received(shape))
            work.wait()


def received(shape):
    gradient = torch.empty(shape, dtype=torch.float64)
    dist.recv(gradient, 1)
    return gradient


def both_send(stage, batches, rank, shape):
    """Deadlock: both ranks wait in a send."""
    dist.send(torch.zeros(shape, dtype=torch.float64), 1 - rank)
    return run(stage, batches, rank, shape)


def own_alone(x, rank, ranks):
    return x


def ring_mean(x, rank, ranks):
    return ring_all_reduce(x, rank, ranks) / ranks


def by_all_reduce(x, rank, ranks):
    dist.all_reduce(x)
    return x


def whole_around(x, rank, ranks):
    """n - 1 turns with the whole tensor: right, and n / 2 times the bytes."""
    total, travelling = x.clone(), x
    for _ in range(ranks - 1):
        sending = dist.isend(travelling, (rank + 1) % ranks)
        received = torch.empty_like(x)
        dist.recv(received, (rank - 1) % ranks)
        sending.wait()
        total, travelling = total + received, received
    return total


def first_round_only(x, rank, ranks):
    pieces = list(x.tensor_split(ranks))
    for step in range(ranks - 1):
        out, into = (rank - step) % ranks, (rank - step - 1) % ranks
        sending = dist.isend(pieces[out].clone(), (rank + 1) % ranks)
        received = torch.empty_like(pieces[into])
        dist.recv(received, (rank - 1) % ranks)
        sending.wait()
        pieces[into] += received
    return torch.cat(pieces)


def to_everyone(x, rank, ranks):
    """No ring: each rank sends its x to all others."""
    total = x.clone()
    sending = [dist.isend(x.clone(), other) for other in range(ranks) if other != rank]
    for other in range(ranks):
        if other != rank:
            received = torch.empty_like(x)
            dist.recv(received, other)
            total += received
    for work in sending:
        work.wait()
    return total


def half_the_numbers(x, rank, ranks):
    return ring_all_reduce(x, rank, ranks)[: len(x) // 2]


def wrong_neighbour(x, rank, ranks):
    """Deadlock: all receive from the right, to which they send as well."""
    received = torch.empty_like(x)
    dist.recv(received, (rank + 1) % ranks)
    dist.send(x, (rank + 1) % ranks)
    return received


def sum_for_mean(model, bucket_bytes):
    finish = overlap(model, bucket_bytes)

    def double():
        finish()
        for p in model.parameters():
            p.grad *= dist.get_world_size()

    return double


def one_each(model, bucket_bytes):
    return overlap(model, 1)


def one_for_all(model, bucket_bytes):
    return overlap(model, 2**40)


def nothing_sent(model, bucket_bytes):
    return lambda: None


def never_waited(model, bucket_bytes):
    sums = []

    def ready(p):
        p.grad /= dist.get_world_size()
        sums.append(dist.all_reduce(p.grad, async_op=True))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(ready)
    return lambda: None


def last_forgotten(model, bucket_bytes):
    """Full buckets alone are sent: the first layers, which the backward comes to last, are left."""
    left = len(model) % (bucket_bytes // model[0].weight.nbytes)
    return overlap(model[left:], bucket_bytes)


def after_the_backward(model, bucket_bytes):
    def finish():
        parameters = list(model.parameters())
        for begin in range(0, len(parameters), 2):
            pair = parameters[begin : begin + 2]
            flat = torch.cat([p.grad.flatten() for p in pair]) / dist.get_world_size()
            dist.all_reduce(flat)
            for p, mean in zip(pair, flat.chunk(len(pair))):
                p.grad.copy_(mean.view_as(p))

    return finish


def own_gradient(weights, gradient, momentum, lr, beta, rank, ranks):
    momentum.mul_(beta).add_(gradient.chunk(ranks)[rank])
    dist.all_gather_into_tensor(weights, weights.chunk(ranks)[rank] - lr * momentum)


def summed_gradient(weights, gradient, momentum, lr, beta, rank, ranks):
    right_update(weights, gradient * ranks, momentum, lr, beta, rank, ranks)


def never_gathered(weights, gradient, momentum, lr, beta, rank, ranks):
    share = torch.empty_like(momentum)
    dist.reduce_scatter_tensor(share, gradient)
    momentum.mul_(beta).add_(share / ranks)
    weights.chunk(ranks)[rank].sub_(lr * momentum)


def other_way_round(weights, gradient, momentum, lr, beta, rank, ranks):
    right_update(weights, gradient, momentum, lr, beta, rank, ranks)
    weights.copy_(torch.cat(weights.chunk(ranks)[::-1]))


def momentum_forgotten(weights, gradient, momentum, lr, beta, rank, ranks):
    right_update(weights, gradient, momentum.clone(), lr, beta, rank, ranks)


def not_in_place(weights, gradient, momentum, lr, beta, rank, ranks):
    right_update(weights.clone(), gradient, momentum, lr, beta, rank, ranks)


def uphill(weights, gradient, momentum, lr, beta, rank, ranks):
    right_update(weights, gradient, momentum, -lr, beta, rank, ranks)


def own_result(out, lse, rank, ranks):
    return out


def mean_of_results(out, lse, rank, ranks):
    return summed(out) / ranks


def without_the_largest(out, lse, rank, ranks):
    weight = lse.exp().unsqueeze(-1)
    return summed(out * weight) / summed(weight)


def not_divided(out, lse, rank, ranks):
    return summed(out * lse.exp().unsqueeze(-1))


def weighted_by_lse(out, lse, rank, ranks):
    return summed(out * lse.unsqueeze(-1)) / summed(lse.unsqueeze(-1))


def own_largest(out, lse, rank, ranks):
    """Each rank takes its own largest away: weights of different scales are added."""
    weight = (lse - lse.amax()).exp().unsqueeze(-1)
    return summed(out * weight) / summed(weight)


def flat_join(out, lse, rank, ranks):
    return join(out, lse, rank, ranks).flatten()


def attend(q, k, v, seen):
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v


def around(k, v, rank, ranks):
    """Keys and values of all ranks, in their order, by a ring."""
    pairs = {rank: torch.stack((k, v))}
    for step in range(ranks - 1):
        sending = dist.isend(pairs[(rank - step) % ranks], (rank + 1) % ranks)
        coming = torch.empty_like(pairs[rank])
        dist.recv(coming, (rank - 1) % ranks)
        sending.wait()
        pairs[(rank - step - 1) % ranks] = coming
    return [pairs[one] for one in range(ranks)]


def sees(rank, part, ranks):
    places = torch.arange(ranks * part)
    return places[rank * part : (rank + 1) * part, None] >= places


def by_mask(mask):
    """Ring attention over all keys together, with this mask of (rank, part, ranks)."""

    def attention(q, k, v, rank, ranks):
        pairs = around(k, v, rank, ranks)
        keys, values = torch.cat(pairs, 2)
        return attend(q, keys, values, mask(rank, q.shape[1], ranks))

    return attention


def every_key(rank, part, ranks):
    return torch.ones(part, ranks * part).bool()


def inside_each(rank, part, ranks):
    return torch.ones(part, part).tril().bool().repeat(1, ranks)


def own_keys(q, k, v, rank, ranks):
    return attend(q, k, v, torch.ones(len(q[0]), len(q[0])).tril().bool())


def mean_of_parts(q, k, v, rank, ranks):
    part = q.shape[1]
    seen = sees(rank, part, ranks).chunk(ranks, 1)
    pairs = around(k, v, rank, ranks)[: rank + 1]
    return torch.stack([attend(q, *pair, s) for pair, s in zip(pairs, seen)]).mean(0)


def parts_of_nothing(q, k, v, rank, ranks):
    """A softmax over keys of which none is seen."""
    seen = sees(rank, q.shape[1], ranks).chunk(ranks, 1)
    pairs = around(k, v, rank, ranks)
    return sum(attend(q, *pair, s) for pair, s in zip(pairs, seen))


def by_all_gather(q, k, v, rank, ranks):
    keys = [torch.empty_like(k) for _ in range(ranks)]
    dist.all_gather(keys, k)
    return q


def keys_to_all(q, k, v, rank, ranks):
    """No ring: every rank sends its keys to all others."""
    others = [one for one in range(ranks) if one != rank]
    pairs = {rank: torch.stack((k, v))}
    sending = [dist.isend(pairs[rank], one) for one in others]
    for one in others:
        pairs[one] = torch.empty_like(pairs[rank])
        dist.recv(pairs[one], one)
    for work in sending:
        work.wait()
    keys, values = torch.cat([pairs[one] for one in range(ranks)], 2)
    return attend(q, keys, values, sees(rank, q.shape[1], ranks))


def once_more_around(q, k, v, rank, ranks):
    """Right, and keys go home at the end, which nobody needs."""
    sending = dist.isend(torch.stack((k, v)), (rank + 1) % ranks)
    dist.recv(torch.empty_like(torch.stack((k, v))), (rank - 1) % ranks)
    sending.wait()
    return ring_attention(q, k, v, rank, ranks)


TO_HEADS, TO_TOKENS = heads_and_tokens()


def strided_heads(x, rank, ranks):
    """Every n-th head in place of a run of them."""
    return TO_HEADS(torch.cat([x[:, one::ranks] for one in range(ranks)], 1), rank, ranks)


def tokens_by_sender(x, rank, ranks):
    own = TO_HEADS(x, rank, ranks)
    return torch.cat(own.chunk(ranks)[::-1])


def gathered_heads(x, rank, ranks):
    every = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(every, x)
    return torch.cat(every).chunk(ranks, 1)[rank]


def all_to_everyone(x, rank, ranks):
    """Right, and all heads are sent where some are wanted."""
    every = {rank: x}
    others = [one for one in range(ranks) if one != rank]
    sending = [dist.isend(x, one) for one in others]
    for one in others:
        every[one] = torch.empty_like(x)
        dist.recv(every[one], one)
    for work in sending:
        work.wait()
    return torch.cat([every[one] for one in range(ranks)]).chunk(ranks, 1)[rank]


def all_to_all_of_all(x, rank, ranks):
    """The same by an all-to-all."""
    every = torch.empty(ranks, *x.shape, dtype=x.dtype)
    dist.all_to_all_single(every, x.expand(ranks, *x.shape).contiguous())
    return every.flatten(0, 1).chunk(ranks, 1)[rank]


WRONG_ON_RANKS: dict[str, list[tuple[Any, str]]] = {
    "1d f and g": [
        ((same, RIGHT_G), "is this rank's part alone"),
        ((RIGHT_F, same), "is this rank's partial sum"),
        ((operator(same, same), RIGHT_G), "is this rank's part alone"),
        ((RIGHT_F, operator(summed, summed)), "2 times too large"),
        ((operator(summed, summed), RIGHT_G), "forward, f does nothing"),
        ((RIGHT_F, operator(lambda x: summed(x) / 2, same)), "y is a mean"),
        ((RIGHT_F, lambda x: None), "g returned nothing"),
        ((RIGHT_F, 3), "f and g are functions"),
        (RIGHT_F, "a pair is wanted, (f, g)"),
    ],
    "1e column and row": [
        (mlp_without_f, "x enters by f"),
        (mlp_without_g, "one rank's part alone"),
        (bias_on_each, "2 times: add it once, behind g"),
        (bias_forgotten, "b2 is missing"),
        (whole_on_each, "FLOPs where"),
        (other_rows, "w2 by the same rows"),
        (other_stage_bias, "b2 has no gradient"),
    ],
    "2d two stages": [
        (gpipe, "as by GPipe"),
        (one_by_one, "one micro-batch was held at a time"),
        (sum_of_losses, "4 times too large"),
        (no_gradient_back, "no gradient: receive"),
        (summed_report, "the mean is wanted"),
        (no_report, "nothing was returned"),
        (newest_first, "to which micro-batch"),
        (in_pairs, "F F B B F F B B is not 1F1B's"),
    ],
    "5d ring": [
        (own_alone, "the sum is missing"),
        (ring_mean, "the mean; a sum is wanted"),
        (by_all_reduce, "write it with send and receive"),
        (whole_around, "bytes were sent where"),
        (first_round_only, "another round passes"),
        (to_everyone, "a ring sends to one neighbour"),
        (half_the_numbers, "the shape is"),
    ],
    "5e buckets": [
        (sum_for_mean, "divide the sum by the ranks"),
        (one_each, "7 sums; buckets of two layers make 4"),
        (one_for_all, "no sum began before"),
        (nothing_sent, "waited for and copied back"),
        (never_waited, "7 sums were started and never waited for"),
        (last_forgotten, "the last bucket is not full"),
        (after_the_backward, "no sum began before"),
    ],
    "5f owner update": [
        (own_gradient, "with this rank's own gradient"),
        (summed_gradient, "with the sum of the gradients"),
        (never_gathered, "hand each share to all"),
        (other_way_round, ""),
        (momentum_forgotten, "momentum is not updated"),
        (not_in_place, "has not moved"),
        (uphill, "not those of momentum"),
    ],
    "9a joined": [
        (own_result, "the rank's own keys alone"),
        (mean_of_results, "the mean of the ranks' results"),
        (without_the_largest, "subtract the largest lse"),
        (not_divided, "not divided by the sum"),
        (weighted_by_lse, "the log of the weight"),
        (own_largest, "not attention to all keys"),
        (flat_join, "the shape is"),
    ],
    "9b ring attention": [
        (own_keys, "the rank's own keys alone"),
        (by_mask(every_key), "every query has seen every key"),
        (by_mask(inside_each), "places in the whole sequence"),
        (mean_of_parts, "the mean of the parts' results"),
        (parts_of_nothing, "not finite"),
        (by_all_gather, "write it with send and receive"),
        (keys_to_all, "a ring sends to one neighbour"),
        (once_more_around, "bytes were sent where"),
    ],
    "9c heads for tokens": [
        ((strided_heads, TO_TOKENS), "these are not heads"),
        ((tokens_by_sender, TO_TOKENS), "not in their order"),
        ((gathered_heads, TO_TOKENS), "send and receive or all_to_all_single"),
        ((all_to_everyone, TO_TOKENS), "bytes were sent where"),
        ((all_to_all_of_all, TO_TOKENS), "bytes were sent where"),
        ((TO_HEADS, TO_HEADS), "of to_tokens, the shape is"),
        ((TO_HEADS, lambda x, rank, ranks: None), "of to_tokens, nothing was returned"),
        ((TO_HEADS, 3), "are functions"),
    ],
}
DEADLOCKS: dict[str, tuple[Any, str]] = {
    "2d two stages": (both_send, "dist.send(torch.zeros(shape"),
    "5d ring": (wrong_neighbour, "dist.recv(received, (rank + 1) % ranks)"),
}
