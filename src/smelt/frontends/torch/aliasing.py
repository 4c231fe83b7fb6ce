"""Return results that are views of written arguments as views of those arguments.

A pure program has no views of what it writes: it gives new values, and AOTAutograd's wrapper
rebuilds the view from the argument with the shape, strides and storage offset of the new value.
These equal eager code's only by chance: if the argument begins inside its storage and a size of the
view is symbolic, the wrapper selects other elements. Dynamo's graph still has the views, so their
layouts are read from there.

    x[..., ::2] += 1
    return x.flatten(-2)    # a view that begins where the argument does; not computed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext

from smelt.errors import UnsupportedError
from smelt.frontends.torch.sizes import Sizes
from smelt.python.dataclass import dataclass

ARGUMENT_VIEWS = "smelt_views"
"""Metadata key at the output node: a `View` for each result position that is a view of an argument.
"""


@dataclass(frozen=True, slots=True)
class View:
    """Layout of a view of an argument."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    start: Any
    """Elements from the beginning of the argument to the beginning of the view."""


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """Layout of a result that the user sees."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    is_plain: bool
    """Whether its elements are stored as they are, without a lazy negation or conjugation."""


def traced_layouts(module: torch.fx.GraphModule) -> list[ResultLayout | None]:
    """Return the layout of each result of Dynamo's graph.

    That graph still has the writes and the views of the program. None stands for a result that is
    not a strided tensor.
    """
    (output,) = module.graph.find_nodes(op="output")
    return [
        _shown(n.meta.get("example_value") if isinstance(n, torch.fx.Node) else n)
        for n in output.args[0]
    ]


def _shown(x: Any) -> ResultLayout | None:
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return None
    plain = not (x.is_neg() or x.is_conj())
    return ResultLayout(tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.dtype, plain)


def count_effect_tokens(graph: torch.fx.Graph) -> int:
    """Count the effect tokens among a graph's arguments, before those of the program.

    The same number stand before its results. Tokens have no elements; they keep calls with side
    effects in order (such as a check of LAPACK's status).
    """
    count = 0
    for node in graph.find_nodes(op="placeholder"):
        if not any(str(u.target) == "with_effects" and u.args[0] is node for u in node.users):
            break
        count += 1
    return count


def restore_argument_views(
    traced: torch.fx.GraphModule, layouts: Sequence[ResultLayout | None], count: int
) -> None:
    """Replace results computed from new values of arguments by the arguments they view.

    `layouts` are the `traced_layouts` of the program, which has `count` arguments.
    """
    metadata: Any = getattr(TracingContext.try_get(), "fw_metadata", None)
    outputs = list(getattr(metadata, "output_info", ()))
    first = count_effect_tokens(traced.graph)
    arguments = traced.graph.find_nodes(op="placeholder")[first:]
    if len(outputs) != len(layouts) or len(getattr(metadata, "input_info", ())) != count:
        return  # AOTAutograd merged arguments that are views of one another
    (output,) = traced.graph.find_nodes(op="output")
    results, views = list(output.args[0]), dict[int, View]()
    numbers = _argument_symbols(arguments)
    first += metadata.num_mutated_inp_runtime_indices  # new values of arguments come first
    for k, (info, shown) in enumerate(zip(outputs, layouts, strict=True), first):
        if info.output_type.name != "alias_of_input":
            continue
        argument = arguments[info.base_idx]
        if shown is None or _root(results[k]) is argument or not _is_full_view(argument, shown):
            continue
        ahead = shown.offset - argument.meta["val"].storage_offset()
        view = View(shown.shape, shown.strides, ahead)
        if _follow_from((*view.shape, *view.strides, ahead), numbers):
            results[k], views[k] = argument, view
    if views:
        output.args = (type(output.args[0])(results),)
        output.meta[ARGUMENT_VIEWS] = views


def make_view(
    x: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], ahead: int
) -> torch.Tensor:
    """Return a view that begins `start` elements after the beginning of the tensor.

    >>> make_view(torch.arange(6)[2:], (2,), (2,), 1)
    tensor([3, 5])
    """
    return x.as_strided(shape, strides, x.storage_offset() + ahead)


def _root(node: Any) -> Any:
    """Follow views back to the value that they view."""
    while isinstance(node, torch.fx.Node) and is_view(node):
        node = node.args[0]
    return node


def is_view(node: torch.fx.Node) -> bool:
    """Whether an operator returns exactly one view and writes nothing."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    infos = [r.alias_info for r in returns]
    return len(infos) == 1 and infos[0] is not None and not infos[0].is_write


def _is_full_view(argument: torch.fx.Node, shown: ResultLayout) -> bool:
    """Whether a view has the elements of the argument as they are stored."""
    val = argument.meta.get("val")
    return isinstance(val, torch.Tensor) and val.dtype == shown.dtype and shown.is_plain


def _argument_symbols(arguments: Iterable[Any]) -> set[Any]:
    """Return the symbols that arguments determine: numbers and dimensions."""
    values: list[Any] = []
    for node in arguments:
        value = node.meta.get("val")
        values += value.shape if isinstance(value, torch.Tensor) else [value]
    return {n.node.expr for n in values if isinstance(n, torch.SymInt)}


def _follow_from(numbers: Iterable[Any], symbols: set[Any]) -> bool:
    """Whether all numbers are expressions over `symbols`."""
    sizes = Sizes()
    try:
        for n in numbers:
            sizes.index(n)
    except UnsupportedError:
        return False
    return set(sizes.names) <= symbols
