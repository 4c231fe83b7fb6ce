"""Scope of one recording by `jit`: its sizes, arguments and captured values.

>>> from smelt.types.dtype import f32
>>> s = Scope("f")
>>> x = s.input("x", intern(f32, (s.symbol(6), 4)), None)
>>> s.record(Map("exp"), (x,)).type
TensorType(dtype=f32, shape=(n0, 4))
"""

from __future__ import annotations

import gc
import weakref
from itertools import count
from math import prod
from typing import Any

import numpy as np

from smelt.errors import ChangedError, LeakError
from smelt.frontends.array.evaluate_pending import evaluate, flush, present_value
from smelt.frontends.array.memory import Buffer, dense_axis_order, layout
from smelt.frontends.array.sizes import Sizes
from smelt.frontends.array.value import SNAPSHOT_BYTES, STATE, Value, constant, infer, intern
from smelt.graph.ir import Node
from smelt.ops.create import Constant, Input, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather
from smelt.ops.spec import TensorOp
from smelt.python.imports import fork_safe_import
from smelt.python.origin import Origin, here
from smelt.types.dtype import f64, i64, number_text
from smelt.types.expr import Expr, Index, mul, size
from smelt.types.tensor import Shape, TensorType

_SERIALS = count()
SHORT_TABLE_BYTES = 1 << 7
"""Maximum bytes of a table whose elements are picked from registers, such as a 4-bit format's."""
SHORT_TABLE_CYCLES = 1.0
"""Cycles to pick a vector's elements from a short table."""
RECOMPUTE_CYCLES = 6.0
"""Maximum cost, in cycles per vector, of captured values that are recomputed in every call.

Reading the vector's bytes from memory takes about as long.
"""
_FORMS = {"add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "neg": "(-{})"}
"""Python text of operators on numbers."""


class Scope(Sizes):
    """Recording in progress of the function `name`; `symbol` and `input` create its arguments."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.open = True
        self.serial = next(_SERIALS)
        """A number that no other recording has."""
        self.depth = 0
        """Number of recordings around this one, whose values it may read."""
        self.is_step = False
        """Whether it is the step of a loop or a branch, which may run any number of times."""
        self.takes_all = False
        """Whether operators on values from around it are recorded here too: those of a branch."""
        self.captured: dict[Value, Value] = {}
        """Values from outside, and the inputs that stand for them."""
        self._rerecorded: dict[Value, Value] = {}
        """Values from outside that are recorded again, and their values here."""
        self._recomputed: set[Value] = set()
        """Operators from outside that were found worth recording again."""
        self.scalars: dict[Value, tuple[str, Any]] = {}
        """Arguments that are numbers: their names and values in this call."""
        self.pinned_scalars: dict[str, Any] = {}
        """Numbers whose value the recording depends on."""
        self.ranges: dict[str, tuple[int, int]] = {}
        """Ranges of numbers for which the recording is valid."""
        self.negated_sizes: dict[str, str] = {}
        """Sizes that are the negation of a number argument, with the text that computes them."""
        self.conditions: dict[str, None] = {}
        """Conditions on numbers, as Python text that is true in this call."""
        self.shape_reads: list[tuple[Origin, Shape]] = []
        """Where the function read which shape, whose sizes it may give names."""
        self.digests: dict[Value, bytes] = {}
        """Digests of captured memory that other code may write to, as of the first read."""
        self.volatile_values: dict[Value, None] = {}
        """Values computed from such memory only; they are recorded if captured.

        Every call recomputes them from the elements of the time.
        """
        values = [present_value(ref()) for ref in STATE.pending]
        self.pending_at_start = {x for x in values if x is not None}
        """Values that were pending when the recording began."""
        self.created: dict[int, weakref.ref[Any]] = {}
        """Arrays of outside values that were created during the recording, which may write to them.
        """
        self.replacements: list[weakref.ref[Any]] = []
        """Arrays that replaced NumPy's buffers under their names, by `buffer += x`."""

    def has_created(self, array: Any) -> bool:
        """Return whether this recording created an array of an outside value."""
        reference = self.created.get(id(array))
        return reference is not None and reference() is array

    def before_guard(self) -> None:
        """Raise LeakError if the recording has ended."""
        self.check_open("a size")

    def check_open(self, value: object) -> bool:
        """Return True while the recording runs; raise LeakError afterwards."""
        if not self.open:
            raise LeakError(value=str(value), function=self.name)
        return True

    def check(self, x: Value) -> None:
        """Raise LeakError for a value of another recording."""
        if x.scope is not self and x.scope is not None:
            raise LeakError(value=x.type_text, function=x.scope.name)

    def record(self, op: TensorOp, inputs: tuple[Value, ...]) -> Value:
        """Record `op` on values of this recording; others are captured as constant inputs.

        Raises LeakError if the recording has ended.
        """
        if not self.open:
            self.check_open(inputs[0].type_text if inputs else "a size")
        inner = STATE.scope
        if inner is not self and inner is not None and inner.takes_all and inner.reads(self):
            return inner.record(op, inputs)
        operands = tuple([x if x.scope is self else self.capture(x) for x in inputs])
        types = (
            [x.type for x in operands] if not self.bound else [self.type(x.type) for x in operands]
        )
        return Value(op, operands, infer(op, *types), here(), None, self)

    def _record_here(self, op: TensorOp, inputs: tuple[Value, ...]) -> Value:
        """Record `op` in this recording, also while a branch inside it is recorded."""
        inner, STATE.scope = STATE.scope, self
        try:
            return self.record(op, inputs)
        finally:
            STATE.scope = inner

    def record_typed(self, op: TensorOp, inputs: tuple[Value, ...], type: TensorType) -> Value:
        """Record `op` on values of this recording with a known result type."""
        if not self.open:
            self.check_open(inputs[0].type_text)
        inner = STATE.scope
        if inner is not self and inner is not None and inner.takes_all and inner.reads(self):
            return inner.record(op, inputs)
        return Value(op, inputs, type, here(3), None, self)

    def reads(self, scope: Scope) -> bool:
        """Return whether this recording is inside another one."""
        return False

    def input(self, label: str, type: TensorType, strides: tuple[int | None, ...] | None) -> Value:
        """Create an argument of the recorded function."""
        return Value(Input(label, type, strides), (), type, None, None, self)

    def scalar(self, label: str, value: float) -> Value:
        """Create a number argument: an input of rank 0 with a known value in this call."""
        type = intern(i64 if isinstance(value, int) else f64, ())
        node = self.input(label, type, None)
        number = len(self.scalars)
        while f"k{number}" in self.hints:  # a spec may name a size so
            number += 1
        self.scalars[node] = f"k{number}", value
        return node

    def size_of_scalar(self, node: Value) -> Index:
        """Return an integer argument as a size: a symbol that no dimension determines.

        Size symbols are at least 2, so the symbol stands for the number or its negation; 0, 1 and
        -1 become constants.
        """
        name, value = self.scalars[node]
        if abs(value) < 2 or name in self.pinned_scalars:
            self.pin_scalars(node)
            return int(value)
        symbol = name if value > 0 else f"{name}_"
        if symbol not in self.hints:
            self.check_open(node)
            self.symbol(abs(int(value)), symbol)
            if value > 0:
                self.bound_scalar(node, 2, 2**63 - 1)
            else:
                self.negated_sizes[symbol] = f"({symbol} := -{name})"
        return mul(self.canon(size(symbol)), 1 if value > 0 else -1)

    def formula_of(self, x: Node | Index | float) -> str | None:
        """Return Python source that computes a number from sizes and arguments.

        None if there is none.
        """
        if isinstance(x, (int, float)):
            return repr(x)
        if isinstance(x, Expr):
            return f"({self.source(x)})"
        op = x.op
        if x in self.scalars:
            return self.scalars[x][0]  # type: ignore[index]
        if isinstance(op, Constant):
            return number_text(op.value)
        if isinstance(op, SizeOf):
            return self.formula_of(op.expr)
        form = "float({})" if isinstance(op, Cast) and op.dtype is f64 else _FORMS.get(op.name)
        texts = [self.formula_of(i) for i in x.inputs] if form is not None else []
        return None if form is None or None in texts else form.format(*texts)

    def require(self, condition: str) -> None:
        """Make the recording valid only where `condition`, about numbers, is true."""
        self.check_open("a number")
        self.conditions[condition] = None

    def check_unwritten(self) -> None:
        """Raise ChangedError if the function wrote to captured memory that it had read.

        Calls read captured memory before they run, so they would see the elements after all writes.
        """
        for x, before in self.digests.items():
            if _digest(evaluate(x)) != before:
                raise ChangedError(
                    f"{x.type_text} was written by {self.name} after an operator had read it",
                    hint="Calls read NumPy's memory when they run: write to a copy, or use"
                    " x = sm.asarray(buffer) and x[key] = value.",
                )

    def check_replacements(self) -> None:
        """Raise LeakError if an array that replaced a NumPy buffer outlives the function.

        Calls, which record nothing, would write to neither.
        """
        if any(ref() is not None for ref in self.replacements):
            gc.collect()  # garbage cycles may hold the array
        for x in [x for ref in self.replacements if (x := ref()) is not None]:
            raise LeakError(
                f"{x.node.type_text} is kept where {self.name} found a buffer of NumPy's, by"
                " `buffer += x`, and belongs to its recording, which has ended",
                hint="Calls would write to neither: return the new value instead.",
            )

    def pin_scalars(self, node: Node) -> None:
        """Make the recording valid only for the values that the number `node` depends on."""
        self.check_open(node)
        if node in self.scalars:
            name, value = self.scalars[node]  # type: ignore[index]
            self.pinned_scalars[name] = value
        elif isinstance(node.op, SizeOf):
            self.pin(node.op.expr)
        for x in node.inputs:
            self.pin_scalars(x)

    def bound_scalar(self, node: Value, low: int, high: int) -> None:
        """Make the recording valid only for a range of the number argument `node`.

        Has no effect on computed numbers.
        """
        if node in self.scalars:
            name, _ = self.scalars[node]
            least, most = self.ranges.get(name, (low, high))
            self.ranges[name] = max(low, least), min(high, most)

    def capture(self, x: Value) -> Value:
        """Return an outside value as an input that is the same in every call.

        A number that no one else can write to becomes a constant.  Cheap operators are recorded
        again, see `_is_view_or_cast` and `_is_cheaper_recomputed`.  Raises LeakError for a value of
        another recording.
        """
        if isinstance(x.op, Constant) and not x.shared:
            return x
        if x.data is not None and not x.type.shape and not x.shared:
            return constant(x.data.item(), x.type.dtype)
        if x.scope is not None:
            raise LeakError(value=x.type_text, function=x.scope.name)
        captured = self.captured.get(x) or self._rerecorded.get(x)
        if captured is None and x in self.volatile_values:
            captured = self._record_again(x)
        if captured is None and self.is_recomputed(x):
            captured = self._rerecorded[x] = self._record_here(x.op, self._operands(x))
        if captured is None:
            label, data = f"c{len(self.captured)}", evaluate(x)
            op = Input(label, x.type, layout(data), constant=not x.shared)
            captured = Value(op, (), x.type, None, None, self)
            self.captured[x] = captured
            if x.shared:
                self._note_digest(x)
        return captured

    def outside(self, x: Value) -> None:
        """Note an operator on outside values; its result may change with their memory."""
        for i in x.inputs:
            if i.shared:  # type: ignore[attr-defined]
                self._note_digest(i)  # type: ignore[arg-type]
                self.volatile_values[x] = None
            elif i in self.volatile_values:
                self.volatile_values[x] = None

    def _note_digest(self, x: Value) -> None:
        if x not in self.digests:
            self.digests[x] = _digest(evaluate(x))

    def _record_again(self, x: Value) -> Value:
        """Record a volatile value again, after the volatile values that it depends on.

        A volatile value may change with memory that others write.
        """
        pending: list[Any] = [x]
        while pending:
            last = pending[-1]
            before = [
                i for i in last.inputs if i in self.volatile_values and i not in self._rerecorded
            ]
            if last in self._rerecorded or not before:
                pending.pop()
            if last not in self._rerecorded and not before:
                self._rerecorded[last] = self._record_here(last.op, last.inputs)
            pending += before
        return self._rerecorded[x]

    def close(self) -> None:
        """End the recording; values left pending are computed from the present elements."""
        values = [present_value(ref()) for ref in STATE.pending] if self.volatile_values else []
        if any(x in self.volatile_values for x in values if x is not None):
            flush()
        for x in self.volatile_values:
            x.inputs = x.inputs if x.data is None else ()
        self.open = False
        self.created.clear()
        self.volatile_values.clear()

    def is_recomputed(self, x: Value) -> bool:
        """Return whether capturing an outside value records it again, from smaller values."""
        return self._is_view_or_cast(x) or x in self._recomputed or self._is_cheaper_recomputed(x)

    def _is_view_or_cast(self, x: Value) -> bool:
        """Return whether a value only views or casts one private array, not computed yet.

        Capturing the array is better: it is no larger, and its type says more (8-bit weights that
        are widened before a product remain 8-bit weights).
        """
        waits = False
        while x.data is None and len(x.inputs) == 1 and (x.op.is_view or isinstance(x.op, Cast)):
            waits = waits or x in self.pending_at_start
            (x,) = x.inputs  # type: ignore[assignment]
            if x.data is not None:
                is_dense = x.data.flags.c_contiguous or dense_axis_order(x.data) is not None
                return not x.shared and (not waits or is_dense)  # a copy keeps a dense order
        return False

    def _operands(self, x: Value) -> tuple[Value, ...]:
        """Return operands for recording a value again; pending ones as of now."""
        inputs: Any = x.inputs
        if x not in self.pending_at_start:
            return inputs
        self.pending_at_start.update(i for i in inputs if i.data is None)
        return tuple([i if i.data is None else i.snapshot() for i in inputs])

    def _is_cheaper_recomputed(self, x: Value) -> bool:
        """Return whether recomputing a value costs less than reading it.

        This holds if it depends, by few elementwise operators and reads of short tables, on private
        outside values that take less memory (8-bit weights with scales remain 8-bit weights).
        """
        work, nbytes, inner = 0.0, 0, list[Value]()
        seen, pending = {x}, [x]
        while pending:
            node: Any = pending.pop()
            is_leaf = node in self.pending_at_start or node.data is not None or not node.inputs
            is_table_read = (
                isinstance(node.op, Gather) and _nbytes(node.inputs[0]) <= SHORT_TABLE_BYTES
            )
            if is_leaf or not (node.op.is_view or is_table_read or isinstance(node.op, Cast | Map)):
                if node.shared or node is x:
                    return False
                nbytes += _nbytes(node)
                continue
            cost = (
                node.op.row.cost if isinstance(node.op, Map) else SHORT_TABLE_CYCLES * is_table_read
            )
            work += cost * _count(node)
            inner.append(node)
            fresh = [i for i in node.inputs if i not in seen]
            pending += fresh
            seen.update(fresh)
        if nbytes >= _nbytes(x) or work > RECOMPUTE_CYCLES * _count(x):
            return False
        self._recomputed.update(inner)
        return True


def scope_of(x: Value, *shapes: Shape) -> Scope | None:
    """Return the recording that an operator on `x` with these sizes belongs to."""
    if x.scope is not None:
        return x.scope
    symbolic = any(not isinstance(d, int) for shape in shapes for d in shape)
    return STATE.scope if symbolic else None


def shape_of(x: Value) -> Shape:
    """Return the shape in terms of the unbound symbols."""
    return x.type.shape if x.scope is None else x.scope.shape(x.type.shape)


def _count(x: Value) -> int:
    return prod(n for n in x.type.shape if isinstance(n, int))


def _nbytes(x: Value) -> int:
    return _count(x) * x.type.dtype.itemsize


def _digest(data: Buffer) -> bytes:
    """Return a digest of the elements that detects writes."""
    if data.nbytes <= SNAPSHOT_BYTES:
        return data.tobytes()
    sha256 = fork_safe_import("hashlib").sha256  # loads OpenSSL
    digest: bytes = sha256(np.ascontiguousarray(data).view(np.uint8).data).digest()
    return digest
