"""Cache values: properties without a lock, and functions of large values by identity.

`functools.cached_property` of Python 3.11 holds one lock per property while it computes. In the
child of a fork that another thread's computation overlaps, nobody releases it. Python 3.12 has no
lock; this is the same for 3.11: threads may compute a value twice, and the first result stays.

>>> class Square:
...     @cached_property
...     def area(self):
...         print("computed")
...         return 4
>>> square = Square()
>>> square.area, square.area
computed
(4, 4)
>>> @cached_by_identity(8)
... def total(numbers):
...     print("computed")
...     return sum(numbers)
>>> numbers = (1, 2)
>>> total(numbers), total(numbers)
computed
(3, 3)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Generic, TypeVar

__all__ = ["cached_by_identity", "cached_property"]

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - the name in the standard library
        """Compute an attribute on its first use and keep it in the instance's `__dict__`."""

        def __init__(self, func):
            self.func, self.name, self.__doc__ = func, func.__name__, func.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return vars(instance).setdefault(self.name, self.func(instance))


T = TypeVar("T")
R = TypeVar("R")


class _Same(Generic[T]):
    """A value that equals itself alone.

    It is kept alive, so that no other value has its identity.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


def cached_by_identity(maxsize: int) -> Callable[[Callable[[T], R]], Callable[[T], R]]:
    """Decorate a function of one immutable value; the last `maxsize` results are kept."""

    def decorate(function: Callable[[T], R]) -> Callable[[T], R]:
        cached = lru_cache(maxsize)(lambda same: function(same.value))
        return wraps(function)(lambda value: cached(_Same(value)))

    return decorate
