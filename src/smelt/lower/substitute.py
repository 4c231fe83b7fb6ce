"""Substitute names and axes in values."""

from __future__ import annotations

from dataclasses import replace

from smelt.kernel.ir import IndexValue, Load, Ref, Value
from smelt.kernel.walk import substitute_index, transform
from smelt.types.expr import Atom, Expr, Index, map_variables
from smelt.types.expr import value as position_index


def replace_names(value: Value, names: dict[str, Value]) -> Value:
    """Replace bound names and computed positions in a value."""

    def leaf(atom: Atom) -> Index:
        new = names.get(atom.name) if atom.kind == "value" else None
        if isinstance(new, Ref):
            return position_index(new.name, atom.extent)
        return Expr((((atom,), 1),))

    def change(v: Value) -> Value:
        match v:
            case Ref(name=name) if name in names:
                return names[name]
            case Load(index=index):
                return replace(v, index=tuple(map_variables(e, leaf) for e in index))
            case IndexValue(index=index):
                return replace(v, index=map_variables(index, leaf))
            case _:
                return v

    return transform(value, change)


def fix_axes(v: Value, at: dict[str, Index]) -> Value:
    """Fix axes of a load or index at given positions.

    A load that changes keeps its out-of-bounds constant.
    """
    match v:
        case Load(index=index, other=other, param=param):
            fixed = tuple(substitute_index(e, at) for e in index)
            return v if fixed == index else Load(param, fixed, other)
        case IndexValue(index=index):
            return replace(v, index=substitute_index(index, at))
        case _:
            return v
