"""Map operator names of the text form to operators: `make("reduce.sum", {"axes": (0,)})`.

The text form writes an operator as its name and its attributes.  Families of operators
(`reduce.sum`, `scan.prod`) print the member after a dot; a scalar operator is its own name.

>>> make_operator("permute", {"perm": (1, 0)})
Permute(perm=(1, 0))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType
from typing import Any

from smelt.errors import UnknownNameError, nearest
from smelt.graph.loop import Loop
from smelt.ops.combine import COMBINES
from smelt.ops.contract import Contract
from smelt.ops.create import Constant, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.extern import EXTERNS, Extern
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Shear, Slice, Stop, Window
from smelt.types.dtype import DType
from smelt.types.expr import Expr
from smelt.types.tensor import MAX_BYTES

PLAIN: Mapping[str, type[TensorOp]] = {
    "cast": Cast,
    "concat": Concat,
    "constant": Constant,
    "expand": Expand,
    "flip": Flip,
    "gather": Gather,
    "iota": Iota,
    "pad": Pad,
    "permute": Permute,
    "reshape": Reshape,
    "size": SizeOf,
    "shear": Shear,
    "slice": Slice,
    "stop": Stop,
    "window": Window,
}
"""Operators without members, by name."""

FAMILIES: Mapping[str, tuple[type[TensorOp], str, tuple[str, ...]]] = {
    "reduce": (Reduce, "combine", tuple(COMBINES)),
    "scan": (Scan, "combine", tuple(n for n, c in COMBINES.items() if c.prefix is not None)),
    "scatter": (Scatter, "mode", ("put", "add", "mul", "max", "min")),
}
"""Operators with members: the class, the field that names the member, and the members."""


def make_operator(name: str, attributes: Mapping[str, Any]) -> TensorOp:
    """Return the operator called `name`, with its printed attributes.

    Raises UnknownNameError for an unknown name, TypeError for attributes that do not fit.
    """
    if name in SCALARS:
        return _make_map(name, **attributes)
    kind = PLAIN.get(name) or _SPECIAL.get(name)
    if kind is not None:
        return _typed(kind(**attributes))
    family, _, member = name.partition(".")
    if family == "extern" and member in EXTERNS:
        return Extern(member, tuple(attributes.items()))
    if family in FAMILIES and member in FAMILIES[family][2]:
        row, field, _ = FAMILIES[family]
        return _typed(row(**{field: member, **attributes}))
    close = nearest(name, list(operators()))
    raise UnknownNameError(
        kind="operator", name=name, suggestion=f"; did you mean {close}?" if close else ""
    )


def _typed(op: TensorOp) -> TensorOp:
    """Return `op` if its fields have the types that its class declares, else raise TypeError."""
    for f in fields(op):
        value = getattr(op, f.name)
        if not any(_fits(value, part) for part in str(f.type).split(" | ")):
            raise TypeError(f"{f.name} is a {f.type}, not {value!r}")
    return op


def _fits(value: Any, declared: str) -> bool:
    """Return whether an attribute has a type, spelled as in a class of operators."""
    if declared in ("Shape", "Terms"):
        return isinstance(value, tuple) and all(_fits(x, "Index") for x in value)
    if declared.startswith("tuple["):
        if not isinstance(value, tuple):
            return False
        inner = declared.removeprefix("tuple[").removesuffix("]").removesuffix(", ...")
        if inner == "tuple[str, Index]":
            shown = [x for x in value if isinstance(x, tuple) and len(x) == 2]
            pairs = [_fits(x[0], "str") and _fits(x[1], "Index") for x in shown]
            return len(pairs) == len(value) and all(pairs)
        return all(_fits(x, inner) for x in value)
    if declared == "Index" and isinstance(value, Expr):
        return True
    if declared in ("int", "Index"):
        return type(value) is int and abs(value) <= MAX_BYTES
    kind = _KINDS.get(declared)
    return kind is None or isinstance(value, kind)


_KINDS: Mapping[str, type] = {
    "DType": DType,
    "None": NoneType,
    "bool": bool,
    "float": float,
    "str": str,
}
"""Types of attributes by their spelling; those of fields that texts cannot set are left out."""


def _make_map(scalar: str) -> TensorOp:
    return Map(scalar)


_SPECIAL: Mapping[str, Callable[..., TensorOp]] = {"contract": Contract.parse, "loop": Loop.parse}


def operators() -> dict[str, type[TensorOp]]:
    """Return every operator class by its name in the text form, in alphabetical order."""
    result: dict[str, type[TensorOp]] = dict.fromkeys(SCALARS, Map) | dict(PLAIN)
    result["contract"] = Contract
    result["loop"] = Loop
    for family, (row, _, members) in FAMILIES.items():
        result |= {f"{family}.{member}": row for member in members}
    result |= {f"extern.{name}": Extern for name in EXTERNS}
    return dict(sorted(result.items()))
