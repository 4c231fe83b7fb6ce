"""Values: the graph nodes that array code records, with their elements once computed.

Recording an operator creates one `Value` and computes nothing.  Types are interned, and results of
type inference cached by operator and operand types, so recording takes a few microseconds.

A value may read memory that other code can write to (`Foreign`).  What such a write means for
operators that are pending is defined there.

>>> from smelt.ops.elementwise import Map
>>> x = leaf(np.ones((2, 3), np.float32))
>>> record(Map("exp"), (x,)).type
TensorType(dtype=f32, shape=(2, 3))
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.errors import ChangedError, DonatedError
from smelt.frontends.array.at_once import Payer, Sighting, compute, in_recycled, pay, view_of
from smelt.frontends.array.loops import Loop
from smelt.frontends.array.memory import (
    Buffer,
    copy_in_order,
    has_same_bits,
    is_recycled,
    keep_above,
    layout,
    matches_layout,
    release,
)
from smelt.frontends.array.structure import (
    STRUCTURES,
    Epoch,
    Epochs,
    applied,
    end_epochs,
    structure_of,
)
from smelt.graph.ir import Node
from smelt.knobs import TIERS
from smelt.ops.create import Constant, Input
from smelt.ops.spec import TensorOp
from smelt.ops.view import Reshape, Stop
from smelt.python.origin import Origin, here
from smelt.types.dtype import DType, counterpart, from_numpy
from smelt.types.tensor import Shape, TensorType, check_bytes

if TYPE_CHECKING:
    from smelt.frontends.array.scope import Scope

SNAPSHOT_BYTES = 4096
"""Largest foreign memory, in bytes, that is copied for the pending operators that read it."""
_CACHE_LIMIT = 8192
"""Maximum entries of each cache in this module."""


class Value(Node):
    """Graph node with its elements (`data`), if known, and the recording it belongs to.

    `scope` is None for values outside `jit`.  `sample` and `last` are used by `Foreign` only: a few
    remembered elements, and the value that operators read at present.
    """

    __slots__ = ("account", "data", "last", "number", "sample", "scope", "structure")

    inputs: tuple[Node, ...]
    account: Payer | None
    """What pays when an operator reads a result computed at once."""
    structure: tuple[Epoch | None, Any]
    """An epoch, and the `Structure` in it: together, since another thread may replace both."""
    number: Buffer
    """Element of a constant, once it was an operand of NumPy's functions."""
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
        self.account = None
        self.structure = _NO_STRUCTURE

    def __getattr__(self, name: str) -> Any:
        """Return what a value that native code made has not: a structure, an account."""
        if name == "structure":
            return _NO_STRUCTURE
        if name == "account":
            return None
        raise AttributeError(name)

    @property
    def type_text(self) -> str:
        """Type for messages, with the sizes of the call that is recorded: `f32[3,4]`."""
        return str(self.type if self.scope is None else self.scope.concrete(self.type))

    def buffer(self) -> Buffer | None:
        """Return the elements, None while pending.

        Raises DonatedError, and ChangedError if memory was written while operators were to read it.
        """
        return self.data

    def current_buffer(self) -> Buffer | None:
        """Return the present elements, even if pending operators expected others."""
        return self.buffer()

    @property
    def is_pending(self) -> bool:
        """Whether the elements are still to be computed, outside of recordings."""
        return self.data is None and self.scope is None and not isinstance(self, Donated)

    def fail(self, error: Exception) -> None:
        """Make reading raise `error` from now on: there will be no elements."""
        self.invalidate("")
        self.__class__ = Failed  # type: ignore[assignment]
        stored = _ERRORS[self] = copy(error)
        stored.__cause__ = error.__cause__ and _without_tracebacks(error.__cause__)

    def set_elements(self, data: Buffer) -> None:
        """Make a pending value one that has elements."""
        self.data = data
        end_epochs()  # before operands are dropped, whose memory may be written then
        self.inputs = ()

    def as_operand(self) -> Value:
        """Return the operand for an operator that is recorded now and reads the elements later."""
        return self

    @property
    def shared(self) -> bool:
        """Whether other code may see the memory."""
        return self.__class__ is not Value

    def share(self, *, copied: bool = False) -> None:
        """Declare that other code may write to the memory.

        `copied` memory has the elements of its time for the operators that read it.
        """
        self.move_snapshot()
        if self.data is not None:
            release(self.type, self.data)
        if self.__class__ is Value:
            self.__class__ = Foreign  # type: ignore[assignment]
            self.sample = self.last = None
        if copied and self.__class__ is Foreign:
            self.__class__ = CopiedOperand  # type: ignore[assignment]

    @property
    def has_snapshot(self) -> bool:
        """Whether a recording reads the present elements in this memory (see `retained`)."""
        reference = _SNAPSHOTS.get(self)
        return reference is not None and reference() is not None

    def snapshot(self) -> Value:
        """Return a value of the present elements, copied only before they may be written.

        It shares the memory until then (copy-on-write).
        """
        reference = _SNAPSHOTS.get(self)
        snapshot = None if reference is None else reference()
        if snapshot is None:
            assert self.data is not None
            snapshot = leaf(self.data)
            _SNAPSHOTS[self] = weakref.ref(snapshot)
        return snapshot

    def move_snapshot(self) -> None:
        """Move the snapshot, if any, to other memory: this memory may be written from now on."""
        reference = _SNAPSHOTS.pop(self, None)
        snapshot = None if reference is None else reference()
        if snapshot is not None and snapshot.data is not None:
            snapshot.data = copy_in_order(snapshot.data)

    def invalidate(self, where: str) -> None:
        """Make reading raise DonatedError from now on, whatever names the value has."""
        self.__class__ = Donated  # type: ignore[assignment]
        self.sample = where.encode()
        self.op, self.inputs, self.data = _SOURCE, (), None
        end_epochs()


class Foreign(Value):
    """Value whose memory other code may write to at any time.

    Pending operators read it when they run.  Memory of up to `copied_bytes` is copied when the
    first of them is recorded, and again if it was written since.  For larger memory a few elements
    are remembered and compared, so that a write between recording and running raises ChangedError;
    otherwise the result would depend on the time of reading.  Operators recorded after the write
    read what is there then.
    """

    __slots__ = ()
    copied_bytes: ClassVar[int] = SNAPSHOT_BYTES

    def as_operand(self) -> Value:
        data, last = self.data, self.last
        now = None if last is None else last()
        if data is None:
            return self
        if data.shape != self.type.shape or data.dtype != self.type.dtype.numpy:
            return self  # reading it will raise ChangedError
        if self.sample is None and data.nbytes <= self.copied_bytes:
            copied = self._copied(data, now)
            if copied is not None:
                return copied
        if STATE.tapes:
            if now is None or now.__class__ is not ForeignSnapshot or _sample(data) != now.sample:
                now = self._new_version(data)
                now.__class__ = ForeignSnapshot  # type: ignore[assignment]
                now.sample = _sample(data)
            return now
        if self.sample is None or _sample(data) == self.sample:
            self.remember_sample()
            return self
        if now is None or now.__class__ is ForeignSnapshot:
            # operators recorded before the change will raise ChangedError
            now = self._new_version(data)
            now.share()
        return now.as_operand()

    def _new_version(self, data: Buffer) -> Value:
        """Create the value that operators read from now on, as long as any is pending."""
        definition = (Reshape(self.type.shape), (self,)) if STATE.tapes else (_SOURCE, ())
        version = Value(*definition, self.type, self.origin, data)
        self.last = weakref.ref(version)
        return version

    def _copied(self, data: Buffer, now: Value | None) -> Value | None:
        """Return a copy of the elements; None if it could not have the same strides."""
        previous = None if now is None or now.__class__ is not Value else now.data
        if previous is not None and has_same_bits(previous, data):
            return now
        if data.flags.c_contiguous:
            return self._new_version(data.copy())
        copy_ = copy_in_order(data)
        return self._new_version(copy_) if matches_layout(layout(data), copy_) else None

    def remember_sample(self) -> None:
        """Remember a few elements until this thread's pending operators have run.

        They are remembered permanently if another thread may have pending operators that read them.
        """
        if self.data is None:
            return
        if self.sample is None:
            self.sample = _sample(self.data)
            STATE.sampled.add(self)
        elif self.sample.__class__ is bytes and self not in STATE.sampled:
            self.sample = _PermanentSample(self.sample)

    def forget_sample(self) -> None:
        """Forget the remembered elements: this thread's pending operators have run."""
        if self.sample.__class__ is bytes:
            self.sample = None

    def buffer(self) -> Buffer | None:
        return self._check_unchanged(self.sample)

    def current_buffer(self) -> Buffer | None:
        return self._check_unchanged(None)

    def _check_unchanged(self, sample: bytes | None) -> Buffer | None:
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
                raise ChangedError(value=self.type_text, what=what, reader=reader)
        return data


class CopiedOperand(Foreign):
    """Foreign memory by NumPy's rules: what is recorded has its elements at that time.

    Memory that nobody else refers to any more is not copied, and not foreign any more.
    """

    __slots__ = ()
    copied_bytes = sys.maxsize

    def as_operand(self) -> Value:
        if self.is_alone():
            self.__class__ = Value  # type: ignore[assignment]
            return self
        return super().as_operand()

    def is_alone(self) -> bool:
        """Return whether nothing else refers to the memory, so that nobody can write to it."""
        if self.data is None or _counts(self)[1] != _ALONE or STATE.tapes:
            return False
        data = self.data
        return data.base is None and data.flags.owndata and not weakref.getweakrefcount(data)

    def _copied(self, data: Buffer, now: Value | None) -> Value:
        return super()._copied(data, now) or self._new_version(copy_in_order(data))


class ForeignSnapshot(Foreign):
    """Foreign memory as it was during differentiation; derivatives will read it."""

    __slots__ = ()

    def as_operand(self) -> Value:
        return self

    def current_buffer(self) -> Buffer | None:
        return self.buffer()

    def forget_sample(self) -> None:
        pass


class _PermanentSample(bytes):
    """Elements that are remembered permanently."""


class Donated(Value):
    """Value whose memory was donated to a call; `sample` holds the place of the call."""

    __slots__ = ()

    def as_operand(self) -> Value:
        self.buffer()
        return self

    def buffer(self) -> Buffer | None:
        raise DonatedError(value=self.type_text, where=(self.sample or b"").decode())


class Failed(Donated):
    """Value that could not be computed; reading raises the error."""

    __slots__ = ()

    def buffer(self) -> Buffer | None:
        error = _ERRORS[self]
        raise copy(error) from error.__cause__


_ERRORS: weakref.WeakKeyDictionary[Value, Exception] = weakref.WeakKeyDictionary()
"""Errors of values that failed."""
_SNAPSHOTS: weakref.WeakKeyDictionary[Value, weakref.ref[Value]] = weakref.WeakKeyDictionary()
"""Snapshots of values that share their memory, see `Value.retained`."""
RANGES: weakref.WeakKeyDictionary[Value, tuple[int, int]] = weakref.WeakKeyDictionary()
"""Smallest and largest element of values whose memory no other code may write to."""
_SOURCE = Input("memory", TensorType(from_numpy(np.float32)))
"""Operator of every leaf; compilation replaces it by an input of the right type."""


def _without_tracebacks(error: BaseException) -> BaseException:
    """Remove the tracebacks of an error and its causes: their frames keep objects alive."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


def _sample(data: Buffer) -> bytes:
    """Return the bytes of a few elements, spread over the array and including its ends."""
    rows = data[:: max(1, (len(data) - 1) // 3)] if data.ndim else data
    flat = rows.reshape(-1) if rows.flags.c_contiguous else rows.flat
    step = max(1, (rows.size - 1) // 15)
    return np.asarray(flat[::step]).tobytes()


class State(threading.local):
    """State of a thread: the recording in progress and the arrays still to be computed."""

    scope: Scope | None
    default_tier: ClassVar[str] = "fused"
    """Who computes operators outside of recordings, where `SMELT_TIERS` does not say."""
    small_elements: ClassVar[int] = 0
    """Size, in elements of float64, of the largest result that NumPy's users get as NumPy's own."""

    def __init__(self) -> None:
        self.scope = None
        self.epochs = Epochs()
        self.pending: list[weakref.ref[Any]] = []
        self.review_at = 64
        """Length of `pending` at which it is reviewed, see `evaluate_pending.flush_if_many`."""
        self.trail: list[Origin | None] = []
        """Origins of the arrays recorded lately."""
        self.trail_start = 0
        """Number of them recorded before pending operators were computed last."""
        self.loop: tuple[Loop, int] | None = None
        """The loop that the program is in, if known, and the iterations computed at once."""
        self.cut_at: Any = None
        """Instruction after which the pending operators of a loop were computed last."""
        self.cut_from: Any = None
        """Instruction that was first looked at since then."""
        self.cut_by = 0
        """Length of `pending` at which it is computed wherever the program is; 0 for none."""
        self.sampled = weakref.WeakSet[Foreign]()
        """Values with a few remembered elements, until the pending operators have run."""
        self.deferred = weakref.WeakSet[Value]()
        """Pending values that could not be computed, and wait until they are read."""
        self.passed = weakref.WeakSet[Value]()
        """Pending values that small ones were computed from without storing them."""
        self.following = 0
        """Number of recordings and differentiations in progress.

        Jitted functions that are called meanwhile become part of them instead of running.
        """
        self.tapes = 0
        """Number of differentiations in progress; values computed meanwhile keep their operands."""
        self.tracing = 0
        """Number of functions in progress whose operators are recorded to be repeated."""
        self.rules_read = 0
        """Number of times that a result's dtype depended on the rules of the user's module."""
        self.retained: list[Value] = []
        """Values computed during differentiation."""
        self.differentiation_inputs: set[Value] = set()
        """Values that are differentiated by."""


STATE = State()
RECORDINGS: list[None] = []
"""An item for each recording and differentiation in progress in any thread."""


def follow(change: int) -> None:
    """Count a recording or differentiation of this thread that begins (1) or ends (-1)."""
    STATE.following += change
    if change > 0:
        RECORDINGS.append(None)
    else:
        RECORDINGS.pop()


_TYPES: dict[tuple[int, Shape], TensorType] = {}
# Keys hold identities; entries keep the objects alive, so that no identity can be reused.
_SIGHTINGS: dict[tuple[int, ...], Sighting] = {}
_OPERATORS: dict[TensorOp, TensorOp] = {}
"""One of equal operators, whose identity is in keys."""
_CONSTANTS: dict[tuple[type, Any, str], Value] = {}
_CONSTANTS_LIMIT = 1024
"""Maximum shared constants, fewer than entries elsewhere: programs that go through many numbers
reach any limit."""


_NO_STRUCTURE = (None, None)


def intern(dtype: DType, shape: Shape) -> TensorType:
    """Return the unique TensorType of this dtype and shape; types are compared by identity."""
    key = (id(dtype), shape)
    type_ = _TYPES.get(key)
    if type_ is None:
        if len(_TYPES) > _CACHE_LIMIT:
            _TYPES.clear()
        type_ = _TYPES[key] = check_bytes(TensorType(dtype, shape))
    return type_


def infer(op: TensorOp, *types: TensorType) -> TensorType:
    """Return the result type of `op`, from a cache.

    Raises the errors of the operator's type rule.
    """
    return sighting(op, types).type


def sighting(op: TensorOp, types: tuple[TensorType, ...]) -> Sighting:
    """Return what is known of an operator on operands of these types, from a cache.

    Raises the errors of the operator's type rule.
    """
    seen = _SIGHTINGS.get((id(op), *map(id, types)))
    if seen is None:
        if len(_SIGHTINGS) > _CACHE_LIMIT or len(_OPERATORS) > _CACHE_LIMIT:
            _SIGHTINGS.clear()
            _OPERATORS.clear()
        op = _OPERATORS.setdefault(op, op)
        key = (id(op), *map(id, types))
        seen = _SIGHTINGS.get(key)
        if seen is None:
            result = op.infer(*types)
            seen = _SIGHTINGS[key] = Sighting(op, intern(result.dtype, result.shape), types)
    return seen


def sightings() -> list[Sighting]:
    """Return what is known of operators in this process."""
    return list(_SIGHTINGS.values())


def apply(seen: Sighting, inputs: tuple[Any, ...], depth: int = 2) -> Value:
    """Compute an operator on values outside of recordings at once, or record it.

    `SMELT_TIERS` decides, and the operator's account; `depth` is that of the caller's frame.
    """
    mode = TIERS.get()
    state = STATE
    if mode == "default":
        mode = state.default_tier
    if mode != "fused" and state.scope is None and not (state.tapes or state.tracing):
        result = _computed(seen, inputs, mode == "numpy")
        if result is not None:
            return result
    for x in inputs:
        if x.__class__ is not Value:
            inputs = tuple([x if x.__class__ is Value else x.as_operand() for x in inputs])
            break
    return recorded_value(seen, inputs, here(depth))


def recorded_value(seen: Sighting, inputs: tuple[Any, ...], origin: Origin) -> Value:
    """Return the pending value of an operator outside of recordings, with its structure."""
    value = Value(seen.op, inputs, seen.type, origin)
    epoch = STATE.epochs.current
    key: tuple[Any, ...]
    if len(inputs) == 2:  # without a list: this is the time that recording takes
        x, y = inputs
        key = (
            seen,
            a[1] if (a := x.structure)[0] is epoch else structure_of(x, epoch),
            b[1] if (b := y.structure)[0] is epoch else structure_of(y, epoch),
        )
    else:
        key = (seen, *[structure_of(x, epoch) for x in inputs])
    structure = STRUCTURES.get(key)
    if structure is None:
        if None in key:
            return value  # it gets one at the flush
        structure = applied(key)
    value.structure = (epoch, structure)
    return value


def tier() -> str:
    """Return who computes operators outside of recordings: "fused", "auto" or "numpy"."""
    mode = TIERS.get()
    return STATE.default_tier if mode == "default" else mode


def set_default_tier(tier: str) -> None:
    """Set who computes operators by default, in all threads."""
    State.default_tier = tier


def set_small_elements(elements: int) -> None:
    """Set the size of the largest result that is NumPy's own, in all threads."""
    State.small_elements = elements
    keep_above(8 * elements)


def is_at_once() -> bool:
    """Return whether operators may be computed as they are called."""
    state = STATE
    if state.scope is not None or state.tapes or state.tracing:
        return False
    mode = TIERS.get()
    return (state.default_tier if mode == "default" else mode) != "fused"


def recorded(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function whose operators are recorded, even where they could be computed at once."""
    STATE.tracing += 1
    try:
        return function(*args, **options)
    finally:
        STATE.tracing -= 1


def _computed(seen: Sighting, inputs: tuple[Any, ...], is_forced: bool) -> Value | None:
    """Return an operator's result if NumPy computes it now, else None."""
    if seen.function is None or seen.is_kept:
        return None
    if seen.is_recorded and not is_forced and not _copies_more(seen, inputs):
        pay(inputs, seen)
        return None
    operands: list[Any] = []
    for x in inputs:
        data = x.data
        if data is None:
            data = view_of(x)
            if data is None:
                return None
        elif x.__class__ is not Value:
            data = x.current_buffer()
        operands.append(data)
    data = None if seen.memory is None else in_recycled(seen, operands)
    if data is None:
        data = compute(seen, operands)
        if data is None:
            return None
    seen.runs += 1
    pay(inputs, seen)
    result = Value(seen.op, (), seen.type, None, data)
    if seen.saved:
        result.account = seen
    return result


def _copies_more(seen: Sighting, inputs: tuple[Any, ...]) -> bool:
    """Return whether recording copies as much foreign memory as fusion would not write."""
    copied = 0
    for x in inputs:
        if x.__class__ is CopiedOperand and not x.is_alone():
            copied += x.data.nbytes
    nbytes: Any = seen.type.nbytes
    return copied > 0 and copied >= nbytes


def computed_into(seen: Sighting, inputs: tuple[Value, Value], is_needed: bool) -> bool:
    """Compute an operator into its first operand's elements; return whether NumPy does that."""
    function: Any = seen.function
    if function.__class__ is not np.ufunc or (
        not is_needed and seen.is_recorded and tier() != "numpy"
    ):
        return False
    operands = [view_of(x) if x.data is None else x.current_buffer() for x in inputs]
    if operands[1] is None:
        return False
    function(*operands, operands[0])
    seen.runs += 1
    pay(inputs, seen)
    if seen.saved:
        inputs[0].account = seen
    return True


def present_value(array: Any) -> Value | None:
    """Return the value of an array; None for a view without one at present."""
    try:
        return object.__getattribute__(array, "node")
    except AttributeError:
        return None


def leaf(data: Buffer) -> Value:
    """Return a value that owns `data`."""
    dtype = counterpart(data.dtype) or from_numpy(data.dtype)
    return Value(_SOURCE, (), intern(dtype, data.shape), None, data)


def private_data(node: Value, holders: int) -> Buffer | None:
    """Return the elements if nobody but `holders` references to the value can see a write."""
    if node.__class__ is not Value or node.data is None:
        return None
    of_value, of_data = _counts(node)
    data = node.data
    others = of_data - _ALONE
    if of_value > holders + _forwarded(object()) or others > 1:
        return None
    if others == 1 and not is_recycled(node.type, data):
        return None
    if data.base is not None or not data.flags.writeable:
        return None
    if RANGES:
        RANGES.pop(node, None)  # the caller may write
    return data


def has_other_names(node: Value, holders: int) -> bool:
    """Return whether more than `holders` refer to a value, as other arrays with its elements."""
    return _counts(node)[0] > holders + _forwarded(object())


def _counts(node: Value) -> tuple[int, int]:
    data = node.data
    return sys.getrefcount(node), sys.getrefcount(data)


def _forwarded(x: object) -> int:
    """Return the references that counting takes now: twice as many under torch.compile."""
    return _counted(x)


def _counted(x: object) -> int:
    return sys.getrefcount(x)


_ALONE = _counts(Value(_SOURCE, (), intern(from_numpy(np.float64), (1,)), None, np.empty(1)))[1]
"""References to elements that only a value holds, while they are counted."""
_NOTHING = np.zeros((), bool)


def size_carrier(size: int) -> Buffer:
    """Return an array of the given length that takes no memory.

    It passes a size to a program by its shape; its elements are never read.
    """
    return np.broadcast_to(_NOTHING, size)


def foreign(data: Buffer, *, copied: bool = False) -> Value:
    """Return a value that reads memory it does not own, or `copied` (see `Value.share`)."""
    value = leaf(data)
    value.share(copied=copied)
    return value


def constant(number: float | int | bool, dtype: DType) -> Value:
    """Return a number as a value of rank 0.

    Equal numbers of one type share a node.
    """
    if number == 0 and isinstance(number, float) and math.copysign(1.0, number) < 0:
        return Value(Constant(number, dtype), (), intern(dtype, ()))
    key = (number.__class__, number, dtype.name)
    node = _CONSTANTS.get(key)
    if node is None:
        if len(_CONSTANTS) > _CONSTANTS_LIMIT:
            _CONSTANTS.clear()
        node = Value(Constant(number, dtype), (), intern(dtype, ()))
        _CONSTANTS[key] = node
    return node


def unshared_node(node: Value) -> Value:
    """Return a node that an array may own: a fresh one for constants, which are shared.

    The elements of a shared constant may not be written or donated.
    """
    if node.op.__class__ is Constant:
        return Value(node.op, (), node.type, node.origin, scope=node.scope)
    return node


def record(op: TensorOp, inputs: tuple[Value, ...], scope: Scope | None = None) -> Value:
    """Record `op` applied to `inputs`, in the recording that one of them belongs to.

    `scope` names the recording if no input can (sources).  Raises ShapeError or DTypeError of the
    operator's type rule, LeakError for a value of a recording that has ended.
    """
    inner: Scope | None = None
    for x in inputs:
        if x.scope is not None and (inner is None or x.scope.depth > inner.depth):
            inner = x.scope
    scope = inner or scope
    if scope is not None:  # a recording reads captured memory in every call, so no `as_operand`
        return scope.record(op, inputs)
    seen = sighting(op, tuple([x.type for x in inputs]))
    if STATE.scope is None:
        return apply(seen, inputs, 3)
    result = Value(op, inputs, seen.type, here(2))
    STATE.scope.outside(result)
    return result


def copied(node: Value) -> Value:
    """Return a copy of a value, in memory of its own.

    In a recording, it is a value that may be written.
    """
    scope = node.scope or STATE.scope
    if scope is not None:
        captured = scope.capture(node) if node.scope is None else node
        return identity_copy(captured) if captured.op.__class__ is Input else captured
    data = None if STATE.tapes else node.current_buffer()
    return identity_copy(node) if data is None else leaf(data.copy())


def identity_copy(node: Value) -> Value:
    """Return a value with the same elements that is not another name of `node`."""
    shape = node.type.shape if node.scope is None else node.scope.shape(node.type.shape)
    return record(Reshape(shape), (node,))


def is_differentiated(node: Node) -> bool:
    """Return whether a value depends, through floats, on an input of a differentiation."""
    stack, seen = [node], set[Node]()
    while stack:
        node = stack.pop()
        if node in STATE.differentiation_inputs:
            return True
        if node.type.dtype.is_float and not isinstance(node.op, Stop):
            stack.extend(x for x in node.inputs if x not in seen)
            seen.update(node.inputs)
    return False
