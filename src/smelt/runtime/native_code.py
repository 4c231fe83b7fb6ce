"""Load the thread pool's native loop and bind its entry points.

>>> native_code().helper > 0
True
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from smelt.runtime import native, poll
from smelt.runtime.loader import Loaded, load
from smelt.runtime.native_object import native_object


class NativeCode:
    """Entry points of `smelt.runtime.native`; calling one releases the GIL."""

    def __init__(self, loaded: Loaded) -> None:
        # Leak a reference: helpers run this code until the process ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
        pointer, integer, at = ctypes.c_void_p, ctypes.c_int64, loaded.address
        call = (pointer, pointer, integer, pointer)
        run = ctypes.CFUNCTYPE(ctypes.c_int, pointer, *call, integer, integer, integer)
        self.run: Callable[..., int] = run(at("smelt_run"))
        drive = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, *call)
        self.drive: Callable[..., int] = drive(at("smelt_drive"))
        self.abandon: Callable[[int, int], None] = ctypes.CFUNCTYPE(None, pointer, integer)(
            at("smelt_abandon")
        )
        self.wake: Callable[[int], None] = ctypes.CFUNCTYPE(None, pointer)(at("smelt_wake"))
        self.helper = at("smelt_helper")
        poll.bind(at("smelt_poll"))


def native_code() -> NativeCode:
    """Return the loop for this machine."""
    return NativeCode(load(native_object("thread pool", native.ir()), native.SYMBOLS))
