"""Wrong answers to every exercise, each with words of what must be said of it.

An answer is made from a right one by what learners do: rounding down, counting one too many, a unit
or a machine mixed up, code that is right for the first case alone.
"""

import ast
import inspect
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from helpers.lab.exercises.solutions import SOLUTIONS
from helpers.lab.exercises.topics.qlora import LEVELS

GIB = 1e9 / 2**30


def answer_of(name: str) -> Any:
    """What the solution of an exercise hands to `check`."""
    solution = SOLUTIONS[name]
    return solution if inspect.signature(solution).parameters else solution()


right = cache(answer_of)


@dataclass(frozen=True)
class Change:
    """A right answer, a dictionary, with one number multiplied or some put in place of its own.
    It is made when a test asks for it: some right answers take seconds."""

    name: str
    put: dict[str, Any]
    factors: dict[str, float]

    def made(self) -> dict[str, Any]:
        answer = right(self.name)
        return answer | self.put | {key: by * answer[key] for key, by in self.factors.items()}


def times(name: str, *factors: tuple[str, float, str]) -> list[tuple[Change, str]]:
    return [(Change(name, {}, {key: by}), words) for key, by, words in factors]


def put(name: str, *changes: tuple[dict[str, Any], str]) -> list[tuple[Change, str]]:
    return [(Change(name, change, {}), words) for change, words in changes]


def first_case_only(name: str) -> Callable[..., Any]:
    """Right for the sizes that it sees first, and the same answer ever after."""
    kept: list[Any] = []

    def answer(*case: Any) -> Any:
        kept.append(right(name)(*case))
        return kept[0]

    return answer


def divided(rounded: Callable[[float], float], gain: bool = True) -> Callable[..., Any]:
    def break_even(compile_s: float, native_s: float, compiled_s: float) -> float:
        if gain and native_s <= compiled_s:
            return math.inf
        return rounded(compile_s / (native_s - compiled_s))

    return break_even


def declared_names(source: str) -> set[str]:
    return set(re.findall(r"'--(\w+)'", source))


def never_in_text(source: str) -> set[str]:
    names = re.findall(r"'--([\w-]+)'", source)
    return {name for n in names if f".{(name := n.replace('-', '_'))}" not in source}


def never_an_attribute(source: str) -> set[str]:
    """Assigning counts as reading."""
    read = {n.attr for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}
    return {name.replace("-", "_") for name in re.findall(r"'--([\w-]+)'", source)} - read


def dashes_left(source: str) -> set[str]:
    read = {n.attr for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}
    return set(re.findall(r"'--([\w-]+)'", source)) - read


def first_name_alone(source: str) -> set[str]:
    """-s, --steps is called s."""
    firsts = re.findall(r"add_argument\('-+([\w-]+)'", source)
    nodes = ast.walk(ast.parse(source))
    loads = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    return {name.replace("-", "_") for name in firsts} - {node.attr for node in loads}


def naive_loss(shards, targets):
    return torch.nn.functional.cross_entropy(shards[0], targets.clamp(max=shards[0].shape[1] - 1))


def summed_loss(shards, targets):
    return right("1b vocabulary loss")(shards, targets) * len(targets)


def mean_of_shards(shards, targets):
    width = shards[0].shape[1]
    losses = [
        torch.nn.functional.cross_entropy(shard, (targets - rank * width).clamp(0, width - 1))
        for rank, shard in enumerate(shards)
    ]
    return torch.stack(losses).mean()


def one_ahead(rank, ranks, microbatches):
    """1F1B with one forward too many at the start: the order of the rank before."""
    return right("2b 1f1b")(rank - 1, ranks, microbatches)


def none_ahead(rank, ranks, microbatches):
    return [f"{kind}{i}" for i in range(microbatches) for kind in "FB"]


def last_forgotten(rank, ranks, microbatches):
    return right("2b 1f1b")(rank, ranks, microbatches)[:-1]


def four_ranks(rank, ranks, microbatches):
    return right("2b 1f1b")(rank, 4, microbatches)


def weights_at_once(rank, ranks, microbatches):
    """W right behind its I: 1F1B again."""
    order = right("2b 1f1b")(rank, ranks, microbatches)
    halves = ([f"I{a[1:]}", f"W{a[1:]}"] if a[0] == "B" else [a] for a in order)
    return [action for pair in halves for action in pair]


def weights_at_the_end(rank, ranks, microbatches):
    order = right("2c zero bubble")(rank, ranks, microbatches)
    return [a for a in order if a[0] != "W"] + [f"W{i}" for i in range(microbatches)]


def swapped(rows, batch, epochs, drop_last):
    return right("3b trained")(rows, batch, epochs, drop_last)[::-1]


def one_epoch(rows, batch, epochs, drop_last):
    return right("3b trained")(rows, batch, 1, drop_last)


def all_rows(rows, batch, epochs, drop_last):
    return rows * epochs, right("3b trained")(rows, batch, epochs, drop_last)[1]


def whole_batches(rows, batch, epochs, drop_last):
    return right("3b trained")(rows, batch, epochs, True)


def all_batches(rows, batch, epochs, drop_last):
    return right("3b trained")(rows, batch, epochs, False)


def one_long_epoch(rows, batch, epochs, drop_last):
    return right("3b trained")(rows * epochs, batch, 1, drop_last)


def steps_rounded_down(rows, batch, epochs, drop_last):
    samples, _ = right("3b trained")(rows, batch, epochs, drop_last)
    return samples, epochs * (rows // batch)


def one_magnitude(weights):
    largest = weights.abs().max()
    levels = torch.tensor(LEVELS)
    return levels[((weights / largest)[:, None] - levels).abs().argmin(1)] * largest


def even_levels(weights):
    blocks = weights.view(-1, 64)
    largest = blocks.abs().amax(1, keepdim=True)
    return ((blocks / largest * 7).round() / 7 * largest).flatten()


def level_below(weights):
    levels = torch.tensor(LEVELS)
    blocks = weights.view(-1, 64)
    largest = blocks.abs().amax(1, keepdim=True)
    places = torch.searchsorted(levels, (blocks / largest).contiguous(), right=True) - 1
    return (levels[places] * largest).flatten()


def chunked(change: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights, gradients, lr):
        rows = -(-len(weights) // len(gradients))
        whole = change(weights, gradients, lr)
        return [whole[rank * rows : (rank + 1) * rows] for rank in range(len(gradients))]

    return step


def even_chunks(weights, gradients, lr):
    return list((weights - lr * sum(gradients)).chunk(len(gradients)))


def rows_rounded_down(weights, gradients, lr):
    rows = len(weights) // len(gradients)
    whole = weights - lr * sum(gradients)
    return [whole[rank * rows : (rank + 1) * rows] for rank in range(len(gradients))]


def whole_on_each(weights, gradients, lr):
    return [weights - lr * sum(gradients) for _ in gradients]


def all_messages(messages, computing):
    return sum(end - start for start, end in messages)


def one_by_one(messages, computing):
    """Two messages at a time are counted twice."""
    return sum(right("7b exposed")([one], computing) for one in messages)


def longest_alone(messages, computing):
    """Their whole spans, as if there were no gaps."""
    span = [(min(s for s, _ in messages), max(e for _, e in messages))]
    return right("7b exposed")(span, computing)


def difference(messages, computing):
    return all_messages(messages, []) - all_messages(computing, [])


def whole_interval(done, every):
    return every


def goes_on_from(done, every):
    return done - done % every


def to_the_next(done, every):
    return every - done % every


def one_too_many(done, every):
    return done % every + 1


TRAFFIC = right("1a traffic")
WRONG: dict[str, list[tuple[Any, str]]] = {
    "1a traffic": [
        (TRAFFIC / 2, "Half of it"),
        (TRAFFIC * 2, "two sums per layer"),
        (TRAFFIC * 4, "Four times"),
        (TRAFFIC / 8, "not divided by tp"),
        (TRAFFIC / 28, "one layer's"),
        (TRAFFIC * 7 / 4, "on the wire"),
        (TRAFFIC / 1e9, "answer in bytes"),
        (TRAFFIC / 2**30, "GiB"),
    ],
    "1b vocabulary loss": [
        (naive_loss, "not that of the whole vocabulary"),
        (summed_loss, "not that of the whole vocabulary"),
        (mean_of_shards, "not that of the whole vocabulary"),
        (first_case_only("1b vocabulary loss"), ""),
    ],
    "1c audit": [
        *times(
            "1c audit",
            ("mfu", 8, "all 8 devices"),
            ("mfu", 100, "per cent"),
            ("mfu", 4 / 3, "hardware utilisation"),
            ("mfu", 0.5, "sparsity"),
            ("usd", 8, "all its GPUs included"),
            ("usd", 3600, "by the hour"),
            ("usd", 63 / 1836, "from start to upload"),
            ("training_share", 100, "per cent"),
            ("training_share", 62 / 1965 / (63 / 1836), "its start was not billed"),
            ("training_share", 1.1, "training_share: not right"),
        ),
        *put(
            "1c audit",
            ({"mfu": 2.327}, "printed rate"),
            ({"usd": "much"}, "usd is no finite number"),
            ({"usd": None}, "no 'usd' in the answer yet"),
        ),
    ],
    "2a plan": [
        ({"schedule": "gpipe", "microbatches": 16}, "a rank keeps 64 samples: too much"),
        ({"schedule": "1f1b", "microbatches": 4}, "too slow, and too much"),
        ({"schedule": "1f1b", "microbatches": 64}, "keeps 4 samples: too slow"),
        ({"schedule": "1f1b", "microbatches": 65}, "at most 64"),
        ({"schedule": "1f1b", "microbatches": 10**9}, "at most 64"),  # at once
        ({"schedule": "1f1b", "microbatches": 0}, "of at least 1, not 0"),
        ({"schedule": "1f1b", "microbatches": 2.5}, "not a whole number"),
        ({"schedule": "fastest", "microbatches": 8}, "no schedule is called 'fastest'"),
        ({"schedule": "1f1b"}, "no 'microbatches' in the answer yet"),
        ("1f1b", "A dictionary is wanted, not a str"),
        ({"schedule": "1f1b", "microbatches": 17}, "no 17 equal micro-batches"),
        ({"schedule": "naive", "microbatches": 1}, "too slow"),
    ],
    "2b 1f1b": [
        (one_ahead, "will do"),
        (none_ahead, "is possible"),
        (last_forgotten, "needs one F and either one B"),
        (four_ranks, ""),
        (weights_at_once, "1f1b has no I: a backward is whole there"),
        (first_case_only("2b 1f1b"), ""),
    ],
    "2c zero bubble": [
        (weights_at_once, "is possible"),
        (weights_at_the_end, "is possible"),
        (right("2b 1f1b"), "is possible"),
        (first_case_only("2c zero bubble"), ""),
    ],
    "3a claims": times(
        "3a claims",
        ("rate", 0.01, "answer in percent"),
        ("rate", 153.09 / 53.09, "how many percent more"),
        ("time", 0.01, "answer in percent"),
        ("time", 53.09 / 34.68, "more seconds the native run"),
        ("time", 65.32 / 34.68, "time that is left"),
        ("counted", 0.01, "answer in percent"),
        ("counted", 53.09 / 2.06, "what was logged"),
    ),
    "3b trained": [
        (swapped, "samples come first"),
        (one_epoch, "that is one epoch"),
        (all_rows, "not trained on"),
        (whole_batches, "the other way"),
        (all_batches, "the other way"),
        (one_long_epoch, "the next epoch"),
        (steps_rounded_down, "a step too"),
        (first_case_only("3b trained"), "Not right for"),
    ],
    "3c break-even": [
        (divided(math.floor), "round up"),
        (divided(int), "round up"),
        (divided(round), "round up"),
        (divided(lambda quotient: quotient // 1), "round up"),
        (divided(lambda quotient: math.floor(quotient) + 1), "one step fewer"),
        (divided(lambda quotient: math.ceil(quotient) + 1), "one step fewer"),
        (divided(lambda quotient: quotient), "whole steps"),
        (divided(math.ceil, gain=False), "It raises ZeroDivisionError"),
        (lambda c, n, k: math.ceil(c / k), "how much is gained"),
        (lambda c, n, k: math.ceil(c / abs(n - k)) if n != k else math.inf, "never catches up"),
        (lambda c, n, k: math.inf, "it does catch up"),
        (first_case_only("3c break-even"), "Not right for"),
    ],
    "4a trainable": [
        (32 * 16 * (4544 + 3 * 4544 + 12 * 4544), "one head of keys"),
        (32 * 16 * (4544 + 4672 + 4544 + 12 * 4544), "one A, not two"),
        (32 * 16 * (4544 + 4672), "four layers"),
        ("many", "A number is wanted"),
        (right("4a trainable") // 32, "one layer's"),
        (right("4a trainable") // 16, "rank 1"),
        (right("4a trainable") + 1, ""),
        (right("4a trainable") * 2, ""),
        (right("4a trainable") / 1e6, ""),
    ],
    "4b nf4": [
        (one_magnitude, "each block has a magnitude of its own"),
        (even_levels, "not the nearest ones"),
        (level_below, "not the nearest ones"),
        (first_case_only("4b nf4"), "a tensor of shape"),
    ],
    "4c largest rank": put(
        "4c largest rank",
        ({"lora": 119}, "lora: not right"),
        ({"lora": 121}, "lora: not right"),
        ({"lora": 184}, "GiB"),
        ({"lora": 482}, "two moments"),
        ({"qlora": 664}, "qlora: not right"),
        ({"qlora": 666}, "qlora: not right"),
        ({"qlora": 729}, "GiB"),
        ({"qlora": 2660}, "two moments"),
        ({"lora": None}, "no 'lora'"),
    ),
    "5a fewest GPUs": [
        *put(
            "5a fewest GPUs",
            ({"ZeRO-2": 7}, "round up"),
            ({"ZeRO-2": 9}, "One fewer"),
            ({"ZeRO-2": 5}, "ZeRO-3's"),
            ({"ZeRO-3": 4}, "ZeRO-3: On 4 it does not fit"),
            ({"ZeRO-3": 6}, "One fewer"),
            ({"ZeRO-1": 64}, "Not right: ZeRO-1."),
            ({"ZeRO-2": None}, "no 'ZeRO-2' in the answer yet"),
        ),
        (5, "A dictionary is wanted"),
    ],
    "5b sharded step": [
        (whole_on_each, "a rank holds 12 weights; 3 are enough"),
        (chunked(lambda w, g, lr: w - lr * g[0]), "the sum of all gradients"),
        (chunked(lambda w, g, lr: w - lr * sum(g) / len(g)), "the sum of all gradients"),
        (chunked(lambda w, g, lr: w + lr * sum(g)), "the sum of all gradients"),
        (even_chunks, "one chunk a rank is wanted"),
        (lambda weights, gradients, lr: 1 / 0, "raises ZeroDivisionError"),
        (3, "A function is wanted"),
        (rows_rounded_down, "weights together"),
        (first_case_only("5b sharded step"), ""),
    ],
    "5c as on the slide": times(
        "5c as on the slide",
        ("steps", 4, "the epochs alone"),
        ("steps", 3, "the batch alone"),
        ("steps", 16, "not more"),
        ("steps", 144, "other way round"),
        ("sent_gb", 2 / 3, "DDP's"),
        ("sent_gb", 0.5, "2 bytes"),
        ("sent_gb", 16 / 15, "own part is not sent"),
        ("sent_gb", GIB, "GiB"),
        ("sent_gb", 1e9, "bytes"),
        ("state_gb", 1.25, "no second copy"),
        ("state_gb", 16, "whole state"),
        ("state_gb", 2, "one machine"),
        ("state_gb", GIB, "GiB"),
        ("state_gb", 1e9, "bytes"),
    ),
    "6a bill": times(
        "6a bill",
        ("days", 8, "8 GPUs"),
        ("days", 0.5, "sparsity"),
        ("days", 0.4, "40 %"),
        ("days", 1 / 3, "forward alone"),
        ("days", 24, "hours"),
        ("days", 86400, "seconds"),
        ("days", 1.5, "days: not right"),
        ("usd", 8, "all its GPUs included"),
        ("usd", 1 / 64, "one instance"),
        ("usd", 24, "by the hour"),
    ),
    "6b layout": [
        ({"dp_shard": 16}, "it does not fit"),
        ({"tp": 16, "activation": "full"}, "too slow"),
        ({"dp_shard": 8, "activation": "full"}, ""),
        ({"dp_replicate": 16}, "it does not fit"),
        ({"dp": 16}, ""),
    ],
    "6c most machines": [
        *times(
            "6c most machines",
            ("days", 24, "in hours"),
            ("days", 86400, "in seconds"),
            ("usd", 1e-6, "in millions"),
            ("days", 1.1, "days is not what"),
        ),
        *put("6c most machines", ({"nodes": 3}, "nodes is one of"), ({"nodes": 1}, "is not what")),
    ],
    "7a diagnosis": put(
        "7a diagnosis",
        ({"a": "communication"}, "only there?"),
        ({"b": "straggler"}, "work longer than the other"),
        ({"c": "launch"}, "how many tokens"),
        ({"d": "communication"}, "only there?"),
        ({"e": "memory"}, "how near is the peak"),
        ({"e": "slow"}, "a kind is one of"),
    ),
    "7b exposed": [
        (all_messages, "some of it is hidden"),
        (one_by_one, "count those seconds once"),
        (longest_alone, ""),
        (difference, ""),
        (first_case_only("7b exposed"), ""),
    ],
    "7c most gained": times(
        "7c most gained",
        ("times", 0.91, "not 1.3 times"),
        ("times", 0.49, "what is left of a step"),
        ("times", 0.21, "the share that waits"),
        ("times", 100, "not per cent"),
        ("usd", 1 / 16, "one machine"),
        ("usd", 10 / 3, "the whole run"),
        ("usd", 3600, "by the hour"),
        ("usd", 8, "all its GPUs included"),
    ),
    "8a over the link": times(
        "8a over the link",
        ("fsdp_s", 2 / 3, "a second gather"),
        ("fsdp_s", 1 / 8, "12.5 gigabytes"),
        ("fsdp_s", 16 / 15, "its own part already"),
        ("hsdp_s", 1 / 8, "eight pairs share it"),
        ("hsdp_s", 2, "n is 2"),
        ("hsdp_s", 0.9 / 0.32, "that is ZeRO-3's"),
    ),
    "8b steps lost": [
        (whole_interval, "not right"),
        (goes_on_from, "the step it goes on from"),
        (to_the_next, "missing to the next"),
        (one_too_many, "not right"),
        (first_case_only("8b steps lost"), "not right"),
    ],
    "8c best interval": times(
        "8c best interval",
        ("mtbf_s", 64, "one node's"),
        ("mtbf_s", 1 / 3600, "in seconds"),
        ("interval_s", 8, "take the job's"),
        ("interval_s", 0.5**0.5, "the 2 is missing"),
        ("interval_s", 2204.54, "not the root yet"),
        ("interval_s", 1 / 60, "in seconds"),
    ),
    "10a words for flags": [
        (bool, "'False' is read as True"),
        (lambda word: word == "True", "'true' is read as False"),
        (lambda word: word.lower() == "true", "'1' is read as False"),
        (lambda word: word.lower() in ("true", "1"), "'maybe' is neither"),
        (lambda word: word.lower() not in ("false", "0"), "'maybe' is neither"),
        (ast.literal_eval, "'true' is refused"),
        (lambda word: bool(json.loads(word.lower())), "is neither"),
        (str.lower, "'True' is read as 'true'"),
        (lambda word: {"true": 1, "1": 1, "false": 0, "0": 0}[word.lower()], "read as 1"),
        (first_case_only("10a words for flags"), "'False' is read as True"),
    ],
    "10b whose batch": times(
        "10b whose batch",
        ("data_ranks", 4, "counts the tensor ranks"),
        ("data_ranks", 2, "divide by both"),
        ("data_ranks", 8, "all processes"),
        ("data_ranks", 3, "not right"),
        ("prescaled", 4, "the other case"),
        ("prescaled", 0.5, "one data rank's"),
        ("not_prescaled", 0.25, "the other case"),
        ("not_prescaled", 2, "for every process"),
    ),
    "10c never read": [
        (lambda source: set(), "'steps' is missing"),
        (declared_names, "'lr' is no argument"),
        (never_in_text, "'lr' is missing"),
        (never_an_attribute, "'lr' is missing"),
        (dashes_left, "'grad-clip' is no argument"),
        (first_name_alone, "is no argument"),
        (lambda source: "steps", "A set of names is wanted"),
        (first_case_only("10c never read"), "'steps' is no argument"),
    ],
}
