"""Verify a kernel at the sizes of a call, for kernels that come as text.

`smelt.kernel.verify` proves a kernel for all sizes of at least 1 in exact integers. A call needs
more: sizes may be 0, 64-bit arithmetic may overflow, facts may fail, and results may not be stored
completely. What cannot be proven for all sizes is proven here for these sizes, or refused.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel k(x: f32[m]) -> y: f32[n]
...   y[n] = x[n + 1]
... ''')
>>> verify_sizes(kernel, {"n": 3, "m": 4})
>>> verify_sizes(kernel, {"n": 3, "m": 3})
Traceback (most recent call last):
    ...
smelt.errors.VerifyError: E405 not well formed: kernel k, `y[n] = x[n + 1]`: the index n + 1 can
    leave dimension 0 of x, which has 3 elements
...
>>> kernel = parse('''
... kernel k(x: f32[8]) -> y: f32[8]
...   axis i in 8
...   y[i] = x[i] where (i < 3) | (i > 5)
... ''')
>>> count_stored(kernel, "y")
5
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Final, NoReturn

import numpy as np

from smelt.errors import OverflowSizeError, VerifyError
from smelt.kernel import ir, walk
from smelt.kernel.bounds import as_index, resolve
from smelt.kernel.size_constants import with_sizes
from smelt.kernel.text_print import statement_text
from smelt.kernel.verify import verify
from smelt.types.expr import Atom, Index, atoms, evaluate, sizes_of, text
from smelt.types.intervals import LIMIT, interval, number
from smelt.types.tensor import MAX_BYTES, check_contiguous

MAX_POINTS: Final = 1 << 22
"""Maximum positions at which one condition is evaluated."""
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_COMBINE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}

Lets = Mapping[str, ir.Value]


class _Unknown(Exception):
    """A number of positions that depends on data, or is too expensive to count."""


def count_stored(kernel: ir.Kernel, param: str) -> int | None:
    """Return how many elements of an output are stored, None if that depends on data.

    The kernel has numbers for all sizes, and its stores write every element once at most.
    Scatter-reduce stores do not count: a plain store was there before.
    """
    extents = {a.name: _integer(a.extent) for a in kernel.axes}
    grid = {b.axis: extents[b.axis] for b in kernel.grid if isinstance(b, ir.Block)}
    try:
        return sum(
            _count(s, visited, lets)
            for s, visited, lets in _stores(kernel.body, grid, {}, extents)
            if s.param == param and not s.join
        )
    except _Unknown:
        return None


def _integer(e: Index) -> int:
    if not isinstance(e, int):
        raise _Unknown
    return e


def _stores(
    body: tuple[ir.Statement, ...],
    visited: dict[str, int],
    lets: dict[str, ir.Value],
    extents: Mapping[str, int],
) -> Iterator[tuple[ir.Store, dict[str, int], Lets]]:
    """Yield each store with the number of visited positions of the axes around it.

    A negative number stands for visits that depend on data.
    """
    for s in body:
        if isinstance(s, ir.Store):
            yield s, visited, lets
        elif isinstance(s, ir.Let | ir.Position):
            lets[s.name] = s.value
        elif isinstance(s, ir.Stream):
            inner = visited | {b.axis: _visited(b, s, lets, extents) for b in s.blocks}
            yield from _stores(s.body, inner, dict(lets), extents)


def _visited(block: ir.Block, stream: ir.Stream, lets: Lets, extents: Mapping[str, int]) -> int:
    """Return how many positions of an axis a stream visits.

    -1 if that depends on data.
    """
    if stream.where is not None:
        return -1
    extent = extents[block.axis]
    ends = [
        default if v is None else as_index(v, lets)
        for v, default in ((block.start, 0), (block.stop, extent))
    ]
    start, stop = (min(max(e, 0), extent) if isinstance(e, int) else None for e in ends)
    return -1 if start is None or stop is None else max(stop - start, 0)


def _count(s: ir.Store, visited: Mapping[str, int], lets: Lets) -> int:
    """Return how many positions one store writes."""
    lengths = dict(visited)
    for atom in (a for e in s.index for a in atoms(e) if a.kind == "axis"):
        lengths.setdefault(atom.name, _integer(atom.extent))
    if 0 in lengths.values():
        return 0
    if min(lengths.values(), default=0) < 0:
        raise _Unknown
    total = 1
    for axes, conditions in _groups([] if s.where is None else _conjuncts(s.where, lets), lets):
        if any(lengths.get(a, n) != n for a, n in axes.items()):
            raise _Unknown  # a condition inside a stream that visits a part of the axis
        if prod(axes.values()) > MAX_POINTS:
            raise _Unknown
        positions = np.indices([*axes.values()], np.int64, sparse=True)
        named = dict(zip(axes, positions, strict=True))
        holds = np.ones([*axes.values()], bool)
        for condition in conditions:
            holds &= _evaluate(condition, named, lets)
        total *= int(np.count_nonzero(holds))
        for a in axes:
            lengths[a] = 1
    return total * prod(lengths.values())


def _conjuncts(condition: ir.Value, lets: Lets) -> list[ir.Value]:
    resolved = resolve(condition, lets)
    if isinstance(resolved, ir.Apply) and resolved.op == "and":
        return [c for arg in resolved.args for c in _conjuncts(arg, lets)]
    return [resolved]


def _groups(conditions: list[ir.Value], lets: Lets) -> list[tuple[dict[str, int], list[ir.Value]]]:
    """Group conditions that share axes; each group with the extents of its axes."""
    groups: list[tuple[dict[str, int], list[ir.Value]]] = []
    for condition in conditions:
        axes = {a.name: _integer(a.extent) for a in _axes(condition, lets)}
        members = [condition]
        for group in [g for g in groups if g[0].keys() & axes.keys()]:
            groups.remove(group)
            axes, members = group[0] | axes, [*group[1], *members]
        groups.append((axes, members))
    return groups


def _axes(condition: ir.Value, lets: Lets) -> Iterator[Atom]:
    """Yield the axes of a condition over positions; raise _Unknown for one over data."""
    v = resolve(condition, lets)
    if isinstance(v, ir.Const):
        return
    if isinstance(v, ir.Apply) and (v.op in _COMBINE or v.op == "not"):
        for arg in v.args:
            yield from _axes(arg, lets)
        return
    if not isinstance(v, ir.Apply) or v.op not in _COMPARE:
        raise _Unknown
    for arg in v.args:
        e = as_index(arg, lets)
        if e is None:
            raise _Unknown
        for atom in atoms(e):
            if atom.kind == "axis":
                yield atom
            elif atom.kind == "value":
                raise _Unknown


def _evaluate(condition: ir.Value, positions: Mapping[str, Any], lets: Lets) -> Any:
    v = resolve(condition, lets)
    if isinstance(v, ir.Const):
        return bool(v.value)
    assert isinstance(v, ir.Apply)
    if v.op == "not":
        return ~np.asarray(_evaluate(v.args[0], positions, lets))
    left, right = v.args
    if v.op in _COMBINE:
        sides = (np.asarray(_evaluate(x, positions, lets)) for x in v.args)
        return _COMBINE[v.op](*sides)
    a, b = as_index(left, lets), as_index(right, lets)
    assert a is not None and b is not None
    return np.asarray(_COMPARE[v.op](evaluate(a, {}, positions), evaluate(b, {}, positions)))


Sizes = Mapping[str, int]
MAX_PARTS: Final = 2**31
"""Maximum parts that the grid may split an axis into."""
MAX_CHAINED: Final = 512
"""Maximum operators that a value may wait for one after another; code generation recurses."""


def size_names(kernel: ir.Kernel) -> tuple[str, ...]:
    """Return the sizes that a kernel mentions, in order of their first appearance."""
    dims = [d for p in (*kernel.inputs, *kernel.outputs) for d in p.shape]
    expressions = [*dims, *(a.extent for a in kernel.axes), *kernel.facts]
    expressions += [s.parts for s in walk.splits(kernel)]
    for s in walk.statements(kernel):
        expressions += walk.indices_of(s)
    return tuple(dict.fromkeys(name for e in expressions for name in sizes_of(e)))


def verify_sizes(kernel: ir.Kernel, sizes: Sizes) -> None:
    """Check that a call with these sizes is safe and computes every result.

    Arrays are contiguous. Raises VerifyError, OverflowSizeError for sizes and indices that 64 bits
    cannot hold, and ShapeError for declared strides of other arrays.
    """
    _check_names(kernel)
    _check_chains(kernel)
    _check_parameters(kernel, sizes)
    _check_grid(kernel, sizes)
    try:
        verify(kernel)
        proven = all(n >= 1 for n in sizes.values())
    except VerifyError:
        proven = False
    _check_arithmetic(kernel, sizes)
    if _is_empty(kernel, sizes):
        if not proven:  # nothing runs, but a text that is not a kernel at all stays refused
            verify(kernel)
        return
    fixed = with_sizes(kernel, sizes)
    if not proven:
        verify(fixed)
    _check_positions(kernel, sizes)
    _check_results(kernel, fixed)


def _refuse(kernel: ir.Kernel, reason: str, statement: ir.Statement | None = None) -> NoReturn:
    where = f"kernel {kernel.name}"
    if statement is not None:
        where += f", `{statement_text(statement, kernel)}`"
    raise VerifyError(f"{where}: {reason}")


def _is_empty(kernel: ir.Kernel, sizes: Sizes) -> bool:
    """Return whether all results are empty: then nothing runs."""
    return all(0 in [number(d, sizes) for d in p.shape] for p in kernel.outputs)


# ---- names and chains --------------------------------------------------------------------------


def _check_names(kernel: ir.Kernel) -> None:
    """Check that every size is that of a parameter or a number of parts."""
    dims = [d for p in (*kernel.inputs, *kernel.outputs) for d in p.shape]
    parts = [s.parts for s in walk.splits(kernel)]
    defined = {name for e in (*dims, *parts) for name in sizes_of(e)}
    unknown = [name for name in size_names(kernel) if name not in defined]
    if unknown:
        _refuse(kernel, f"the size {unknown[0]} follows from no array")


def _check_chains(kernel: ir.Kernel) -> None:
    """Check that no value needs too many operators one after another, through names too."""
    depths: dict[str, int] = {}
    for s, _ in _in_scope(kernel.body, {}):
        depth = max((_depth(v, depths) for v in walk.values_of(s)), default=0)
        if depth > MAX_CHAINED:
            _refuse(kernel, f"a chain of more than {MAX_CHAINED} operators", s)
        if isinstance(s, ir.Let | ir.Position | ir.Update):
            depths[s.state if isinstance(s, ir.Update) else s.name] = depth


def _depth(value: ir.Value, depths: Mapping[str, int]) -> int:
    if isinstance(value, ir.Ref):
        return depths.get(value.name, 0)
    return 1 + max((_depth(v, depths) for v in walk.children(value)), default=0)


# ---- parameters and grid -----------------------------------------------------------------------


def _check_parameters(kernel: ir.Kernel, sizes: Sizes) -> None:
    """Check facts, dimensions, bytes and strides."""
    for name, n in sizes.items():
        if n < 0:
            _refuse(kernel, f"the size {name} is {n}")
    for fact in kernel.facts:
        if number(fact, sizes) < 0:
            shown = ", ".join(f"{name}={n}" for name, n in sizes.items())
            _refuse(kernel, f"it requires {text(fact)} >= 0, which fails for {shown}")
    for p in (*kernel.inputs, *kernel.outputs):
        shape = [number(d, sizes) for d in p.shape]
        if min(shape, default=0) < 0:
            _refuse(kernel, f"{p.name} has the shape {shape} at the sizes of this call")
        nbytes = prod(max(n, 1) for n in shape) * p.dtype.itemsize
        if nbytes > MAX_BYTES:
            raise OverflowSizeError(what=p.name, bytes=nbytes)
        check_contiguous(p.name, shape, p.strides)


def _check_grid(kernel: ir.Kernel, sizes: Sizes) -> None:
    """Check extents of axes, numbers of parts and the number of tasks."""
    extents = {a.name: number(a.extent, sizes) for a in kernel.axes}
    for name, n in extents.items():
        if n < 0:
            _refuse(kernel, f"the axis {name} has the extent {n} at the sizes of this call")
    tasks = 1
    for entry in kernel.grid:
        if isinstance(entry, ir.Split):
            parts = number(entry.parts, sizes)
            if not 1 <= parts <= MAX_PARTS:
                _refuse(kernel, f"{entry.name} numbers {parts} parts at the sizes of this call")
            tasks *= parts
        elif isinstance(entry, ir.Block):
            tasks *= max(extents.get(entry.axis, 1), 1)
    if tasks >= LIMIT:
        raise OverflowSizeError(f"kernel {kernel.name} has {tasks} blocks at these sizes")


# ---- index arithmetic --------------------------------------------------------------------------


def _check_arithmetic(kernel: ir.Kernel, sizes: Sizes) -> None:
    """Check that no index and no condition that proofs rely on overflows 64 bits."""
    params = {p.name: p for p in (*kernel.outputs, *kernel.inputs)}
    for s, lets in _in_scope(kernel.body, {}):
        try:
            if isinstance(s, ir.Store):
                _check_offset(params.get(s.param), s.index, sizes)
            if isinstance(s, ir.Position):
                interval(s.extent, sizes)
            for v in walk.visit_statement(s):
                if isinstance(v, ir.Load):
                    _check_offset(params.get(v.param), v.index, sizes)
                elif isinstance(v, ir.IndexValue | ir.Apply):
                    e = v.index if isinstance(v, ir.IndexValue) else as_index(v, lets)
                    interval(0 if e is None else e, sizes)
        except VerifyError as error:
            _refuse(kernel, error.message, s)


def _check_offset(param: ir.Param | None, index: tuple[Index, ...], sizes: Sizes) -> None:
    """Check an index in bytes from the start of its array."""
    scale = 1 if param is None else param.dtype.itemsize
    shape = () if param is None else param.shape
    for k, e in reversed([*enumerate(index)]):
        interval(e, sizes, scale)
        if k < len(shape):
            scale *= max(number(shape[k], sizes), 1)


def _in_scope(
    body: tuple[ir.Statement, ...], lets: dict[str, ir.Value]
) -> Iterator[tuple[ir.Statement, Mapping[str, ir.Value]]]:
    """Yield each statement with the definitions of the names it may read."""
    for s in body:
        yield s, lets
        if isinstance(s, ir.Let | ir.Position):
            lets[s.name] = s.value
        elif isinstance(s, ir.Stream):
            yield from _in_scope(s.body, dict(lets))


# ---- positions and results ---------------------------------------------------------------------


def _check_positions(kernel: ir.Kernel, sizes: Sizes) -> None:
    """Check that no position is clamped into an empty dimension, where every index is outside."""
    for s in walk.statements(kernel):
        if isinstance(s, ir.Position) and number(s.extent, sizes) < 1:
            _refuse(kernel, f"the position {s.name} is in a dimension without elements", s)


def _check_results(kernel: ir.Kernel, fixed: ir.Kernel) -> None:
    """Check that the stores of a kernel with fixed sizes cover every result.

    No two of them write the same element, so that their number decides.
    """
    for p in fixed.outputs:
        elements = prod(n for n in p.shape if isinstance(n, int))
        stored = count_stored(fixed, p.name)
        if stored is None:
            _refuse(kernel, f"it cannot be shown that every element of {p.name} is stored")
        if stored != elements:
            _refuse(kernel, f"{stored} of {elements} elements of {p.name} are stored")
