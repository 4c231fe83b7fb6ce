"""Nests of arguments and results: taken apart into leaves, described by a hashable shape, put back.

Tuples, lists, dicts, named tuples, dataclasses and None are containers; everything else is a leaf.

>>> leaves, tree = flatten({"w": 1, "rest": [2, (3, None)]})
>>> leaves, unflatten(tree, iter([10, 20, 30]))
([1, 2, 3], {'w': 10, 'rest': [20, (30, None)]})
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from smelt.errors import StructureError

__all__ = ["LEAF", "Tree", "flatten", "leaves_like", "paths", "unflatten"]

LEAF = "leaf"
Tree = Hashable
"""LEAF, or (kind, type, names, children)."""


def flatten(nest: Any) -> tuple[list[Any], Tree]:
    """The leaves in order, and the tree they hang on."""
    leaves: list[Any] = []
    return leaves, _take(nest, leaves)


def _take(x: Any, leaves: list[Any]) -> Tree:
    kind = type(x)
    if kind is tuple or kind is list:
        return "sequence", kind, None, tuple([_take(item, leaves) for item in x])
    if kind is dict or kind is OrderedDict:
        return "mapping", kind, tuple(x), tuple([_take(item, leaves) for item in x.values()])
    if x is None:
        return "none", None, None, ()
    if isinstance(x, tuple) and hasattr(kind, "_fields"):
        return "named", kind, kind._fields, tuple([_take(item, leaves) for item in x])
    if is_dataclass(x) and not isinstance(x, type) and not hasattr(kind, "__dlpack__"):
        names = tuple(f.name for f in fields(x))
        return "record", kind, names, tuple([_take(getattr(x, n), leaves) for n in names])
    leaves.append(x)
    return LEAF


def unflatten(tree: Any, leaves: Iterator[Any]) -> Any:
    """The nest that `flatten` took apart, with other leaves."""
    if tree is LEAF or tree == LEAF:
        return next(leaves)
    kind, type_, names, children = tree
    if kind == "none":
        return None
    parts = [unflatten(child, leaves) for child in children]
    if kind == "mapping":
        return type_(zip(names, parts))
    if kind == "record":
        return _record(type_, names, parts)
    return type_(*parts) if kind == "named" else type_(parts)


def _record(type_: Any, names: tuple[str, ...], parts: list[Any]) -> Any:
    """A dataclass without running its __init__, which may convert or check its arguments."""
    made = object.__new__(type_)
    for name, part in zip(names, parts):
        object.__setattr__(made, name, part)
    return made


def leaves_like(what: str, nest: Any, tree: Any, path: str = "") -> list[Any]:
    """The leaves of `nest`, which the user calls `what`, in the order of those on `tree`.

    Where the tree has a tuple, a named one or a list, any of them is taken if it is as long; a dict
    is taken by its keys, in whatever order.  Raises StructureError that says where they part.
    """
    if tree is LEAF or tree == LEAF:
        if _take(nest, []) != LEAF:
            raise _parted(what, path, _kind(nest), "one array")
        return [nest]
    kind, type_, names, children = tree
    found = _take_apart(kind, type_, names, nest)
    if found is None or len(found) != len(children):
        raise _parted(what, path, _kind(nest), _told(kind, type_, names, len(children)))
    keys = names if names is not None else range(len(children))
    return [
        leaf
        for key, item, child in zip(keys, found, children, strict=True)
        for leaf in leaves_like(what, item, child, f"{path}[{key!r}]")
    ]


def _take_apart(kind: str, type_: Any, names: Any, nest: Any) -> list[Any] | None:
    """What hangs on a container like this one, in its order; None if the nest has none like it."""
    if kind == "none":
        return [] if nest is None else None
    if kind == "mapping":
        alike = isinstance(nest, dict) and nest.keys() == set(names)
        return [nest[name] for name in names] if alike else None
    if kind == "record":
        return [getattr(nest, name) for name in names] if type(nest) is type_ else None
    named = getattr(nest, "_fields", names)
    alike = isinstance(nest, tuple | list) and (names is None or named == names)
    return list(nest) if alike else None


def _parted(what: str, path: str, found: str, wanted: str) -> StructureError:
    return StructureError(
        f"{what}{path} is {found}, the result there is {wanted}",
        hint=f"Give {what} the nesting of the result, with an array for each array.",
    )


def _kind(nest: Any) -> str:
    tree: Any = _take(nest, [])
    if tree == LEAF:
        return "one array"
    kind, type_, names, parts, *_ = tree
    return _told(kind, type_, names, len(parts))


def _told(kind: str, type_: Any, names: Any, count: int) -> str:
    """A container in words."""
    if kind == "none":
        return "None"
    keys = f" ({', '.join(map(str, names))})" if names else ""
    return f"a {type_.__name__} of {count}{keys}"


def paths(tree: Any, prefix: str = "") -> list[str]:
    """A name for each leaf: `params.w`, `rest.1.0`; the empty prefix for a lone leaf."""
    if tree is LEAF or tree == LEAF:
        return [prefix]
    _, _, names, children = tree
    keys = names if names is not None else range(len(children))
    return [
        path
        for key, child in zip(keys, children)
        for path in paths(child, f"{prefix}.{key}" if prefix else str(key))
    ]
