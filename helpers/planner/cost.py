"""What a training run costs: parameters, FLOPs, bytes, money. Every function is one formula.

    shape = model_shape(config)                        # of helpers.planner
    flops = train_flops_per_token(shape, seq_len=1024)
    mfu(tokens_per_s=15_000, flops_per_token=flops, devices=8, peak_flops=312e12)   # 0.23

Units are in the names: `_bytes`, `_flops`, `_s`; money is in US dollars. Only arithmetic happens
here: nothing is measured and no process is started.
"""

import math
from dataclasses import dataclass

from helpers.engine.errors import UserError, check_count
from helpers.planner.hardware.lookup import check_amounts, check_amounts_or_zero
from helpers.planner.shape.parameters import (
    Held,
    begin_parameters,
    blocks_parameters,
    end_parameters,
)
from helpers.planner.shape.shape import Shape, check_shape

# precision: bytes per parameter of (parameters, gradients, optimizer); Adam keeps two moments.
BYTES_PER_PARAMETER = {
    "fp64": (8, 8, 16),
    "fp32": (4, 4, 8),  # also with bf16 arithmetic on fp32 weights
    "bf16": (2, 2, 4),  # everything in bf16, no fp32 copy
    "mixed": (2, 2, 12),  # half-precision weights; the optimizer keeps an fp32 copy
    "half": (2, 4, 12),  # the same, gradients summed in fp32: this engine, but for ZeRO-3 (fp32)
    "smp": (2, 2, 16),  # as mixed, and fp32 gradients: the 20 bytes of SageMaker's manual
}


def parameters(shape: Shape) -> int:
    """Parameters of the whole model, as transformers counts them: embeddings, biases, norms, head;
    a tied head once."""
    check_shape(shape)
    ends = _all(begin_parameters(shape)) + _all(end_parameters(shape))
    once = _all(begin_parameters(shape)[:1]) if shape.tied else 0
    return sum(map(_all, blocks_parameters(shape, 1))) + ends - once


def _all(held: tuple[Held, ...]) -> int:
    return sum(math.prod(one.sizes) for one in held)


def train_flops_per_token(shape: Shape, seq_len: int, attention: str = "full") -> float:
    """FLOPs that training one token takes: 6·N + 12·layers·width·seq.

    Forward and backward, nothing recomputed. N is every parameter, the embedding too, but of
    experts only those that a token goes through. The second term is the attention scores over the
    full sequence; `attention="causal"` counts half of it, the part that a causal mask leaves.

    Sources: arXiv 2204.02311 (PaLM), appendix B; of experts arXiv 2101.03961 (Switch), section 2.
    """
    check_shape(shape)
    check_amounts(seq_len=seq_len)
    scores = 12 * shape.layers * shape.heads * shape.head_dim * seq_len
    return 6 * (parameters(shape) - shape.idle) + scores * _attended(attention)


def mfu(
    tokens_per_s: float, flops_per_token: float, devices: int, peak_flops: float | None
) -> float | None:
    """Model FLOPs utilisation, above 0 and at most 1: useful FLOP/s over what all devices could do.

    Args:
        tokens_per_s: of the whole job.
        devices: every device that the job holds.
        peak_flops: dense peak of one device for the dtype; None (unknown) gives None.

    Raises:
        UserError: a number is not above 0, or the result is above 1.
    Source: arXiv 2204.02311 (PaLM), section 4.1.
    """
    if peak_flops is None:
        return None
    check_amounts(
        tokens_per_s=tokens_per_s,
        flops_per_token=flops_per_token,
        devices=devices,
        peak_flops=peak_flops,
    )
    utilisation = tokens_per_s * flops_per_token / (devices * peak_flops)
    if utilisation > 1:
        raise UserError(
            f"{utilisation:.2f} times what {devices} device(s) can do, more than the chip's peak: "
            f"check the peak (dense, dtype), the device count or the FLOP count"
        )
    return utilisation


@dataclass(frozen=True)
class StateBytes:
    """Bytes of one rank's parameters, gradients and optimizer state."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


def state_bytes(
    parameters: int,
    precision: str = "fp32",
    tp: int = 1,
    dp_shard: int = 1,
    zero_stage: int = 3,
) -> StateBytes:
    """Bytes of the training state on one rank: parameters/tp, and what ZeRO shards over dp_shard.

    Args:
        parameters: of the whole model with `tp`; or exactly this rank's, from
            `tensor_parallel_share(...).total`, with tp left at 1.
        precision: a key of `BYTES_PER_PARAMETER`.
        zero_stage: 0 shards nothing over dp_shard, 1 the optimizer, 2 gradients too, 3 all.

    Raises:
        UserError: unknown precision or stage, or a degree below 1.
    Source: arXiv 1910.02054 (ZeRO), section 3.1 and figure 1.
    """
    if not isinstance(precision, str) or precision not in BYTES_PER_PARAMETER:
        known = ", ".join(BYTES_PER_PARAMETER)
        raise UserError(f"precision is one of {known}, not {precision!r:.40}")
    if type(zero_stage) is not int or zero_stage not in (0, 1, 2, 3):
        raise UserError(f"zero_stage is 0, 1, 2 or 3, not {zero_stage!r:.40}")
    check_amounts(parameters=parameters)
    _check_degrees(tp=tp, dp_shard=dp_shard)
    whole, each = -(-parameters // tp), BYTES_PER_PARAMETER[precision]
    shard = -(-whole // dp_shard)
    return StateBytes(
        parameters=each[0] * (shard if zero_stage >= 3 else whole),
        gradients=each[1] * (shard if zero_stage >= 2 else whole),
        optimizer=each[2] * (shard if zero_stage >= 1 else whole),
    )


@dataclass(frozen=True)
class TensorShare:
    """Parameters of one tensor-parallel rank: its part of what is cut, and what all ranks hold."""

    sharded: int
    replicated: int

    @property
    def total(self) -> int:
        return self.sharded + self.replicated


def tensor_parallel_share(shape: Shape, tp: int, rank: int = 0) -> TensorShare:
    """Parameters that rank `rank` of `tp` holds. Rank 0 holds the most.

    Cut: every linear layer of a block, and embedding and head by vocabulary, in parts of
    ceil(vocab/tp) rows of which the last may be shorter. Replicated: norms, row-parallel biases,
    learned positions, and the layers of key-value heads where there are fewer than ranks.

    Raises:
        UserError: tp below 1 or a rank outside 0..tp-1.
    Source: arXiv 1909.08053 (Megatron-LM), section 3.
    """
    check_shape(shape)
    _check_degrees(tp=tp)
    if type(rank) is not int or not 0 <= rank < tp:
        raise UserError(f"rank must be 0 to {tp - 1}, not {rank!r:.40}")
    if tp == 1:
        return TensorShare(0, parameters(shape))
    ends = [*begin_parameters(shape), *end_parameters(shape)]
    if shape.tied:
        ends.remove(begin_parameters(shape)[0])
    sharded = replicated = 0
    for held in (*blocks_parameters(shape, tp), ends):
        for one in held:
            count = math.prod(one.on(tp, rank))
            sharded, replicated = (
                (sharded, replicated + count) if one.cut is None else (sharded + count, replicated)
            )
    return TensorShare(sharded, replicated)


def money(wall_s: float, price_per_hour: float, instances: int = 1) -> float:
    """Dollars for holding `instances` machines for `wall_s` seconds, busy or not."""
    check_amounts(price_per_hour=price_per_hour, instances=instances)
    check_amounts_or_zero(wall_s=wall_s)
    return wall_s / 3600 * price_per_hour * instances


def _attended(attention: str) -> float:
    """The part of the attention matrix that is counted."""
    parts = {"full": 1.0, "causal": 0.5}
    if not isinstance(attention, str) or attention not in parts:
        raise UserError(f"attention is counted 'full' or 'causal', not {attention!r:.40}")
    return parts[attention]


def _check_degrees(**degrees: int) -> None:
    for name, degree in degrees.items():
        check_count(name, degree)
