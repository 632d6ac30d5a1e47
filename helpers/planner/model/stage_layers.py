"""How many layers each pipeline stage has, as the engine's `auto` partition deals them out.

balanced_layers(gptj_6b, stages=6)        # (4, 5, 5, 5, 5, 4): fewer with embedding or head
"""

import heapq
from functools import lru_cache
from itertools import accumulate

from helpers.engine.pipeline.partition import SPEED, Cost, Costs, balance, check_stages
from helpers.engine.pipeline.stages import SEQ_LEN
from helpers.planner.shape.shape import Shape


@lru_cache(maxsize=4096)
def balanced_layers(shape: Shape, stages: int) -> tuple[int, ...]:
    """Layers of each stage as partition.balance chooses them for the engine's `auto`.

    Layers cost the same here, so it is enough to give each to the stage that has least so far: no
    other way has a smaller largest stage, or a smaller sum of squares.
    """
    if stages == 1:
        return (shape.layers,)
    check_stages(shape.layers, stages)
    if shape.costs is not None:
        return balance(shape.costs, stages)
    embedding, layer, head = balance_costs(shape)
    loads = [[0, -stage] for stage in range(stages)]  # of equals, a later stage
    loads[0][0], loads[-1][0] = embedding, head
    counts = [0] * stages
    for stage in range(1, stages - 1):
        counts[stage] = 1  # every stage between the ends has a layer
        loads[stage][0] = layer
    heapq.heapify(loads)
    for _ in range(shape.layers - sum(counts)):
        load, minus = heapq.heappop(loads)
        counts[-minus] += 1
        heapq.heappush(loads, [load + layer, minus])
    return tuple(counts)


def balance_costs(shape: Shape) -> tuple[int, int, int]:
    """Embedding, one layer and head, in the engine's weights of time and memory."""
    seq_len = min(SEQ_LEN, shape.longest or SEQ_LEN)
    matrices = sum(linear.inputs * linear.outputs for linear in shape.block)
    table = shape.vocab * shape.hidden
    time = (0, 2 * matrices + 4 * seq_len * shape.hidden, 2 * table)
    memory = (
        table + shape.positions * shape.hidden,
        shape.block_parameters,
        table + shape.final_norm + (shape.vocab if shape.head_bias else 0),
    )
    embedding, layer, head = map(Cost, time, memory)
    costs = Costs(embedding, (layer,) * shape.layers, head)
    embedding, layer, *_, head = costs.whole_shares(SPEED)
    return embedding, layer, head


# a search makes thousands of jobs that differ in other things than their stages
@lru_cache(maxsize=4096)
def stages_by_rank(rank_of: tuple[int, ...], pp: int) -> tuple[tuple[int, ...], ...]:
    """The stages of each pipeline rank."""
    owned: list[list[int]] = [[] for _ in range(pp)]
    for stage, owner in enumerate(rank_of):
        owned[owner].append(stage)
    return tuple(map(tuple, owned))


@lru_cache(maxsize=4096)
def layers_by_rank(layers: tuple[int, ...], rank_of: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """How many layers each pipeline rank has."""
    return tuple(sum(layers[stage] for stage in own) for own in stages_by_rank(rank_of, pp))


@lru_cache(maxsize=4096)
def layers_of_stages(layers: tuple[int, ...], stages: tuple[int, ...]) -> tuple[int, ...]:
    """Which of the model's layers are in these stages.

    Args:
        layers: how many each stage has.
    """
    begins = (0, *accumulate(layers))
    return tuple(place for stage in stages for place in range(begins[stage], begins[stage + 1]))
