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

from typing import Any

import numpy as _np

from smelt.errors.missing import MissingAttribute, nearest_hint
from smelt.frontends.array.aliasing import forget_rules
from smelt.frontends.array.tiers import tier_rows
from smelt.frontends.array.value import set_default_tier
from smelt.numpy import fft, json_numbers, lib, linalg, random
from smelt.numpy.classes import CLASSES
from smelt.numpy.direct import ufunc
from smelt.numpy.library import LibraryCall, library_calls
from smelt.numpy.small import ndarray
from smelt.numpy.table import ROWS

_FUNCTIONS = {name: row.function for name, row in ROWS.items()}
_OWN: dict[str, Any] = {
    "LibraryCall": LibraryCall,
    "fft": fft,
    "lib": lib,
    "library_calls": library_calls,
    "linalg": linalg,
    "ndarray": ndarray,
    "random": random,
    "tiers": tier_rows,
    "ufunc": ufunc,
}
_NAMES: dict[str, Any] = {**CLASSES, **_FUNCTIONS, **_OWN}

globals().update(_NAMES)
forget_rules()
set_default_tier("auto")

json_numbers.install()

__all__ = sorted(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll]
__version__ = _np.__version__


def __getattr__(name: str) -> Any:
    """Raise AttributeError with the nearest name, or where NumPy has it."""
    raise MissingAttribute("module 'smelt.numpy'", _hint, name=name)


def _hint(name: str) -> str:
    if not name.startswith("_") and hasattr(_np, name):
        return f"; numpy.{name} takes np.asarray(x) of NumPy"
    return nearest_hint(name, _NAMES)


def __dir__() -> list[str]:
    """List NumPy's names."""
    return list(__all__)
