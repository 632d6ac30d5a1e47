"""Pipeline schedules as data: what each rank does, in which order.

Every schedule here but the last is one rule with other numbers. A rank runs `warmup` forwards, then
one forward and one backward in turn, then the backwards that are left:

    schedule       warmup on rank r       most in flight on rank r   bubble, share of the step
    naive          0                      1                          (p-1) / p
    gpipe          m                      m                          (p-1) / (m+p-1)
    1f1b           p-1-r                  min(m, p-r)                (p-1) / (m+p-1)
    interleaved    (v-1) g + 2 (p-1-r)    min(v m, warmup+1) / v     ((p-1)/v) / (m + (p-1)/v)
    zero-bubble    p-1-r, W late by r     min(m, p)                  (p-1) / (3m+p-1)
    zero-bubble-v  two warm-ups           min(m, p)                  (p-1) / (6m+p-1)

p ranks, m micro-batches, v virtual stages a rank, g micro-batches a round; ranks equal, F, I and W
of equal length and m large enough. `predicted_bubble` has the forms for other cases.

Sources: gpipe, Huang et al. 2018 (arXiv 1811.06965); 1f1b, Narayanan et al. 2019 (PipeDream) and
2021 (arXiv 2006.09503, flush); interleaved, Narayanan et al. 2021 (arXiv 2104.04473), section 2.2;
zero-bubble (ZB-H1) and zero-bubble-v (ZB-V), Qi et al. 2023 (arXiv 2401.10241), sections 2 and 6.

The SageMaker model parallel library called them otherwise: its `simple` is gpipe, and its
`interleaved`, which runs a backward as soon as there is one, is roughly 1f1b. The interleaved
schedule with virtual stages it did not have.
"""

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from ..errors import UserError, check_count

FORWARD, BACKWARD, INPUT, WEIGHT = KINDS = "F", "B", "I", "W"


class Action(NamedTuple):
    """One computation of one stage on one micro-batch.

    kind: `F` forward; `B` whole backward, or its two halves: `I` gradient of the stage's input,
        which the stage before waits for, and `W` gradients of its weights, which nobody waits for.
    stage: number in the whole model, over ranks and virtual stages.
    """

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """`2F0`: stage 2, forward, micro-batch 0. torch.distributed.pipelining writes the same."""
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """What each rank does.

    name: for pictures and messages.
    ranks: the actions of each rank, in order.
    rank_of: the rank of each stage.
    microbatches: how many each stage sees.
    """

    name: str
    ranks: tuple[tuple[Action, ...], ...]
    rank_of: tuple[int, ...]
    microbatches: int

    @property
    def pp(self) -> int:
        """Ranks of the pipeline."""
        return len(self.ranks)

    @property
    def stages(self) -> int:
        """Stages of the model: ranks times virtual stages."""
        return len(self.rank_of)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` holds, in the model's order."""
        return tuple(stage for stage, owner in enumerate(self.rank_of) if owner == rank)


Order = list[tuple[int, int]]  # (stage, micro-batch)
Actions = tuple[Action, ...]  # of one rank


def naive(rank: int, pp: int, microbatches: int) -> Actions:
    """Layers split over ranks and nothing else: one rank works at a time."""
    return _one_stage(rank, microbatches, warmup=0)


def gpipe(rank: int, pp: int, microbatches: int) -> Actions:
    """All forwards, then all backwards. Every micro-batch is in flight at once."""
    return _one_stage(rank, microbatches, warmup=microbatches)


def one_f_one_b(rank: int, pp: int, microbatches: int) -> Actions:
    """Backward as soon as there is one: gpipe's time, and at most p-r micro-batches on rank r."""
    return _one_stage(rank, microbatches, warmup=pp - 1 - rank)


def zero_bubble_h1(rank: int, pp: int, microbatches: int) -> Actions:
    """1f1b with backward in halves, W late by `rank` micro-batches: it fills the wait at the end.

    The first rank's input gradient has no receiver, so it keeps the whole backward.
    """
    return _one_stage(rank, microbatches, warmup=pp - 1 - rank, late=rank)


def interleaved_1f1b(rank: int, pp: int, microbatches: int, virtual: int) -> Actions:
    """1f1b over `virtual` stages a rank: stage s on rank s mod p, each v times as short.

    Micro-batches go in rounds: a round passes the first of a rank's stages, then the second, and so
    on. The paper wants rounds of p. Rounds of unequal size, none below p and the larger ones first,
    reach the same bubble with any number of micro-batches from p on; with the smaller ones first
    ranks would wait for each other forever. Fewer than p make one round and a larger bubble.
    """
    if virtual == 1:
        return one_f_one_b(rank, pp, microbatches)
    rounds = max(1, microbatches // pp)
    size, larger = divmod(microbatches, rounds)
    sizes = [size + 1] * larger + [size] * (rounds - larger)
    stages = range(rank, pp * virtual, pp)
    warmup = (virtual - 1) * sizes[0] + 2 * (pp - 1 - rank)
    return _take_turns(_by_rounds(stages, sizes), _by_rounds(stages[::-1], sizes), warmup)


def zero_bubble_v(rank: int, pp: int, microbatches: int) -> Actions:
    """Two stages a rank, placed as a V, with backward in halves: hardly a bubble at 1f1b's memory.

    Stage s and stage 2p-1-s share a rank, so the first rank has both ends of the model, and the
    last passes its result on to itself. Made for F, I and W of equal length.
    """
    down, up = rank, 2 * pp - 1 - rank  # its stages on the way down the V, and up
    total = max(microbatches, 2 * pp - 1)  # the pattern needs as many; those too many are dropped
    turn = [(INPUT, down), (WEIGHT, down), (FORWARD, up), (INPUT, up), (WEIGHT, up)]
    pattern = [
        *[(FORWARD, down)] * (2 * (pp - rank) - 1),
        *[(FORWARD, up), (FORWARD, down)] * rank,
        *[(FORWARD, up), (INPUT, up), (WEIGHT, up)] * (pp - rank),
        *[(FORWARD, down), *turn] * (total - 2 * pp + rank + 1),
        *turn * (pp - 1 - rank),
        *[(INPUT, down), (INPUT, up)] * rank,
        *[(INPUT, down), (WEIGHT, down)] * (pp - rank),
        *[(WEIGHT, up)] * rank,
        *[(WEIGHT, down)] * rank,
    ]
    done: Counter[tuple[str, int]] = Counter()
    actions = []
    for step in pattern:
        if done[step] < microbatches:
            actions.append(Action(*step, microbatch=done[step]))
        done[step] += 1
    return tuple(actions)


def _one_stage(rank: int, microbatches: int, warmup: int, late: int = 0) -> Actions:
    """Stage r on rank r."""
    order = [(rank, i) for i in range(microbatches)]
    return _take_turns(order, order, warmup, late)


def _take_turns(forwards: Order, backwards: Order, warmup: int, late: int = 0) -> Actions:
    """`warmup` forwards, then a forward and a backward in turn, then the backwards that are left.

    With `late`, backwards are in halves and W comes so many backwards after its I.
    """
    ahead = min(warmup, len(forwards))
    actions = [Action(FORWARD, *place) for place in forwards[:ahead]]
    for i, place in enumerate(backwards):
        actions += [Action(FORWARD, *after) for after in forwards[ahead + i : ahead + i + 1]]
        actions.append(Action(INPUT if late else BACKWARD, *place))
        if late and i >= late:
            actions.append(Action(WEIGHT, *backwards[i - late]))
    if late:
        actions += [Action(WEIGHT, *place) for place in backwards[-late:]]
    return tuple(actions)


def _by_rounds(stages: range, sizes: list[int]) -> Order:
    """Round after round; in a round stage after stage; in a stage its micro-batches."""
    order, first = [], 0
    for size in sizes:
        order += [(stage, first + i) for stage in stages for i in range(size)]
        first += size
    return order


ONE_STAGE = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zero-bubble": zero_bubble_h1,
}
SCHEDULES = (*ONE_STAGE, "interleaved", "zero-bubble-v")


def make_schedule(name: str, pp: int, microbatches: int, virtual: int | None = None) -> Schedule:
    """The schedule called `name`, one of SCHEDULES.

    Args:
        pp: ranks of the pipeline.
        microbatches: how many a step has.
        virtual: stages a rank; any number for `interleaved` (2 unless given), two for
            `zero-bubble-v`, one for all others.

    Raises:
        UserError: no such schedule, a number below 1, or virtual stages that it does not have.
    """
    virtual = _checked_stages(name, pp, microbatches, virtual)
    ranks = tuple(rank_actions(name, rank, pp, microbatches, virtual) for rank in range(pp))
    down = tuple(range(pp))
    rank_of = (*down, *reversed(down)) if name == "zero-bubble-v" else down * virtual
    return Schedule(name, ranks, rank_of, microbatches)


def _checked_stages(name: str, pp: int, microbatches: int, virtual: int | None) -> int:
    """How many stages a rank has of this schedule."""
    if name not in SCHEDULES:
        raise UserError(f"no schedule is called {name!r}; there is {', '.join(SCHEDULES)}")
    usual = 1 if name in ONE_STAGE else 2
    virtual = usual if virtual is None else virtual
    check_count("pp", pp)
    check_count("microbatches", microbatches)
    check_count("virtual", virtual)
    if virtual != usual and name != "interleaved":
        raise UserError(
            f"{name} has {usual} stage{'s' if usual > 1 else ''} a rank, not {virtual}; "
            "interleaved takes any number of virtual stages"
        )
    return virtual


def rank_actions(name: str, rank: int, pp: int, microbatches: int, virtual: int) -> Actions:
    """Those of one rank, of a schedule that make_schedule takes."""
    if name == "interleaved":
        return interleaved_1f1b(rank, pp, microbatches, virtual)
    if name == "zero-bubble-v":
        return zero_bubble_v(rank, pp, microbatches)
    return ONE_STAGE[name](rank, pp, microbatches)


def predicted_bubble(
    name: str,
    pp: int,
    microbatches: int,
    virtual: int | None = None,
    forward_s: float = 1.0,
    input_s: float = 1.0,
    weight_s: float = 1.0,
) -> float:
    """The papers' closed form of the bubble: the share of the step in which ranks wait, with equal
    stages and links without delay.

    Args:
        pp, microbatches, virtual: as make_schedule takes them.
        forward_s, input_s, weight_s: of all of a rank's stages together; B is I and W together.

    The forms for fewer micro-batches than ranks are not in the papers; they fit the simulator.

    Raises:
        UserError: as make_schedule; seconds that are no finite numbers from 0; or no closed form:
            for zero-bubble where W is longer than F or I, and for zero-bubble-v where F, I and W
            are not equal.
    """
    p, m, v = pp, microbatches, _checked_stages(name, pp, microbatches, virtual)
    if not all(0 <= seconds < inf for seconds in (forward_s, input_s, weight_s)):
        raise UserError("forward_s, input_s and weight_s must be finite numbers from 0")
    step_s = forward_s + input_s + weight_s  # of one micro-batch on one rank
    if name == "naive":
        makespan_s = m * p * step_s
    elif name in ("gpipe", "1f1b"):
        makespan_s = (m + p - 1) * step_s
    elif name == "interleaved":
        makespan_s = (max(m, p) + (min(m, p) - 1) / v) * step_s
    elif name == "zero-bubble" and weight_s <= min(forward_s, input_s):
        filled = min(m, p) - 1
        makespan_s = m * step_s + (p - 1) * (forward_s + input_s) - filled * weight_s
    elif name == "zero-bubble-v" and forward_s == input_s == weight_s:
        makespan_s = m * step_s + max(p - 1, 4 * (p - 1) - 2 * (m - 1)) * forward_s / 2
    else:
        raise UserError(f"{name} has no closed form for these times; simulate it")
    return 1 - m * step_s / makespan_s if makespan_s else 0.0
