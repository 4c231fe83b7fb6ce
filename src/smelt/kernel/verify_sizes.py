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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final, NoReturn

from smelt.errors import OverflowSizeError, VerifyError
from smelt.kernel import ir, walk
from smelt.kernel.bounds import as_index
from smelt.kernel.count_stores import count_stored
from smelt.kernel.specialize_small_sizes import with_sizes
from smelt.kernel.text_print import statement_text
from smelt.kernel.verify import verify
from smelt.types.expr import Index, sizes_of, text
from smelt.types.intervals import LIMIT, interval, number
from smelt.types.tensor import MAX_BYTES, check_contiguous

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
