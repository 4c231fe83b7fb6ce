"""NumPy's operators and ufuncs with a smelt array among their operands.

`buffer + x` with a NumPy buffer is an operator of smelt, like `x + buffer`.  `buffer += x` writes
to NumPy's buffer, of which there may be views.  If x has no values yet (in a recording, or under
differentiation), the name is bound to a smelt array instead, provided that there is no
difference: the statement is an assignment and nothing else refers to the buffer.  Any other ufunc
gets values and returns NumPy's result.

NumPy passes an operand the same arguments for `buffer += x` and for `np.add(buffer, x,
out=buffer)`, whose result may be ignored.  So the bytecode instruction that called NumPy is
inspected.

>>> is_in_place(np.add, (a := np.ones(2), 1.0), {"out": (a,)}), is_in_place(np.add, (a, 1.0), {})
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

from smelt.frontends.array.families import ARITHMETIC, COMPARISONS
from smelt.frontends.array.operators import Operators
from smelt.frontends.array.value import Value

OPERATORS: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    np.matmul: operator.matmul,
    **{getattr(np, what): getattr(operator, f"__{name}__") for name, what in ARITHMETIC.items()},
    **{getattr(np, what): getattr(operator, name) for name, what in COMPARISONS.items()},
}
"""Ufuncs that NumPy's operators call."""

IN_PLACE: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    np.matmul: operator.imatmul,
    **{getattr(np, what): getattr(operator, f"__i{name}__") for name, what in ARITHMETIC.items()},
}
"""Ufuncs that NumPy's in-place operators call."""

_BINARY_OP: Final = dis.opmap["BINARY_OP"]


def is_in_place(ufunc: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a call may be `x op= y`: the result goes where the first operand is."""
    out = options.get("out")
    return ufunc in IN_PLACE and out is not None and len(out) == 1 and out[0] is inputs[0]


def rebind_obstacle(ufunc: Any, inputs: Sequence[Any], frame: Any) -> str:
    """Return why `x op= y` may not rebind the name, or an empty string.

    `inputs` are those of an `__array_ufunc__` call, `frame` its caller.
    """
    code = frame.f_code.co_code
    at = frame.f_lasti
    if at < 0 or code[at] != _BINARY_OP:  # out= of a call, whose result may be ignored
        return "out= in a NumPy array"
    buffer, expected = inputs[0], expected_references(ufunc is np.matmul)
    references, base = sys.getrefcount(buffer), buffer.base
    if references > expected[0] and references - _readers(buffer) > expected[0]:
        return "`buffer += x`, where something else refers to NumPy's buffer too,"
    if base is not None and (type(base) is not np.ndarray or sys.getrefcount(base) > expected[1]):
        return "`buffer += x`, where NumPy's buffer is a part of another array,"
    return ""


def _readers(buffer: Any) -> int:
    """Count the values of recorded operators that refer to a buffer no array exposes.

    Nothing writes to the buffer as long as nothing else refers to it.
    """
    values = [x for x in gc.get_referrers(buffer) if isinstance(x, Value)]
    return sum(not any(isinstance(a, Operators) for a in gc.get_referrers(x)) for x in values)


class _ReferenceCounter:
    """Counts the references to a buffer with only one name, and to its base.

    It counts them as `rebind_obstacle` does.
    """

    counted = 0, 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        self.counted = self.count(inputs)
        return inputs[0]

    def count(self, inputs: Sequence[Any]) -> tuple[int, int]:
        buffer = inputs[0]
        references, base = sys.getrefcount(buffer), buffer.base
        return references, sys.getrefcount(base)


@cache
def expected_references(product: bool) -> tuple[int, int]:
    """Return the reference counts of such a buffer and its base in this interpreter."""
    counter = _ReferenceCounter()
    buffer: Any = np.ones((2, 2))[:]  # no argument: callers may hold what they pass on
    if product:
        buffer @= counter
    else:
        buffer += counter
    return counter.counted
