"""The rules: from what was observed so far to words, or to nothing.

    for rule in RULES:
        words = rule.check(history)

A rule is told once, when it first holds. Thresholds stand beside their rules; where SageMaker
Debugger had a rule of the kind, its name is there for those who come from it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean, median

from helpers.watch.observe import Observation, Sums

EARLIER = 3  # watched steps that "the steps before" are at least
TREND = 20  # steps at either end over which losses are compared


@dataclass
class Watched:
    """One watched step: its line of metrics, what was observed, and its batch.

    padding: share of the batch that is padding.
    label: share of the samples that have the commonest label; None where there are no classes.
    scale: what the loss was multiplied by.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    seen: Observation
    padding: float = 0.0
    label: float | None = None
    scale: float = 1.0


@dataclass
class History:
    """Everything that the rules may look at.

    losses: by step, watched or not, in their order: from the one at which a run was resumed, and of
        those that have one: it is finite, and something in the batch has a label.
    held_out: (step, loss on the held-out data).
    first_loss: what random weights should start at, ln(vocabulary); None for trained ones.
    """

    watched: list[Watched] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    first_loss: float | None = None

    @property
    def last(self) -> Watched:
        return self.watched[-1]


Check = Callable[[History], str | None]


@dataclass(frozen=True)
class Rule:
    """kind: its name; debugger: SageMaker Debugger's name of such a rule; source: where from;
    explains: kinds that follow from it and are not told beside it."""

    kind: str
    check: Check
    source: str
    debugger: str = ""
    explains: tuple[str, ...] = ()


def not_finite(history: History) -> str | None:
    """The loss is infinite or no number, or the gradient and no smaller scale of fp16 is left."""
    now = history.last
    if math.isfinite(now.loss) and (math.isfinite(now.grad_norm) or now.scale > 1):
        return None
    return "the loss or the gradient is not finite: take a smaller learning rate or bf16"


def learning_rate_zero(history: History) -> str | None:
    """The learning rate is 0."""
    return "the learning rate is 0: nothing is learned" if history.last.lr == 0 else None


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
    if now.grad_norm < 1e-7:
        return f"the gradient's norm is {now.grad_norm:.1e}"
    least = min(found, key=found.get, default=None)
    if least is None or not 0 < found[least] < 1e-5 * max(found.values()):
        return None
    return f"layer {least}'s gradient is {found[least] / max(found.values()):.0e} of the largest"


def exploding_gradient(history: History) -> str | None:
    """The gradient's norm is over 100 times the median of the looks before, three at least."""
    now, before = history.last.grad_norm, [one.grad_norm for one in history.watched[:-1]]
    before = list(filter(math.isfinite, before))  # fp16 skips the others until its scale fits
    if not math.isfinite(now) or len(before) < EARLIER or not now > 100 * median(before) > 0:
        return None
    return f"the gradient's norm is {now:.3g}, and was {median(before):.3g} before"


def dead_activation(history: History) -> str | None:
    """Over 99 % of a layer's activations are below 1e-6 in size."""
    for layer, one in sorted(history.last.seen.activations.items()):
        if one.zero > 0.99 * one.count:
            return f"{one.zero / one.count:.1%} of layer {layer}'s activations are zero"
    return None


def saturated_activation(history: History) -> str | None:
    """Over half of the outputs of a tanh or a sigmoid are at its ends, beyond 97 % of its range."""
    for layer, one in sorted(history.last.seen.activations.items()):
        if one.ended > 0.5 * one.count:
            share = f"{one.ended / one.count:.0%} of layer {layer}'s activations"
            return f"{share} are at the ends of their function, where its slope is next to 0"
    return None


def weights_unchanged(history: History) -> str | None:
    """Weights that have a gradient are the same after the update."""
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
    """The median layer is changed by less than 1e-6 of its size."""
    found = [one for one in ratios(history.last.seen).values() if one]
    if not found or median(found) >= 1e-6:
        return None
    return f"a step changes the weights by {median(found):.0e} of their size; 1e-3 is usual"


def update_too_large(history: History) -> str | None:
    """A layer is changed by more than half of its size."""
    found = ratios(history.last.seen)
    worst = max(found, key=found.get, default=None)
    if worst is None or not found[worst] > 0.5:
        return None
    return f"a step changes {worst} by {found[worst]:.2g} of its size; 1e-3 is usual"


def loss_not_falling(history: History) -> str | None:
    """After 60 steps, the mean loss of the last 20 is not 0.5 % below that of the first 20."""
    losses = list(history.losses.values())
    if len(losses) < 3 * TREND or mean(losses[-TREND:]) < 0.995 * mean(losses[:TREND]):
        return None
    first, last = mean(losses[:TREND]), mean(losses[-TREND:])
    return f"the loss was {first:.4g} at first and is {last:.4g} after {len(losses)} steps"


def overfitting(history: History) -> str | None:
    """The held-out loss is 5 % above its least, and the training loss has fallen since."""
    held_out = [one for one in history.held_out if math.isfinite(one[1])]
    if len(held_out) < EARLIER:
        return None
    (_, now), (best_step, best) = held_out[-1], min(held_out, key=lambda one: one[1])
    begin = best_step - TREND // 2
    trained = [loss for step, loss in history.losses.items() if step > begin][:TREND]
    lately = list(history.losses.values())[-TREND // 2 :]
    if not now > 1.05 * best or not trained or mean(lately) >= mean(trained):
        return None
    return f"the held-out loss is {now:.4g} and was {best:.4g} at step {best_step}: stop there"


def poor_initialisation(history: History) -> str | None:
    """The first loss of random weights is over 1.5 times ln(vocabulary)."""
    right, first = history.first_loss, next(iter(history.losses.values()), None)
    if right is None or first is None or not first > 1.5 * right:
        return None
    return f"the first loss is {first:.3g}; of random weights it is near ln(vocabulary) {right:.3g}"


def padding(history: History) -> str | None:
    """Over half of the tokens are padding, on average over the looks."""
    share = mean(one.padding for one in history.watched)
    return f"{share:.0%} of the tokens are padding: pack the rows" if share > 0.5 else None


def class_imbalance(history: History) -> str | None:
    """One label has over 90 % of the samples, on average over the looks."""
    shares = [one.label for one in history.watched if one.label is not None]
    if not shares or mean(shares) <= 0.9:
        return None
    return f"{mean(shares):.0%} of the samples have one label: saying it always scores as much"


RULES = (
    Rule(
        "not_finite",
        not_finite,
        "Micikevicius et al. 2018, Mixed Precision Training, section 3.2",
        "ExplodingTensor",
        ("vanishing_gradient", "exploding_gradient", "no_gradient", "weights_unchanged"),
    ),
    Rule(
        "learning_rate_zero",
        learning_rate_zero,
        "a matter of arithmetic",
        "",
        ("weights_unchanged", "update_too_small", "loss_not_falling"),
    ),
    Rule(
        "dead_activation",
        dead_activation,
        "Lu et al. 2019, Dying ReLU and Initialization",
        "DeadRelu",
        ("no_gradient", "vanishing_gradient", "weights_unchanged"),
    ),
    Rule(
        "saturated_activation",
        saturated_activation,
        "Glorot and Bengio 2010, section 3",
        "SaturatedActivation, TanhSaturation",
        ("no_gradient", "vanishing_gradient"),
    ),
    Rule(
        "zero_weights",
        zero_weights,
        "Goodfellow et al. 2016, Deep Learning, section 8.4",
        "AllZero",
        ("dead_activation", "no_gradient", "vanishing_gradient", "update_too_large"),
    ),
    Rule(
        "no_gradient",
        no_gradient,
        "torch, DistributedDataParallel, find_unused_parameters",
        "",
        ("vanishing_gradient", "weights_unchanged"),
    ),
    Rule(
        "vanishing_gradient",
        vanishing_gradient,
        "Hochreiter 1991; Pascanu et al. 2013, section 2",
        "VanishingGradient",
    ),
    Rule(
        "exploding_gradient",
        exploding_gradient,
        "Pascanu et al. 2013, section 2",
        "ExplodingTensor",
    ),
    Rule("weights_unchanged", weights_unchanged, "a matter of arithmetic", "UnchangedTensor"),
    Rule(
        "update_too_small",
        update_too_small,
        "Karpathy, CS231n, Neural Networks part 3, ratio of weights to updates",
        "WeightUpdateRatio",
        ("weights_unchanged", "loss_not_falling"),
    ),
    Rule(
        "update_too_large",
        update_too_large,
        "Karpathy, CS231n, Neural Networks part 3, ratio of weights to updates",
        "WeightUpdateRatio",
        ("loss_not_falling", "exploding_gradient"),
    ),
    Rule(
        "poor_initialisation",
        poor_initialisation,
        "Karpathy 2019, A Recipe for Training Neural Networks, verify loss at init",
        "PoorWeightInitialization",
        ("update_too_large",),
    ),
    Rule("overfitting", overfitting, "Prechelt 1998, Early Stopping, criterion GL", "Overfit"),
    Rule("loss_not_falling", loss_not_falling, "a matter of arithmetic", "LossNotDecreasing"),
    Rule(
        "padding",
        padding,
        "Krell et al. 2021, Efficient Sequence Packing",
        "NLPSequenceRatio",
    ),
    Rule(
        "class_imbalance",
        class_imbalance,
        "He and Garcia 2009, Learning from Imbalanced Data",
        "ClassImbalance",
    ),
)


def table() -> str:
    """The rules as docs/profiling.md shows them."""
    head = "| finding | told when | SageMaker Debugger's rule | source |\n|---|---|---|---|"
    rows = (
        f"| `{rule.kind}` | {rule.check.__doc__} | {rule.debugger} | {rule.source} |"
        for rule in RULES
    )
    return "\n".join([head, *rows])
