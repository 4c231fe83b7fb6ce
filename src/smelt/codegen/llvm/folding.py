"""Emit reductions in registers inside a nest.

A reduction whose result axes are all outside of its reduced axes is finished when those loops
close.  Others (columns walked row by row) are printed from loops.
"""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.reductions import (
    PAIRED_VECTORS,
    add_halves,
    first_lanes,
    reduce_lanes,
    replace_first_lanes,
)
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Item, Reduction, visited_axes
from smelt.codegen.llvm.loops.batched_reduce import hold_row
from smelt.codegen.llvm.loops.full_unroll import is_fully_unrolled
from smelt.codegen.llvm.loops.unroll_factor import adds_pairs, argreduce_with_value
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.scratch.scratch import load_kept, store_kept

Value = ir.Value


class ReductionEmitter:
    """Emits the reductions of the nest that `env` is emitting."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.b = env.b
        self.registers: dict[Item, dict[int, list[Value]]] = {}
        self.fresh: set[Item] = set()
        """Reductions without loops of which no element has been reduced yet."""
        """The batch of rows whose reductions end together with the current one, if any."""

    def _opens_at(self, reduction: Reduction) -> int:
        """Return how many loops are open where a reduction in registers starts."""
        order = self.env.nest.order
        return max((order.index(a) + 1 for a in reduction.axes if a in order), default=0)

    # ---- around the nest -------------------------------------------------------------------------

    def before(self, nest: Nest) -> None:
        """Start the reductions of a nest without loops."""
        for reduction in nest.reductions if not nest.order else ():
            self._start(reduction)

    def after(self, nest: Nest) -> None:
        """Finish reductions of a nest without loops; others end when their loops close."""
        if not nest.order:
            for reduction in nest.reductions:
                self._finish(reduction, self.env.top)

    # ---- around loops ----------------------------------------------------------------------------

    def open(self, depth: int) -> None:
        """Before the loop at `depth`: start the reductions whose outermost loop it is."""
        for reduction in self.env.nest.reductions:
            if self._opens_at(reduction) == depth:
                self._start(reduction)

    def close(self, scope: Scope, depth: int) -> None:
        """After that loop: finish them."""
        for reduction in self.env.nest.reductions:
            if self._opens_at(reduction) == depth:
                self._finish(reduction, scope)

    def tail_lanes(self) -> int:
        """Return the lanes of the remainder of a row after the last full unrolled vector.

        A single vector, or an unrolled one if a stream continues the sum.  Then each lane adds up
        positions that are an unrolled vector apart, wherever visits start and stop, and lanes are
        combined by halves: the order of additions does not change if positions before or after add
        nothing.
        """
        nest, lanes = self.env.nest, self.env.s.lanes
        wide = lanes * nest.unroll
        visited = visited_axes(self.env.s.phase.segments[nest.time])
        if nest.vector not in visited or not power_of_two(wide):
            return lanes
        sums = [f for f in nest.reductions if f.row.wide]
        return wide if sums else lanes

    def _widths(self, reduction: Reduction) -> list[int]:
        """Return the numbers of lanes for which a reduction has accumulators."""
        nest = self.env.nest
        if nest.vector is None or nest.vector not in reduction.over:
            return [1]
        if is_fully_unrolled(self.env.s, nest):
            return [self.env.s.lanes]
        lanes = {self.tail_lanes(), self.env.s.lanes * nest.unroll}
        return sorted({self._state_lanes(reduction, n) for n in lanes})

    def _state_lanes(self, reduction: Reduction, lanes: int) -> int:
        """Return the lanes of a state for elements in `lanes` lanes.

        Fewer if vectors are added in pairs first.
        """
        paired = (
            adds_pairs(reduction, self.env.nest)
            and lanes % (self.env.s.lanes * PAIRED_VECTORS) == 0
        )
        return lanes // PAIRED_VECTORS if paired else lanes

    def _start(self, reduction: Reduction) -> None:
        """Allocate and initialise the accumulators of a reduction in registers."""
        if argreduce_with_value(self.env.nest, reduction) is not None:
            return
        acc = self.env.storage.accumulator_of(reduction)
        self.registers[reduction] = {}
        inner = self._opens_at(reduction) == len(self.env.nest.order) - 1
        if inner and is_fully_unrolled(self.env.s, self.env.nest):
            self.fresh.add(reduction)
        for lanes in self._widths(reduction):
            m = LLVMMachine(self.b, lanes if lanes > 1 else None, self.env.frame.target)
            addresses: list[Value] = []
            for dtype, value in zip(acc.parts, acc.start(m), strict=True):
                with self.b.goto_entry_block():
                    address = self.b.alloca(m.register_type(dtype))
                self.b.store(value, address)
                addresses.append(address)
            self.registers[reduction][lanes] = addresses

    def _finish(self, reduction: Reduction, scope: Scope) -> None:
        """Combine the accumulators of a reduction, and publish its result."""
        if argreduce_with_value(self.env.nest, reduction) is not None:
            return
        acc, env = self.env.storage.accumulator_of(reduction), self.env
        scalar = LLVMMachine(self.b, None, env.frame.target)
        total: list[Value] = []
        total_lanes = 0
        for lanes in sorted(self.registers[reduction], reverse=True):
            m = LLVMMachine(self.b, lanes if lanes > 1 else None, env.frame.target)
            addresses = zip(self.registers[reduction][lanes], acc.parts, strict=True)
            state = [self.b.load(p, typ=m.register_type(d)) for p, d in addresses]
            if total:  # the tail is added lane by lane, so that there is one horizontal reduction
                total = acc.join(m, reduce_lanes(acc, m, total, total_lanes, lanes), state)
            else:
                total = state
            total_lanes = lanes
        if env.row_batch is not None:
            hold_row(env, env.row_batch, reduction, total, total_lanes, scope)
            return
        total = reduce_lanes(acc, scalar, total, total_lanes)
        self._publish(reduction, acc.finish(scalar, total), scope)
        for other in self.values_of_argreduce(reduction):
            self._publish(other, total[0], scope)

    def values_of_argreduce(self, reduction: Reduction) -> list[Reduction]:
        """Return the extremes whose value an argmax or argmin provides."""
        nest = self.env.nest
        return [
            other for other in nest.reductions if argreduce_with_value(nest, other) is reduction
        ]

    def _publish(self, reduction: Reduction, result: Value, scope: Scope) -> None:
        """Store a result in scratch, or make it available to the task."""
        env = self.env
        if reduction in env.s.materialised:
            store_kept(env, (reduction, 0), env.s.materialised[reduction], result, scope)
        else:
            env.top.define(reduction, result)

    # ---- one step --------------------------------------------------------------------------------

    def step(self, reduction: Reduction, scope: Scope) -> None:
        """Accumulate one more element (in every lane) at the innermost position."""
        if argreduce_with_value(self.env.nest, reduction) is not None:
            return
        env, acc = self.env, self.env.storage.accumulator_of(reduction)
        vector = scope.lanes is not None
        if vector and scope.lanes is not None:
            vector = scope.lanes.axis in reduction.over
        m = env.machine(scope, vector)
        element, position = self._element(reduction, scope, m)
        mask = scope.lanes.mask if scope.lanes is not None and vector else None
        addresses, lanes = self.registers[reduction], self._state_lanes(reduction, m.lanes or 1)
        if lanes != (m.lanes or 1):
            if mask is not None:
                element, mask = m.select(mask, element, m.const(reduction.args[0].dtype, 0)), None
            element = add_halves(m, element, lanes)
            m = LLVMMachine(self.b, lanes, m.target)
        state_lanes = (
            lanes if lanes in addresses else max(addresses)
        )  # only some lanes of an unrolled vector remain
        kinds = [
            LLVMMachine(self.b, state_lanes if state_lanes > 1 else None, m.target).register_type(d)
            for d in acc.parts
        ]
        state = (
            acc.start(m)
            if reduction in self.fresh
            else [
                self.b.load(p, typ=kind)
                for p, kind in zip(addresses[state_lanes], kinds, strict=True)
            ]
        )
        self.fresh.discard(reduction)
        old = state if state_lanes == lanes else first_lanes(m, state, lanes)
        new = acc.step(m, old, element, position)
        if mask is not None:
            new = [m.select(mask, x, y) for x, y in zip(new, old, strict=True)]
        if state_lanes != lanes:
            new = replace_first_lanes(m, state, new)
        for address, value in zip(addresses[state_lanes], new, strict=True):
            self.b.store(value, address)

    def _element(
        self, reduction: Reduction, scope: Scope, m: LLVMMachine
    ) -> tuple[Value, Value | None]:
        """Return a reduction's element at the innermost position, and its position if needed."""
        env, position = self.env, None
        element = env.get(reduction.args[0], scope, m.lanes is not None)
        if reduction.row.positional:
            position = env.index(reduction.positions, scope, lanes=True)
            if m.lanes is not None:
                position = splat(self.b, position, m.lanes)
        return element, position

    def finished(self, reduction: Reduction, scope: Scope) -> Value:
        """Return the result of a reduction whose states are in scratch."""
        env, acc = self.env, self.env.storage.accumulator_of(reduction)
        axes = env.s.materialised[reduction]
        state = [load_kept(env, (reduction, k), axes, scope) for k in range(len(acc.parts))]
        vector = scope.lanes is not None and scope.lanes.axis in axes
        return acc.finish(env.machine(scope, vector), state)


def power_of_two(n: int) -> bool:
    """Return whether n is 1, 2, 4, ..."""
    return n & (n - 1) == 0
