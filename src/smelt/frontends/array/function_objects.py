"""Objects that stand for functions: they are bound, copied and named as functions are.

>>> Transformed("grad", abs, lambda x: 1.0)
<smelt.grad of abs>
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Self, cast

from smelt.errors import escape_controls


class FunctionObject:
    """Object that is bound and copied as functions are."""

    __slots__ = ()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(cast("Any", self), instance)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself, as for a function: a copy of its owner runs the same compiled code."""
        return self


class Transformed(FunctionObject):
    """Function with the name, documentation and signature of the function it is made from."""

    def __init__(
        self, transform: str, function: Callable[..., Any], call: Callable[..., Any]
    ) -> None:
        """Wrap `call`, which `transform` made from `function`."""
        functools.update_wrapper(self, function)
        self._transform = transform
        self._function = function
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        """Name the transformation, the function, and where that is defined."""
        return f"<smelt.{self._transform} of {function_text(self._function)}>"


def function_text(function: Any) -> str:
    """Return a function's name and where it is defined, as `loss at train.py:12`."""
    if isinstance(function, Transformed):
        return repr(function)
    name = escape_controls(getattr(function, "__qualname__", None) or repr(function))
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return name
    file = code.co_filename.rpartition("/")[2]
    return f"{name} at {file}:{code.co_firstlineno}"
