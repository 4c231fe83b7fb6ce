"""Estimate the peak memory of eager code from the graph that Dynamo has traced.

Eager code runs the traced operators one after another and frees each result after its last reader.
The estimate is a lower bound: Python keeps some values for longer (a variable lives to the end of
its function), and operators use temporary memory.

    peak = eager_peak_bytes(module)               # beyond parameters and arguments; None if unknown
    cached = autocast_cached_arguments(module)    # those whose converted copies eager code keeps
    budget = Budget(peak, traced, cached)
    budget.allowance(alone=False)                 # what one graph of several may take
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves

from smelt.runtime.prelude import Allowance


class Budget:
    """Memory that the graphs of one program may take together: the peak of eager code."""

    def __init__(
        self, eager_peak: int | None, traced: torch.fx.GraphModule, cached: Sequence[bool] = ()
    ) -> None:
        traced_peak = None if eager_peak is None else peak_bytes(traced.graph, "val")
        if eager_peak is not None and traced_peak is not None:
            # AOTAutograd has removed results that nobody reads.
            eager_peak = min(eager_peak, traced_peak)
        self._eager_peak = (
            None if eager_peak is None else eager_peak + autocast_cache_bytes(traced.graph, cached)
        )
        self._unfused_peak = traced_peak
        self._constant_bytes = 0

    def allowance(self, *, alone: bool) -> Allowance | None:
        """Return what the next graph may take.

        None if the peak of eager code is unknown. With `alone`, the graph is the whole program.
        Otherwise it may take no more than the traced operators one by one, and the rest of the
        budget is for constants.
        """
        if self._eager_peak is None:
            return None
        if alone:
            return Allowance(self._eager_peak, self._eager_peak)
        unfused_peak = self._eager_peak if self._unfused_peak is None else self._unfused_peak
        return Allowance(
            self._eager_peak, max(self._eager_peak - unfused_peak - self._constant_bytes, 0)
        )

    def reserve(self, nbytes: int) -> None:
        """Reserve `nbytes` for constants that a graph keeps."""
        self._constant_bytes += nbytes


def eager_peak_bytes(module: torch.fx.GraphModule) -> int | None:
    """Return the peak bytes of eager code; None if a size depends on data."""
    return peak_bytes(module.graph, "example_value")


def autocast_cached_arguments(module: torch.fx.GraphModule) -> tuple[bool, ...]:
    """Return for each argument whether autocast caches a converted copy of it.

    Autocast converts leaves of autograd (parameters) once and keeps the copies until its region
    ends, if its cache is on.
    """
    arguments = module.graph.find_nodes(op="placeholder")
    is_on = torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()
    if not is_on and not any(map(_enters_autocast, module.graph.nodes)):
        return (False,) * len(arguments)
    return tuple(map(_is_autocast_cached, arguments))


def _enters_autocast(node: torch.fx.Node) -> bool:
    """Whether a region of autocast with a cache begins: (device, dtype, enabled, cached)."""
    if getattr(node.target, "__name__", "") != "_enter_autocast":
        return False
    device, _, enabled, caches = (*node.args, None, None, None, None)[:4]
    return device == "cpu" and bool(enabled) and caches is not False


def _is_autocast_cached(argument: torch.fx.Node) -> bool:
    """Whether autocast caches a copy of an argument.

    It caches leaves that the program does not convert itself.
    """
    x = argument.meta.get("example_value")
    if not isinstance(x, torch.Tensor) or not (x.is_leaf and x.requires_grad):
        return False
    return not any(u.op == "call_method" and u.target in _CONVERSIONS for u in argument.users)


_CONVERSIONS = ("to", "type", "type_as", "bfloat16", "half")
"""Methods by which a program itself makes a copy of another type, which lives as other values do.
"""


def autocast_cache_bytes(graph: torch.fx.Graph, cached: Sequence[bool]) -> int:
    """Return the bytes of half-type copies of cached arguments that a graph makes.

    `cached` says for each argument whether autocast caches its copy.
    """
    arguments = graph.find_nodes(op="placeholder")
    if len(arguments) != len(cached):
        return 0
    copies = [
        u.meta["val"]
        for n, is_cached in zip(arguments, cached, strict=True)
        if is_cached
        for u in n.users
        if u.target is torch.ops.aten._to_copy.default
    ]
    sizes = [nbytes(x.untyped_storage().nbytes()) for x in copies if x.dtype.itemsize == 2]
    return sum(size or 0 for size in sizes)


def peak_bytes(graph: torch.fx.Graph, kind: str) -> int | None:
    """Return the peak bytes of a graph run operator by operator.

    None if a size is unknown. `kind` is the metadata key of the values. Memory of arguments is not
    counted.
    """
    nodes = list(graph.nodes)
    storages_of = {n: [*storages(n.meta.get(kind))] for n in nodes}
    last_use: dict[Any, int] = {}
    sizes: dict[Any, int] = {}
    allocated_at: dict[int, list[Any]] = {}
    for index, node in enumerate(nodes):
        for read in (node, *node.all_input_nodes):
            for storage, size in storages_of[read]:
                if size is None:
                    return None
                if storage not in sizes:
                    is_argument = read.op in ("placeholder", "get_attr")
                    sizes[storage] = 0 if is_argument else size
                    allocated_at.setdefault(index, []).append(storage)
                last_use[storage] = index
    freed_at: dict[int, list[Any]] = {}
    for storage, index in last_use.items():
        freed_at.setdefault(index, []).append(storage)
    live = largest = 0
    for index in range(len(nodes)):
        live += sum(sizes[s] for s in allocated_at.get(index, ()))
        largest = max(largest, live)
        live -= sum(sizes[s] for s in freed_at.get(index, ()))
    return largest


def storages(value: Any) -> Iterable[tuple[Any, int | None]]:
    """Yield identity and bytes of the storage of each tensor in a value."""
    for x in tree_leaves(value):
        if isinstance(x, torch.Tensor) and x.layout is torch.strided:
            try:
                storage = unwrap_functorch(x).untyped_storage()
            except (RuntimeError, NotImplementedError):  # a subclass without a storage
                yield None, None
                continue
            yield storage._cdata, nbytes(storage.nbytes())  # pyright: ignore[reportPrivateUsage]


def unwrap_functorch(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor with storage inside the wrappers of `torch.func`."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x


def nbytes(size: Any) -> int | None:
    """Return a size in the traced call; None if it depends on data."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return None if hint is None else int(hint)
