"""What makes no sense, in every argument of the planner's questions, is one clear line."""

import inspect
import math

import pytest

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.planner.bill.whole_bill import whole_bill
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.hardware.cluster import make_cluster, with_nodes
from helpers.planner.hardware.rank_groups import coordinates, groups
from helpers.planner.published.posts import find_post
from helpers.planner.scaling import efficiencies, speedups
from helpers.planner.search.estimate import estimate
from helpers.planner.search.explain import describe, explain
from helpers.planner.search.search import search_plans
from tests.planner.shapes import GPTJ_6B

P4D = make_cluster("p4d.24xlarge")
PLAN = ParallelPlan(dp_shard=8, precision="bf16")
CONFIG = load_config("gptj-tiny")
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


SIZES = {"batch": 8, "seq_len": 8}
WRONG_OBJECTS = {
    "a search for a bill": (lambda: whole_bill(found(), 1e9, 60), "search_plans(...).best"),
    "a choice to explain": (lambda: explain(found().best), "give all that search_plans(...)"),
    "a search to describe": (lambda: describe(found()), "give a choice"),
    "no cluster": (lambda: with_nodes(None, 2), "give a cluster"),
    "a name for a dry run": (lambda: dry_run("gptj-6b", PLAN, **SIZES), "load_config"),
    "no plan": (lambda: dry_run(CONFIG, None, **SIZES), "give a plan"),
    "no device": (lambda: dry_run(CONFIG, PLAN, device="x", **SIZES), "cpu or meta, not 'x'"),
    "no rank": (lambda: dry_run(CONFIG, PLAN, True, **SIZES), "rank must be 0 to 7"),
    "no degrees": (lambda: coordinates({}), "give degrees"),
    "a number for degrees": (lambda: coordinates(8), "give degrees"),
    "no placement": (lambda: coordinates({"tp": 2}, []), "placement must be cluster"),
    "no axis": (lambda: groups({"tp": 2}, []), "no axis []"),
    "no name of a post": (lambda: find_post([]), "no post []"),
    "a word for machines": (lambda: speedups({"a": 1}), "not 1 for 'a'"),
    "a list of times": (lambda: speedups([1]), "by number of machines"),
    "no times": (lambda: efficiencies(None), "by number of machines"),
}


def found():
    return search_plans(GPTJ_6B, P4D, 64, 1024)


@pytest.mark.parametrize("name", WRONG_OBJECTS)
def test_the_wrong_object_is_one_line_that_says_what_to_give(name):
    ask, words = WRONG_OBJECTS[name]
    with pytest.raises(UserError) as error:
        ask()
    assert words in str(error.value) and len(str(error.value)) < 200


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
