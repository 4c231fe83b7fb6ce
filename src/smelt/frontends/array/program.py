"""Build cache keys of pending programs: the operators without their numbers, and the numbers.

Two programs with one *skeleton* differ only in sizes and constants, so one compiled plan for all
sizes may serve both (`smelt.frontends.array.evaluate_pending`).  Numbers are listed in a fixed
order: dimensions of leaves, then sizes in the attributes of views. 0 and 1 belong to the skeleton,
because broadcasting and empty arrays depend on them.

>>> import numpy as np
>>> from smelt.frontends.array.value import leaf, record
>>> from smelt.ops.elementwise import Map
>>> a, b = (record(Map("exp"), (leaf(np.ones(n)),)) for n in (3, 4))
>>> p, q = Program((a,)), Program((b,))
>>> p.skeleton == q.skeleton, p.numbers, q.numbers
(True, (3,), (4,))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from smelt.frontends.array.memory import Buffer, memory_order
from smelt.frontends.array.structure import is_parameter
from smelt.frontends.array.value import Value
from smelt.graph.loop import Loop
from smelt.ops.create import Constant, Input, Iota
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Pad, Reshape, Shear, Slice
from smelt.types.dtype import number_text

Numbers = tuple[int, ...]


class Program:
    """Values that `outputs` need, operands first; equal programs have equal keys."""

    __slots__ = ("buffers", "constants", "leaves", "nodes", "numbers", "outputs", "skeleton")

    def __init__(self, outputs: Iterable[Value]) -> None:
        """Collect the program.

        Raises DonatedError and ChangedError for leaves that cannot be read any more.
        """
        self.outputs = tuple(outputs)
        order = operands_first(self.outputs)
        self.leaves = [x for x in order if x.data is not None or isinstance(x.op, Input)]
        self.buffers: list[Buffer] = []
        for x in self.leaves:
            data = x.buffer()
            assert data is not None
            self.buffers.append(data)
        self.nodes = [
            x for x in order if x.data is None and not isinstance(x.op, (Constant, Input))
        ]
        self._build_key(order)

    def _build_key(self, order: list[Value]) -> None:
        """Compute skeleton, numbers and constants."""
        numbers: list[int] = []
        constants: list[float] = []
        positions: dict[Any, int] = {}
        parts: list[Hashable] = []
        for x, data in zip(self.leaves, self.buffers, strict=True):
            positions[x] = len(positions)
            parts += x.type.dtype.name, _split(data.shape, numbers), memory_order(data)
        for x in order:
            if x.data is None and isinstance(x.op, Constant):
                positions[x] = -1
        for x in self.nodes:
            positions[x] = len(positions)
            split = ATTRIBUTES.get(x.op.__class__)
            parts.append(x.op if split is None else (x.op.__class__, *split(x.op, numbers)))
            for i in x.inputs:
                if isinstance(i.op, Constant) and i.data is None:  # type: ignore[attr-defined]
                    parts.append(_constant(i.op, constants))
                else:
                    parts.append(positions[i])
        for x in self.outputs:
            if isinstance(x.op, Constant) and x.data is None:
                parts.append(_constant(x.op, constants))
            else:
                parts.append(positions[x])
        self.skeleton = tuple(parts)
        self.numbers = tuple(numbers)
        self.constants = tuple(constants)


def operands_first(outputs: tuple[Value, ...]) -> list[Value]:
    """Return every value that has to be computed or read, operands before users."""
    order: list[Value] = []
    seen: set[Value] = set()
    stack: list[tuple[Any, bool]] = [(node, False) for node in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if node.data is None:
                stack.extend((x, False) for x in reversed(node.inputs) if x not in seen)
    return order


# Constants


def _constant(op: Constant, constants: list[float]) -> Hashable:
    """Return a constant's part of the skeleton; ordinary numbers are appended to the list."""
    if not is_parameter(op):
        return op
    constants.append(op.value)
    return "constant", op.dtype.name


# Sizes in attributes of operators


def _split(shape: Iterable[Any], numbers: list[int]) -> tuple[int, ...]:
    """Replace sizes of 2 or more by -1 and append them to the list."""
    pattern: list[int] = []
    for n in shape:
        if n < 2:
            pattern.append(n)
        else:
            pattern.append(-1)
            numbers.append(n)
    return tuple(pattern)


def _shaped(op: Any, numbers: list[int]) -> tuple[Hashable, ...]:
    return (_split(op.shape, numbers),)


def _loop(op: Loop, numbers: list[int]) -> tuple[Hashable, ...]:
    length, sizes = _split(op.length, numbers), _split(op.sizes, numbers)
    return length, sizes, op.carries, op.slices, op.reverse, op.which, op.names, op.body


ATTRIBUTES: dict[type[TensorOp], Callable[[Any, list[int]], tuple[Hashable, ...]]] = {
    Reshape: _shaped,
    Expand: _shaped,
    Iota: lambda op, numbers: (_split(op.shape, numbers), op.axis, op.dtype.name),
    Slice: lambda op, numbers: (
        _split(op.starts, numbers),
        _split(op.sizes, numbers),
        op.steps,
    ),
    Pad: lambda op, numbers: (
        _split(op.low, numbers),
        _split(op.high, numbers),
        number_text(op.value),
    ),
    Shear: lambda op, numbers: (_split(op.shape, numbers), op.axis, op.dilation),
    Loop: _loop,
}
"""Functions for operators with sizes in attributes: return the rest, append the sizes."""

_FIELDS: dict[type[TensorOp], tuple[str, ...]] = {
    Reshape: ("shape",),
    Expand: ("shape",),
    Iota: ("shape",),
    Slice: ("starts", "sizes"),
    Pad: ("low", "high"),
    Shear: ("shape",),
    Loop: ("length", "sizes"),
}
"""Names of the attributes that hold sizes."""


def replace_numbers(op: TensorOp, other: Callable[[int], Any]) -> dict[str, tuple[Any, ...]]:
    """Return the size attributes of `op`, with `other` applied to numbers above 1.

    It is called in the order of the list that `ATTRIBUTES` fill.
    """
    return {
        name: tuple(other(n) if n >= 2 else n for n in getattr(op, name))
        for name in _FIELDS.get(op.__class__, ())
    }
