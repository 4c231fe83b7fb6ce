"""Split an axis that accesses divide, as i//s and i%s, into two axes.

A group norm walks its group contiguously, but its gains change every s positions: with i = a*s + b
the gain is read once for each a, and the loop over b is contiguous.

Constant divisors are left alone: they are multiples of a vector, where nothing changes between
lanes, or short.  So are rows of a contraction none of whose accesses would be contiguous
(`x[i%s,i//s,k]`, a sequence before its batch): one of the two axes would make a separate
contraction for each of its positions, of s rows, each of which packs all of the other operand,
whereas a division finds the row.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.collapse_axes import is_bound, substitute_axes
from smelt.codegen.llvm.loopir.items import Item, Phase
from smelt.codegen.llvm.loopir.rewrite import rebuild
from smelt.ops.contract import bare_axis
from smelt.types.affine import coefficient
from smelt.types.expr import (
    Index,
    add,
    atoms,
    axes_of,
    axis,
    floordiv,
    mod,
    mul,
    substitute,
)


def split_axes(phase: Phase) -> Phase:
    """Split every axis that all its quotients allow to split."""
    for name in list(phase.axes):
        step = _divisor(phase, name)
        if step is not None:
            phase = _split(phase, name, step)
    return phase


def _divisor(phase: Phase, name: str) -> Index | None:
    """Return a symbolic divisor of the axis in some index that divides its extent evenly."""
    if name in phase.cut or is_bound(phase, name):
        return None
    for item in phase.items:
        if isinstance(item, ssa.Scan) and name in item.over:
            return None
    extent = phase.axes[name]
    for e in _indices(phase):
        for atom in atoms(e):
            if atom.kind not in ("//", "%") or isinstance(atom.args[1], int):
                continue
            if bare_axis(atom.args[0]) == name and mod(extent, atom.args[1]) == 0:
                return None if _splits_contraction_rows(phase, name, atom.args[1]) else atom.args[1]
    return None


def _splits_contraction_rows(phase: Phase, name: str, step: Index) -> bool:
    """Return whether an axis is a contraction's row axis whose inner part is never contiguous.

    All contractions with the axis have it in only one operand.
    """
    of_one_operand = [
        name in item.args[0].axes ^ item.args[1].axes
        for item in phase.items
        if isinstance(item, ssa.Dot) and name in item.axes
    ]
    if not of_one_operand or not all(of_one_operand):
        return False
    parts = _parts(phase, name, step)
    return all(coefficient(substitute(e, {name: parts}), f"{name}.1") != 1 for e in _indices(phase))


def _indices(phase: Phase) -> list[Index]:
    values = (i for i in phase.items if isinstance(i, (ssa.Load, ssa.IndexValue)))
    return [*(e for i in values for e in i.indices), *(s.access.offset for s in phase.stores)]


def _split(phase: Phase, name: str, step: Index) -> Phase:
    """Replace an axis by outer*step + inner everywhere."""
    parts = _parts(phase, name, step)
    new = {f"{name}.0": floordiv(phase.axes[name], step), f"{name}.1": step}
    both = substitute_axes(phase, {name: parts}, {name: new})
    return rebuild(both, lambda _, item: replace(item, axes=_axes(item)))


def _parts(phase: Phase, name: str, step: Index) -> Index:
    """Return the axis as an expression of its outer and inner part."""
    count = floordiv(phase.axes[name], step)
    return add(mul(axis(f"{name}.0", count), step), axis(f"{name}.1", step))


def _axes(item: Item) -> frozenset[str]:
    """Return the axes that an item varies along, from its operands and index expressions."""
    axes = ssa.union_of_axes(item.args)
    match item:
        case ssa.StateRead(state=state):
            return state.axes
        case ssa.Load() | ssa.IndexValue():
            return axes.union(*map(axes_of, item.indices))
        case ssa.Scan(over=over):
            return axes | {*over}
        case ssa.Reduction(over=over):
            return axes - {*over}
        case _:
            return axes
