"""Count the memory sectors that neighbouring lanes touch, from a kernel's index expressions.

Thirty-two lanes take neighbouring positions along one axis, as a warp of a GPU does; all other
axes are at their first position. A processor's vector is the first few of these lanes.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel k(x: f32[c,r]) -> y: f32[r,c]
...   grid r, c/4096
...   y[r,c] = x[c,r]
... ''')
>>> for a in access_patterns(0, kernel, {"r": 64, "c": 64}):
...     print(a.text, a.lanes[a.chosen].axis, a.lanes[a.chosen].kind, a.lanes[a.chosen].sectors)
x[c,r] c strided 32
y[r,c] c contiguous 4
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from smelt.explain.page_data import AccessPattern, Lanes
from smelt.kernel.env import Env, index_axes
from smelt.kernel.ir import Block, Kernel, Param, Stream
from smelt.kernel.text_print import index_text
from smelt.kernel.walk import loads, positions_of, statements, stores
from smelt.types.expr import Index, axes_of, evaluate

LANES = 32
SECTOR, LINE, WIDE_LINE = 32, 64, 128
"""Bytes of a sector, of a processor's cache line, and of a GPU's."""

Kind = Literal["same", "contiguous", "strided", "scattered"]


def access_patterns(
    number: int, kernel: Kernel, sizes: Mapping[str, int]
) -> tuple[AccessPattern, ...]:
    """Return the distinct loads and stores of a kernel with their lanes, loads first."""
    env = Env.after(kernel)
    extents = {a.name: int(evaluate(a.extent, sizes)) for a in kernel.axes}
    fixed = _fixed_axes(kernel) | {name for name, n in extents.items() if n <= 1}
    preferred = _result_axes(kernel, env, fixed)
    patterns: list[AccessPattern] = []
    for param, index, stored in dict.fromkeys(_accesses(kernel)):
        array = kernel.param(param)
        axes = [a.name for a in kernel.axes if a.name in index_axes(index, env) - fixed]
        innermost = [a for e in index for a in axes_of(e) if a in axes]
        usual = next((a for a in preferred[:1] if a in axes), innermost[-1] if innermost else None)
        axes += [a for a in preferred[:1] if not axes]
        usual = usual or (axes[0] if axes else None)
        lanes = tuple(_lanes(array, index, a, extents, sizes, env) for a in axes)
        patterns.append(
            AccessPattern(
                kernel=number,
                array=param,
                role="out" if stored else "in",
                text=f"{param}[{index_text(index)}]",
                itemsize=array.dtype.itemsize,
                chosen=axes.index(usual) if usual is not None else 0,
                lanes=lanes or (_lanes(array, index, "", {"": LANES}, sizes, env),),
            )
        )
    return tuple(patterns)


def _accesses(kernel: Kernel) -> Iterator[tuple[str, tuple[Index, ...], bool]]:
    for load in loads(kernel):
        yield load.param, load.index, False
    for store in stores(kernel):
        yield store.param, store.index, True


def _fixed_axes(kernel: Kernel) -> set[str]:
    """Return the axes that take one position per block, which lanes cannot run along."""
    blocks = [b for b in kernel.grid if isinstance(b, Block)]
    blocks += [b for s in statements(kernel) if isinstance(s, Stream) for b in s.blocks]
    return {b.axis for b in blocks if b.size == 1}


def _result_axes(kernel: Kernel, env: Env, fixed: set[str]) -> list[str]:
    """Return axes along which results are stored, those of the last dimension first."""
    axes: list[str] = []
    for store in stores(kernel):
        for e in reversed(store.index):
            axes += [a.name for a in kernel.axes if a.name in index_axes((e,), env) - fixed]
    return list(dict.fromkeys(axes))


def _lanes(
    array: Param,
    index: tuple[Index, ...],
    axis: str,
    extents: Mapping[str, int],
    sizes: Mapping[str, int],
    env: Env,
) -> Lanes:
    """Return the positions of the lanes along an axis, and the sectors they fall into."""
    shape = tuple(int(evaluate(d, sizes)) for d in array.shape)
    size = array.dtype.itemsize
    count = min(LANES, extents.get(axis, LANES))
    computed = {p for e in index for p in positions_of(e)}
    if any(axis in env.lookup(p).axes for p in computed):
        return _data_dependent(axis, count, size)
    at = np.arange(count, dtype=np.int64)
    zero = np.zeros(count, np.int64)
    variables = {a: at if a == axis else zero for e in index for a in axes_of(e)}
    variables |= dict.fromkeys(computed, zero)
    offsets, inside = np.zeros(count, np.int64), np.ones(count, bool)
    for e, n, stride in zip(index, shape, _strides(array, shape), strict=True):
        position = np.broadcast_to(np.asarray(evaluate(e, sizes, variables), np.int64), at.shape)
        offsets = offsets + position * stride
        inside &= (position >= 0) & (position < n)
    kind, stride = _kind(offsets[inside])
    sectors, lines, wide = (
        len(set(offsets[inside] * size // b)) for b in (SECTOR, LINE, WIDE_LINE)
    )
    return Lanes(
        axis=axis,
        kind=kind,
        stride=stride,
        offsets=tuple(int(o) if i else None for o, i in zip(offsets, inside, strict=True)),
        sectors=sectors,
        lines_64=lines,
        lines_128=wide,
        least=-(-int(inside.sum()) * size // SECTOR),
    )


def _strides(array: Param, shape: Sequence[int]) -> list[int]:
    """Return strides in elements; those passed at the call count as contiguous."""
    strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    if array.strides is not None:
        pairs = zip(array.strides, strides, strict=True)
        strides = [row if fixed is None else fixed for fixed, row in pairs]
    return strides


def _kind(offsets: np.ndarray) -> tuple[Kind, int | None]:
    steps = set(np.diff(offsets).tolist())
    if steps <= {0}:
        return "same", 0
    if steps == {1}:
        return "contiguous", 1
    return ("strided", steps.pop()) if len(steps) == 1 else ("scattered", None)


def _data_dependent(axis: str, count: int, size: int) -> Lanes:
    """Return lanes whose positions depend on data: in the worst case a sector for each."""
    return Lanes(
        axis=axis,
        kind="scattered",
        stride=None,
        offsets=(None,) * count,
        sectors=count,
        lines_64=count,
        lines_128=count,
        least=-(-count * size // SECTOR),
    )
