"""Cache compiled plans of this process by the graphs that they were made for.

A graph finds the plan of an equal one, and of a more general one: a trace with other numbers, or
one where two sizes are the same size because the tracer knew a reason. A plan is made anew if there
is much more to compute than it was made for, or more room for constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from smelt import knobs
from smelt.compiler import warm
from smelt.frontends.torch.library import TORCH
from smelt.graph.ir import Graph
from smelt.graph.is_instance import match_instance
from smelt.ops.create import Constant, Input, SizeOf
from smelt.ops.library_product import using
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Reshape
from smelt.runtime.prelude import Allowance
from smelt.tune.memory import Program
from smelt.types.dtype import DType
from smelt.types.expr import Index, evaluate, size

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.compiler.warm import CachedProgram
    from smelt.fusion.plan import Donate

_PLANS: dict[tuple[str, str, Donate], _Planned] = {}
_PLANS_LIMIT = 1024


_MAX_SIZE_RATIO = 16
"""Make a new plan from this many times more elements: its choices were made for few."""

_MAX_ROOM_RATIO = 4
"""Make a new plan from this many times more room for constants: a batch of two has twice the room
of a batch of one."""


class _Planned(NamedTuple):
    """A plan, and the graph, the sizes and the memory that it was made for."""

    plan: Compiled | CachedProgram
    graph: Graph
    hints: Mapping[str, int]
    allowance: Allowance | None
    nodes: int
    """Number of nodes of the graph: graphs with another number need not be compared."""


def find_plan(
    graph: Graph, hints: Mapping[str, int], allowance: Allowance | None = None, donate: Donate = ()
) -> tuple[Compiled | CachedProgram, Mapping[str, Index]] | None:
    """Return a cached plan that serves a graph.

    Also its sizes in terms of the sizes of the graph. None if there is none.
    """
    settings, nodes = knobs.fingerprint(), len(graph.nodes())
    for (_, *others), other in reversed(_PLANS.items()):
        if other.nodes != nodes or others != [settings, donate]:
            continue
        names = match_instance(other.graph, graph)
        if names is None:
            continue
        values = {n: int(evaluate(e, hints)) for n, e in names.items()}
        if _serves(other, values, allowance):
            return other.plan, {n: names[n] for n in other.plan.size_names}
    return None


def has_similar_plan(graph: Graph) -> bool:
    """Whether there are plans of graphs that other sizes may make equal to this one.

    They have inputs and outputs of the same types and ranks, and as many operators of each kind.
    """
    ends, kinds = _signature(graph), _operator_counts(graph)
    return any(
        _signature(p.graph) == ends and _operator_counts(p.graph) == kinds for p in _PLANS.values()
    )


def _signature(graph: Graph) -> list[tuple[DType, int]]:
    return [(x.type.dtype, x.type.rank) for x in (*graph.inputs, *graph.outputs)]


def _operator_counts(graph: Graph) -> Counter[type[TensorOp]]:
    """Count operators by kind.

    Left out are those that come and go with a batch of one (`smelt.graph.sink_expand`) and numbers,
    which may be sizes.
    """
    counts = Counter([type(n.op) for n in graph.nodes()])
    for kind in (Expand, Reshape, Constant, SizeOf):
        del counts[kind]
    return counts


def make_plan(
    graph: Graph, hints: Mapping[str, int], allowance: Allowance | None = None, donate: Donate = ()
) -> tuple[Compiled | CachedProgram, Mapping[str, Index]]:
    """Compile and cache a plan for a graph.

    Returns the plan, and its sizes in terms of the sizes of the graph.
    """
    program = Program(graph, hints, allowance)
    while len(_PLANS) >= _PLANS_LIMIT:
        _PLANS.pop(next(iter(_PLANS)))

    def near(stored: CachedProgram) -> bool:
        return _serves(_entry_for(stored, program), hints, allowance)

    with using(TORCH):
        plan = warm.compile(graph, hints=hints, donate=donate, program=program, near=near)
    _PLANS[program.text, knobs.fingerprint(), donate] = _entry_for(plan, program)
    return plan, {n: size(n) for n in plan.size_names}


def _entry_for(plan: Compiled | CachedProgram, program: Program) -> _Planned:
    """Return the cache entry of a plan.

    A stored plan may have been made for other sizes.
    """
    made_for = getattr(plan, "program", program)
    nodes = len(program.graph.nodes())
    return _Planned(plan, program.graph, made_for.hints, made_for.allowance, nodes)


def _serves(entry: _Planned, hints: Mapping[str, int], allowance: Allowance | None) -> bool:
    """Whether a plan is good for these sizes and this memory."""
    graph = entry.graph
    if _elements(graph, hints) >= _MAX_SIZE_RATIO * _elements(graph, entry.hints):
        return False
    return not (_exceeds_allowance(entry.plan, allowance) or _would_keep_more(entry, allowance))


def _elements(graph: Graph, hints: Mapping[str, int]) -> int:
    """Count the elements of inputs and outputs with symbolic shapes; 1 if there are none."""
    shapes = [x.type.shape for x in (*graph.inputs, *graph.outputs)]
    symbolic = [s for s in shapes if not all(isinstance(d, int) for d in s)]
    return sum(math.prod(int(evaluate(d, hints)) for d in s) for s in symbolic) or 1


def _would_keep_more(entry: _Planned, now: Allowance | None) -> bool:
    """Whether constants that had no room when the plan was made have it now.

    There must be much more room: a call of few rows must not decide for those of many.
    """
    extra, before = knobs.CONSTANTS_EXTRA.get(), entry.allowance
    if before is None or now is None or extra is None:
        return False
    old, new = before.constant_bytes + extra, now.constant_bytes + extra
    constants = [x.type for x in entry.graph.inputs if isinstance(x.op, Input) and x.op.constant]
    sizes = [t.nbytes for t in constants if isinstance(t.nbytes, int)]
    if new < _MAX_ROOM_RATIO * old or sum(sizes) <= old:
        return False
    prelude = entry.plan.executable.prelude
    kept_bytes = 0 if prelude is None else prelude.nbytes
    return any(old < kept_bytes + n <= new for n in sizes)


def _exceeds_allowance(compiled: Compiled | CachedProgram, allowance: Allowance | None) -> bool:
    """Whether a plan keeps more constants than a program with this allowance may.

    What it holds already takes no more memory.
    """
    extra, prelude = knobs.CONSTANTS_EXTRA.get(), compiled.executable.prelude
    if allowance is None or extra is None or prelude is None or prelude.has_results:
        return False
    return prelude.nbytes > allowance.constant_bytes + extra
