"""What a program holds on a device beside activations, where it is another than the engine's way.

program("torchtitan").holds["bf16"].logits
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Holds:
    """Bytes that a program holds, as its code has them.

    weights, gradients, optimizer: of a parameter. ZeRO-1 and 2 divide the optimizer's over the
        ranks that share states, ZeRO-3 all of them.
    gradients_as_sent: are gradients of 2 bytes where the plan sums them in 16 bits?
    accumulated: of a parameter whose gradient waits whole for its sum, with ZeRO-3 and several
        micro-batches; 0 where each micro-batch's is summed.
    logits: of each logit of a micro-batch, when the backward of the loss begins.
    whole_logits, whole_embedding: has every tensor rank all of them?
    buckets_bytes: of messages of gradients, where there are several data ranks.
    """

    weights: float
    gradients: float
    optimizer: float
    gradients_as_sent: bool = False
    accumulated: float = 0.0
    logits: float = 0.0
    whole_logits: bool = False
    whole_embedding: bool = False
    buckets_bytes: float = 0.0
