"""Write new values of arguments in place instead of copying them at the end.

PyTorch turns a program that writes into its arguments (an optimiser's step, running statistics of a
norm) into one that computes new values and copies them in at the end, which reads and writes the
array once more. The last graph writes such a value itself if nothing after it needs the old one:
its plan then has the kernel that reads the old value element by element overwrite it.

    new_values(final_writes, results, inputs, outputs, row_of)  # arguments by new values
    inputs = InPlaceInputs(executable, {0: 3}, dense)   # result 0 is written over input 3
    inputs.overlapping_inputs(tensors, sizes)           # not in this call: 3 overlaps another

What a plan does not write in place, and arguments that overlap another one in the call at hand, are
copied as before.

`cache[:, at] = x` likewise becomes a complete new value of the cache.  If nothing else needs the
old value, only the part is written, as eager code does, and the rest of the cache is neither read
nor copied:

    find_updates(graph, row_of)      # arguments by the operators that make new values of them
    write = Update(aten.index_put.default)
    write(True, cache, [at], x)      # writes into the cache and returns it
    write(False, cache, [at], x)     # a new value: the cache shares memory with another argument

`cache[0, :, at] = x` is traced as an update of a view of the cache, whose new value is written back
into the cache. `join_nested_updates` makes these one operator, which writes the part alone.

The gradient of a gather accumulates with `index_put`, element by element. If a position takes a
row, `index_add` adds the row at once and is faster. Positions along several dimensions, each along
its own, are several such sums.

Such a gradient starts from zeros, and is added to other gradients of the same value (a table that
is read twice, or by a product too). It is accumulated into them instead, which saves the array of
zeros:

    a + index_put(zeros, at, x, accumulate)  ->  index_put(a, at, x, accumulate)

>>> x, at = torch.zeros(4, 64), torch.tensor([1, -1] * 400)
>>> fast_index_put(x, [at], torch.ones(800, 64), True)[:, 0].tolist()
[0.0, 400.0, 0.0, 400.0]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.fx.node import map_arg

from smelt.frontends.torch.fake_facts import nbytes
from smelt.frontends.torch.layout import is_guarded, memory_order
from smelt.frontends.torch.row import Row, overloads

# ---- analysis ------------------------------------------------------------------------------------


def is_write(node: Any) -> bool:
    """Whether an operator is the final copy of a new value into an argument.

    Its result, if used, is only returned, as that argument.
    """
    return (
        str(node.target) == "aten.copy_.default"
        and node.args[0].op == "placeholder"
        and all(u.op == "output" for u in node.users)
    )


def new_values(
    final_writes: Sequence[Any],
    results: Any,
    inputs: Mapping[Any, Any],
    outputs: Mapping[Any, Any],
    row_of: Callable[[Any], Row | None],
) -> dict[Any, Any]:
    """Return the outputs of the last graph that only replace one of its inputs.

    Maps each such output to the input. `final_writes` are the calls at the end that write into
    their operands, `results` the values that the program returns. No other write and no result
    reads the output or the input.
    """
    writes = [n for n in final_writes if is_write(n)]
    rest = [x for n in final_writes if n not in writes for x in nodes_in(n.args)]
    rest += [x for x in nodes_in(results) if x not in writes]
    read = aliased_values(rest, row_of)
    sources = {n: aliased_values(nodes_in(n.args[1:]), row_of) for n in writes}
    times = Counter(x for source in sources.values() for x in source)
    times.update(read)
    replaced: dict[Any, Any] = {}
    for n in writes:
        argument, value = n.args[0], n.args[1]
        unshared = all(times[x] == (x in sources[n]) for x in (argument, value))
        if (
            argument in inputs
            and value in outputs
            and unshared
            and is_guarded(argument)
            and _fills_argument(argument, value)
        ):
            replaced[value] = argument
    return replaced


def _fills_argument(argument: Any, value: Any) -> bool:
    old, new = argument.meta["val"], value.meta["val"]
    return (
        old.dtype == new.dtype
        and tuple(old.shape) == tuple(new.shape)
        and not old.is_neg()
        and memory_order(old) is not None
    )


def values_to_copy(
    final_writes: Sequence[Any], copied: Sequence[Any], row_of: Callable[[Any], Row | None]
) -> list[Any]:
    """Return the sources of the copies `copied` whose memory a final write may change."""
    written_arguments = {x for n in final_writes for x in n.args[:1]}
    sources = (
        x
        for n in copied
        for x in nodes_in(n.args[1:])
        if aliased_values([x], row_of) & written_arguments
    )
    return list(dict.fromkeys(sources))


def aliased_values(values: Iterable[Any], row_of: Callable[[Any], Row | None]) -> set[Any]:
    """Return the traced values whose memory the given values may share.

    Follows our views, and calls of torch, which may return their operands.
    """
    sources: set[Any] = set()
    pending = list(values)
    while pending:
        n = pending.pop()
        if n in sources:
            continue
        sources.add(n)
        row = row_of(n)
        if n.op == "call_function" and (row is None or row.alias):
            pending += nodes_in((n.args, n.kwargs))
    return sources


def nodes_in(nest: Any) -> list[Any]:
    """Return the traced values in an operator's arguments."""
    result: list[Any] = []
    map_arg(nest, result.append)
    return result


def is_mutating(node: Any) -> bool:
    """Whether a call writes into one of its operands."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def mutated_values(node: Any) -> list[Any]:
    """Return the traced values that a call writes into."""
    names = {a.name for a in node.target._schema.arguments if a.is_write}
    operands = dict(zip([a.name for a in node.target._schema.arguments], node.args)) | node.kwargs
    return [x for name in names if name in operands for x in nodes_in(operands[name])]


def is_random(node: Any) -> bool:
    """Whether a call draws from torch's random stream, itself or through a wrapped function."""
    called = (node.target, *node.args[:1])
    return any(torch.Tag.nondeterministic_seeded in getattr(f, "tags", ()) for f in called)


# ---- calls ---------------------------------------------------------------------------------------


class InPlaceInputs:
    """Arguments that one graph writes in place, checked for overlap in each call."""

    def __init__(self, executable: Any, written: Mapping[int, int], dense: Sequence[bool]) -> None:
        """Find the inputs that kernels write.

        `written` maps outputs to the inputs whose new values they are; `dense` says which inputs
        have no gaps between elements.
        """
        values = [executable.values[v] for v in executable.outputs]
        self.inputs = [i for j, i in written.items() if values[j].overwrites == i]
        """The inputs that kernels write."""
        self._dense = dense
        self._spans: dict[tuple[int, ...], list[int | None]] = {}
        self._last_disjoint: tuple[list[int], tuple[int, ...]] | None = None

    def overlapping_inputs(
        self, tensors: Sequence[torch.Tensor], sizes: tuple[int, ...]
    ) -> list[int]:
        """Return the written inputs that share memory with another input in this call."""
        where = [t.data_ptr() for t in tensors]
        if self._last_disjoint == (where, sizes):
            return []
        cached_spans = self._spans.get(sizes)
        if cached_spans is None:
            both = zip(tensors, self._dense, strict=True)
            cached_spans = [span_bytes(t) if dense else None for t, dense in both]
            self._spans = {sizes: cached_spans}
        spans = [
            span_bytes(t) if n is None else n for n, t in zip(cached_spans, tensors, strict=True)
        ]
        begin = np.array(where, np.int64)
        end = begin + np.array(spans, np.int64)
        order = np.argsort(begin, kind="stable")
        if (begin[order][1:] >= np.maximum.accumulate(end[order])[:-1]).all():
            if all(self._dense):  # otherwise strides matter, which may differ in the next call
                self._last_disjoint = where, sizes
            return []
        return [i for i in self.inputs if ((begin < end[i]) & (end > begin[i])).sum() > 1]


def span_bytes(t: torch.Tensor) -> int:
    """Return the bytes from the first element to the end of the last."""
    if not t.numel():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))) * t.itemsize


# pyright: reportUnknownMemberType=false


_MIN_BYTES = 1 << 16
"""Minimum bytes of an argument for torch to write a part of it rather than a kernel all of it."""
_MIN_RATIO = 4
"""The argument must have at least this many times as many bytes as the part for that."""


# ---- analysis ------------------------------------------------------------------------------------


def find_updates(graph: torch.fx.Graph, row_of: Callable[[Any], Row | None]) -> dict[Any, Any]:
    """Return the operators that may write a part of an argument in place.

    Maps each to its argument. What reads the old value must lead to the write and nowhere else, and
    no result may share the argument's memory.
    """
    if not any(map(_is_update, graph.nodes)):
        return {}
    output = next(n for n in graph.nodes if n.op == "output")
    results = aliased_values((n for n in nodes_in(output.args) if not is_write(n)), row_of)
    in_place: dict[Any, Any] = {}
    for write in filter(is_write, graph.nodes):
        argument, n = write.args[0], write.args[1]
        steps: list[Any] = []
        while _is_update(n):
            steps.append(n)
            n = n.args[0]
        if n is not argument or not steps or results & {argument, *steps}:
            continue
        pairs = zip([*steps[1:], argument], steps)
        if all(_pays(s, row_of) and _same_layout(s, argument) for s in steps) and all(
            _only_reaches(old, new, write) for old, new in pairs
        ):
            in_place |= dict.fromkeys(steps, argument)
    return in_place


def _is_update(node: Any) -> bool:
    return (
        isinstance(node, torch.fx.Node)
        and str(node.target) in _IN_PLACE
        and not (str(node.target) == "aten.index_put.default" and node.args[3:4] == (True,))
    )


def _pays(step: Any, row_of: Callable[[Any], Row | None]) -> bool:
    """Whether writing in place pays.

    It does if torch would be called anyway, or a small part of a large array is written.
    """
    row = row_of(step)
    return row is None or row.copies_base or _is_small_part(step, step)


def _is_small_part(array: Any, step: Any) -> bool:
    array_bytes = value_bytes(array)
    part_bytes = max(map(value_bytes, nodes_in(step.args[1:])), default=0)
    return array_bytes >= _MIN_BYTES and part_bytes * _MIN_RATIO <= array_bytes


def join_nested_updates(graph: torch.fx.Graph) -> None:
    """Replace updates of views that are written back by updates of the argument."""
    for write in filter(is_write, graph.nodes):
        n = write.args[1]
        while _is_update(n):
            path, inner = _nested_path(n)
            base = n.args[0]
            if path and _is_small_part(n, inner) and _only_reaches(base, n, write):
                with graph.inserting_before(n):
                    joined = graph.call_function(
                        nested_update,
                        (base, path, str(inner.target), *inner.args[1:]),
                        inner.kwargs,
                    )
                joined.meta = n.meta
                n.replace_all_uses_with(joined)
            n = base
    graph.eliminate_dead_code()


def _nested_path(step: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the nested views that a step writes, and what writes the innermost."""
    path: list[Any] = []
    while str(step.target) in _VIEWS and _is_update(inner := step.args[1]):
        view = inner.args[0]
        name, where = _VIEWS[str(step.target)], step.args[2:]
        if str(view.target) != f"aten.{name}" or view.args[1:] != where:
            break
        if not _is_same_view(view.args[0], step.args[0]):
            break
        path.append((name, *where))
        step = inner
    return tuple(path), step


def _is_same_view(a: Any, b: Any) -> bool:
    while a is not b:
        if str(a.target) not in (f"aten.{name}" for name in _VIEWS.values()):
            return False
        if a.target is not b.target or a.args[1:] != b.args[1:]:
            return False
        a, b = a.args[0], b.args[0]
    return True


def _same_layout(step: Any, argument: Any) -> bool:
    """Whether a new value has the argument's type, shape and guarded strides."""
    old, new = argument.meta["val"], step.meta["val"]
    return (
        is_guarded(argument)
        and not old.is_neg()
        and not old.is_conj()
        and old.dtype == new.dtype
        and tuple(old.shape) == tuple(new.shape)
        and tuple(old.stride()) == tuple(new.stride())
        and memory_order(old) is not None
    )


def _only_reaches(old: Any, new: Any, write: Any) -> bool:
    """Whether everything that depends on `old` is read only by `new` or `write`."""
    pending, seen = [old], {old}
    while pending:
        n = pending.pop()
        for user in n.users:
            if user in (new, write) or user in seen or _is_type_only(user, n):
                continue
            if user.op == "output" or is_write(user):
                return False
            seen.add(user)
            pending.append(user)
    return True


def _is_type_only(user: Any, n: Any) -> bool:
    """Whether a copy uses a value only for its type and shape."""
    return str(user.target) == "aten.copy.default" and n not in nodes_in(user.args[1:])


def value_bytes(node: Any) -> int:
    """Return the bytes of a tensor in the traced call.

    0 for a number or unknown sizes.
    """
    fake = node.meta.get("val")
    return (nbytes(fake.numel()) or 0) * fake.itemsize if isinstance(fake, torch.Tensor) else 0


# ---- calls ---------------------------------------------------------------------------------------


def _slice(x: Any, y: Any, dim: int = 0, *range_: Any) -> None:
    torch.ops.aten.slice.Tensor(x, dim, *range_).copy_(y)


def _select(x: Any, y: Any, dim: int, position: int) -> None:
    x.select(dim, position).copy_(y)


_ATEN: Any = torch.ops.aten
_WRITES = """
    index_put.default index_add.default index_copy.default index_reduce.default scatter.src
    scatter.value scatter_add.default scatter_reduce.two
"""
_IN_PLACE: dict[str, Callable[..., Any]] = {
    **{f"aten.{n}": overloads(n.replace(".", "_."))[0] for n in _WRITES.split()},
    "aten.slice_scatter.default": _slice,
    "aten.select_scatter.default": _select,
}
"""Operator that gives a new value of its first argument -> function that writes into it."""
_VIEWS = {"aten.slice_scatter.default": "slice.Tensor", "aten.select_scatter.default": "select.int"}
"""Operator that writes a view -> the operator that makes the view."""


def _write_nested(x: Any, path: Any, update: str, *more: Any, **options: Any) -> None:
    for name, *where in path:
        operator, overload = name.split(".")
        x = getattr(getattr(_ATEN, operator), overload)(x, *where)
    _IN_PLACE[update](x, *more, **options)


def nested_update(x: Any, path: Any, update: str, *more: Any, **options: Any) -> Any:
    """Return a copy of `x` with `update` applied to the view along `path`."""
    x = x.clone()
    _write_nested(x, path, update, *more, **options)
    return x


_IN_PLACE[str(nested_update)] = _write_nested


class Update:
    """A partial write, in place or into a copy."""

    __slots__ = ("_fresh", "_write")

    def __init__(self, fresh: Any) -> None:
        self._fresh, self._write = fresh, _IN_PLACE[str(fresh)]

    def __call__(self, in_place: bool, x: torch.Tensor, *more: Any, **options: Any) -> torch.Tensor:
        if not in_place:
            return self._fresh(x, *more, **options)
        self._write(x, *more, **options)
        return x


def copy_if_new(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return an argument with its new value.

    The value is copied in if it was not written in place.
    """
    return old if new is old else old.copy_(new)


def share_no_memory(written: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether no written argument shares memory with another argument.

    >>> x = torch.zeros(6)
    >>> (
    ...     share_no_memory([x[:3]], [x[3:]]),
    ...     share_no_memory([x[:4]], [x[3:]]),
    ...     share_no_memory([x, x], []),
    ... )
    (True, False, False)
    """
    by_storage: dict[int, list[torch.Tensor]] = {}
    for x in (*written, *others):
        by_storage.setdefault(x.untyped_storage().data_ptr(), []).append(x)
    if len(by_storage) == len(written) + len(others):
        return True
    for k, x in enumerate(written):
        begin, end = x.data_ptr(), x.data_ptr() + span_bytes(x)
        for j, y in enumerate((*written, *others)):
            if j != k and begin < y.data_ptr() + span_bytes(y) and y.data_ptr() < end:
                return False
    return True


_MIN_ELEMENTS = 32768
"""Minimum elements for which normalising negative positions first pays. A quarter for each further
dimension: `index_put` then computes every element's offset from all positions."""
_MIN_ROW = 32
"""Elements that each position must take at least, for an `index_add` to pay."""


def fast_index_put(
    x: torch.Tensor,
    positions: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    *,
    in_place: bool = False,
) -> torch.Tensor:
    """`aten.index_put`, with the same result up to the order of sums.

    With `in_place` it writes into `x`, which nothing else reads.

    >>> x = torch.zeros(3)
    >>> y = fast_index_put(x, [torch.tensor([1, 1])], torch.ones(2), True, in_place=True)
    >>> y is x, x.tolist()
    (True, [0.0, 2.0, 0.0])
    """
    first = next((d for d, p in enumerate(positions) if p is not None), 0)
    if accumulate and values.numel() * 4 ** len(positions[first + 1 :]) >= _MIN_ELEMENTS:
        rows = _row_positions(x, first, positions[first:], values)
        if rows:
            return _add_rows(in_place, x, first, rows, values)
    function = _ATEN.index_put_.default if in_place else _ATEN.index_put.default
    return function(x, positions, values, accumulate)


def _row_positions(
    x: torch.Tensor, first: int, positions: Sequence[torch.Tensor | None], values: torch.Tensor
) -> list[torch.Tensor]:
    """Return the positions along each dimension from `first` on.

    Empty if they do not vary along a dimension of their own, or each takes too few elements.
    """
    rows: list[torch.Tensor] = []
    for k, index in enumerate(positions):
        own_dims = len(positions) - k  # dimensions of `index` from its own one on
        if index is None or index.dtype != torch.int64 or index.dim() < own_dims:
            return []
        if index.numel() != index.shape[-own_dims] or index.numel() * _MIN_ROW > values.numel():
            return []
        rows.append(index.reshape(-1))
    counts = [index.numel() for index in rows]
    shape = [*x.shape[:first], *counts, *x.shape[first + len(rows) :]]
    is_supported = values.dtype == x.dtype and x.is_floating_point()
    return rows if is_supported and list(values.shape) == shape else []


def _add_rows(
    in_place: bool, x: torch.Tensor, first: int, rows: Sequence[torch.Tensor], values: torch.Tensor
) -> torch.Tensor:
    """Add dimension by dimension, from the last."""
    for d in reversed(range(first, first + len(rows))):
        size = x.shape[d]
        index = rows[d - first]
        target = (
            x if d == first else values.new_zeros([*values.shape[:d], size, *values.shape[d + 1 :]])
        )
        index = torch.where(index < 0, index + size, index)
        if d == first and not in_place:
            values = torch.index_add(target, d, index, values)
        else:
            values = target.index_add_(d, index, values)
    return values


# ---- in a traced program -------------------------------------------------------------------------

_PUTS = overloads("index_put.default _unsafe_index_put.default")
_ACCUMULATIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_PUTS, partial(fast_index_put, in_place=True)),
    **{
        op: _IN_PLACE[str(op)]
        for op in overloads("""
            index_add.default index_copy.default scatter.src scatter.value scatter_add.default
            scatter_reduce.two
        """)
    },
}
"""Operator that copies its first operand -> function that writes into it."""
_FULL_PRECISION = (torch.float32, torch.float64)
"""Types in which a sum may start from the other gradient: in half types small terms would be lost.
"""


def accumulate_in_place(graph: torch.fx.Graph) -> None:
    """Accumulate into a value what was added to zeros and then to that value.

    Also gives each scatter into a constant array its own copy of the array.
    """
    for node in list(graph.nodes):
        if node.target is _ATEN.add.Tensor and len(node.args) == 2 and not node.kwargs:
            _merge_add(graph, node)
    for node in graph.nodes:
        if (
            node.target in _ACCUMULATIONS
            and _is_filled(base := node.args[0])
            and len(base.users) > 1
        ):
            with graph.inserting_before(node):
                copy = graph.node_copy(base)
            node.replace_input_with(base, copy)


def _merge_add(graph: torch.fx.Graph, node: Any) -> None:
    """Replace a + scatter(zeros, ..) by scatter(a, ..)."""
    for a, b in (node.args, node.args[::-1]):
        if not all(isinstance(x, torch.fx.Node) for x in (a, b)) or a is b:
            continue
        of_zeros = (
            _is_accumulation(b) and len(b.users) == 1 and _is_filled(b.args[0], with_zeros=True)
        )
        if not of_zeros or not _have_one_layout(a, b, node) or (_is_filled(a) and len(a.users) > 1):
            continue
        with graph.inserting_before(node):
            scatter = graph.call_function(b.target, (a, *b.args[1:]))
        scatter.meta = node.meta
        node.replace_all_uses_with(scatter)
        graph.erase_node(node)
        graph.erase_node(b)
        return


def _is_accumulation(node: Any) -> bool:
    return node.target in _PUTS and node.args[3:4] == (True,)


def _is_filled(node: Any, *, with_zeros: bool = False) -> bool:
    """Whether a node gives an array of one number."""
    if not isinstance(node, torch.fx.Node) or node.target is not _ATEN.full.default:
        return False
    number = node.args[1]
    return not with_zeros or (isinstance(number, (int, float)) and number == 0)


def _have_one_layout(*values: Any) -> bool:
    """Whether values have one type and shape, and first and last equal strides."""
    fakes = [n.meta.get("val") for n in values]
    if not all(isinstance(x, torch.Tensor) and x.dtype in _FULL_PRECISION for x in fakes):
        return False
    # Sizes are compared as text: comparing symbols would add a guard.
    first, *_, last = fakes
    equal = len({(x.dtype, str(x.shape)) for x in fakes}) == 1
    return equal and str(first.stride()) == str(last.stride())


def in_place_function(node: Any, row_of: Callable[[Any], Row | None]) -> Callable[..., Any] | None:
    """Return the function that writes an operator's result into its first operand.

    None unless that is a dense value of the program's own that nothing else reads.
    """
    if node.target not in _ACCUMULATIONS or nodes_in(node.args).count(node.args[0]) != 1:
        return None
    base = node.args[0]
    if not isinstance(fake := base.meta.get("val"), torch.Tensor) or memory_order(fake) is None:
        return None
    while base.op == "call_function" and len(base.users) == 1:
        row = row_of(base)
        if _is_filled(base) or (row is not None and not row.alias and not row.source):
            return _ACCUMULATIONS[node.target]
        if row is None or not row.alias:
            return None
        base = base.args[0]
    return None
