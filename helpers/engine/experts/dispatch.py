"""Expert parallelism: the ranks of dp_shard and cp deal experts out, and send each other tokens.

    rank 0: its tokens ─┐ gather      experts 0, 1 ─┐ scatter   sums of rank 0's tokens
    rank 1: its tokens ─┘ all tokens  experts 2, 3 ─┘ of all    sums of rank 1's tokens

Under ZeRO-3 alone a rank gathers the weights of all experts for its own tokens; here it gathers the
tokens of all ranks for its own experts, whose weights, gradients and moments never leave it. The
shards are the same, and so are checkpoints. Which way sends less is told by tokens and weights.

The dispatch is by all-gather, the simplest that is exact for any routing: every rank sees where
all tokens go, computes what goes to its own experts, and what it adds to each token's sum is zero
for all else. How many go to them the host asks its device, once in a layer's forward.

Sources: Lepikhin et al. 2020, GShard, section 3; Rajbhandari et al. 2022, DeepSpeed-MoE, section 5.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ..tensor import collectives
from ..tensor.shards import chunk, local

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden states, experts, weights


def deal_out(experts: nn.Module, name: str, mesh: DeviceMesh) -> None:
    """Keep this rank's experts of a parameter [experts, ..], which tp may have split already.

    Args:
        mesh: the ranks that deal them out, and tp.
    """
    parameter, axis = getattr(experts, name), mesh[mesh.mesh_dim_names[0]]
    own = chunk(local(parameter).detach(), 0, axis.size(), axis.get_local_rank()).clone()
    split = isinstance(parameter, DTensor)
    dealt = DTensor.from_local(
        own,
        mesh if split else axis,
        (Shard(0), *(parameter.placements if split else ())),
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    setattr(experts, name, nn.Parameter(dealt, requires_grad=parameter.requires_grad))


def pairs_of_rank(chosen: Tensor, each: int, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Which of the tokens go to this rank's experts, of which it has `each`, and as which of their
    k choices: [pairs] of each."""
    return (chosen // each == group.rank()).nonzero().unbind(1)


def by_all_gather(
    compute: Compute,
    hidden: Tensor,
    chosen: Tensor,
    weights: Tensor,
    count: int,
    group: ProcessGroup,
) -> Tensor:
    """What the experts of all ranks make of this rank's tokens.

    Args:
        compute: this rank's experts, of tokens that each go to one of them.
        hidden: [tokens, hidden], as many on every rank.
        chosen, weights: [tokens, k], of all experts those that each token goes to.
        count: experts of all ranks.
    """
    hidden, chosen, weights = (collectives.gather(x, 0, group) for x in (hidden, chosen, weights))
    each = -(-count // group.size())
    token, place = pairs_of_rank(chosen, each, group)
    size, dtype, own = hidden.shape, hidden.dtype, hidden.index_select(0, token)
    del hidden  # of all ranks, as large as the sums
    share = weights[token, place].unsqueeze(1)
    if len(token):
        own = compute(own, (chosen[token, place] % each).unsqueeze(1), share)
    else:  # all the same a part of the graph, whose messages wait for every rank
        own = own * share
    sums = own.new_zeros(size, dtype=dtype).index_add_(0, token, own.to(dtype))
    return collectives.scatter(sums, 0, group)
