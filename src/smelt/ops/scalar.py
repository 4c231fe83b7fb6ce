"""Tabulate the scalar operators.  A row added here is known to every stage.

>>> SCALARS["mul"], len(SCALARS["mul"].derivative)
(mul, 2)
"""

from __future__ import annotations

from types import MappingProxyType

from smelt.ops import scalar_arithmetic, scalar_functions, scalar_logic
from smelt.ops.cast import cast, cast_reference
from smelt.ops.spec import ScalarOp

__all__ = ["SCALARS", "cast", "cast_reference", "scalar"]

SCALARS = MappingProxyType(
    {row.name: row for row in (*scalar_arithmetic.ROWS, *scalar_functions.ROWS, *scalar_logic.ROWS)}
)
"""Every scalar operator by name."""


def scalar(name: str) -> ScalarOp:
    """Return the scalar operator of that name; raise KeyError if unknown."""
    try:
        return SCALARS[name]
    except KeyError:
        raise KeyError(f"no scalar operator {name!r}; known: {', '.join(SCALARS)}") from None
