"""Rules of a job: which of --watch's rules and of --profile's findings take their place."""

from dataclasses import dataclass
from typing import Any

from helpers.smp.reading.catalogue import catalogue
from helpers.smp.reading.values import Made

WATCH = "--watch: "


@dataclass(frozen=True)
class MappedRule:
    """A rule of the service by its name, what takes its place, and kinds of --watch in it."""

    name: str
    words: str
    kinds: tuple[str, ...] = ()

    @property
    def profiles(self) -> bool:
        return "--profile" in self.words


def mapped_rules(rules: Any) -> list[MappedRule]:
    """What becomes of an estimator's rules."""
    found = []
    for rule in rules if isinstance(rules, (list, tuple)) else ():
        if not isinstance(rule, Made):
            continue
        configs = [one for one in (*rule.args, *rule.kwargs.values()) if isinstance(one, Made)]
        for config in configs:
            short = catalogue().short(config.dotted) or ""
            if short.startswith("rule_configs.") and (row := catalogue().find(short)):
                found.append(MappedRule(short.rpartition(".")[2], row.became, kinds_of(row.became)))
        if rule.dotted.endswith(".custom"):
            name = str(rule.kwargs.get("name", "a rule of your own"))
            row = catalogue().find("sagemaker.debugger.Rule.custom")
            found.append(MappedRule(name, row.became if row else ""))
    return found


def kinds_of(became: str) -> tuple[str, ...]:
    """The rules of --watch that a row of the table names."""
    if not became.startswith(WATCH):
        return ()
    words = became.removeprefix(WATCH).split(",")
    return tuple(word.strip() for word in words if "-" not in word and " " not in word.strip())


def save_interval(*values: Any) -> int | None:
    """The smallest save_interval that hooks and collections of a job give."""
    found: list[int] = []
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Made):
            waiting += [*value.args, *value.kwargs.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            for key, number in value.items():
                if str(key).endswith("save_interval") and str(number).isdecimal() and int(number):
                    found.append(int(number))
    return min(found, default=None)
