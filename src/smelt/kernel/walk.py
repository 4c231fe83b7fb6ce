"""Traverse kernels: visit, rebuild and substitute values, loads and stores.

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
from dataclasses import replace

from smelt.kernel.ir import (
    Apply,
    Block,
    Cast,
    Const,
    Dot,
    Extreme,
    If,
    IndexValue,
    Kernel,
    Let,
    Load,
    Merge,
    Partial,
    Position,
    Reduce,
    Ref,
    Rename,
    Scan,
    Split,
    State,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.types.expr import Atom, Expr, Index, atoms, axes_of, map_variables


def children(value: Value) -> tuple[Value, ...]:
    """Return the direct operands of a value."""
    match value:
        case Const() | IndexValue() | Ref():
            return ()
        case Load(other=other):
            return () if other is None else (other,)
        case Apply(args=args):
            return args
        case Cast() | Reduce() | Scan() | Rename() | Extreme():
            return (value.arg,)
        case Dot(left=left, right=right):
            return left, right
        case If(condition=condition, value=chosen, other=other):
            return condition, chosen, other
        case Partial(condition=condition):
            return (condition,)


def visit(value: Value) -> Iterator[Value]:
    """Yield a value and everything inside it, operands first."""
    for child in children(value):
        yield from visit(child)
    yield value


def with_children(value: Value, new: tuple[Value, ...]) -> Value:
    """Return `value` with other operands; the same object if they are identical."""
    if all(a is b for a, b in zip(children(value), new, strict=True)):
        return value
    match value:
        case Load():
            (other,) = new
            if not isinstance(other, Const):
                raise TypeError(f"what a load gives outside is a number, not {other}")
            return replace(value, other=other)
        case Apply():
            return replace(value, args=new)
        case Cast() | Reduce() | Scan() | Rename() | Extreme():
            return replace(value, arg=new[0])
        case Dot():
            return replace(value, left=new[0], right=new[1])
        case If():
            return If(*new)
        case Partial():
            return Partial(*new)
        case _:
            return value


def visit_statement(statement: Statement) -> Iterator[Value]:
    """Yield every value inside those that a statement itself evaluates (`values_of`)."""
    for value in values_of(statement):
        yield from visit(value)


def visit_body(body: Kernel | Iterable[Statement]) -> Iterator[Value]:
    """Yield every value inside statements and the bodies of their streams."""
    for s in statements(body):
        yield from visit_statement(s)


def transform(value: Value, change: Callable[[Value], Value]) -> Value:
    """Apply `change` to every value inside `value`, operands first."""
    return change(with_children(value, tuple(transform(c, change) for c in children(value))))


def substitute(
    value: Value,
    axes: Mapping[str, Index] | None = None,
    names: Mapping[str, Value] | None = None,
) -> Value:
    """Replace axes in index expressions and bound names in a value.

    Computed positions in an index are not bound names and are kept, as are new states.
    """
    swap = names or {}

    def change(v: Value) -> Value:
        match v:
            case Ref(name=name, next=False) if name in swap:
                return swap[name]
            case Load(index=index) if axes:
                return replace(v, index=tuple(substitute_index(e, axes) for e in index))
            case IndexValue(index=index) if axes:
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


def statements(body: Kernel | Iterable[Statement]) -> Iterator[Statement]:
    """Yield every statement; the body of a stream follows the stream."""
    for s in body.body if isinstance(body, Kernel) else body:
        yield s
        if isinstance(s, Stream):
            yield from statements(s.body)


def values_of(statement: Statement) -> tuple[Value, ...]:
    """Return the values that a statement itself evaluates.

    For a stream: initial states, bounds and the `where` condition, not its body.
    """
    match statement:
        case Let(value=value) | Position(value=value) | Update(value=value):
            return (value,)
        case Store(value=value, where=where):
            return (value,) if where is None else (value, where)
        case Stream(blocks=blocks, states=states, where=where, bounds=sees):
            ends = (e for b in (*blocks, *sees) for e in (b.start, b.stop))
            bounds_and_condition = tuple(e for e in (*ends, where) if e is not None)
            return (*bounds_and_condition, *(s.init for s in states))
        case Merge():
            return ()


def map_statement(statement: Statement, change: Callable[[Value], Value]) -> Statement:
    """Apply `change` to the values of a statement and of its body."""
    match statement:
        case Let() | Position() | Update():
            return replace(statement, value=change(statement.value))
        case Store(where=where):
            new = None if where is None else change(where)
            return replace(statement, value=change(statement.value), where=new)
        case Stream(blocks=blocks, states=states, body=body, where=where, bounds=sees):
            return Stream(
                tuple(_map_block(b, change) for b in blocks),
                tuple(replace(s, init=change(s.init)) for s in states),
                tuple(map_statement(s, change) for s in body),
                None if where is None else change(where),
                tuple(_map_block(b, change) for b in sees),
            )
        case Merge():
            return statement


def _map_block(block: Block, change: Callable[[Value], Value]) -> Block:
    start, stop = (None if e is None else change(e) for e in (block.start, block.stop))
    return replace(block, start=start, stop=stop)


def map_values(kernel: Kernel, change: Callable[[Value], Value]) -> Kernel:
    """Apply `change` to every value of every statement, operands first."""
    body = tuple(map_statement(s, lambda v: transform(v, change)) for s in kernel.body)
    return replace(kernel, body=body)


def indices_of(statement: Statement) -> Iterator[Index]:
    """Yield the index expressions of a statement, without its body."""
    if isinstance(statement, Store):
        yield from statement.index
    elif isinstance(statement, Position):
        yield statement.extent
    for value in visit_statement(statement):
        if isinstance(value, Load):
            yield from value.index
        elif isinstance(value, IndexValue):
            yield value.index


# ---- queries -----------------------------------------------------------------------------------


def loads(part: Kernel | Statement | Value) -> Iterator[Load]:
    """Yield every load in a kernel, a statement or a value, in order.

    A statement includes its body.
    """
    for value in _roots(part):
        for v in visit(value):
            if isinstance(v, Load):
                yield v


def stores(body: Kernel | Iterable[Statement]) -> Iterator[Store]:
    """Yield every store in order."""
    for s in statements(body):
        if isinstance(s, Store):
            yield s


def refs(part: Kernel | Statement | Value) -> list[str]:
    """Return the names read, through values and computed positions, in order of first use."""
    names: dict[str, None] = {}
    for value in _roots(part):
        for v in visit(value):
            match v:
                case Ref(name=name):
                    names[name] = None
                case Load(index=index):
                    names.update(dict.fromkeys(p for e in index for p in positions_of(e)))
                case IndexValue(index=index):
                    names.update(dict.fromkeys(positions_of(index)))
                case _:
                    pass
    for s in _statements_of(part):
        if isinstance(s, Store):
            names.update(dict.fromkeys(p for e in s.index for p in positions_of(e)))
    return list(names)


def bindings_of(
    before: Sequence[Statement], after: Iterable[Statement | Value]
) -> list[Let | Position]:
    """Return the bindings among `before` that others read, directly or not, in order."""
    wanted = {name for s in after for name in refs(s)}
    result: list[Let | Position] = []
    for s in reversed(before):
        if isinstance(s, Let | Position) and s.name in wanted:
            wanted |= set(refs(s))
            result.insert(0, s)
    return result


def live(body: Iterable[Statement]) -> list[Statement]:
    """Return statements without the bindings that no later statement reads."""
    wanted: set[str] = set()
    result: list[Statement] = []
    for s in reversed([*body]):
        if not isinstance(s, Let | Position) or s.name in wanted:
            wanted.update(refs(s))
            result.append(s)
    return result[::-1]


def positions_of(e: Index) -> tuple[str, ...]:
    """Return the names of the computed positions in an index expression."""
    return tuple(dict.fromkeys(a.name for a in atoms(e) if a.kind == "value"))


def _statements_of(part: Kernel | Statement | Value) -> Iterator[Statement]:
    if isinstance(part, Kernel):
        yield from statements(part)
    elif isinstance(part, Let | Position | Store | Update | Stream | Merge):
        yield from statements((part,))


def _roots(part: Kernel | Statement | Value) -> Iterator[Value]:
    if isinstance(part, Kernel | Let | Position | Store | Update | Stream | Merge):
        for s in _statements_of(part):
            yield from values_of(s)
    else:
        yield part


def blocks(kernel: Kernel) -> Iterator[Block]:
    """Yield every block of the grid, then of the streams."""
    for entry in kernel.grid:
        if isinstance(entry, Block):
            yield entry
    for s in statements(kernel):
        if isinstance(s, Stream):
            yield from s.blocks


def splits(kernel: Kernel) -> tuple[Split, ...]:
    """Return the split axes of the grid."""
    return tuple(entry for entry in kernel.grid if isinstance(entry, Split))


def states(kernel: Kernel) -> dict[str, State]:
    """Return every carried state by name."""
    streams = (s for s in statements(kernel) if isinstance(s, Stream))
    return {state.name: state for stream in streams for state in stream.states}


def axes_used(kernel: Kernel) -> set[str]:
    """Return the names of the axes that a kernel mentions."""
    axes = {b.axis for b in blocks(kernel)} | {s.axis for s in splits(kernel)}
    for state in states(kernel).values():
        axes.update(state.axes)
    for s in statements(kernel):
        axes.update(a for e in indices_of(s) for a in axes_of(e))
        axes.update(a for v in visit_statement(s) for a in joined_axes(v))
    return axes


def joined_axes(value: Value) -> tuple[str, ...]:
    """Return the axes along which a value combines elements, or needs all of them."""
    match value:
        case Reduce(over=over) | Dot(over=over):
            return over
        case Rename(old=old, new=new):
            return old, new
        case Scan(along=along):
            return (along,)
        case _:
            return ()
