"""Compute recorded operators at once by NumPy, until compiling them is predicted to pay.

A `Sighting` stands for an operator on operands of given types.  It has the result's type, NumPy's
function for it, and an account: what fusion saves is the traffic of intermediate results, so when
an operator reads a result that was computed at once, the predicted time of writing and reading that
result is paid into a purse, and both operators share one purse from then on.  Once a purse holds
the predicted price of compiling a program, all operators that share it are recorded.  Operators
that will be one program are thus recorded from the same time on.  The rule reads counts and sizes,
never a clock, so equal programs take equal decisions everywhere.

>>> add = Sighting(Map("add"), TensorType(f64, (3,)), (TensorType(f64, (3,)),) * 2)
>>> compute(add, (np.ones(3), np.ones(3)))
array([2., 2., 2.])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from smelt.errors import raised_by_signal_handler
from smelt.frontends.array.memory import Buffer, Recycled, recycled
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Constant, Iota
from smelt.ops.elementwise import Cast, Map
from smelt.ops.extern import Extern
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Flip, Permute, Reshape, Slice, Stop, View
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_, f32, f64
from smelt.types.tensor import TensorType


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted times in microseconds: constants of a release, not of a machine."""

    recorded_operator: float = 8.0
    """To record an operator and find its program, beyond computing it at once."""
    fused_program: float = 14.0
    cached_byte: float = 0.0000076
    """To write or read a byte of an array below `cached_bytes`."""
    memory_byte: float = 0.00008
    cached_bytes: int = 1 << 20
    vector_bytes: int = 64
    """Bytes that a scalar operator computes in the cycles of its row."""
    cycle: float = 0.0004
    load_compiler: float = 300_000.0
    """To import the compiler, before the first program of a process."""
    compile_program: float = 10_000.0
    compile_operator: float = 1_500.0

    def move(self, nbytes: int) -> float:
        """Return the time to write or read so many bytes."""
        return nbytes * (self.cached_byte if nbytes < self.cached_bytes else self.memory_byte)


PREDICTED: Final = Predictions()
PRICE: Final = PREDICTED.compile_program + 2 * PREDICTED.compile_operator
"""Price of compiling the smallest program."""
_AT_FIRST_SIGHT: Final = 12_200.0
"""Saving from which on a result may never need memory, so that it is recorded at once."""
_COPIED_VIEW: Final = 512
"""Largest view, in elements, that is copied at once rather than derived by each reader."""
_VIEWS: Final = (Permute, Reshape, Expand, Slice, Flip, Stop)
Function = Callable[..., Any]
REQUESTED = (Warning, FloatingPointError)
"""Exceptions that the user asked for, by `np.errstate` or filters of warnings."""


class Purse:
    """What operators that read each other's results have paid for being compiled.

    Purses are joined when an operator reads a result of another operator.
    """

    __slots__ = ("is_paid", "joined", "paid")

    load: ClassVar[float] = PREDICTED.load_compiler
    """Price of importing the compiler; nothing once a program was compiled."""
    saved: ClassVar[float] = 0.0
    """What later readers of a result pay."""

    def __init__(self) -> None:
        self.paid = 0.0
        """Predicted microseconds that fusing past executions would have saved."""
        self.is_paid = False
        """Whether the operators are recorded, which they stay."""
        self.joined: Purse | None = None
        """The purse that this one has become a part of."""

    def common_purse(self) -> Purse:
        """Return the purse that this one belongs to now."""
        purse = self
        while purse.joined is not None:
            purse = purse.joined
        return purse

    def pay(self, time: float) -> None:
        """Pay predicted microseconds."""
        self.paid += time
        if self.paid >= Purse.load + PRICE:
            self.is_paid = True

    def join(self, other: Purse) -> None:
        """Make another purse a part of this one."""
        if other is not self:
            other.joined = self
            self.is_paid = self.is_paid or other.is_paid
            self.pay(other.paid)


class Account:
    """Executions at once of an operator or a function, and its purse."""

    __slots__ = ("purse", "runs", "saved")

    def __init__(self) -> None:
        self.runs = 0
        """Executions at once."""
        self.saved = 0.0
        """Predicted microseconds that fusing one execution saves, if its result is read once."""
        self.purse = Purse()

    def save(self, nbytes: int) -> None:
        """Set what an execution saves by the size of its result."""
        p = PREDICTED
        rate = p.cached_byte if nbytes < p.cached_bytes else p.memory_byte
        self.saved = max(0.0, 2 * nbytes * rate - p.recorded_operator)
        if self.saved >= _AT_FIRST_SIGHT:
            self.purse.is_paid = True

    def common_purse(self) -> Purse:
        """Return the purse of all operators that belong together now."""
        purse = self.purse
        if purse.joined is not None:
            purse = self.purse = purse.common_purse()
        return purse

    @property
    def is_recorded(self) -> bool:
        """Whether the operator waits for its readers, rather than being computed at once."""
        return self.saved > 0 and self.common_purse().is_paid


Payer = Account | Purse
"""What a result computed at once keeps: its operator's account, after the first reading its purse.
"""


class Sighting(Account):
    """An operator on operands of given types: its result's type, NumPy's function, an account."""

    __slots__ = ("dtype", "function", "is_kept", "memory", "op", "type", "types")

    def __init__(self, op: TensorOp, type: TensorType, types: tuple[TensorType, ...]) -> None:
        super().__init__()
        self.op = op
        self.type = type
        self.dtype = type.dtype.numpy
        self.types = types  # alive: keys hold their identities
        self.function: Function | None = None
        self.memory: Recycled | None = None
        """Memory for results, once one has shown that NumPy's ufunc gives this type."""
        self.is_kept = isinstance(op, _VIEWS)
        """Whether it is a view that its readers derive, so that nothing is computed."""
        if all(isinstance(n, int) for x in (type, *types) for n in x.shape):
            count: Any = math.prod(type.shape)
            self.is_kept = self.is_kept and count > _COPIED_VIEW
            self.function = _function(op, type, types)
            if not isinstance(op, _VIEWS):
                self.save(count * type.dtype.itemsize)


def pay(operands: tuple[Any, ...], reader: Account | None = None) -> None:
    """Pay for results that were computed at once, and are read now by `reader`.

    It shares their purse from now on.
    """
    for x in operands:
        account: Payer | None = getattr(x, "account", None)
        if account is not None:
            purse = account.common_purse()
            purse.pay(account.saved)
            if reader is not None:
                other = reader.common_purse()
                if other.is_paid is purse.is_paid:
                    purse.join(other)
            x.account = purse


def compute(seen: Sighting, operands: Sequence[Buffer]) -> Buffer | None:
    """Return the result in its own memory; None where compiled code computes it.

    NumPy's floating-point warnings are not suppressed.
    """
    data = result_or_view(seen, operands)
    if data is None:
        return None
    is_own = data.base is None and (flags := data.flags).c_contiguous and flags.writeable
    if not is_own or any(x is data for x in operands):
        data = np.array(data, order="C")
    if seen.function.__class__ is np.ufunc or seen.function is _power:
        memory = seen.memory = recycled(seen.type, data.nbytes)
        if memory is not None:
            memory.add(data)
    return data


def in_recycled(
    seen: Sighting, operands: Sequence[Buffer], dead: Buffer | None = None
) -> Buffer | None:
    """Return the result in memory of a dropped one or in `dead`, else None.

    NumPy has computed the operator before, so its function takes these types.
    """
    memory = seen.memory
    if memory is None or seen.function is None:
        return None
    if dead is not None:
        seen.function(*operands, dead)
        return dead
    data = memory.take()
    if data is not None:
        seen.function(*operands, data)
        memory.buffers.append(data)
    return data


def result_or_view(seen: Sighting, operands: Sequence[Buffer]) -> Buffer | None:
    """Return the result, which may share memory with an operand."""
    function = seen.function
    if function is None:
        return None
    try:
        data = function(*operands)
    except Exception as error:
        if raised_by_signal_handler(error) or isinstance(error, REQUESTED):
            raise
        return None  # compiled code raises our error, or does what NumPy cannot
    if data.__class__ is not np.ndarray:
        data = np.asarray(data)
    type = seen.type
    return data if data.shape == type.shape and data.dtype == seen.dtype else None


def view_of(x: Any) -> Buffer | None:
    """Return the elements of a computed value or a view of one, else None."""
    data = x.data
    if data is not None:
        return x.buffer()
    op = x.op
    kind = op.__class__
    if kind is Constant:
        return _number(x)
    if kind in _VIEWS and x.scope is None and len(x.inputs) == 1:
        source = view_of(x.inputs[0])
        return None if source is None else op.reference({}, source)
    return None


def _number(x: Any) -> Any:
    """Return a number as NumPy's scalar, which its value keeps."""
    try:
        return x.number
    except AttributeError:
        x.number = x.op.reference({})
        return x.number


def is_view(x: Any) -> bool:
    """Return whether a value is computed, or moves elements that are."""
    x = viewed(x)
    return x.data is not None or x.op.__class__ is Constant


def viewed(x: Any) -> Any:
    """Return the computed or pending value whose elements a value moves, itself if it computes."""
    while x.data is None and x.op.__class__ in _VIEWS and x.scope is None and len(x.inputs) == 1:
        (x,) = x.inputs
    return x


# NumPy's functions


def _function(op: TensorOp, type: TensorType, types: tuple[TensorType, ...]) -> Function | None:
    """Return NumPy's function for an operator; None if compiled code computes it."""
    if isinstance(op, Map):
        return _scalar_function(op, types)
    if isinstance(op, Cast):
        dtype = op.dtype.numpy
        is_safe = np.can_cast(types[0].dtype.numpy, dtype, "same_kind")
        return (lambda x: x.astype(dtype)) if is_safe else _reference(op)
    if isinstance(op, Reduce):
        return _reduction(op, type, types[0])
    if isinstance(op, Contract):
        return _product(op, type, types) or _reference(op)
    if isinstance(op, (Gather, Scatter)):
        return _indexed(op, types)
    if isinstance(op, (View, Iota, Scan, Extern)):
        return _reference(op)
    return None


def _reference(op: TensorOp) -> Function:
    reference = op.reference
    return lambda *operands: reference({}, *operands)


def _scalar_function(op: Map, types: tuple[TensorType, ...]) -> Function:
    """Return NumPy's own function where it computes in the operands' types."""
    function: Any = op.row.numpy
    if op.scalar == "pow":
        function = _power if types[0].dtype in (f32, f64) else function
    is_plain = all(x.dtype in (f32, f64) or x.dtype.kind in ("bool", "int", "uint") for x in types)
    plain = getattr(function, "__wrapped__", None)
    return function if plain is None or not is_plain else plain


def _power(x: Buffer, y: Any, out: Buffer | None = None) -> Any:
    """Return powers as NumPy's operator computes them, which multiplies for squares."""
    return np.square(x, out) if y.ndim == 0 and y == 2 else np.power(x, y, out)


def _reduction(op: Reduce, type: TensorType, x: TensorType) -> Function:
    """Return a reduction in the operand's type, as NumPy's."""
    row = op.row
    is_plain = type.dtype is x.dtype and (type.dtype in (f32, f64) or not type.dtype.is_float)
    if row.positional or not (is_plain or type.dtype is bool_):
        return _reference(op)
    reduce = row.reduce
    if len(op.axes) == len(x.shape):
        return lambda x: reduce(x, axis=None)
    axes = op.axes[0] if len(op.axes) == 1 else op.axes
    return lambda x: reduce(x, axis=axes)


def _product(op: Contract, type: TensorType, types: tuple[TensorType, ...]) -> Function | None:
    """Return NumPy's product of matrices and vectors; None for other contractions."""
    if any(x.dtype is not type.dtype for x in types) or type.dtype not in (f32, f64):
        return None
    left, right = ([bare_axis(t) for t in side] for side in (op.left, op.right))
    out = list(op.out)
    if None in left or None in right or len(left) > 2 or len(right) > 2 or not left or not right:
        return None
    summed = {*left} & {*right} - {*out}
    if len(summed) != 1 or sorted({*left} ^ {*right}, key=str) != sorted(out, key=str):
        return None
    (k,) = summed
    if [*[n for n in left if n != k], *[n for n in right if n != k]] != out:
        return None
    if left[-1] == right[0]:
        return np.matmul
    turns_left, turns_right = left[-1] != k, right[0] != k
    return lambda x, y: np.matmul(x.T if turns_left else x, y.T if turns_right else y)


def _indexed(op: Gather | Scatter, types: tuple[TensorType, ...]) -> Function:
    """Return a reference that raises for positions that compiled code calls out of bounds."""
    first = 2 if isinstance(op, Scatter) else 1
    axis = op.first if isinstance(op, Gather) else 0
    extents = types[0].shape[axis:]
    reference = op.reference

    def function(*operands: Buffer) -> Any:
        for at, extent in zip(operands[first:], extents, strict=False):
            if at.size and (at.min() < 0 or at.max() >= extent):
                raise IndexError
        return reference({}, *operands)

    return function
