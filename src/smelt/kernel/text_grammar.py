"""Grammar shared by the kernel printer and parser: precedence, keywords, literal types.

A number, axis, size or position has no type of its own in the text. It takes the type of the
other operand, or of its context, or else f32 (numbers) or i64 (positions). Where that would be
wrong the type is written as a call: `f64(0)`, `i32(n)`.

>>> operand_types("lt", ("index", i64)), operand_types("add", ("number", None, "number"))
((i64, i64), None)
"""

from __future__ import annotations

import re
from collections.abc import Collection
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from smelt.kernel.ir import NO_EXPONENT, Const, Extreme, IndexValue, Value
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, bool_, f32, i32, i64
from smelt.types.expr import Expr

__all__ = [
    "BINARY",
    "EXTREMES",
    "LEVELS",
    "RESERVED",
    "UNARY",
    "Flexible",
    "OperandType",
    "bare_type",
    "extreme_word",
    "flexible",
    "i64",
    "operand_types",
    "plain_index",
    "words_in",
]

_LEVELS: Final = (
    ("if",),
    ("else",),
    ("==", "!=", "<", "<=", ">", ">="),
    ("|",),
    ("^",),
    ("&",),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "//", "%"),
    ("unary",),
    ("atom",),
)
LEVELS: Final = MappingProxyType(
    {symbol: level for level, symbols in enumerate(_LEVELS) for symbol in symbols}
)
"""Binding strength by symbol, loosest first; as in Python, but comparisons do not chain."""

BINARY: Final = MappingProxyType(
    {row.infix: row.name for row in SCALARS.values() if row.arity == 2 and row.infix in LEVELS}
)
"""Infix scalar operators by symbol."""

UNARY: Final = MappingProxyType({"-": "neg", "~": "not"})
"""Prefix scalar operators by symbol."""

RESERVED: Final = frozenset(
    {"if", "else", "where", "over", "along", "as", "in", "of", "from", "to", "with", "for", "each"}
) | {"seeing", "inf", "nan", "none", "true", "false"}
"""Words that cannot name an axis, a position, a value or a state."""

Flexible: TypeAlias = Literal["number", "index"]
OperandType: TypeAlias = DType | Flexible | None
"""Knowledge of an operand's type: the type, the kind of untyped literal, or None."""


def flexible(value: Value) -> Flexible | None:
    """Return the literal kind of a value that takes its type from context, else None."""
    if isinstance(value, Const):
        is_keyword = value.dtype == i32 and value.value == NO_EXPONENT
        return None if value.dtype == bool_ or is_keyword else "number"
    return "index" if isinstance(value, IndexValue) else None


def bare_type(kind: Flexible, expected: DType | None) -> DType:
    """Return the type of an untyped number or index where `expected` is wanted."""
    return expected or (f32 if kind == "number" else i64)


def operand_types(op: str, operands: tuple[OperandType, ...]) -> tuple[DType | None, ...] | None:
    """Infer the types of a scalar operator's operands, untyped ones included.

    Returns None if there is no such operator with that many operands.
    """
    row = SCALARS.get(op)
    if row is None or row.arity != len(operands):
        return None
    lead = row.rule.accepts[row.rule.lead]
    shares_lead = [
        kinds == lead and place not in row.rule.free for place, kinds in enumerate(row.rule.accepts)
    ]
    shared: DType | None = None
    if any(k is None for k, same in zip(operands, shares_lead, strict=True) if same):
        return tuple(k if isinstance(k, DType) else None for k in operands)
    for k, same in zip(operands, shares_lead, strict=True):
        if same and isinstance(k, DType):
            shared = k
            break
    if shared is None:
        kinds = {k for k, same in zip(operands, shares_lead, strict=True) if same}
        shared = _default_type("index" in kinds, lead)
    fixed = dict(row.rule.fixed)
    return tuple(
        k
        if isinstance(k, DType)
        else shared
        if same
        else fixed.get(place) or _default_type(k == "index", row.rule.accepts[place])
        for place, (k, same) in enumerate(zip(operands, shares_lead, strict=True))
    )


def _default_type(index: bool, accepts: Collection[str]) -> DType:
    """Return the type of untyped operands that no other operand determines."""
    if "int" in accepts and (index or "float" not in accepts):
        return i64 if index else i32
    return f32 if "float" in accepts else bool_


def plain_index(value: IndexValue) -> bool:
    """Return whether the index is a single axis, size or position, printed without `index()`."""
    e = value.index
    if not isinstance(e, Expr) or len(e.terms) != 1:
        return False
    (atoms, factor) = e.terms[0]
    return factor == 1 and len(atoms) == 1 and atoms[0].kind in ("axis", "size", "value")


EXTREMES: Final = MappingProxyType(
    {"first": (True, False), "last": (True, True), "least": (False, False), "most": (False, True)}
)
"""Keywords for block extremes: (is the argument an axis, is it the largest)."""


def extreme_word(value: Extreme) -> str:
    """Return the keyword for a block extreme."""
    arg = value.arg
    atoms = (
        arg.index.terms[0][0]
        if isinstance(arg, IndexValue) and plain_index(arg) and isinstance(arg.index, Expr)
        else ()
    )
    of_axis = any(a.kind == "axis" for a in atoms)
    return next(w for w, key in EXTREMES.items() if key == (of_axis, value.largest))


_NAME = re.compile(r"[^\W\d]\w*")


def words_in(text: str) -> list[str]:
    """Return the identifiers in a text in order of first occurrence, without comments."""
    return list(dict.fromkeys(_NAME.findall(re.sub(r"#[^\n]*", "", text))))
