"""Find the names in a program's source: of an expression's value, and of what it calls.

`scores = q @ k.T` gives its value the name `scores`, and calls `matmul`. The source is parsed when
a report or an error needs a name, once per file; recording an operator costs nothing more.

>>> table = names_of_source("n, d = q.shape\\nscores = q @ k.T\\nu += scores")
>>> table.values[2, 9, 16], table.values[3, 0, 11]
('scores', 'u')
>>> table.items[1, 7, 14]
{0: 'n', 1: 'd'}
>>> table.calls[2, 9, 16]
('matmul', '@', 'q @ k.T')
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

Span: TypeAlias = tuple[int, int, int]
"""Line of an expression, from 1, and its columns in the line without indentation.

An expression of several lines ends with the first, as in `smelt.python.origin.Place`.
"""


class SourceNames(NamedTuple):
    """Names in one source text."""

    values: Mapping[Span, str]
    """Name of the variable, field or key that an expression becomes."""
    items: Mapping[Span, Mapping[int, str]]
    """Names of the items of an expression that is unpacked or indexed with a number."""
    calls: Mapping[Span, tuple[str, ...]]
    """What an expression calls: the function or Python's operator, and all of its text."""


_NO_NAMES = SourceNames({}, {}, {})
_OPERATORS: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("add", "+"),
    ast.Sub: ("sub", "-"),
    ast.Mult: ("mul", "*"),
    ast.Div: ("div", "/"),
    ast.FloorDiv: ("floordiv", "//"),
    ast.Mod: ("mod", "%"),
    ast.Pow: ("pow", "**"),
    ast.MatMult: ("matmul", "@"),
    ast.BitAnd: ("and", "&"),
    ast.BitOr: ("or", "|"),
    ast.BitXor: ("xor", "^"),
    ast.LShift: ("lshift", "<<"),
    ast.RShift: ("rshift", ">>"),
    ast.USub: ("neg", "-"),
    ast.Invert: ("invert", "~"),
    ast.Eq: ("eq", "=="),
    ast.NotEq: ("ne", "!="),
    ast.Lt: ("lt", "<"),
    ast.LtE: ("le", "<="),
    ast.Gt: ("gt", ">"),
    ast.GtE: ("ge", ">="),
}
"""Names and symbols of Python's operators, by the class of the syntax tree."""
MAX_EXPRESSION = 80
"""Maximum characters of an expression that is a name of what it computes."""


def names_of_file(file: str) -> SourceNames:
    """Return the names in a source file; none if it cannot be read or parsed."""
    lines = linecache.getlines(file)
    return names_of_source("".join(lines)) if lines else _NO_NAMES


@lru_cache(maxsize=64)
def names_of_source(source: str) -> SourceNames:
    """Return the names in a source text; none if it is not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return _NO_NAMES
    lines = source.splitlines()
    values: dict[Span, str] = {}
    items: dict[Span, dict[int, str]] = {}
    calls: dict[Span, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.AugAssign) and (called := _called(node)):
            span = _span(node, lines)
            calls.setdefault(span, (*called, *_text_of(span, lines)))
        for expression, name in _named(node):
            values.setdefault(_span(expression, lines), name)
        for expression, position, name in _named_items(node):
            items.setdefault(_span(expression, lines), {}).setdefault(position, name)
    return SourceNames(values, items, calls)


def _called(node: ast.expr | ast.AugAssign) -> tuple[str, ...]:
    """Return the names of the function or of Python's operator that an expression calls."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            path = ast.unparse(node.func)
            return (name, path) if path != name and len(path) <= MAX_EXPRESSION else (name,)
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.UnaryOp(op=op):
            return _OPERATORS.get(type(op), ())
        case ast.Compare(ops=[op]):
            return _OPERATORS.get(type(op), ())
        case ast.Subscript():
            return ("getitem", "[]")
        case ast.Attribute(attr=name):
            return (name,)
        case _:
            return ()


def _text_of(span: Span, lines: list[str]) -> tuple[str, ...]:
    line, start, end = span
    text = lines[line - 1].strip()[start:end]
    return (text,) if 0 < len(text) <= MAX_EXPRESSION else ()


def _span(node: ast.expr | ast.stmt, lines: list[str]) -> Span:
    line = lines[node.lineno - 1]
    raw, indent = line.encode(), len(line) - len(line.lstrip())
    start = len(raw[: node.col_offset].decode(errors="replace")) - indent
    if node.end_lineno == node.lineno and node.end_col_offset is not None:
        end = len(raw[: node.end_col_offset].decode(errors="replace")) - indent
    else:
        end = len(line.strip())
    return node.lineno, start, end


def _named(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the expressions that a syntax node names, and their names."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets), *_], value=ast.Tuple(elts=values)):
            if len(targets) == len(values):
                for target, value in zip(targets, values, strict=True):
                    yield from _of_target(target, value)
        case ast.Assign(targets=[target, *_], value=value):
            yield from _of_target(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _of_target(target, value)
        case ast.NamedExpr(target=target, value=value):
            yield from _of_target(target, value)
        case ast.AugAssign(target=target):
            yield from _of_target(target, node)
        case ast.keyword(arg=str(name), value=value):
            yield value, name
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    if key.value.isidentifier():
                        yield value, key.value
        case ast.FunctionDef(name=name):
            for value in _returned(node):
                if not isinstance(value, ast.Tuple | ast.Dict):
                    yield value, name
        case _:
            pass


def _returned(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield what a function returns, without what functions inside of it return."""
    pending: list[ast.AST] = [*function.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _of_target(
    target: ast.expr, value: ast.expr | ast.stmt
) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield value, name
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            yield target, name  # the instruction that stores is at the target
        case _:
            pass


def _named_items(node: ast.AST) -> Iterator[tuple[ast.expr, int, str]]:
    """Yield unpacked or indexed expressions, positions in them, and the names of these."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets), *_], value=ast.Tuple(elts=values)):
            for target, value in zip(targets, values, strict=False):
                yield from _named_item(target, value)
        case ast.Assign(targets=[ast.Tuple(elts=targets), *_], value=value):
            starred = [k for k, t in enumerate(targets) if isinstance(t, ast.Starred)]
            for k, target in enumerate(targets):
                if isinstance(target, ast.Name) and target.id.strip("_"):
                    position = k - len(targets) if starred and k > starred[0] else k
                    yield value, position, target.id
        case ast.Assign(targets=[target, *_], value=value):
            yield from _named_item(target, value)
        case ast.NamedExpr(target=target, value=value):
            yield from _named_item(target, value)
        case _:
            pass


def _named_item(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, int, str]]:
    if not (isinstance(target, ast.Name) and isinstance(value, ast.Subscript)):
        return
    try:
        position = ast.literal_eval(value.slice)
    except ValueError:
        return
    if isinstance(position, int) and target.id.strip("_"):
        yield value.value, position, target.id


_ASSIGNED = re.compile(r"(?:[\w.]+\.)?([^\W\d]\w*)\s*(?::[^=]+)?[-+*/@|&^%]?=(?!=)")


def assigned_in_line(text: str) -> str:
    """Return the variable that a line of source assigns to; empty without one.

    >>> assigned_in_line("self.h = x @ w"), assigned_in_line("if x == y:")
    ('h', '')
    """
    match = _ASSIGNED.match(text.strip())
    return match[1] if match else ""
