"""Parse the text that `expr.text` prints.

>>> parse("n*4 + i//2", lambda name: size(name))
n*4 + i//2
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import lru_cache

from smelt.types.expr import Index, add, floordiv, maximum, minimum, mod, mul, size, sub
from smelt.types.text_limits import BeyondLimit, beyond_limits, too_large, too_large_product

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
    names, + - * // %, min and max, and for expressions beyond `smelt.types.text_limits`.
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
