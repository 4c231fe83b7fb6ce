"""Cache the operators that a function records, and repeat them for equal types.

Working out a product's index notation or a slice's bounds takes longer than recording the result.
Outside `jit` both depend on types and plain arguments only, so the operators recorded by a call are
stored and repeated for other values of these types.

>>> from smelt.frontends.array.value import leaf, record
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

from smelt.frontends.array.at_once import Sighting
from smelt.frontends.array.value import (
    STATE,
    Value,
    apply,
    is_at_once,
    recorded,
    recorded_value,
    sighting,
)
from smelt.ops.create import Constant
from smelt.ops.elementwise import Map
from smelt.ops.spec import TensorOp
from smelt.python.origin import here
from smelt.types.expr import Expr
from smelt.types.tensor import TensorType

if TYPE_CHECKING:
    from smelt.frontends.array.scope import Scope

_LIMIT = 4096
"""Maximum entries per function."""

Step = tuple[TensorOp, tuple[int, ...], TensorType]


class Recipe:
    """Recorded operators in order.

    Operands are indices of the arguments, the constants and earlier results, in this order.
    """

    __slots__ = ("constants", "is_silent", "result", "sightings", "steps", "types")

    def __init__(self, result: Value, arguments: tuple[Value, ...], types: list[Any]) -> None:
        self.types = types  # and numbers, kept alive because keys contain their identities
        order = _operands_first(result, arguments)
        self.constants = tuple([x for x in order if not x.inputs])
        positions: dict[Any, int] = {x: k for k, x in enumerate(arguments)}
        positions.update({x: len(arguments) + k for k, x in enumerate(self.constants)})
        self.steps: list[Step] = []
        for x in order:
            if x.inputs:
                operands = tuple([positions[i] for i in x.inputs])
                positions[x] = len(arguments) + len(self.constants) + len(self.steps)
                self.steps.append((x.op, operands, x.type))
        self.result = positions[result]
        self.sightings: list[tuple[Sighting, tuple[int, ...]]] | None = None
        """Steps outside of recordings."""
        maps = [type.dtype.is_float for op, _, type in self.steps if op.__class__ is Map]
        self.is_silent = any(maps) and len(maps) > 1
        """Whether NumPy's warnings would be about operators that the caller did not write."""

    def repeat(
        self, arguments: tuple[Value, ...], scope: Scope | None = None, depth: int = 3
    ) -> Value:
        """Record the operators for other arguments of the same types."""
        origin = here(depth)
        values: list[Value] = [*arguments, *self.constants]
        if scope is None:
            for seen, operands in self._seen(arguments):
                inputs = tuple([values[i] for i in operands])
                values.append(recorded_value(seen, inputs, origin))
            return values[self.result]
        if not scope.open:
            scope.check_open(arguments[0].type_text)
        for op, operands, type in self.steps:
            inputs = tuple([values[i] for i in operands])
            values.append(Value(op, inputs, type, origin, None, scope))
        return values[self.result]

    def apply(self, arguments: tuple[Value, ...]) -> Value:
        """Compute the operators for other arguments of the same types at once, or record them.

        NumPy would not warn of what happens inside of a function.
        """
        if not is_at_once():
            operands = [x if x.__class__ is Value else x.as_operand() for x in arguments]
            return self.repeat(tuple(operands), depth=4)
        if self.is_silent:
            with np.errstate(all="ignore"):
                return self._apply(arguments)
        return self._apply(arguments)

    def _apply(self, arguments: tuple[Value, ...]) -> Value:
        values: list[Value] = [*arguments, *self.constants]
        for seen, operands in self._seen(arguments):
            values.append(apply(seen, tuple([values[i] for i in operands]), 5))
        return values[self.result]

    def _seen(self, arguments: tuple[Value, ...]) -> list[tuple[Sighting, tuple[int, ...]]]:
        if self.sightings is not None:
            return self.sightings
        types = [x.type for x in (*arguments, *self.constants)]
        types += [type for _, _, type in self.steps]
        self.sightings = [
            (sighting(op, tuple([types[i] for i in operands])), operands)
            for op, operands, _ in self.steps
        ]
        return self.sightings


def _operands_first(result: Value, arguments: tuple[Value, ...]) -> list[Any]:
    """Return what a result is computed from, apart from arguments, operands first."""
    order: dict[Any, None] = {}
    stack: list[Any] = [result]
    while stack:  # no recursive function: a cycle of references would keep the values alive
        x = stack[-1]
        is_argument = x in arguments
        waiting = [i for i in x.inputs if i not in order and i not in arguments]
        if waiting and not is_argument:
            stack.extend(reversed(waiting))
            continue
        if not is_argument:
            order[x] = None
        stack.pop()
    return list(order)


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
        add_equalities(values, key)
    full_key = (*key, *options.items())
    if not _is_plain(full_key[2:]):
        return function(*args, **options)
    recipe = scope.memo.get(full_key)
    if recipe is not None:
        return recipe.repeat(tuple(values), scope)
    bound = len(scope.bound)
    result = function(*args, **options)
    if result.scope is scope and len(scope.bound) == bound:
        scope.memo[full_key] = Recipe(result, tuple(values), types)
    return result


def _add_plain(x: Any, key: list[Any]) -> None:
    """Add a plain argument to a key.

    `==` ignores classes of numbers and the sign of zero, so the key includes both.
    """
    key += x, x.__class__
    if x.__class__ is float and not x:
        key.append(math.copysign(1.0, x))


def add_equalities(values: list[Value], key: list[Any]) -> None:
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
    recipes: dict[Hashable, Recipe] = {}

    @wraps(function)
    def wrapper(*args: Any, **options: Any) -> Value:
        key: list[Any] = []
        values: list[Value] = []
        outside = STATE.scope is None
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
            add_equalities(values, key)
        full_key = (*key, *options.items())
        # a recording must see each operator
        recipe = recipes.get(full_key) if outside else None
        if recipe is None:
            if len(recipes) > _LIMIT:
                recipes.clear()
            if outside:
                arguments = tuple([x.as_operand() for x in arguments])
                operands = iter(arguments)
                args = tuple([next(operands) if isinstance(x, Value) else x for x in args])
            rules = STATE.rules_read
            result = recorded(function, *args, **options)
            if result.scope is not None:
                return result
            recipe = Recipe(result, arguments, [x.type for x in arguments])
            if rules == STATE.rules_read:  # else another module may get another dtype
                recipes[full_key] = recipe
            if not is_at_once():
                return result
        return recipe.apply(arguments)

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
