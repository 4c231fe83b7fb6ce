"""Read facts from Dynamo's example values that the operators do not show.

Dynamo stores an example without data at each value. Whether a result requires a gradient, the peak
memory of eager code and which results are views are read from these before the graph is compiled; a
program that PyTorch saves keeps the facts and drops the examples.

Peak memory: eager code runs the traced operators one after another and frees each result after its
last reader. The estimate is a lower bound: Python keeps some values for longer (a variable lives to
the end of its function), and operators use temporary memory.

    peak = eager_peak_bytes(module)               # beyond parameters and arguments; None if unknown
    cached = autocast_cached_arguments(module)    # those whose converted copies eager code keeps
    budget = Budget(peak, traced, cached)
    budget.allowance(alone=False)                 # what one graph of several may take

Views: a pure program has no views of what it writes: it gives new values, and AOTAutograd's wrapper
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
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._guards import TracingContext
from torch.utils._pytree import tree_leaves

from smelt.errors import UnsupportedError
from smelt.frontends.torch.sizes import Sizes
from smelt.python.dataclass import dataclass
from smelt.runtime.prelude import Allowance


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts of one graph."""

    eager_bytes: int | None
    """Peak bytes of eager code; None if unknown."""
    autocast_cached: tuple[bool, ...]
    """For each argument, whether autocast keeps a converted copy of it."""
    results: list[ResultLayout | None]
    """The layout of each result; None for what is not a strided tensor."""
    makes_gradients: bool
    """Whether autograd follows a result. Forward and backward are then split before anything is
    written, and what a step writes into its arguments is copied after the forward graph."""
    writes_scalars: bool
    """Whether a program writes into a tensor of one float64. PyTorch may take such a tensor for a
    Python number, and traces again if it finds no use for it as one; it then drops what is written
    and not read."""
    has_zero_tensors: bool
    """Whether an argument is an efficient zero tensor, which has no memory; guards distinguish
    those from other tensors."""


def graph_facts(module: torch.fx.GraphModule) -> GraphFacts:
    """Read the facts of a graph that Dynamo has just traced."""
    graph = module.graph
    return GraphFacts(
        eager_peak_bytes(module),
        autocast_cached_arguments(module),
        traced_layouts(module),
        any(
            x.requires_grad
            for n in graph.find_nodes(op="output")[0].all_input_nodes
            if (x := _example(n)) is not None
        ),
        any(
            x.dtype is torch.float64 and x.dim() == 0
            for n in graph.nodes
            if n.op.startswith("call") and not n.users and (x := _example(n)) is not None
        ),
        any(map(_is_zero_tensor, graph.find_nodes(op="placeholder"))),
    )


def _example(node: torch.fx.Node) -> torch.Tensor | None:
    example: Any = node.meta.get("example_value")
    return example if isinstance(example, torch.Tensor) else None


def _is_zero_tensor(argument: torch.fx.Node) -> bool:
    example = getattr(argument.meta.get("grapharg"), "example", None)
    return isinstance(example, torch.Tensor) and example._is_zerotensor()


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
