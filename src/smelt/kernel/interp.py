"""Interpret kernels in NumPy: slow, with every access checked.

The interpreter is the reference for lowering and code generation. It runs the grid's blocks one
by one in any order, checks every index of every load and store, rejects two stores to one
element, reads of overwritten data and incomplete outputs, and counts memory traffic.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel rows(x: f32[r,c]) -> y: f32[r]
...   grid r
...   y[r] = sum(x[r,c] over c)
... ''')
>>> run(kernel, [np.ones((2, 3), np.float32)])
{'y': array([3., 3.], dtype=float32)}
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from smelt.errors import VerifyError
from smelt.kernel import ir
from smelt.kernel.evaluate import Array, Evaluator, Space, Tile
from smelt.kernel.memory import Access, AccessError, Buffer, Trace
from smelt.kernel.merge import MergeRule, merge_rules
from smelt.kernel.sizes import input_arrays, sizes_of_call
from smelt.kernel.text_print import statement_text
from smelt.types.expr import evaluate

__all__ = ["Access", "Observer", "Order", "Trace", "run"]

Order = Literal["forward", "backward", "random"]
Arrays = Mapping[str, Any] | Sequence[Any]


class Observer(Protocol):
    """Receives the events of a run, in order.

    The buffers of `place` log their accesses meanwhile.
    """

    def block(self, place: Evaluator) -> None:
        """Note that a block of the grid begins."""
        ...

    def visit(self, stream: ir.Stream, place: Evaluator) -> None:
        """Note that a stream begins a block."""
        ...

    def statement(self, statement: ir.Statement, place: Evaluator) -> None:
        """Note that a statement has run."""
        ...


def run(
    kernel: ir.Kernel,
    arrays: Arrays,
    sizes: Mapping[str, int] | None = None,
    *,
    order: Order = "forward",
    seed: int = 0,
    grid_sizes: Mapping[str, int] | None = None,
    complete: bool = True,
    trace: Trace | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Run a kernel and return its outputs by name.

    `arrays` are the inputs, by name or in order; a family is a sequence of arrays, as an input
    and as an output. Sizes follow from their shapes; `sizes` gives those that do not. `order` is
    the order of the grid's blocks. `grid_sizes` overrides block sizes other than 1 by axis, in
    the grid and in streams. With `complete`, every element of every output must be stored.

    Raises VerifyError for an index out of bounds, an element stored twice or never, a read after
    an in-place store, and arrays that do not fit the parameters.
    """
    interpreter = _Run(kernel, order, seed, grid_sizes or {}, complete, trace, observer)
    return interpreter.call(arrays, sizes or {})


class _Run:
    def __init__(
        self,
        kernel: ir.Kernel,
        order: Order,
        seed: int,
        grid_sizes: Mapping[str, int],
        complete: bool,
        trace: Trace | None,
        observer: Observer | None,
    ) -> None:
        self.observer = observer
        self.kernel, self.order, self.complete = kernel, order, complete
        self.random = np.random.default_rng(seed)
        self.grid_sizes, self.trace = grid_sizes, trace or Trace()
        self.places = {a.name: k for k, a in enumerate(kernel.axes)}
        self.fixed = {
            b.axis for b in kernel.grid if isinstance(b, ir.Block) and self.size_of(b) == 1
        }
        self.block = 0
        self.parts: dict[str, range] = {}
        self.rules: dict[str, MergeRule] = merge_rules(kernel)

    # ---- the call ------------------------------------------------------------------------------

    def call(self, arrays: Arrays, sizes: Mapping[str, int]) -> dict[str, Any]:
        families_of = input_arrays(self.kernel, arrays)
        count = max(map(len, families_of.values()), default=1)
        families = {p.name for p in self.kernel.outputs if p.each}
        shared = {
            p.name: self._buffer(p, families_of[p.name][0])
            for p in self.kernel.inputs
            if not p.each
        }
        results: dict[str, list[Buffer]] = {p.name: [] for p in self.kernel.outputs}
        for k in range(count):
            member = {name: values[min(k, len(values) - 1)] for name, values in families_of.items()}
            numbers = sizes_of_call(self.kernel, member, sizes)
            inputs = {
                p.name: self._buffer(p, member[p.name]) if p.each else shared[p.name]
                for p in self.kernel.inputs
            }
            for p in self.kernel.outputs:
                if p.each or not results[p.name]:
                    shape = tuple(int(evaluate(d, numbers)) for d in p.shape)
                    empty = np.zeros(shape, p.dtype.numpy)
                    results[p.name].append(self._buffer(p, empty))
            outputs = {p.name: results[p.name][-1] for p in self.kernel.outputs}
            self._launch(Evaluator(inputs, outputs, numbers, Space(self.places, {})))
            self._add_traffic(self.trace.loads, [b for b in inputs.values() if b.param.each])
        self._add_traffic(self.trace.loads, list(shared.values()))
        self._add_traffic(self.trace.stores, [b for buffers in results.values() for b in buffers])
        self.trace.blocks += self.block
        return {
            name: [self._result(b) for b in buffers]
            if name in families
            else self._result(buffers[0])
            for name, buffers in results.items()
        }

    def _buffer(self, param: ir.Param, data: Array) -> Buffer:
        buffer = Buffer(param, data)
        if self.observer is not None:
            buffer.log = []
        return buffer

    def _add_traffic(self, into: dict[str, Access], buffers: list[Buffer]) -> None:
        for b in buffers:
            into[b.param.name] = into.get(b.param.name, Access()) + b.access

    def _result(self, buffer: Buffer) -> Array:
        if self.complete and (buffer.writer < 0).any():
            place = tuple(int(i) for i in np.argwhere(buffer.writer < 0)[0])
            shown = ",".join(map(str, place)) if buffer.param.shape else ""
            raise VerifyError(
                f"kernel {self.kernel.name}: {buffer.param.name}[{shown}] is never stored"
            )
        return buffer.data if buffer.param.shape else buffer.data.reshape(())

    # ---- the grid ------------------------------------------------------------------------------

    def _launch(self, start: Evaluator) -> None:
        extents = {a.name: int(evaluate(a.extent, start.sizes)) for a in self.kernel.axes}
        ranges_of = {name: range(extent) for name, extent in extents.items()}
        cuts = [
            (b.axis, self.cut(ranges_of[b.axis], b))
            for b in self.kernel.grid
            if isinstance(b, ir.Block)
        ]
        blocks = [
            dict(zip((axis for axis, _ in cuts), chosen, strict=True))
            for chosen in itertools.product(*(ranges for _, ranges in cuts))
        ]
        for ranges in self._in_grid_order(blocks):
            self._grid_block(start.narrow({**ranges_of, **ranges}))

    def _in_grid_order(self, blocks: list[Any]) -> list[Any]:
        if self.order == "backward":
            return blocks[::-1]
        if self.order == "random":
            return [blocks[k] for k in self.random.permutation(len(blocks))]
        return blocks

    def size_of(self, block: ir.Block) -> int | None:
        """Return the size of a block, after overrides."""
        return block.size if block.size == 1 else self.grid_sizes.get(block.axis, block.size)

    def cut(self, extent: range, block: ir.Block) -> list[range]:
        """Split an axis range into blocks; the last one may be shorter."""
        size = self.size_of(block) or max(len(extent), 1)
        return [
            range(at, min(at + size, extent.stop)) for at in range(extent.start, extent.stop, size)
        ]

    def _begin_block(self, place: Evaluator) -> None:
        self.block += 1
        if self.observer is not None:
            self.observer.block(place)

    def _grid_block(self, place: Evaluator) -> None:
        split = next((s for s in self.kernel.grid if isinstance(s, ir.Split)), None)
        if split is None:
            self._begin_block(place)
            self._body(self.kernel.body, place)
            return
        joined = next(
            (k for k, s in enumerate(self.kernel.body) if isinstance(s, ir.Merge)),
            len(self.kernel.body),
        )
        ends: dict[int, Evaluator] = {}
        parts = int(evaluate(split.parts, place.sizes))
        for part in self._in_grid_order(list(range(parts))):
            ends[part] = place.narrow({split.name: range(part, part + 1)})
            self._begin_block(ends[part])
            self.parts = {split.name: range(part, parts)}
            self._body(self.kernel.body[:joined], ends[part])
        first = ends[0]
        self._begin_block(first)
        if joined < len(self.kernel.body):
            for part in range(1, parts):
                first.names.update(self._merge_states(first, ends[part]))
            self._body(self.kernel.body[joined + 1 :], first)

    def _merge_states(self, left: Evaluator, right: Evaluator) -> dict[str, Tile]:
        """Merge the states of two parts."""
        sides = left.narrow({}), right.narrow({})
        merged: dict[str, Tile] = {}
        for name, rule in self.rules.items():
            values = [side.value(rule.rescaled) for side in sides]
            merged[name] = sides[0].apply(rule.op, values)
            for side in sides:
                side.new[name] = merged[name]
        return merged

    # ---- statements ----------------------------------------------------------------------------

    def _body(self, body: tuple[ir.Statement, ...], place: Evaluator) -> None:
        for s in body:
            try:
                self._statement(s, place)
            except VerifyError as error:
                if error.fields.get("kernel"):
                    raise
                where = f"kernel {self.kernel.name}, `{statement_text(s, self.kernel)}`"
                raise VerifyError(f"{where}: {error.detail}", kernel=self.kernel.name) from None

    def _statement(self, s: ir.Statement, place: Evaluator) -> None:
        match s:
            case ir.Let(name=name, value=value):
                place.names[name] = place.value(value)
            case ir.Position(name=name, value=value, extent=extent):
                tile = place.value(value)
                last = int(evaluate(extent, place.sizes)) - 1
                data = np.clip(tile.data.astype(np.int64), 0, max(last, 0))
                place.names[name] = Tile(tile.axes, tile.start, data)
            case ir.Store():
                self._store(s, place)
            case ir.Update(state=name, value=value):
                place.new[name] = _state_value(name, place.value(value), place)
            case ir.Stream():
                self._stream(s, place)
            case ir.Merge():
                raise VerifyError("a merge stands at the top of a kernel whose grid has the part")
        if self.observer is not None:
            self.observer.statement(s, place)

    def _store(self, s: ir.Store, place: Evaluator) -> None:
        tiles = [place.index(e) for e in s.index]
        value = place.value(s.value)
        where = Tile.scalar(True) if s.where is None else place.value(s.where)
        space = place.space
        axes = space.union(*tiles)
        loose = [
            a for a in (*value.axes, *where.axes) if a not in axes and len(space.ranges[a]) > 1
        ]
        if loose:
            raise VerifyError(f"the value varies along {loose[0]}, which the index does not name")
        axes = space.sorted((*axes, *value.axes, *where.axes))
        index = tuple(space.broadcast_data(t, axes) for t in tiles)
        buffer = place.outputs.get(s.param)
        if buffer is None:
            raise VerifyError(f"{s.param} is not an output")
        if value.data.dtype != buffer.param.dtype.compute.numpy:
            kind = value.data.dtype
            raise VerifyError(f"a value of type {kind} goes to {buffer.param.dtype.long}")
        try:
            chosen = space.broadcast_data(where, axes)
            if s.join:
                stored = space.tile(axes, buffer.load_stored(index, chosen, self.block))
                value = value if s.join == ir.PUT else place.apply(s.join, [stored, value])
            buffer.store(
                index, space.broadcast_data(value, axes), chosen, self.block, again=bool(s.join)
            )
        except AccessError as error:
            raise VerifyError(place.locate_error(error, axes)) from None

    # ---- streams -------------------------------------------------------------------------------

    def _stream(self, s: ir.Stream, place: Evaluator) -> None:
        for state in s.states:
            first = place.value(state.init)
            axes_kept = place.space.sorted((*state.axes, *first.axes))
            tile = place.space.tile(axes_kept, place.space.broadcast_data(first, axes_kept))
            place.names[state.name] = _drop_undeclared(state, tile)
        axes = [b.axis for b in s.blocks]
        for chosen in itertools.product(*(self._visited_ranges(b, place) for b in s.blocks)):
            inner = place.narrow(dict(zip(axes, chosen, strict=True)))
            if s.where is not None and not inner.value(s.where).data.all():
                continue
            if s.bounds:
                inner = inner.narrow({b.axis: self._bounded_range(b, inner) for b in s.bounds})
            inner.states = {state.name: state for state in s.states}
            if self.observer is not None:
                self.observer.visit(s, inner)
            self._body(s.body, inner)
            for state in s.states:
                if state.name in inner.new:
                    new = inner.new[state.name]
                    place.names[state.name] = (
                        _replace_visible(place.names[state.name], new) if s.bounds else new
                    )

    def _visited_ranges(self, block: ir.Block, place: Evaluator) -> Iterator[range]:
        """Yield the ranges a stream visits along one axis, clipped to its bounds and part.

        Block boundaries are multiples of the block size from the start of the axis, wherever the
        visits start.
        """
        axis_range, visited = place.space.ranges[block.axis], self._bounded_range(block, place)
        start, stop = visited.start, visited.stop
        if block.part is not None:
            part = self.parts[block.part]
            unit = self.size_of(block) or 1
            part_length = _ceil(_ceil(len(axis_range), unit), part.stop) * unit
            first = axis_range.start + part.start * part_length
            start, stop = max(start, first), min(first + part_length, stop)
        size = self.size_of(block) or max(len(axis_range), 1)
        for at in range(start - (start - axis_range.start) % size, stop, size):
            yield range(max(at, start), min(at + size, stop))

    def _bounded_range(self, block: ir.Block, place: Evaluator) -> range:
        """Return the range of an axis from a block's start to its stop."""
        axis_range = place.space.ranges[block.axis]
        start, stop = (
            e if v is None else self._bound_value(block.axis, v, axis_range, place)
            for v, e in ((block.start, axis_range.start), (block.stop, axis_range.stop))
        )
        return range(start, max(start, stop))

    def _bound_value(self, axis: str, v: ir.Value, axis_range: range, place: Evaluator) -> int:
        """Evaluate a start or stop bound of an axis, clamped to the axis."""
        bound = place.value(v)
        if bound.data.size != 1:
            raise VerifyError(f"an end of {axis} varies along {bound.axes}")
        return min(max(int(bound.data.reshape(())), axis_range.start), axis_range.stop)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _drop_undeclared(state: ir.State, tile: Tile) -> Tile:
    """Drop axes that a state does not declare; they must be fixed."""
    keep = tuple(k for k, a in enumerate(tile.axes) if a in state.axes)
    for a, length in zip(tile.axes, tile.data.shape, strict=True):
        if a not in state.axes and length != 1:
            raise VerifyError(f"{state.name} varies along {a}, which its declaration does not name")
    data = tile.data.reshape(tuple(tile.data.shape[k] for k in keep))
    return Tile(tuple(tile.axes[k] for k in keep), tuple(tile.start[k] for k in keep), data)


def _replace_visible(old: Tile, new: Tile) -> Tile:
    """Replace the visible part of a state by a block's new value."""
    cuts = tuple(
        slice(a - b, a - b + n)
        for a, b, n in zip(new.start, old.start, new.data.shape, strict=True)
    )
    data = old.data.copy()
    data[cuts] = new.data
    return Tile(old.axes, old.start, data)


def _state_value(name: str, tile: Tile, place: Evaluator) -> Tile:
    """Return a state's new value with exactly the axes it declares."""
    state = place.states.get(name)
    if state is None:
        raise VerifyError(f"{name} is not a state of this stream")
    axes = place.space.sorted((*tile.axes, *state.axes))
    return _drop_undeclared(state, place.space.tile(axes, place.space.broadcast_data(tile, axes)))
