"""Which operator a name of the text form means: `make("reduce.sum", {"axes": (0,)})`.

The text form writes an operator as its row's name and its attributes.  Rows with a family of
members (`reduce.sum`, `scan.prod`) print the member behind a dot; a scalar operator is its own
name.

>>> make("permute", {"perm": (1, 0)})
Permute(perm=(1, 0))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smelt.errors import UnknownNameError, nearest
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
"""Rows that are one operator each."""

FAMILIES: Mapping[str, tuple[type[TensorOp], str, tuple[str, ...]]] = {
    "reduce": (Reduce, "combine", tuple(COMBINES)),
    "scan": (Scan, "combine", tuple(n for n, c in COMBINES.items() if c.prefix is not None)),
    "scatter": (Scatter, "mode", ("put", "add", "mul", "max", "min")),
}
"""Rows with members: the class, the field that names the member, and the members."""


def make(name: str, attributes: Mapping[str, Any]) -> TensorOp:
    """The operator called `name` with the attributes that its printer gives.

    Raises UnknownNameError for a name that no row has, TypeError for attributes that do not fit.
    """
    if name in SCALARS:
        return _mapped(name, **attributes)
    kind = PLAIN.get(name)
    if kind is not None:
        return kind(**attributes)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(**attributes)
    family, _, member = name.partition(".")
    if family == "extern" and member in EXTERNS:
        return Extern(member, tuple(attributes.items()))
    if family in FAMILIES and member in FAMILIES[family][2]:
        row, field, _ = FAMILIES[family]
        return row(**{field: member, **attributes})
    close = nearest(name, list(operators()))
    raise UnknownNameError(
        kind="operator", name=name, suggestion=f"; did you mean {close}?" if close else ""
    )


def _mapped(scalar: str) -> TensorOp:
    return Map(scalar)


_SPECIAL: Mapping[str, Callable[..., TensorOp]] = {"contract": Contract.parse}


def operators() -> dict[str, type[TensorOp]]:
    """Every operator by the name that the text form gives it, in alphabetical order."""
    found: dict[str, type[TensorOp]] = dict.fromkeys(SCALARS, Map) | dict(PLAIN)
    found["contract"] = Contract
    for family, (row, _, members) in FAMILIES.items():
        found |= {f"{family}.{member}": row for member in members}
    found |= {f"extern.{name}": Extern for name in EXTERNS}
    return dict(sorted(found.items()))
