"""How the answers about several nodes, and about losing one, are judged."""

import math
from collections.abc import Iterator
from typing import Any

from helpers.lab.exercises.judges import Expected, Result, judge_function, judge_numbers, number_of

PARAMETER_BYTES, LINK_BYTES_PER_S, NODES, GPUS = 4e9, 12.5e9, 2, 8
SAVE_S, NODE_FAILS_S, JOB_NODES = 60.0, 30 * 86_400.0, 64


def over_the_link(answer: Any) -> Result:
    """8a: {fsdp_s, hsdp_s}: seconds of a step's messages between two nodes.

    Source: Rajbhandari et al. 2020, section 7: a gather or a reduce-scatter of N bytes over n ranks
    passes N (n - 1) / n over each link of its ring.
    """
    ranks = NODES * GPUS
    fsdp = 3 * PARAMETER_BYTES * (ranks - 1) / ranks
    hsdp = 2 * PARAMETER_BYTES * (NODES - 1) / NODES
    expected = {
        "fsdp_s": Expected(fsdp / LINK_BYTES_PER_S),
        "hsdp_s": Expected(hsdp / LINK_BYTES_PER_S),
    }
    praise = "HSDP keeps the gathers inside a node, and only the sums of its shards cross."
    return judge_numbers("8a over the link", answer, expected, praise)


def steps_lost(answer: Any) -> Result:
    """8b: lost_steps(done, every): steps that are taken again."""
    praise = "On average half an interval: what a checkpoint costs has to be held against that."
    return judge_function(answer, _deaths(), _look, praise)


def _deaths() -> Iterator[tuple[int, int]]:
    yield 13, 5
    yield 10, 5  # the tenth step's checkpoint is whole
    yield 3, 5  # there is none yet
    yield 999, 100
    yield 7, 1


def _look(found: Any, done: int, every: int) -> str:
    number, right = number_of(found), done % every
    where = f"{done} steps done, a checkpoint after every {every}: "
    if number is None:
        return "A number of steps is wanted."
    if number == right:
        return ""
    if number == done - right:
        return f"{where}that is the step it goes on from."
    if number == every - right:
        return f"{where}that is how many were missing to the next checkpoint."
    return f"{where}not right."


def best_interval(answer: Any) -> Result:
    """8c: {mtbf_s, interval_s}, by Young 1974, A first order approximation to the optimum
    checkpoint interval: sqrt(2 x time of a checkpoint x mean time between failures)."""
    mtbf_s = NODE_FAILS_S / JOB_NODES
    expected = {
        "mtbf_s": Expected(mtbf_s),
        "interval_s": Expected(math.sqrt(2 * SAVE_S * mtbf_s)),
    }
    praise = "More nodes fail more often: the job's time, not the node's, sets the interval."
    return judge_numbers("8c best interval", answer, expected, praise)
