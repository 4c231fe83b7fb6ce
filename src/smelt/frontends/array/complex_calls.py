"""Pass calls with complex operands to functions that compute with real and imaginary parts.

Functions of real arrays find out that an operand is complex where they would read its value, which
raises `ComplexOperand`; `takes_complex` catches it.  Calls with real operands so cost nothing more.

>>> [name for name in ("exp", "maximum") if refusal(name)]
['maximum']
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from smelt.errors import DTypeError, UnsupportedError
from smelt.python.imports import fork_safe_import

P = ParamSpec("P")
R = TypeVar("R")

WHOLE: Final[dict[str, Callable[..., Any]]] = {}
"""Function -> NumPy's for whole arrays, which may return NotImplemented; `smelt.numpy` sets it."""

_ORDERED: Final = """
    less less_equal greater greater_equal maximum minimum clip max min argmax argmin sort argsort
    searchsorted floor_divide remainder top_k median quantile percentile ptp
"""
"""Functions that need an order of the numbers, which complex ones do not have."""
_REAL: Final = """
    floor ceil trunc atan2 copysign hypot logaddexp nextafter signbit bitwise_and bitwise_or
    bitwise_xor bitwise_invert bitwise_left_shift bitwise_right_shift logical_and logical_or
    logical_xor logical_not
"""
"""Functions that the standard defines for other dtypes only."""


@cache
def complex_functions() -> dict[str, Callable[..., Any]]:
    """Return function -> the one for complex operands, with the same parameters.

    Most programs have no complex arrays: their functions are imported on first use.
    """
    module = fork_safe_import("smelt.frontends.array.complex_functions")
    return cast("dict[str, Callable[..., Any]]", module.COMPLEX)


class ComplexOperand(UnsupportedError):
    """Complex operand of a function that computes with real numbers."""


def refusal(name: str) -> str:
    """Return why a function takes no complex numbers, empty if nothing speaks against it."""
    if name in _ORDERED.split():
        return "complex numbers have no order"
    return "it is not defined for complex numbers" if name in _REAL.split() else ""


def call_complex(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function with complex operands.

    Raises DTypeError where complex numbers have no such function, UnsupportedError where it is
    missing.
    """
    function = complex_functions().get(name)
    if function is not None:
        return function(*args, **kwargs)
    reason = refusal(name)
    if reason:
        raise DTypeError(f"{name}: {reason}", hint="Use abs(x), x.real or x.imag.")
    raise UnsupportedError(f"{name} of complex numbers")


def call_whole(name: str, *args: Any) -> Any:
    """Call a function at once by NumPy if that is possible, else as `call_complex` does."""
    function = WHOLE.get(name)
    result = NotImplemented if function is None else function(args, {})
    return call_complex(name, *args) if result is NotImplemented else result


def takes_complex(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function to pass complex operands to the entry of its name in `complex_functions`."""
    name = function.__name__

    @wraps(function)
    def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ComplexOperand:
            pass
        return call_complex(name, *args, **kwargs)

    return dispatch
