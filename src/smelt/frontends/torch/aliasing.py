"""Results that are views of arguments which the program writes, given as that.

A pure program has no views of what it writes: it gives new values of them, and AutoGrad's wrapper
makes the view from the argument, with the shape, strides and place that the new value has.  Those
are eager code's only by chance: where the argument begins inside of its memory, and a size in the
view is symbolic, it is a view of other elements.  What Dynamo has traced knows where it lies.

    x[..., ::2] += 1
    return x.flatten(-2)    # of the argument, from where that begins, and not computed
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext

from smelt.dataclass import dataclass
from smelt.errors import UnsupportedError
from smelt.frontends.torch.sizes import Sizes

__all__ = ["VIEWS", "Shown", "View", "is_view", "show_views", "tokens", "traced_results", "view_of"]

VIEWS = "smelt_views"
"""Note at the node of results: which of them, by place, are views of the argument that stands
there."""


@dataclass(frozen=True, slots=True)
class View:
    """How a view of an argument lies."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    ahead: Any
    """Elements from where the argument begins to where the view does."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a result lies that the user sees."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    is_plain: bool
    """Whether its elements are those in memory, and not their negatives or conjugates."""


def traced_results(module: torch.fx.GraphModule) -> list[Shown | None]:
    """The results of Dynamo's graph, in which what is written is written and views are views; None
    for what is no tensor in memory."""
    (output,) = module.graph.find_nodes(op="output")
    return [
        _shown(n.meta.get("example_value") if isinstance(n, torch.fx.Node) else n)
        for n in output.args[0]
    ]


def _shown(x: Any) -> Shown | None:
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return None
    plain = not (x.is_neg() or x.is_conj())
    return Shown(tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.dtype, plain)


def tokens(graph: torch.fx.Graph) -> int:
    """How many arguments of a graph stand before the program's, and results before those: they have
    no elements, and keep calls in order that do more than compute (a look at what LAPACK says)."""
    count = 0
    for node in graph.find_nodes(op="placeholder"):
        if not any(str(u.target) == "with_effects" and u.args[0] is node for u in node.users):
            break
        count += 1
    return count


def show_views(traced: torch.fx.GraphModule, told: Sequence[Shown | None], count: int) -> None:
    """Puts arguments in the place of results that are views of them, but are computed from new
    values.  `told` are `traced_results` of the program, whose arguments are so many."""
    known = getattr(TracingContext.try_get(), "fw_metadata", None)
    outputs = list(getattr(known, "output_info", ()))
    first = tokens(traced.graph)
    given = traced.graph.find_nodes(op="placeholder")[first:]
    if len(outputs) != len(told) or len(getattr(known, "input_info", ())) != count:
        return  # arguments were joined, for one is a view of another
    (output,) = traced.graph.find_nodes(op="output")
    results, views = list(output.args[0]), dict[int, View]()
    numbers = _numbers(given)
    for k, (info, shown) in enumerate(zip(outputs, told, strict=True), first + _written(known)):
        if info.output_type.name != "alias_of_input":
            continue
        argument = given[info.base_idx]
        if shown is None or _root(results[k]) is argument or not _alike(argument, shown):
            continue
        ahead = shown.offset - argument.meta["val"].storage_offset()
        view = View(shown.shape, shown.strides, ahead)
        if _are_told((*view.shape, *view.strides, ahead), numbers):
            results[k], views[k] = argument, view
    if views:
        output.args = (type(output.args[0])(results),)
        output.meta[VIEWS] = views


def view_of(
    x: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], ahead: int
) -> torch.Tensor:
    """A view that begins so many elements behind where the tensor does.

    >>> view_of(torch.arange(6)[2:], (2,), (2,), 1)
    tensor([3, 5])
    """
    return x.as_strided(shape, strides, x.storage_offset() + ahead)


def _written(known: Any) -> int:
    """How many results stand in front of the user's: new values of arguments."""
    return known.num_mutated_inp_runtime_indices


def _root(node: Any) -> Any:
    """What a value is a view of."""
    while isinstance(node, torch.fx.Node) and is_view(node):
        node = node.args[0]
    return node


def is_view(node: torch.fx.Node) -> bool:
    """Whether an operator gives one view, and writes nothing."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    infos = [r.alias_info for r in returns]
    return len(infos) == 1 and infos[0] is not None and not infos[0].is_write


def _alike(argument: torch.fx.Node, shown: Shown) -> bool:
    """Whether a view of the argument has its elements, and not parts of them."""
    val = argument.meta.get("val")
    return isinstance(val, torch.Tensor) and val.dtype == shown.dtype and shown.is_plain


def _numbers(given: Iterable[Any]) -> set[Any]:
    """The symbols that arguments tell: numbers, and their dimensions."""
    told: list[Any] = []
    for node in given:
        found = node.meta.get("val")
        told += found.shape if isinstance(found, torch.Tensor) else [found]
    return {n.node.expr for n in told if isinstance(n, torch.SymInt)}


def _are_told(numbers: Iterable[Any], symbols: set[Any]) -> bool:
    """Whether all of these numbers follow from what arguments tell."""
    sizes = Sizes()
    try:
        for n in numbers:
            sizes.index(n)
    except UnsupportedError:
        return False
    return set(sizes.names) <= symbols
