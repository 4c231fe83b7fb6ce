"""Flatten nested arguments and results to leaves, and restore them.

Tuples, lists, dicts, named tuples, dataclasses and None are containers, and so are complex arrays,
of their real and imaginary parts.  Everything else is a leaf.
The structure is described by a hashable `Tree`.

>>> leaves, tree = flatten({"w": 1, "rest": [2, (3, None)]})
>>> leaves, unflatten(tree, iter([10, 20, 30]))
([1, 2, 3], {'w': 10, 'rest': [20, (30, None)]})
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass, make_dataclass
from typing import Any, NamedTuple

import numpy as np

from smelt.errors import SaveError, StructureError

LEAF = "leaf"
Tree = Hashable
"""LEAF, or (kind, type, names, children)."""
_PAIRS: dict[type, tuple[Callable[[Any], tuple[Any, Any]], Callable[[Any, Any], Any]]] = {}
"""Type of complex numbers -> functions that take apart and join real and imaginary parts."""
_PARTS = ("real", "imag")


def register_pair(
    kind: type, split: Callable[[Any], tuple[Any, Any]], join: Callable[[Any, Any], Any]
) -> None:
    """Make a type a container of two leaves, the real and the imaginary part.

    Complex arrays of NumPy are joined as the type that is registered last.
    """
    _PAIRS[kind] = _PAIRS[np.ndarray] = split, join


def flatten(nest: Any) -> tuple[list[Any], Tree]:
    """Return the leaves of a nest in order, and its tree."""
    leaves: list[Any] = []
    return leaves, _flatten_into(nest, leaves)


def _flatten_into(x: Any, leaves: list[Any]) -> Tree:
    kind = type(x)
    if kind is tuple or kind is list:
        return "sequence", kind, None, tuple([_flatten_into(item, leaves) for item in x])
    if kind is dict or kind is OrderedDict:
        return (
            "mapping",
            kind,
            tuple(x),
            tuple([_flatten_into(item, leaves) for item in x.values()]),
        )
    if x is None:
        return "none", None, None, ()
    if isinstance(x, tuple) and hasattr(kind, "_fields"):
        return "named", kind, kind._fields, tuple([_flatten_into(item, leaves) for item in x])
    if is_dataclass(x) and not isinstance(x, type) and not hasattr(kind, "__dlpack__"):
        names = tuple(f.name for f in fields(x))
        return "record", kind, names, tuple([_flatten_into(getattr(x, n), leaves) for n in names])
    if kind in _PAIRS and (kind is not np.ndarray or _is_complex(x)):
        return "pair", None, _PARTS, tuple([_flatten_into(p, leaves) for p in _PAIRS[kind][0](x)])
    if kind is complex:  # a constant; text tells zeros of both signs apart
        return "constant", (repr(x), x), None, ()
    leaves.append(x)
    return LEAF


def unflatten(tree: Any, leaves: Iterator[Any]) -> Any:
    """Restore a nest from its tree, with other leaves."""
    if tree is LEAF or tree == LEAF:
        return next(leaves)
    kind, type_, names, children = tree
    if kind == "none":
        return None
    if kind == "constant":
        return type_[1]
    parts = [unflatten(child, leaves) for child in children]
    if kind == "pair":
        return _PAIRS[np.ndarray][1](*parts)
    if kind == "mapping":
        return type_(zip(names, parts))
    if kind == "record":
        return _restore_dataclass(type_, names, parts)
    return type_(*parts) if kind == "named" else type_(parts)


def _is_complex(x: Any) -> bool:
    return x.dtype.kind == "c"


def _restore_dataclass(type_: Any, names: tuple[str, ...], parts: list[Any]) -> Any:
    """Build a dataclass without its __init__, which may convert or check its arguments."""
    instance = object.__new__(type_)
    for name, part in zip(names, parts):
        object.__setattr__(instance, name, part)
    return instance


def leaves_like(what: str, nest: Any, tree: Any, path: str = "") -> list[Any]:
    """Return the leaves of `nest` in the order of those of `tree`.

    Tuples, named tuples and lists may replace each other if their lengths agree; dicts may have
    another order of keys.  `what` names the nest in errors.  Raises StructureError at the first
    difference.
    """
    if tree is LEAF or tree == LEAF:
        if _flatten_into(nest, []) != LEAF:
            raise _structure_error(what, path, _kind(nest), "one array")
        return [nest]
    kind, type_, names, children = tree
    items = _items_like(kind, type_, names, nest)
    if items is None or len(items) != len(children):
        raise _structure_error(
            what, path, _kind(nest), _describe(kind, type_, names, len(children))
        )
    keys = names if names is not None else range(len(children))
    return [
        leaf
        for key, item, child in zip(keys, items, children, strict=True)
        for leaf in leaves_like(what, item, child, f"{path}[{key!r}]")
    ]


def _items_like(kind: str, type_: Any, names: Any, nest: Any) -> list[Any] | None:
    """Return the items of a similar container in its order; None if `nest` is none."""
    if kind == "none":
        return [] if nest is None else None
    if kind == "constant":
        return [] if type(nest) is complex and repr(nest) == type_[0] else None
    if kind == "pair":
        is_complex = type(nest) in _PAIRS and np.dtype(nest.dtype).kind == "c"
        return list(_PAIRS[type(nest)][0](nest)) if is_complex else None
    if kind == "mapping":
        matches = isinstance(nest, dict) and nest.keys() == set(names)
        return [nest[name] for name in names] if matches else None
    if kind == "record":
        return [getattr(nest, name) for name in names] if type(nest) is type_ else None
    named = getattr(nest, "_fields", names)
    matches = isinstance(nest, tuple | list) and (names is None or named == names)
    return list(nest) if matches else None


def _structure_error(what: str, path: str, actual: str, expected: str) -> StructureError:
    return StructureError(
        f"{what}{path} is {actual}, the result there is {expected}",
        hint=f"Give {what} the nesting of the result, with an array for each array.",
    )


def _kind(nest: Any) -> str:
    tree: Any = _flatten_into(nest, [])
    if tree == LEAF:
        return "one array"
    kind, type_, names, parts, *_ = tree
    return _describe(kind, type_, names, len(parts))


def _describe(kind: str, type_: Any, names: Any, count: int) -> str:
    if kind == "none":
        return "None"
    if kind == "pair":
        return "a complex array"
    if kind == "constant":
        return f"the number {type_[0]}"
    keys = f" ({', '.join(map(str, names))})" if names else ""
    return f"a {type_.__name__} of {count}{keys}"


def paths(tree: Any, prefix: str = "") -> list[str]:
    """Return a name for each leaf: `params.w`, `rest.1.0`; `prefix` for a lone leaf."""
    if tree is LEAF or tree == LEAF:
        return [prefix]
    _, _, names, children = tree
    keys = names if names is not None else range(len(children))
    return [
        path
        for key, child in zip(keys, children)
        for path in paths(child, f"{prefix}.{key}" if prefix else str(key))
    ]


# ---- data ----------------------------------------------------------------------------------------

_PLAIN_TYPES: dict[str, type] = {t.__name__: t for t in (tuple, list, dict, OrderedDict)}


def tree_to_data(tree: Any) -> Any:
    """Return a tree as JSON data; classes are represented by their names.

    Trees of containers with equal names and fields have equal data.  Raises SaveError for a dict
    whose keys are not text, numbers or None.

    >>> tree_to_data(flatten({"w": 1, "rest": [2, None]})[1])
    ['mapping', 'dict', ['w', 'rest'], ['leaf', ['sequence', 'list', None, ['leaf', ['none']]]]]
    """
    if tree is LEAF or tree == LEAF:
        return LEAF
    kind, type_, names, children = tree
    if kind == "none":
        return ["none"]
    if kind == "constant":
        return ["constant", type_[0]]
    items = [tree_to_data(child) for child in children]
    if kind == "pair":
        return ["pair", items]
    keys = None if names is None else list(names)
    if any(not isinstance(key, str | int | float | None) for key in keys or ()):
        raise SaveError(what=f"a dict with the keys {keys}")
    return [kind, type_.__name__, keys, items]


def tree_from_data(data: Any) -> Tree:
    """Return the tree of `tree_to_data`; raises KeyError, TypeError or ValueError for other data.

    Named tuples become named tuples of that name and with those fields, and dataclasses too unless
    a field's name begins with an underscore: these become dataclasses.
    """
    if data == LEAF:
        return LEAF
    kind, *rest = data
    if kind == "none":
        return "none", None, None, ()
    if kind == "constant":
        return "constant", (str(rest[0]), complex(rest[0])), None, ()
    if kind == "pair":
        return "pair", None, _PARTS, tuple(map(tree_from_data, rest[0]))
    name, keys, items = rest
    children = tuple(map(tree_from_data, items))
    if kind == "sequence":
        return kind, {"tuple": tuple, "list": list}[name], None, children
    keys = tuple(keys)
    if len(keys) != len(children):
        raise ValueError(f"{len(keys)} keys for {len(children)} items")
    if kind == "mapping":
        return kind, _PLAIN_TYPES[name], keys, children
    if kind not in ("named", "record"):
        raise ValueError(f"a container of kind {kind!r}")
    if kind == "record" and any(key.startswith("_") for key in keys):
        return kind, make_dataclass(name, keys), keys, children
    fields: Any = [(key, Any) for key in keys]
    return "named", NamedTuple(name, fields), keys, children  # pyright: ignore[reportArgumentType]
