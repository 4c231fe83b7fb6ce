"""Cache functions of large immutable values by identity, where hashing costs as much as computing.

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

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Generic, TypeVar

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
