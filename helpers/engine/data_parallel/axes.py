"""Which ranks share what: directions of the mesh, taken together.

dp_replicate   dp_shard   cp
[    other rows        ]             data_group
[    other tokens             ]      token_group: sums of losses and gradients
               [ one copy     ]      state_axes: who shares a copy's state
"""

from collections.abc import Collection
from dataclasses import dataclass

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ..plan import ParallelPlan

SHARD = "dp_shard_cp"  # the axis of the ranks that share one copy's state, with cp


def data_group(mesh: DeviceMesh, plan: ParallelPlan) -> ProcessGroup:
    """All ranks that see other rows, replicas and shards together."""
    return _together(mesh, "dp", {"dp_replicate": plan.dp_replicate, "dp_shard": plan.dp_shard})


def token_group(mesh: DeviceMesh, plan: ParallelPlan) -> ProcessGroup:
    """All ranks that see other tokens: of other rows, or other ones of the same."""
    degrees = {axis: plan.degrees[axis] for axis in ("dp_replicate", "dp_shard", "cp")}
    return _together(mesh, "dp_cp", degrees)


@dataclass(frozen=True)
class StateAxes:
    """Over which ranks a copy's state lies.

    shard: the ranks that share it, as one axis.
    shard_and_tp: these and tp, for what both split.
    """

    shard: DeviceMesh
    shard_and_tp: DeviceMesh


def state_axes(mesh: DeviceMesh, plan: ParallelPlan) -> StateAxes:
    """Those of a plan's mesh."""
    if plan.cp == 1:
        return StateAxes(mesh["dp_shard"], mesh["dp_shard", "tp"])
    shard = mesh[_in_order(mesh, ("dp_shard", "cp"))]._flatten(SHARD)
    return StateAxes(shard, DeviceMesh._concatenate([shard, mesh["tp"]]))


def expert_axes(mesh: DeviceMesh, plan: ParallelPlan) -> DeviceMesh | None:
    """The ranks that deal experts out, as one axis, and tp; None where none do."""
    return state_axes(mesh, plan).shard_and_tp if plan.ep > 1 else None


def _together(mesh: DeviceMesh, name: str, degrees: dict[str, int]) -> ProcessGroup:
    wide = _in_order(mesh, [axis for axis, degree in degrees.items() if degree > 1])
    if len(wide) > 1:
        return mesh[wide]._flatten(name).get_group()
    return mesh.get_group(wide[0] if wide else next(reversed(degrees)))


def _in_order(mesh: DeviceMesh, axes: Collection[str]) -> tuple[str, ...]:
    return tuple(axis for axis in mesh.mesh_dim_names if axis in axes)
