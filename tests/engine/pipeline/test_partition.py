"""Layers over stages: as good as trying everything, and what a published run's partition was."""

from functools import cache
from itertools import combinations

import pytest
import torch
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.pipeline.partition import (
    MEMORY,
    SPEED,
    Cost,
    Costs,
    balance,
    check_partition,
    layer_ranges,
    model_costs,
    stage_costs,
)
from helpers.engine.pipeline.stages import auto_partition
from helpers.planner.measure.layer_profile import measured_costs
from tests.support import tiny
from tests.support.refusals import said

COST = st.builds(Cost, st.integers(0, 20), st.integers(0, 20))
LAYER = st.builds(Cost, st.integers(1, 20), st.integers(1, 20))


@st.composite
def problems(draw):
    layers = draw(st.lists(LAYER, min_size=1, max_size=8))
    costs = Costs(draw(COST), tuple(layers), draw(COST))
    return costs, draw(st.integers(1, len(layers))), draw(st.sampled_from([0, SPEED, MEMORY, 1]))


def even(layers: int, embedding: float = 0, head: float = 0) -> Costs:
    """Layers of cost 1 in time and memory."""
    ends = Cost(embedding, embedding), Cost(head, head)
    return Costs(ends[0], (Cost(1, 1),) * layers, ends[1])


def weighted(costs: Costs, counts, memory_weight: float) -> list[float]:
    """Each stage's share of the model, from its time and memory apart."""
    stages = stage_costs(costs, counts)
    time = sum(stage.time for stage in stages)
    memory = sum(stage.memory for stage in stages)
    return [
        (1 - memory_weight) * stage.time / time + memory_weight * stage.memory / memory
        for stage in stages
    ]


def all_partitions(layers: int, stages: int):
    """Every list that leaves no stage empty but for the ends, which have embedding and head."""
    items = layers + 2
    for cuts in combinations(range(1, items), stages - 1):
        ends = [*cuts, items]
        counts = [end - start for start, end in zip([0, *ends], ends)]
        counts[0] -= 1
        counts[-1] -= 1
        yield tuple(counts)


@cache
def published(name: str) -> Costs:
    """The modelled costs of a published model, built without its weights."""
    transformers = pytest.importorskip("transformers")
    config = load_config(name)
    with torch.device("meta"):
        return model_costs(transformers.AutoModelForCausalLM.from_config(config), seq_len=512)


def of_time(embedding: float, *layers: float, head: float) -> Costs:
    return Costs(Cost(embedding, 0), tuple(Cost(time, 1) for time in layers), Cost(head, 0))


@settings(deadline=None)
@given(problems())
@example((of_time(17, 13, 1, 18, 15, 10, head=5), 4, 0))  # 17 + 13 is 15 + 10 + 5
def test_no_other_partition_is_better(problem):
    """Smallest largest stage, and among those the smallest sum of squares."""
    costs, stages, weight = problem
    found = balance(costs, stages, weight)
    assert check_partition(found, len(costs.layers), stages) == found

    def score(counts):
        shares = weighted(costs, counts, weight)
        return max(shares), sum(share**2 for share in shares)

    scores = [score(counts) for counts in all_partitions(len(costs.layers), stages)]
    largest, squares = score(found)
    best = min(one for one, _ in scores)
    assert largest == pytest.approx(best)
    ties = [two for one, two in scores if one == pytest.approx(best, rel=1e-9)]
    assert squares == pytest.approx(min(ties))


@settings(deadline=None)
@given(problems(), st.integers(1, 1000))
def test_units_do_not_matter(problem, unit):
    costs, stages, weight = problem

    def scaled(cost):
        return Cost(cost.time * unit, cost.memory * 8)

    other = Costs(scaled(costs.embedding), tuple(map(scaled, costs.layers)), scaled(costs.head))
    found = balance(costs, stages, weight)
    largest = max(weighted(costs, found, weight))
    assert max(weighted(costs, balance(other, stages, weight), weight)) == pytest.approx(largest)


def test_even_layers_are_split_evenly():
    assert balance(even(28), 4) == (7, 7, 7, 7)
    assert balance(even(28), 1) == (28,)
    assert balance(even(28), 28) == (1,) * 28
    # of equals, fewer layers where more micro-batches are in flight
    assert balance(even(10), 4) == (2, 2, 3, 3)
    assert balance(even(96, 0.1, 0.1), 3) == (32, 32, 32)


def test_embedding_and_head_count():
    assert balance(even(10, head=2), 4) == (3, 3, 3, 1)
    assert balance(even(10, embedding=2, head=2), 2) == (5, 5)
    assert balance(even(12, head=4), 4) == (4, 4, 4, 0)
    assert balance(even(4, embedding=9), 2) == (0, 4)


def test_the_weight_goes_from_time_to_memory():
    slow_head = Costs(Cost(0, 4), (Cost(1, 1),) * 8, Cost(4, 0))
    assert balance(slow_head, 2, memory_weight=0) == (6, 2)
    assert balance(slow_head, 2, memory_weight=1) == (2, 6)
    assert balance(slow_head, 2, memory_weight=0.5) == (4, 4)


def test_layers_by_stage():
    assert layer_ranges((2, 0, 3)) == (range(2), range(2, 2), range(2, 5))
    costs = Costs(Cost(10, 20), (Cost(1, 2),) * 3, Cost(100, 200))
    assert stage_costs(costs, (1, 2)) == [Cost(11, 22), Cost(102, 204)]
    assert stage_costs(costs, (3,)) == [Cost(113, 226)]


# --- GPT-J over 16 stages --------------------------------------------------------------------


def test_gptj_costs_a_layers_worth_at_each_end():
    costs = published("gptj-6b")
    assert sum(c.memory for c in (costs.embedding, *costs.layers, costs.head)) == 6_050_882_784
    layer = costs.layers[0]
    assert costs.embedding.time == 0
    assert costs.embedding.memory / layer.memory == pytest.approx(1.025, abs=1e-3)
    assert costs.head.memory / layer.memory == pytest.approx(1.026, abs=1e-3)
    assert costs.head.time / layer.time == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("memory_weight", [0, SPEED, 0.5, MEMORY, 1])
def test_gptj_over_16_stages_has_two_layers_at_most(memory_weight):
    """Less is not possible: 28 layers do not go one each on 16 stages."""
    costs = published("gptj-6b")
    counts = balance(costs, 16, memory_weight)
    two = 2 * costs.shares(memory_weight)[1]
    assert max(weighted(costs, counts, memory_weight)) == pytest.approx(two)
    assert counts[-1] == 0  # the head costs as much as a layer: it has a stage alone


def test_gptj_over_16_stages_by_memory_is_the_published_partition_with_its_ends_apart():
    costs = published("gptj-6b")
    counts = balance(costs, 16, memory_weight=1)
    assert counts == (0, *(2,) * 14, 0)
    # the SageMaker library's has two layers on thirteen stages, one on two, and both bare ends on
    # a stage of their own, which is no run of layers but lets a stage more have layers
    layer = costs.layers[0].memory
    joined = (costs.embedding.memory + costs.head.memory) / layer
    assert joined == pytest.approx(2.05, abs=0.01)
    ours = max(stage.memory for stage in stage_costs(costs, counts)) / layer
    assert ours == pytest.approx(2)


def test_gptj_over_16_stages_by_time_and_memory():
    costs = published("gptj-6b")
    for memory_weight in (SPEED, MEMORY):
        assert balance(costs, 16, memory_weight) == (1, 1, *(2,) * 13, 0)
    assert balance(costs, 4) == (7, 7, 8, 6)


def test_a_small_models_head_weighs_layers():
    """GPT-2's head multiplies almost as much as five of its layers."""
    costs = published("gpt2")
    assert costs.head.time / costs.layers[0].time == pytest.approx(4.9, abs=0.1)
    assert costs.head.memory > costs.layers[0].memory  # tied, and held by the last stage again
    assert balance(costs, 2, memory_weight=0) == (8, 4)
    assert balance(costs, 4, memory_weight=0) == (4, 4, 4, 0)


@pytest.mark.parametrize(
    "name", ["gpt2-tiny", "gptj-tiny", "falcon-tiny", "neox-tiny", "llama-tiny"]
)
def test_every_parameter_is_counted_where_it_is(name):
    transformers = pytest.importorskip("transformers")
    config = load_config(name)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    costs = model_costs(model, seq_len=128)
    parts = [costs.embedding, *costs.layers, costs.head]
    every = sum(p.numel() for _, p in model.named_parameters(remove_duplicate=False))
    assert sum(part.memory for part in parts) == every
    assert len(costs.layers) == config.num_hidden_layers
    assert len(set(costs.layers)) == 1
    assert costs.head.time == 2 * config.vocab_size * config.hidden_size
    assert costs.embedding.memory >= config.vocab_size * config.hidden_size


def test_costs_of_a_model_without_a_list_of_blocks_are_refused():
    transformers = pytest.importorskip("transformers")
    small = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.BartConfig(encoder_layers=4, decoder_layers=2, vocab_size=32, **small)
    model = transformers.BartForCausalLM(config)
    for costs in (lambda: model_costs(model, seq_len=8), lambda: auto_partition(model, 2)):
        with pytest.raises(UserError, match="cannot be cut into stages"):
            costs()


def test_what_turns_hidden_states_before_the_head_counts_with_it():
    model = tiny.fresh("bert-mlm", torch.float32)
    every = model.named_parameters(remove_duplicate=False)
    end = sum(p.numel() for name, p in every if name.startswith("cls."))
    assert model_costs(model, seq_len=128).head.memory == end


def test_a_head_that_needs_a_layer_costs_with_the_last():
    costs = Costs(Cost(1, 2), (Cost(3, 4), Cost(5, 6)), Cost(7, 8))
    joined = Costs(Cost(1, 2), (Cost(3, 4), Cost(12, 14)), Cost(0, 0))
    assert costs.head_with_last_layer == joined


# --- what is wrong is said -------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(7, 7, 7, 7), (28,), (0, 14, 14), (14, 14, 0), (1, 27)])
def test_a_list_that_covers_the_model_is_taken(counts):
    assert check_partition(list(counts), 28, len(counts)) == counts


@pytest.mark.parametrize(
    ("counts", "stages", "words"),
    [
        ((14, 14), 4, "the partition 14,14 has 2 stages, the pipeline 4"),
        ((14, 13), 2, "the partition 14,13 has 27 layers, the model 28"),
        ((14, 15), 2, "the partition 14,15 has 29 layers, the model 28"),
        ((14, 0, 14), 3, "leaves stage 1 empty"),
        ((0, 14, 0, 14), 4, "leaves stage 2 empty"),
        ((29, -1), 2, "must list whole numbers"),
        ((14.0, 14), 2, "must list whole numbers"),
        ((1,) * 29, 29, "has 29 layers, the model 28"),
        ((1,) * 28 + (0, 0, 0), 31, "leaves stage 28 empty"),
    ],
)
def test_a_list_that_does_not_is_refused(counts, stages, words):
    assert words in said(check_partition, counts, 28, stages)


def test_what_cannot_be_balanced_is_said():
    with pytest.raises(UserError, match="5 stages are too many for 4 layers"):
        balance(even(4), 5)
    for stages in (0, 2.0, "2", None):
        with pytest.raises(UserError, match="stages must be a whole number of at least 1"):
            balance(even(4), stages)
    for weight in (1.5, "x"):
        with pytest.raises(UserError, match="memory_weight goes from 0"):
            balance(even(4), 2, memory_weight=weight)
    with pytest.raises(UserError, match="less than nothing"):
        balance(even(4, head=-1), 2)
    with pytest.raises(UserError, match="without end"):
        balance(even(4, head=float("inf")), 2)


@pytest.mark.alone
def test_a_profile_sees_a_costly_head() -> None:
    """A head as large as many layers, measured, takes layers off the last stage."""
    config = load_config("neox-tiny", hidden_size=64, num_attention_heads=4, num_hidden_layers=8)
    config.vocab_size = 32768
    costs = measured_costs(config, rows=4, seq_len=64)
    assert len(costs.layers) == 8
    assert costs.head.time > costs.layers[0].time > 0
    assert costs.head.memory == 32768 * 64 + 2 * 64  # with the last norm
    first, last = balance(costs, 2)
    assert first > last
    with pytest.raises(UserError, match="nothing to measure"):
        measured_costs(config, rows=0, seq_len=64)


def test_a_model_without_a_last_norm_keeps_a_block_beside_its_head() -> None:
    """A large head would otherwise be a stage by itself, which such a model cannot have."""
    bert = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
    bert |= {"intermediate_size": 16, "vocab_size": 5000}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**bert))
    assert balance(model_costs(model, 64), 2) == (2, 0)
    assert auto_partition(model, 2) == (1, 1)
