"""How the answers about plans on paper are judged: by the planner."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.lab.exercises.judges import (
    NOT_DONE,
    Expected,
    Result,
    incomplete,
    judge_numbers,
    kind_of,
    mistake,
    near,
    number_of,
    plain,
)
from helpers.planner.cost import money, parameters
from helpers.planner.hardware.catalog import DAY_S, GIB
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.lookup import find_gpu, price
from helpers.planner.search.estimate import estimate
from helpers.planner.search.planned import Choice
from helpers.planner.search.search import search_plans
from helpers.planner.shape.families import model_shape

NODES, GPUS, UTILISATION, TOKENS = 64, 8, 0.4, 300e9  # 6a
MOST_S, BATCH, SEQ_LEN = 6.6, 64, 2048  # 6b
SIZES, MOST_MORE = tuple(2**i for i in range(9)), 1.1  # 6c


def expected_bill() -> dict[str, float]:
    """6a: days and dollars of 175B on 64 p5.48xlarge."""
    count = parameters(model_shape(load_config("gpt3-175b")))
    flops_per_s = NODES * GPUS * UTILISATION * find_gpu("H100").peak_flops["bf16"]
    takes_s = 6 * count * TOKENS / flops_per_s
    usd = money(takes_s, price("p5.48xlarge").usd_per_hour, NODES)
    return {"days": takes_s / DAY_S, "usd": usd}


def bill(answer: Any) -> Result:
    """6a: {days, usd}."""
    right = expected_bill()
    expected = {name: Expected(number, tolerance=0.03) for name, number in right.items()}
    praise = f"{right['days']:.1f} days and {right['usd'] / 1e6:.2f} million."
    return judge_numbers("6a bill", answer, expected, praise)


def try_layout(**fields: Any) -> Choice:
    """6b's model, machines and batch under a plan with these fields, in bf16.

    Raises:
        UserError: the fields are none of a plan's, or the plan is none for this model or machine.
    """
    try:
        plan = ParallelPlan(**{"precision": "bf16", **fields})
    except TypeError as error:
        raise UserError(str(error).removeprefix("ParallelPlan.__init__() ")) from None
    cluster = make_cluster("p4d.24xlarge", nodes=2)
    return estimate(load_config("neox-20b"), plan, cluster, BATCH, SEQ_LEN)


def layout(answer: Any) -> Result:
    """6b: fields of a plan that fits and takes at most MOST_S."""
    if not isinstance(answer, Mapping):
        return Result(words=f"A dictionary is wanted, not {kind_of(answer)}.")
    fields = {str(name): plain(value) for name, value in answer.items() if value is not None}
    if not fields:
        return NOT_DONE
    try:
        choice = try_layout(**fields)
    except UserError as error:
        return Result(words=f"{error}.")
    step_s = choice.time.total_s
    held, has = choice.memory.total / GIB, choice.cluster.memory_bytes / GIB
    seen = f"A GPU holds {held:.1f} of {has:.1f} GiB and a step takes {step_s:.2f} s"
    wrong = []
    if not choice.fits:
        wrong.append("it does not fit")
    if step_s > MOST_S:
        wrong.append("too slow")
    if wrong:
        return Result(words=f"{seen}: {', and '.join(wrong)}.")
    return Result(True, f"{seen}.")


@cache
def by_size() -> dict[int, tuple[float, float]]:
    """6c: days and dollars of Llama-2 13B by number of machines, each with its best plan."""
    sizes = {}
    for nodes in SIZES:
        cluster = make_cluster("p4d.24xlarge", nodes)
        best = search_plans(load_config("llama2-13b"), cluster, 512, 4096).best
        sizes[nodes] = (TOKENS / best.tokens_per_s / DAY_S, TOKENS * best.usd_per_token)
    return sizes


def most_machines(answer: Any) -> Result:
    """6c: {nodes, days, usd}."""
    if lacking := incomplete(answer, ("nodes", "days", "usd")):
        return lacking
    sizes = by_size()
    least = min(usd for _, usd in sizes.values())
    nodes = number_of(answer["nodes"])
    if nodes not in sizes:
        return Result(words=f"nodes is one of {', '.join(map(str, SIZES))}.")
    days, usd = sizes[int(nodes)]
    for key, expected in (("days", days), ("usd", usd)):
        number = number_of(answer[key])
        if number is None or not near(number, expected, 0.02):
            slip = "" if number is None else mistake("6c most machines", number / expected, key)
            said = slip or f"{key} is not what the best plan on {nodes:.0f} nodes takes."
            return Result(words=said)
    if usd > MOST_MORE * least:
        return Result(words=f"{nodes:.0f} nodes cost {usd / least - 1:.0%} more than the cheapest.")
    affordable = [soonest for soonest, cost in sizes.values() if cost <= MOST_MORE * least]
    if days > min(affordable):
        return Result(words="It can be done sooner for at most 10 % more.")
    return Result(True, f"{days:.1f} days, {usd / least - 1:.1%} above the cheapest.")
