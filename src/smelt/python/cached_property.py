"""Cached properties without a lock, so that a fork cannot inherit one that is held.

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
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

__all__ = ["cached_property"]

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
