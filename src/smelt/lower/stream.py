"""Lower a cluster to streams: reductions over one axis carried from block to block.

The values of the definition become terms. `smelt.fusion.cascade` decides for each reduction in
which pass over the axis it is carried, by which states, and how its final value follows. This
module turns that into statements: loop-invariant values before the first pass, one stream per
pass, and what waits for the reductions after it.

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

from smelt.errors import InternalError
from smelt.fusion.cascade.analyse import Cascade, analyse
from smelt.fusion.cascade.block_sparsity import VisitRange, visit_range
from smelt.fusion.cascade.finite_masks import find_finite_mask
from smelt.fusion.cascade.states import State as Carried
from smelt.fusion.cascade.states import inner_columns, state_row_bytes
from smelt.fusion.cascade.term import Term
from smelt.kernel import ir
from smelt.kernel.canonical import numbered_name
from smelt.kernel.walk import axes_of_index, axes_of_value, live, refs, substitute_index, transform
from smelt.lower import assign_axes
from smelt.lower.argreduce import global_position, merge_positions
from smelt.lower.define import Definition
from smelt.lower.mask_bounds import unit_block_axes, visible_ranges
from smelt.lower.to_terms import TermReader
from smelt.machine.tiling import Tiling, rows_axis
from smelt.ops.combine import CHOICE, COMBINES
from smelt.python.dataclass import dataclass
from smelt.types.dtype import i64
from smelt.types.expr import Atom, Expr, Index, add, floordiv, map_variables, mul, product
from smelt.types.expr import value as position_index


def replace_names(value: ir.Value, names: dict[str, ir.Value]) -> ir.Value:
    """Replace bound names and computed positions in a value."""

    def leaf(atom: Atom) -> Index:
        new = names.get(atom.name) if atom.kind == "value" else None
        if isinstance(new, ir.Ref):
            return position_index(new.name, atom.extent)
        return Expr((((atom,), 1),))

    def change(v: ir.Value) -> ir.Value:
        match v:
            case ir.Ref(name=name) if name in names:
                return names[name]
            case ir.Load(index=index):
                return replace(v, index=tuple(map_variables(e, leaf) for e in index))
            case ir.IndexValue(index=index):
                return replace(v, index=map_variables(index, leaf))
            case _:
                return v

    return transform(value, change)


def fix_axes(v: ir.Value, at: dict[str, Index]) -> ir.Value:
    """Fix axes of a load or index at given positions.

    A load that changes keeps its out-of-bounds constant.
    """
    match v:
        case ir.Load(index=index, other=other, param=param):
            fixed = tuple(substitute_index(e, at) for e in index)
            return v if fixed == index else ir.Load(param, fixed, other)
        case ir.IndexValue(index=index):
            return replace(v, index=substitute_index(index, at))
        case _:
            return v


@dataclass
class _Scope:
    """Statements of the kernel or of a stream, and the terms named there."""

    body: list[ir.Statement] = field(default_factory=list[ir.Statement])
    values: dict[Term, ir.Value] = field(default_factory=dict[Term, ir.Value])
    names: set[str] = field(default_factory=set[str])


def stream(
    name: str, d: Definition, axis: str, hints: Mapping[str, int], tiling: Tiling
) -> ir.Kernel:
    """Build the kernel of a definition that visits `axis` block by block.

    The axis is split into parts over the grid if only independent reductions are carried and the
    grid has few tasks at the sizes `hints`.
    """
    d.body = live(d.body)
    return _Streamed(d, axis, tiling).kernel(name, hints)


class _Streamed:
    """Builder of a streamed kernel."""

    def __init__(self, d: Definition, axis: str, tiling: Tiling) -> None:
        self.d, self.axis, self.tiling = d, axis, tiling
        self.read = TermReader(d, axis)
        self.terms = self.read.terms
        self.stores = [s for s in d.body if isinstance(s, ir.Store)]
        self.roots = [t for s in self.stores for t in self._terms_read(s)]
        self.cascade: Cascade = analyse(self.terms, self.roots, axis)
        self.top = _Scope()
        self.grid: list[str] = []
        self.hints: Mapping[str, int] = {}
        self.varying: dict[Term, bool] = {}
        self.cuts: dict[Term, tuple[Term, Term]] = {}
        self.part_block: ir.Block | None = None  # block of a part, if the axis is split
        self.shared = False  # whether `split_stream.py` will give its blocks their own tasks
        params = (*d.inputs, *d.outputs)
        self.taken = {p.name for p in params} | set(d.axes) | set(self.read.term_of)
        self.state_names = [self._state_name(k) for k in range(len(self.cascade.states))]

    def kernel(self, name: str, hints: Mapping[str, int]) -> ir.Kernel:
        """Return the kernel with all passes."""
        d, self.hints = self.d, hints
        sizes = {a: assign_axes.estimate_size(n.extent, hints) for a, n in d.axes.items()}
        columns = inner_columns(
            self.cascade.states, self.roots, self.axis, sizes, self.tiling.max_stream_sums
        )
        inside = {self.axis, *columns}
        grid = [a for a in assign_axes.independent_axes(d, self.read.facts) if a.name not in inside]
        self.grid = [a.name for a in grid]
        cut, size = self._choose_blocks(grid, hints)
        blocks: list[ir.Block | ir.Split] = [*cut]
        if self._is_split(cut, hints):
            part = self._fresh_name("part")
            space = assign_axes.space_of(d, self.read.facts, grid, hints, self.tiling)
            number = [*d.axes].index(self.axis)
            rows = assign_axes.rows_per_step(d, space, number)
            self.part_block = ir.Block(self.axis, rows, None, part)
            parts = space.parts(number, rows)
            blocks = [*(ir.Block(a.name, 1) for a in grid), ir.Split(part, self.axis, parts)]
        self.shared = self.tiling.splits_stream(
            (self._block_count(b) for b in cut), self._block_count(ir.Block(self.axis, size))
        )
        fixed = {b.axis for b in blocks if isinstance(b, ir.Block) and b.size == 1}
        along = [s for s in self.stores if self.axis in self._index_axes(s)]
        pass_of_store = {
            id(s): max(map(self._pass_that_knows, self._terms_read(s)), default=0) for s in along
        }
        sweeps = {s.pass_index for s in self.cascade.states} | set(pass_of_store.values())
        for sweep in sorted(sweeps):
            written = [s for s in along if pass_of_store[id(s)] == sweep]
            self._add_pass(sweep, size, fixed, written)
        for s in self.stores:
            if id(s) not in pass_of_store:
                self._store(s, self.top)
        return ir.Kernel(
            name,
            tuple(d.inputs),
            tuple(d.outputs),
            tuple(d.axes.values()),
            tuple(blocks),
            tuple(live(self.top.body)),
        )

    def _terms_read(self, s: ir.Store) -> list[Term]:
        terms = [self.read.term(s.value)]
        return terms + [self.read.term_of[n] for n in refs(s) if n in self.read.term_of]

    def _pass_that_knows(self, t: Term) -> int:
        """Return the first pass in which a term has its value."""
        treatment = self.cascade.treatments.get(t)
        finished = 0 if treatment is None else treatment.pass_index + 1
        return max(self.cascade.pass_of(t), finished)

    def _index_axes(self, s: ir.Store) -> frozenset[str]:
        return axes_of_index(s.index, self.read.facts.axes)

    # ---- passes --------------------------------------------------------------------------------

    def _add_pass(self, sweep: int, size: int, fixed: set[str], written: list[ir.Store]) -> None:
        if (cut := self.part_block) is not None:
            self.cuts = {}
            states, body = self._body(sweep, fixed, written)
            stream_of_part = ir.Stream((cut,), states, body)
            self.top.body += [
                stream_of_part,
                ir.Merge(str(cut.part), tuple(s.name for s in states)),
            ]
            return
        seen = VisitRange() if written else self._mask_visibility(sweep, fixed)
        states_carried = self.cascade.states
        unit_blocks = tuple(
            ir.Block(a, 1)
            for a in unit_block_axes(
                self.read, states_carried, sweep, written, self.grid, self.hints
            )
        )
        masked = None
        if not (written or unit_blocks or self.shared):
            masked = find_finite_mask(
                self.terms, states_carried, sweep, seen, self.axis, frozenset(fixed)
            )
        if masked is None:
            self._add_stream(sweep, size, fixed, written, unit_blocks, seen)
            return
        self._add_stream(sweep, size, fixed, written, unit_blocks, masked.visited)
        not_enough = ir.Partial(self._value(masked.enough, self.top))
        first_names = list(self.state_names)
        for k, s in enumerate(states_carried):
            if s.pass_index == sweep:
                self.state_names[k] = self._fresh_name(f"{first_names[k]}_2")
        self._add_stream(sweep, size, fixed, written, unit_blocks, seen, not_enough)
        for k, s in enumerate(states_carried):
            if s.pass_index == sweep:
                chosen = ir.If(not_enough, ir.Ref(self.state_names[k]), ir.Ref(first_names[k]))
                self.state_names[k] = self._fresh_name(f"w{len(self.taken)}")
                self.top.body.append(ir.Let(self.state_names[k], chosen))

    def _add_stream(
        self,
        sweep: int,
        size: int,
        fixed: set[str],
        written: list[ir.Store],
        unit_blocks: tuple[ir.Block, ...],
        seen: VisitRange,
        condition: ir.Value | None = None,
    ) -> None:
        """Add the stream of a pass, restricted to what `visited` says is visible.

        With `condition`, the stream visits blocks only if that value is true.
        """
        self.cuts = seen.partial_masks
        states, body = self._body(sweep, fixed, written)
        start, stop = self._visit_bounds(seen)
        if condition is not None:
            end = stop or ir.IndexValue(self.d.axes[self.axis].extent, i64)
            stop = ir.Apply(CHOICE, (condition, end, ir.Const(0, i64)))
        where = None if seen.block_is_used is None else self._block_value(seen.block_is_used)
        block = ir.Block(self.axis, size, stop, start=start)
        sees = tuple(self._visible_ranges(sweep, fixed | {b.axis for b in unit_blocks}, written))
        self.top.body.append(ir.Stream((*unit_blocks, block), states, body, where, sees))

    def _body(
        self, sweep: int, fixed: set[str], written: list[ir.Store]
    ) -> tuple[tuple[ir.State, ...], tuple[ir.Statement, ...]]:
        """Return the states of a pass and its statements in every block."""
        inner = _Scope()
        states: list[ir.State] = []
        for k, s in enumerate(self.cascade.states):
            if s.pass_index != sweep:
                continue
            combine = COMBINES[s.combine]
            axes = tuple(a for a in self.d.axes if a in s.block.axes - fixed)
            initial = ir.Const(combine.identity(s.dtype), s.dtype)
            states.append(ir.State(self.state_names[k], initial, axes, s.dtype))
            if s.best_state is not None and self.part_block is not None:
                inner.body.append(
                    ir.Update(self.state_names[k], self._update_position(k, s, s.best_state, inner))
                )
                continue
            parts = tuple(self._value(a, inner) for a in s.block.args)
            contribution: ir.Value = ir.Reduce(s.combine, parts[0], s.block.over, s.dtype)
            if len(parts) == 2:
                contribution = ir.Dot(parts[0], parts[1], s.block.over, s.block.value or s.dtype)
            old = self.terms.state(k, s.block.axes, s.dtype) if s.carry is None else s.carry
            carried = self._value(old, inner)
            update = ir.Apply(combine.scalar, (carried, contribution))
            inner.body.append(ir.Update(self.state_names[k], update))
        for s in written:
            self._store(s, inner)
        return tuple(states), tuple(live(inner.body))

    def _update_position(self, number: int, s: Carried, best: Term, inner: _Scope) -> ir.Value:
        """Return a positional state's new value; the part's best is searched once."""
        d, reduction = self.d, s.reduction
        x = self._value(reduction.args[0], inner)
        along = d.axes[self.axis]
        inner_count = product(d.axes[a].extent for a in reduction.over if a != self.axis)
        place = global_position(ir.Reduce(reduction.op, x, reduction.over, i64), along, inner_count)
        part_best = ir.Reduce(COMBINES[reduction.op].winner, x, reduction.over, best.dtype)
        names = self._fresh_name(f"w{len(self.taken)}"), self._fresh_name(f"w{len(self.taken)}")
        inner.body += [ir.Let(names[0], place), ir.Let(names[1], part_best)]
        best_name = self.state_names[best.value]
        return merge_positions(
            self.state_names[number], ir.Ref(names[0]), best_name, ir.Ref(names[1]), best.dtype
        )

    def _visible_ranges(
        self, sweep: int, fixed: set[str], written: list[ir.Store]
    ) -> Iterator[ir.Block]:
        """Yield ranges of other axes outside which no block of a pass contributes."""
        states = [s for s in self.cascade.states if s.pass_index == sweep]
        for part in visible_ranges(self.read, states, written, self.grid, frozenset(fixed)):
            ends = (None if t is None else self._block_value(t) for t in (part.start, part.stop))
            start, stop = ends
            yield ir.Block(part.axis, None, stop, start=start)

    def _is_split(self, blocks: list[ir.Block], hints: Mapping[str, int]) -> bool:
        """Return whether the kernel is one pass of independent reductions with too few tasks."""
        states = self.cascade.states
        if not states or self.d.bound(ir.Dot, ir.Scan):
            return False
        if any(
            s.pass_index != states[0].pass_index or not s.merges_alone(self.axis) for s in states
        ):
            return False
        seen = self._mask_visibility(states[0].pass_index, {b.axis for b in blocks if b.size == 1})
        masked = seen.partial_masks or any(
            (seen.start, seen.stop, seen.position_is_used, seen.block_is_used)
        )
        if masked or any(self.axis in self._index_axes(s) for s in self.stores):
            return False
        sizes = {a: assign_axes.estimate_size(self.d.axes[a].extent, hints) for a in self.d.axes}
        tasks = prod(-(-sizes[b.axis] // (b.size or 1)) for b in blocks)
        tiling = self.tiling
        too_few_tasks = tasks < tiling.min_tasks and sizes[self.axis] >= tiling.max_parts
        return too_few_tasks and prod(sizes.values()) >= tiling.split_elements

    def _block_count(self, b: ir.Block) -> int:
        """Return the number of blocks of an axis at the hints' sizes."""
        extent = assign_axes.estimate_size(self.d.axes[b.axis].extent, self.hints)
        return -(-extent // (b.size or max(extent, 1)))

    def _mask_visibility(self, sweep: int, fixed: set[str]) -> VisitRange:
        """Return which blocks and positions contribute to the states of a pass."""
        states = [s for s in self.cascade.states if s.pass_index == sweep]
        return visit_range(self.terms, states, self.axis, frozenset(fixed))

    def _visit_bounds(self, seen: VisitRange) -> tuple[ir.Value | None, ir.Value | None]:
        """Return where the visits of a pass start and stop, None if unbounded."""
        start, stop = (None if t is None else self._block_value(t) for t in (seen.start, seen.stop))
        if seen.position_is_used is None or (start is not None and stop is not None):
            return start, stop
        useful, position = self._block_value(seen.position_is_used), self.d.axes[self.axis].index
        extent = self.d.axes[self.axis].extent
        if start is None:
            start = self._useful_position("min", useful, position, extent)
        if stop is None:
            stop = self._useful_position("max", useful, add(position, 1), 0)
        return start, stop

    def _useful_position(
        self, combine: str, useful: ir.Value, position: Index, other: Index
    ) -> ir.Value:
        """Return the first (min) or last (max) position that contributes."""
        either = ir.Apply(CHOICE, (useful, ir.IndexValue(position, i64), ir.IndexValue(other, i64)))
        name = self._fresh_name(f"w{len(self.taken)}")
        self.top.body.append(ir.Let(name, ir.Reduce(combine, either, (self.axis,), i64)))
        return ir.Ref(name)

    def _block_value(self, t: Term) -> ir.Value:
        """Build a term about a whole block, naming only elements loaded from arrays."""
        is_invariant = (
            t.kind == "opaque" and not isinstance(t.value, ir.IndexValue) and not self._varies(t)
        )
        if is_invariant or t.kind == "const":
            return self._value(t, self.top)
        args = tuple(map(self._block_value, t.args))
        if t.kind == "opaque":
            names = {self._definition_name(a): v for a, v in zip(t.args, args, strict=True)}
            return replace_names(t.value, names)
        return _rebuild(t, args)

    def _store(self, s: ir.Store, scope: _Scope) -> None:
        for n in refs(s):
            if n in self.read.term_of and isinstance(self.read.term_of[n].value, ir.Position):
                self._value(self.read.term_of[n], scope)
        scope.body.append(replace(s, value=self._value(self.read.term(s.value), scope)))

    def _state_name(self, number: int) -> str:
        """Return the name of the reduction that a state's value is, or a new one."""
        for reduction, final in self.cascade.finals.items():
            if final.kind == "old" and final.value == number and reduction in self.read.origin:
                return self.read.origin[reduction][0]
        return self._fresh_name(f"s{number}")

    def _fresh_name(self, base: str) -> str:
        return numbered_name(base, self.taken, "_")

    # ---- values --------------------------------------------------------------------------------

    def _varies(self, t: Term) -> bool:
        """Return whether a term has to be computed in every block."""
        varies = self.varying.get(t)
        if varies is None:
            if t.is_reduction:
                varies = False
            elif self.axis in t.axes or t.kind in ("old", "new"):
                varies = True
            else:
                varies = any(map(self._varies, t.args)) and t.kind != "first"
            self.varying[t] = varies
        return varies

    def _value(self, t: Term, scope: _Scope) -> ir.Value:
        """Return the value of a term, named in this scope.

        A loop-invariant term is named at the top instead.
        """
        if t.kind == "const":
            return ir.Const(t.value, t.dtype)
        if t.kind in ("old", "new"):
            return ir.Ref(self.state_names[t.value], t.kind == "new")
        home = scope if scope is self.top or self._varies(t) else self.top
        value = home.values.get(t)
        if value is None:
            if (
                t.is_reduction and t not in self.cascade.finals
            ):  # bounds values that no stream visits
                bound = ir.Reduce(t.op, self._block_value(t.args[0]), t.over, t.dtype)
                value = self._let(t, bound, self.top)
            elif t.is_reduction:
                value = self._value(self.cascade.finals[t], self.top)
            else:
                value = self._bind(t, home)
            home.values[t] = value
        return value

    def _bind(self, t: Term, home: _Scope) -> ir.Value:
        if t.kind == "first":
            return self._sample(t.args[0], t.over, t.value)
        if isinstance(t.value, ir.Position):
            (arg,) = t.args or (None,)
            inside = t.value.value if arg is None else self._value(arg, home)
            value = transform(t.value.value, lambda v: inside if isinstance(v, ir.Ref) else v)
            home.body.append(replace(t.value, value=value))
            return ir.Ref(t.value.name)
        return self._let(t, self._expression(t, home), home)

    def _let(self, t: Term, value: ir.Value, home: _Scope) -> ir.Value:
        name, origin = self.read.origin.get(t, ("", -1))
        if not name or name in home.names or name in self.state_names:
            name = self._fresh_name(f"w{len(self.taken)}")
        home.names.add(name)
        home.body.append(ir.Let(name, value, origin))
        return ir.Ref(name)

    def _expression(self, t: Term, home: _Scope) -> ir.Value:
        """Build the value of a term from its named operands."""
        match t.kind:
            case "apply" | "cast" if t in self.cuts:
                partial, other = self.cuts[t]
                chosen = _rebuild(t, tuple(self._value(a, home) for a in t.args))
                return ir.If(self._block_value(partial), chosen, self._value(other, home))
            case "apply" | "cast" | "extreme" | "fails":
                return _rebuild(t, tuple(self._value(a, home) for a in t.args))
            case "count":
                return ir.IndexValue(product(self.d.axes[a].extent for a in t.over), t.dtype)
            case "opaque":
                names = {self._definition_name(a): self._value(a, home) for a in t.args}
                return replace_names(t.value, names)
            case _:
                raise InternalError(f"a stream along {self.axis} has no place for {t}")

    def _definition_name(self, t: Term) -> str:
        return self.read.origin[t][0]

    # ---- sample elements -----------------------------------------------------------------------

    def _sample(self, t: Term, over: tuple[str, ...], third: int) -> ir.Value:
        """Return a term at a sample position: the start of its `third`-th third along `over`."""
        if not t.axes & {*over}:
            return self._value(t, self.top)
        key = self.terms.first(t, over, third)
        value = self.top.values.get(key)
        if value is None:
            value = self.top.values[key] = self._new_sample(t, over, third)
        return value

    def _new_sample(self, t: Term, over: tuple[str, ...], third: int) -> ir.Value:
        at = {a: mul(floordiv(self.d.axes[a].extent, 3), third) for a in over}
        parts = [self._sample(a, over, third) for a in t.args]
        name = self._fresh_name(f"w{len(self.taken)}")
        if isinstance(t.value, ir.Position):
            inside = parts[0] if parts else None
            value = transform(t.value.value, lambda v: inside or v if isinstance(v, ir.Ref) else v)
            value = transform(value, lambda v: fix_axes(v, at))
            self.top.body.append(ir.Position(name, value, t.value.extent))
            return ir.Ref(name)
        if t.kind == "apply":
            value = ir.Apply(t.op, tuple(parts))
        elif t.kind == "cast":
            value = ir.Cast(parts[0], t.value or t.dtype)
        elif t.kind == "opaque":
            names = {self._definition_name(a): v for a, v in zip(t.args, parts, strict=True)}
            value = transform(replace_names(t.value, names), lambda v: fix_axes(v, at))
        else:
            raise InternalError(f"{t} has no first element")
        self.top.body.append(ir.Let(name, value))
        return ir.Ref(name)

    # ---- blocks --------------------------------------------------------------------------------

    def _choose_blocks(
        self, grid: list[ir.Axis], hints: Mapping[str, int]
    ) -> tuple[list[ir.Block], int]:
        """Return the grid's blocks, and the block size of the streamed axis."""
        names, tiling = [a.name for a in grid], self.tiling
        sizes = {a: assign_axes.estimate_size(self.d.axes[a].extent, hints) for a in self.d.axes}
        rows = rows_axis(self._row_axes(), names, sizes)
        if rows is not None:
            has_contraction = any(f.kind == "dot" for f in self.cascade.finals)
            carried = state_row_bytes(self.cascade.states, sizes, names)
            cut, size = tiling.stream_block(carried, is_contracted=has_contraction)
            return [ir.Block(a, cut if a == rows else 1) for a in names], size
        space = assign_axes.space_of(self.d, self.read.facts, grid, hints, tiling)
        contiguous = {a for k, a in enumerate(self.d.axes) if space.fastest >> k & 1}
        width = self.terms.width(self.axis, {a: n for a, n in sizes.items() if a not in names})
        if self.d.bound(ir.Dot):
            return [ir.Block(a, 1) for a in names], tiling.stream_task_rows(width)
        if self.axis in contiguous or not names or names[-1] not in contiguous:
            return [ir.Block(a, 1) for a in names], tiling.stream_block_rows(width)
        columns = tiling.stream_columns
        return [ir.Block(a, columns if a == names[-1] else 1) for a in names], tiling.column_rows

    def _row_axes(self) -> Iterator[frozenset[str]]:
        """Yield axes that only one operand of a contraction along the streamed axis has."""
        for dot in self.d.bound(ir.Dot):
            sides = [axes_of_value(v, self.read.facts.axes) for v in (dot.left, dot.right)]
            if self.axis not in sides[0] | sides[1]:
                continue
            for side, other_side in (sides, sides[::-1]):
                if self.axis in dot.over or self.axis not in side:
                    yield side - other_side - {self.axis}


def _rebuild(t: Term, args: tuple[ir.Value, ...]) -> ir.Value:
    """Return the value of a term with other operands."""
    match t.kind:
        case "apply":
            return ir.Apply(t.op, args)
        case "cast":
            return ir.Cast(args[0], t.value or t.dtype)
        case "extreme":
            return ir.Extreme(args[0], bool(t.value))
        case _:
            return ir.Partial(args[0])
