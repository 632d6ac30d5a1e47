"""Metric definitions of a job: what each is called, and the expression that reads it in our log.

A job of the service scrapes its log by regular expressions. With --log-every N a run prints every
N-th step's line of metrics.jsonl as it stands there, and its evaluation at the end; so an
expression gives the same numbers as the file.
"""

import re
from dataclasses import dataclass
from typing import Any

from helpers.smp.reading.values import is_known, unknown_in

NUMBER = r"([-+]?[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?)"
# what a definition's name or expression speaks of -> the key of a line; the first that fits
SPEAKS_OF = (
    (r"learning.?rate|\blr\b", "lr"),
    (r"grad.?norm", "grad_norm"),
    (r"(eval|val|valid|validation|test)\w*[\s_:/-]*.{0,12}acc|^acc|accuracy", "eval_accuracy"),
    (r"(eval|val|valid|validation|test)\w*[\s_:/-]*.{0,12}loss", "eval_loss"),
    (r"\bloss|train.?loss|training loss", "loss"),
    (r"tokens?.{0,3}(/|per).{0,3}s", "tokens_per_s"),
    (r"samples?.{0,3}(/|per|_).{0,8}s|throughput|speed", "samples_per_s"),
    (r"\bstep|iteration|batch\b", "step"),
)
LONGEST = 500  # of an expression that is looked at
PLACEHOLDER = re.compile(r"[<>]+$")


@dataclass(frozen=True)
class Metric:
    """A definition: its name and expression, and the expression for our log, empty where `words`
    say why there is none."""

    name: str
    old: str
    regex: str
    words: str

    def definition(self) -> dict[str, str]:
        """As an estimator takes it."""
        return {"Name": self.name, "Regex": self.regex}


def expression(key: str) -> str:
    """The expression that reads a key in the lines of --log-every."""
    return rf'"{re.escape(key)}": {NUMBER}'


def metrics(definitions: Any) -> list[Metric]:
    """What becomes of an estimator's metric_definitions."""
    if not isinstance(definitions, (list, tuple)):
        return []
    return [_metric(one) for one in definitions if isinstance(one, dict)]


def _metric(definition: dict[Any, Any]) -> Metric:
    name, old = definition.get("Name"), definition.get("Regex")
    if not is_known(name) or not is_known(old):
        return Metric(str(name), str(old), "", f"{unknown_in(name, old)} is not in the file")
    name, old = str(name)[:LONGEST], str(old)[:LONGEST]
    if PLACEHOLDER.match(old):
        return Metric(name, old, "", "a placeholder that matches nothing")
    spoken = [re.sub(r"\\.|[(\[].*?[)\]][*+?]*", " ", old).lower(), name.lower()]
    for text in spoken:
        for pattern, key in SPEAKS_OF:
            if re.search(pattern, text):
                return Metric(name, old, expression(key), f"{key}, of --log-every")
    return Metric(name, old, "", "no number of a line is like it")
