"""Tabulate the scalar operators.  A row added here is known to every stage.

>>> SCALARS["mul"], len(SCALARS["mul"].derivative)
(mul, 2)
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from smelt.ops import scalar_arithmetic, scalar_functions, scalar_logic
from smelt.ops.cast import cast, cast_reference
from smelt.ops.hardware import HARDWARE
from smelt.ops.reference import is_accurate
from smelt.ops.spec import ScalarOp

__all__ = ["EXACT", "SCALARS", "cast", "cast_reference", "scalar"]

_ROWS = (*scalar_arithmetic.ROWS, *scalar_functions.ROWS, *scalar_logic.ROWS)
SCALARS = MappingProxyType({r.name: replace(r, hardware=HARDWARE.get(r.name)) for r in _ROWS})
"""Every scalar operator by name."""


EXACT = frozenset(
    r.name for r in (*scalar_arithmetic.ROWS, *scalar_logic.ROWS) if not is_accurate(r.numpy)
)
"""Scalar operators whose kernels have the bits of their references."""


def scalar(name: str) -> ScalarOp:
    """Return the scalar operator of that name; raise KeyError if unknown."""
    try:
        return SCALARS[name]
    except KeyError:
        raise KeyError(f"no scalar operator {name!r}; known: {', '.join(SCALARS)}") from None
