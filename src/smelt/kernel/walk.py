"""Traverse kernels: visit, rebuild and substitute values; find the axes that they vary along.

>>> from smelt.kernel.ir import Apply, Load, Ref
>>> from smelt.types.expr import axis
>>> value = Apply("add", (Load("x", (axis("r", 8),)), Ref("h")))
>>> [load.param for load in loads(value)], refs(value)
(['x'], ['h'])
>>> substitute(value, names={"h": Ref("g")}).args[1]
Ref(name='g', next=False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from smelt.kernel import ir
from smelt.python.caches import cached_by_identity
from smelt.python.dataclass import replace
from smelt.types.expr import Atom, Expr, Index, atoms, axes_of, dependent_axes, map_variables


def children(value: ir.Value) -> tuple[ir.Value, ...]:
    """Return the direct operands of a value."""
    match value:
        case ir.Const() | ir.IndexValue() | ir.Ref():
            return ()
        case ir.Load(other=other):
            return () if other is None else (other,)
        case ir.Apply(args=args):
            return args
        case ir.Cast() | ir.Reduce() | ir.Scan() | ir.Rename() | ir.Extreme():
            return (value.arg,)
        case ir.Dot(left=left, right=right):
            return left, right
        case ir.If(condition=condition, value=chosen, other=other):
            return condition, chosen, other
        case ir.Partial(condition=condition):
            return (condition,)


def visit(value: ir.Value) -> Iterator[ir.Value]:
    """Yield a value and everything inside it, operands first."""
    for child in children(value):
        yield from visit(child)
    yield value


def with_children(value: ir.Value, new: tuple[ir.Value, ...]) -> ir.Value:
    """Return `value` with other operands; the same object if they are identical."""
    if all(a is b for a, b in zip(children(value), new, strict=True)):
        return value
    match value:
        case ir.Load():
            (other,) = new
            if not isinstance(other, ir.Const):
                raise TypeError(f"what a load gives outside is a number, not {other}")
            return replace(value, other=other)
        case ir.Apply():
            return replace(value, args=new)
        case ir.Cast() | ir.Reduce() | ir.Scan() | ir.Rename() | ir.Extreme():
            return replace(value, arg=new[0])
        case ir.Dot():
            return replace(value, left=new[0], right=new[1])
        case ir.If():
            return ir.If(*new)
        case ir.Partial():
            return ir.Partial(*new)
        case _:
            return value


def visit_statement(statement: ir.Statement) -> Iterator[ir.Value]:
    """Yield every value inside those that a statement itself evaluates (`values_of`)."""
    for value in values_of(statement):
        yield from visit(value)


def visit_body(body: ir.Kernel | Iterable[ir.Statement]) -> Iterator[ir.Value]:
    """Yield every value inside statements and the bodies of their streams."""
    for s in statements(body):
        yield from visit_statement(s)


def transform(value: ir.Value, change: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Apply `change` to every value inside `value`, operands first."""
    return change(with_children(value, tuple(transform(c, change) for c in children(value))))


def substitute(
    value: ir.Value,
    axes: Mapping[str, Index] | None = None,
    names: Mapping[str, ir.Value] | None = None,
) -> ir.Value:
    """Replace axes in index expressions and bound names in a value.

    Computed positions in an index are not bound names and are kept, as are new states.
    """
    swap = names or {}

    def change(v: ir.Value) -> ir.Value:
        match v:
            case ir.Ref(name=name, next=False) if name in swap:
                return swap[name]
            case ir.Load(index=index) if axes:
                return replace(v, index=tuple(substitute_index(e, axes) for e in index))
            case ir.IndexValue(index=index) if axes:
                return replace(v, index=substitute_index(index, axes))
            case _:
                return v

    return transform(value, change)


def substitute_index(e: Index, axes: Mapping[str, Index]) -> Index:
    """Replace axes and computed positions of an index expression by name."""

    def leaf(atom: Atom) -> Index:
        if atom.kind != "size" and atom.name in axes:
            return axes[atom.name]
        return Expr((((atom,), 1),))

    return map_variables(e, leaf)


# ---- statements --------------------------------------------------------------------------------


def statements(body: ir.Kernel | Iterable[ir.Statement]) -> Iterator[ir.Statement]:
    """Yield every statement; the body of a stream follows the stream."""
    for s in body.body if isinstance(body, ir.Kernel) else body:
        yield s
        if isinstance(s, ir.Stream):
            yield from statements(s.body)


def values_of(statement: ir.Statement) -> tuple[ir.Value, ...]:
    """Return the values that a statement itself evaluates.

    For a stream: initial states, bounds and the `where` condition, not its body.
    """
    match statement:
        case ir.Let(value=value) | ir.Position(value=value) | ir.Update(value=value):
            return (value,)
        case ir.Store(value=value, where=where):
            return (value,) if where is None else (value, where)
        case ir.Stream(blocks=blocks, states=states, where=where, bounds=sees):
            ends = (e for b in (*blocks, *sees) for e in (b.start, b.stop))
            bounds_and_condition = tuple(e for e in (*ends, where) if e is not None)
            return (*bounds_and_condition, *(s.init for s in states))
        case ir.Merge():
            return ()


def map_statement(statement: ir.Statement, change: Callable[[ir.Value], ir.Value]) -> ir.Statement:
    """Apply `change` to the values of a statement and of its body."""
    match statement:
        case ir.Let() | ir.Position() | ir.Update():
            return replace(statement, value=change(statement.value))
        case ir.Store(where=where):
            new = None if where is None else change(where)
            return replace(statement, value=change(statement.value), where=new)
        case ir.Stream(blocks=blocks, states=states, body=body, where=where, bounds=sees):
            return ir.Stream(
                tuple(_map_block(b, change) for b in blocks),
                tuple(replace(s, init=change(s.init)) for s in states),
                tuple(map_statement(s, change) for s in body),
                None if where is None else change(where),
                tuple(_map_block(b, change) for b in sees),
            )
        case ir.Merge():
            return statement


def _map_block(block: ir.Block, change: Callable[[ir.Value], ir.Value]) -> ir.Block:
    start, stop = (None if e is None else change(e) for e in (block.start, block.stop))
    return replace(block, start=start, stop=stop)


def map_values(kernel: ir.Kernel, change: Callable[[ir.Value], ir.Value]) -> ir.Kernel:
    """Apply `change` to every value of every statement, operands first."""
    body = tuple(map_statement(s, lambda v: transform(v, change)) for s in kernel.body)
    return replace(kernel, body=body)


def indices_of(statement: ir.Statement) -> Iterator[Index]:
    """Yield the index expressions of a statement, without its body."""
    if isinstance(statement, ir.Store):
        yield from statement.index
    elif isinstance(statement, ir.Position):
        yield statement.extent
    for value in visit_statement(statement):
        if isinstance(value, ir.Load):
            yield from value.index
        elif isinstance(value, ir.IndexValue):
            yield value.index


# ---- queries -----------------------------------------------------------------------------------


def loads(part: ir.Kernel | ir.Statement | ir.Value) -> Iterator[ir.Load]:
    """Yield every load in a kernel, a statement or a value, in order.

    A statement includes its body.
    """
    for value in _roots(part):
        for v in visit(value):
            if isinstance(v, ir.Load):
                yield v


def stores(body: ir.Kernel | Iterable[ir.Statement]) -> Iterator[ir.Store]:
    """Yield every store in order."""
    for s in statements(body):
        if isinstance(s, ir.Store):
            yield s


def refs(part: ir.Kernel | ir.Statement | ir.Value) -> list[str]:
    """Return the names read, through values and computed positions, in order of first use."""
    names: dict[str, None] = {}
    for value in _roots(part):
        for v in visit(value):
            match v:
                case ir.Ref(name=name):
                    names[name] = None
                case ir.Load(index=index):
                    names.update(dict.fromkeys(p for e in index for p in positions_of(e)))
                case ir.IndexValue(index=index):
                    names.update(dict.fromkeys(positions_of(index)))
                case _:
                    pass
    for s in _statements_of(part):
        if isinstance(s, ir.Store):
            names.update(dict.fromkeys(p for e in s.index for p in positions_of(e)))
    return list(names)


def bindings_of(
    before: Sequence[ir.Statement], after: Iterable[ir.Statement | ir.Value]
) -> list[ir.Let | ir.Position]:
    """Return the bindings among `before` that others read, directly or not, in order."""
    wanted = {name for s in after for name in refs(s)}
    result: list[ir.Let | ir.Position] = []
    for s in reversed(before):
        if isinstance(s, ir.Let | ir.Position) and s.name in wanted:
            wanted |= set(refs(s))
            result.insert(0, s)
    return result


def live(body: Iterable[ir.Statement]) -> list[ir.Statement]:
    """Return statements without the bindings that no later statement reads."""
    wanted: set[str] = set()
    result: list[ir.Statement] = []
    for s in reversed([*body]):
        if not isinstance(s, ir.Let | ir.Position) or s.name in wanted:
            wanted.update(refs(s))
            result.append(s)
    return result[::-1]


def positions_of(e: Index) -> tuple[str, ...]:
    """Return the names of the computed positions in an index expression."""
    return tuple(dict.fromkeys(a.name for a in atoms(e) if a.kind == "value"))


def _statements_of(part: ir.Kernel | ir.Statement | ir.Value) -> Iterator[ir.Statement]:
    if isinstance(part, ir.Kernel):
        yield from statements(part)
    elif isinstance(part, ir.Let | ir.Position | ir.Store | ir.Update | ir.Stream | ir.Merge):
        yield from statements((part,))


def _roots(part: ir.Kernel | ir.Statement | ir.Value) -> Iterator[ir.Value]:
    if isinstance(
        part, ir.Kernel | ir.Let | ir.Position | ir.Store | ir.Update | ir.Stream | ir.Merge
    ):
        for s in _statements_of(part):
            yield from values_of(s)
    else:
        yield part


def blocks(kernel: ir.Kernel) -> Iterator[ir.Block]:
    """Yield every block of the grid, then of the streams."""
    for entry in kernel.grid:
        if isinstance(entry, ir.Block):
            yield entry
    for s in statements(kernel):
        if isinstance(s, ir.Stream):
            yield from s.blocks


def splits(kernel: ir.Kernel) -> tuple[ir.Split, ...]:
    """Return the split axes of the grid."""
    return tuple(entry for entry in kernel.grid if isinstance(entry, ir.Split))


def states(kernel: ir.Kernel) -> dict[str, ir.State]:
    """Return every carried state by name."""
    streams = (s for s in statements(kernel) if isinstance(s, ir.Stream))
    return {state.name: state for stream in streams for state in stream.states}


def axes_used(kernel: ir.Kernel) -> set[str]:
    """Return the names of the axes that a kernel mentions."""
    axes = {b.axis for b in blocks(kernel)} | {s.axis for s in splits(kernel)}
    for state in states(kernel).values():
        axes.update(state.axes)
    for s in statements(kernel):
        axes.update(a for e in indices_of(s) for a in axes_of(e))
        axes.update(a for v in visit_statement(s) for a in joined_axes(v))
    return axes


def joined_axes(value: ir.Value) -> tuple[str, ...]:
    """Return the axes along which a value combines elements, or needs all of them."""
    match value:
        case ir.Reduce(over=over) | ir.Dot(over=over):
            return over
        case ir.Rename(old=old, new=new):
            return old, new
        case ir.Scan(along=along):
            return (along,)
        case _:
            return ()


# ---- the axes that values vary along -------------------------------------------------------------

Axes: TypeAlias = frozenset[str]
NO_AXES: Axes = frozenset()
MAX_BODIES = 256
"""Maximum bodies whose axes are kept: those of a kernel while its schedules are compared."""


def value_axes(value: ir.Value, of: Callable[[str, bool], Axes]) -> Axes:
    """Return the axes that a value varies along.

    `of(name, new)` are those of a bound name, or of a state's new value.
    """
    match value:
        case ir.Ref(name=name, next=new):
            return of(name, new)
        case ir.Const() | ir.Partial() | ir.Extreme():
            return NO_AXES
        case ir.IndexValue(index=index):
            return dependent_axes((index,), lambda name: of(name, False))
        case _:
            inside = NO_AXES.union(*(value_axes(c, of) for c in children(value)))
    match value:
        case ir.Load(index=index):
            return inside | dependent_axes(index, lambda name: of(name, False))
        case ir.Reduce(over=over) | ir.Dot(over=over):
            return inside - set(over)
        case ir.Scan(along=along):
            return inside | {along}
        case ir.Rename(old=old, new=new) if old in inside:
            return inside - {old} | {new}
        case _:
            return inside


def axes_of_value(value: ir.Value, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of a value; `names` has those of bound names."""
    return value_axes(value, lambda name, _: names.get(name, NO_AXES))


def axes_of_index(index: Iterable[Index], names: Mapping[str, Axes]) -> Axes:
    """Return the axes of index expressions, also through computed positions."""
    return dependent_axes(index, lambda name: names.get(name, NO_AXES))


@cached_by_identity(MAX_BODIES)
def axes_of_body(body: tuple[ir.Statement, ...]) -> Mapping[str, Axes]:
    """Return the axes of names and states, which may depend on one another.

    A state does not vary along the axes that its stream visits.
    """
    names: dict[str, Axes] = {}
    before: dict[str, Axes] | None = None
    while names != before:
        before = dict(names)
        _add_axes(body, names, {})
        if not any(isinstance(s, ir.Stream) for s in body):
            break  # names follow what they are computed from
    return names


def _add_axes(
    body: Iterable[ir.Statement], names: dict[str, Axes], visited: Mapping[str, Axes]
) -> None:
    """Add the axes of a body's names; `visited`: what a state's stream visits."""
    for s in body:
        if isinstance(s, ir.Let | ir.Position):
            names[s.name] = names.get(s.name, Axes()) | axes_of_value(s.value, names)
        elif isinstance(s, ir.Update):
            axes = axes_of_value(s.value, names) - visited.get(s.state, Axes())
            names[s.state] = names.get(s.state, Axes()) | axes
        elif isinstance(s, ir.Stream):
            stream_axes = Axes(b.axis for b in s.blocks)
            for state in s.states:
                axes = axes_of_value(state.init, names) | set(state.axes)
                names[state.name] = names.get(state.name, Axes()) | axes
            _add_axes(s.body, names, {**visited, **{t.name: stream_axes for t in s.states}})


def is_free(body: tuple[ir.Statement, ...], axis: str) -> bool:
    """Return whether every position of an axis is computed and stored apart from all others."""
    names = axes_of_body(body)
    for s in statements(body):
        values = [*visit_statement(s)]
        if any(isinstance(v, ir.Partial | ir.Extreme) or axis in joined_axes(v) for v in values):
            return False
        if isinstance(s, ir.Store):
            indexed = axes_of_index(s.index, names)
            if s.join or axis not in indexed:
                return False
        if isinstance(s, ir.Stream) and axis in {b.axis for b in (*s.blocks, *s.bounds)}:
            return False
        if axis in end_axes(s, names):
            return False
    return True


def end_axes(s: ir.Statement, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of a stream's ends and condition; none of other statements."""
    if not isinstance(s, ir.Stream):
        return NO_AXES
    ends = (e for b in (*s.blocks, *s.bounds) for e in (b.start, b.stop))
    return NO_AXES.union(*(axes_of_value(e, names) for e in (*ends, s.where) if e is not None))
