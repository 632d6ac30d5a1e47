"""When to look at a step, and what is new: a rule is told when it begins to hold."""

import math
from dataclasses import asdict, dataclass

from torch import Tensor

from helpers.engine.models.objectives import IGNORED
from helpers.engine.trainer import StepResult
from helpers.watch.history import History, Watched
from helpers.watch.limits import AGAIN
from helpers.watch.observe import Observer
from helpers.watch.rules import RULES

EVERY = 10  # steps, by default


@dataclass(frozen=True)
class WatchFinding:
    """What a rule says, and when. `amount` is the step, `ranks` all: they see the same."""

    kind: str
    step: int
    words: str
    source: str

    def row(self) -> dict[str, object]:
        """As findings.json holds it, beside those of a profile."""
        return {**asdict(self), "amount": self.step, "ranks": []}


class Watch:
    """The rules over a run.

    Args:
        every: steps from one look to the next; the first is always looked at.
        answers: classes or tokens that a label is one of, where the weights were random at the
            start, else None.
    """

    def __init__(self, every: int = EVERY, answers: int | None = None) -> None:
        self.every = every
        self.history = History(first_loss=math.log(answers) if answers else None)
        self.findings: list[WatchFinding] = []
        self._quiet: dict[str, int] = {}  # kinds that were told or explained: for how many looks

    def due(self, step: int) -> bool:
        """Is this step, counted from 1, to be looked at?"""
        return step == 1 or step % self.every == 0

    def judge(
        self,
        result: StepResult,
        observer: Observer | None = None,
        padding: float = 0.0,
        label: float | None = None,
    ) -> list[WatchFinding]:
        """What is new after a step. Every rank must call it; all get the same.

        Args:
            observer: that looked at the step; None for a step that was not due.
            padding, label: of the batch, see `Watched`.
        """
        # a step that was skipped, or has nothing to learn, is no part of a mean
        if math.isfinite(result.loss) and (result.loss or result.grad_norm):
            self.history.losses[result.step] = result.loss
        if observer is None:
            return []
        facts = (result.step, result.loss, result.grad_norm, result.lr, observer.gather())
        self.history.watched.append(Watched(*facts, padding, label, result.scale))
        said = {rule: words for rule in RULES if (words := rule.check(self.history))}
        follows = {kind for rule in said for kind in rule.explains}
        new = [
            WatchFinding(rule.kind, result.step, words, rule.source)
            for rule, words in said.items()
            if rule.kind not in self._quiet.keys() | follows
        ]
        kept = {kind: looks - 1 for kind, looks in self._quiet.items() if looks > 1}
        self._quiet = kept | dict.fromkeys({rule.kind for rule in said} | follows, AGAIN)
        self.findings += new
        return new


def commonest_share(labels: Tensor) -> float | None:
    """The share of samples that have the commonest label, of [batch], or [batch, seq] with one
    label a row; None where rows have several."""
    labels = labels.view(len(labels), -1)
    counts = (labels != IGNORED).sum(1)
    if not bool((counts == 1).all()):
        return None
    chosen = labels[labels != IGNORED]
    return chosen.unique(return_counts=True)[1].max().item() / len(chosen)
