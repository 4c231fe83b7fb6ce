"""Let the package `threadpoolctl` control Smelt's threads like those of BLAS.

`threadpoolctl` finds thread pools by the files of shared libraries, but Smelt's pool is machine
code in memory. So a controller is registered for a library that is always loaded, NumPy's own; it
reports Smelt's pool and nothing else. The package is never imported for this: it is used if it
was imported by the time a function is compiled.

    import threadpoolctl, smelt as sm
    with threadpoolctl.threadpool_limits(1):            # or limits={"smelt": 1}
        f(x)                                            # one thread
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from smelt.packages.version import __version__
from smelt.runtime import threads

_CARRIER = "_multiarray_umath"
"""Prefix of the file name of NumPy's shared library."""


class _Registered:
    """Module that the controller was registered with."""

    module: Any = None


def register_controller() -> None:
    """Register the controller with `threadpoolctl` once, if that was imported."""
    module = sys.modules.get("threadpoolctl")
    if module is None or module is _Registered.module:
        return
    _Registered.module = module
    if hasattr(module, "register") and hasattr(module, "LibController"):  # since version 3.2
        module.register(_controller(module.LibController))


def _controller(parent: Any) -> Any:
    """Return the controller's class with the methods that `LibController` expects."""

    def set_additional_attributes(self: Any) -> None:
        self.prefix, self.filepath = "smelt", str(Path(__file__).parent.parent)

    members: dict[str, Any] = {
        "__doc__": "Controller of Smelt's thread pool.",
        "user_api": "smelt",
        "internal_api": "smelt",
        "filename_prefixes": (_CARRIER,),
        "get_num_threads": lambda self: threads.default_threads(),
        "set_num_threads": lambda self, num_threads: threads.limit_threads(num_threads),
        "get_version": lambda self: __version__,
        "set_additional_attributes": set_additional_attributes,
    }
    return type("SmeltController", (parent,), members)
