"""Remembering what a function records: the second call on the same types repeats its operators.

Working out a product's index notation or a slice's bounds takes longer than recording the result.
Outside `jit` both depend on nothing but types and plain arguments, so the operators that a call has
recorded are kept, and repeated for other values of these types.

>>> @replayed
... def twice(x):
...     return record(Map("add"), (x, x))
>>> one, two = (twice(leaf(np.ones(3))) for _ in range(2))
>>> one.op is two.op, one.inputs[0] is two.inputs[0]
(True, False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.frontends.array.value import STATE, Foreign, Map, Value, leaf, record
from smelt.ops.create import Constant
from smelt.ops.spec import TensorOp
from smelt.origin import here
from smelt.types.expr import Expr
from smelt.types.tensor import TensorType

if TYPE_CHECKING:
    from smelt.frontends.array.scope import Scope

__all__ = ["Map", "leaf", "np", "record", "recorded", "replayed"]

_LIMIT = 4096

Step = tuple[TensorOp, tuple["int | Value", ...], TensorType]


class _Recipe:
    """Operators in order; operands are earlier results by number, arguments by -1, -2, ..."""

    __slots__ = ("result", "steps", "types")

    def __init__(self, result: Value, arguments: tuple[Value, ...], types: list[Any]) -> None:
        self.types = types  # and numbers, kept alive: keys are their identities
        self.steps: list[Step] = []
        places: dict[Any, int] = {x: -1 - k for k, x in enumerate(arguments)}
        self.result = self._add(result, places)

    def _add(self, x: Any, places: dict[Any, int]) -> int | Value:
        if x in places:
            return places[x]
        if not x.inputs:
            return x  # a constant
        operands = tuple([self._add(i, places) for i in x.inputs])
        self.steps.append((x.op, operands, x.type))
        places[x] = len(self.steps) - 1
        return places[x]

    def repeat(self, arguments: tuple[Value, ...], scope: Scope | None = None) -> Value:
        origin = here(3)
        if scope is not None and not scope.open:
            scope.alive(arguments[0].told)
        made: list[Any] = []
        for op, operands, type in self.steps:
            inputs: list[Any] = [
                i if isinstance(i, Value) else made[i] if i >= 0 else arguments[-1 - i]
                for i in operands
            ]
            made.append(Value(op, tuple(inputs), type, origin, None, scope))
        last = self.result
        if isinstance(last, Value):
            return last
        return made[last] if last >= 0 else arguments[-1 - last]


def _again(
    function: Callable[..., Value], scope: Scope, args: tuple[Any, ...], options: dict[str, Any]
) -> Value:
    """`function` on values of a recording: all that it asked about sizes was answered the first
    time, and what it had to assume is written down."""
    key: list[Any] = [function]
    values: list[Value] = []
    types: list[Any] = []
    for x in args:
        if isinstance(x, Value):
            if x.scope is not scope:
                if x.scope is not None or x.op.__class__ is not Constant or x.shared:
                    return function(*args, **options)
                types.append(x)  # a number, which a recipe knows as itself
                key += "number", id(x)
                continue
            values.append(x)
            types.append(scope.type(x.type))
            key.append(id(types[-1]))
        else:
            _tell_plain(x, key)
    if len(values) > 1:
        _tell_equal(values, key)
    whole = (*key, *options.items())
    if not _is_plain(whole[1:]):
        return function(*args, **options)
    recipe = scope.repeats.get(whole)
    if recipe is not None:
        return recipe.repeat(tuple(values), scope)
    bound = len(scope.bound)
    result = function(*args, **options)
    if result.scope is scope and len(scope.bound) == bound:
        scope.repeats[whole] = _Recipe(result, tuple(values), types)
    return result


def _tell_plain(x: Any, key: list[Any]) -> None:
    """Add a plain argument to a key: numbers of several classes are equal, and both zeros are."""
    key += x, x.__class__
    if x.__class__ is float and not x:
        key.append(math.copysign(1.0, x))


def _tell_equal(values: list[Value], key: list[Any]) -> None:
    """Add to the key of some values which of them are one: a recipe knows each by its place."""
    numbers = [*map(id, values)]
    if len({*numbers}) < len(numbers):
        key.append(tuple(map(numbers.index, numbers)))


def _is_plain(x: Any) -> bool:
    """Whether it is made of numbers, texts and sizes' own expressions: comparing others asks."""
    if isinstance(x, tuple):
        return all(_is_plain(item) for item in x)  # pyright: ignore[reportUnknownVariableType]
    return x is None or x is Ellipsis or isinstance(x, (int, float, str, type, Expr))


def replayed(function: Callable[..., Value]) -> Callable[..., Value]:
    """`function(*values, *plain, **plain)`, its operators remembered: those of arrays for good,
    those of a recording's values until it learns more of its sizes."""
    known: dict[Hashable, _Recipe] = {}

    @wraps(function)
    def wrapper(*args: Any, **options: Any) -> Value:
        key: list[Any] = []
        values: list[Value] = []
        if STATE.scope is None:
            args = tuple([x.touch() if isinstance(x, Foreign) else x for x in args])
        for x in args:
            if isinstance(x, Value):
                if x.scope is not None:
                    return _again(function, x.scope, args, options)
                values.append(x)
                key.append(id(x.type))
            else:
                _tell_plain(x, key)
        arguments = tuple(values)
        if len(values) > 1:
            _tell_equal(values, key)
        whole = (*key, *options.items())
        recipe = known.get(whole) if STATE.scope is None else None  # which is told of each operator
        if recipe is None:
            if len(known) > _LIMIT:
                known.clear()
            result = function(*args, **options)
            if result.scope is None:
                known[whole] = _Recipe(result, arguments, [x.type for x in arguments])
            return result
        return recipe.repeat(arguments)

    return wrapper


def recorded(function: Callable[..., Value]) -> Callable[..., Value]:
    """The same inside a recording alone: elsewhere `function` looks at its arrays' elements."""

    @wraps(function)
    def wrapper(*args: Any, **options: Any) -> Value:
        scope = args[0].scope
        if scope is None:
            return function(*args, **options)
        return _again(function, scope, args, options)

    return wrapper
