"""Loops and branches that are recorded once: `scan`, `fori_loop`, `while_loop`, `cond`.

The step is a function of arrays, called once with arrays that have no values; a loop of any length
runs what it recorded, a graph of its carries, slices and captured values.  Argument orders are
those of JAX.  The step is recorded inside whatever is recorded around it: it shares its sizes and
guards, and reads its values, which become constant operands of the loop.  Outside of `jit` the
sizes of the step are its own, so that one graph serves all of them.

>>> import smelt as sm
>>> scan(lambda c, x: (c + x, c * x), 0.0, sm.asarray([1.0, 2.0, 3.0]))
(Array(6.), Array([0., 2., 9.]))
>>> fori_loop(0, 5, lambda i, c: c * 2, sm.asarray(1.0))
Array(32.)
>>> while_loop(lambda c: c < 100, lambda c: c * 3, sm.asarray(1))
Array(243)
>>> cond(sm.asarray(2.0) > 1, lambda x: x + 1, lambda x: x - 1, sm.asarray(5.0))
Array(6.)
>>> from smelt.frontends.array.value import leaf
>>> x = leaf(np.ones((2, 3), np.float32))
>>> step = record_step("step", lambda leaves: [(leaves[0] * 2.0).node], [x])
>>> step.graph.outputs[0].type, step.sizes
(TensorType(dtype=f32, shape=(s0, s1)), (2, 3))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, CarryError, LeakError, LengthError, StructureError
from smelt.frontends.array import elementwise as el
from smelt.frontends.array.array import Array, number_or_value
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.number import Number, Size, as_dim, is_integral
from smelt.frontends.array.promote import cast, default_value, number
from smelt.frontends.array.scope import Scope, shape_of
from smelt.frontends.array.sizes import Sizes, rebuild_node
from smelt.frontends.array.tree import Tree, flatten, paths, unflatten
from smelt.frontends.array.value import STATE, Value, constant, follow, intern, record
from smelt.frontends.array.views import expand
from smelt.graph import build
from smelt.graph.bounds_checks import collect_bounds_checks, refuse_out_of_bounds
from smelt.graph.generalize_shapes import generalize
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, Loop, with_sizes
from smelt.graph.loop_bodies import checked_body, is_cheap_branch, run_if
from smelt.graph.walk import all_size_names, map_indices
from smelt.knobs.steer import RECORDING
from smelt.ops.create import Constant, Input
from smelt.ops.elementwise import Cast
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, f16, f32, f64, i64
from smelt.types.expr import Index, size, substitute
from smelt.types.tensor import Shape, TensorType


class StepScope(Scope):
    """Recording of a loop's step, inside the recording `outer` or outside of all."""

    def __init__(self, name: str, outer: Scope | None, *, takes_all: bool = False) -> None:
        super().__init__(name)
        self.outer = outer
        self.is_step = True
        self.takes_all = takes_all
        if outer is not None:
            self.depth = outer.depth + 1
            vars(self).update({k: v for k, v in vars(outer).items() if k in vars(Sizes())})

    def reads(self, scope: Scope) -> bool:
        """Return whether this recording is inside another one."""
        outer = self.outer
        return outer is not None and (outer is scope or outer.reads(scope))

    def capture(self, x: Value) -> Value:
        """Return a value from around the loop as a constant input of the step.

        Raises LeakError for a value of another recording.
        """
        if isinstance(x.op, Constant) and not x.shared:
            return x
        if self.outer is not None and x.scope is not self.outer:
            x = self.outer.capture(x)
            if isinstance(x.op, Constant):
                return x
        elif x.scope is not None and self.outer is None:
            raise LeakError(value=x.type_text, function=x.scope.name)
        captured = self.captured.get(x) or self._rerecorded.get(x)
        is_cast = x.scope is not None and isinstance(x.op, Cast)
        if captured is None and is_cast and x.inputs[0].type.dtype.bits < x.type.dtype.bits:
            # A step reads the shorter elements each time; 8-bit weights remain 8-bit weights.
            operands: Any = x.inputs
            captured = self._rerecorded[x] = self._record_here(x.op, operands)
        if captured is None:
            # Outside of `jit` its sizes are numbers: operators may have compared them already.
            type = x.type if self.outer is None else self.outer.type(x.type)
            captured = self.captured[x] = self.input(f"k{len(self.captured)}", type, None)
        return captured

    def operand(self, label: str, type: TensorType) -> Value:
        """Create an input of the step for a value of this type around the loop."""
        outer_shape = type.shape if self.outer is None else self.outer.shape(type.shape)
        shape = tuple(
            self.symbol(d) if self.outer is None and isinstance(d, int) and d > 1 else d
            for d in outer_shape
        )
        return self.input(label, intern(type.dtype, shape), None)

    def outside(self, x: Value) -> None:
        """Do nothing: a value around the loop is an operand as of now."""


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded step; `captured` are the values around the loop that it reads."""

    graph: Graph
    captured: tuple[Value, ...]
    names: tuple[str, ...]
    """Sizes in the graph."""
    sizes: Shape
    """Their values around the loop."""


def record_step(
    name: str,
    call: Callable[[list[Array]], Sequence[Value]],
    carry: Sequence[Value],
    sequences: Sequence[Value] = (),
    *,
    takes_all: bool = False,
) -> Step:
    """Record `call`, a function of a carry and of slices, as a graph.

    The first results are the next carry, whose sizes become those of `carry` if they are equal.
    Operators on values from around the loop alone are recorded there, and run once, unless
    `takes_all`.
    """
    operands, carries = (*carry, *sequences), len(carry)
    outer = STATE.scope
    for x in operands:
        if x.scope is not None and (outer is None or x.scope.depth > outer.depth):
            outer = x.scope
    scope = StepScope(name, outer, takes_all=takes_all)
    previous, STATE.scope = STATE.scope, scope
    recording = RECORDING.set(True)
    follow(1)
    try:
        leaves = [
            scope.operand(
                f"c{k}" if k < carries else f"x{k - carries}",
                x.type if k < carries else intern(x.type.dtype, x.type.shape[1:]),
            )
            for k, x in enumerate(operands)
        ]
        outputs = [
            x if x.scope is scope or isinstance(x.op, Constant) else scope.capture(x)
            for x in call([Array.of(x) for x in leaves])
        ]
        for before, after in zip(leaves[:carries], outputs):
            if before.type.rank == after.type.rank:
                for d, e in zip(before.type.shape, after.type.shape, strict=True):
                    scope.same(d, e)
        step = _finish(scope, leaves, outputs, carries)
    finally:
        STATE.scope = previous
        RECORDING.reset(recording)
        follow(-1)
        scope.close()
    return step


def result_value(x: Any) -> Value | None:
    """Return a leaf of a step's result as a value, None for a non-array."""
    if isinstance(x, Array):
        return x.node
    if isinstance(x, Number):
        return x.node(x.dtype)
    if isinstance(x, (bool, int, float)):
        return default_value(x, "a step's result")
    return from_host(x) if isinstance(x, (np.ndarray, np.generic)) else None


def _finish(
    scope: StepScope, leaves: Sequence[Value], outputs: Sequence[Value], carries: int
) -> Step:
    inputs = [*leaves, *scope.captured.values()]
    rebuilt: dict[Node, Node] = {}
    for x in inputs:
        assert isinstance(x.op, Input)
        rebuilt[x] = build.input(x.op.label, scope.type(x.type), None, x.origin)
    for x in Graph("walk", (), tuple(outputs)).nodes():
        if x not in rebuilt:
            rebuilt[x] = rebuild_node(scope, x, rebuilt)
    graph = Graph(scope.name, tuple(rebuilt[x] for x in inputs), tuple(rebuilt[x] for x in outputs))
    reads = collect_bounds_checks(graph.outputs)
    if not all(scope.holds(0, "<=", room) for room in reads.sizes):
        refuse_out_of_bounds(reads.readers)
    dims = [d for x in graph.inputs for d in x.type.shape]
    if scope.outer is None and any(isinstance(d, int) and d > 1 for d in dims):
        graph, values = _generalized(scope, graph, carries)
        return Step(graph, tuple(scope.captured), tuple(values), tuple(values.values()))
    names = all_size_names(graph)
    short = {name: size(f"s{k}") for k, name in enumerate(names)}
    sizes = tuple(
        scope.hint(size(n)) if scope.outer is None else scope.canon(size(n)) for n in names
    )
    return Step(
        with_sizes(graph, short),
        tuple(scope.captured),
        tuple(f"s{k}" for k in range(len(names))),
        sizes,
    )


def _generalized(scope: Scope, graph: Graph, carries: int) -> tuple[Graph, Mapping[str, Index]]:
    """Return the graph of a step with sizes in place of numbers, and their values.

    A captured array has numbers, and what it meets in an operator is fixed to them.
    """
    exact = with_sizes(graph, {n: scope.hint(size(n)) for n in all_size_names(graph)})
    pairs = zip(exact.inputs[:carries], exact.outputs)
    # An operator on a carry before and after the step says that their sizes are equal.
    equal = [build.map("eq", a, b) for a, b in pairs if a.type == b.type]
    joined = Graph(exact.name, exact.inputs, (*exact.outputs, *equal))
    key = (
        Body(joined).key,
        tuple(x.origin and (x.origin.instruction or x.origin.place) for x in joined.nodes()),
    )
    cached = _GENERALIZED.get(key)
    if cached is None:
        general = next(generalize(joined), None)
        cached = exact, {}
        if general is not None:
            outputs = general.graph.outputs[: len(exact.outputs)]
            cached = Graph(exact.name, general.graph.inputs, outputs), general.sizes
        if len(_GENERALIZED) >= _MAX_GENERALIZED:
            _GENERALIZED.clear()
        _GENERALIZED[key] = cached
    return cached


_GENERALIZED: dict[Hashable, tuple[Graph, Mapping[str, Index]]] = {}
"""General graphs of steps, by their numbers, operators and lines."""
_MAX_GENERALIZED = 256


Function = Callable[..., Any]


def scan(
    f: Function, init: Any, xs: Any = None, length: Any = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Run a step for each slice of arrays, carrying values from one to the next.

    A step that works on each element of its carry by itself becomes one kernel, parallel over the
    elements, with the carry in registers.  Any other step is planned once and runs again and again.
    Either way neither a new length nor another step is recorded or compiled again.

    Args:
        f: takes the carry and a nest of slices, returns the next carry and a nest of results.
        init: the first carry: a nest of arrays and numbers.  A number takes the dtype that the
            step returns.
        xs: a nest of arrays with one first dimension, along which slices are taken; or None.
        length: the number of steps, needed if `xs` has no arrays.
        reverse: whether to start from the last slice; results are stacked where their slice was.

    Returns:
        The last carry, and the results stacked along a new first dimension.

    Raises:
        LengthError if arrays differ in length or nothing says it; CarryError if the step returns
        another carry; TracerError if it needs values.
    """
    sequences, sequence_tree = flatten(xs)
    values = [_operand(x, "scan") for x in sequences]
    steps = _length(values, paths(sequence_tree, "xs"), length)
    stacked: list[Tree] = []

    def call(carry: Any, slices: list[Array]) -> tuple[Any, Sequence[Any]]:
        nest = unflatten(sequence_tree, iter(slices))
        pair = f(carry, nest)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise StructureError(
                f"scan: the step returned {type(pair).__name__}, not the pair (carry, result)"
            )
        results, tree = flatten(pair[1])
        stacked.append(tree)
        return pair[0], results

    last, results = _carried("scan", call, init, values, (steps,), reverse=bool(reverse))
    return last, unflatten(stacked[-1], iter(results))


def fori_loop(lower: Any, upper: Any, body_fun: Function, init_val: Any) -> Any:
    """Run `body_fun(i, carry)` for i from `lower` up to `upper` (exclusive); return the last carry.

    Bounds that are numbers give a loop that has a gradient.  Bounds may be integer arrays, whose
    values a jitted function gets at each call.

    Raises CarryError if a step returns another carry, ArgumentError for bounds that are not
    integers.
    """
    if is_integral(lower) and is_integral(upper):
        count = upper - lower
        first = default_value(lower, "fori_loop")

        def step(carry: Any, _: Any) -> tuple[Any, None]:
            i, value = carry
            return (i + 1, body_fun(i, value)), None

        length = count if isinstance(count, Size) else max(int(count), 0)
        (_, last), _ = scan(step, (Array.of(first), init_val), None, length)
        return last
    start, stop = (_integer(x, "fori_loop") for x in (lower, upper))

    def goes_on(carry: Any) -> Array:
        return carry[0] < stop

    def advance(carry: Any) -> Any:
        return carry[0] + 1, body_fun(carry[0], carry[1])

    return while_loop(goes_on, advance, (start, init_val))[1]


def while_loop(cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    """Run `body_fun` on a carry while `cond_fun` returns true; return the last carry.

    There is no gradient: the number of steps, and so the memory that one takes, is not known.

    Raises CarryError if a step returns another carry, ArgumentError if the condition is not one
    bool.
    """

    def call(carry: Any, _: list[Array]) -> tuple[Any, Sequence[Any]]:
        value = body_fun(carry[1])
        return (_condition(cond_fun(value), "while_loop"), value), ()

    leaves, tree = flatten(init_val)
    arrays = unflatten(tree, iter([Array.of(_operand(x, "while_loop")) for x in leaves]))
    first = _condition(cond_fun(arrays), "while_loop")
    return _carried("while_loop", call, (first, init_val), [], ())[0][1]


def cond(pred: Any, true_fun: Function, false_fun: Function, *operands: Any) -> Any:
    """Return `true_fun(*operands)` where `pred` is true, else `false_fun(*operands)`.

    A condition that has a value now decides now.  In a recording both functions are recorded: if
    both are few elementwise operators, both are computed and the result is selected; otherwise only
    the branch that is taken runs.

    Raises CarryError if the branches return different structures or types, ArgumentError if `pred`
    is not one bool.
    """
    if isinstance(pred, (bool, int)):
        return true_fun(*operands) if pred else false_fun(*operands)
    condition = _condition(pred, "cond")
    if condition.node.scope is None and STATE.scope is None:
        return true_fun(*operands) if bool(condition) else false_fun(*operands)
    branches = [_branch(f, operands) for f in (true_fun, false_fun)]
    (yes, tree), (no, other_tree) = branches
    _check_branches(yes, tree, no, other_tree)
    if all(is_cheap_branch(step.graph) for step, _ in branches):
        results = [flatten(f(*operands))[0] for f in (true_fun, false_fun)]
        pairs = zip(*([_array(x, "cond") for x in r] for r in results), strict=True)
        return unflatten(tree, iter([el.where(condition, a, b) for a, b in pairs]))
    last = yes.graph.outputs
    scope = condition.node.scope or STATE.scope
    first = [_zeros(x.type.dtype, _around(yes, x.type.shape), scope) for x in last]
    taken = _run_once(condition.node, yes, first)
    taken = _run_once(el.logical_not(condition).node, no, taken)
    return unflatten(tree, iter([Array.of(x) for x in taken]))


# ---- branches ----------------------------------------------------------------------------------


def _branch(f: Function, operands: Sequence[Any]) -> tuple[Step, Tree]:
    trees: list[Tree] = []

    def call(_: list[Array]) -> list[Value]:
        results, tree = flatten(f(*operands))
        trees.append(tree)
        return [_array(x, "cond").node for x in results]

    return record_step("branch", call, (), takes_all=True), trees[0]


def _check_branches(yes: Step, tree: Tree, no: Step, other_tree: Tree) -> None:
    if tree != other_tree:
        raise CarryError(
            op="cond",
            value="the false branch",
            found="nested otherwise",
            expected="as the true one",
        )
    names = paths(tree, "result")
    for name, a, b in zip(names, yes.graph.outputs, no.graph.outputs, strict=True):
        shapes = [_around(step, x.type.shape) for step, x in ((yes, a), (no, b))]
        if a.type.dtype != b.type.dtype or not _same_shape(STATE.scope, *shapes):
            raise CarryError(
                op="cond", value=f"{name} of the false branch", found=b.type, expected=a.type
            )


def _around(step: Step, shape: Shape) -> Shape:
    """Return a shape in the step by the sizes around it."""
    names = dict(zip(step.names, step.sizes, strict=True))
    return tuple(d if isinstance(d, int) else substitute(d, names, "size") for d in shape)


def _run_once(condition: Value, step: Step, values: Sequence[Value]) -> list[Value]:
    """Return the results of a step if the condition holds, else the values."""
    loop, extra = run_if(step.graph, step.names, step.sizes)
    inputs = (condition, *values, *[constant(0, i64)] * extra, *step.captured)
    return [_record_result(loop, k, inputs) for k in range(1, 1 + len(values))]


# ---- carried values ----------------------------------------------------------------------------


def _carried(
    what: str,
    call: Callable[[Any, list[Array]], tuple[Any, Sequence[Any]]],
    init: Any,
    sequences: Sequence[Value],
    length: Shape,
    *,
    reverse: bool = False,
) -> tuple[Any, list[Array]]:
    """Record a loop of `call(carry, slices)`, which returns the next carry and results.

    Returns the last carry, and the stacked results.
    """
    leaves, tree = flatten(init)
    dtypes = [f16 if _is_plain_float(x) else None for x in leaves]  # no dtype is narrower
    refusals = 0
    while True:
        carry = [_initial(x, d, what) for x, d in zip(leaves, dtypes, strict=True)]
        results: list[int] = []

        def run(arrays: list[Array], results: list[int] = results) -> list[Value]:
            nest = unflatten(tree, iter(arrays[: len(leaves)]))
            following, stacked = call(nest, arrays[len(leaves) :])
            after, nesting = flatten(following)
            if nesting != tree:
                raise CarryError(
                    op=what,
                    value="the carry after a step",
                    found=_outline(nesting),
                    expected=_outline(tree),
                )
            results.append(len(stacked))
            return [_array(x, what).node for x in (*after, *stacked)]

        try:
            step = record_step(what, run, carry, sequences)
        except CarryError:
            # A loop inside may have needed the dtype that this one is still looking for.
            wider = [_WIDER_DTYPE.get(d) for d in dtypes]
            refusals += 1
            if refusals > len(_WIDER_DTYPE) or not any(wider):
                raise
            dtypes = [w or d for w, d in zip(wider, dtypes, strict=True)]
            continue
        after = [x.type.dtype for x in step.graph.outputs[: len(leaves)]]
        settled = [_settled_dtype(x, d, e) for x, d, e in zip(leaves, dtypes, after, strict=True)]
        if settled == dtypes:
            break
        dtypes = settled
    _check_carry(what, tree, step, carry)
    body, extra = checked_body(step.graph, len(carry))
    count = len(carry) + extra
    loop = Loop(count, len(sequences), length, reverse, 0, step.names, step.sizes, body)
    inputs = (*carry, *[constant(0, i64)] * extra, *sequences, *step.captured)
    places = [k for k in range(loop.results) if not len(carry) <= k < count]
    arrays = [Array.of(_record_result(loop, k, inputs)) for k in places]
    return unflatten(tree, iter(arrays[: len(carry)])), arrays[len(carry) :]


_WIDER_DTYPE: dict[DType | None, DType] = {f16: f32, f32: f64}
"""Dtypes of a carry that starts as a number, to try after one that does not do."""


def _record_result(loop: Loop, which: int, inputs: tuple[Value, ...]) -> Value:
    """Record a result of a loop by the sizes that remain after unification."""
    scope = next((x.scope for x in inputs if x.scope is not None), STATE.scope)
    if scope is not None:
        loop = map_indices(loop, scope.canon)
    return record(replace(loop, which=which), inputs, STATE.scope)


def _initial(x: Any, dtype: DType | None, what: str) -> Value:
    value = number_or_value(x, what)
    if isinstance(value, Value):
        return value
    return default_value(value, what) if dtype is None else number(value, dtype, what)


def _is_plain_float(x: Any) -> bool:
    return isinstance(x, float) or (isinstance(x, Number) and x.dtype.is_float)


def _settled_dtype(x: Any, now: DType | None, after: DType) -> DType | None:
    """Return the dtype of a carry that starts as a number, from the step's result.

    A float takes the dtype that the step returns, and float64 if any will do.
    """
    if now == f16 and _is_plain_float(x):
        return f64 if after == f16 or not after.is_float else after
    plain = isinstance(x, (bool, int, Number)) or now is not None
    wider = now is None and plain and after.is_float
    return after if wider or (now is not None and after.is_float) else now


def _check_carry(what: str, tree: Tree, step: Step, carry: Sequence[Value]) -> None:
    """Raise CarryError unless a step returns the carry that it takes."""
    names = paths(tree, "carry")
    graph = step.graph
    for k, (name, before) in enumerate(zip(names, carry, strict=True)):
        after = graph.outputs[k].type
        if after == graph.inputs[k].type:
            continue
        raise CarryError(
            op=what,
            value=f"{name} after a step",
            found=_shown(step, before, after),
            expected=before.type_text,
        )


def _shown(step: Step, like: Value, kind: Any) -> str:
    here = TensorType(kind.dtype, _around(step, kind.shape))
    return str(here if like.scope is None else like.scope.concrete(here))


def _outline(tree: Any) -> str:
    names = paths(tree, "carry")
    return f"{len(names)} arrays ({', '.join(names[:4])}{', ..' if len(names) > 4 else ''})"


def _same_shape(scope: Scope | None, a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(
        m == n or (scope is not None and scope.same(m, n)) for m, n in zip(a, b)
    )


# ---- arguments ---------------------------------------------------------------------------------


def _operand(x: Any, what: str) -> Value:
    value = number_or_value(x, what)
    return value if isinstance(value, Value) else default_value(value, what)


def _array(x: Any, what: str) -> Array:
    value = result_value(x)
    if value is None:
        raise StructureError(where=f"the result of a function of {what}", type=type(x).__name__)
    return Array.of(value)


def _condition(x: Any, what: str) -> Array:
    value = _operand(x, what)
    if value.type.shape or value.type.dtype != bool_:
        raise ArgumentError(
            op=what, argument="the condition", value=value.type_text, expected="one bool"
        )
    return Array.of(value)


def _integer(x: Any, what: str) -> Array:
    value = _operand(x, what)
    if value.type.shape or not value.type.dtype.is_integer:
        raise ArgumentError(
            op=what, argument="a bound", value=value.type_text, expected="one integer"
        )
    return Array.of(cast(value, i64))


def _length(sequences: Sequence[Value], names: Sequence[str], length: Any) -> Index:
    """Return the number of steps; raise LengthError if it is not clear."""
    if isinstance(length, Array) or (length is not None and not is_integral(length)):
        raise LengthError(
            op="scan",
            reason=f"length={length!r} is not an integer",
            hint="A number of steps that is computed: sm.fori_loop(0, n, body, init).",
        )
    steps: Index | None = None if length is None else as_dim(length)
    if isinstance(steps, int) and steps < 0:
        raise LengthError(op="scan", reason=f"length={steps} is negative")
    source = "length"
    for name, x in zip(names, sequences, strict=True):
        if not x.type.shape:
            raise LengthError(
                op="scan", reason=f"{name} is {x.type_text}, which has no first dimension"
            )
        first = shape_of(x)[0]
        scope = x.scope or STATE.scope
        if steps is None:
            steps, source = first, name
        elif steps != first and (scope is None or not scope.same(steps, first)):
            steps, first = (d if scope is None else scope.hint(d) for d in (steps, first))
            raise LengthError(op="scan", reason=f"{source} says {steps} steps, {name} says {first}")
    if steps is None:
        raise LengthError(op="scan", reason="neither xs nor length says how many steps there are")
    scope = next((x.scope for x in sequences if x.scope is not None), STATE.scope)
    return steps if scope is None else scope.canon(steps)


def _zeros(dtype: DType, shape: Shape, scope: Scope | None) -> Value:
    zero = constant(False if dtype == bool_ else 0, dtype)
    return expand(zero, shape) if shape else record(Cast(dtype), (zero,), scope)
