"""What makes no sense, in every argument of the planner's questions, is one clear line."""

import inspect
import math
from dataclasses import replace
from fractions import Fraction

import pytest

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.planner.bill.whole_bill import whole_bill
from helpers.planner.cost import parameters, tensor_parallel_share, train_flops_per_token
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.hardware.cluster import make_cluster, with_nodes
from helpers.planner.hardware.devices import ABOVE_0, FROM_0
from helpers.planner.hardware.links import Link
from helpers.planner.hardware.lookup import peak_flops
from helpers.planner.hardware.rank_groups import coordinates, groups
from helpers.planner.model.adapters import adapted_state
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
ASKED = WORK | {"plan": PLAN, "cluster": P4D}
TABLES = ("matmul_flops", "attention_flops", "measured", "few")
WRONG_OBJECTS = {
    "a search for a bill": (lambda: whole_bill(found(), 1e9, 60), "search_plans(...).best"),
    "a choice to explain": (lambda: explain(found().best), "give all that search_plans(...)"),
    "a search to describe": (lambda: describe(found()), "give a choice"),
    "no cluster": (lambda: with_nodes(None, 2), "give a cluster"),
    "a name for a dry run": (lambda: dry_run("gptj-6b", PLAN, **SIZES), "load_config"),
    "a name for adapters": (lambda: adapted_state("gptj-6b", 8), "load_config"),
    "a shape for adapters": (lambda: adapted_state(GPTJ_6B, 8), "load_config"),
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
    "a configuration for a shape": (lambda: parameters(CONFIG), "model_shape(load_config"),
    "a model's name for a shape": (
        lambda: train_flops_per_token("x", 8),
        "model_shape(load_config",
    ),
    "no shape": (lambda: tensor_parallel_share(None, 2), "model_shape(load_config"),
    "no device of a peak": (lambda: peak_flops(None, "bf16"), "name of the device"),
    "a peak below nothing": (lambda: estimate(**ASKED).mfu(-1e12), "peak_flops must be a number"),
    "a word for a peak": (lambda: estimate(**ASKED).mfu("1e12"), "peak_flops must be a number"),
    "a link in words": (lambda: Link("fast", 0), "a link has bytes/s above 0"),
    "a link that never starts": (lambda: Link(1e9, math.inf), "a link has bytes/s above 0"),
    "several clusters by name": (
        lambda: search_plans(GPTJ_6B, {"a": P4D}, 64, 1024),
        "give a cluster, as make_cluster",
    ),
    "a long word": (lambda: search_plans(GPTJ_6B, P4D, 64, 1024, by="x" * 500), "ranked by time"),
}
# of a Cluster that is made by hand, or of one with other numbers
NO_FIELD = [
    *((name, value) for name in (*ABOVE_0, *FROM_0) for value in (-1, math.nan, math.inf, "x", [])),
    *((name, value) for name in ("intra", "inter") for value in (None, 1e9, "x", [])),
    *((name, value) for name in TABLES for value in (None, 1e12, "x", [], {"bf16": "x"})),
    *((name, value) for name in ("name", "device", "gpu", "generation") for value in (None, 1, [])),
    *(("overlaps", value) for value in (None, 1, "x")),
]


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


@pytest.mark.parametrize(("name", "value"), NO_FIELD)
def test_a_cluster_of_nonsense_is_one_line(name, value):
    """Without a check of its own a field gave nan seconds, or an error of Python's."""
    with pytest.raises(UserError, match=f"^{name} ") as error:
        replace(P4D, **{name: value})
    assert len(str(error.value)) < 200


def test_where_no_peak_is_known_there_is_no_utilisation():
    choice = estimate(**ASKED | {"cluster": replace(P4D, gpu="")})
    assert choice.mfu(choice.peak_flops) is None


def test_a_deadline_may_be_any_number():
    with pytest.raises(UserError, match=r"the deadline of .* days cannot be met"):
        search_plans(
            GPTJ_6B, P4D, 64, 1024, by="cost under a deadline", tokens=1e12, deadline_s=Fraction(8)
        )
