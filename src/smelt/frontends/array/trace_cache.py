"""Cache the operators that a function records, and repeat them for equal types.

Working out a product's index notation or a slice's bounds takes longer than recording the result.
Outside `jit` both depend on types and plain arguments only, so the operators recorded by a call are
stored and repeated for other values of these types.

>>> @cache_trace
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

from smelt.frontends.array.value import STATE, Map, Value, leaf, record
from smelt.ops.create import Constant
from smelt.ops.spec import TensorOp
from smelt.origin import here
from smelt.types.expr import Expr
from smelt.types.tensor import TensorType

if TYPE_CHECKING:
    from smelt.frontends.array.scope import Scope

__all__ = ["Map", "cache_trace", "cache_trace_in_recording", "leaf", "np", "record"]

_LIMIT = 4096
"""Most entries per function."""

Step = tuple[TensorOp, tuple["int | Value", ...], TensorType]


class _Recipe:
    """Recorded operators in order.

    Operands are indices of earlier results, or -1, -2, ... for arguments.
    """

    __slots__ = ("result", "steps", "types")

    def __init__(self, result: Value, arguments: tuple[Value, ...], types: list[Any]) -> None:
        self.types = types  # and numbers, kept alive because keys contain their identities
        self.steps: list[Step] = []
        positions: dict[Any, int] = {x: -1 - k for k, x in enumerate(arguments)}
        self.result = self._add(result, positions)

    def _add(self, x: Any, positions: dict[Any, int]) -> int | Value:
        if x in positions:
            return positions[x]
        if not x.inputs:
            return x  # a constant
        operands = tuple([self._add(i, positions) for i in x.inputs])
        self.steps.append((x.op, operands, x.type))
        positions[x] = len(self.steps) - 1
        return positions[x]

    def repeat(self, arguments: tuple[Value, ...], scope: Scope | None = None) -> Value:
        origin = here(3)
        if scope is not None and not scope.open:
            scope.check_open(arguments[0].type_text)
        results: list[Any] = []
        for op, operands, type in self.steps:
            inputs: list[Any] = [
                i if isinstance(i, Value) else results[i] if i >= 0 else arguments[-1 - i]
                for i in operands
            ]
            results.append(Value(op, tuple(inputs), type, origin, None, scope))
        last = self.result
        if isinstance(last, Value):
            return last
        return results[last] if last >= 0 else arguments[-1 - last]


def _call_recorded(
    function: Callable[..., Value], scope: Scope, args: tuple[Any, ...], options: dict[str, Any]
) -> Value:
    """Call `function` on values of a recording, or repeat its operators.

    Repeating is valid because guards for all sizes that it inspected exist since the first call.
    """
    if STATE.scope is not scope and STATE.scope is not None and STATE.scope.takes_all:
        return function(*args, **options)  # it is recorded in a branch
    key: list[Any] = [function, scope.serial]  # a step of a loop shares the cache around it
    values: list[Value] = []
    types: list[Any] = []
    for x in args:
        if isinstance(x, Value):
            if x.scope is not scope:
                if x.scope is not None or x.op.__class__ is not Constant or x.shared:
                    return function(*args, **options)
                types.append(x)  # a number, which is part of the recipe
                key += "number", id(x)
                continue
            values.append(x)
            types.append(scope.type(x.type))
            key.append(id(types[-1]))
        else:
            _add_plain(x, key)
    if len(values) > 1:
        _add_equalities(values, key)
    full_key = (*key, *options.items())
    if not _is_plain(full_key[2:]):
        return function(*args, **options)
    recipe = scope.memo.get(full_key)
    if recipe is not None:
        return recipe.repeat(tuple(values), scope)
    bound = len(scope.bound)
    result = function(*args, **options)
    if result.scope is scope and len(scope.bound) == bound:
        scope.memo[full_key] = _Recipe(result, tuple(values), types)
    return result


def _add_plain(x: Any, key: list[Any]) -> None:
    """Add a plain argument to a key.

    `==` ignores classes of numbers and the sign of zero, so the key includes both.
    """
    key += x, x.__class__
    if x.__class__ is float and not x:
        key.append(math.copysign(1.0, x))


def _add_equalities(values: list[Value], key: list[Any]) -> None:
    """Add to a key which values are identical.

    Recipes refer to values by position.
    """
    numbers = [*map(id, values)]
    if len({*numbers}) < len(numbers):
        key.append(tuple(map(numbers.index, numbers)))


def _is_plain(x: Any) -> bool:
    """Return whether an argument consists of numbers, texts and size expressions.

    Comparing others as keys would add guards.
    """
    if isinstance(x, tuple):
        return all(_is_plain(item) for item in x)  # pyright: ignore[reportUnknownVariableType]
    return x is None or x is Ellipsis or isinstance(x, (int, float, str, type, Expr))


def cache_trace(function: Callable[..., Value]) -> Callable[..., Value]:
    """Decorate `function(*values, *plain, **plain)` to cache the operators it records.

    Outside recordings entries stay valid; in a recording, until it binds a size.
    """
    recipes: dict[Hashable, _Recipe] = {}

    @wraps(function)
    def wrapper(*args: Any, **options: Any) -> Value:
        key: list[Any] = []
        values: list[Value] = []
        if STATE.scope is None:
            args = tuple(
                [
                    x.as_operand() if isinstance(x, Value) and x.__class__ is not Value else x
                    for x in args
                ]
            )
        for x in args:
            if isinstance(x, Value):
                if x.scope is not None:
                    return _call_recorded(function, x.scope, args, options)
                values.append(x)
                key.append(id(x.type))
            else:
                _add_plain(x, key)
        arguments = tuple(values)
        if len(values) > 1:
            _add_equalities(values, key)
        full_key = (*key, *options.items())
        # a recording must see each operator
        recipe = recipes.get(full_key) if STATE.scope is None else None
        if recipe is None:
            if len(recipes) > _LIMIT:
                recipes.clear()
            result = function(*args, **options)
            if result.scope is None:
                recipes[full_key] = _Recipe(result, arguments, [x.type for x in arguments])
            return result
        return recipe.repeat(arguments)

    return wrapper


def cache_trace_in_recording(function: Callable[..., Value]) -> Callable[..., Value]:
    """Decorate a function like `cache_trace`, but only for values of a recording.

    Elsewhere the function reads its arrays' elements.
    """

    @wraps(function)
    def wrapper(*args: Any, **options: Any) -> Value:
        scope = args[0].scope
        if scope is None:
            return function(*args, **options)
        return _call_recorded(function, scope, args, options)

    return wrapper
