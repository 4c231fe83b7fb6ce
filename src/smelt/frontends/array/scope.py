"""The scope of one recording by `jit`: its sizes, its arguments, and what it captured.

>>> s = Scope("f")
>>> x = s.input("x", intern(f32, (s.symbol(6), 4)), None)
>>> s.record(Map("exp"), (x,)).type
TensorType(dtype=f32, shape=(n0, 4))
"""

from __future__ import annotations

import gc
import weakref
from math import prod
from typing import Any

from smelt.errors import ChangedError, LeakError
from smelt.frontends.array.evaluate_pending import flush, realise
from smelt.frontends.array.layouts import layout, turned
from smelt.frontends.array.sizes import Sizes
from smelt.frontends.array.value import STATE, Value, constant, imprint, infer, intern
from smelt.graph.ir import Node
from smelt.ops.create import Constant, Input, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.spec import TensorOp
from smelt.origin import here
from smelt.types.dtype import f32, f64, i64
from smelt.types.expr import Expr, Index, mul, size
from smelt.types.tensor import TensorType

__all__ = ["Map", "Scope", "f32"]


SOON = 6.0
"""Cycles a vector up to which a value is computed in every call rather than read: as many as bytes
of it take that come from memory."""
_FORMS = {"add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "neg": "(-{})"}


class Scope(Sizes):
    """One recording.  `name` is the function's; `symbol` and `input` make its arguments."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.open = True
        self.captured: dict[Value, Value] = {}
        self._renamed: dict[Value, Value] = {}
        self._anew: set[Value] = set()
        """Values from outside that are recorded again."""
        self.scalars: dict[Value, tuple[str, Any]] = {}
        self.fixed: dict[str, Any] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.opposites: dict[str, str] = {}
        """Sizes that are a negative number's opposite, and how they are computed."""
        self.asked: dict[str, None] = {}
        """What was asked of numbers, as Python text that is true in this call."""
        self.imprints: dict[Value, bytes] = {}
        """What captured arrays that others may write to were like when they were first read."""
        self.changing: dict[Value, None] = {}
        """What the function computes of such arrays alone: recorded when it is captured, for every
        call computes it of what they hold then."""
        arrays = [ref() for ref in STATE.pending]
        self.awaited = {a.node for a in arrays if a is not None}
        """What waited to be computed when it began: what comes of it is known then."""
        self.made: dict[int, weakref.ref[Any]] = {}
        """Arrays that were made while it ran, of values from outside: it may write to them."""
        self.instead: list[weakref.ref[Any]] = []
        """Arrays that names got in place of NumPy's buffers, by `buffer += x`."""

    def has_made(self, array: Any) -> bool:
        """Whether an array that holds a value from outside was made by this recording."""
        found = self.made.get(id(array))
        return found is not None and found() is array

    def allowed(self) -> None:
        """Raises LeakError when the recording has ended."""
        self.alive("a size")

    def alive(self, value: object) -> bool:
        """True while the recording runs.  Raises LeakError afterwards."""
        if not self.open:
            raise LeakError(value=str(value), function=self.name)
        return True

    def check(self, x: Value) -> None:
        """Raises LeakError for a value of another recording."""
        if x.scope is not self and x.scope is not None:
            raise LeakError(value=x.told, function=x.scope.name)

    def record(self, op: TensorOp, inputs: tuple[Value, ...]) -> Value:
        """`op` on values of this recording; others are captured as constant inputs."""
        if not self.open:
            self.alive(inputs[0].told if inputs else "a size")
        own = tuple([x if x.scope is self else self.capture(x) for x in inputs])
        types = [x.type for x in own] if not self.bound else [self.type(x.type) for x in own]
        return Value(op, own, infer(op, *types), here(), None, self)

    def planned(self, op: TensorOp, inputs: tuple[Value, ...], type: TensorType) -> Value:
        """`record` of values of this recording, where the result's type is known."""
        if not self.open:
            self.alive(inputs[0].told)
        return Value(op, inputs, type, here(3), None, self)

    def input(self, label: str, type: TensorType, strides: tuple[int | None, ...] | None) -> Value:
        """An argument of the recorded function."""
        return Value(Input(label, type, strides), (), type, None, None, self)

    def scalar(self, label: str, value: float) -> Value:
        """An argument that is a Python number: an input of rank 0 whose value is known here."""
        type = intern(i64 if isinstance(value, int) else f64, ())
        node = self.input(label, type, None)
        number = len(self.scalars)
        while f"k{number}" in self.hints:  # a size that a spec names
            number += 1
        self.scalars[node] = f"k{number}", value
        return node

    def count(self, node: Value) -> Index:
        """A whole number argument as a size: a symbol that no dimension of an argument tells.

        Sizes are at least 2, and so is this one or its opposite; 0, 1 and -1 are numbers.
        """
        name, value = self.scalars[node]
        if abs(value) < 2 or name in self.fixed:
            self.pin_scalars(node)
            return int(value)
        symbol = name if value > 0 else f"{name}_"
        if symbol not in self.hints:
            self.alive(node)
            self.symbol(abs(int(value)), symbol)
            if value > 0:
                self.bound_scalar(node, 2, 2**63 - 1)
            else:
                self.opposites[symbol] = f"({symbol} := -{name})"
        return mul(self.canon(size(symbol)), 1 if value > 0 else -1)

    def formula_of(self, x: Node | Index | float) -> str | None:
        """Python text of a number over sizes and arguments; None if it is made in other ways."""
        if isinstance(x, (int, float)):
            return repr(x)
        if isinstance(x, Expr):
            return f"({self.source(x)})"
        op = x.op
        if x in self.scalars:
            return self.scalars[x][0]  # type: ignore[index]
        if isinstance(op, Constant):
            return repr(op.value)
        if isinstance(op, SizeOf):
            return self.formula_of(op.expr)
        form = "float({})" if isinstance(op, Cast) and op.dtype is f64 else _FORMS.get(op.name)
        texts = [self.formula_of(i) for i in x.inputs] if form is not None else []
        return None if form is None or None in texts else form.format(*texts)

    def ask(self, condition: str) -> None:
        """The recording is valid only where `condition`, about numbers, is true."""
        self.alive("a number")
        self.asked[condition] = None

    def unwritten(self) -> None:
        """Raises ChangedError if the function that was recorded wrote to memory that it had read:
        what it captures is read in every call as it is then, which is after all that."""
        for x, before in self.imprints.items():
            if imprint(realise(x)) != before:
                raise ChangedError(
                    f"{x.told} was written by {self.name} after an operator had read it",
                    hint="Calls read NumPy's memory when they run: write to a copy, or use"
                    " x = sm.asarray(buffer) and x[key] = value.",
                )

    def unkept(self) -> None:
        """Raises LeakError if something that outlives the function holds an array in place of the
        buffer that it held: a call that records nothing would write to neither."""
        if any(ref() is not None for ref in self.instead):
            gc.collect()  # what is held by something that only refers to itself
        for x in [x for ref in self.instead if (x := ref()) is not None]:
            raise LeakError(
                f"{x.node.told} is kept where {self.name} found a buffer of NumPy's, by"
                " `buffer += x`, and belongs to its recording, which has ended",
                hint="Calls would write to neither: return the new value instead.",
            )

    def pin_scalars(self, node: Node) -> None:
        """The recording is valid only for the values that `node`, a number, is computed from."""
        self.alive(node)
        if node in self.scalars:
            name, value = self.scalars[node]  # type: ignore[index]
            self.fixed[name] = value
        elif isinstance(node.op, SizeOf):
            self.pin(node.op.expr)
        for x in node.inputs:
            self.pin_scalars(x)

    def bound_scalar(self, node: Value, low: int, high: int) -> None:
        """The recording is valid only where `node`, if it is a number as it was given, lies in a
        range."""
        if node in self.scalars:
            name, _ = self.scalars[node]
            least, most = self.ranges.get(name, (low, high))
            self.ranges[name] = max(low, least), min(high, most)

    def capture(self, x: Value) -> Value:
        """A value from outside as an input that is the same in every call; a number that nobody
        else can write to as that number."""
        if isinstance(x.op, Constant) and not x.shared:
            return x
        if x.data is not None and not x.type.shape and not x.shared:
            return constant(x.data.item(), x.type.dtype)
        if x.scope is not None:
            raise LeakError(value=x.told, function=x.scope.name)
        found = self.captured.get(x) or self._renamed.get(x)
        if found is None and x in self.changing:
            found = self._computed_again(x)
        if found is None and (self._is_renamed(x) or x in self._anew or self._is_made_anew(x)):
            found = self._renamed[x] = self.record(x.op, self._sources(x))
        if found is None:
            label, data = f"c{len(self.captured)}", realise(x)
            op = Input(label, x.type, layout(data), constant=not x.shared)
            found = Value(op, (), x.type, None, None, self)
            self.captured[x] = found
            if x.shared:
                self._read(x)
        return found

    def outside(self, x: Value) -> None:
        """Notes an operator on values from outside alone: what comes of memory that others may
        write to changes as that does."""
        for i in x.inputs:
            if i.shared:  # type: ignore[attr-defined]
                self._read(i)  # type: ignore[arg-type]
                self.changing[x] = None
            elif i in self.changing:
                self.changing[x] = None

    def _read(self, x: Value) -> None:
        if x not in self.imprints:
            self.imprints[x] = imprint(realise(x))

    def _computed_again(self, x: Value) -> Value:
        """What changes as memory of others does, recorded; all that it is made of before it."""
        pending: list[Any] = [x]
        while pending:
            last = pending[-1]
            before = [i for i in last.inputs if i in self.changing and i not in self._renamed]
            if last in self._renamed or not before:
                pending.pop()
            if last not in self._renamed and not before:
                self._renamed[last] = self.record(last.op, last.inputs)
            pending += before
        return self._renamed[x]

    def close(self) -> None:
        """The recording has ended: what the function left pending keeps the elements of now."""
        arrays = [ref() for ref in STATE.pending] if self.changing else []
        if any(a is not None and a.node in self.changing for a in arrays):
            flush()
        for x in self.changing:
            x.inputs = x.inputs if x.data is None else ()
        self.open = False
        self.made.clear()
        self.changing.clear()

    def _is_renamed(self, x: Value) -> bool:
        """Whether a value only names or converts elements of one array that nobody else writes to,
        and has not been computed: the program had better know the array, which is no larger and
        whose type says more (8-bit weights widened before a product are still 8-bit weights)."""
        waits = False
        while x.data is None and len(x.inputs) == 1 and (x.op.is_view or isinstance(x.op, Cast)):
            waits = waits or x in self.awaited
            (x,) = x.inputs  # type: ignore[assignment]
            if x.data is not None:
                return not x.shared and (not waits or _is_dense(x.data))
        return False

    def _sources(self, x: Value) -> tuple[Value, ...]:
        """What a value that is recorded again is made of: of what waits, as it is now."""
        inputs: Any = x.inputs
        if x not in self.awaited:
            return inputs
        self.awaited.update(i for i in inputs if i.data is None)
        return tuple([i if i.data is None else i.kept() for i in inputs])

    def _is_made_anew(self, x: Value) -> bool:
        """Whether a value that the function computes of others from outside, which nobody else
        writes to, takes more memory than they do and is soon computed: the program had better know
        them (8-bit weights with scales are still 8-bit weights)."""
        work, nbytes, inner = 0.0, 0, list[Value]()
        seen, pending = {x}, [x]
        while pending:
            here: Any = pending.pop()
            apart = here in self.awaited or here.data is not None or not here.inputs
            if apart or not (here.op.is_view or isinstance(here.op, Cast | Map)):
                if here.shared or here is x:
                    return False
                nbytes += _nbytes(here)
                continue
            work += here.op.row.cost * _count(here) if isinstance(here.op, Map) else 0.0
            inner.append(here)
            fresh = [i for i in here.inputs if i not in seen]
            pending += fresh
            seen.update(fresh)
        if nbytes >= _nbytes(x) or work > SOON * _count(x):
            return False
        self._anew.update(inner)
        return True


def _is_dense(data: Any) -> bool:
    """Whether a copy lies in memory as the elements do."""
    return data.flags.c_contiguous or turned(data) is not None


def _count(x: Value) -> int:
    return prod(n for n in x.type.shape if isinstance(n, int))


def _nbytes(x: Value) -> int:
    return _count(x) * x.type.dtype.itemsize
