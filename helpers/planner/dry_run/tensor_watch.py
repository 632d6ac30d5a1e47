"""Watch what a program does to tensors, operation by operation: memory, FLOPs, messages.

    with Watch() as watch:
        trainer.step(ids, labels)
    watch.peak(), watch.sent, watch.flops

Real tensors and fake ones are watched alike, so a dry run and a real one can be compared. What a
storage is for is told by the engine's named ranges: one that is freed in the range that made it is
temporary, another is what MADE_IN says.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from helpers.engine.messages.carriers import BOARD

aten, profiler = torch.ops.aten, torch.ops.profiler

TEMPORARY = "temporary"
# range: the category of what it makes and leaves
MADE_IN = {
    "forward": "activations",
    "backward": "gradients",
    "reduce": "gradients",
    "optimizer": "optimizer",
}
OUTSIDE = "activations"  # outside of these: a micro-batch's rows, and what pipeline ranks receive
KINDS = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "recv_": "receive",
    "alltoall_base_": "all_to_all",
}


def attention_flops(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any) -> int:
    """Of [batch, heads, tokens, width] each. Fewer heads of keys count as often as they are used;
    the formula of an older torch refuses them."""
    return sdpa_flop_count(query.shape, *_per_query_head(query, key, value))


def attention_backward_flops(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any
) -> int:
    """Of its backward."""
    shapes = _per_query_head(query, key, value)
    return sdpa_backward_flop_count(gradient.shape, query.shape, *shapes)


def _per_query_head(query: Tensor, *others: Tensor) -> list[tuple[int, ...]]:
    return [(other.shape[0], query.shape[1], *other.shape[2:]) for other in others]


def grouped_flops(a: Tensor, b: Tensor, *rest: Any, **more: Any) -> int:
    """Of experts' products: of a row with its expert's matrix, [rows, k] and [experts, k, n]; of
    the gradients of the matrices, [m, rows] and [rows, n]."""
    return 2 * a.shape[0] * a.shape[1] * b.shape[-1]


KERNELS = ("efficient_attention", "flash_attention", "cudnn_attention", "flash_attention_for_cpu")
NAMES = [f"_scaled_dot_product_{kernel}" for kernel in KERNELS]
FLOPS = (
    flop_registry
    | {getattr(aten, name): attention_flops for name in NAMES}
    | {getattr(aten, f"{name}_backward"): attention_backward_flops for name in NAMES}
    | {aten._grouped_mm: grouped_flops}
)


class Sent(NamedTuple):
    """A kind of message: a collective's group by name and size, and the bytes of the whole tensor
    that the group reduces or gathers, or that one rank sends."""

    kind: str
    group: str
    ranks: int
    payload_bytes: int


@dataclass(eq=False)
class StorageUse:
    """A storage while it is alive.

    span: the number of the range that made it; None where its category is settled.
    """

    category: str
    span: int | None = None
    size: int = 0


class Watch(TorchDispatchMode):
    """Notes every operation while it is entered.

    Args:
        device: of the tensors whose memory is watched.

    Attributes:
        flops: of matrix products and attention; attention is counted over the whole square.
        sent: how many messages of each kind.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.device = torch.device(device)
        self.flops = 0
        self.sent: Counter[Sent] = Counter()
        self.alive: dict[int, tuple[StorageUse, weakref.ref]] = {}  # by the storage's address
        self.events: list[tuple[StorageUse, int]] = []  # by how much each grew, in order
        self.spans: list[tuple[int, str]] = [(0, OUTSIDE)]  # the ranges that are open
        self.opened = 0

    def __enter__(self) -> "Watch":
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = _noted(self, self._resize)  # no operation of a tensor
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*error)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard against it costs every operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "prim":  # a question about a tensor, such as its device
            return out
        if func.namespace == "profiler":
            self._range(func, args)
        elif func.namespace == "c10d":
            self._message(func, args)
        if func._overloadpacket in FLOPS:
            self.flops += FLOPS[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        span, category = self.spans[-1]
        for tensor in tensors(out):
            if tensor.device.type == self.device.type:
                self._follow(tensor.untyped_storage(), category, span or None)
        return out

    def hold(self, category: str, known: Iterable[Tensor]) -> None:
        """Count the storages of these under a category, except those that are counted already."""
        for tensor in known:
            self._follow(tensor.untyped_storage(), category, None)

    def leave_out(self, known: Iterable[Tensor]) -> None:
        """Do not count these, nor what shares their storage."""
        for tensor in known:
            storage = tensor.untyped_storage()
            self.alive[storage._cdata] = (
                StorageUse("", None, storage.nbytes()),
                weakref.ref(storage),
            )

    @property
    def alive_bytes(self) -> int:
        """Of all that is followed and not freed."""
        return sum(use.size for use, _ in self.alive.values())

    def peak(self) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes by category at the moment when most were alive; and the most of each category."""
        now: Counter[str] = Counter()
        at_peak, largest, total, most = now.copy(), now.copy(), 0, 0
        for use, grown in self.events:
            now[use.category] += grown
            total += grown
            largest[use.category] = max(largest[use.category], now[use.category])
            if total > most:
                most, at_peak = total, now.copy()
        return dict(at_peak), dict(largest)

    def _follow(self, storage: torch.UntypedStorage, category: str, span: int | None) -> None:
        address = storage._cdata
        if address in self.alive:
            return
        use = StorageUse(category, span)
        self.alive[address] = use, weakref.ref(storage, lambda _: self._freed(address))
        self._resized(use, storage.nbytes())

    def _freed(self, address: int) -> None:
        use, _ = self.alive.pop(address)
        if use.span == self.spans[-1][0]:
            use.category = TEMPORARY
        self._resized(use, 0)

    def regrown(self, storage: torch.UntypedStorage) -> None:
        """A storage that is freed and filled again is a parameter that fully_shard gathers."""
        self._follow(storage, TEMPORARY, None)
        use, _ = self.alive[storage._cdata]
        use.category, use.span = TEMPORARY, None
        self._resized(use, storage.nbytes())

    def _resized(self, use: StorageUse, size: int) -> None:
        if size != use.size:
            self.events.append((use, size - use.size))
            use.size = size

    def _range(self, func: Any, args: tuple) -> None:
        if func is profiler._record_function_enter_new.default:
            self.opened += 1
            if args[0].startswith(BOARD):
                self._on_board(*args)
            kept = MADE_IN.get(args[0])
            self.spans.append((self.opened, kept) if kept else self.spans[-1])
        elif func._overloadpacket is profiler._record_function_exit:
            self.spans.pop()

    def _message(self, func: Any, args: tuple) -> None:
        name = func._schema.name.removeprefix("c10d::")
        group = next(a for a in args if isinstance(a, torch.ScriptObject) and _is_group(a))
        group = dist.ProcessGroup.unbox(group)
        if group.size() == 1:
            return  # nothing is sent
        payload = max(sum(tensor.nbytes for tensor in tensors(arg)) for arg in args)
        self.sent[Sent(KINDS.get(name, name), group.group_name, group.size(), payload)] += 1

    def _on_board(self, name: str, message: str) -> None:
        group, ranks, payload = message.split()
        kind = name.removeprefix(BOARD)
        for one in ("send", "receive") if kind == "shift" else (kind,):  # as without a board
            self.sent[Sent(one, group, int(ranks), int(payload))] += 1


def tensors(values: Any) -> list[Tensor]:
    """The tensors in nested containers; of a DTensor the one that this rank holds."""
    leaves = [values] if isinstance(values, Tensor) else tree_leaves(values)
    whole = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return [leaf._local_tensor if isinstance(leaf, DTensor) else leaf for leaf in whole]


def _is_group(value: torch.ScriptObject) -> bool:
    return value._type().qualified_name().endswith("ProcessGroup")


def _noted(watch: Watch, resize: Callable) -> Callable:
    """UntypedStorage.resize_, by which fully_shard frees what it gathered."""

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        done = resize(storage, size)
        watch.regrown(storage)
        return done

    return resized
