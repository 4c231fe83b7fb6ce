"""Smelt's threads under the control of the package `threadpoolctl`, as those of BLAS are.

`threadpoolctl` finds thread pools by the files of shared libraries, and Smelt's pool is in none: it
is machine code in memory.  Registered is therefore a controller for a library that is there
whenever Smelt is, NumPy's own; it tells of Smelt's pool and of nothing else.  The package is never
imported for this: it is met when it has been imported by the time a function is compiled.

    import threadpoolctl, smelt as sm
    with threadpoolctl.threadpool_limits(1):            # or limits={"smelt": 1}
        f(x)                                            # one thread
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from smelt.runtime import threads
from smelt.version import __version__

__all__ = ["announce"]

_CARRIER = "_multiarray_umath"
"""How the file of NumPy's shared library begins."""


class _Known:
    """The module that the controller was registered with."""

    module: Any = None


def announce() -> None:
    """Registers the controller with `threadpoolctl`, once, where that has been imported."""
    module = sys.modules.get("threadpoolctl")
    if module is None or module is _Known.module:
        return
    _Known.module = module
    if hasattr(module, "register") and hasattr(module, "LibController"):  # since version 3.2
        module.register(_controller(module.LibController))


def _controller(parent: Any) -> Any:
    """The controller's class; its methods are what `LibController` asks for."""

    def set_additional_attributes(self: Any) -> None:
        self.prefix, self.filepath = "smelt", str(Path(__file__).parent.parent)

    members: dict[str, Any] = {
        "__doc__": "Controller of Smelt's thread pool.",
        "user_api": "smelt",
        "internal_api": "smelt",
        "filename_prefixes": (_CARRIER,),
        "get_num_threads": lambda self: threads.usual(),
        "set_num_threads": lambda self, num_threads: threads.limit(num_threads),
        "get_version": lambda self: __version__,
        "set_additional_attributes": set_additional_attributes,
    }
    return type("SmeltController", (parent,), members)
