"""The interpreter of kernels: NumPy, slow, and suspicious of everything.

It runs the grid's blocks one by one in any order, checks every index of every load and store,
refuses two stores to one element, reads of what was overwritten, and outputs left unfinished, and
counts what crosses memory.  It is what lowering and code generation are tested against.

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
from typing import Any, Literal

import numpy as np

from smelt.errors import VerifyError
from smelt.kernel import ir
from smelt.kernel.evaluate import Evaluator
from smelt.kernel.memory import Access, Buffer, Misuse, Trace
from smelt.kernel.merge import MergeRule, merge_rules
from smelt.kernel.sizes import members, sizes_of_call
from smelt.kernel.text_print import statement_text
from smelt.kernel.tile import Array, Space, Tile
from smelt.types.expr import evaluate

__all__ = ["Access", "Order", "Trace", "run"]

Order = Literal["forward", "backward", "random"]
Arrays = Mapping[str, Any] | Sequence[Any]


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
) -> dict[str, Any]:
    """The outputs of a kernel by name (a list of arrays for a family).

    `arrays` are the inputs, by name or in order; a family is a sequence of arrays.  Sizes follow
    from their shapes, what does not is given by `sizes`.  `order` is that of the grid's blocks;
    `grid_sizes` overrides the size of an axis' blocks, in the grid and in streams, where that is
    not one.  With `complete`, every element of every output has to be stored.

    Raises VerifyError for an index outside, an element stored twice or never, a read after the
    store of an output in place, and arrays that do not fit the parameters.
    """
    return _Run(kernel, order, seed, grid_sizes or {}, complete, trace).call(arrays, sizes or {})


class _Run:
    def __init__(
        self,
        kernel: ir.Kernel,
        order: Order,
        seed: int,
        grid_sizes: Mapping[str, int],
        complete: bool,
        trace: Trace | None,
    ) -> None:
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
        given = members(self.kernel, arrays)
        count = max(map(len, given.values()), default=1)
        families = {p.name for p in self.kernel.outputs if p.each}
        shared = {
            p.name: self._buffer(p, given[p.name][0]) for p in self.kernel.inputs if not p.each
        }
        results: dict[str, list[Buffer]] = {p.name: [] for p in self.kernel.outputs}
        for k in range(count):
            own = {name: values[min(k, len(values) - 1)] for name, values in given.items()}
            numbers = sizes_of_call(self.kernel, own, sizes)
            inputs = {
                p.name: self._buffer(p, own[p.name]) if p.each else shared[p.name]
                for p in self.kernel.inputs
            }
            for p in self.kernel.outputs:
                if p.each or not results[p.name]:
                    shape = tuple(int(evaluate(d, numbers)) for d in p.shape)
                    empty = np.zeros(shape, p.dtype.numpy)
                    results[p.name].append(self._buffer(p, empty))
            outputs = {p.name: results[p.name][-1] for p in self.kernel.outputs}
            self._launch(Evaluator(inputs, outputs, numbers, Space(self.places, {})))
            self._count(self.trace.loads, [b for b in inputs.values() if b.param.each])
        self._count(self.trace.loads, list(shared.values()))
        self._count(self.trace.stores, [b for found in results.values() for b in found])
        self.trace.blocks += self.block
        return {
            name: [self._result(b) for b in found] if name in families else self._result(found[0])
            for name, found in results.items()
        }

    def _buffer(self, param: ir.Param, data: Array) -> Buffer:
        return Buffer(param, data)

    def _count(self, into: dict[str, Access], buffers: list[Buffer]) -> None:
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
        whole = {name: range(extent) for name, extent in extents.items()}
        cuts = [
            (b.axis, self.cut(whole[b.axis], b))
            for b in self.kernel.grid
            if isinstance(b, ir.Block)
        ]
        blocks = [
            dict(zip((axis for axis, _ in cuts), chosen, strict=True))
            for chosen in itertools.product(*(ranges for _, ranges in cuts))
        ]
        for ranges in self._ordered(blocks):
            self._grid_block(start.inner({**whole, **ranges}))

    def _ordered(self, blocks: list[Any]) -> list[Any]:
        if self.order == "backward":
            return blocks[::-1]
        if self.order == "random":
            return [blocks[k] for k in self.random.permutation(len(blocks))]
        return blocks

    def size_of(self, block: ir.Block) -> int | None:
        """The size of a block, with the overrides."""
        return block.size if block.size == 1 else self.grid_sizes.get(block.axis, block.size)

    def cut(self, whole: range, block: ir.Block) -> list[range]:
        """An axis in blocks; the last one may be shorter."""
        size = self.size_of(block) or max(len(whole), 1)
        return [
            range(at, min(at + size, whole.stop)) for at in range(whole.start, whole.stop, size)
        ]

    def _grid_block(self, place: Evaluator) -> None:
        split = next((s for s in self.kernel.grid if isinstance(s, ir.Split)), None)
        if split is None:
            self.block += 1
            self._body(self.kernel.body, place)
            return
        joined = next(
            (k for k, s in enumerate(self.kernel.body) if isinstance(s, ir.Merge)),
            len(self.kernel.body),
        )
        ends: dict[int, Evaluator] = {}
        parts = int(evaluate(split.parts, place.sizes))
        for part in self._ordered(list(range(parts))):
            self.block += 1
            ends[part] = place.inner({split.name: range(part, part + 1)})
            self.parts = {split.name: range(part, parts)}
            self._body(self.kernel.body[:joined], ends[part])
        self.block += 1
        first = ends[0]
        if joined < len(self.kernel.body):
            for part in range(1, parts):
                first.names.update(self._merged(first, ends[part]))
            self._body(self.kernel.body[joined + 1 :], first)

    def _merged(self, left: Evaluator, right: Evaluator) -> dict[str, Tile]:
        """The states of two parts joined."""
        sides = left.inner({}), right.inner({})
        joined: dict[str, Tile] = {}
        for name, rule in self.rules.items():
            values = [side.value(rule.transported) for side in sides]
            joined[name] = sides[0].apply(rule.op, values)
            for side in sides:
                side.new[name] = joined[name]
        return joined

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
                place.new[name] = _carried(name, place.value(value), place)
            case ir.Stream():
                self._stream(s, place)
            case ir.Merge():
                raise VerifyError("a merge stands at the top of a kernel whose grid has the part")

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
        index = tuple(space.full(t, axes) for t in tiles)
        buffer = place.outputs.get(s.param)
        if buffer is None:
            raise VerifyError(f"{s.param} is no output")
        if value.data.dtype != buffer.param.dtype.compute.numpy:
            kind = value.data.dtype
            raise VerifyError(f"a value of type {kind} goes to {buffer.param.dtype.long}")
        try:
            chosen = space.full(where, axes)
            if s.join:
                here = space.tile(axes, buffer.started(index, chosen, self.block))
                value = value if s.join == ir.LAST else place.apply(s.join, [here, value])
            buffer.store(index, space.full(value, axes), chosen, self.block, again=bool(s.join))
        except Misuse as error:
            raise VerifyError(place.located(error, axes)) from None

    # ---- streams -------------------------------------------------------------------------------

    def _stream(self, s: ir.Stream, place: Evaluator) -> None:
        for state in s.states:
            first = place.value(state.init)
            kept = place.space.sorted((*state.axes, *first.axes))
            whole = place.space.tile(kept, place.space.full(first, kept))
            place.names[state.name] = _narrow(state, whole)
        axes = [b.axis for b in s.blocks]
        for chosen in itertools.product(*(self._visits(b, place) for b in s.blocks)):
            inner = place.inner(dict(zip(axes, chosen, strict=True)))
            if s.where is not None and not inner.value(s.where).data.all():
                continue
            if s.sees:
                inner = inner.inner({b.axis: self._seen(b, inner) for b in s.sees})
            inner.states = {state.name: state for state in s.states}
            self._body(s.body, inner)
            for state in s.states:
                if state.name in inner.new:
                    new = inner.new[state.name]
                    place.names[state.name] = _put(place.names[state.name], new) if s.sees else new

    def _visits(self, block: ir.Block, place: Evaluator) -> Iterator[range]:
        """The blocks of a stream's axis, between its ends and inside its part.  They are cut at
        multiples of their size from the beginning of the axis, wherever the visits start."""
        whole, seen = place.space.ranges[block.axis], self._seen(block, place)
        start, stop = seen.start, seen.stop
        if block.part is not None:
            part = self.parts[block.part]
            unit = self.size_of(block) or 1
            each = _ceil(_ceil(len(whole), unit), part.stop) * unit
            first = whole.start + part.start * each
            start, stop = max(start, first), min(first + each, stop)
        size = self.size_of(block) or max(len(whole), 1)
        for at in range(start - (start - whole.start) % size, stop, size):
            yield range(max(at, start), min(at + size, stop))

    def _seen(self, block: ir.Block, place: Evaluator) -> range:
        """The positions of an axis from a block's start to its stop."""
        whole = place.space.ranges[block.axis]
        start, stop = (
            e if v is None else self._end(block.axis, v, whole, place)
            for v, e in ((block.start, whole.start), (block.stop, whole.stop))
        )
        return range(start, max(start, stop))

    def _end(self, axis: str, v: ir.Value, whole: range, place: Evaluator) -> int:
        """Where the visits to an axis start or stop."""
        wanted = place.value(v)
        if wanted.data.size != 1:
            raise VerifyError(f"an end of {axis} varies along {wanted.axes}")
        return min(max(int(wanted.data.reshape(())), whole.start), whole.stop)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _narrow(state: ir.State, tile: Tile) -> Tile:
    """Drops axes that a state does not declare; they have to be fixed."""
    keep = tuple(k for k, a in enumerate(tile.axes) if a in state.axes)
    for a, length in zip(tile.axes, tile.data.shape, strict=True):
        if a not in state.axes and length != 1:
            raise VerifyError(f"{state.name} varies along {a}, which its declaration does not name")
    data = tile.data.reshape(tuple(tile.data.shape[k] for k in keep))
    return Tile(tuple(tile.axes[k] for k in keep), tuple(tile.start[k] for k in keep), data)


def _put(old: Tile, new: Tile) -> Tile:
    """A state of which a block has set what it sees; the rest stays."""
    cuts = tuple(
        slice(a - b, a - b + n)
        for a, b, n in zip(new.start, old.start, new.data.shape, strict=True)
    )
    data = old.data.copy()
    data[cuts] = new.data
    return Tile(old.axes, old.start, data)


def _carried(name: str, tile: Tile, place: Evaluator) -> Tile:
    """A state's new value with exactly the axes that it declares."""
    state = place.states.get(name)
    if state is None:
        raise VerifyError(f"{name} is no state of this stream")
    axes = place.space.sorted((*tile.axes, *state.axes))
    return _narrow(state, place.space.tile(axes, place.space.full(tile, axes)))
