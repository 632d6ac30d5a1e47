"""What makes no sense, in every argument of the planner's questions, is one clear line."""

import inspect
import math

import pytest

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.search.estimate import estimate
from helpers.planner.search.search import search_plans
from tests.planner.shapes import GPTJ_6B

P4D = make_cluster("p4d.24xlarge")
PLAN = ParallelPlan(dp_shard=8, precision="bf16")
OWN = {"gpu": "H100-80", "gpus": 8, "nodes": 4, "intra_gb_s": 450, "inter_gb_s": 50}
NOTHINGS = [None, "", "x", "8", b"a", [], (), {}, object(), True]
NUMBERS = [0, -1, 1.5, float("nan"), float("inf"), 10**12]
WORK = {"model": GPTJ_6B, "batch": 64, "seq_len": 1024}
QUESTIONS = {
    "estimate": (
        estimate,
        {"model": GPTJ_6B, "plan": PLAN, "cluster": P4D, "batch": 64, "seq_len": 1024},
    ),
    "search": (search_plans, {"model": GPTJ_6B, "clusters": P4D, "batch": 64, "seq_len": 1024}),
    "cluster": (make_cluster, {"instance": "p4d.24xlarge"}),
    "own": (make_cluster, OWN | {"usd_per_hour": 90}),
}
# amounts can be any number above 0
AMOUNTS = {"intra_gb_s", "inter_gb_s", "usd_per_hour", "host_gib", "kw", "oversubscription"}
AMOUNTS |= {"tokens", "rails"}
EACH = [
    (name, one) for name, (ask, _) in QUESTIONS.items() for one in inspect.signature(ask).parameters
]


@pytest.mark.parametrize(("question", "argument"), EACH)
def test_nonsense_is_one_line(question, argument):
    ask, fields = QUESTIONS[question]
    unset = inspect.signature(ask).parameters[argument].default is None
    for value in NOTHINGS + NUMBERS:
        if value is None and unset:
            continue
        try:
            ask(**fields | {argument: value})
        except UserError as error:
            assert str(error)
            assert "\n" not in str(error)
        else:
            assert argument in AMOUNTS, value
            assert type(value) in (int, float), value
            assert 0 < value < math.inf, value
