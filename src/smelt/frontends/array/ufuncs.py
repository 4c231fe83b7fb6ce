"""NumPy's operators and ufuncs with an array of ours among their operands.

`buffer + x` is an operator of ours, as `x + buffer` is.  `buffer += x` writes to NumPy's buffer, of
which others may hold views; where x has no values yet, in a recording or a function that is
differentiated, the name gets an array of ours, if that comes to the same: the statement is an
assignment and nobody else refers to the buffer.  Any other ufunc takes values and gives NumPy's.

NumPy tells an operand the same of `buffer += x` and of `np.add(buffer, x, out=buffer)`, whose
result nobody need look at.  So the instruction that called NumPy is looked at.

>>> in_place(np.add, (a := np.ones(2), 1.0), {"out": (a,)}), in_place(np.add, (a, 1.0), {})
(True, False)
"""

from __future__ import annotations

import dis
import gc
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from smelt.frontends.array.operators import Operators
from smelt.frontends.array.value import Value

__all__ = ["IN_PLACE", "OPERATORS", "in_place", "unseen"]

OPERATORS: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.power: operator.pow,
    np.matmul: operator.matmul,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.left_shift: operator.lshift,
    np.right_shift: operator.rshift,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
}
"""The ufuncs that NumPy's operators call."""

IN_PLACE: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    np.add: operator.iadd,
    np.subtract: operator.isub,
    np.multiply: operator.imul,
    np.true_divide: operator.itruediv,
    np.floor_divide: operator.ifloordiv,
    np.remainder: operator.imod,
    np.power: operator.ipow,
    np.matmul: operator.imatmul,
    np.bitwise_and: operator.iand,
    np.bitwise_or: operator.ior,
    np.bitwise_xor: operator.ixor,
    np.left_shift: operator.ilshift,
    np.right_shift: operator.irshift,
}
"""Those that its operators in place call."""

_BINARY_OP: Final = dis.opmap["BINARY_OP"]


def in_place(ufunc: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether this may be `x op= y`: the result goes where the first operand is."""
    out = options.get("out")
    return ufunc in IN_PLACE and out is not None and len(out) == 1 and out[0] is inputs[0]


def unseen(ufunc: Any, inputs: Sequence[Any], frame: Any) -> str:
    """Why `x op= y`, told by `inputs` to an `__array_ufunc__` that `frame` has called, would not be
    the same if the name got another array; empty if it would."""
    code = frame.f_code.co_code
    at = frame.f_lasti
    if at < 0 or code[at] != _BINARY_OP:  # out= of a call, whose result nobody need look at
        return "out= in a NumPy array"
    buffer, alone = inputs[0], _alone(ufunc is np.matmul)
    held, base = sys.getrefcount(buffer), buffer.base
    if held > alone[0] and held - _readers(buffer) > alone[0]:
        return "`buffer += x`, where something else refers to NumPy's buffer too,"
    if base is not None and (type(base) is not np.ndarray or sys.getrefcount(base) > alone[1]):
        return "`buffer += x`, where NumPy's buffer is a part of another array,"
    return ""


def _readers(buffer: Any) -> int:
    """How many of our own values refer to a buffer that nobody can see: operands of what has been
    recorded, which nothing writes to as long as nobody else refers to the buffer."""
    values = [x for x in gc.get_referrers(buffer) if isinstance(x, Value)]
    return sum(not any(isinstance(a, Operators) for a in gc.get_referrers(x)) for x in values)


class _Witness:
    """Counts as `unseen` does what refers to a buffer that only a name refers to, and its base."""

    counted = 0, 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        self.counted = self.count(inputs)
        return inputs[0]

    def count(self, inputs: Sequence[Any]) -> tuple[int, int]:
        buffer = inputs[0]
        held, base = sys.getrefcount(buffer), buffer.base
        return held, sys.getrefcount(base)


@cache
def _alone(product: bool) -> tuple[int, int]:
    """How many references such a buffer and its base have, as this interpreter counts them."""

    def write(buffer: Any, witness: Any) -> None:
        if product:
            buffer @= witness
        else:
            buffer += witness

    witness = _Witness()
    write(np.ones((2, 2))[:], witness)
    return witness.counted
