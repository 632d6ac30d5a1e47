"""A model to fine-tune by adapters: its base frozen, in 4 bits or as it is, over the plan's ranks.

    cut into stages -> base filled, matrix by matrix -> adapters -> shared over data ranks

The adapters are all that is trained, summed and kept in checkpoints; the base comes from its files
again, or from its seed. Under ZeRO-3 the ranks of dp_shard and cp share the 4-bit codes too. Their
magnitudes, an eighth of a bit a weight, are on every rank.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import UserError, check_seed, need
from ..files import weights
from ..memory.cpu_allocator import large_blocks_apart
from ..parallelize import parallelize
from ..plan import ParallelPlan
from ..tensor.in_parts import unfold
from .linear_layers import places_of
from .lora import add_adapters, check_numbers, fuse, load_adapters
from .nf4 import fill_quantized

SHARES_CODES = (2, 12)  # torch's fully_shard before it takes codes for numbers, and casts them


@dataclass(frozen=True)
class Adapting:
    """Which adapters, beside which base.

    rank, alpha, dropout: of new adapters.
    quantize: "nf4" for a base in 4 bits, None for one in the plan's precision.
    adapters: a folder of adapters to go on with; it says their rank and alpha.
    """

    rank: int = 8
    alpha: float = 16
    dropout: float = 0.0
    quantize: str | None = None
    adapters: Path | None = None

    def check(self, plan: ParallelPlan) -> None:
        """Raise a UserError if adapters cannot be trained so, or a package is missing."""
        need("peft", "qlora")
        if self.adapters is None:
            check_numbers(self.rank, self.alpha, self.dropout)
        if self.quantize not in (None, "nf4"):
            raise UserError(f"quantize must be 'nf4' or None, not {self.quantize!r:.40}")
        if self.quantize:
            need("bitsandbytes", "qlora")
            if plan.zero == 3 and torch.__version__ < SHARES_CODES:
                raise UserError(
                    f"zero_stage=3 shares 4-bit codes from torch 2.12 on, and this is "
                    f"{torch.__version__}: take a newer torch, or zero_stage=2"
                )
        check_layout(plan)


def check_layout(plan: ParallelPlan) -> None:
    """Raise a UserError if adapters cannot be trained under a plan, whatever is installed."""
    if plan.tp > 1:
        raise UserError(
            f"tp={plan.tp} splits the matrices that adapters stand beside: "
            "use dp_replicate, dp_shard, cp or pp with adapters"
        )
    if plan.ep > 1:
        raise UserError(f"ep={plan.ep} deals experts out, which are frozen here: leave it out")
    if plan.precision == "fp8":
        raise UserError("precision=fp8 trains whole matrices: take bf16 with adapters")
    if plan.compile:
        raise UserError("compile is not made for adapters: leave out one of the two")
    if plan.splits_backward:
        raise UserError(
            f"the schedule {plan.schedule} puts off weight gradients, which a frozen base has "
            "not: choose 1f1b, gpipe or interleaved with adapters"
        )


def load_adapted(
    source: str | Path,
    plan: ParallelPlan,
    mesh: DeviceMesh,
    how: Adapting,
    *,
    config: Any = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    from_scratch: bool = False,
    task: str | None = None,
) -> nn.Module:
    """This rank's part of a model with adapters, laid out; see parallelize.load_model.

    The base is in the plan's precision, or in 4 bits with its arithmetic in that precision. The
    adapters are in that precision, too, with float32 masters where it is below float32.

    Raises:
        UserError: the plan does not allow it, a package is missing, or the files are broken.
    """
    how.check(plan)
    check_seed(seed)
    dtype = plan.low_dtype(mesh.device_type) or torch.float32
    with large_blocks_apart(mesh.device_type):
        model, files = weights.blank_model(source, config, dtype, from_scratch, task)
        places = places_of(model)  # before it is cut into stages

        def fill(model: nn.Module) -> None:
            unfold(model)  # as a layer in 4 bits is
            (fill_quantized if how.quantize else weights.fill)(model, files, seed, device)
            model.tied_over_ranks = None  # frozen at both ends of a pipeline
            if how.adapters is not None:
                load_adapters(model, how.adapters, places)
            else:
                new = {"seed": seed, "source": source, "places": places}
                add_adapters(model, how.rank, how.alpha, how.dropout, **new)
            fuse(model)

        model = parallelize(model, plan, mesh, fill)
        model.digest = weights.digest_of_source(files, seed)
        model.base_digest = files.digest if files else f"none, but random of seed {seed}"
        return model
