"""Make the bodies of loops from the graph of a step.

>>> from smelt.graph.text import parse
>>> step = parse('''graph step(c: f32[], x: f32[n], i: i64[]) {
...   v0 = gather(x, i) {first=0}
...   return v0
... }''')
>>> body, added = checked_body(step, 1)
>>> len(body.graph.inputs), added, body.checks
(4, 1, (0, n))
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from smelt.graph import build
from smelt.graph.bounds_checks import Read, collect_bounds_checks
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, Loop
from smelt.ops.create import Constant, Input, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce
from smelt.python.origin import Origin
from smelt.types.dtype import bool_, i64
from smelt.types.expr import Index
from smelt.types.tensor import Shape, TensorType

MAX_SELECTED = 24
"""Maximum elementwise operators of a branch that is computed even if the other one is taken."""


def is_cheap_branch(graph: Graph) -> bool:
    """Whether a branch is few elementwise operators, so that selecting costs less than jumping."""
    nodes = [x for x in graph.nodes() if not isinstance(x.op, (Input, Constant))]
    work = [x for x in nodes if not (x.op.is_view or x.op.is_source)]
    return len(work) <= MAX_SELECTED and all(isinstance(x.op, (Map, Cast)) for x in work)


def run_if(
    graph: Graph,
    names: tuple[str, ...],
    sizes: Shape,
    promised: Collection[Node] = (),
    more: Sequence[Read] = (),
) -> tuple[Loop, int]:
    """Return a loop that runs a graph once if its first carry is true.

    Its other carries have the values that the results take, and those that they have otherwise;
    the number of carries that start from 0 after them is returned too. `names` are the graph's
    sizes, whose values around the loop are `sizes`; the others are those of `checked_body`.
    """
    go = build.input("go", TensorType(bool_))
    before = [build.input(f"c{k}", x.type) for k, x in enumerate(graph.outputs)]
    stop = build.constant(False, bool_)
    step = Graph("branch", (go, *before, *graph.inputs), (stop, *graph.outputs))
    body, extra = checked_body(step, 1 + len(before), promised, more)
    return Loop(1 + len(before) + extra, 0, (), False, 0, names, sizes, body), extra


def checked_body(
    graph: Graph, carries: int, promised: Collection[Node] = (), more: Sequence[Read] = ()
) -> tuple[Body, int]:
    """Return a loop's body, and the number of positions that it carries for checks.

    For each read at a position that depends on data, the largest or least position becomes a carry
    after the first `carries`, which starts from 0; one that is out of bounds stays. `promised` and
    `more` are those of `collect_bounds_checks`.
    """
    bounds: list[Index] = []
    added: list[Node] = []
    following: list[Node] = []
    checks = collect_bounds_checks(graph.outputs, promised, (), more)
    for at, low, end, (_, origin) in checks.conditions:
        if 0 in at.type.shape:
            continue
        bounds += low, end
        before = build.input(f"p{len(added)}", TensorType(i64))
        added.append(before)
        following.append(_first_outside(before, build.cast(at, i64), low, end, origin))
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    inputs[carries:carries] = added
    outputs[carries:carries] = following
    return Body(Graph(graph.name, tuple(inputs), tuple(outputs)), tuple(bounds)), len(added)


def _first_outside(before: Node, at: Node, low: Index, end: Index, origin: Origin | None) -> Node:
    """Return `before` if it is out of bounds, else the worst of the positions."""
    if at.type.rank:
        axes = tuple(range(at.type.rank))
        least, most = (build.apply(Reduce(how, axes), at) for how in ("min", "max"))
    else:
        least = most = at
    first, last = (
        build.constant(n, i64) if isinstance(n, int) else build.apply(SizeOf(n, i64))
        for n in (low, end)
    )
    worst = build.map("select", build.map("ge", most, last), most, least)
    outside = build.map("or", build.map("lt", before, first), build.map("ge", before, last))
    return build.map("select", outside, before, worst, origin=origin)
