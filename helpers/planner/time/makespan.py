"""Seconds from a step's first forward to its last backward, through the pipeline's schedule.

    makespan_s(job, cluster, stages)         by the schedule simulator
    quick_makespan_s(job, cluster, stages)   in closed form
    turns_s(job, cluster, stages)            the least where ranks share cores

`stages` are those of stage_time.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from helpers.engine.pipeline.simulator import Times, simulate
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.time.messages import seconds
from helpers.planner.time.pipeline_messages import link_s, pipeline_messages
from helpers.planner.time.stage_time import StageTime

ROUNDS = 3  # of as many micro-batches as ranks, until a schedule repeats itself


def makespan_s(job: Job, cluster: Cluster, stages: list[StageTime]) -> float:
    """Seconds from the first forward to the last backward, by the schedule simulator."""
    return _simulated_s(job, cluster, stages, job.microbatches)


def _simulated_s(job: Job, cluster: Cluster, stages: list[StageTime], microbatches: int) -> float:
    times = Times(
        forward_s=[stage.forward_s for stage in stages],
        input_s=[stage.input_s for stage in stages],
        weight_s=[stage.weight_s for stage in stages],
        link_s=_sent_beside_s(job, cluster),
    )
    return simulate(job.plan.schedule_of(microbatches), times).makespan_s


def _sent_beside_s(job: Job, cluster: Cluster) -> float:
    """Seconds of a message to the next stage that are no part of the stages' times."""
    return 0.0 if job.program.waits_for_sends else link_s(job, cluster)


def near_makespan_s(job: Job, cluster: Cluster, stages: list[StageTime]) -> float:
    """The same by the simulator, of a schedule with many micro-batches nearly: after some rounds
    one more of as many micro-batches as ranks adds always the same."""
    ranks, m = job.plan.pp, job.microbatches
    first = m % ranks + ROUNDS * ranks
    if m <= first + ranks:
        return makespan_s(job, cluster, stages)
    few_s, more_s = (_simulated_s(job, cluster, stages, count) for count in (first, first + ranks))
    return few_s + (m - first) / ranks * (more_s - few_s)


@dataclass(frozen=True)
class Pipeline:
    """What the closed forms are made of.

    ranks: the stages of each rank. microbatches: of a step.
    hops_s: sending through all ranks and back; 0 where it is a part of the stages' times.
    """

    ranks: list[list[StageTime]]
    microbatches: int
    hops_s: float

    @property
    def busy_s(self) -> list[float]:
        """Seconds of one micro-batch on each rank."""
        return [sum(stage.busy_s for stage in stages) for stages in self.ranks]

    @property
    def stages(self) -> list[StageTime]:
        """Of all ranks."""
        return [stage for stages in self.ranks for stage in stages]


def quick_makespan_s(job: Job, cluster: Cluster, stages: list[StageTime]) -> float:
    """The same in closed form: see the table CLOSED_FORMS.

    Source: Zheng et al. 2022 (Alpa), equation 2; the table of schedules.py.
    """
    ranks = [[stages[stage] for stage in job.stages_of(rank)] for rank in range(job.plan.pp)]
    hops_s = 2 * (job.plan.pp - 1) * _sent_beside_s(job, cluster)
    pipeline = Pipeline(ranks, job.microbatches, hops_s)
    return max(CLOSED_FORMS[job.plan.schedule](pipeline), _through_s(pipeline))


def _through_s(pipeline: Pipeline) -> float:
    """One micro-batch through all stages and back, which no order of work shortens."""
    return sum(stage.forward_s + stage.input_s for stage in pipeline.stages) + pipeline.hops_s


def _naive_s(pipeline: Pipeline) -> float:
    """One rank works at a time."""
    return pipeline.microbatches * (sum(pipeline.busy_s) + pipeline.hops_s)


def _gpipe_s(pipeline: Pipeline) -> float:
    """All forwards, then all backwards: of each, one through all ranks, others behind the slowest
    stage."""
    forwards_s = [stage.forward_s for stage in pipeline.stages]
    backwards_s = [stage.input_s + stage.weight_s for stage in pipeline.stages]
    behind = pipeline.microbatches - 1
    both_s = sum(sum(way_s) + behind * max(way_s) for way_s in (forwards_s, backwards_s))
    return both_s + pipeline.hops_s


def _filled_s(
    pipeline: Pipeline, turns: int, share: float = 1.0, hidden_s: float = 0.0, times: int = 1
) -> float:
    """The slowest rank's work in so many turns, and filling the pipeline beside it: a share of one
    micro-batch on every other rank, without what other work hides of it; and sending through all
    ranks so many times."""
    busy_s = pipeline.busy_s
    filling_s = max(0.0, share * (sum(busy_s) - max(busy_s)) - hidden_s)
    return turns * max(busy_s) + filling_s + times * pipeline.hops_s


def _one_forward_one_backward_s(pipeline: Pipeline) -> float:
    return _filled_s(pipeline, pipeline.microbatches)


def _interleaved_s(pipeline: Pipeline) -> float:
    """With v virtual stages a rank waits for 1/v of the others; fewer micro-batches than ranks take
    as many turns as ranks."""
    ranks = len(pipeline.ranks)
    virtual = len(pipeline.stages) // ranks
    turns = max(pipeline.microbatches, ranks)
    return _filled_s(pipeline, turns, share=1 / virtual, times=virtual)


def _zero_bubble_s(pipeline: Pipeline) -> float:
    """Gradients of weights fill the waiting: F + I - W of every other rank is left."""
    ranks = len(pipeline.ranks)
    weights_s = sum(stage.weight_s for stage in pipeline.stages)
    hidden_s = 2 * weights_s * (ranks - 1) / ranks
    return _filled_s(pipeline, pipeline.microbatches, hidden_s=hidden_s)


def _zero_bubble_v_s(pipeline: Pipeline) -> float:
    return _filled_s(pipeline, pipeline.microbatches, share=1 / 6)


CLOSED_FORMS: dict[str, Callable[[Pipeline], float]] = {
    "naive": _naive_s,
    "gpipe": _gpipe_s,
    "1f1b": _one_forward_one_backward_s,
    "interleaved": _interleaved_s,
    "zero-bubble": _zero_bubble_s,
    "zero-bubble-v": _zero_bubble_v_s,
}


def turns_s(job: Job, cluster: Cluster, stages: list[StageTime]) -> float:
    """Seconds that the pipelines' work takes where ranks share cores: a rank that waits leaves its
    core to another, so a bubble costs nothing, and ranks beyond the cores take turns. Messages were
    measured between such ranks, so they count as they are, those to the next stage too."""
    if cluster.together is None:
        return 0.0
    plan, m = job.plan, job.microbatches
    messages_s = [stage.tensor_s + stage.context_s + stage.data_s for stage in stages]
    work_s = sum(stage.busy_s for stage in stages) - sum(messages_s)
    lines = plan.world_size / plan.pp
    shared_s = m * (work_s * lines / min(cluster.together, plan.world_size) + max(messages_s))
    sends_s = [
        sum(send.count * seconds(job, cluster, send) for send in pipeline_messages(job, rank))
        for rank in range(plan.pp)
    ]
    return shared_s + max(sends_s)
