"""Verify kernels: reject any that could read or write wrongly, before they run.

Rejected are unknown and doubly bound names, mistyped values, axes a state does not declare, reads
of a state not yet carried, reductions over an axis that a block has only in part, indices that
can leave their array, stores that two blocks or visits could both do, and split streams whose
states do not form a monoid.

>>> from smelt.kernel.text import parse
>>> verify(
...     parse('''
... kernel shift(x: f32[n]) -> y: f32[n]
...   grid n/64
...   y[n] = x[n + 1]
... ''')
... )
Traceback (most recent call last):
    ...
smelt.errors.VerifyError: E405 not well formed: kernel shift, `y[n] = x[n + 1]`: the index n + 1 can
    leave dimension 0 of x, which has n elements
...
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.errors import VerifyError
from smelt.kernel import ir, walk
from smelt.kernel.bounds import Facts, facts_of
from smelt.kernel.env import Env, axes_of, index_axes
from smelt.kernel.merge import merge_rules
from smelt.kernel.races import check_join, covers, determined_axes, disjoint
from smelt.kernel.text_print import RESERVED, statement_text, text
from smelt.kernel.verify_values import CheckContext, refuse
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import dataclass
from smelt.types import expr
from smelt.types.dtype import bool_
from smelt.types.expr import Index


def verify(kernel: ir.Kernel) -> ir.Kernel:
    """Check a kernel and return it.

    Raises VerifyError with the statement, the reason and the kernel's text.
    """
    _Verifier(kernel).run()
    return kernel


@dataclass
class _CheckedStore:
    """Store already checked, with what it may write."""

    store: ir.Store
    facts: Facts
    full_axes: frozenset[str]
    """Axes with all positions present at once where the store stands."""
    streams: tuple[ir.Stream, ...]


class _Verifier:
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.statement: ir.Statement | None = None
        self.written: list[_CheckedStore] = []
        self.inputs = {p.name for p in kernel.inputs}
        self.split: ir.Split | None = None
        self.merged = False
        self.seen: frozenset[str] = frozenset()
        """Axes of which the statement has only a part."""
        self.parts: set[str] = set()
        """Split axes over whose parts an enclosing stream is spread."""
        self.shared: frozenset[str] | None = None
        """Names bound before the split stream, equal in all parts."""
        grid = [e for e in kernel.grid if isinstance(e, ir.Block)]
        extents = {a.name: a.extent for a in kernel.axes}
        for entry in walk.splits(kernel):
            self.split = entry
            extents.setdefault(entry.name, entry.parts)
        blocked_axes = frozenset(b.axis for b in grid) | {s.name for s in walk.splits(kernel)}
        fixed = {b.axis for b in grid if b.size == 1} | {s.name for s in walk.splits(kernel)}
        facts = (*kernel.facts,)
        self.place = CheckContext(
            kernel, Env.of(kernel), extents, blocked_axes, frozenset(fixed), facts=facts
        )

    def run(self) -> None:
        try:
            self._parameters()
            self._axes()
            self._body(self.kernel.body, top=True)
            if self.split is not None and self._merges() > 1:
                refuse("more than one merge")
        except VerifyError as error:
            where = f"kernel {self.kernel.name}"
            if self.statement is not None:
                where += f", `{statement_text(self.statement, self.kernel)}`"
            raise VerifyError(
                f"{where}: {error.message}\n{text(self.kernel)}",
                what=where,
                reason=error.message,
                context=text(self.kernel),
            ) from None

    def _merges(self) -> int:
        return sum(isinstance(s, ir.Merge) for s in self.kernel.body)

    # ---- header --------------------------------------------------------------------------------

    def _parameters(self) -> None:
        kernel = self.kernel
        _check_name(kernel.name, "kernel", ())
        for params in (kernel.inputs, kernel.outputs):
            _check_unique([p.name for p in params], "parameters")
        for p in (*kernel.inputs, *kernel.outputs):
            _check_name(p.name, "parameter", ())
            for d in p.shape:
                _check_sizes(d, f"a dimension of {p.name}")
            if p.strides is not None and len(p.strides) != len(p.shape):
                refuse(f"{p.name} has {len(p.shape)} dimensions and {len(p.strides)} strides")
        for p in kernel.outputs:
            if p.name in self.inputs and p not in kernel.inputs:
                refuse(f"{p.name} is written in place, but is another type as input")
            stretched = p.strides is not None and 0 in p.strides
            if stretched and any(s == 0 and d != 1 for s, d in zip(p.strides or (), p.shape)):
                refuse(f"{p.name} is written, but elements of it share memory (a stride of 0)")
        for fact in kernel.facts:
            _check_sizes(fact, "a fact")
        self._families()

    def _families(self) -> None:
        counts = {p.each for p in (*self.kernel.inputs, *self.kernel.outputs) if p.each}
        each = [e.count for e in self.kernel.grid if isinstance(e, ir.Each)]
        if len(each) > 1 or counts != set(each):
            refuse(f"families of {sorted(counts)} arrays under a grid of {each}")
        if each and any(not p.each for p in self.kernel.outputs):
            refuse("every member of a family would write the same output")

    def _axes(self) -> None:
        kernel = self.kernel
        names = [a.name for a in kernel.axes]
        _check_unique(names, "axes")
        for a in kernel.axes:
            _check_name(a.name, "axis", RESERVED)
            _check_sizes(a.extent, f"the extent of {a.name}")
        parts = walk.splits(kernel)
        if len(parts) > 1:
            refuse("a grid with two split axes")
        cut = [e.axis for e in kernel.grid if isinstance(e, ir.Block)]
        _check_unique([*cut, *(s.axis for s in parts), *(s.name for s in parts)], "grid entries")
        for s in parts:
            _check_sizes(s.parts, f"the number of parts {s.name}")
            no_parts = isinstance(s.parts, int) and s.parts < 1
            if no_parts or self.place.extents[s.name] != s.parts:
                refuse(f"{s.name} numbers {expr.text(s.parts)} parts")
        for e in kernel.grid:
            if isinstance(e, ir.Block):
                self._block(e)
                if any(x is not None for x in (e.start, e.stop, e.part)):
                    refuse(f"the grid runs over all of {e.axis}, in no part of it")
            elif isinstance(e, ir.Split) and e.axis not in names:
                refuse(f"{e.axis} is not an axis of the kernel")

    def _block(self, block: ir.Block) -> None:
        if block.axis not in self.place.extents:
            refuse(f"{block.axis} is not an axis of the kernel")
        if block.size is not None and block.size < 1:
            refuse(f"blocks of {block.size} along {block.axis}")

    # ---- statements ----------------------------------------------------------------------------

    def _body(self, body: Iterable[ir.Statement], *, top: bool = False) -> None:
        for s in body:
            self.statement = s
            self._statement(s, top)
        self.statement = None

    def _statement(self, s: ir.Statement, top: bool) -> None:
        place = self.place
        for load in walk.loads(s) if not isinstance(s, ir.Stream) else ():
            self._check_in_place_load(load)
        match s:
            case ir.Let(name=name, value=value):
                self._check_new_name(name, rebinds=_may_rebind(s))
                place.check(value)
                self._check_positional(value)
                place.env.bind(s)
                place.lets[name] = value
            case ir.Position(name=name, value=value, extent=extent):
                self._check_new_name(name)
                if not place.check(value).is_integer:
                    refuse(f"the position {name} is not an integer")
                _check_sizes(extent, f"the extent of {name}")
                place.env.bind(s)
                place.lets[name] = value
            case ir.Store():
                self._store(s)
            case ir.Update():
                self._update(s)
            case ir.Stream():
                self._stream(s)
            case ir.Merge():
                self._merge(s, top)

    def _check_positional(self, value: ir.Value) -> None:
        """Reject positional reductions along an axis of which only a part is visited."""
        for v in walk.visit(value):
            if isinstance(v, ir.Reduce) and COMBINES[v.combine].positional:
                for a in self.seen & set(v.over):
                    refuse(f"{v.combine} needs positions along {a}, of which a part is seen")

    def _check_new_name(self, name: str, *, rebinds: bool = False) -> None:
        _check_name(name, "value", RESERVED)
        if name in self.place.extents:
            refuse(f"{name} is an axis")
        if name in self.place.env.names and not rebinds:
            refuse(f"{name} is bound already")
        if rebinds and name in self.place.states:
            refuse(f"{name} is a state: its new value is {name}'")

    def _update(self, s: ir.Update) -> None:
        place = self.place
        state = place.states.get(s.state)
        if state is None:
            refuse(f"{s.state} is not a state of the stream around it")
        if s.state in place.env.new:
            refuse(f"{s.state}' has a value already")
        dtype, state_dtype = place.check(s.value), place.env.lookup(s.state).dtype
        if dtype != state_dtype:
            refuse(f"{s.state} is {state_dtype.name}, its new value {dtype.name}")
        self._check_state_axes(state, s.value)
        place.env.bind(s)

    def _check_state_axes(self, state: ir.State, value: ir.Value) -> None:
        loose = axes_of(value, self.place.env) - self.place.fixed - set(state.axes)
        if loose:
            shown = ", ".join(sorted(loose))
            refuse(f"{state.name} does not declare the axis {shown}, along which its value varies")

    def _merge(self, s: ir.Merge, top: bool) -> None:
        place = self.place
        if not top or self.split is None or s.part != self.split.name:
            refuse(f"a merge stands at the top of a kernel whose grid splits an axis into {s.part}")
        merge_rules(self.kernel)
        merged = {x.name for x in walk.states(self.kernel).values()} & set(s.states)
        for name, bound in list(place.env.names.items()):
            equal_in_parts = name in (self.shared or ()) and s.part not in bound.axes
            if name not in merged and not equal_in_parts:
                del place.env.names[name]
        del place.extents[s.part]
        place.grid_axes -= {s.part}
        place.fixed -= {s.part}
        self.merged = True

    # ---- streams -------------------------------------------------------------------------------

    def _stream(self, s: ir.Stream) -> None:
        place = self.place
        axes = [b.axis for b in s.blocks]
        _check_unique(axes, "axes of a stream")
        for block in s.blocks:
            self._stream_block(block)
        fixed = place.fixed | {b.axis for b in s.blocks if b.size == 1}
        for state in s.states:
            self._check_new_name(state.name)
            dtype = place.check(state.init)
            if state.dtype is not None and state.dtype.compute != dtype:
                refuse(f"{state.name} is declared {state.dtype.name} and starts as {dtype.name}")
            for a in state.axes:
                if a not in place.extents:
                    refuse(f"{a} is not an axis of the kernel")
                if a in axes:
                    refuse(
                        f"{state.name} cannot have the axis {a}, whose blocks it is carried over"
                    )
            self._check_state_axes(state, state.init)
        parts = {b.part for b in s.blocks if b.part is not None}
        if parts and self.shared is None:
            self.shared = frozenset(place.env.names)
        place.env.bind(s)
        outer = place.env, place.fixed, place.open_streams, place.states, place.lets, self.parts
        place.env, place.fixed, self.parts = place.env.child(), fixed, self.parts | parts
        place.open_streams |= set(axes)
        place.states = {state.name: state for state in s.states}
        place.lets, streams = dict(place.lets), place.streams
        place.streams = (*streams, s)
        if s.where is not None and place.check_scalar(s.where, "what is visited") != bool_:
            refuse("what follows `where` is not a bool")
        seen = self.seen
        for block in s.bounds:
            self._visible_range(block)
        self._body(s.body)
        place.env, place.fixed, place.open_streams, place.states, place.lets, self.parts = outer
        self.statement, self.seen, place.streams = s, seen, streams

    def _visible_range(self, block: ir.Block) -> None:
        """Check a partly visited axis: nothing outside the part is stored or located."""
        place = self.place
        self._block(block)
        if block.axis in self.seen | place.open_streams | place.grid_axes | place.fixed:
            refuse(f"no range of {block.axis} can be given here: it is cut already")
        if block.size is not None or block.part is not None:
            refuse(f"what is seen of {block.axis} is one run of positions")
        self._check_ends(block)
        self.seen |= {block.axis}

    def _stream_block(self, block: ir.Block) -> None:
        place = self.place
        self._block(block)
        if block.axis in place.open_streams:
            refuse(f"{block.axis} is streamed by the stream around this one")
        if block.axis in place.grid_axes:
            refuse(f"{block.axis} is a grid axis")
        split = None if self.merged else self.split
        if block.part is not None and (
            split is None or (split.name, split.axis) != (block.part, block.axis)
        ):
            refuse(f"the grid does not split {block.axis} into {block.part}")
        self._check_ends(block)

    def _check_ends(self, block: ir.Block) -> None:
        place = self.place
        for end, what in ((block.start, "start"), (block.stop, "stop")):
            if end is not None and not place.check_scalar(end, f"a {what}").is_integer:
                refuse(f"the {what} of {block.axis} is not an integer")

    # ---- stores --------------------------------------------------------------------------------

    def _store(self, s: ir.Store) -> None:
        place = self.place
        param = next((p for p in self.kernel.outputs if p.name == s.param), None)
        if param is None:
            refuse(f"{s.param} is not an output")
        place.check_rank(param, s.index)
        facts = place.facts
        if s.where is not None:
            if place.check(s.where) != bool_:
                refuse("what follows `where` is not a bool")
            facts += facts_of(s.where, place.lets)
        with place.assume(facts[len(place.facts) :]):
            place.check_inside(param, s.index)
        dtype = place.check(s.value)
        if dtype != param.dtype.compute:
            param_dtype = param.dtype.compute.name
            refuse(f"{s.param} takes {param_dtype}, the value is {dtype.name}")
        first = self._scatter_target(s) if s.join else self._check_race(s)
        for other in self.written:
            if (
                other.store.param == s.param
                and other is not first
                and not disjoint(other.store.index, other.facts, s.index, facts)
            ):
                refuse(f"{s.param} may have been stored before, by another statement")
        cut = place.grid_axes | place.open_streams | self.seen
        self.written.append(_CheckedStore(s, facts, frozenset(place.extents) - cut, place.streams))

    def _scatter_target(self, s: ir.Store) -> _CheckedStore:
        """Return the store that initialised every element this scatter-reduce may touch."""
        place = self.place
        if s.param in self.inputs:
            refuse(
                f"{s.param} is written in place, so no value can be combined with what it stores"
            )
        store_axes = index_axes(s.index, place.env)
        if self.seen & store_axes:
            refuse(f"a part of {min(self.seen & store_axes)} is seen, the rest would not be stored")
        check_join(s, place, store_axes | self._unit_axes())
        shape = place.env.param(s.param).shape
        initial = (w for w in self.written if w.store.param == s.param and not w.store.join)
        for first in (w for w in initial if w.store.where is None):
            pairs = zip(first.store.index, s.index, shape, strict=True)
            if all(
                covers(e, at, n, place, first.full_axes, first.streams, s.where)
                for e, at, n in pairs
            ):
                if first.store.index == s.index and len(first.streams) == len(place.streams):
                    refuse("it updates what this visit stores: store the combined value instead")
                return first
        return refuse(f"no store before gave this block's elements of {s.param} their first values")

    def _check_race(self, s: ir.Store) -> None:
        place = self.place
        store_axes = index_axes(s.index, place.env)
        solved = determined_axes(s.index)
        needed = (place.grid_axes | place.open_streams | store_axes) - self._unit_axes()
        if self.split is not None and self.split.name in self.parts and self.split.axis in solved:
            needed -= {self.split.name}  # parts are disjoint
        if self.seen & store_axes:
            refuse(f"a part of {min(self.seen & store_axes)} is seen, the rest would not be stored")
        missing = sorted(needed - solved)
        if missing:
            refuse(f"several positions of {missing[0]} may store the same element of {s.param}")
        values = [s.value] if s.where is None else [s.value, s.where]
        loose = frozenset[str]().union(*(axes_of(v, place.env) for v in values))
        loose -= store_axes | place.fixed | self._unit_axes()
        if loose:
            refuse(f"the value varies along {min(loose)}, which the index does not name")

    def _unit_axes(self) -> frozenset[str]:
        return frozenset(a for a, extent in self.place.extents.items() if extent == 1)

    def _check_in_place_load(self, load: ir.Load) -> None:
        if load.param not in self.inputs & {p.name for p in self.kernel.outputs}:
            return
        if any(w.store.param == load.param for w in self.written):
            refuse(f"{load.param} is read after it was stored in place")
        stored = {s.index for s in walk.stores(self.kernel) if s.param == load.param}
        if stored != {load.index}:
            refuse(f"{load.param} is written in place: another block may have stored what is read")


def _may_rebind(s: ir.Let) -> bool:
    """Return whether `s` is `s = value if partial(..)`, which may rebind its name."""
    v = s.value
    return (
        isinstance(v, ir.If) and isinstance(v.condition, ir.Partial) and v.other == ir.Ref(s.name)
    )


def _check_name(name: str, what: str, reserved: Iterable[str]) -> None:
    if not name.isidentifier() or name in reserved:
        refuse(f"{name!r} cannot name a {what}")


def _check_unique(names: list[str], what: str) -> None:
    twice = [n for k, n in enumerate(names) if n in names[:k]]
    if twice:
        refuse(f"two {what} are called {twice[0]}")


def _check_sizes(e: Index, what: str) -> None:
    for atom in expr.atoms(e):
        if atom.kind in ("axis", "value"):
            refuse(f"{what} depends on {atom.name}, which is not a size")
