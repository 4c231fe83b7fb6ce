"""Format Python numbers so that different numbers get different texts.

`repr` drops the sign of NaN, which operators such as `copysign` read.
"""

from __future__ import annotations

import math


def number_text(value: object) -> str:
    """Return `repr` of a number, with the sign of NaN; `float` reads it back.

    >>> number_text(-0.0), number_text(float("nan")), number_text(float("-nan"))
    ('-0.0', 'nan', '-nan')
    """
    if isinstance(value, float) and math.isnan(value) and math.copysign(1.0, value) < 0:
        return "-nan"
    return repr(value)
