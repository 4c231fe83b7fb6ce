"""Read and print texts of numbers, index expressions and types, within limits.

What is longer or deeper than a limit is refused before it costs time or stack.

>>> parse("n*4 + i//2", lambda name: size(name))
n*4 + i//2
>>> parse_type("f32[n*4, 3]"), parse_type("float32[min(m, n)]").dtype
(TensorType(dtype=f32, shape=(n*4, 3)), f32)
>>> beyond_limits("x + " + "1" * 500), beyond_limits("x + 1") is None
((4, 'a number of at most 400 digits'), True)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from smelt.errors import ExprTextError
from smelt.types.dtype import parse_in_text
from smelt.types.expr import (
    Expr,
    Index,
    add,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    size,
    sub,
    terms_of,
)
from smelt.types.tensor import TensorType

# ---- limits -------------------------------------------------------------------------------------

MAX_CHARACTERS: Final = 1 << 26
"""Maximum characters of a text."""
MAX_DIGITS: Final = 400
"""Maximum digits of a number, more than any element type prints."""
MAX_NESTED: Final = 40
"""Maximum brackets open at once, and most divisions inside one another."""
MAX_INDEX_TERMS: Final = 1024
"""Maximum terms of an index expression."""
MAX_FACTORS: Final = 16
"""Maximum variables in one term of an index expression."""
MAX_BITS: Final = 128
"""Maximum bits of a coefficient; a call allows 62."""


class BeyondLimit(ValueError):
    """An expression that breaks a limit; the message says what was expected."""


_LONG_NUMBER: Final = re.compile(rf"\d{{{MAX_DIGITS + 1},}}")


def beyond_limits(source: str) -> tuple[int, str] | None:
    """Return the position in a text that breaks a limit, and what was expected there."""
    if len(source) > MAX_CHARACTERS:
        return 0, f"a text of at most {MAX_CHARACTERS} characters"
    match = _LONG_NUMBER.search(source)
    return None if match is None else (match.start(), f"a number of at most {MAX_DIGITS} digits")


def too_large(e: Index) -> str:
    """Return which limit an index expression breaks, an empty string for none."""
    terms = terms_of(e)
    if len(terms) > MAX_INDEX_TERMS:
        return f"an index expression of at most {MAX_INDEX_TERMS} terms"
    if any(len(m) > MAX_FACTORS for m, _ in terms):
        return f"terms of at most {MAX_FACTORS} factors"
    if any(c.bit_length() > MAX_BITS for _, c in terms):
        return f"coefficients below 2**{MAX_BITS}"
    if isinstance(e, Expr) and _nesting(e) > MAX_NESTED:
        return f"at most {MAX_NESTED} divisions, minima and maxima inside one another"
    return ""


def too_large_product(a: Index, b: Index) -> str:
    """Return which limit the product of two expressions breaks, before it is computed."""
    if len(terms_of(a)) * len(terms_of(b)) > MAX_INDEX_TERMS:
        return f"an index expression of at most {MAX_INDEX_TERMS} terms"
    return ""


@lru_cache(maxsize=4096)
def _nesting(e: Expr) -> int:
    """Return how many operators of variables lie inside one another."""
    direct = {a for m, _ in e.terms for a in m if a.args}
    inner = [_nesting(x) for a in direct for x in a.args if isinstance(x, Expr)]
    return max(inner, default=0) + 1 if direct else 0


# ---- index expressions --------------------------------------------------------------------------

_BINARY: dict[type[ast.operator], Callable[[Index, Index], Index]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}
_NO_NUMBER = re.compile(r"(?<!\w)\d+[^\W\d]")
_CALLS: dict[str, Callable[[Index, Index], Index]] = {"min": minimum, "max": maximum}


def parse(source: str, resolve: Callable[[str], Index]) -> Index:
    """Parse an expression; `resolve` gives the meaning of a bare name.

    `size(n)` always means the size symbol n. Raises ValueError for anything else than integers,
    names, + - * // %, min and max, and for expressions beyond the limits.
    """
    limit = beyond_limits(source)
    if limit is not None:
        raise BeyondLimit(limit[1])
    if _NO_NUMBER.search(source):  # Python's parser would warn
        raise ValueError(f"not an index expression: {source!r}")
    try:
        return _read(ast.parse(source.strip(), mode="eval").body, resolve)
    except SyntaxError as error:
        raise ValueError(f"not an index expression: {source!r}") from error
    except (RecursionError, MemoryError) as error:  # how the parser of Python reports depth
        raise BeyondLimit("an index expression of fewer operators") from error


@lru_cache(maxsize=4096)
def parse_sizes(source: str) -> Index:
    """Parse an expression in which every name is a size; cached."""
    return parse(source, size)


def _read(node: ast.expr, resolve: Callable[[str], Index]) -> Index:
    steps: list[tuple[type[ast.operator], ast.expr]] = []
    while isinstance(node, ast.BinOp) and type(node.op) in _BINARY:  # a long sum leans left
        steps.append((type(node.op), node.right))
        node = node.left
    total = _read_operand(node, resolve)
    for kind, operand in reversed(steps):
        right = _read(operand, resolve)
        reason = too_large_product(total, right) if kind is ast.Mult else ""
        total = 0 if reason else _BINARY[kind](total, right)
        _check_limit(reason or too_large(total))
    return total


def _check_limit(reason: str) -> None:
    if reason:
        raise BeyondLimit(reason)


def _read_operand(node: ast.expr, resolve: Callable[[str], Index]) -> Index:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return resolve(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return mul(_read(operand, resolve), -1)
        case ast.Call(func=ast.Name(id="size"), args=[ast.Name(id=name)]):
            return size(name)
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _CALLS:
            extreme = _CALLS[name](_read(left, resolve), _read(right, resolve))
            _check_limit(too_large(extreme))
            return extreme
        case _:
            raise ValueError(f"not an index expression: {ast.unparse(node)!r}")


# ---- types --------------------------------------------------------------------------------------

_TYPE = re.compile(r"\s*([^\s\[\]]+)\s*\[([^\[\]]*)\]\s*")
"""Element type, and dimensions in brackets."""
_COMMA = re.compile(r",(?![^()]*\))")
"""Comma outside of `min(m, n)`."""


def parse_type(source: str) -> TensorType:
    """Return the type that a text names; the number of its element type counts bits.

    Raises ExprTextError for other text, DTypeError for an unknown element type.
    """
    match = _TYPE.fullmatch(source)
    if match is None:
        raise ExprTextError(f"{source!r} is not a type such as f32[n,4]")
    dims = _COMMA.split(match[2]) if match[2].strip() else []
    return TensorType(parse_in_text(match[1]), tuple(parse_dimension(d.strip()) for d in dims))


def parse_dimension(source: str) -> Index:
    """Return the number or expression over sizes that a text names.

    Raises ExprTextError.
    """
    try:
        return parse(source, size)
    except ValueError:
        raise ExprTextError(
            f"{source!r} is not a dimension",
            source=source,
            line=1,
            column=1,
            length=len(source),
            hint="Use numbers, names of sizes, + - * // and %.",
        ) from None
