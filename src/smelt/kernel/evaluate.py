"""Evaluate kernel values on named NumPy arrays, for the interpreter.

Reductions and contractions accumulate in the next wider type (float32 in float64, float64 in long
double) and round once, so the results are a reference for any implementation.

    tile = Evaluator(inputs, outputs, sizes, space).value(expression)

>>> space = Space({"r": 0, "c": 1}, {"r": range(0, 2), "c": range(4, 7)})
>>> column = Tile(("c",), (4,), np.arange(3))
>>> space.aligned_data(column, ("r", "c")).shape
(1, 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import VerifyError
from smelt.kernel import ir
from smelt.kernel.memory import AccessError, Buffer
from smelt.ops.cast import cast_reference
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, f32, f64
from smelt.types.expr import Index, atoms, evaluate

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Array with one dimension per named axis, in the kernel's axis order.

    `start` is the first index along each axis, so a tile of a whole row can be cut to a block of
    it.
    """

    axes: tuple[str, ...]
    start: tuple[int, ...]
    data: Array

    @staticmethod
    def scalar(number: Any) -> Tile:
        """Return a tile without axes."""
        return Tile((), (), np.asarray(number))


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Current range of every axis."""

    order: Mapping[str, int]
    ranges: Mapping[str, range]

    def with_ranges(self, ranges: Mapping[str, range]) -> Space:
        """Return the space with other ranges for some axes."""
        return Space(self.order, {**self.ranges, **ranges})

    def sorted(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return axis names without duplicates, in the kernel's order."""
        return tuple(sorted(set(axes), key=lambda a: (self.order.get(a, -1), a)))

    def union(self, *tiles: Tile) -> tuple[str, ...]:
        """Return the axes of several tiles together."""
        return self.sorted(a for t in tiles for a in t.axes)

    def shape(self, axes: Iterable[str]) -> tuple[int, ...]:
        """Return the lengths of axes in the current block."""
        return tuple(len(self.ranges[a]) for a in axes)

    def tile(self, axes: tuple[str, ...], data: Array) -> Tile:
        """Return a tile of the current block from an array that broadcasts over `axes`."""
        full = np.broadcast_to(data, self.shape(axes))
        return Tile(axes, tuple(self.ranges[a].start for a in axes), full)

    def positions(self, axis: str) -> Tile:
        """Return the indices of an axis in the current block."""
        current = self.ranges[axis]
        return Tile(
            (axis,), (current.start,), np.arange(current.start, current.stop, dtype=np.int64)
        )

    def cut(self, tile: Tile) -> Tile:
        """Return the part of a tile inside the current block.

        Raises VerifyError if the tile was computed for another block.
        """
        cuts: list[slice] = []
        for axis, start, length in zip(tile.axes, tile.start, tile.data.shape, strict=True):
            current = self.ranges[axis]
            if current.start < start or current.stop > start + length:
                raise VerifyError(
                    f"a value for {axis} in {start}..{start + length - 1} is read in the block"
                    f" {current.start}..{current.stop - 1}"
                )
            cuts.append(slice(current.start - start, current.stop - start))
        return self.tile(tile.axes, tile.data[tuple(cuts)])

    def aligned_data(self, tile: Tile, axes: tuple[str, ...]) -> Array:
        """Return the tile's data with one dimension per axis, of length 1 if missing."""
        lengths = dict(zip(tile.axes, tile.data.shape, strict=True))
        return tile.data.reshape(tuple(lengths.get(a, 1) for a in axes))

    def broadcast_data(self, tile: Tile, axes: tuple[str, ...]) -> Array:
        """Return the tile's data broadcast over `axes`."""
        return np.broadcast_to(self.aligned_data(tile, axes), self.shape(axes))


class Evaluator:
    """Bound names and axis ranges at a program point, and the values there."""

    def __init__(
        self,
        inputs: Mapping[str, Buffer],
        outputs: Mapping[str, Buffer],
        sizes: Mapping[str, int],
        space: Space,
    ) -> None:
        self.inputs, self.outputs, self.sizes, self.space = inputs, outputs, sizes, space
        self.names: dict[str, Tile] = {}
        self.new: dict[str, Tile] = {}
        self.states: Mapping[str, ir.State] = {}
        self.mask: Tile | None = None

    def narrow(self, ranges: Mapping[str, range]) -> Evaluator:
        """Return an evaluator with the same names for a sub-block."""
        inner = Evaluator(self.inputs, self.outputs, self.sizes, self.space.with_ranges(ranges))
        inner.names = dict(self.names)
        return inner

    # ---- indices -------------------------------------------------------------------------------

    def index(self, e: Index) -> Tile:
        """Evaluate an index expression as an i64 tile."""
        variables = {
            a.name: self._variable(a.kind, a.name) for a in atoms(e) if a.kind in _VARIABLES
        }
        axes = self.space.union(*variables.values())
        arrays = {name: self.space.aligned_data(tile, axes) for name, tile in variables.items()}
        return self.space.tile(axes, np.asarray(evaluate(e, self.sizes, arrays), np.int64))

    def _variable(self, kind: str, name: str) -> Tile:
        return self.space.positions(name) if kind == "axis" else self.lookup(name)

    def lookup(self, name: str, *, new: bool = False) -> Tile:
        """Return the part of a bound value inside the current block."""
        tile = (self.new if new else self.names).get(name)
        if tile is None:
            raise VerifyError(f"{name}{chr(39) if new else ''} is read where it has no value yet")
        return self.space.cut(tile)

    # ---- values --------------------------------------------------------------------------------

    def value(self, v: ir.Value) -> Tile:
        """Evaluate a value in the current block."""
        match v:
            case ir.Const(value=number, dtype=dtype):
                return Tile.scalar(np.asarray(number, dtype.numpy).astype(dtype.compute.numpy))
            case ir.IndexValue(index=index, dtype=dtype):
                tile = self.index(index)
                return Tile(tile.axes, tile.start, cast_reference(tile.data, dtype.compute))
            case ir.Load():
                return self._load(v)
            case ir.Apply(op=op, args=args):
                return self.apply(op, [self.value(a) for a in args])
            case ir.Cast(arg=arg, dtype=dtype):
                tile = self.value(arg)
                data = cast_reference(tile.data, dtype).astype(dtype.compute.numpy)
                return Tile(tile.axes, tile.start, data)
            case ir.Reduce(combine=name, arg=arg, over=over, dtype=dtype):
                return self._reduce(name, self._reduction_operand(arg, over), over, dtype.compute)
            case ir.Scan(combine=name, arg=arg, along=along, dtype=dtype):
                return self._scan(
                    name, self._reduction_operand(arg, (along,)), along, dtype.compute
                )
            case ir.Rename(arg=arg, old=old, new=new):
                return self._renamed(self.value(arg), old, new)
            case ir.Dot(left=left, right=right, over=over, dtype=dtype):
                pair = self._reduction_operand(left, over), self._reduction_operand(right, over)
                return self._dot(*pair, over, dtype.compute)
            case ir.Ref(name=name, next=new):
                return self.lookup(name, new=new)
            case ir.If():
                return self._if(v)
            case ir.Partial(condition=condition):
                return Tile.scalar(not self.value(condition).data.all())
            case ir.Extreme(arg=arg, largest=largest):
                data = self.value(arg).data
                return Tile.scalar(data.max() if largest else data.min())

    def _renamed(self, tile: Tile, old: str, new: str) -> Tile:
        axes = tuple(new if a == old else a for a in tile.axes)
        order = self.space.sorted(axes)
        return self.space.tile(order, tile.data.transpose([axes.index(a) for a in order]))

    def _load(self, v: ir.Load) -> Tile:
        tiles = [self.index(e) for e in v.index]
        guard = () if self.mask is None else (self.mask,)
        axes = self.space.union(*tiles, *guard)
        index = tuple(self.space.broadcast_data(t, axes) for t in tiles)
        shape = self.space.shape(axes)
        mask = (
            np.ones(shape, bool)
            if self.mask is None
            else self.space.broadcast_data(self.mask, axes)
        )
        buffer = self.inputs.get(v.param)
        if buffer is None:
            raise VerifyError(f"{v.param} is not an input")
        try:
            if v.param in self.outputs:
                self.outputs[v.param].check_not_stored(index, mask)
            data = buffer.load(index, mask, None if v.other is None else v.other.value)
        except AccessError as error:
            raise VerifyError(self.locate_error(error, axes)) from None
        return self.space.tile(axes, data)

    def locate_error(self, error: AccessError, axes: Sequence[str]) -> str:
        """Append the axis positions of an access error to its message."""
        at = (f"{a} = {self.space.ranges[a][k]}" for a, k in zip(axes, error.position, strict=True))
        return f"{error.message} (at {', '.join(at)})" if axes else error.message

    def apply(self, op: str, args: list[Tile]) -> Tile:
        """Apply a scalar operator's NumPy reference, broadcasting by axis name."""
        axes = self.space.union(*args)
        arrays = [self.space.aligned_data(a, axes) for a in args]
        arrays = list(np.broadcast_arrays(*arrays)) if len(arrays) > 1 else arrays
        with np.errstate(all="ignore"):
            return self.space.tile(axes, np.asarray(SCALARS[op].numpy(*arrays)))

    def _if(self, v: ir.If) -> Tile:
        condition = self.value(v.condition)
        sides = [
            self._masked_value(v.value, condition),
            self._masked_value(v.other, Tile(condition.axes, condition.start, ~condition.data)),
        ]
        axes = self.space.union(condition, *sides)
        arrays = [self.space.aligned_data(t, axes) for t in (condition, *sides)]
        return self.space.tile(axes, np.where(*arrays))

    def _masked_value(self, v: ir.Value, condition: Tile) -> Tile:
        outer = self.mask
        self.mask = condition if outer is None else self.apply("and", [outer, condition])
        tile = self.value(v)
        self.mask = outer
        return tile

    def _reduction_operand(self, v: ir.Value, over: tuple[str, ...]) -> Tile:
        """Evaluate a reduction's operand under the mask projected on the axes kept.

        An element is needed if the reduced result is needed anywhere along the other axes of the
        mask.
        """
        outer = self.mask
        if outer is not None:
            places = tuple(k for k, a in enumerate(outer.axes) if a in over)
            remaining = tuple(k for k in range(len(outer.axes)) if k not in places)
            self.mask = Tile(
                tuple(outer.axes[k] for k in remaining),
                tuple(outer.start[k] for k in remaining),
                np.asarray(outer.data.any(axis=places)),
            )
        tile = self.value(v)
        self.mask = outer
        return tile

    # ---- reductions ----------------------------------------------------------------------------

    def _reduce(self, name: str, arg: Tile, over: tuple[str, ...], dtype: DType) -> Tile:
        row = COMBINES[name]
        axes = self.space.sorted((*arg.axes, *over))
        remaining = tuple(a for a in axes if a not in over)
        data = self.space.broadcast_data(arg, axes)
        data = np.transpose(data, [axes.index(a) for a in (*remaining, *over)])
        data = (
            data.reshape(*self.space.shape(remaining), -1)
            if data.size
            else np.zeros((*self.space.shape(remaining), 0), data.dtype)
        )
        with np.errstate(all="ignore"):
            if data.shape[-1] == 0:
                empty = 0 if row.positional else row.identity(dtype)
                result = np.full(self.space.shape(remaining), empty, dtype.numpy)
            elif row.positional:
                result = np.asarray(row.reduce(data, axis=-1), np.int64)
            else:
                result = np.asarray(row.reduce(_widen(data, dtype), axis=-1)).astype(dtype.numpy)
        return self.space.tile(remaining, result)

    def _scan(self, name: str, arg: Tile, along: str, dtype: DType) -> Tile:
        row = COMBINES[name]
        if row.prefix is None:
            raise VerifyError(f"{name} has no running form")
        axes = self.space.sorted((*arg.axes, along))
        data = _widen(self.space.broadcast_data(arg, axes), dtype)
        with np.errstate(all="ignore"):
            result = np.asarray(row.prefix(data, axis=axes.index(along)))
            return self.space.tile(axes, result.astype(dtype.numpy))

    def _dot(self, left: Tile, right: Tile, over: tuple[str, ...], dtype: DType) -> Tile:
        axes = self.space.sorted((*left.axes, *right.axes, *over))
        remaining = tuple(a for a in axes if a not in over)
        a, b = (_widen(self.space.broadcast_data(t, axes), dtype) for t in (left, right))
        with np.errstate(all="ignore"):
            result = np.sum(a * b, axis=tuple(axes.index(o) for o in over), dtype=a.dtype)
            return self.space.tile(remaining, np.asarray(result).astype(dtype.numpy))


_VARIABLES = ("axis", "value")


def _widen(data: Array, dtype: DType) -> Array:
    """Convert elements to the type that the interpreter accumulates in."""
    if dtype == bool_:
        return cast_reference(data, bool_)
    wide_dtype: Any = {f32: np.float64, f64: np.longdouble}.get(dtype)
    return data.astype(dtype.numpy if wide_dtype is None else wide_dtype)
