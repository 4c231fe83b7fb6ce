"""Values: the nodes that array code records, with their data once it is known.

A `Value` is a graph node that may already hold its elements.  Recording an operator makes one
Value; nothing is computed.  Types are interned and type inference is remembered for each operator
and operand types, so that recording costs a few microseconds.

>>> x = leaf(np.ones((2, 3), np.float32))
>>> record(Map("exp"), (x,)).type
TensorType(dtype=f32, shape=(2, 3))
"""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.errors import ChangedError, DonatedError
from smelt.frontends.array.layouts import Buffer, layout, lies_as, moved
from smelt.graph.ir import Node
from smelt.ops.create import Constant, Input
from smelt.ops.elementwise import Map
from smelt.ops.spec import TensorOp
from smelt.ops.view import Reshape, Stop
from smelt.origin import Origin, here
from smelt.types.dtype import DType, from_numpy
from smelt.types.tensor import Shape, TensorType, check_bytes

if TYPE_CHECKING:
    from smelt.frontends.array.scope import Scope

__all__ = [
    "Foreign",
    "Map",
    "State",
    "Value",
    "anew",
    "constant",
    "copied",
    "foreign",
    "imprint",
    "intern",
    "leaf",
    "owned",
    "record",
    "teller",
]

SNAPSHOT_BYTES = 4096
"""Foreign memory up to this size is copied for the pending operators that read it."""
_REMEMBERED = 8192


class Value(Node):
    """A graph node with its elements (`data`) if they are known and the recording it belongs to.

    `scope` is None for values outside `jit`.
    """

    __slots__ = ("data", "last", "sample", "scope")

    inputs: tuple[Node, ...]
    sample: bytes | None
    last: weakref.ref[Value] | None

    def __init__(
        self,
        op: TensorOp,
        inputs: tuple[Node, ...],
        type: TensorType,
        origin: Origin | None = None,
        data: Buffer | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.type = type
        self.origin = origin
        self.data = data
        self.scope = scope

    @property
    def told(self) -> str:
        """The type for a message, with the sizes of the call at hand: `f32[3,4]`."""
        return str(self.type if self.scope is None else self.scope.concrete(self.type))

    def buffer(self) -> Buffer | None:
        """The elements, None while pending.  Raises DonatedError and ChangedError."""
        return self.data

    def now(self) -> Buffer | None:
        """As `buffer`, for who reads what is there and not what pending results wait for."""
        return self.buffer()

    @property
    def waits(self) -> bool:
        """Whether the elements are still to be computed, outside of recordings."""
        return self.data is None and self.scope is None and not isinstance(self, Gone)

    def fail(self, error: Exception) -> None:
        """From now on reading raises `error`: there will be no elements."""
        self.give_away("")
        self.__class__ = Failed  # type: ignore[assignment]
        kept = _ERRORS[self] = copy(error)
        kept.__cause__ = error.__cause__ and _bare(error.__cause__)

    def touch(self) -> Value:
        """The operand of an operator that is recorded now and will read the elements later."""
        return self

    @property
    def shared(self) -> bool:
        """Whether somebody else may see the memory."""
        return self.__class__ is not Value

    def share(self, *, watched: bool = False) -> None:
        """From now on somebody else may write to the memory; `watched` is never copied."""
        self.part()
        if self.__class__ is Value:
            self.__class__ = Foreign  # type: ignore[assignment]
            self.sample = self.last = None
        if watched and self.__class__ is Foreign:
            self.__class__ = Watched  # type: ignore[assignment]

    @property
    def is_kept(self) -> bool:
        """Whether a recording reads the elements in this memory, and not what becomes of them."""
        found = _KEPT.get(self)
        return found is not None and found() is not None

    def kept(self) -> Value:
        """A value with the elements that there are now: in the same memory, until somebody may
        write to it."""
        found = _KEPT.get(self)
        made = None if found is None else found()
        if made is None:
            assert self.data is not None
            made = leaf(self.data)
            _KEPT[self] = weakref.ref(made)
        return made

    def part(self) -> None:
        """Somebody may write to the memory from now on: what is kept of it moves elsewhere."""
        found = _KEPT.pop(self, None)
        made = None if found is None else found()
        if made is not None and made.data is not None:
            made.data = moved(made.data)

    def give_away(self, where: str) -> None:
        """From now on reading raises DonatedError, under whatever name the value is known."""
        self.__class__ = Gone  # type: ignore[assignment]
        self.sample = where.encode()
        self.op, self.inputs, self.data = _SOURCE, (), None


class Foreign(Value):
    """A value whose memory somebody else may write to at any time.

    Pending operators read it when they run.  For operators on small memory a copy is made when
    the first of them is recorded, and again when the memory was written since.  Of large memory a
    few elements are remembered and compared, so that a change between recording and running raises
    ChangedError instead of giving an answer that depends on when it was asked for; operators
    recorded after the change read what is there then.
    """

    __slots__ = ()

    def touch(self) -> Value:
        data, last = self.data, self.last
        now = None if last is None else last()
        if data is None:
            return self
        if data.shape != self.type.shape or data.dtype != self.type.dtype.numpy:
            return self  # which will tell
        if self.sample is None and data.nbytes <= SNAPSHOT_BYTES:
            copied = self._copied(data, now)
            if copied is not None:
                return copied
        if STATE.tapes:
            if now is None or now.__class__ is not Past or _sample(data) != now.sample:
                now = self._keep(data)
                now.__class__ = Past  # type: ignore[assignment]
                now.sample = _sample(data)
            return now
        if self.sample is None or _sample(data) == self.sample:
            self.look()
            return self
        if now is None or now.__class__ is Past:
            # what was recorded before the change will say so
            now = self._keep(data)
            now.share(watched=isinstance(self, Watched))
        return now.touch()

    def _keep(self, data: Buffer) -> Value:
        """What operators read from now on, while any of them is pending."""
        known = (Reshape(self.type.shape), (self,)) if STATE.tapes else (_SOURCE, ())
        made = Value(*known, self.type, self.origin, data)
        self.last = weakref.ref(made)
        return made

    def _copied(self, data: Buffer, now: Value | None) -> Value | None:
        """A copy of what is there; None where programs could not read it as they read this."""
        known = None if now is None or now.__class__ is not Value else now.data
        if known is not None and known.tobytes() == data.tobytes():
            return now
        if data.flags.c_contiguous:
            return self._keep(data.copy())
        own = moved(data)
        return self._keep(own) if lies_as(layout(data), own) else None

    def look(self) -> None:
        """Remember a few elements, until what this thread has pending has run; for good where
        another thread may have something pending that reads them."""
        if self.data is None:
            return
        if self.sample is None:
            self.sample = _sample(self.data)
            STATE.sampled.add(self)
        elif self.sample.__class__ is bytes and self not in STATE.sampled:
            self.sample = _Lasting(self.sample)

    def seen(self) -> None:
        """What this thread had pending has run."""
        if self.sample.__class__ is bytes:
            self.sample = None

    def buffer(self) -> Buffer | None:
        return self._checked(self.sample)

    def now(self) -> Buffer | None:
        return self._checked(None)

    def _checked(self, sample: bytes | None) -> Buffer | None:
        data = self.data
        if data is not None:
            what = ""
            if data.shape != self.type.shape:
                what = "resized"
            elif data.dtype != self.type.dtype.numpy:
                what = "given another dtype"
            elif sample is not None and _sample(data) != sample:
                what = "written"
            if what:
                reader = "a recording" if sample is None else "a pending result"
                raise ChangedError(value=self.told, what=what, reader=reader)
        return data


class Watched(Foreign):
    """Foreign memory that is not to be copied, however small (`copy=False`)."""

    __slots__ = ()

    def _copied(self, data: Buffer, now: Value | None) -> None:
        return None


class Past(Foreign):
    """Foreign memory as it is while what reads it is differentiated: derivatives will read it."""

    __slots__ = ()

    def touch(self) -> Value:
        return self

    def now(self) -> Buffer | None:
        return self.buffer()

    def seen(self) -> None:
        pass


class _Lasting(bytes):
    """Elements that are remembered for good."""


class Gone(Value):
    """A value whose memory was given to a call with `donate=`; `sample` says where."""

    __slots__ = ()

    def touch(self) -> Value:
        self.buffer()
        return self

    def buffer(self) -> Buffer | None:
        raise DonatedError(value=self.told, where=(self.sample or b"").decode())


class Failed(Gone):
    """A value that could not be computed."""

    __slots__ = ()

    def buffer(self) -> Buffer | None:
        error = _ERRORS[self]
        raise copy(error) from error.__cause__


_ERRORS: weakref.WeakKeyDictionary[Value, Exception] = weakref.WeakKeyDictionary()
"""Why values have no elements."""
_KEPT: weakref.WeakKeyDictionary[Value, weakref.ref[Value]] = weakref.WeakKeyDictionary()
"""What is kept of values in the memory that they have."""
_SOURCE = Input("memory", TensorType(from_numpy(np.float32)))
"""The operator of every leaf; flushing makes a properly typed input of it."""


def _bare(error: BaseException) -> BaseException:
    """An error without tracebacks: their frames hold whatever they know."""
    told: BaseException | None = error
    while told is not None:
        told.__traceback__ = None
        told = told.__cause__ or told.__context__
    return error


def imprint(data: Buffer) -> bytes:
    """What tells whether memory was written since."""
    if data.nbytes <= SNAPSHOT_BYTES:
        return data.tobytes()
    return hashlib.sha256(np.ascontiguousarray(data).view(np.uint8).data).digest()


def _sample(data: Buffer) -> bytes:
    """A few elements spread over the array, its ends among them."""
    rows = data[:: max(1, (len(data) - 1) // 3)] if data.ndim else data
    flat = rows.reshape(-1) if rows.flags.c_contiguous else rows.flat
    step = max(1, (rows.size - 1) // 15)
    return np.asarray(flat[::step]).tobytes()


class State(threading.local):
    """What a thread is doing: the recording in progress, and the arrays still to be computed."""

    scope: Scope | None

    def __init__(self) -> None:
        self.scope = None
        self.pending: list[weakref.ref[Any]] = []
        self.due = 64
        """Length of `pending` at which it is looked through."""
        self.sampled = weakref.WeakSet[Foreign]()
        """Values of which a few elements are remembered until what is pending has run."""
        self.following = 0
        """Recordings and differentiations in progress: jitted functions that are called meanwhile
        are followed, not run."""
        self.tapes = 0
        """Differentiations in progress: what runs meanwhile keeps its operands."""
        self.kept: list[Value] = []
        """Values that ran meanwhile."""
        self.watched: set[Value] = set()
        """What is differentiated by."""


STATE = State()

_TYPES: dict[tuple[int, Shape], TensorType] = {}
# Keys hold identities; the value holds what they identify, so that none can be reused meanwhile.
_INFERRED: dict[tuple[int, ...], tuple[TensorType, TensorOp, tuple[TensorType, ...]]] = {}
_CONSTANTS: dict[tuple[type, Any, str], Value] = {}


def intern(dtype: DType, shape: Shape) -> TensorType:
    """The one TensorType with this dtype and shape (types are compared by identity here)."""
    key = (id(dtype), shape)
    found = _TYPES.get(key)
    if found is None:
        if len(_TYPES) > _REMEMBERED:
            _TYPES.clear()
        found = _TYPES[key] = check_bytes(TensorType(dtype, shape))
    return found


def infer(op: TensorOp, *types: TensorType) -> TensorType:
    """The result type of `op`, remembered.  Raises what the operator's own rule raises."""
    key = (id(op), *map(id, types))
    known = _INFERRED.get(key)
    if known is None:
        if len(_INFERRED) > _REMEMBERED:
            _INFERRED.clear()
        result = op.infer(*types)
        known = _INFERRED[key] = (intern(result.dtype, result.shape), op, types)
    return known[0]


def leaf(data: Buffer) -> Value:
    """A value that owns `data`."""
    return Value(_SOURCE, (), intern(from_numpy(data.dtype), data.shape), None, data)


_NOTHING = np.zeros((), bool)


def teller(size: int) -> Buffer:
    """An array that nobody reads, and that takes no memory: its shape tells a program a size."""
    return np.broadcast_to(_NOTHING, size)


def foreign(data: Buffer) -> Value:
    """A value that reads memory it does not own."""
    value = leaf(data)
    value.share()
    return value


def constant(number: float | int | bool, dtype: DType) -> Value:
    """A number of rank 0; equal numbers of one type share a node."""
    if number == 0 and isinstance(number, float) and math.copysign(1.0, number) < 0:
        return Value(Constant(number, dtype), (), intern(dtype, ()))
    key = (number.__class__, number, dtype.name)
    found = _CONSTANTS.get(key)
    if found is None:
        if len(_CONSTANTS) > _REMEMBERED:
            _CONSTANTS.clear()
        found = Value(Constant(number, dtype), (), intern(dtype, ()))
        _CONSTANTS[key] = found
    return found


def owned(node: Value) -> Value:
    """A node for an array: one of its own where that of a constant is every equal number's, whose
    elements nobody may write to or give away."""
    if node.op.__class__ is Constant:
        return Value(node.op, (), node.type, node.origin, scope=node.scope)
    return node


def record(op: TensorOp, inputs: tuple[Value, ...], scope: Scope | None = None) -> Value:
    """A new value: `op` applied to `inputs`, in the recording that one of them belongs to.

    `scope` names the recording where no input can (sources).  Raises ShapeError or DTypeError of
    the operator's type rule, LeakError for a value of a recording that has ended.
    """
    for x in inputs:
        if x.scope is not None:
            scope = x.scope
    if scope is not None:  # which reads what it captures in every call, as it is then
        return scope.record(op, inputs)
    if STATE.scope is None:
        for x in inputs:
            if x.__class__ is not Value:
                inputs = tuple([x if x.__class__ is Value else x.touch() for x in inputs])
                break
    made = Value(op, inputs, infer(op, *[x.type for x in inputs]), here(2))
    if STATE.scope is not None:
        STATE.scope.outside(made)
    return made


def copied(node: Value) -> Value:
    """The same elements in memory of their own; in a recording, a value that it may write."""
    scope = node.scope or STATE.scope
    if scope is not None:
        own = scope.capture(node) if node.scope is None else node
        return anew(own) if own.op.__class__ is Input else own
    data = None if STATE.tapes else node.now()
    return anew(node) if data is None else leaf(data.copy())


def anew(node: Value) -> Value:
    """A value with the same elements: an array of it is not another name of what `node` is of."""
    shape = node.type.shape if node.scope is None else node.scope.shape(node.type.shape)
    return record(Reshape(shape), (node,))


def is_differentiated(node: Node) -> bool:
    """Whether a value depends, through floats, on what is being differentiated by."""
    stack, seen = [node], set[Node]()
    while stack:
        node = stack.pop()
        if node in STATE.watched:
            return True
        if node.type.dtype.is_float and not isinstance(node.op, Stop):
            stack.extend(x for x in node.inputs if x not in seen)
            seen.update(node.inputs)
    return False
