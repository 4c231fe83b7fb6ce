"""Cache whole calls of array functions by the types and plain arguments that they take.

A function checks its arguments, works out axes and dtypes, and records a few operators.  Outside
recordings these depend on types, numbers and texts alone, so an equal call repeats the operators
without running the function.

>>> import numpy as np
>>> from smelt.frontends.array.value import leaf
>>> @cache_call
... def twice(x):
...     return x + x
>>> x = Array.of(leaf(np.ones(3)))
>>> [twice(x).node.op is twice(x).node.op for _ in range(2)]
[True, True]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_calls import takes_complex
from smelt.frontends.array.trace_cache import Recipe, add_equalities
from smelt.frontends.array.value import STATE, Value, is_at_once, recorded
from smelt.ops.create import Constant
from smelt.ops.extern import Extern
from smelt.types.dtype import DType

P = ParamSpec("P")
R = TypeVar("R")

_LIMIT = 1024
"""Maximum keys per function."""
_PLAIN = frozenset((int, bool, str, type(None), DType))
_INTEGERS = frozenset((int,))
_SEEN_ONCE = "seen once"
_REFUSED = "refused"


def cache_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of arrays whose operators depend on types and plain arguments only.

    It may not look at elements, nor at which operators an array is computed by.  Operators are
    stored when a key occurs for the second time, so that numbers that change cost little.  Complex
    operands go to the function's entry in `complex_functions`.
    """
    function = takes_complex(function)
    recipes: dict[Hashable, Recipe | str] = {}

    @wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        key: list[Any] = []
        values: list[Value] = []
        if STATE.scope is not None or not _add_arguments(args, options, key, values):
            return function(*args, **options)
        if len(values) > 1:
            add_equalities(values, key)
        full_key = tuple(key)
        recipe = recipes.get(full_key)
        if recipe.__class__ is Recipe:
            return Array.of(recipe.apply(tuple(values)))  # type: ignore[union-attr]
        if recipe == _SEEN_ONCE:
            rules = STATE.rules_read
            result = recorded(function, *args, **options)
            if rules != STATE.rules_read:  # another module may get another dtype
                recipes[full_key] = _REFUSED
                return result
            recipe = _recipe(result, tuple([x.as_operand() for x in values]))
            recipes[full_key] = recipe
            if not is_at_once():
                return result
            if recipe.__class__ is Recipe:
                return Array.of(recipe.apply(tuple(values)))  # type: ignore[union-attr]
        elif recipe is None:
            if len(recipes) >= _LIMIT:
                recipes.clear()
            recipes[full_key] = _SEEN_ONCE
        return function(*args, **options)

    return wrapper


def _add_arguments(
    args: tuple[Any, ...], options: dict[str, Any], key: list[Any], values: list[Value]
) -> bool:
    """Add arguments to a key, and the values of arrays to `values`.

    Returns False for arguments that no key may hold.
    """
    for x in args:
        if x.__class__ is Array:
            node = x.node
            if node.scope is not None or node.op.__class__ is Constant:
                return False
            values.append(node)
            key.append(id(node.type))
        elif x.__class__ in _PLAIN:
            key += x.__class__, x
        elif not _add_other(x, key):
            return False
    for name, x in options.items():
        key.append(name)
        if x.__class__ in _PLAIN:
            key += x.__class__, x
        elif not _add_other(x, key):
            return False
    return True


def _add_other(x: Any, key: list[Any]) -> bool:
    """Add a float, tuple of integers or class to a key; False for others.

    `==` ignores the sign of zero, so the key includes it.
    """
    if x.__class__ is float:
        key += float, x
        if not x:
            key.append(math.copysign(1.0, x))
        return x == x
    if x.__class__ is tuple:
        key += tuple, x
        return set(map(type, x)) <= _INTEGERS
    if x.__class__ is type:
        key.append(x)
        return True
    return False


def _recipe(result: Any, arguments: tuple[Value, ...]) -> Recipe | str:
    """Return the operators of a call, or that they may not be repeated."""
    if result.__class__ is not Array or not result.node.inputs:
        return _REFUSED  # nothing is recorded, or the array's own number
    stack, visited = [result.node], set[Any](arguments)
    if result.node in visited:
        return _REFUSED
    while stack:
        x = stack.pop()
        if x in visited:
            continue
        visited.add(x)
        is_number = x.op.__class__ is Constant
        if x.data is not None or x.scope is not None or isinstance(x.op, Extern):
            return _REFUSED
        if not (x.inputs or is_number):  # an array of another call, or positions
            return _REFUSED
        stack.extend(x.inputs)
    return Recipe(result.node, arguments, [x.type for x in arguments])
