"""Plans of this process, by the graphs that they were made for.

A graph finds the plan of an equal one, and of one that it is an instance of: a trace with other
numbers, or one where two sizes of the other are the same size, because the tracer knew of a reason.
A plan is made anew where there is much more to compute than it was made for, or other room for
constants.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from smelt import knobs, warm
from smelt.graph.ir import Graph
from smelt.graph.is_instance import instance
from smelt.ops.create import Constant, Input, SizeOf
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Reshape
from smelt.runtime.prelude import Allowance
from smelt.tune.memory import Program
from smelt.types.dtype import DType
from smelt.types.expr import Index, evaluate, size

if TYPE_CHECKING:
    from smelt.driver import Compiled
    from smelt.fusion.plan import Donate
    from smelt.warm import Found

__all__ = ["alike", "found", "made"]

_PLANS: dict[tuple[str, str, Donate], _Planned] = {}
_PLANS_LIMIT = 1024


_FAR = 16
"""Times as many elements from which on a plan is made anew: what it chose was for few."""

_ROOM = 4
"""Times as much room for constants from which on a plan is made anew: a batch of two has twice that
of one."""


class _Planned(NamedTuple):
    """A plan, and the graph, the sizes and the memory that it was made for."""

    plan: Compiled | Found
    graph: Graph
    hints: Mapping[str, int]
    allowance: Allowance | None
    nodes: int
    """How many the graph has: with others it is another one for sure."""


def found(
    graph: Graph, hints: Mapping[str, int], allowance: Allowance | None = None, donate: Donate = ()
) -> tuple[Compiled | Found, Mapping[str, Index]] | None:
    """A plan that serves a graph, and what its sizes are in the graph; None where none is known."""
    settings, nodes = knobs.fingerprint(), len(graph.nodes())
    for (_, *others), other in reversed(_PLANS.items()):
        if other.nodes != nodes or others != [settings, donate]:
            continue
        names = instance(other.graph, graph)
        if names is None:
            continue
        values = {n: int(evaluate(e, hints)) for n, e in names.items()}
        if _serves(other, values, allowance):
            return other.plan, {n: names[n] for n in other.plan.size_names}
    return None


def alike(graph: Graph) -> bool:
    """Whether there are plans for graphs that another choice of sizes may make this one: they are
    given and give as many tensors of such ranks, and have as many operators of each kind."""
    ends, kinds = _ends(graph), _kinds(graph)
    return any(_ends(p.graph) == ends and _kinds(p.graph) == kinds for p in _PLANS.values())


def _ends(graph: Graph) -> list[tuple[DType, int]]:
    return [(x.type.dtype, x.type.rank) for x in (*graph.inputs, *graph.outputs)]


def _kinds(graph: Graph) -> Counter[type[TensorOp]]:
    """Operators by kind, without those that come and go with a batch of one
    (`smelt.graph.sink_expand`) and numbers, which may be sizes."""
    found = Counter([type(n.op) for n in graph.nodes()])
    for kind in (Expand, Reshape, Constant, SizeOf):
        del found[kind]
    return found


def made(
    graph: Graph, hints: Mapping[str, int], allowance: Allowance | None = None, donate: Donate = ()
) -> tuple[Compiled | Found, Mapping[str, Index]]:
    """A plan for a graph of which none is known, and what its sizes are in the graph."""
    program = Program(graph, hints, allowance)
    while len(_PLANS) >= _PLANS_LIMIT:
        _PLANS.pop(next(iter(_PLANS)))

    def near(stored: Found) -> bool:
        return _serves(_planned(stored, program), hints, allowance)

    plan = warm.compile(graph, hints=hints, donate=donate, program=program, near=near)
    _PLANS[program.text, knobs.fingerprint(), donate] = _planned(plan, program)
    return plan, {n: size(n) for n in plan.size_names}


def _planned(plan: Compiled | Found, program: Program) -> _Planned:
    """A plan with what it was made for: for a stored one, that may be other sizes."""
    made_for = getattr(plan, "program", program)
    nodes = len(program.graph.nodes())
    return _Planned(plan, program.graph, made_for.hints, made_for.allowance, nodes)


def _serves(found: _Planned, hints: Mapping[str, int], allowance: Allowance | None) -> bool:
    """Whether a plan is good for sizes and memory other than those that it was made for."""
    graph = found.graph
    if _elements(graph, hints) >= _FAR * _elements(graph, found.hints):
        return False
    return not (_keeps_more(found.plan, allowance) or _has_room(found, allowance))


def _elements(graph: Graph, hints: Mapping[str, int]) -> int:
    """How many elements a graph is given and gives, where sizes tell that; 1 where none do."""
    ends = [x for x in (*graph.inputs, *graph.outputs) if not all(map(_is_number, x.type.shape))]
    return sum(math.prod(int(evaluate(d, hints)) for d in x.type.shape) for x in ends) or 1


def _is_number(d: Index) -> bool:
    return isinstance(d, int)


def _has_room(found: _Planned, now: Allowance | None) -> bool:
    """Whether there is much more room than a plan was made for, and constants that had no room then
    have it now: a call of few rows must not decide for those of many."""
    extra, before = knobs.CONSTANTS_EXTRA.get(), found.allowance
    if before is None or now is None or extra is None:
        return False
    old, new = before.kept + extra, now.kept + extra
    constants = [x.type for x in found.graph.inputs if isinstance(x.op, Input) and x.op.constant]
    given = [t.nbytes for t in constants if isinstance(t.nbytes, int)]
    if new < _ROOM * old or sum(given) <= old:
        return False
    kept = _kept(found.plan)
    return any(old < kept + n <= new for n in given)


def _kept(compiled: Compiled | Found) -> int:
    prelude = compiled.executable.prelude
    return 0 if prelude is None else prelude.nbytes


def _keeps_more(compiled: Compiled | Found, allowance: Allowance | None) -> bool:
    """Whether a plan keeps more constants than a program with this allowance may: what it keeps
    already takes no more memory."""
    extra, prelude = knobs.CONSTANTS_EXTRA.get(), compiled.executable.prelude
    if allowance is None or extra is None or prelude is None or prelude.holds:
        return False
    return prelude.nbytes > allowance.kept + extra
