"""Arrays that are views of others, by NumPy's rules, on values that never change.

Arrays that share memory have a `Place` each: the `Memory`, which has the newest value of the array
that owns it, and the links from there.  A view reads its elements from the owner's newest value.
Writing to any of them gives the owner a new value, and empties the slot `node` of the views, which
derive theirs again when they are read next.  What was recorded before keeps the old value.

The module that writes `a[1:]` decides whether the result is a view: modules that import
`smelt.numpy` have NumPy's rules, those that import `smelt` alone have slices that are copies.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import numpy as np

from smelt.errors import ArgumentError, InternalError, TracerError, UnsupportedError
from smelt.frontends.array.assign import overlay_box, put
from smelt.frontends.array.evaluate_pending import (
    evaluate,
    flush_readers,
    present_value,
    written_elements,
)
from smelt.frontends.array.memory import Buffer, copy_in_order
from smelt.frontends.array.number import as_dim
from smelt.frontends.array.operators import Operators
from smelt.frontends.array.scope import Scope, shape_of
from smelt.frontends.array.subscript import SliceRange, get, get_simple, hashable_key
from smelt.frontends.array.value import (
    STATE,
    CopiedOperand,
    Value,
    foreign,
    has_other_names,
    is_at_once,
    leaf,
    private_data,
    record,
)
from smelt.frontends.array.views import flip, permute, reshape
from smelt.ops.create import Input
from smelt.ops.view import Expand, Flip, Permute, Reshape, Slice, View
from smelt.python.dataclass import dataclass

_reference = weakref.ref
Sizes = Callable[[Any], int]
_COPY: Final = "Write to a copy: x = x.copy()."


def _itself(n: Any) -> int:
    return n


class Link:
    """Step from the elements of an array to those of a view."""

    __slots__ = ()
    is_writeable: ClassVar[bool] = True

    @property
    def permutes(self) -> bool:
        """Whether the order of elements in memory may be another one than that of rows."""
        return False

    def read(self, x: Value) -> Value:
        """Return the elements of the view from those of its operand."""
        raise NotImplementedError

    def write(self, x: Value, v: Value) -> Value:
        """Return the operand's elements after the view has become `v`."""
        raise NotImplementedError

    def of(self, data: Buffer, size: Sizes) -> Buffer:
        """Return NumPy's view of memory; `size` gives the numbers behind sizes."""
        raise NotImplementedError


class Key(Link):
    """Subscript of integers, slices, None and Ellipsis."""

    __slots__ = ("key", "original")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, key: tuple[Any, ...] | None, original: Any) -> None:
        self.key = key
        """The subscript as `hashable_key` has it; None if it has sizes of a recording."""
        self.original = original

    def __eq__(self, other: object) -> bool:
        return other.__class__ is Key and self.key is not None and self.key == other.key  # type: ignore[attr-defined]

    def read(self, x: Value) -> Value:
        return get(x, self.original)

    def write(self, x: Value, v: Value) -> Value:
        return put(x, self.original, v)

    def of(self, data: Buffer, size: Sizes) -> Buffer:
        if self.key is not None:
            return data[self.original]
        items = self.original if self.original.__class__ is tuple else (self.original,)
        return data[tuple([_plain_item(item, size) for item in items])]


@dataclass(frozen=True, slots=True)
class Operator(Link):
    """Operator of the compiler that moves elements."""

    op: View

    @property
    def permutes(self) -> bool:
        return isinstance(self.op, Permute)

    def read(self, x: Value) -> Value:
        return record(self.op, (x,))

    def write(self, x: Value, v: Value) -> Value:
        op = self.op
        if isinstance(op, Permute):
            return permute(v, sorted(range(len(op.perm)), key=op.perm.__getitem__))
        if isinstance(op, Reshape):
            return reshape(v, shape_of(x))
        if isinstance(op, Flip):
            return flip(v, op.axes)
        assert isinstance(op, Slice)
        ranges = zip(op.starts, op.sizes, op.steps, strict=True)
        return overlay_box(x, [SliceRange(a, *r) for a, r in enumerate(ranges)], v)

    def of(self, data: Buffer, size: Sizes) -> Buffer:
        op = self.op
        if isinstance(op, Permute):
            return data.transpose(op.perm)
        if isinstance(op, Flip):
            return np.flip(data, op.axes)
        if isinstance(op, Slice):
            ranges = zip(map(size, op.starts), map(size, op.sizes), op.steps, strict=True)
            return data[tuple([_slice(*r) for r in ranges])]
        assert isinstance(op, (Reshape, Expand))
        shape = tuple(map(size, op.shape))
        return reshaped(data, shape) if isinstance(op, Reshape) else np.broadcast_to(data, shape)


def _plain_item(item: Any, size: Sizes) -> Any:
    """Return an item of a subscript with numbers in place of a recording's sizes."""
    if isinstance(item, slice):
        return slice(*[_plain_item(x, size) for x in (item.start, item.stop, item.step)])
    return item if item is None or item is ... else size(as_dim(item))


def _slice(start: int, count: int, step: int) -> slice:
    stop = start + count * step
    return slice(start, None if stop < 0 else stop, step)


@dataclass(frozen=True, slots=True)
class Stretched(Operator):
    """Broadcast, which NumPy does not let anybody write to."""

    is_writeable: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, eq=False)
class Part(Link):
    """Real or imaginary parts of a complex array, stored as arrays of their own."""

    name: str
    owner: Any
    """The complex array that owns the elements, which lives as long as the view."""

    def read(self, x: Value) -> Value:
        return x

    def write(self, x: Value, v: Value) -> Value:
        return v

    def of(self, data: Buffer, size: Sizes) -> Buffer:
        return getattr(data, self.name) if data.dtype.kind == "c" else data


@dataclass(frozen=True, slots=True, eq=False)
class Function(Link):
    """Function whose result NumPy does not let anybody write to."""

    ours: Callable[[Value], Value]
    theirs: Callable[[Buffer], Buffer]
    is_writeable: ClassVar[bool] = False

    @property
    def permutes(self) -> bool:
        return True

    def read(self, x: Value) -> Value:
        return self.ours(x)

    def of(self, data: Buffer, size: Sizes) -> Buffer:
        return self.theirs(data)


def reshaped(data: Buffer, shape: Any) -> Buffer:
    """Return memory in another shape; raise ValueError where NumPy would copy it."""
    return np.reshape(data, shape, copy=False)


def kept_order(table: list[list[int]], rank: int) -> tuple[int, ...]:
    """Return the axes of an elementwise result, outermost in memory first.

    `table` has the operands' strides, 0 where an axis does not move.  It is NumPy's order "K".
    """
    order = list(range(rank - 1, -1, -1))  # innermost first
    for first in range(1, rank):
        position, axis = first, order[first]
        for k in range(first - 1, -1, -1):
            pairs = [(row[axis], row[order[k]]) for row in table if row[axis] and row[order[k]]]
            if not pairs:
                continue
            if any(mine > other for mine, other in pairs) or all(m == o for m, o in pairs):
                break
            position = k
        order.insert(position, order.pop(first))
    return tuple(reversed(order))


class Memory:
    """Elements that an array owns and its views share."""

    __slots__ = (
        "_views",
        "argument_of",
        "creator",
        "is_held",
        "node",
        "order",
        "owner",
        "root",
        "whole",
    )

    def __init__(self, owner: Operators, node: Value) -> None:
        self.node = node
        """Newest value."""
        self.owner: weakref.ref[Any] = weakref.ref(owner)
        scope = STATE.scope
        self.creator = scope if scope is not None and scope.has_created(owner) else None
        """Recording that made an array of a value from outside, which it may write to."""
        self.argument_of: Scope | None = None
        """Recording whose argument it is."""
        self.is_held = False
        """Whether other code sees the memory, so that writes have to go there."""
        self.order: tuple[int, ...] | None = None
        """Axes from the outermost to the innermost in memory; None for the order of rows."""
        self.root: Buffer | None = None
        self.whole: weakref.ref[Any] | None = None
        """The complex array whose part the owner is."""
        self._views: list[weakref.ref[Any]] = []

    def add(self, view: Operators) -> None:
        """Add a view; dropped ones are forgotten."""
        views = self._views
        count = len(views)
        if count >= 8 and not count & (count - 1):
            views[:] = [r for r in views if r() is not None]
        views.append(_reference(view))

    def views(self) -> Iterator[Any]:
        """Yield the views that something refers to."""
        for reference in self._views:
            view = reference()
            if view is not None:
                yield view

    def move_views(self) -> None:
        """Let the views find their elements again, in memory that other code sees now."""
        self.root = None
        for view in self.views():
            view.forget()

    def move(self, elements: Buffer) -> None:
        """Keep the elements in memory of other code from now on, by NumPy's rules."""
        self.is_held = True
        self.renew(foreign(elements, copied=True))

    def copy_for_others(self, node: Value) -> None:
        """Give other arrays with the value `node` elements of their own: these may be written.

        Recordings that have captured it go on reading these.
        """
        owner = self.owner()
        if not has_other_names(node, 2 + (owner is not None and present_value(owner) is node)):
            return
        others: list[Any] = gc.get_referrers(node)
        for other in others:
            if isinstance(other, Operators) and (other.place is not None or other is owner):
                continue
            if isinstance(other, (Operators, Memory)) and other is not self:
                renew: Any = other.renew  # pyright: ignore[reportAttributeAccessIssue]
                renew(leaf(copy_in_order(evaluate(node))))

    def renew(self, node: Value) -> None:
        """Make `node` the newest value, in memory of its own."""
        self.node = node
        self.move_views()
        owner = self.owner()
        if owner is not None:
            owner.renew(node)

    def shadow(self) -> Buffer:
        """Return an array of NumPy with the owner's shape and strides, not to be read.

        Views of it have the shapes, strides and overlaps of views of ours.
        """
        if self.root is None:
            node = self.node
            shape: Any = (
                node.type.shape if node.scope is None else node.scope.concrete(node.type).shape
            )
            data = node.data
            if data is not None and node.shared:
                self.root = data
            else:
                dtype = node.type.dtype.numpy
                if self.whole is not None:
                    dtype = np.result_type(dtype, np.complex64)
                step, strides = dtype.itemsize, [0] * len(shape)
                for axis in reversed(self.order or range(len(shape))):
                    strides[axis] = step
                    step *= max(shape[axis], 1)
                self.root = np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides)
        return self.root


class Place:
    """Where an array's elements are: a memory, and the links from its owner."""

    __slots__ = ("is_permuted", "is_writeable", "last", "links", "memory", "refusal")

    def __init__(self, memory: Memory, links: tuple[Link, ...], is_writeable: bool) -> None:
        self.memory = memory
        self.links = links
        self.is_writeable = is_writeable
        self.is_permuted = False
        """Whether the order in memory may be another one than that of rows."""
        self.last: Value | None = None
        """Elements as they were derived last, if that is done at each reading."""
        self.refusal = ""
        """What cannot be written, where NumPy's array can."""

    @property
    def is_derivable(self) -> bool:
        """Whether the elements stay those of the memory's value until one of ours writes."""
        return self.memory.node.__class__ is Value

    @property
    def is_whole(self) -> bool:
        """Whether the elements are all of a memory in the order of rows."""
        memory = self.memory
        is_plain = memory.order is None and memory.root is None and not memory.node.shared
        return is_plain and not self.links

    def elements(self) -> Buffer | None:
        """Return NumPy's view of the elements if they are in memory."""
        node = self.memory.node
        data = node.data if node.__class__ is Value else node.current_buffer()
        return None if data is None else self.of(data)

    def operand(self, view: Operators) -> Value:
        """Return the value of the view at this place for an operator computed at once.

        It is not recorded that the view is a part of its owner, unless the view was read before.
        """
        node = present_value(view)
        if node is not None or not is_at_once():
            return view.node
        elements = self.elements()
        return view.node if elements is None else leaf(elements)

    def derive(self) -> Value:
        """Return the elements, from the newest value of the memory.

        Those of memory that other code writes to are read there: operators copy no more than them.
        """
        x = self.memory.node
        if x.__class__ is CopiedOperand and STATE.scope is None and not STATE.tapes:
            elements = self.elements()
            if elements is not None:
                self.last = foreign(elements, copied=True)
                return self.last
        for link in self.links:
            x = link.read(x)
        self.last = None if self.is_derivable else x
        return x

    def keep_order(self, result: Any, operands: tuple[Any, ...]) -> None:
        """Give the result of an elementwise function NumPy's order "K" of these operands."""
        rank = len(result.node.type.shape)
        table = []
        for x in operands:
            if isinstance(x, Operators) and x.node.type.shape:
                place = x.place or own(x)
                shadow = place.shadow()
                pairs = zip(shadow.shape, shadow.strides, strict=True)
                steps = [0 if n == 1 else abs(s) for n, s in pairs]
                table.append([0] * (rank - len(steps)) + steps)
        order = kept_order(table, rank)
        if order != tuple(range(rank)):
            place = own(result)
            place.memory.order, place.is_permuted = order, True

    def shadow(self) -> Buffer:
        """Return an array of NumPy with this shape and these strides, not to be read."""
        scope = self.memory.node.scope
        return self.of(self.memory.shadow(), _itself if scope is None else scope.hint)

    def of(self, data: Buffer, size: Sizes = _itself) -> Buffer:
        """Return NumPy's view of the owner's elements."""
        for link in self.links:
            data = link.of(data, size)
        return data

    def write(self, view: Operators, node: Value) -> bool:
        """Make `node` the elements of `view`, which is at this place.

        Returns whether it is the value of the view; else they are in memory that others see.

        Raises ArgumentError for a view that is not writeable, TracerError for one of an argument.
        """
        memory = self.memory
        if not self.is_writeable:
            if self.refusal:
                raise UnsupportedError(f"writing to {self.refusal}", hint=_COPY)
            raise ArgumentError(
                f"assignment destination is read-only: {node.type_text}",
                hint=_COPY,
            )
        owner = memory.owner()
        if self.links and is_at_once():
            evaluate(memory.node)
            if self.write_at_once(..., written_elements(node)):
                return False
        if memory.is_held and node.scope is None and not STATE.tapes and self._write_held(node):
            return False
        if owner is not view and memory.argument_of is not None:
            raise TracerError(
                f"a view of an argument of {memory.argument_of.name} is written inside sm.jit",
                hint="The caller's array would not change. Write to a copy, x = x.copy(), and"
                " return it.",
            )
        others = [v for v in memory.views() if v is not view]
        if self.links and owner is None and not others:  # nobody can see the rest
            memory = Memory(view, node)
            memory.root, memory.whole = self.shadow(), self.memory.whole
            self.memory = memory
            memory.owner = _GONE
            memory.add(view)
            self.links = ()
            return True
        whole = self._overlaid(node)
        memory.node = whole
        if owner is not None and owner is not view:
            owner.renew(whole)
        for other in others:
            other.forget()
        return True

    def write_at_once(self, key: Any, elements: Any) -> bool:
        """Write by NumPy into the owner's computed memory; return whether that was possible."""
        target = self.writeable()
        if target is not None:
            target[key] = elements
        return target is not None

    def writeable(self) -> Buffer | None:
        """Return NumPy's view of the owner's computed memory for a write at once, or None.

        Values that were recorded before keep the elements of their time.
        """
        memory = self.memory
        held = memory.node
        data = held.data
        if data is None or not self.is_writeable or (held.shared and not memory.is_held):
            return None
        if memory.order is not None and not held.shared:
            return None  # the elements are stored in another order than NumPy's are
        if held.shared:
            flush_readers(data)
        for view in memory.views():
            view.forget()
        if not held.shared:
            owner = memory.owner()
            if owner is not None and present_value(owner) is not held:
                return None
            del data  # whose references are counted
            data = private_data(held, _HOLDERS + (owner is not None))
            if data is None:
                assert held.data is not None
                data = held.data.copy()
                memory.node = leaf(data)
                if owner is not None:
                    owner.renew(memory.node)
        return self.of(data)

    def _write_held(self, node: Value) -> bool:
        """Write to memory that other code sees; return whether there is any such code."""
        memory, held = self.memory, self.memory.node
        data = held.data
        if data is None or not held.shared:
            return False
        if data.base is None and sys.getrefcount(data) <= _OURS_ALONE:
            memory.is_held = False
            return False
        values = evaluate(node)
        flush_readers(data)
        self.of(data)[...] = values
        for view in memory.views():
            view.forget()
        return True

    def export(self) -> Buffer:
        """Return these elements in memory that other code may write to from now on."""
        memory = self.memory
        complex_array = None if memory.whole is None else memory.whole()
        if complex_array is not None and not memory.node.shared:
            complex_array.join_parts()
        data, owner = evaluate(memory.node), memory.owner()
        if not memory.node.shared:
            order = memory.order or range(data.ndim)
            if not data.transpose(order).flags.c_contiguous:
                stored = np.ascontiguousarray(data.transpose(order))
                data = stored.transpose(np.argsort(order))
                memory.node = leaf(data)
                if owner is not None:
                    owner.renew(memory.node)
            flush_readers(data)
            if memory.is_held:
                memory.copy_for_others(memory.node)
        memory.node.share(copied=memory.is_held)
        memory.move_views()
        if not self.links and self.is_writeable:
            return data
        shared = self.of(data).view()
        shared.flags.writeable = shared.flags.writeable and self.is_writeable
        return shared

    def _overlaid(self, node: Value) -> Value:
        """Return the memory's value after the elements at this place have become `node`."""
        parents = [self.memory.node]
        for link in self.links[:-1]:
            parents.append(link.read(parents[-1]))
        for link, parent in zip(reversed(self.links), reversed(parents)):
            node = link.write(parent, node)
        return node


def _count_alone(held: Any) -> int:
    data = held.data
    return sys.getrefcount(data)


_OURS_ALONE = _count_alone(SimpleNamespace(data=np.empty(1)))
"""References to memory of which only a value knows, while it is looked at."""


_HOLDERS = 2
"""References to the value of a memory without an owner: its own, and that of a writer."""


def _gone() -> None:
    return None


_GONE: Any = _gone


def own(x: Operators) -> Place:
    """Return the place of an array; one without views owns its memory."""
    place = x.place
    if place is None:
        place = x.place = Place(Memory(x, x.node), (), True)
    return place


def writeable_elements(x: Operators) -> Buffer | None:
    """Return elements that NumPy may write, None if others need the present ones."""
    place = x.place
    evaluate(x.node if place is None else place.memory.node)
    return private_data(x.node, 1) if place is None else place.writeable()


def hold(x: Operators, is_writeable: bool = True) -> None:
    """Note that other code sees an array's memory: writes have to go there, by NumPy's rules."""
    place = own(x)
    place.memory.is_held = True
    place.is_writeable = place.is_writeable and is_writeable
    if place.memory.node.shared:
        place.memory.node.share(copied=True)


def own_part(x: Operators, whole: Any) -> None:
    """Note that an array is the real or imaginary part of a complex one."""
    memory = own(x).memory
    present = None if memory.whole is None else memory.whole()
    if present is None and memory.owner() is x:
        if memory.whole is None:
            memory.root = None
        memory.whole = weakref.ref(whole)


def part(x: Any, key: Any) -> Any:
    """Return x[key] if it is a view or an element by NumPy's rules, else None."""
    simple = hashable_key(key)
    if simple is not None:
        view = unread(x, Key(simple, key))
        if view is not None:
            return view
        result = x.of(get_simple(x.node, key, simple))
    elif all(map(_is_basic, key if key.__class__ is tuple else (key,))):
        result = x.of(get(x.node, key))
    else:
        return None
    if not result.node.type.shape and not (
        key is ... or (key.__class__ is tuple and any(item is ... for item in key))
    ):
        return result  # NumPy's is a number
    return alias(x, result, (Key(simple, key),))


def unread(x: Any, link: Link) -> Any:
    """Return a view without a value if `x` is in memory, else None.

    It is None for a number too.  Operators that are computed at once read it there, others derive
    its value.
    """
    if not is_at_once():
        return None
    place = x.place
    if place is None:
        node = x.node
        data = node.data if node.__class__ is Value else node.current_buffer()
    else:
        data = place.elements()
    try:
        part = None if data is None else link.of(data, _itself)
    except (IndexError, ValueError, TypeError):
        return None  # the error is that of the recorded operator
    return alias(x, x.unread(), (link,)) if part.__class__ is np.ndarray else None


def _is_basic(item: Any) -> bool:
    if item is None or item is ... or isinstance(item, slice):
        return True
    if isinstance(item, (bool, np.bool_, list, tuple, np.ndarray, Operators)):
        return False
    return hasattr(item, "__index__")


def alias(x: Operators, result: Any, links: tuple[Link, ...] | None = None) -> Any:
    """Make a new array a view of `x`.

    It was computed from `x` by at most one operator that moves elements, unless `links` are passed.
    Raises InternalError for another operator.
    """
    if links is None:
        links = _moved(result.node, x)
    place = x.place or own(x)
    memory = place.memory
    is_writeable = place.is_writeable
    for link in links:
        is_writeable = is_writeable and link.is_writeable
    view = result.place = Place(memory, place.links + links, is_writeable)
    view.is_permuted = place.is_permuted or (bool(links) and links[-1].permutes)
    memory.add(result)
    if memory.node.__class__ is not Value:
        result.forget()
    return result


def _moved(node: Value, x: Operators) -> tuple[Link, ...]:
    last = None if x.place is None else x.place.last
    source = x.node if last is None else last
    op = node.op
    if node is source or (isinstance(op, Input) and node.type is source.type):
        return ()  # the elements themselves, or a copy of memory that others may write to
    if isinstance(op, Expand):
        return (Stretched(op),)
    if isinstance(op, (Permute, Reshape, Flip, Slice)):
        return (Operator(op),)
    raise InternalError(f"a view of {source.type_text} by the operator {op}")


def refuse(result: Operators, what: str) -> None:
    """Make writing to an array an error, since NumPy's would share memory with another."""
    place = own(result)
    place.is_writeable, place.refusal = False, what
