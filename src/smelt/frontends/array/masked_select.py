"""`x[mask]` inside `jit`: elements whose number is not known, to be written back under the mask.

`x[mask] += y` reads x[mask], adds, and writes x[mask] again.  In between stands a `Chosen`: all of
x calculated with, and the mask.  Operators and elementwise functions take numbers, arrays that go
along what follows the mask's dimensions, and what the same mask has chosen; writing is a choice.
Everything else would have to know how many there are, and raises TracerError.

>>> import smelt as sm
>>> f = sm.jit(lambda x: (y := x + 0, operator.setitem(y, y > 1, y[y > 1] * 10))[0])
>>> f(sm.asarray([0.0, 1.0, 2.0, 3.0]))
Array([ 0.,  1., 20., 30.])
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

from smelt.errors import ShapeError, TracerError
from smelt.frontends.array.assign import same_kind
from smelt.frontends.array.families import BINARY, UNARY
from smelt.frontends.array.operators import operand
from smelt.frontends.array.subscript import SELECT, is_mask, mask_fits, plain, uncounted
from smelt.frontends.array.value import STATE, Value, record
from smelt.frontends.array.views import expand, reshape, shape_of
from smelt.ops.create import Input

__all__ = ["Chosen", "choose", "operator", "written"]

_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_COMPARED = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_UNARY = {"neg": "negative", "abs": "abs", "invert": "bitwise_invert"}
_UNREADABLE = ("array", "bool", "complex", "float", "index", "int", "iter", "len")
_LINEAR = {"add", "subtract", "negative"}
"""What gives no infinite derivative where the mask is false: 0 times that would be NaN."""


class Chosen:
    """The elements of an array that a mask of a recording chooses.

    `whole` is calculated with for all elements; those that count are where `mask` is true.
    """

    __slots__ = ("mask", "whole")
    __array_ufunc__ = None  # NumPy leaves operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, whole: Value, mask: Value) -> None:
        self.whole = whole
        self.mask = mask

    def __getattr__(self, name: str) -> NoReturn:
        raise uncounted(self.mask)

    def __repr__(self) -> str:
        return f"Chosen(<{self.whole.type} where {self.mask.type}>)"

    def mapped(self, name: str) -> Chosen:
        """An elementwise function of one array, by its family's name."""
        self._differentiable(name, None)
        return Chosen(UNARY[name](self.whole), self.mask)

    def joined(self, name: str, other: Any, *, reflected: bool = False) -> Any:
        """An elementwise function of two, this the first unless `reflected`.  Raises TracerError
        for what another mask chose, and for an array along the chosen elements."""
        given = other
        if isinstance(other, Chosen):
            if not _same(self.mask, other.mask):
                raise uncounted(self.mask)
            _alike(self.whole, other.whole, self.mask)
            other = other.whole
        else:
            other = operand(other)
            if other is NotImplemented:
                return other
            if isinstance(other, Value) and other.type.rank > self._behind:
                raise uncounted(self.mask)
        self._differentiable(name, given)
        pair = (other, self.whole) if reflected else (self.whole, other)
        return Chosen(BINARY[name](*pair), self.mask)

    @property
    def _behind(self) -> int:
        """How many dimensions follow those of the mask."""
        return self.whole.type.rank - self.mask.type.rank

    def _differentiable(self, name: str, other: object) -> None:
        """Raises TracerError where what nobody chose would make derivatives NaN."""
        scaled = name in ("multiply", "divide") and isinstance(other, (int, float))
        if STATE.tapes and name not in _LINEAR and not scaled:
            raise TracerError(
                use=f"{name} of chosen elements, differentiated,",
                value=self.mask.told,
                hint="Use sm.where(mask, f(sm.where(mask, x, safe)), x): what is not chosen counts"
                " for derivatives as well.",
            )


def choose(x: Value, key: Any) -> Chosen | None:
    """x[key] for a key that is a mask without values; None for any other key."""
    mask = _mask(key)
    if mask is None:
        return None
    assert mask.scope is not None
    mask_fits(x, mask)
    return Chosen(x if x.scope is not None else mask.scope.capture(x), mask)


def written(x: Value, key: Any, chosen: Chosen) -> Value:
    """What x is after `x[key] = chosen`.  Raises TracerError unless the key is the same mask."""
    mask, whole = _mask(key), chosen.whole
    if mask is None or not _same(mask, chosen.mask):
        raise uncounted(chosen.mask)
    mask_fits(x, mask)
    _alike(x, whole, mask)
    shape = shape_of(x)
    mask = reshape(mask, (*shape_of(mask), *[1] * (x.type.rank - mask.type.rank)))
    return record(SELECT, (expand(mask, shape), expand(same_kind(whole, x), shape), x))


def _mask(key: Any) -> Value | None:
    """The only item of a key, if it is a mask of a recording with dimensions."""
    (item,) = key if isinstance(key, tuple) and len(key) == 1 else (key,)
    if isinstance(item, (tuple, slice)) or item is None:
        return None
    found = plain(item)
    return found if is_mask(found) and found.scope is not None and found.type.rank else None


def _alike(a: Value, b: Value, mask: Value) -> None:
    """Raises ShapeError where what follows the mask's dimensions has other ranks."""
    if a.type.rank != b.type.rank:
        raise ShapeError(
            op="x[mask]",
            operands=f"{a.told}, {b.told}",
            reason=f"{mask.told} leaves them different ranks",
        )


def _same(a: Any, b: Any) -> bool:
    """Whether two values are computed in the same way from the same ones."""
    stack, seen = [(a, b)], set[tuple[int, int]]()
    while stack:
        x, y = pair = stack.pop()
        if x is y or (id(x), id(y)) in seen:
            continue
        seen.add((id(x), id(y)))
        if x.op != y.op or x.type != y.type or isinstance(x.op, Input):
            return False
        if len(x.inputs) != len(y.inputs):
            return False
        stack += zip(*(z.inputs for z in pair), strict=True)
    return True


def _operator(name: str, *, reflected: bool = False) -> Callable[[Chosen, Any], Any]:
    return lambda self, other: self.joined(name, other, reflected=reflected)


def _in_place(name: str) -> Callable[[Chosen, Any], Any]:
    def run(self: Chosen, other: Any) -> Any:
        found = self.joined(name, other)
        if isinstance(found, Chosen):  # others may refer to what x[mask] gave
            self.whole = found.whole
            return self
        return found

    return run


def _function(name: str) -> Callable[[Chosen], Chosen]:
    return lambda self: self.mapped(name)


def _unreadable(self: Chosen, *_: Any, **__: Any) -> NoReturn:
    raise uncounted(self.mask)


for _name, _row in _BINARY.items():
    setattr(Chosen, f"__{_name}__", _operator(_row))
    setattr(Chosen, f"__r{_name}__", _operator(_row, reflected=True))
    setattr(Chosen, f"__i{_name}__", _in_place(_row))
for _name, _row in _COMPARED.items():
    setattr(Chosen, f"__{_name}__", _operator(_row))
for _name, _row in _UNARY.items():
    setattr(Chosen, f"__{_name}__", _function(_row))
for _name in _UNREADABLE:
    setattr(Chosen, f"__{_name}__", _unreadable)
