"""Families of elementwise operators: promotion and broadcasting of their operands.

A family implements `sm.add` or `x + y` for operands of any type: it promotes dtypes, converts
integers to floats where needed (division), checks that shapes broadcast, and records an operator of
the scalar table.

>>> from smelt.frontends.array.convert import from_host
>>> x = from_host(np.ones((2, 1), np.float32))
>>> BINARY["divide"](x, 2).type
TensorType(dtype=f32, shape=(2, 1))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from smelt.errors import ArgumentError, DTypeError
from smelt.frontends.array.at_once import Sighting
from smelt.frontends.array.promote import (
    cast,
    has_numpys_rules,
    promote_comparison,
    promote_operands,
)
from smelt.frontends.array.sizes import mismatch
from smelt.frontends.array.structure import STRUCTURES, applied, note, structure_of
from smelt.frontends.array.value import (
    STATE,
    Value,
    apply,
    computed_into,
    constant,
    is_at_once,
    record,
    sighting,
)
from smelt.ops.create import Constant
from smelt.ops.elementwise import Map
from smelt.ops.scalar import SCALARS
from smelt.python.origin import here
from smelt.types.dtype import DType, bool_, f64, i8
from smelt.types.tensor import TensorType

if TYPE_CHECKING:
    from smelt.frontends.array.scope import Scope

OperandRule = Literal["same", "float"]
""""same" keeps the operands' dtype, "float" converts integers to float64."""

_TYPES_LIMIT = 8192
"""Maximum pairs of operand types that a function remembers."""
_NUMBERS = frozenset((bool, int, float))
_EXACT = range(-(2**53), 2**53)
"""Integers that are converted to floats without a check."""


class _NumberTypes(NamedTuple):
    """Types of an operator between an array and a Python number that needs no cast."""

    result: Sighting
    array: TensorType
    """Alive, because keys hold its identity."""
    dtype: DType
    is_float: bool
    range: range
    """Integers that are operands as they are; others need the checks of the general path."""


class Unary:
    """Elementwise function of one array."""

    def __init__(self, what: str, row: str, wide: OperandRule) -> None:
        self.what = what
        self.op = Map(row)
        self.operand_rule: OperandRule = wide

    def __call__(self, x: Value) -> Value:
        """Record the function applied to `x`.

        Raises DTypeError for dtypes that the operator does not accept.
        """
        if x.__class__ is Value and x.data is None:
            repeated = record_again(self, x)
            if repeated is not None:
                return repeated
        if self.operand_rule == "float" and not x.type.dtype.is_float:
            return self(cast(x, f64))
        try:
            result = record(self.op, (x,))
            return result if result.data is not None else note_family(self, result)
        except DTypeError as error:
            raise row_error(self.what, error, x) from None


class Binary:
    """Elementwise function of two arrays, or of an array and a Python number."""

    def __init__(self, what: str, row: str, wide: OperandRule) -> None:
        self.what = what
        self.op = Map(row)
        self.operand_rule: OperandRule = wide
        self.promote_operands = _PROMOTIONS.get(row, promote_operands)
        self.result_types: dict[tuple[int, int], Sighting] = {}
        self.number_types: dict[tuple[int, type, bool], _NumberTypes] = {}
        """Types for the type of an array, the class of a number, and whether that is first."""

    def __call__(self, x: Value | Any, y: Value | Any) -> Value:
        """Record the function applied to `x` and `y`, one of which may be a number.

        Raises ShapeError, DTypeError, and RangeError for a number beyond the array's dtype.
        """
        if x.__class__ is Value and y.__class__ is Value and (x.data is None or y.data is None):
            repeated = record_again(self, x, y)
            if repeated is not None:
                return repeated
        if isinstance(x, Value) and isinstance(y, Value):
            scope = x.scope
            if scope is not None and scope is y.scope:
                return self._recorded(scope, x, y)
            types = self.result_types.get((id(x.type), id(y.type)))
            outside = scope is None and y.scope is None and STATE.scope is None
            if types is not None and outside:
                result = apply(types, (x, y), 3)
                return result if result.data is not None else note_family(self, result)
        elif x.__class__ in _NUMBERS or y.__class__ in _NUMBERS:
            scope = getattr(x, "scope", None) or getattr(y, "scope", None)
            if scope is not None:
                return self._recorded(scope, *self.promote_operands(self.what, x, y))
            swapped = isinstance(y, Value)
            if STATE.scope is None and (swapped or isinstance(x, Value)):
                array: Any
                number: Any
                array, number = (y, x) if swapped else (x, y)
                cached = self.number_types.get((id(array.type), number.__class__, swapped))
                if cached is not None and (number.__class__ is float or number in cached.range):
                    operand = constant(float(number) if cached.is_float else number, cached.dtype)
                    pair = (operand, array) if swapped else (array, operand)
                    if array.__class__ is Value and array.data is None:
                        repeated = record_again(cached.result, *pair)
                        if repeated is not None:
                            return repeated
                    return apply(cached.result, pair, 3)
        pair = self._promoted(x, y)
        of_bools = self._of_bools(*pair)
        if of_bools is not None:
            return of_bools
        result = self._record(*pair)
        if result.scope is None:
            seen = sighting(self.op, (pair[0].type, pair[1].type))
            self._remember_number(x, y, pair, seen)
            if len(self.result_types) > _TYPES_LIMIT:
                self.result_types.clear()
            self.result_types[id(pair[0].type), id(pair[1].type)] = seen
        return result

    def into(self, x: Value, y: Value | Any, is_needed: bool) -> bool:
        """Write the result into the elements of `x`; return whether NumPy does that now.

        It does what `is_needed` at once, even if compiling such operators is paid for.
        """
        if isinstance(y, Value):
            seen = self.result_types.get((id(x.type), id(y.type)))
        else:
            cached = self.number_types.get((id(x.type), y.__class__, False))
            if cached is None or not (y.__class__ is float or y in cached.range):
                return False
            seen = cached.result
            y = constant(float(y) if cached.is_float else y, cached.dtype)
        return seen is not None and seen.type is x.type and computed_into(seen, (x, y), is_needed)

    def _remember_number(
        self, x: Value | Any, y: Value | Any, pair: tuple[Value, Value], seen: Sighting
    ) -> None:
        """Note the types of an array and a number, unless the array was cast."""
        swapped = isinstance(y, Value)
        array, number = (y, x) if swapped else (x, y)
        if not isinstance(array, Value) or number.__class__ not in (int, float):
            return
        operand, used = pair if swapped else pair[::-1]
        dtype = operand.type.dtype
        if used.type is not array.type or operand.op.__class__ is not Constant:
            return
        if dtype.is_float:
            held = _EXACT
        elif dtype.is_integer and number.__class__ is int:
            info = np.iinfo(dtype.numpy)
            held = range(0 if self.what == "pow" else int(info.min), int(info.max) + 1)
        else:
            return
        if len(self.number_types) > _TYPES_LIMIT:
            self.number_types.clear()
        key = id(array.type), number.__class__, swapped
        types = _NumberTypes(seen, array.type, dtype, dtype.is_float, held)
        self.number_types[key] = types

    def _recorded(self, scope: Scope, x: Value, y: Value) -> Value:
        """Record with operands of one recording, or one such and a number, using cached types."""
        key = self, id(scope.type(x.type)), id(scope.type(y.type))
        cached = scope.memo.get(key)
        if cached is not None:
            return scope.record_typed(self.op, (x, y), cached[0])
        bound = len(scope.bound)
        pair = self._promoted(x, y)
        of_bools = self._of_bools(*pair)
        if of_bools is not None:
            return of_bools
        result = self._record(*pair)
        if result.inputs[0] is x and result.inputs[1] is y and len(scope.bound) == bound:
            key_types = scope.type(x.type), scope.type(y.type)  # alive: keys are their identities
            scope.memo[key] = result.type, key_types
        return result

    def _of_bools(self, x: Value, y: Value) -> Value | None:
        """Return arithmetic of bools by NumPy's rules, None for other operators and modules."""
        if x.type.dtype is not bool_ or self.what not in _OF_BOOLS or not has_numpys_rules():
            return None
        other = _OF_BOOLS[self.what]
        return BINARY[other](x, y) if other else self(cast(x, i8), cast(y, i8))

    def _promoted(self, x: Value | Any, y: Value | Any) -> tuple[Value, Value]:
        """Promote and align operands that no cache knows."""
        x, y = self.promote_operands(self.what, x, y)
        if self.operand_rule == "float" and not x.type.dtype.is_float:
            x, y = cast(x, f64), cast(y, f64)
        align(self.what, x, y)
        return x, y

    def _record(self, x: Value, y: Value) -> Value:
        try:
            return record(self.op, (x, y))
        except DTypeError as error:
            raise row_error(self.what, error, x, y) from None


_OF_BOOLS = {"add": "logical_or", "multiply": "logical_and"} | dict.fromkeys(
    ("floor_divide", "remainder", "pow", "bitwise_left_shift", "bitwise_right_shift"), ""
)
"""Arithmetic of bools by NumPy's rules: the family that it is, or that of int8."""


def _promote_power(what: str, x: Value | Any, y: Value | Any) -> tuple[Value, Value]:
    """Return the promoted operands of a power.

    Raises ArgumentError for integers to a negative power, whose results are not integers.
    """
    if isinstance(y, int) and y < 0 and isinstance(x, Value) and x.type.dtype.is_integer:
        raise ArgumentError(
            f"{what}({x.type_text}, {y}): integers to a negative power are not integers",
            hint="Write x ** float(n), or convert x first: sm.astype(x, sm.float64) ** n.",
        )
    return promote_operands(what, x, y)


_PROMOTIONS: dict[str, Callable[[str, Any, Any], tuple[Value, Value]]] = {
    **{name: promote_comparison for name, row in SCALARS.items() if row.rule.result == "bool"},
    "pow": _promote_power,
}
"""Promotion of operands where it is not that of arithmetic."""


def row_error(what: str, error: DTypeError, *values: Value) -> DTypeError:
    """Return the error of an operator under the user's name for the function."""
    named = ", ".join(x.type_text for x in values)
    return DTypeError(f"{what}({named}): {error.detail or error.message}")


def align(what: str, *values: Value) -> tuple[TensorType, ...]:
    """Check that shapes broadcast, and decide the equality of symbolic sizes.

    Returns the types in terms of unbound symbols.  Raises ShapeError naming both sizes.
    """
    for x in values:
        if x.scope is not None:
            return x.scope.broadcast(what, *[v.type for v in values])
    types = tuple(v.type for v in values)
    first = types[0].shape
    if all(t.shape == first or not t.shape for t in types[1:]):
        return types
    rank = max(len(t.shape) for t in types)
    for from_end in range(1, rank + 1):
        size = 1
        for t in types:
            dim = t.shape[-from_end] if from_end <= len(t.shape) else 1
            if dim not in (1, size):
                if size != 1:
                    raise mismatch(what, types, -from_end, (size, dim))
                size = dim
    return types


_UNARY: dict[OperandRule, str] = {
    "same": """
        abs negative sign square floor ceil round trunc isnan isinf isfinite bitwise_invert
        logical_not
    """,
    "float": """
        reciprocal sqrt rsqrt signbit exp expm1 exp2 log log1p log2 log10 sin cos tan asin acos
        atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid
    """,
}
_BINARY: dict[OperandRule, str] = {
    "same": """
        add subtract multiply floor_divide remainder pow maximum minimum equal not_equal less
        less_equal greater greater_equal bitwise_and bitwise_or bitwise_xor logical_and logical_or
        logical_xor bitwise_left_shift bitwise_right_shift
    """,
    "float": "divide atan2 hypot logaddexp copysign nextafter",
}
"""Rule for operands -> functions."""
_RENAMED: Final = """
    negative neg  bitwise_invert not  logical_not not  subtract sub  multiply mul  divide div
    floor_divide floordiv  remainder mod  maximum max  minimum min  equal eq  not_equal ne
    less lt  less_equal le  greater gt  greater_equal ge  bitwise_and and  bitwise_or or
    bitwise_xor xor  logical_and and  logical_or or  logical_xor xor  bitwise_left_shift shl
    bitwise_right_shift shr
"""
_ROWS: dict[str, str] = dict(zip(_RENAMED.split()[::2], _RENAMED.split()[1::2], strict=True))
"""Function -> its scalar operator, where that has another name."""
UNARY = {f: Unary(f, _ROWS.get(f, f), rule) for rule, fs in _UNARY.items() for f in fs.split()}
BINARY = {f: Binary(f, _ROWS.get(f, f), rule) for rule, fs in _BINARY.items() for f in fs.split()}
ARITHMETIC: Final = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "pow", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}  # fmt: skip
"""Python's operator, which has reflected and in-place forms -> function."""
COMPARISONS: Final = {
    _ROWS[f]: f for f in ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
}
"""Python's comparison -> function."""


def record_again(what: Any, x: Any, y: Any = None, depth: int = 3) -> Value | None:
    """Record an operator on a pending value, and perhaps another value or a number.

    `what` is its sighting, or a family that was noted for their structures.  No other code may see
    the values' memory.  None if `what` does not tell the operator, or if NumPy may compute it now.
    """
    state = STATE
    epoch = state.epochs.current
    of, a = x.structure
    other, b = (None, None) if y is None else y.structure
    waiting: Any
    if of is epoch and x.data is None:
        waiting = a
    elif y is not None and other is epoch and y.data is None:
        waiting = b
    else:
        return None
    if state.scope is not None or (waiting.key[0].is_kept and is_at_once()):
        return None
    if of is not epoch:
        a = structure_of(x, epoch)
    elif other is not epoch and y is not None:
        b = structure_of(y, epoch)
    key = (what, a) if y is None else (what, a, b)
    structure = STRUCTURES.get(key)
    if structure is None:
        if what.__class__ is not Sighting or None in key:
            return None
        structure = applied(key)
    seen = structure.key[0]
    value = Value(seen.op, (x,) if y is None else (x, y), seen.type, here(depth))
    value.structure = (epoch, structure)
    return value


def note_family(family: object, result: Value) -> Value:
    """Note what a family's operator on values of some structures is, for `record_again`."""
    structure = result.structure[1]
    if structure is not None:
        note((family, *structure.key[1:]), structure)
    return result
