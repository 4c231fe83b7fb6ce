"""Which rules a module's arrays have: NumPy's, or those of the array API front end.

>>> follows_numpy({"__name__": "user", "sm": ModuleType("smelt")})
False
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from smelt.python.origin import user_frame

NUMPY: Final = "smelt.numpy"
_PACKAGE: Final = "smelt"
_RULES: dict[int, tuple[dict[str, Any], int, bool]] = {}
_RULES_LIMIT = 1024


def follows_numpy(names: dict[str, Any]) -> bool:
    """Return whether code with these globals has NumPy's rules for views.

    It has if it imports `smelt.numpy`, and if it imports nothing of Smelt, while another module
    imports `smelt.numpy`.
    """
    entry = _RULES.get(id(names))
    if entry is not None and (entry[2] or entry[1] == len(names)):
        return entry[2]
    if len(_RULES) >= _RULES_LIMIT:
        _RULES.clear()
    rule = NUMPY in sys.modules and _imports_numpy(names)
    _RULES[id(names)] = names, len(names), rule
    return rule


def user_follows_numpy() -> bool:
    """Return whether the innermost code outside of Smelt has NumPy's rules."""
    frame = user_frame(2) if NUMPY in sys.modules else None
    return frame is not None and follows_numpy(frame.f_globals)


def forget_rules() -> None:
    """Look at modules again: one has imported `smelt.numpy`."""
    _RULES.clear()


def _imports_numpy(names: dict[str, Any]) -> bool:
    name = names.get("__name__", "")
    if name == _PACKAGE or name.startswith(f"{_PACKAGE}."):
        return False  # our functions make views where NumPy's do, with `alias`
    origins = [_module_of(x) for name, x in list(names.items()) if name != _PACKAGE]
    # The name `smelt` may come from `import smelt.numpy`, so it says nothing.
    if any(o == NUMPY or o.startswith(f"{NUMPY}.") for o in origins):
        return True
    return not any(o == _PACKAGE or o.startswith(f"{_PACKAGE}.") for o in origins)


def _module_of(x: Any) -> str:
    if isinstance(x, ModuleType):
        return x.__name__
    module = getattr(x, "__module__", None) if callable(x) else None
    return module if isinstance(module, str) else ""
