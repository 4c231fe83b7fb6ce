"""Words by which kernels ask in long tasks whether their run was given up.

A kernel that may compute for long in one task refers to `smelt.kernel.abi.POLL_SYMBOL`, which
loaders resolve to the address of these words: the function to call with them (0 until a thread pool
exists), the key of the value that it reads of its thread, and the function that reads it. So code
is linked before there is a pool, and runs without one. The words are never freed.

>>> address() == address() > 0
True
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from smelt.packages.c_library import C_LIBRARY, function_address

_WORDS: Final = (ctypes.c_int64 * 3)()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_WORDS))


def address() -> int:
    """Return the address of the words, the same in the whole process."""
    return ctypes.addressof(_WORDS)


def bind(function: int) -> None:
    """Let kernels call the function at an address."""
    _WORDS[1], _WORDS[2] = thread_key(), function_address("pthread_getspecific")
    _WORDS[0] = function  # last: from now on kernels call it


@cache
def thread_key() -> int:
    """Return the key of a value that each thread has, 0 in a new thread."""
    key = ctypes.c_int64(0)
    if C_LIBRARY.pthread_key_create(ctypes.byref(key), None):
        raise OSError("the process has no thread-specific keys left")
    return key.value
