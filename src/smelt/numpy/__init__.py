"""NumPy's namespace on arrays of ours: `import smelt.numpy as np`.

Names, arguments and values are NumPy's.  Functions without a kernel of ours are computed by NumPy
and counted: `np.library_calls()` lists them by line.  `ROWS` of `smelt.numpy.table` has the verdict
on every name, which docs/numpy.md prints.

>>> import smelt.numpy as np
>>> x = np.linspace(0, 1, 5)
>>> np.sin(x).shape, np.concatenate([x, x]).max(), np.add.reduce(x), np.unique([2, 1, 2])
((5,), Array(1.), Array(2.5), Array([1, 2]))
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as _np

from smelt.errors.missing import MissingAttribute, nearest_hint
from smelt.frontends.array.complex_calls import WHOLE, call_complex
from smelt.frontends.array.methods import NUMPYS
from smelt.frontends.array.promote import forget_rules
from smelt.frontends.array.tiers import tier_rows
from smelt.frontends.array.value import set_default_tier
from smelt.numpy import fft, lib, linalg
from smelt.numpy.direct import of_methods, ufunc
from smelt.numpy.library import LibraryCall, call_at_once, library_calls
from smelt.numpy.small import ndarray
from smelt.numpy.table import CLASSES, MODULES, ROWS
from smelt.python.imports import fork_safe_import

_FUNCTIONS = {name: row.function for name, row in ROWS.items()}
_METHODS = """
    all any argmax argmin argsort cumprod cumsum dot max mean min nonzero prod ptp sum take trace
"""
"""Methods with the arguments of the function of their name, which NumPy may compute as a whole."""
_COMPLEX: dict[str, Callable[..., Any]] = {
    **{name: getattr(_np, name) for name in ("add", "subtract", "multiply", "divide", "matmul")},
    **{name: getattr(_np, name) for name in ("equal", "not_equal", "negative", "abs")},
    "pow": operator.pow,
}
"""Operator on complex arrays -> NumPy's function."""
_OWN: dict[str, Any] = {
    "LibraryCall": LibraryCall,
    "fft": fft,
    "lib": lib,
    "library_calls": library_calls,
    "linalg": linalg,
    "ndarray": ndarray,
    "tiers": tier_rows,
    "ufunc": ufunc,
}
_NAMES: dict[str, Any] = {**CLASSES, **_FUNCTIONS, **_OWN}

globals().update(_NAMES)
NUMPYS.update({name: of_methods(_FUNCTIONS[name]) for name in _METHODS.split()})
WHOLE.update(
    {
        name: partial(call_at_once, name, partial(call_complex, name), function)
        for name, function in _COMPLEX.items()
    }
)
forget_rules()
set_default_tier("auto")

__all__ = sorted([*_NAMES, *MODULES.split(), "random"])  # pyright: ignore[reportUnsupportedDunderAll]
__version__ = _np.__version__


def __getattr__(name: str) -> Any:
    """Import a module on first use; raise AttributeError with the nearest name."""
    if name == "random":
        return fork_safe_import("smelt.numpy.random")
    if name in MODULES.split():
        module = globals()[name] = getattr(_np, name)
        return module
    raise MissingAttribute("module 'smelt.numpy'", _hint, name=name)


def _hint(name: str) -> str:
    if not name.startswith("_") and hasattr(_np, name):
        return f"; numpy.{name} takes np.asarray(x) of NumPy"
    return nearest_hint(name, __all__)


def __dir__() -> list[str]:
    """List NumPy's names."""
    return list(__all__)
