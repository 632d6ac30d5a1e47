"""The rules: from what was observed so far to words, or to nothing.

    for rule in RULES:
        words = rule.check(history)

What they check is in steps.py and losses.py, where they draw their lines in limits.py. Where
SageMaker Debugger had a rule of the kind, its name is there for those who come from it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from helpers.commands import markdown
from helpers.watch.history import History
from helpers.watch.losses import loss_not_falling, overfitting, poor_initialisation
from helpers.watch.steps import (
    class_imbalance,
    dead_activation,
    exploding_gradient,
    learning_rate_zero,
    no_gradient,
    not_finite,
    padding,
    saturated_activation,
    update_too_large,
    update_too_small,
    vanishing_gradient,
    weights_unchanged,
    zero_weights,
)

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
    head = ("finding", "told when", "SageMaker Debugger's rule", "source")
    rows = ((f"`{rule.kind}`", rule.check.__doc__, rule.debugger, rule.source) for rule in RULES)
    return markdown(head, rows)
