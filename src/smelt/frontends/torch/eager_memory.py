"""What eager code holds in memory at once, read from the graph that Dynamo has traced.

The traced operators run one after another there; what each brings is freed after its last reader.
Python keeps some of it for longer (a variable lives to the end of its function), and operators take
memory inside, so this is less than eager code takes, never more.

    held = held_by_eager(module)        # bytes beyond parameters and arguments; None: not known
    kept = kept_by_autocast(module)     # arguments of which eager code keeps converted copies
    budget = Budget(held, traced, kept)
    budget.allowance(alone=False)       # what one graph of several may take
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves

from smelt.runtime.prelude import Allowance

__all__ = ["Budget", "held_by_eager", "kept_by_autocast"]


class Budget:
    """The memory that the graphs of one program may take together: what eager code holds."""

    def __init__(
        self, held: int | None, traced: torch.fx.GraphModule, kept: Sequence[bool] = ()
    ) -> None:
        apart = None if held is None else peak(traced.graph, "val")
        if held is not None and apart is not None:
            held = min(held, apart)  # which knows nothing of results that nobody reads
        self._held = None if held is None else held + converted(traced.graph, kept)
        self._apart = apart
        self._kept = 0

    def allowance(self, *, alone: bool) -> Allowance | None:
        """For the next graph; None where nothing is known.  Beside others, and calls of torch, none
        takes more than the traced operators one by one: what that leaves is for constants."""
        if self._held is None:
            return None
        if alone:
            return Allowance(self._held, self._held)
        apart = self._held if self._apart is None else self._apart
        return Allowance(self._held, max(self._held - apart - self._kept, 0))

    def keep(self, nbytes: int) -> None:
        """A graph keeps so many bytes of constants."""
        self._kept += nbytes


def held_by_eager(module: torch.fx.GraphModule) -> int | None:
    """Bytes at the fullest time, in the call that is traced; None if a size depends on data."""
    return peak(module.graph, "example_value")


def kept_by_autocast(module: torch.fx.GraphModule) -> tuple[bool, ...]:
    """Which arguments autocast converts once and keeps so until its region ends: leaves of autograd
    (parameters), if there is such a region and it keeps anything."""
    given = module.graph.find_nodes(op="placeholder")
    around = torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()
    if not around and not any(map(_enters, module.graph.nodes)):
        return (False,) * len(given)
    return tuple(map(_is_cached, given))


def _enters(node: torch.fx.Node) -> bool:
    """Whether a region of autocast that keeps copies begins: (device, dtype, enabled, keeps)."""
    if getattr(node.target, "__name__", "") != "_enter_autocast":
        return False
    device, _, enabled, keeps = (*node.args, None, None, None, None)[:4]
    return device == "cpu" and bool(enabled) and keeps is not False


def _is_cached(given: torch.fx.Node) -> bool:
    """Whether autocast keeps a copy of an argument: a leaf that the program does not convert."""
    x = given.meta.get("example_value")
    if not isinstance(x, torch.Tensor) or not (x.is_leaf and x.requires_grad):
        return False
    return not any(u.op == "call_method" and u.target in _CONVERSIONS for u in given.users)


_CONVERSIONS = ("to", "type", "type_as", "bfloat16", "half")
"""Methods by which a program itself makes a copy of another type, which lives as others do."""


def converted(graph: torch.fx.Graph, kept: Sequence[bool]) -> int:
    """Bytes of the half-type copies of these arguments that a graph of operators makes."""
    given = graph.find_nodes(op="placeholder")
    if len(given) != len(kept):
        return 0
    copies = [
        u.meta["val"]
        for n, keeps in zip(given, kept, strict=True)
        if keeps
        for u in n.users
        if u.target is torch.ops.aten._to_copy.default
    ]
    sizes = [nbytes(x.untyped_storage().nbytes()) for x in copies if x.dtype.itemsize == 2]
    return sum(size or 0 for size in sizes)


def peak(graph: torch.fx.Graph, kind: str) -> int | None:
    """The same for a graph whose nodes carry their values under `kind`."""
    nodes = list(graph.nodes)
    behind = {n: [*storages(n.meta.get(kind))] for n in nodes}
    last: dict[Any, int] = {}
    sizes: dict[Any, int] = {}
    first: dict[int, list[Any]] = {}
    for at, node in enumerate(nodes):
        for read in (node, *node.all_input_nodes):
            for storage, size in behind[read]:
                if size is None:
                    return None
                if storage not in sizes:
                    outside = read.op in ("placeholder", "get_attr")
                    sizes[storage] = 0 if outside else size
                    first.setdefault(at, []).append(storage)
                last[storage] = at
    ends: dict[int, list[Any]] = {}
    for storage, at in last.items():
        ends.setdefault(at, []).append(storage)
    live = most = 0
    for at in range(len(nodes)):
        live += sum(sizes[s] for s in first.get(at, ()))
        most = max(most, live)
        live -= sum(sizes[s] for s in ends.get(at, ()))
    return most


def storages(value: Any) -> Iterable[tuple[Any, int | None]]:
    """The memory behind the tensors of a value: what tells it apart, and its bytes."""
    for x in tree_leaves(value):
        if isinstance(x, torch.Tensor) and x.layout is torch.strided:
            try:
                storage = unwrapped(x).untyped_storage()
            except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
                yield None, None
                continue
            yield storage._cdata, nbytes(storage.nbytes())  # pyright: ignore[reportPrivateUsage]


def unwrapped(x: torch.Tensor) -> torch.Tensor:
    """The tensor with memory behind the levels that `torch.func` puts around one."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x


def nbytes(size: Any) -> int | None:
    """A size as a number, in the call that is traced; None if only the data tells it."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return None if hint is None else int(hint)
