"""Functions of the C library in this process, which memory and threads are built on.

The package imports this module before any that needs such functions: a system without them fails
here, with an error that says so, and not later with one that names a detail.

>>> C_LIBRARY.getpid() > 0
True
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Final

from smelt.errors import UnsupportedSystemError
from smelt.python.origin import UNKNOWN

_REQUIRED: Final = (
    *("mmap", "munmap", "madvise", "aligned_alloc", "free"),
    *("clock_gettime", "syscall", "sched_yield", "sigfillset"),
    *("pthread_attr_init", "pthread_attr_setstacksize", "pthread_attr_setdetachstate"),
    *("pthread_create", "pthread_sigmask", "pthread_mutex_init", "pthread_mutex_lock"),
    *("pthread_mutex_unlock", "pthread_cond_init", "pthread_cond_wait", "pthread_cond_broadcast"),
    *("pthread_key_create", "pthread_getspecific", "pthread_setspecific", "pthread_self"),
)
"""Functions without which nothing can run; without futexes, threads sleep on a condition."""


@cache
def open_c_library() -> ctypes.CDLL:
    """Return the functions of this process's C library.

    Raises UnsupportedSystemError if the system does not offer them by name (Windows), or lacks one.
    """
    try:
        library = ctypes.CDLL(None)
    except (TypeError, OSError):
        raise _unsupported("functions of the C library by name, `ctypes.CDLL(None)`") from None
    absent = [name for name in _REQUIRED if not hasattr(library, name)]
    if absent:
        raise _unsupported(f"{', '.join(absent)} in the C library")
    return library


def _unsupported(missing: str) -> UnsupportedSystemError:
    return UnsupportedSystemError(system=sys.platform, missing=missing, origin=UNKNOWN)


C_LIBRARY: Final = open_c_library()
"""The C library of this process."""


def function_address(name: str) -> int:
    """Return the address of a function of this process, 0 if there is none."""
    function = getattr(C_LIBRARY, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0
