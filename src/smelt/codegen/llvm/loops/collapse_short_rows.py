"""Short rows become one run: a map over rows of 3 has vectors across the ends of its rows.

Vectors along rows of 3 are nearly empty.  Where all results follow one another without gaps, the
axes of such rows and the one around them become one axis, k, of which the others are quotients and
remainders; whatever is read along it is a run too, or repeats
(`smelt.codegen.llvm.loopir.periodic_index`):

    y[n,j] = x[n,j] + b[j]    is    y[k] = x[k] + b[k%3]
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.llvm.access.interleaved_loads import combs_of
from smelt.codegen.llvm.access.memory import FARTHEST_STEP
from smelt.codegen.llvm.access.permute_gather import can_pick
from smelt.codegen.llvm.access.vector_axis import lanes_of
from smelt.codegen.llvm.loopir.collapse_axes import put_axes
from smelt.codegen.llvm.loopir.items import Access, Phase
from smelt.codegen.llvm.loopir.periodic_index import LONGEST, pattern
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index, axes_of, axis, floordiv, mod, mul, substitute

MAPS = ("const", "index", "load", "apply", "cast")
"""What a phase is made of whose rows may be joined."""


def is_map(phase: Phase, *, scans: bool = False) -> bool:
    """Whether a phase is scalar operators on what it loads (and `scans`), and nothing else."""
    kinds = (*MAPS, "scan") if scans else MAPS
    plain = all(i.kind in kinds for i in phase.items) and not (phase.regions() or phase.cut)
    return plain and not (phase.places or phase.settings)


def flatten(phase: Phase, target: Target) -> bool:
    """Joins the axes of a map's short rows with the one around them, where all that is read allows
    it; says whether it did."""
    lanes = lanes_of(phase, target)
    run = _run(phase) if can_pick(target, lanes) else []
    inner = phase.axes[run[-1]] if len(run) > 1 else lanes
    if not isinstance(inner, int) or inner >= lanes:
        return False
    values = _places(phase, run)
    combs = combs_of(phase.items, lambda a: coefficient(substitute(a.offset, values), run[-1]))
    read = {a.offset for a in combs}
    if not all(
        e in read or _repeats((e, is_place), values, run[-1], lanes)
        for e, is_place in _indices(phase)
    ):
        return False
    _join(phase, run, values)
    return True


def _run(phase: Phase) -> list[str]:
    """The axes, outer to inner, that all results are walked along in one run, as far as rows are
    short and have a number of elements."""
    found: list[str] = []
    length: Index = 1
    while isinstance(length, int) and length <= LONGEST:
        free = set(phase.grid).intersection(*(s.axes for s in phase.stores)) - set(found)
        steps = {a: {coefficient(s.access.offset, a) for s in phase.stores} for a in free}
        following = [a for a in free if phase.axes[a] not in (0, 1) and steps[a] == {length}]
        if len(following) != 1:
            break
        found = [*following, *found]
        length = mul(length, phase.axes[following[0]])
    return found


def _places(phase: Phase, run: list[str]) -> dict[str, Index]:
    """The joined axes as quotients and remainders of the one that they become."""
    whole: Index = 1
    for a in run:
        whole = mul(whole, phase.axes[a])
    k = axis(run[-1], whole)
    found: dict[str, Index] = {}
    step: Index = 1
    for a in reversed(run):
        found[a] = floordiv(k, step) if a == run[0] else mod(floordiv(k, step), phase.axes[a])
        step = mul(step, phase.axes[a])
    return found


def _indices(phase: Phase) -> list[tuple[Index, bool]]:
    """Every index expression, and whether something is read or stored there."""
    found: list[tuple[Index, bool]] = []
    for item in phase.items:
        if isinstance(item.payload, Access):
            found.append((item.payload.offset, True))
            found += [(e, False) for e, _ in item.payload.limits]
        elif isinstance(item.payload, Expr):
            found.append((item.payload, False))
    return found


def _repeats(told: tuple[Index, bool], values: Mapping[str, Index], name: str, lanes: int) -> bool:
    e, is_place = told
    e = substitute(e, values)
    if name not in axes_of(e):
        return True
    step, found = coefficient(e, name), pattern(e, name)
    if isinstance(step, int) and abs(step) <= FARTHEST_STEP:
        return True
    return found is not None and (not is_place or found.span(lanes) <= 2 * lanes)


def _join(phase: Phase, run: list[str], values: dict[str, Index]) -> None:
    """The innermost axis of a run stands for all of it."""
    *outer, name = run
    whole: Index = 1
    for a in run:
        whole = mul(whole, phase.axes[a])
    phase.lanes = name if phase.lanes in outer else phase.lanes
    for item in phase.items:
        item.axes |= {name} if item.axes & {*outer} else set()
    put_axes(phase, values, drop=tuple(outer))
    phase.axes[name] = whole
