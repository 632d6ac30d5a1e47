"""Rules over single looks: their gradients, weights, updates, activations and batches."""

import math
from statistics import mean, median

from helpers.watch.history import History
from helpers.watch.limits import (
    DEAD,
    EARLIER,
    EXPLODES,
    LARGE_UPDATE,
    NO_NORM,
    ONE_LABEL,
    PADDED,
    SATURATED,
    SMALL_UPDATE,
    VANISHES,
)
from helpers.watch.observe import Observation, Sums


def not_finite(history: History) -> str | None:
    """The loss is infinite or no number, or the gradient and no smaller scale of fp16 is left."""
    now = history.last
    if math.isfinite(now.loss) and (math.isfinite(now.grad_norm) or now.scale > 1):
        return None
    return "the loss or the gradient is not finite: take a smaller learning rate or bf16"


def learning_rate_zero(history: History) -> str | None:
    """In two looks, one after the other, the learning rate is 0."""
    *_, before, now = [None, *history.watched]
    if before is None or before.lr or now.lr:  # a warm-up may begin at 0, a decay end there
        return None
    return "the learning rate is 0: nothing is learned"


def no_gradient(history: History) -> str | None:
    """In two looks, one after the other, a parameter has no gradient, or one that is exactly 0."""
    *_, before, now = [None, *history.watched]
    if before is None or not now.grad_norm:  # at first LoRA's A has none, since its B is 0
        return None
    names = [name for name in now.seen.silent if name in before.seen.silent]
    if not names:
        return None
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"no gradient reaches {names[0]}{more}: is it a part of what the loss depends on?"


def vanishing_gradient(history: History) -> str | None:
    """A layer's gradient is below 1e-5 of the largest layer's, or the whole norm below 1e-7."""
    now = history.last
    found = {n: one.rms("gradient") for n, one in now.seen.layers.items()}
    if now.loss == now.grad_norm == 0:
        return "the loss and its gradient are exactly 0: does anything in the batch have a label?"
    if now.grad_norm < NO_NORM:
        return f"the gradient's norm is {now.grad_norm:.1e}"
    least = min(found, key=found.get, default=None)
    if least is None or not 0 < found[least] < VANISHES * max(found.values()):
        return None
    return f"layer {least}'s gradient is {found[least] / max(found.values()):.0e} of the largest"


def exploding_gradient(history: History) -> str | None:
    """The gradient's norm is over 100 times the median of the looks before, three at least."""
    now, before = history.last.grad_norm, [one.grad_norm for one in history.watched[:-1]]
    before = list(filter(math.isfinite, before))  # fp16 skips the others until its scale fits
    if not math.isfinite(now) or len(before) < EARLIER or not now > EXPLODES * median(before) > 0:
        return None
    return f"the gradient's norm is {now:.3g}, and was {median(before):.3g} before"


def dead_activation(history: History) -> str | None:
    """Over 99 % of a layer's activations are below 1e-6 in size."""
    for layer, one in sorted(history.last.seen.activations.items()):
        if one.zero > DEAD * one.count:
            return f"{one.zero / one.count:.1%} of layer {layer}'s activations are zero"
    return None


def saturated_activation(history: History) -> str | None:
    """Over half of the outputs of a tanh or a sigmoid are at its ends, beyond 97 % of its range."""
    for layer, one in sorted(history.last.seen.activations.items()):
        if one.ended > SATURATED * one.count:
            share = f"{one.ended / one.count:.0%} of layer {layer}'s activations"
            return f"{share} are at the ends of their function, where its slope is next to 0"
    return None


def weights_unchanged(history: History) -> str | None:
    """At the full learning rate, weights that have a gradient are the same after the update."""
    if not history.at_full_rate():
        return None
    for name, one in history.last.seen.units.items():
        if one.gradient and not one.update:
            return f"{name} has a gradient, and its weights do not change: is it in the optimizer?"
    return None


def zero_weights(history: History) -> str | None:
    """Every weight of a layer is 0."""
    for number, one in history.last.seen.layers.items():
        if one.numbers and not one.weight:
            return f"every weight of layer {number} is 0"
    return None


def ratios(seen: Observation) -> dict[str, float]:
    """The size of a layer's update beside its weights'."""
    found: dict[str, Sums] = {f"layer {n}": one for n, one in seen.layers.items() if one.weight}
    return {name: math.sqrt(one.update / one.weight) for name, one in found.items()}


def update_too_small(history: History) -> str | None:
    """At the full learning rate the median layer is changed by less than 1e-6 of its size."""
    found = [one for one in ratios(history.last.seen).values() if one]
    if not history.at_full_rate() or not found or median(found) >= SMALL_UPDATE:
        return None
    return f"a step changes the weights by {median(found):.0e} of their size; 1e-3 is usual"


def update_too_large(history: History) -> str | None:
    """A layer is changed by more than half of its size."""
    found = ratios(history.last.seen)
    worst = max(found, key=found.get, default=None)
    if worst is None or not found[worst] > LARGE_UPDATE:
        return None
    return f"a step changes {worst} by {found[worst]:.2g} of its size; 1e-3 is usual"


def padding(history: History) -> str | None:
    """Over half of the tokens are padding, on average over the looks."""
    share = mean(one.padding for one in history.watched)
    return f"{share:.0%} of the tokens are padding: pack the rows" if share > PADDED else None


def class_imbalance(history: History) -> str | None:
    """One label has over 90 % of the samples, on average over the looks."""
    shares = [one.label for one in history.watched if one.label is not None]
    if not shares or mean(shares) <= ONE_LABEL:
        return None
    return f"{mean(shares):.0%} of the samples have one label: saying it always scores as much"
