"""Whether recomputing a block sends again what its experts summed: seen in two dry runs."""

import copy
from functools import lru_cache

from helpers.engine.models.architecture import Same, text_config
from helpers.engine.models.overrides import fewer_layers
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run

SMALL = {"batch": 2, "seq_len": 16, "device": "meta"}  # how much is sent does not count


@lru_cache(maxsize=256)
def sums_again(source: Same) -> bool:
    """Does a block compute something after its experts' sums that its backward needs, as a shared
    expert or a norm? Recomputation then gets as far.

    Args:
        source: a configuration, of a model whose experts ranks can deal out.

    Raises:
        UserError: as `dry_run`.
    """
    small = copy.deepcopy(source.config)
    fewer_layers(text_config(small), 2)
    return _scatters(small, "full") > _scatters(small, "none")


def _scatters(config: object, activation: str) -> int:
    plan = ParallelPlan(dp_shard=2, ep=2, activation=activation, microbatches=1)
    sent = dry_run(config, plan, **SMALL).messages
    return sum(count for message, count in sent.items() if message.kind == "reduce_scatter")
