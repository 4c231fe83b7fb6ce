"""Inspection functions and constants of the array API standard.

>>> __array_namespace_info__().default_dtypes()["real floating"]
f64
"""

from __future__ import annotations

import math
from typing import Any

from smelt.errors import ArgumentError
from smelt.frontends.array.array import check_device
from smelt.frontends.array.dtypes import isdtype
from smelt.types import dtype as types
from smelt.types.dtype import DTYPES, DType

__all__ = ["__array_api_version__", "__array_namespace_info__", "e", "inf", "nan", "newaxis", "pi"]

__array_api_version__ = "2024.12"
e = math.e
pi = math.pi
inf = math.inf
nan = math.nan
newaxis = None


class Info:
    """Inspection object of the array API standard."""

    def capabilities(self) -> dict[str, Any]:
        """Return the standard's capabilities.

        Boolean masks and data-dependent shapes work outside `jit`; any rank is allowed.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """Return the default device, "cpu"."""
        return "cpu"

    def devices(self) -> list[str]:
        """Return the devices: only "cpu"."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtypes of Python numbers, by kind.

        Raises DeviceError.
        """
        check_device(device)
        return {
            "real floating": types.f64,
            "complex floating": types.c128,
            "integral": types.i64,
            "indexing": types.i64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes that arrays may have, by name.

        bfloat16 and float16 exist as well but are not in the standard.  Raises ArgumentError for an
        unknown kind, DeviceError.
        """
        check_device(device)
        standard = {d.long: d for d in DTYPES if d.bits != 16 or not d.is_float}
        if kind is None:
            return standard
        if not isinstance(kind, (str, tuple)):
            raise ArgumentError.of("dtypes", "kind", kind, "a name or tuple of names")
        return {name: d for name, d in standard.items() if isdtype(d, kind)}


def __array_namespace_info__() -> Info:  # noqa: N807 - the standard's name
    """Return the inspection object: capabilities, devices and dtypes."""
    return Info()
