"""Creation functions of the array API standard."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.frontends.array.array import Array
from smelt.frontends.array.convert import from_host


def asarray(obj: Any, /, *, dtype: Any = None) -> Array:
    return Array.of(from_host(np.asarray(obj, dtype)))
