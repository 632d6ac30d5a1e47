"""How many parameters and tokens a number of FLOPs is best spent on.

best = compute_optimal(flops=1e23)
best.parameters, best.tokens, best.loss

A law that was fitted to some hundred runs on one data set: what it says of a loss holds for that
data and tokenizer; the ratio of tokens to parameters is what carries over. A model that will answer
many questions is trained on more tokens than this, and smaller.
"""

from dataclasses import dataclass

from helpers.engine.errors import UserError
from helpers.planner.hardware.lookup import check_amounts


@dataclass(frozen=True)
class Law:
    """loss = unavoidable + a / parameters^alpha + b / tokens^beta, in nats a token."""

    unavoidable: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Of a model of this size after so many tokens, each seen once.

        Raises:
            UserError: a number is not above 0.
        """
        check_amounts(parameters=parameters, tokens=tokens)
        return self.unavoidable + self.a / parameters**self.alpha + self.b / tokens**self.beta


# Besiroglu et al. 2024 (arXiv 2404.10102), table 1: the runs of Hoffmann et al., fitted again
BESIROGLU = Law(1.8172, 482.01, 2085.43, 0.3478, 0.3658)


@dataclass(frozen=True)
class Optimum:
    """Sizes of a model and of its data, and the loss that the law expects."""

    parameters: float
    tokens: float
    loss: float


def compute_optimal(flops: float, law: Law = BESIROGLU) -> Optimum:
    """The least loss for so many FLOPs, of which a parameter and a token take six.

    Raises:
        UserError: flops is not above 0, or the law is none.

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 4.
    """
    check_amounts(flops=flops)
    if not isinstance(law, Law):
        raise UserError(f"give a law, as BESIROGLU or Law(...), not {law!r:.40}")
    products, both = flops / 6, law.alpha + law.beta
    ratio = (law.alpha * law.a / (law.beta * law.b)) ** (1 / both)
    parameters = ratio * products ** (law.beta / both)
    tokens = products / parameters
    return Optimum(parameters, tokens, law.loss(parameters, tokens))
