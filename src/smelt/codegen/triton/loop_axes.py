"""Loop over axes that are too long for the registers: a pass for every result that waits for one.

    m = max(x[r,c] over c)                      stream c/4096 with m = -inf
    y[r,c] = exp(x[r,c] - m)                      m' = max(m, max(x[r,c] over c))
                                                stream c/4096
                                                  y[r,c] = exp(x[r,c] - m)

Values along the axis are computed again in each pass. Reductions and contractions become states,
and a scan carries the reduction of the blocks before. Passes that do not wait for one another are
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import reduce
from typing import Any

from smelt.kernel import ir
from smelt.kernel.block_reduction import accumulated, row_of
from smelt.kernel.env import Env, dtype_of
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_index,
    axes_of_value,
    children,
    refs,
    statements,
    values_of,
    visit_statement,
    with_children,
)
from smelt.ops.combine import ANY_FAILS, BOTH, CHOICE, COMBINES, FIRST, SUM_OF_PRODUCTS, TIES_BEST
from smelt.python.caches import cached_by_identity
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_, i32, i64
from smelt.types.expr import Index, mul, product

SUMMED_LANES = 32
"""Elements of the summed axis of a contraction in one step."""
ROW_STEP = 4096
"""Elements of a long row in one step."""


MAX_STATEMENTS = 1024
"""Maximum statements whose names are kept while a kernel's loops are compared."""


class CannotLoop(Exception):
    """The kernel reads an axis in a way that no loop has."""


def loop_axes(kernel: ir.Kernel, axes: Axes, at_top: Axes) -> ir.Kernel:
    """Return the kernel with loops over `axes`; those `at_top` loop outside of streams only.

    Raises CannotLoop where a state varies along one of the axes, or a loop's end does.
    """
    if not axes | at_top:
        return kernel
    looper = _Looper(kernel)
    body = looper.body(kernel.body, axes | at_top, axes)
    return replace(kernel, body=tuple(body))


@dataclass(frozen=True, slots=True)
class _Item:
    """A statement that a pass over `axes` computes; `needs` are the names that it reads."""

    statement: ir.Let | ir.Store
    axes: tuple[str, ...]
    needs: frozenset[str]


class _Looper:
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel, self.names = kernel, dict(axes_of_body(kernel.body))
        self.env = Env.after(kernel)
        self.count = 0
        streams = (s for s in statements(kernel) if isinstance(s, ir.Stream))
        self.streamed = {b.axis for s in streams for b in s.blocks}

    def bind(self, name: str, value: ir.Value, *, extent: Index | None = None) -> None:
        """Record the axes and the type of a name."""
        self.names[name] = self.axes_of(value)
        self.env.bind(ir.Let(name, value) if extent is None else ir.Position(name, value, extent))

    def carry(self, state: ir.State) -> None:
        """Record the axes and the type of a state."""
        self.names[state.name] = Axes(state.axes)
        self.env.bind(ir.Stream((), (state,), ()))

    def body(self, body: Iterable[ir.Statement], looped: Axes, inner: Axes) -> list[ir.Statement]:
        """Return statements without values along `looped` axes outside of streams over them."""
        scope = _Scope(self, looped, inner)
        for s in body:
            scope.add(s)
        scope.flush()
        return [*scope.result, *scope.late]

    def fresh(self, stem: str) -> str:
        """Return a name that the kernel does not have."""
        while True:
            self.count += 1
            name = f"{stem}{self.count}"
            if name not in self.names:
                return name

    def axes_of(self, v: ir.Value) -> Axes:
        return axes_of_value(v, self.names)

    def longest(self, axes: Sequence[str]) -> str:
        """Return the axis whose blocks are lanes: the longest known, the last one of equals.

        An extent that is not a number is longer than all that are.
        """
        extents = {a: self.kernel.axis(a).extent for a in axes}
        lengths = {a: n if isinstance(n, int) else 1 << 62 for a, n in extents.items()}
        return max(reversed(axes), key=lengths.__getitem__)

    def order(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(a.name for a in self.kernel.axes if a.name in set(axes))


class _Scope:
    """Statements of one body: those along looped axes wait for the passes that read them."""

    def __init__(self, looper: _Looper, looped: Axes, inner: Axes) -> None:
        self.looper, self.looped, self.inner = looper, looped, inner
        self.result: list[ir.Statement] = []
        self.deferred: list[ir.Let | ir.Position] = []
        self.pending: list[_Item] = []
        self.late: list[ir.Store] = []
        """Stores of results of passes: they are the last, as nothing waits for them."""

    # ---- statements ------------------------------------------------------------------------------

    def add(self, s: ir.Statement) -> None:
        """Print a statement, or keep it for a pass."""
        match s:
            case ir.Let(name=name, value=ir.Reduce() | ir.Dot() as value):
                self.reduction(name, self.operands(value))
            case ir.Let(value=ir.Scan() as value):
                self.binding(replace(s, value=self.operands(value)))
            case ir.Let() | ir.Position():
                self.binding(replace(s, value=self.hoist(s.value)))
            case ir.Update():
                value = self.hoist(s.value)
                self.plain(replace(s, value=value), self.along(value))
            case ir.Store():
                self.store(s)
            case ir.Stream():
                self.stream(s)
            case _:
                self.plain(s, Axes())

    def binding(self, s: ir.Let | ir.Position) -> None:
        along = self.along(s.value)
        extent = s.extent if isinstance(s, ir.Position) else None
        self.looper.bind(s.name, s.value, extent=extent)
        if along:
            self.deferred.append(s)
        else:
            self.plain(s, along)

    def reduction(self, name: str, value: ir.Reduce | ir.Dot) -> None:
        """Keep a reduction over looped axes for a pass; others are values like any."""
        over = self.looped.intersection(value.over)
        if not over or self.along(value):
            self.binding(ir.Let(name, value))
            return
        if isinstance(value, ir.Reduce) and COMBINES[value.combine].positional:
            self.position(name, value)
            return
        self.looper.bind(name, value)
        self.wait(ir.Let(name, value), over)

    def position(self, name: str, v: ir.Reduce) -> None:
        """Find the winner in one pass, and its first place in the next.

        Extremes are of numbers: those of truth values are of 0 and 1.
        """
        row = COMBINES[v.combine]
        best, arg = self.looper.fresh("best"), self.looper.fresh("value")
        is_truth = dtype_of(v.arg, self.looper.env) == bool_
        self.binding(ir.Let(arg, ir.Cast(v.arg, i32) if is_truth else v.arg))
        dtype = dtype_of(ir.Ref(arg), self.looper.env)
        self.reduction(best, ir.Reduce(row.winner, ir.Ref(arg), v.over, dtype))
        either, equal, unequal = TIES_BEST
        is_best = ir.Apply(equal, (ir.Ref(arg), ir.Ref(best)))
        if dtype.is_float:
            is_best = ir.Apply(either, (is_best, ir.Apply(unequal, (ir.Ref(arg), ir.Ref(arg)))))
        places = self.places(v.over)
        behind = ir.Const(COMBINES[FIRST].identity(i64), i64)
        self.reduction(
            name, ir.Reduce(FIRST, ir.Apply(CHOICE, (is_best, places, behind)), v.over, i64)
        )

    def places(self, over: Sequence[str]) -> ir.Value:
        """Return row-major positions along `over`, in the block of an axis that a stream visits."""
        place: Index = 0
        first: ir.Value | None = None
        add, times = COMBINES[SUM_OF_PRODUCTS[0]].scalar, SUM_OF_PRODUCTS[1]
        for k, a in enumerate(over):
            axis = self.looper.kernel.axis(a)
            place = place * axis.extent + axis.index
            if a in self.looper.streamed and a not in self.looped:
                inner = product(self.looper.kernel.axis(b).extent for b in over[k + 1 :])
                start = ir.Extreme(ir.IndexValue(axis.index, i64), largest=False)
                before = ir.Apply(times, (start, ir.IndexValue(mul(inner, -1), i64)))
                first = before if first is None else ir.Apply(add, (first, before))
        result = ir.IndexValue(place, i64)
        return result if first is None else ir.Apply(add, (result, first))

    def store(self, s: ir.Store) -> None:
        if s.join:
            raise CannotLoop
        s = replace(
            s,
            value=self.hoist(s.value),
            where=None if s.where is None else self.hoist(s.where),
        )
        names = self.looper.names
        along = axes_of_index(s.index, names)
        along = (along | self.values_along(s)) & self.looped
        if along:
            self.wait(s, along)
        else:
            self.late.append(s)

    def values_along(self, s: ir.Statement) -> Axes:
        return Axes().union(*(self.along(v) for v in values_of(s)))

    def stream(self, s: ir.Stream) -> None:
        """Transform the body of a stream, with what it reads along looped axes inside."""
        visited = {b.axis for b in s.blocks}
        if any(set(t.axes) & self.looped for t in s.states) or self.values_along(s) - visited:
            raise CannotLoop
        if any(b.axis in self.looped for b in s.bounds):
            raise CannotLoop
        ends = [v for v in values_of(s) if v is not s.where]
        if any(self.hoist(v) is not v for v in ends):
            raise CannotLoop
        visiting = _Scope(self.looper, self.looped - visited, self.inner - visited)
        if s.where is not None and visiting.hoist(s.where) is not s.where:
            raise CannotLoop
        prefix = self.needed(names_read(s))
        self.settle({name for t in (*prefix, s) for name in names_read(t)})
        if any(_reduces(t, a, is_last=False) for t in prefix for a in visited):
            raise CannotLoop
        inner = self.inner - visited
        body = self.looper.body((*prefix, *s.body), inner, inner)
        self.result.append(replace(s, body=tuple(body)))

    def plain(self, s: ir.Statement, along: Axes) -> None:
        if along:
            raise CannotLoop
        self.settle(names_read(s))
        self.result.append(s)

    # ---- values ----------------------------------------------------------------------------------

    def along(self, v: ir.Value) -> Axes:
        """Return the looped axes that a value varies along."""
        return self.looper.axes_of(v) & self.looped

    def hoist(self, v: ir.Value, conditions: tuple[ir.Value, ...] = ()) -> ir.Value:
        """Give reductions and scans of looped axes inside of a value statements of their own."""
        if isinstance(v, ir.If):
            condition = self.hoist(v.condition, conditions)
            chosen = self.hoist(v.value, (*conditions, condition))
            other = self.hoist(v.other, (*conditions, ir.Apply(ANY_FAILS[1], (condition,))))
            return ir.If(condition, chosen, other)
        new = with_children(v, tuple(self.hoist(c, conditions) for c in children(v)))
        match new:
            case ir.Extreme(arg=arg) | ir.Partial(condition=arg) if self.along(arg):
                raise CannotLoop
            case ir.Reduce(over=over) | ir.Dot(over=over) if self.looped.intersection(over):
                name = self.looper.fresh("looped")
                self.reduction(name, self.guarded(new, conditions))
            case ir.Rename(old=old, new=new_axis) if self.looped & {old, new_axis}:
                raise CannotLoop
            case ir.Scan(along=along) if along in self.looped:
                name = self.looper.fresh("looped")
                self.binding(ir.Let(name, self.guarded(new, conditions)))
            case _:
                return new
        return ir.Ref(name)

    def operands(self, v: ir.Value) -> Any:
        """Hoist what a reduction's operands have inside."""
        return with_children(v, tuple(self.hoist(c) for c in children(v)))

    def guarded(self, v: Any, conditions: Sequence[ir.Value]) -> Any:
        """Return a reduction out of its branches: loads still have the conditions of these."""
        if not conditions:
            return v
        condition = reduce(lambda a, b: ir.Apply(BOTH, (a, b)), conditions)
        over = {v.along} if isinstance(v, ir.Scan) else set(v.over)
        row = COMBINES[v.combine] if isinstance(v, ir.Scan) else row_of(v)
        if self.looper.axes_of(condition) & over or row.positional:
            raise CannotLoop

        def guard(operand: ir.Value) -> ir.Value:
            dtype = dtype_of(operand, self.looper.env)
            return ir.If(condition, operand, ir.Const(row.identity(dtype), dtype))

        return with_children(v, tuple(guard(c) for c in children(v)))

    # ---- passes ----------------------------------------------------------------------------------

    def wait(self, s: ir.Let | ir.Store, over: Axes) -> None:
        """Add a statement to the next pass over its axes.

        Passes that it waits for are emitted before.
        """
        needs = {name for t in (*self.needed(names_read(s)), s) for name in names_read(t)}
        self.settle(needs)
        self.pending.append(_Item(s, self.looper.order(over), frozenset(needs)))

    def settle(self, needs: AbstractSet[str]) -> None:
        """Emit the passes if one of them binds a name that is needed now."""
        needs = needs | {n for t in self.needed(needs) for n in names_read(t)}
        if any(isinstance(i.statement, ir.Let) and i.statement.name in needs for i in self.pending):
            self.flush()

    def needed(self, wanted: AbstractSet[str]) -> list[ir.Let | ir.Position]:
        """Return the deferred bindings that the names depend on, in order."""
        wanted, result = set(wanted), list[ir.Let | ir.Position]()
        for s in reversed(self.deferred):
            if s.name in wanted:
                wanted |= names_read(s)
                result.append(s)
        return result[::-1]

    def flush(self) -> None:
        """Emit the passes that wait, one for all items over the same axes."""
        pending, self.pending = self.pending, []
        groups: dict[tuple[str, ...], list[_Item]] = {}
        for item in pending:
            groups.setdefault(item.axes, []).append(item)
        for axes, items in groups.items():
            self.result.append(self.one_pass(axes, items))

    def one_pass(self, axes: tuple[str, ...], items: Sequence[_Item]) -> ir.Stream:
        """Return the stream that computes the items: over all axes, or over the outermost one.

        Where bindings reduce along one of the axes, others are looped over inside of the stream.
        """
        prefix = self.needed({n for i in items for n in i.needs})
        if any(_reduces(s, a, is_last=len(axes) == 1) for s in prefix for a in axes):
            axes = (self.outermost(axes, prefix),)
        has_dots = any(isinstance(v, ir.Dot) for i in items for v in visit_statement(i.statement))
        size = SUMMED_LANES if has_dots else ROW_STEP
        longest = self.looper.longest(axes)
        blocks = tuple(ir.Block(a, size if a == longest else 1) for a in axes)
        states: list[ir.State] = []
        body: list[ir.Statement] = []
        updates: list[ir.Statement] = []
        for s in prefix:
            if isinstance(s.value, ir.Scan) and s.value.along in axes:
                state, lets, update = self.carried(s.name, s.value)
                states.append(state)
                body += lets
                updates.append(update)
            else:
                body.append(s)
        for item in items:
            s = item.statement
            if isinstance(s, ir.Let) and isinstance(s.value, ir.Reduce | ir.Dot):
                axes_of_state = self.looper.order(self.looper.names[s.name])
                state, update = accumulated(s.name, s.value, axes_of_state)
                states.append(state)
                updates.append(update)
            else:
                updates.append(s)
        rest = (self.inner | self.looped) - set(axes)
        inside = self.looper.body((*body, *updates), rest, rest)
        return ir.Stream(blocks, tuple(states), tuple(inside))

    def outermost(self, axes: Sequence[str], prefix: Sequence[ir.Statement]) -> str:
        """Return the axis that the loop around the others visits.

        Bindings that are computed again inside of it must not reduce or scan along it.
        """
        for axis in axes:
            if not any(_reduces(s, axis, is_last=len(axes) == 1) for s in prefix):
                return axis
        raise CannotLoop

    def carried(self, name: str, v: ir.Scan) -> tuple[ir.State, list[ir.Statement], ir.Update]:
        """Return the state that a scan carries, its value in a block, and its update."""
        row = COMBINES[v.combine]
        carry = self.looper.fresh("carry")
        axes = self.looper.order(self.looper.names[name] - {v.along})
        scanned = ir.Let(name, ir.Apply(row.scalar, (ir.Ref(carry), v)))
        state, update = accumulated(carry, ir.Reduce(v.combine, v.arg, (v.along,), v.dtype), axes)
        self.looper.carry(state)
        return state, [scanned], update


@cached_by_identity(MAX_STATEMENTS)
def names_read(s: ir.Statement) -> frozenset[str]:
    """Return the names that a statement reads."""
    return frozenset(refs(s))


def _reduces(s: ir.Statement, axis: str, *, is_last: bool) -> bool:
    """Return whether a binding needs all of an axis.

    The innermost loop carries scans along its axis.
    """
    for v in visit_statement(s):
        if isinstance(v, ir.Reduce | ir.Dot) and axis in v.over:
            return True
        if isinstance(v, ir.Scan) and v.along == axis and not is_last:
            return True
    return False
