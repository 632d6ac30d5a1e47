"""The parts of an estimator's `distribution`: the library's parameters, and mpi beside them."""

from typing import Any

from helpers.engine.errors import UserError
from helpers.smp.distribution.mpi_options import LEFT_OUT, mpi_options, variables
from helpers.smp.keys import wants_whole


def parameters_in(config: Any) -> dict[str, Any]:
    """The parameters inside `distribution`, or the dictionary itself where it is none.

    Raises:
        UserError: it is no dictionary, or turns the library on nowhere.
    """
    if not isinstance(config, dict):
        raise UserError(f"a configuration is a dictionary, not {config!r}")
    libraries = config.get("smdistributed", config)
    inside = libraries.get("modelparallel", libraries) if isinstance(libraries, dict) else libraries
    if inside is config:
        return config
    if isinstance(inside, dict) and inside.get("enabled") is True:
        return parameters_in(inside.get("parameters", {}))
    alone = isinstance(libraries, dict) and "dataparallel" in libraries
    hint = ": dataparallel alone is the plan of dp_replicate, a copy for each process" * alone
    raise UserError(f"smdistributed has no modelparallel with enabled: True{hint}")


def beside(config: dict[str, Any], world_size: int) -> tuple[dict[str, str], dict[str, str]]:
    """What `mpi` says: variables of every rank, and options that are left out with the reason.

    Raises:
        UserError: the processes of a host do not divide those of the job.
    """
    mpi = config.get("mpi")
    if mpi is None:
        return {}, {}
    if not isinstance(mpi, dict):
        raise UserError(f"mpi must be a dictionary, not {mpi!r}")
    count = mpi.get("processes_per_host", 1)
    wants = wants_whole(count, least=1)
    if wants:
        raise UserError(f"processes_per_host must be {wants}, not {count!r}")
    if world_size % count:
        raise UserError(
            f"processes_per_host={count} does not divide {world_size} processes: the number "
            "wanted is that of all hosts together"
        )
    options = mpi_options(mpi.get("custom_mpi_options"))
    return variables(options), {one.text: one.words for one in options if one.verdict == LEFT_OUT}
