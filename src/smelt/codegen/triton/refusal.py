"""Refuse kernels that the printer cannot express yet, and say what is missing."""

from __future__ import annotations

from typing import NoReturn

from smelt.errors import DeviceKernelError

__all__ = ["refuse"]


def refuse(kernel: str, missing: str) -> NoReturn:
    """Raise DeviceKernelError: the kernel needs `missing`, which Triton's printer lacks."""
    raise DeviceKernelError(kernel=kernel, missing=missing)
