"""Folds and scans inside a nest: accumulators in registers, or in scratch when axes cross.

A fold whose result axes all lie outside of the loops it ends accumulates in registers and is done
when those loops close.  Otherwise (columns walked row by row) its states live in scratch arrays
over the result axes, set before the nest and read after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.reductions import (
    PAIRED,
    Winner,
    across,
    first_lanes,
    is_paired,
    pairs_added,
    rows_added,
    with_first_lanes,
)
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Folding, Item, visited_axes
from smelt.codegen.llvm.loops.batched_reduce import Rows
from smelt.codegen.llvm.loops.full_unroll import is_straight
from smelt.codegen.llvm.loops.unroll_factor import adds_pairs, known_from
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.scratch.workspace import scan_state_axes
from smelt.types.affine import coefficient
from smelt.types.dtype import DType

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
SCAN_PART = 100


class FoldEmitter:
    """The folds of the nest that `home` is emitting."""

    def __init__(self, home: NestEmitter) -> None:
        self.home = home
        self.b = home.b
        self.registers: dict[Item, dict[int, list[Value]]] = {}
        self.bars: dict[Item, Value] = {}
        """What the elements of a place's folds must pass to be looked at any further."""
        self.fresh: set[Item] = set()
        """Folds without loops that nothing has been folded into yet."""
        self.rows: Rows | None = None
        """The rows that end together with the present one."""

    def _opens_at(self, fold: Item) -> int:
        """Loops that are open where a fold in registers starts."""
        order = self.home.nest.order
        return max((order.index(a) + 1 for a in fold.axes if a in order), default=0)

    def _in_registers(self, fold: Item) -> bool:
        return self.home.nest.in_registers(fold)

    # ---- around the nest -------------------------------------------------------------------------

    def before(self, nest: Nest) -> None:
        """Sets the scratch states of folds that cross loops."""
        for fold in nest.folds:
            if not self._in_registers(fold):
                self._fill(fold)
            elif not nest.order:
                self._start(fold)

    def after(self, nest: Nest) -> None:
        """Nothing is left to do for loops that have closed."""
        if not nest.order:
            for fold in nest.folds:
                self._finish(fold, self.home.top)

    def _fill(self, fold: Item) -> None:
        """Of those positions of the outermost axis that this task has: it may be one of the many
        that there is room for."""
        home, acc = self.home, self.home.storage.fold(fold)
        outer, *inner = home.s.kept[fold]
        if inner:
            count = self.b.sub(home.ranges[outer][1], home.scratch.start(fold, outer))
        else:
            count = home.home.index(home.storage.extent(fold, outer))
        for a in inner:
            count = self.b.mul(count, home.home.index(home.storage.extent(fold, a)))
        m = LLVMMachine(self.b, home.s.lanes, home.home.target)
        for part, (dtype, value) in enumerate(zip(acc.parts, acc.start(m), strict=True)):
            put = self._filler(m, home.storage.at[fold, part], dtype.compute, value)
            home.loop(number(0), count, home.s.lanes, put)

    def _filler(
        self, m: LLVMMachine, base: Value, dtype: DType, value: Value
    ) -> Callable[[Value], None]:
        """Stores one vector of a constant at a position."""
        return lambda position: store_vector(
            m, element_address(self.b, base, position, dtype), value, dtype, None
        )

    # ---- around loops ----------------------------------------------------------------------------

    def open(self, depth: int) -> None:
        """Before the loop at `depth`: starts the folds that it is the outermost loop of."""
        for fold in self.home.nest.folds:
            if self._in_registers(fold) and self._opens_at(fold) == depth:
                self._start(fold)

    def close(self, scope: Scope, depth: int) -> None:
        """After that loop: finishes them."""
        for fold in self.home.nest.folds:
            if self._in_registers(fold) and self._opens_at(fold) == depth:
                self._finish(fold, scope)

    def rest(self) -> int:
        """Lanes of what is left behind the last whole wide vector: a single vector, or a wide one
        where a stream goes on with the sum.  Then each lane adds up positions that lie a wide
        vector apart, wherever visits start and stop, and lanes join by halves: what is added to
        what does not change if the positions before or behind add nothing."""
        nest, lanes = self.home.nest, self.home.s.lanes
        wide = lanes * nest.wide
        visited = visited_axes(self.home.s.phase.segments[nest.time])
        if nest.vector not in visited or not power_of_two(wide):
            return lanes
        sums = [f for f in nest.folds if isinstance(f.payload, Folding) and f.payload.row.wide]
        return wide if sums else lanes

    def _widths(self, fold: Item) -> list[int]:
        nest = self.home.nest
        assert isinstance(fold.payload, Folding)
        if nest.vector is None or nest.vector not in fold.payload.over or self.has_bar(fold):
            return [1]
        if is_straight(self.home.s, nest):
            return [self.home.s.lanes]
        many = {self.rest(), self.home.s.lanes * nest.wide}
        return sorted({self._kept_lanes(fold, n) for n in many})

    def has_bar(self, fold: Item) -> bool:
        """Whether few of the vectors that are folded for a place are more than compared: they lie
        along the places, and many follow one another."""
        nest, folding = self.home.nest, fold.payload
        acc = self.home.storage.fold(fold)
        assert isinstance(folding, Folding)
        if not isinstance(acc, Winner) or not acc.in_order or nest.vector not in folding.over:
            return False
        if not self._in_registers(fold) or is_straight(self.home.s, nest):
            return False
        return nest.vector is not None and coefficient(folding.positions, nest.vector) == 1

    def _kept_lanes(self, fold: Item, lanes: int) -> int:
        """Lanes of a state that elements in so many lanes are folded into: fewer, where vectors are
        added as pairs first."""
        whole = adds_pairs(fold, self.home.nest) and lanes % (self.home.s.lanes * PAIRED) == 0
        return lanes // PAIRED if whole else lanes

    def _start(self, fold: Item) -> None:
        if known_from(self.home.nest, fold) is not None:
            return
        acc, scalar = self.home.storage.fold(fold), LLVMMachine(self.b, None, self.home.home.target)
        self.registers[fold] = {}
        inner = self._opens_at(fold) == len(self.home.nest.order) - 1
        if inner and is_straight(self.home.s, self.home.nest):
            self.fresh.add(fold)
        elif isinstance(acc, Winner) and self.has_bar(fold):
            with self.b.goto_entry_block():
                self.bars[fold] = self.b.alloca(scalar.register_type(acc.source))
            self.b.store(acc.start(scalar)[0], self.bars[fold])
        for lanes in self._widths(fold):
            m = LLVMMachine(self.b, lanes if lanes > 1 else None, self.home.home.target)
            places: list[Value] = []
            for dtype, value in zip(acc.parts, acc.start(m), strict=True):
                with self.b.goto_entry_block():
                    place = self.b.alloca(m.register_type(dtype))
                self.b.store(value, place)
                places.append(place)
            self.registers[fold][lanes] = places

    def _finish(self, fold: Item, scope: Scope) -> None:
        if known_from(self.home.nest, fold) is not None:
            return
        acc, home = self.home.storage.fold(fold), self.home
        scalar = LLVMMachine(self.b, None, home.home.target)
        total: list[Value] = []
        wide = 0
        for lanes in sorted(self.registers[fold], reverse=True):
            m = LLVMMachine(self.b, lanes if lanes > 1 else None, home.home.target)
            places = zip(self.registers[fold][lanes], acc.parts, strict=True)
            state = [self.b.load(p, typ=m.register_type(d)) for p, d in places]
            if total:  # the rest of a row joins while there are lanes, so that they end but once
                total = acc.join(m, across(acc, m, total, wide, lanes), state)
            else:
                total = state
            wide = lanes
        if self.rows is not None:
            self.rows.hold(home, fold, total, wide, scope)
            return
        total = across(acc, scalar, total, wide)
        self._give(fold, acc.finish(scalar, total), scope)
        for other in self.known_by(fold):
            self._give(other, total[0], scope)

    def of_nothing(self, nest: Nest) -> None:
        """What the folds of a nest's rows come to where there is nothing to fold."""
        home, (rows, *_) = self.home, nest.order
        scalar = LLVMMachine(self.b, None, home.home.target)

        def row(at: Value) -> None:
            for fold in nest.folds:
                acc = home.storage.fold(fold)
                found = acc.finish(scalar, acc.start(scalar))
                home.scratch.keep((fold, 0), home.s.kept[fold], found, Scope(home.top, {rows: at}))

        home.loop(*home.ranges[rows], 1, row)

    def known_by(self, fold: Item) -> list[Item]:
        """The extremes that a place knows, each of which is its value."""
        nest = self.home.nest
        return [other for other in nest.folds if known_from(nest, other) is fold]

    def _give(self, fold: Item, found: Value, scope: Scope) -> None:
        home = self.home
        if fold in home.s.kept:
            home.scratch.keep((fold, 0), home.s.kept[fold], found, scope)
        else:
            home.top.values[fold] = found

    # ---- one step --------------------------------------------------------------------------------

    def step(self, fold: Item, scope: Scope) -> None:
        """One more element (in every lane) at the innermost place."""
        assert isinstance(fold.payload, Folding)
        if known_from(self.home.nest, fold) is not None:
            return
        home, acc = self.home, self.home.storage.fold(fold)
        vector = scope.lanes is not None
        in_registers = self._in_registers(fold)
        if vector and in_registers and scope.lanes is not None:
            vector = scope.lanes.axis in fold.payload.over
        m = home.machine(scope, vector)
        if fold in self.bars:
            self._step_at_bar(fold, scope)
            return
        element, position = self._element(fold, scope, m)
        if not in_registers:
            self._step_in_scratch(fold, m, [(scope, element, position)])
            return
        mask = scope.lanes.mask if scope.lanes is not None and vector else None
        kept, lanes = self.registers[fold], self._kept_lanes(fold, m.lanes or 1)
        if lanes != (m.lanes or 1):
            if mask is not None:
                element, mask = m.select(mask, element, m.const(fold.args[0].dtype, 0)), None
            element = pairs_added(m, element, lanes)
            m = LLVMMachine(self.b, lanes, m.target)
        wide = lanes if lanes in kept else max(kept)  # some of the lanes of a wide vector are left
        kinds = [
            LLVMMachine(self.b, wide if wide > 1 else None, m.target).register_type(d)
            for d in acc.parts
        ]
        state = (
            acc.start(m)
            if fold in self.fresh
            else [self.b.load(p, typ=kind) for p, kind in zip(kept[wide], kinds, strict=True)]
        )
        self.fresh.discard(fold)
        old = state if wide == lanes else first_lanes(m, state, lanes)
        new = acc.step(m, old, element, position)
        if mask is not None:
            new = [m.select(mask, x, y) for x, y in zip(new, old, strict=True)]
        if wide != lanes:
            new = with_first_lanes(m, state, new)
        for place, value in zip(kept[wide], new, strict=True):
            self.b.store(value, place)

    def _step_at_bar(self, fold: Item, scope: Scope) -> None:
        """One more vector of elements, of which few pass the bar."""
        b, acc = self.b, self.home.storage.fold(fold)
        assert isinstance(acc, Winner)
        assert isinstance(fold.payload, Folding)
        assert scope.lanes is not None
        m, scalar = self.home.machine(scope, True), self.home.machine(scope, False)
        element, mask = self.home.get(fold.args[0], scope, True), scope.lanes.mask
        places = [*self.registers[fold][1], self.bars[fold]]
        kinds = [scalar.register_type(d) for d in (*acc.parts, acc.source)]
        *state, bar = (b.load(p, typ=kind) for p, kind in zip(places, kinds, strict=True))
        bars = splat_to(b, bar, m.lanes)
        if mask is not None:
            element = m.select(mask, element, bars)
        with b.if_then(m.any(acc.passes(m, element, bars)), likely=False):
            position = self.home.index(fold.payload.positions, scope)
            state, bar = acc.taken(m, element, position, state)
            for place, value in zip(places, [*state, bar], strict=True):
                b.store(value, place)

    def stack(self, fold: Item, scopes: list[Scope]) -> None:
        """One more element of each row, one row after another, into states that lie in scratch."""
        m = self.home.machine(scopes[0], True)
        found = [(s, *self._element(fold, s, m)) for s in scopes]
        if self.home.nest.pairs and is_paired(fold):
            added = rows_added(m, [element for _, element, _ in found])
            found = [(scopes[0], element, found[0][2]) for element in added]
        self._step_in_scratch(fold, m, found)

    def _element(self, fold: Item, scope: Scope, m: LLVMMachine) -> tuple[Value, Value | None]:
        """The element of a fold at the innermost place, and its position where that counts."""
        assert isinstance(fold.payload, Folding)
        home, position = self.home, None
        element = home.get(fold.args[0], scope, m.lanes is not None)
        if fold.payload.row.positional:
            position = home.index(fold.payload.positions, scope, lanes=True)
            if m.lanes is not None:
                position = splat(self.b, position, m.lanes)
        return element, position

    def _step_in_scratch(
        self, fold: Item, m: LLVMMachine, elements: list[tuple[Scope, Value, Value | None]]
    ) -> None:
        home, acc = self.home, self.home.storage.fold(fold)
        axes, scope = home.s.kept[fold], elements[0][0]
        state = [
            splat_to(self.b, home.scratch.fetch((fold, k), axes, scope), m.lanes)
            for k in range(len(acc.parts))
        ]
        for _, element, position in elements:
            state = acc.step(m, state, element, position)
        for k, value in enumerate(state):
            home.scratch.keep((fold, k), axes, value, scope)

    def finished(self, fold: Item, scope: Scope) -> Value:
        """The result of a fold whose states are in scratch."""
        home, acc = self.home, self.home.storage.fold(fold)
        axes = home.s.kept[fold]
        state = [home.scratch.fetch((fold, k), axes, scope) for k in range(len(acc.parts))]
        vector = scope.lanes is not None and scope.lanes.axis in axes
        return acc.finish(home.machine(scope, vector), state)

    # ---- scans -----------------------------------------------------------------------------------

    def scan(self, item: Item, scope: Scope, m: LLVMMachine) -> Value:
        """The running fold up to this position; its axis is walked in order."""
        assert isinstance(item.payload, Folding)
        home, acc = self.home, self.home.storage.fold(item)
        axes = scan_state_axes(home.s, item)
        along = item.payload.over[0]
        first = self.b.icmp_signed("==", scope.axis(along), home.ranges[along][0])
        if scope.lanes is not None and scope.lanes.axis == along:
            return self._scan_lanes(item, scope, first)
        if m.lanes is not None:
            first = splat(self.b, first, m.lanes)
        element = home.get(item.args[0], scope, m.lanes is not None)
        fresh = acc.start(m)
        kept = [
            home.scratch.fetch((item, SCAN_PART + k), axes, scope) for k in range(len(acc.parts))
        ]
        old = [m.select(first, a, b) for a, b in zip(fresh, kept, strict=True)]
        new = acc.step(m, old, element, None)
        for k, value in enumerate(new):
            home.scratch.keep((item, SCAN_PART + k), axes, value, scope)
        return acc.finish(m, new)

    def _scan_lanes(self, item: Item, scope: Scope, first: Value) -> Value:
        """The running folds of a vector's lanes: each step joins lanes twice as far apart as the
        one before (W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986); then all join
        what came before the vector."""
        assert scope.lanes is not None
        home, acc, lanes = self.home, self.home.storage.fold(item), scope.lanes.count
        m, scalar = home.machine(scope, True), home.machine(scope, False)
        axes = scan_state_axes(home.s, item)
        start = acc.start(m)
        state = acc.step(m, start, home.get(item.args[0], scope, True), None)
        if scope.lanes.mask is not None:
            state = [m.select(scope.lanes.mask, x, e) for x, e in zip(state, start, strict=True)]
        distance = 1
        while distance < lanes:
            moved = [_moved(self.b, x, e, distance) for x, e in zip(state, start, strict=True)]
            state, distance = acc.join(m, moved, state), 2 * distance
        keys = [(item, SCAN_PART + k) for k in range(len(acc.parts))]
        carried = [
            scalar.select(first, e, home.scratch.fetch(key, axes, scope))
            for key, e in zip(keys, acc.start(scalar), strict=True)
        ]
        state = acc.join(m, [splat(self.b, x, lanes) for x in carried], state)
        last = ir.Constant(ir.IntType(32), lanes - 1)
        for key, x in zip(keys, state, strict=True):
            home.scratch.keep(key, axes, self.b.extract_element(x, last), scope)
        return acc.finish(m, state)


def _moved(b: ir.IRBuilder, value: Value, start: Value, distance: int) -> Value:
    """The lanes moved up by a distance; the first ones are those of `start`."""
    lanes = value.type.count
    of = [k if k < distance else lanes + k - distance for k in range(lanes)]
    return b.shuffle_vector(start, value, ir.Constant(ir.VectorType(ir.IntType(32), lanes), of))


def power_of_two(n: int) -> bool:
    """Whether n is 1, 2, 4, ..."""
    return n & (n - 1) == 0


def splat_to(b: ir.IRBuilder, value: Value, lanes: int | None) -> Value:
    """A scalar in every lane when there are lanes."""
    return value if lanes is None else splat(b, value, lanes)
