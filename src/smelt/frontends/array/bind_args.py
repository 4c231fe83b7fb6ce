"""Bind the arguments of a jitted call: separate static ones, flatten the others.

>>> def f(x, order, *, scale=1.0): ...
>>> call = Options(f, static_argnames="order").bind((1.5, "C"), {"scale": 2.0})
>>> call.leaves, call.names, call.statics
([1.5, 2.0], ['x', 'scale'], ((1, <class 'str'>, 'C', ()),))
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast

import numpy as np

from smelt.errors import ArgumentError, StaticArgError, escape_controls
from smelt.frontends.array.array import Array
from smelt.frontends.array.convert import as_buffer, is_foreign_array, usable
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.trace import Argument, Spec
from smelt.frontends.array.tree import LEAF, Tree, flatten, paths, unflatten
from smelt.python.dataclass import dataclass

Slot = int | str
Static = tuple[Slot, type, Hashable, tuple[float, ...]]
"""A static argument: position or name, type, value, and the signs of zeros in it: zeros of both
signs are equal, but their programs differ."""


@dataclass(slots=True)
class BoundCall:
    """Arguments of one call: leaves of the dynamic ones, and the static ones."""

    leaves: list[Any]
    tree: Tree
    statics: tuple[Static, ...]
    count: int
    options: Options

    @property
    def names(self) -> list[str]:
        """Names of the leaves, from the parameters that they belong to."""
        return [self.options.argument_name(path) for path in paths(self._keyed())]

    def _keyed(self) -> Any:
        """Return the tree with positional arguments under their positions."""
        _, _, _, (positional, named) = self.tree  # type: ignore[misc]
        fixed = {slot for slot, *_ in self.statics}
        slots = [k for k in range(self.count) if k not in fixed]
        _, _, names, children = named
        return "mapping", dict, (*slots, *names), (*positional[3], *children)

    @property
    def is_flat(self) -> bool:
        """Whether each argument is positional, dynamic and a leaf."""
        _, _, _, (positional, named) = self.tree  # type: ignore[misc]
        return not self.statics and not named[3] and all(c is LEAF for c in positional[3])

    @property
    def donated(self) -> tuple[int, ...]:
        """Indices of the leaves that belong to donated arguments."""
        donated_slots = self.options.donate
        if not donated_slots:
            return ()
        return tuple(
            k
            for k, path in enumerate(paths(self._keyed()))
            if path.partition(".")[0] in donated_slots
        )

    def call(self, leaves: Iterable[Any]) -> Any:
        """Call the function with other leaves."""
        positional, named = unflatten(self.tree, iter(leaves))
        args = list(positional)
        for slot, _, value, _ in self.statics:
            if isinstance(slot, int):
                args.insert(slot, value)
            else:
                named[slot] = value
        return self.options.function(*args, **named)


class Options:
    """Options of `sm.jit` about a function's arguments.

    Raises ArgumentError for something that is not a function, and for arguments that it has not.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Iterable[int] = (),
        static_argnames: str | Iterable[str] = (),
        donate: int | str | Iterable[int | str] = (),
    ) -> None:
        if not callable(function):
            raise ArgumentError.of("jit", "function", function, "something to call")
        self.function = function
        inner = getattr(function, "func", function)  # of a functools.partial
        self.name = escape_controls(getattr(inner, "__name__", type(inner).__name__))
        self.parameters = _parameters(function)
        self.takes_out = "out" in self.parameters
        self.static = self._slots(_as_list(static_argnums), _as_list(static_argnames))
        donated = _as_list(donate)
        self.donate = frozenset(
            str(s)
            for s in self._slots(
                [d for d in donated if not isinstance(d, str)],
                [d for d in donated if isinstance(d, str)],
            )
        )

    def merged_with(self, inner: Options) -> Options:
        """Return these options with those of the same function's own jit."""
        merged = Options(inner.function)
        merged.static = self.static | inner.static
        merged.donate = self.donate | inner.donate
        if both := sorted(merged.donate & {str(slot) for slot in merged.static}):
            raise ArgumentError.of(
                "jit",
                "donate",
                both[-1],
                "an argument that the function's own jit does not make static",
            )
        return merged

    def _slots(self, positions: Iterable[Any], names: Iterable[Any]) -> frozenset[Slot]:
        """Return arguments both by position and by name.

        Raises ArgumentError for one that does not exist.
        """
        slots: set[Slot] = set()
        count = len(self.parameters)
        for position in positions:
            slot = position if position >= 0 else position + count
            slots.add(slot)
            if 0 <= slot < count:
                slots.add(self.parameters[slot])
            elif self.parameters and not self._takes(inspect.Parameter.VAR_POSITIONAL):
                expected = f"-{count} to {count - 1}: {', '.join(self.parameters)}"
                raise ArgumentError.of("jit", "argument number", position, expected)
        for name in names:
            slots.add(name)
            if name in self.parameters:
                slots.add(self.parameters.index(name))
            elif self.parameters and not self._takes(inspect.Parameter.VAR_KEYWORD):
                raise ArgumentError.of(
                    "jit", "argument name", name, f"one of {', '.join(self.parameters)}"
                )
        return frozenset(slots)

    def _takes(self, kind: Any) -> bool:
        """Return whether the function takes *args or **kwargs (`kind`)."""
        try:
            kinds = [p.kind for p in inspect.signature(self.function).parameters.values()]
        except (TypeError, ValueError):
            return True
        return kind in kinds

    def argument_name(self, path: str) -> str:
        """Return a leaf's path with the name of its argument: `params.w` for `0.w`."""
        head, dot, rest = path.partition(".")
        if head.isdigit() and int(head) < len(self.parameters):
            head = self.parameters[int(head)]
        return head + dot + rest

    def by_position(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call by position, where parameters allow it.

        Raises TypeError, as the call would, for arguments that the function does not take.
        """
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return args, kwargs
        bound = signature.bind(*args, **kwargs)
        return bound.args, bound.kwargs

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        """Bind the arguments of a call.

        Raises StaticArgError for a static argument that is not hashable, or an array.
        """
        statics: list[Static] = []
        dynamic: list[Any] = []
        for position, value in enumerate(args):
            if position in self.static:
                statics.append(self._static(position, value))
            else:
                dynamic.append(value)
        named: dict[str, Any] = {}
        for name in sorted(kwargs):
            if name in self.static:
                statics.append(self._static(name, kwargs[name]))
            else:
                named[name] = kwargs[name]
        leaves, tree = flatten((tuple(dynamic), named))
        return BoundCall(leaves, tree, tuple(statics), len(args), self)

    def _static(self, slot: Slot, value: Any) -> Static:
        reason = ""
        if isinstance(value, (Array, np.ndarray)):
            reason = "arrays are never static"
        else:
            try:
                hash(value)
            except TypeError:
                reason = "it is not hashable"
        if reason:
            raise StaticArgError(
                argument=f"static argument {self.argument_name(str(slot))!r}",
                type=type(value).__name__,
                reason=reason,
            )
        return slot, type(value), cast("Hashable", value), _signs(value)


def _signs(value: Any) -> tuple[float, ...]:
    """Return the signs of the zeros among a value's numbers."""
    if isinstance(value, (tuple, frozenset)):
        return tuple(sign for x in cast("Iterable[Any]", value) for sign in _signs(x))
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    return tuple(math.copysign(1.0, x) for x in parts if isinstance(x, float) and x == 0)


def statics_to_data(bound: BoundCall) -> list[list[Any]]:
    """Return the static arguments as JSON data: position or name, type and text of the value.

    Text tells zeros of both signs apart, and NaN equals itself.
    """
    return [[slot, kind.__name__, repr(value)] for slot, kind, value, _ in bound.statics]


def _as_list(values: Any) -> list[Any]:
    return [values] if isinstance(values, (int, str)) else list(values)


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return names of the positional parameters, then of the keyword-only ones."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def as_arguments(bound: BoundCall) -> list[Argument]:
    """Return the leaves of a call as `Argument`s.

    Raises StaticArgError for a leaf that is neither array nor number.
    """
    arguments: list[Argument] = []
    for index, x in enumerate(bound.leaves):
        if isinstance(x, Array):
            arguments.append(Argument(evaluate(x.node)))
        elif isinstance(x, (bool, int, float)):
            arguments.append(Argument(number=x))
        elif isinstance(x, Spec):
            arguments.append(Argument(spec=x))
        elif is_foreign_array(x):
            arguments.append(Argument(usable(as_buffer(x))))
        else:
            raise StaticArgError(
                argument=f"argument {bound.names[index]!r}",
                type=type(x).__name__,
                reason="it is neither an array nor a number, nor declared static",
                hint="A dataclass of arrays and numbers is a nest of them. An object that stays as"
                " it is may be static (static_argnums=0 for a method's self): what it held in the"
                " first call is part of the program, and changing it later goes unnoticed.",
            )
    return arguments
