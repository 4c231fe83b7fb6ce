r"""List the passes in order, and run, time and verify them.

>>> from smelt.graph.text import parse, text
>>> graph = parse(
...     "graph f(x: f32[n]) {\n a = add(1.0:f32, x)\n b = add(x, 1.0:f32)\n return a, b\n}"
... )
>>> print(text(run(graph)))
graph f(x: f32[n]) {
  v0 = add(x, 1.0:f32) : f32[n]
  return v0, v0
}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from types import UnionType
from typing import Literal, NamedTuple

from smelt import knobs
from smelt.errors import UnknownNameError, VerifyError, nearest
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.graph.text import text
from smelt.graph.verify import verify, verify_same_signature
from smelt.journal.facts import Journal, PassRan
from smelt.machine.tiling import CPU_TILING, Tiling
from smelt.ops.contract import Contract
from smelt.ops.create import Input
from smelt.ops.elementwise import Cast
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Shear, Slice, Window
from smelt.passes.affine_const_prop import propagate_affine
from smelt.passes.canonicalize import canonicalize
from smelt.passes.choose_image_layout import choose_image_layout
from smelt.passes.conv_transpose import fuse_col2im
from smelt.passes.cse import cse
from smelt.passes.dce import dce
from smelt.passes.exponent_bytes import write_exponents
from smelt.passes.fold_pad_add import fold_pad_add
from smelt.passes.fold_scales import fold_scales
from smelt.passes.forward_select import forward_select
from smelt.passes.gather_to_reduce import gather_to_reduce
from smelt.passes.hoist_broadcast import hoist_broadcast
from smelt.passes.loop_bodies import simplify_bodies, sink_operand_views
from smelt.passes.nest_reductions import merge_reductions, nest_reductions
from smelt.passes.precision import drop_half_rounding, round_factors
from smelt.passes.propagate_layouts import propagate_layouts
from smelt.passes.reduce_of_concat import split_concat_reductions
from smelt.passes.reorder_reduction import reorder_reductions
from smelt.passes.simplify import fold_constants, simplify, simplify_fast
from smelt.passes.sink_slices import sink_slices
from smelt.passes.split_gated_matmul import split_gated_matmul
from smelt.passes.stencils import mark_packed_stencils
from smelt.passes.views import move_views
from smelt.python.dataclass import dataclass, replace
from smelt.types.dtype import DType, bf16, i64
from smelt.types.expr import Index, evaluate, sizes_of

Rounding = Literal["fast", "eager", "exact"]
MAX_ITERATIONS = 8
"""Maximum repetitions of the sequence, which ends as soon as nothing changes."""


class Facts(NamedTuple):
    """What decides whether a pass can change a graph at all."""

    operators: frozenset[type[TensorOp]]
    dtypes: frozenset[DType]
    has_constant_input: bool
    has_conditions: bool
    """Whether there are facts about sizes, or values without elements."""
    sum_axes: int
    """Maximum number of reduction axes of a contraction."""
    has_counted_sums: bool
    """Whether all reduction axes of some contraction have a constant extent."""

    @classmethod
    def of(cls, graph: Graph) -> Facts:
        """Collect the facts of a graph in one walk."""
        nodes = graph.nodes()
        operators = [x.op for x in nodes]
        return cls(
            graph.kinds(),
            frozenset(x.type.dtype for x in nodes),
            any(isinstance(x.op, Input) and x.op.constant for x in graph.inputs),
            bool(graph.facts) or any(0 in x.type.shape for x in nodes),
            max(
                (len(op.reduction_axes()) for op in operators if isinstance(op, Contract)),
                default=0,
            ),
            any(map(_is_counted, nodes)),
        )

    def has(self, kind: type[TensorOp] | UnionType) -> bool:
        """Return whether the graph has an operator of a kind, or of one of several."""
        return any(issubclass(operator, kind) for operator in self.operators)


def _has(*kinds: type[TensorOp] | UnionType) -> Callable[[Facts], bool]:
    """Return the condition that a graph has operators of all these kinds."""
    return lambda facts: all(map(facts.has, kinds))


@dataclass(frozen=True, slots=True)
class Pass:
    """A pure function from graph to graph.

    `applies`: whether it can change a graph of these facts; others are not walked.  `fast`: it may
    change rounding, so only `rounding="fast"` allows it.  `last`: it runs once, after the others
    have reached a fixed point.  `changes_sum_terms`: sums get other terms, zeros among them.
    """

    name: str
    function: Callable[[Graph], Graph]
    applies: Callable[[Facts], bool] = lambda _: True
    fast: bool = False
    last: bool = False
    changes_sum_terms: bool = False

    @property
    def doc(self) -> str:
        """Return the first line of the function's docstring, or an empty string."""
        first_line = (self.function.__doc__ or "").strip().split("\n")[0]
        return first_line if first_line and not first_line.startswith(">>>") else ""


def _is_counted(node: Node) -> bool:
    """Return whether the number of terms of a contraction is a constant."""
    if not isinstance(node.op, Contract):
        return False
    extents = node.op.axis_extents(*(x.type for x in node.inputs))
    return all(isinstance(extents[a], int) for a in node.op.reduction_axes())


def _has_index_types(facts: Facts) -> bool:
    return any(dtype.kind == "bool" or dtype == i64 for dtype in facts.dtypes)


def _has_half_types(facts: Facts) -> bool:
    return any(dtype.is_float and dtype.compute != dtype for dtype in facts.dtypes)


def _has_orders(facts: Facts) -> bool:
    """Return whether something may be read in another order than it is stored."""
    return facts.sum_axes > 1 or facts.has(Permute | Window)


PASSES: tuple[Pass, ...] = (
    Pass("canonicalize", canonicalize),
    Pass("precision", drop_half_rounding, _has_half_types, fast=True),
    Pass("constant-folding", fold_constants),
    Pass("affine-const-prop", propagate_affine, _has_index_types),
    Pass("simplify", simplify),
    Pass("simplify-fast", simplify_fast, fast=True),
    Pass("exponent-bytes", write_exponents, _has(Cast)),
    Pass("fold-scales", fold_scales, lambda facts: facts.has_constant_input, fast=True),
    Pass("forward-select", forward_select, _has(Slice)),
    Pass("fold-pad-add", fold_pad_add, _has(Pad)),
    Pass("views", move_views, _has(Slice | Flip | Permute | Reshape)),
    Pass("conv-transpose", fuse_col2im, _has(Shear | Slice), changes_sum_terms=True),
    Pass("hoist-broadcast", hoist_broadcast, _has(Contract, Expand)),
    Pass("reorder-reduction", reorder_reductions, _has(Contract, Reshape)),
    Pass("gather-to-reduce", gather_to_reduce, _has(Gather)),
    Pass("reduce-of-concat", split_concat_reductions, _has(Reduce, Concat)),
    Pass("nest-reductions", nest_reductions, _has(Reduce)),
    Pass("merge-reductions", merge_reductions, _has(Reduce), changes_sum_terms=True),
    Pass("cse", cse),
    Pass("dce", dce, lambda facts: facts.has_conditions),
    Pass("split-gated-matmul", split_gated_matmul, _has(Contract, Slice), last=True),
    Pass("propagate-layouts", propagate_layouts, _has_orders, last=True),
    Pass("choose-image-layout", choose_image_layout, _has(Contract, Window), last=True),
    Pass("stencils", mark_packed_stencils, lambda facts: facts.has_counted_sums, last=True),
    Pass("round-factors", round_factors, lambda facts: bf16 in facts.dtypes, last=True),
    Pass("sink-operand-views", sink_operand_views, _has(Loop), last=True),
    Pass("sink-slices", sink_slices, _has(Contract, Slice), last=True),
)
CLEANUP_PASSES = ("canonicalize", "views", "cse", "dce")
"""Passes that run again if a `last` pass changed the graph: those leave views behind elementwise
operators that would otherwise move only in the next compilation."""


def run(
    graph: Graph,
    journal: Journal | None = None,
    rounding: Rounding = "eager",
    sizes: Mapping[str, int] | None = None,
    tiling: Tiling = CPU_TILING,
) -> Graph:
    """Run all passes that `rounding` allows until nothing changes.

    `sizes` are those of a call and `tiling` the machine's answers; the last passes, such as that
    for image layouts, decide by both.  Inputs, and types and values of
    the outputs stay: bit for bit (except for the payload of NaNs, and the order in which floats are
    summed) unless `rounding` is "fast".  Sums over windows that become contractions also multiply
    the zeros of the padding, unless `rounding` is "exact".

    With the knob VERIFY each step is checked; a VerifyError then names the pass and contains the
    text to replay.
    """
    steps = [step for step in PASSES if _is_enabled(step, rounding)]
    for _ in range(MAX_ITERATIONS):
        before = graph
        graph = run_steps(graph, steps, journal)
        if graph is before:
            break
    before = graph
    *steps, views_behind = [
        _for_call(step, sizes, tiling, rounding, journal) for step in PASSES if step.last
    ]
    graph = run_steps(graph, steps, journal)
    if graph is not before:
        graph = run_steps(graph, map(find, CLEANUP_PASSES), journal)
    graph = run_steps(graph, [views_behind], journal)
    if Loop not in graph.kinds():
        return graph
    simplified = partial(_simplified, rounding=rounding, sizes=sizes or {}, tiling=tiling)
    return simplify_bodies(graph, simplified)


def _simplified(
    step: Graph,
    binding: Mapping[str, Index],
    *,
    rounding: Rounding,
    sizes: Mapping[str, int],
    tiling: Tiling,
) -> Graph:
    """Run all passes on the step of a loop."""
    is_known = all(name in sizes for e in binding.values() for name in sizes_of(e))
    here = {n: int(evaluate(e, sizes)) for n, e in binding.items()} if is_known else None
    return run(step, None, rounding, here, tiling)


def _for_call(
    step: Pass,
    sizes: Mapping[str, int] | None,
    tiling: Tiling,
    rounding: Rounding,
    journal: Journal | None,
) -> Pass:
    """Return a pass bound to the sizes and the machine that it asks."""
    costs = tiling.image_costs
    bound: Mapping[Callable[..., Graph], Callable[[Graph], Graph]] = {
        split_gated_matmul: partial(split_gated_matmul, sizes=sizes, tiling=tiling),
        choose_image_layout: partial(
            choose_image_layout, sizes=sizes, journal=journal, costs=costs
        ),
        mark_packed_stencils: partial(mark_packed_stencils, tiling=tiling),
        round_factors: partial(
            round_factors, is_allowed=tiling.rounds_factors and rounding == "eager"
        ),
    }
    return replace(step, function=bound.get(step.function, step.function))


def _is_enabled(step: Pass, rounding: Rounding) -> bool:
    if step.last or (step.changes_sum_terms and rounding == "exact"):
        return False
    return not step.fast if rounding != "fast" else step.function is not simplify


def run_named(graph: Graph, names: Iterable[str], journal: Journal | None = None) -> Graph:
    """Run the named passes once each, in the given order.

    Raises UnknownNameError for an unknown name.
    """
    return run_steps(graph, [find(name) for name in names], journal)


def find(name: str) -> Pass:
    """Return the pass called `name`; raise UnknownNameError if there is none."""
    for step in PASSES:
        if step.name == name:
            return step
    close = nearest(name, [step.name for step in PASSES])
    raise UnknownNameError(
        kind="pass", name=name, suggestion=f"; did you mean {close}?" if close else ""
    )


def run_steps(graph: Graph, steps: Iterable[Pass], journal: Journal | None = None) -> Graph:
    """Run each of `steps` that applies once, timed in the journal.

    With the knob VERIFY, each result is verified, unless the pass returned its graph unchanged.
    """
    checked = knobs.VERIFY.get()
    verified: Graph | None = None
    count = len(graph.nodes()) if journal is not None else 0
    facts = Facts.of(graph)
    for step in steps:
        start = perf_counter()
        new = step.function(graph) if step.applies(facts) else graph
        if new is not graph:
            facts = Facts.of(new)
        seconds = perf_counter() - start
        if checked and new is not verified:
            _verify_step(step, graph, new)
            verified = new
        if journal is not None:
            before, count = count, count if new is graph else len(new.nodes())
            journal.record(PassRan(step.name, before, count, seconds))
        graph = new
    return graph


def _verify_step(step: Pass, before: Graph, after: Graph) -> None:
    try:
        verify(verify_same_signature(before, after))
    except VerifyError as error:
        replay = f"smelt opt --pass {step.name} <<'END'\n{text(before)}\nEND"
        raise VerifyError(
            f"after the pass {step.name}, {error.message}\nto replay:\n{replay}",
            origin=error.origin,
        ) from error
