"""NumPy's operators and ufuncs with an array of ours among their operands.

`buffer + x` is an operator of ours, as `x + buffer` is.  `buffer += x` writes to NumPy's buffer, of
which others may hold views; only where x has no values yet, in a recording or a function that is
differentiated, the name gets an array of ours.  Any other ufunc takes values and gives NumPy's.

>>> inplace(np.add, (a := np.ones(2), 1.0), {"out": (a,)}), inplace(np.add, (a, 1.0), {})
(True, False)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

__all__ = ["OPERATORS", "inplace"]

OPERATORS: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul,
    np.true_divide: operator.truediv, np.floor_divide: operator.floordiv,
    np.remainder: operator.mod, np.power: operator.pow, np.matmul: operator.matmul,
    np.bitwise_and: operator.and_, np.bitwise_or: operator.or_, np.bitwise_xor: operator.xor,
    np.left_shift: operator.lshift, np.right_shift: operator.rshift,
    np.equal: operator.eq, np.not_equal: operator.ne, np.less: operator.lt,
    np.less_equal: operator.le, np.greater: operator.gt, np.greater_equal: operator.ge,
}  # fmt: skip
"""The ufuncs that NumPy's operators call."""


def inplace(ufunc: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether this may be `x op= y`: the result goes where the first operand is."""
    out = options.get("out")
    return ufunc in OPERATORS and out is not None and len(out) == 1 and out[0] is inputs[0]
