"""Parse the text that `expr.text` prints.

>>> parse("n*4 + i//2", lambda name: size(name))
n*4 + i//2
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache

from smelt.types.expr import Index, add, floordiv, maximum, minimum, mod, mul, size, sub

_BINARY: dict[type[ast.operator], Callable[[Index, Index], Index]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}
_CALLS: dict[str, Callable[[Index, Index], Index]] = {"min": minimum, "max": maximum}


def parse(source: str, resolve: Callable[[str], Index]) -> Index:
    """Parse an expression; `resolve` gives the meaning of a bare name.

    `size(n)` always means the size symbol n. Raises ValueError for anything else than integers,
    names, + - * // %, min and max.
    """
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not an index expression: {source!r}") from error
    return _read(tree, resolve)


@lru_cache(maxsize=4096)
def parse_sizes(source: str) -> Index:
    """Parse an expression in which every name is a size; cached."""
    return parse(source, size)


def _read(node: ast.expr, resolve: Callable[[str], Index]) -> Index:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return resolve(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return mul(_read(operand, resolve), -1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_read(left, resolve), _read(right, resolve))
        case ast.Call(func=ast.Name(id="size"), args=[ast.Name(id=name)]):
            return size(name)
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _CALLS:
            return _CALLS[name](_read(left, resolve), _read(right, resolve))
        case _:
            raise ValueError(f"not an index expression: {ast.unparse(node)!r}")
