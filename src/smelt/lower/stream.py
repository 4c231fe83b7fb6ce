"""A definition whose folds over one axis are carried from block to block: `stream` items.

The values of the definition become terms; `smelt.fusion.cascade` says for each fold in which sweep
over the axis it is carried, by which states, and what its value is in the end.  Here that becomes
statements again: what stands still before the first sweep, a stream for each sweep, what waits for
the folds after it.

    kernel softmax(x: f32[r,c]) -> y: f32[r,c]
      grid r
      stream c/8192 with v1 = -inf, s1 = f64(0)
        v0 = x[r,c]
        v1' = max(v1, max(v0 over c))
        ...
      stream c/8192
        y[r,c] = exp(x[r,c] - v1) / f32(s1)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from math import prod

from smelt.blocks import (
    COLUMN_BLOCK,
    LEAST_TASKS,
    MADE,
    PARTS,
    SPLIT_ABOVE,
    STREAM_COLUMNS,
    TAKEN,
    has_parts,
    rows_axis,
    rows_taken,
    rows_visited,
)
from smelt.dataclass import dataclass
from smelt.errors import InternalError
from smelt.fusion.cascade.analyse import Cascade, analyse
from smelt.fusion.cascade.block_sparsity import Visible, visible
from smelt.fusion.cascade.columns import columns
from smelt.fusion.cascade.finite_masks import faint
from smelt.fusion.cascade.states import State as Carried
from smelt.fusion.cascade.term import Term
from smelt.kernel.ir import (
    Apply,
    Axis,
    Block,
    Cast,
    Const,
    Dot,
    Extreme,
    If,
    IndexValue,
    Kernel,
    Let,
    Merge,
    Partial,
    Position,
    Reduce,
    Ref,
    Scan,
    Split,
    State,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.kernel.walk import refs, transform
from smelt.lower import assign_axes
from smelt.lower.argreduce import joined, stands
from smelt.lower.define import Definition
from smelt.lower.mask_bounds import held_axes, parts_seen
from smelt.lower.substitute import moved, only_read, renamed
from smelt.lower.to_terms import Reader
from smelt.ops.combine import CHOICE, COMBINES
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import i64
from smelt.types.expr import Index, add, floordiv, mul, product


@dataclass
class _Scope:
    """Statements of the kernel or of a stream, and the terms that have a name there."""

    body: list[Statement] = field(default_factory=list[Statement])
    values: dict[Term, Value] = field(default_factory=dict[Term, Value])
    names: set[str] = field(default_factory=set[str])


def stream(name: str, d: Definition, axis: str, hints: Mapping[str, int]) -> Kernel:
    """The kernel of a definition that visits `axis` block by block, or part by part where all that
    is carried are plain folds and the grid has few tasks at the sizes `hints`."""
    d.body = assign_axes.live(d.body)
    return _Streamed(d, axis).kernel(name, hints)


class _Streamed:
    """Writes the kernel."""

    def __init__(self, d: Definition, axis: str) -> None:
        self.d, self.axis = d, axis
        self.read = Reader(d, axis)
        self.terms = self.read.terms
        self.stores = [s for s in d.body if isinstance(s, Store)]
        self.roots = [t for s in self.stores for t in self._roots(s)]
        self.cascade: Cascade = analyse(self.terms, self.roots, axis)
        self.top = _Scope()
        self.grid: list[str] = []
        self.hints: Mapping[str, int] = {}
        self.moving: dict[Term, bool] = {}
        self.cuts: dict[Term, tuple[Term, Term]] = {}
        self.parted: Block | None = None  # how parts of the axis are visited, where it is split
        self.shared = False  # whether its blocks will be tasks of their own (`split_stream.py`)
        params = (*d.inputs, *d.outputs)
        self.taken = {p.name for p in params} | set(d.axes) | set(self.read.of)
        self.state_names = [self._state_name(k) for k in range(len(self.cascade.states))]

    def kernel(self, name: str, hints: Mapping[str, int]) -> Kernel:
        """All sweeps."""
        d, self.hints = self.d, hints
        sizes = {a: assign_axes.number(n.extent, hints) for a, n in d.axes.items()}
        inside = {self.axis, *columns(self.cascade.states, self.roots, self.axis, sizes)}
        grid = [a for a in assign_axes.independent(d, self.read.facts) if a.name not in inside]
        self.grid = [a.name for a in grid]
        cut, size = self._blocks(grid, hints)
        blocks: list[Block | Split] = [*cut]
        if self._is_split(cut, hints):
            part = self._fresh("part")
            rows = assign_axes.rows_at_once(d, d.axes[self.axis], self.read.facts, hints)
            self.parted = Block(self.axis, rows, None, part)
            parts = assign_axes.parts_for(d, grid, d.axes[self.axis], rows)
            blocks = [*(Block(a.name, 1) for a in grid), Split(part, self.axis, parts)]
        self.shared = has_parts(
            (self._visits(b) for b in cut), self._visits(Block(self.axis, size))
        )
        fixed = {b.axis for b in blocks if isinstance(b, Block) and b.size == 1}
        along = [s for s in self.stores if self.axis in self._index_axes(s)]
        when = {id(s): max(map(self.cascade.sweep_of, self._roots(s)), default=0) for s in along}
        sweeps = {s.sweep for s in self.cascade.states} | set(when.values())
        for sweep in sorted(sweeps):
            written = [s for s in along if when[id(s)] == sweep]
            self._sweep(sweep, size, fixed, written)
        for s in self.stores:
            if id(s) not in when:
                self._store(s, self.top)
        return Kernel(
            name,
            tuple(d.inputs),
            tuple(d.outputs),
            tuple(d.axes.values()),
            tuple(blocks),
            only_read(self.top.body),
        )

    def _roots(self, s: Store) -> list[Term]:
        """What a store reads."""
        found = [self.read.term(s.value)]
        return found + [self.read.of[n] for n in refs(s) if n in self.read.of]

    def _index_axes(self, s: Store) -> frozenset[str]:
        return assign_axes.index_axes(s.index, self.read.facts.axes)

    # ---- sweeps --------------------------------------------------------------------------------

    def _sweep(self, sweep: int, size: int, fixed: set[str], written: list[Store]) -> None:
        if (cut := self.parted) is not None:
            self.cuts = {}
            states, body = self._body(sweep, fixed, written)
            whole = Stream((cut,), states, body)
            self.top.body += [whole, Merge(str(cut.part), tuple(s.name for s in states))]
            return
        seen = Visible() if written else self._visible(sweep, fixed)
        own = self.cascade.states
        held = tuple(
            Block(a, 1) for a in held_axes(self.read, own, sweep, written, self.grid, self.hints)
        )
        tried = None
        if not (written or held or self.shared):
            tried = faint(self.terms, own, sweep, seen, self.axis, frozenset(fixed))
        if tried is None:
            self._blocks_of(sweep, size, fixed, written, held, seen)
            return
        self._blocks_of(sweep, size, fixed, written, held, tried.seen)
        again = Partial(self._value(tried.enough, self.top))
        first = list(self.state_names)
        for k, s in enumerate(own):
            if s.sweep == sweep:
                self.state_names[k] = self._fresh(f"{first[k]}_2")
        self._blocks_of(sweep, size, fixed, written, held, seen, again)
        for k, s in enumerate(own):
            if s.sweep == sweep:
                chosen = If(again, Ref(self.state_names[k]), Ref(first[k]))
                self.state_names[k] = self._fresh(f"w{len(self.taken)}")
                self.top.body.append(Let(self.state_names[k], chosen))

    def _blocks_of(
        self,
        sweep: int,
        size: int,
        fixed: set[str],
        written: list[Store],
        held: tuple[Block, ...],
        seen: Visible,
        wanted: Value | None = None,
    ) -> None:
        """The stream of a sweep: what `seen` says of its blocks, all of them only if `wanted`."""
        self.cuts = seen.cuts
        states, body = self._body(sweep, fixed, written)
        start, stop = self._ends(seen)
        if wanted is not None:
            end = stop or IndexValue(self.d.axes[self.axis].extent, i64)
            stop = Apply(CHOICE, (wanted, end, Const(0, i64)))
        where = None if seen.where is None else self._told(seen.where)
        block = Block(self.axis, size, stop, start=start)
        sees = tuple(self._sees(sweep, fixed | {b.axis for b in held}, written))
        self.top.body.append(Stream((*held, block), states, body, where, sees))

    def _body(
        self, sweep: int, fixed: set[str], written: list[Store]
    ) -> tuple[tuple[State, ...], tuple[Statement, ...]]:
        """The states of a sweep, and what it does in every block."""
        inner = _Scope()
        states: list[State] = []
        for k, s in enumerate(self.cascade.states):
            if s.sweep != sweep:
                continue
            row = COMBINES[s.combine]
            axes = tuple(a for a in self.d.axes if a in s.block.axes - fixed)
            first = Const(row.identity(s.dtype), s.dtype)
            states.append(State(self.state_names[k], first, axes, s.dtype))
            if s.best is not None and self.parted is not None:
                inner.body.append(Update(self.state_names[k], self._place(k, s, s.best, inner)))
                continue
            parts = tuple(self._value(a, inner) for a in s.block.args)
            taken: Value = Reduce(s.combine, parts[0], s.block.over, s.dtype)
            if len(parts) == 2:
                taken = Dot(parts[0], parts[1], s.block.over, s.block.value or s.dtype)
            old = self.terms.state(k, s.block.axes, s.dtype) if s.carry is None else s.carry
            carried = self._value(old, inner)
            update = Apply(row.scalar, (carried, taken))
            inner.body.append(Update(self.state_names[k], update))
        for s in written:
            self._store(s, inner)
        return tuple(states), only_read(inner.body)

    def _place(self, number: int, s: Carried, best: Term, inner: _Scope) -> Value:
        """The new place of the best: all of a part asks once where its own stands."""
        d, fold = self.d, s.of
        x = self._value(fold.args[0], inner)
        along = d.axes[self.axis]
        each = product(d.axes[a].extent for a in fold.over if a != self.axis)
        place = stands(Reduce(fold.op, x, fold.over, i64), along, each)
        top = Reduce(COMBINES[fold.op].winner, x, fold.over, best.dtype)
        names = self._fresh(f"w{len(self.taken)}"), self._fresh(f"w{len(self.taken)}")
        inner.body += [Let(names[0], place), Let(names[1], top)]
        held = self.state_names[best.value]
        return joined(self.state_names[number], Ref(names[0]), held, Ref(names[1]), best.dtype)

    def _sees(self, sweep: int, fixed: set[str], written: list[Store]) -> Iterator[Block]:
        """The parts of other axes outside of which no block of a sweep takes anything up."""
        states = [s for s in self.cascade.states if s.sweep == sweep]
        for part in parts_seen(self.read, states, written, self.grid, frozenset(fixed)):
            ends = (None if t is None else self._told(t) for t in (part.start, part.stop))
            start, stop = ends
            yield Block(part.axis, None, stop, start=start)

    def _is_split(self, blocks: list[Block], hints: Mapping[str, int]) -> bool:
        """Whether one sweep of folds that do not wait for one another is all, in too few tasks."""
        states = self.cascade.states
        bound = [s.value for s in self.d.body if isinstance(s, Let)]
        if not states or any(isinstance(v, (Dot, Scan)) for v in bound):
            return False
        if any(s.sweep != states[0].sweep or not s.joins(self.axis) for s in states):
            return False
        seen = self._visible(states[0].sweep, {b.axis for b in blocks if b.size == 1})
        masked = seen.cuts or any((seen.start, seen.stop, seen.seen, seen.where))
        if masked or any(self.axis in self._index_axes(s) for s in self.stores):
            return False
        sizes = {a: assign_axes.number(self.d.axes[a].extent, hints) for a in self.d.axes}
        tasks = prod(-(-sizes[b.axis] // (b.size or 1)) for b in blocks)
        few = tasks < LEAST_TASKS and sizes[self.axis] >= PARTS
        return few and prod(sizes.values()) >= SPLIT_ABOVE

    def _visits(self, b: Block) -> int:
        """Blocks of an axis at the sizes of the hints."""
        extent = assign_axes.number(self.d.axes[b.axis].extent, self.hints)
        return -(-extent // (b.size or max(extent, 1)))

    def _visible(self, sweep: int, fixed: set[str]) -> Visible:
        """What the states of a sweep take up."""
        states = [s for s in self.cascade.states if s.sweep == sweep]
        return visible(self.terms, states, self.axis, frozenset(fixed))

    def _ends(self, seen: Visible) -> tuple[Value | None, Value | None]:
        """Where the visits of a sweep start and stop."""
        start, stop = (None if t is None else self._told(t) for t in (seen.start, seen.stop))
        if seen.seen is None or (start is not None and stop is not None):
            return start, stop
        useful, here = self._told(seen.seen), self.d.axes[self.axis].index
        extent = self.d.axes[self.axis].extent
        if start is None:
            start = self._position("min", useful, here, extent)
        if stop is None:
            stop = self._position("max", useful, add(here, 1), 0)
        return start, stop

    def _position(self, combine: str, useful: Value, here: Index, other: Index) -> Value:
        """The first or the last position that is of use."""
        either = Apply(CHOICE, (useful, IndexValue(here, i64), IndexValue(other, i64)))
        name = self._fresh(f"w{len(self.taken)}")
        self.top.body.append(Let(name, Reduce(combine, either, (self.axis,), i64)))
        return Ref(name)

    def _told(self, t: Term) -> Value:
        """A term about a whole block, in which nothing but arrays' elements has a name."""
        still = t.kind == "opaque" and not isinstance(t.value, IndexValue) and not self._moves(t)
        if still or t.kind == "const":
            return self._value(t, self.top)
        args = tuple(map(self._told, t.args))
        if t.kind == "opaque":
            names = {self._name_of(a): v for a, v in zip(t.args, args, strict=True)}
            return renamed(t.value, names)
        return _made(t, args)

    def _store(self, s: Store, scope: _Scope) -> None:
        for n in refs(s):
            if n in self.read.of and isinstance(self.read.of[n].value, Position):
                self._value(self.read.of[n], scope)
        scope.body.append(replace(s, value=self._value(self.read.term(s.value), scope)))

    def _state_name(self, number: int) -> str:
        """The name of the fold whose value a state is, or a new one."""
        for fold, final in self.cascade.finals.items():
            if final.kind == "old" and final.value == number and fold in self.read.origin:
                return self.read.origin[fold][0]
        return self._fresh(f"s{number}")

    def _fresh(self, wanted: str) -> str:
        name, k = wanted, 1
        while name in self.taken or name in SCALARS:
            k += 1
            name = f"{wanted}_{k}"
        self.taken.add(name)
        return name

    # ---- values --------------------------------------------------------------------------------

    def _moves(self, t: Term) -> bool:
        """Whether a term has to be computed in every block."""
        known = self.moving.get(t)
        if known is None:
            if t.is_fold:
                known = False
            elif self.axis in t.axes or t.kind in ("old", "new"):
                known = True
            else:
                known = any(map(self._moves, t.args)) and t.kind != "first"
            self.moving[t] = known
        return known

    def _value(self, t: Term, scope: _Scope) -> Value:
        """The value of a term in a scope; names it there, or outside if it stands still."""
        if t.kind == "const":
            return Const(t.value, t.dtype)
        if t.kind in ("old", "new"):
            return Ref(self.state_names[t.value], t.kind == "new")
        home = scope if scope is self.top or self._moves(t) else self.top
        found = home.values.get(t)
        if found is None:
            if t.is_fold and t not in self.cascade.finals:  # a bound of what no stream visits
                bound = Reduce(t.op, self._told(t.args[0]), t.over, t.dtype)
                found = self._let(t, bound, self.top)
            elif t.is_fold:
                found = self._value(self.cascade.finals[t], self.top)
            else:
                found = self._bound(t, home)
            home.values[t] = found
        return found

    def _bound(self, t: Term, home: _Scope) -> Value:
        if t.kind == "first":
            return self._first(t.args[0], t.over, t.value)
        if isinstance(t.value, Position):
            (arg,) = t.args or (None,)
            inside = t.value.value if arg is None else self._value(arg, home)
            value = transform(t.value.value, lambda v: inside if isinstance(v, Ref) else v)
            home.body.append(replace(t.value, value=value))
            return Ref(t.value.name)
        return self._let(t, self._plain(t, home), home)

    def _let(self, t: Term, value: Value, home: _Scope) -> Value:
        name, origin = self.read.origin.get(t, ("", -1))
        if not name or name in home.names or name in self.state_names:
            name = self._fresh(f"w{len(self.taken)}")
        home.names.add(name)
        home.body.append(Let(name, value, origin))
        return Ref(name)

    def _plain(self, t: Term, home: _Scope) -> Value:
        """The value of a term, its parts named."""
        match t.kind:
            case "apply" | "cast" if t in self.cuts:
                partial, other = self.cuts[t]
                chosen = _made(t, tuple(self._value(a, home) for a in t.args))
                return If(self._told(partial), chosen, self._value(other, home))
            case "apply" | "cast" | "extreme" | "fails":
                return _made(t, tuple(self._value(a, home) for a in t.args))
            case "count":
                return IndexValue(product(self.d.axes[a].extent for a in t.over), t.dtype)
            case "opaque":
                names = {self._name_of(a): self._value(a, home) for a in t.args}
                return renamed(t.value, names)
            case _:
                raise InternalError(f"a stream along {self.axis} has no place for {t}")

    def _name_of(self, t: Term) -> str:
        return self.read.origin[t][0]

    # ---- the first elements --------------------------------------------------------------------

    def _first(self, t: Term, over: tuple[str, ...], third: int) -> Value:
        """A term with axes at the first positions of their thirds."""
        if not t.axes & {*over}:
            return self._value(t, self.top)
        key = self.terms.first(t, over, third)
        found = self.top.values.get(key)
        if found is None:
            found = self.top.values[key] = self._first_of(t, over, third)
        return found

    def _first_of(self, t: Term, over: tuple[str, ...], third: int) -> Value:
        at = {a: mul(floordiv(self.d.axes[a].extent, 3), third) for a in over}
        parts = [self._first(a, over, third) for a in t.args]
        name = self._fresh(f"w{len(self.taken)}")
        if isinstance(t.value, Position):
            inside = parts[0] if parts else None
            value = transform(t.value.value, lambda v: inside or v if isinstance(v, Ref) else v)
            value = transform(value, lambda v: moved(v, at))
            self.top.body.append(Position(name, value, t.value.extent))
            return Ref(name)
        if t.kind == "apply":
            value = Apply(t.op, tuple(parts))
        elif t.kind == "cast":
            value = Cast(parts[0], t.value or t.dtype)
        elif t.kind == "opaque":
            names = {self._name_of(a): v for a, v in zip(t.args, parts, strict=True)}
            value = transform(renamed(t.value, names), lambda v: moved(v, at))
        else:
            raise InternalError(f"{t} has no first element")
        self.top.body.append(Let(name, value))
        return Ref(name)

    # ---- blocks --------------------------------------------------------------------------------

    def _blocks(self, grid: list[Axis], hints: Mapping[str, int]) -> tuple[list[Block], int]:
        """The blocks of the grid, and how many elements of the streamed axis a visit takes."""
        names = [a.name for a in grid]
        sizes = {a: assign_axes.number(self.d.axes[a].extent, hints) for a in self.d.axes}
        rows = rows_axis(self._rows(), names, sizes)
        if rows is not None:
            takes = any(f.kind == "dot" for f in self.cascade.finals)
            cut, size = TAKEN if takes else MADE
            return [Block(a, cut if a == rows else 1) for a in names], size
        runs = assign_axes.fastest(self.d)
        width = self.terms.width(self.axis, {a: n for a, n in sizes.items() if a not in names})
        if any(isinstance(s, Let) and isinstance(s.value, Dot) for s in self.d.body):
            return [Block(a, 1) for a in names], rows_taken(TAKEN[1], width)
        if self.axis in runs or not names or names[-1] not in runs:
            return [Block(a, 1) for a in names], rows_visited(width)
        return [Block(a, STREAM_COLUMNS if a == names[-1] else 1) for a in names], COLUMN_BLOCK

    def _rows(self) -> Iterator[frozenset[str]]:
        """Axes that one operand has alone in contractions along the streamed axis."""
        known = self.read.facts.axes
        for s in self.d.body:
            if isinstance(s, Let) and isinstance(s.value, Dot):
                sides = [assign_axes.value_axes(v, known) for v in (s.value.left, s.value.right)]
                if self.axis not in sides[0] | sides[1]:
                    continue
                for one, other in (sides, sides[::-1]):
                    if self.axis in s.value.over or self.axis not in one:
                        yield one - other - {self.axis}


def _made(t: Term, args: tuple[Value, ...]) -> Value:
    """The value of a term made of others."""
    match t.kind:
        case "apply":
            return Apply(t.op, args)
        case "cast":
            return Cast(args[0], t.value or t.dtype)
        case "extreme":
            return Extreme(args[0], bool(t.value))
        case _:
            return Partial(args[0])
