"""Count what one block of the engine does beside its matrix products, and what it keeps.

The engine runs on a model of few layers over a process group that sends nothing, with every
operation watched; a block is what one layer more adds. helpers/planner/model/programs.json holds
what is counted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision import float8
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.dry_run import pretended

ROWS, SEQ_LEN = 2, 64
TOKENS = ROWS * SEQ_LEN
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "scaled_dot_product")
NO_WORK = ("empty", "detach", "_unsafe_view", "lift_fresh", "_local_scalar", "wait_tensor")


@dataclass
class Counts:
    """Bytes that operations other than products moved, how many operations there were, and bytes
    alive between forward and backward."""

    forward_bytes: float = 0
    backward_bytes: float = 0
    forward_operations: float = 0
    backward_operations: float = 0
    kept_bytes: float = 0


class Counter(TorchDispatchMode):
    """Watches every operation, and every storage that one makes, for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "forward"
        self.counts = Counts()
        self.alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given, made = _tensors((args, kwargs)), _tensors(out)
        known = {tensor.untyped_storage()._cdata for tensor in given}
        new = [t for t in made if t.untyped_storage()._cdata not in known]
        for tensor in new:
            storage = tensor.untyped_storage()
            self.alive[StorageWeakRef(storage)] = storage.nbytes()
        name = str(func)
        is_view = not new and not func._schema.is_mutable
        if is_view or "c10d" in name or any(word in name for word in NO_WORK):
            return out
        self._add("operations", 1)
        if not any(word in name.split(".")[1] for word in PRODUCTS):
            written = new or made[:1]
            self._add("bytes", sum(map(_bytes, [*given, *written])))
        return out

    def _add(self, what: str, amount: float) -> None:
        name = f"{self.phase}_{what}"
        setattr(self.counts, name, getattr(self.counts, name) + amount)

    def held_bytes(self) -> int:
        return sum(size for ref, size in self.alive.items() if not ref.expired())


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes behind a tensor; a dim that is only expanded has one element."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        elements *= size if stride else 1
    return elements * tensor.element_size()


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Products in 8 bits as a GPU has them, where a processor widens them, and bf16 beside them."""
    low_dtype = ParallelPlan.low_dtype
    with (
        patch.object(ParallelPlan, "low_dtype", lambda plan, _: low_dtype(plan, "cuda")),
        patch.object(float8, "_widened", float8._multiplied),
    ):
        yield


@contextmanager
def kept_bytes(model: nn.Module | None = None) -> Iterator[dict[torch.dtype, int]]:
    """Fills in, by dtype, how much forwards inside keep for their backwards: each storage once, and
    none of the model's parameters."""
    known = {p.untyped_storage().data_ptr() for p in (model.parameters() if model else ())}
    kept: dict[torch.dtype, int] = defaultdict(int)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            kept[tensor.dtype] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def count(config: Any, plan: ParallelPlan) -> Counts:
    """The counts of forward and backward of a model under a plan, on its first rank."""
    from transformers import AutoModelForCausalLM

    with pretended(plan.world_size):
        torch.manual_seed(0)
        mesh = plan.mesh("cpu")
        # nothing is sent here, so no layout can be tried first
        model = parallelize(AutoModelForCausalLM.from_config(config), plan, mesh, check=False)
        trainer = Trainer(model, plan, mesh, lr=1e-3)
        model.train()
        ids = torch.randint(1, config.vocab_size, (ROWS, SEQ_LEN))
        trainer.data.begin(last=True, complete=True)
        with Counter() as counter:
            given = {"input_ids": ids, "labels": ids, "num_items_in_batch": TOKENS}
            loss = model(**given, checked=True).loss  # as the trainer calls it
            counter.counts.kept_bytes = counter.held_bytes()
            counter.phase = "backward"
            loss.backward()
        trainer.data.take()
    return counter.counts


def count_block(make: Callable[[int], Any], plan: ParallelPlan) -> Counts:
    """The counts of one block: what a third layer adds to two.

    Args:
        make: the configuration with so many layers.
    """
    two, three = (asdict(count(make(layers), plan)) for layers in (2, 3))
    return Counts(**{name: three[name] - two[name] for name in two})
