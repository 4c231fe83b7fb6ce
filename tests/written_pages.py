"""Count the bytes of an array that a program writes, in whole pages."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def untouched(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros whose pages are a file's until something writes to them."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    with tempfile.TemporaryFile() as file:
        file.truncate(nbytes)
        memory = mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY)
    return np.frombuffer(memory, dtype).reshape(shape)


def written_bytes(a: Array) -> int:
    """Bytes of the pages of an array that have been written to."""
    address, inside = a.__array_interface__["data"][0], False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            first, *rest = line.split()
            if "-" in first and not first.endswith(":"):
                low, high = (int(x, 16) for x in first.split("-"))
                inside = low <= address < high
            elif inside and first == "Private_Dirty:":
                return int(rest[0]) * 1024
    raise AssertionError("no such memory")
