"""Support `x[mask]` where the count is unknown: inside `jit`, and in `x[mask] += y` anywhere.

That statement reads x[mask], adds, and writes x[mask] back.  The intermediate is a
`MaskedSelection`: results for all elements of x, and the mask.  Operators and elementwise functions
accept numbers, arrays that vary along dimensions after the mask's only, and selections by the same
mask; writing is an elementwise select.  Everything else would depend on the number of selected
elements, and raises TracerError.

Outside of recordings `x[mask] += y` computes nothing either (`UpdateSelection`): the bytecode tells
such a statement from a plain read.  Where the count matters, the mask is computed as for a read.

>>> import smelt as sm
>>> f = sm.jit(lambda x: (y := x + 0, operator.setitem(y, y > 1, y[y > 1] * 10))[0])
>>> f(sm.asarray([0.0, 1.0, 2.0, 3.0]))
Array([ 0.,  1., 20., 30.])
"""

from __future__ import annotations

import dis
import operator
from collections.abc import Callable
from types import CodeType
from typing import Any, NoReturn

from smelt.errors import ShapeError, TracerError
from smelt.frontends.array.assign import cast_same_kind
from smelt.frontends.array.families import ARITHMETIC, BINARY, COMPARISONS, UNARY
from smelt.frontends.array.operators import operand
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.subscript import (
    SELECT,
    check_mask_fits,
    index_item,
    is_mask,
    unknown_count_error,
)
from smelt.frontends.array.value import STATE, Value, record
from smelt.frontends.array.views import expand, reshape
from smelt.ops.create import Input

_UNARY = {"neg": "negative", "abs": "abs", "invert": "bitwise_invert"}
_UNREADABLE = ("array", "bool", "complex", "float", "index", "int", "iter", "len")
_LINEAR = {"add", "subtract", "negative"}
"""Functions whose derivative is finite everywhere; 0 times an infinite one would be NaN."""


class MaskedSelection:
    """Elements of an array that a mask of a recording selects.

    `all_values` has results for all elements; those count where `mask` is true.
    """

    __slots__ = ("all_values", "mask")
    __array_ufunc__ = None  # NumPy leaves operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, whole: Value, mask: Value) -> None:
        self.all_values = whole
        self.mask = mask

    def __getattr__(self, name: str) -> NoReturn:
        raise unknown_count_error(self.mask)

    def __repr__(self) -> str:
        return f"Chosen(<{self.all_values.type} where {self.mask.type}>)"

    def apply_unary(self, name: str) -> MaskedSelection:
        """Apply an elementwise function of one array, named as in `UNARY`."""
        self._check_differentiable(name, None)
        return MaskedSelection(UNARY[name](self.all_values), self.mask)

    def apply_binary(self, name: str, other: Any, *, reflected: bool = False) -> Any:
        """Apply an elementwise function of two arrays, named as in `BINARY`.

        This is the first operand unless `reflected`.  Raises TracerError for a selection by another
        mask, and for an array that varies along the selected elements.
        """
        original = other
        if isinstance(other, MaskedSelection):
            if not _is_same_computation(self.mask, other.mask):
                raise unknown_count_error(self.mask)
            _check_ranks(self.all_values, other.all_values, self.mask)
            other = other.all_values
        else:
            other = operand(other)
            if other is NotImplemented:
                return other
            if isinstance(other, Value) and other.type.rank > self._trailing_rank:
                raise unknown_count_error(self.mask)
        self._check_differentiable(name, original)
        pair = (other, self.all_values) if reflected else (self.all_values, other)
        return MaskedSelection(BINARY[name](*pair), self.mask)

    @property
    def _trailing_rank(self) -> int:
        """Number of dimensions after those of the mask."""
        return self.all_values.type.rank - self.mask.type.rank

    def _check_differentiable(self, name: str, other: object) -> None:
        """Raise TracerError where elements that are not selected would make derivatives NaN."""
        scaled = name in ("multiply", "divide") and isinstance(other, (int, float))
        if STATE.tapes and name not in _LINEAR and not scaled:
            raise TracerError(
                use=f"{name} of chosen elements, differentiated,",
                value=self.mask.type_text,
                hint="Use sm.where(mask, f(sm.where(mask, x, safe)), x): what is not chosen counts"
                " for derivatives as well.",
            )


def select_masked(x: Value, key: Any) -> MaskedSelection | None:
    """Return x[key] if the key is a traced boolean mask, else None.

    The values of a traced mask are not computed yet.  Raises IndexRangeError for a mask that does
    not fit.
    """
    mask = _mask(key)
    if mask is None:
        return None
    assert mask.scope is not None
    check_mask_fits(x, mask)
    return MaskedSelection(x if x.scope is not None else mask.scope.capture(x), mask)


def write_masked(x: Value, key: Any, chosen: MaskedSelection) -> Value:
    """Return x after `x[key] = chosen`.

    Raises TracerError unless the key is the same mask, ShapeError, DTypeError.
    """
    mask, values = _mask(key), chosen.all_values
    if mask is None or not _is_same_computation(mask, chosen.mask):
        raise unknown_count_error(chosen.mask)
    check_mask_fits(x, mask)
    _check_ranks(x, values, mask)
    return _overlaid(x, mask, values)


def _overlaid(x: Value, mask: Value, values: Value) -> Value:
    """Return x with `values`, for all elements, where the mask is true."""
    shape = shape_of(x)
    mask = reshape(mask, (*shape_of(mask), *[1] * (x.type.rank - mask.type.rank)))
    return record(SELECT, (expand(mask, shape), expand(cast_same_kind(values, x), shape), x))


class UpdateSelection:
    """`x[mask]` as the operand of a statement `x[mask] += y` outside of recordings.

    Only the in-place operator and the write that follow see it.  Other operands than numbers, and
    arrays that vary along the mask's dimensions, need the selected elements: `read` returns them as
    an array, whose operator runs then.
    """

    __slots__ = ("mask", "read", "values", "x")

    def __init__(self, x: Value, mask: Value, read: Callable[[Value, Value], Any]) -> None:
        self.x = x
        self.mask = mask
        self.read = read
        self.values: Value | None = None
        """Results for all elements of x."""

    def update(self, name: str, function: str | None, other: Any) -> Any:
        """Apply an in-place operator: `name` is Python's, `function` one of `BINARY`."""
        y = other if isinstance(other, (bool, int, float)) else getattr(other, "node", None)
        if isinstance(y, Value):
            is_uniform = y.scope is None and y.type.rank <= self.x.type.rank - self.mask.type.rank
        else:
            is_uniform = y is not None
        if function is None or not is_uniform:
            return getattr(operator, name)(self.read(self.x, self.mask), other)
        values = BINARY[function](self.x, y)
        if shape_of(values) != shape_of(self.x):
            return getattr(operator, name)(self.read(self.x, self.mask), other)  # raises ShapeError
        self.values = values
        return self


def select_for_update(
    x: Value, key: Any, frame: Any, read: Callable[[Value, Value], Any]
) -> UpdateSelection | None:
    """Return the selection for `x[key] op= y` by a mask outside of recordings, else None.

    `frame` is the caller of `__getitem__`.  Raises IndexRangeError for a mask that does not fit.
    """
    mask = getattr(key, "node", None)
    if (
        not isinstance(mask, Value)
        or not is_mask(mask)
        or not mask.type.rank
        or STATE.scope is not None
        or STATE.tapes
        or x.scope is not None
        or mask.scope is not None
        or not _is_update(frame.f_code, frame.f_lasti)
    ):
        return None
    check_mask_fits(x, mask)
    return UpdateSelection(x, mask, read)


def write_update(x: Value, key: Any, chosen: UpdateSelection) -> Value | None:
    """Return x after `x[key] = chosen`; None if the right side has changed the mask."""
    if key.node is not chosen.mask or chosen.values is None:
        return None
    return _overlaid(x, chosen.mask, chosen.values)


_SUBSCRIPT = (
    (dis.opmap["BINARY_SUBSCR"], None)
    if "BINARY_SUBSCR" in dis.opmap
    else (dis.opmap["BINARY_OP"], [n for _, n in getattr(dis, "_nb_ops", ())].index("[]"))
)
"""Instruction, and its argument if that matters, which reads a subscript."""
_CACHE = dis.opmap.get("CACHE", 0)
_UPDATES: dict[tuple[int, int], tuple[bool, CodeType]] = {}
_UPDATES_LIMIT = 4096


def _is_update(code: CodeType, at: int) -> bool:
    """Return whether the instruction at an offset reads a subscript for `x[key] op= y`.

    Such a statement copies array and key on the stack first, and nothing else does.  Once the
    interpreter has specialised the instruction, the offset is that of its last cache entry.
    """
    cached = _UPDATES.get((id(code), at))
    if cached is None:
        if len(_UPDATES) >= _UPDATES_LIMIT:
            _UPDATES.clear()
        text, copy, start = code.co_code, dis.opmap["COPY"], at
        while start > 0 and text[start] == _CACHE:
            start -= 2
        op, argument = _SUBSCRIPT
        cached = _UPDATES[id(code), at] = (
            start >= 4
            and text[start] == op
            and argument in (None, text[start + 1])
            and text[start - 4 : start] == bytes((copy, 2, copy, 2)),
            code,
        )
    return cached[0]


def _mask(key: Any) -> Value | None:
    """Return the traced mask that is the only item of a key, else None."""
    (item,) = key if isinstance(key, tuple) and len(key) == 1 else (key,)
    if isinstance(item, (tuple, slice)) or item is None:
        return None
    index = index_item(item)
    return index if is_mask(index) and index.scope is not None and index.type.rank else None


def _check_ranks(a: Value, b: Value, mask: Value) -> None:
    """Raise ShapeError unless both have the same rank after the mask's dimensions."""
    if a.type.rank != b.type.rank:
        raise ShapeError.of("x[mask]", f"{mask.type_text} leaves them different ranks", a, b)


def _is_same_computation(a: Any, b: Any) -> bool:
    """Return whether two values are computed by the same operators from the same inputs."""
    stack, visited = [(a, b)], set[tuple[int, int]]()
    while stack:
        x, y = pair = stack.pop()
        if x is y or (id(x), id(y)) in visited:
            continue
        visited.add((id(x), id(y)))
        if x.op != y.op or x.type != y.type or isinstance(x.op, Input):
            return False
        if len(x.inputs) != len(y.inputs):
            return False
        stack += zip(*(z.inputs for z in pair), strict=True)
    return True


def _operator(name: str, *, reflected: bool = False) -> Callable[[MaskedSelection, Any], Any]:
    return lambda self, other: self.apply_binary(name, other, reflected=reflected)


def _in_place(name: str) -> Callable[[MaskedSelection, Any], Any]:
    def run(self: MaskedSelection, other: Any) -> Any:
        result = self.apply_binary(name, other)
        if isinstance(
            result, MaskedSelection
        ):  # keep the identity: other names may refer to x[mask]
            self.all_values = result.all_values
            return self
        return result

    return run


def _function(name: str) -> Callable[[MaskedSelection], MaskedSelection]:
    return lambda self: self.apply_unary(name)


def _unreadable(self: MaskedSelection, *_: Any, **__: Any) -> NoReturn:
    raise unknown_count_error(self.mask)


def _update(name: str, function: str | None) -> Callable[[UpdateSelection, Any], Any]:
    return lambda self, other: self.update(name, function, other)


for _name in (*ARITHMETIC, "matmul"):
    setattr(UpdateSelection, f"__i{_name}__", _update(f"i{_name}", ARITHMETIC.get(_name)))
for _name, _row in ARITHMETIC.items():
    setattr(MaskedSelection, f"__{_name}__", _operator(_row))
    setattr(MaskedSelection, f"__r{_name}__", _operator(_row, reflected=True))
    setattr(MaskedSelection, f"__i{_name}__", _in_place(_row))
for _name, _row in COMPARISONS.items():
    setattr(MaskedSelection, f"__{_name}__", _operator(_row))
for _name, _row in _UNARY.items():
    setattr(MaskedSelection, f"__{_name}__", _function(_row))
for _name in _UNREADABLE:
    setattr(MaskedSelection, f"__{_name}__", _unreadable)
