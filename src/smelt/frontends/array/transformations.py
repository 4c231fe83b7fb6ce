"""Transform functions: gradients, and functions of one slice applied to each (`vmap`).

Gradients are computed in reverse mode.  The function runs once on fresh copies of its arguments;
the graph between these and the result is the tape, and the operators of the gradient are recorded
after it.  So gradients are ordinary arrays: lazy outside `jit`, part of the recording inside,
differentiable again.  For `vmap` the function is recorded once, on arrays without the dimension,
and each operator that it applied is recorded again on arrays with it (`smelt.graph.batch`).

>>> import smelt as sm
>>> grad(lambda x: sm.sum(x**3))(sm.asarray([1.0, 2.0]))
Array([ 3., 12.])
>>> dot = vmap(lambda a, b: sm.sum(a * b), in_axes=(0, None))
>>> dot(sm.asarray([[1.0, 2.0], [3.0, 4.0]]), sm.asarray([1.0, 10.0]))
Array([21., 43.])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from smelt.errors import ArgumentError, GradientError, LengthError, StructureError
from smelt.frontends.array.array import Array, number_or_value, value
from smelt.frontends.array.complex_array import ComplexArray
from smelt.frontends.array.control import Step, record_step, result_value
from smelt.frontends.array.function_objects import Transformed
from smelt.frontends.array.number import Number, Scalar, Size
from smelt.frontends.array.promote import number
from smelt.frontends.array.scope import Scope, shape_of
from smelt.frontends.array.tree import LEAF, Tree, flatten, paths, unflatten
from smelt.frontends.array.value import STATE, Value, constant, follow, identity_copy, record
from smelt.frontends.array.views import as_integer, axis_list, axis_of, expand, permute
from smelt.graph.batch import Batch
from smelt.graph.ir import Node
from smelt.graph.loop import with_sizes
from smelt.ops.create import Input
from smelt.ops.spec import TensorOp
from smelt.ops.view import Reshape, Stop
from smelt.python.imports import fork_safe_import
from smelt.python.origin import Origin
from smelt.types.dtype import f64
from smelt.types.expr import Index

if TYPE_CHECKING:
    from smelt.autodiff import Builder
    from smelt.autodiff import Step as TapeStep

Function = Callable[..., Any]


@cache
def _autodiff() -> Any:
    """Import `smelt.autodiff` on first use: most programs take no derivative."""
    return fork_safe_import("smelt.autodiff")


def grad(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the gradient of `fun`.

    Args:
        fun: returns an array of rank 0 and a float dtype; with `has_aux`, a pair of that and
            anything else.
        argnums: position, or sequence of positions, of the arguments to differentiate by.  Each is
            an array of floats, a float, or a nest of these (tuples, lists, dicts, dataclasses).
        has_aux: whether `fun` returns a pair; its second part is passed on.

    Returns:
        A function with the parameters of `fun`.  It returns a nest like the argument (a tuple of
        nests if `argnums` is a sequence); with `has_aux` a pair of this and the second part.

    The gradient of a complex argument z = x + iy is the complex array ∂/∂x + i ∂/∂y, as in
    PyTorch: a step against it lowers the result.

    Equal extremes of `max` and `min` share their derivative evenly, as in JAX and in `torch.amax`;
    `where` passes nothing to the side that was not selected, not even NaN.

    Raises GradientError for arguments that are not floats, a result that is not one float, and
    operators without a derivative; ArgumentError for an argument that the call does not have, or
    that `argnums` names twice.
    """
    both = value_and_grad(fun, argnums, has_aux)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        result, slope = both(*args, **kwargs)
        return (slope, result[1]) if has_aux else slope

    return Transformed("grad", fun, gradient)


def value_and_grad(
    fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Function:
    """Return a function that computes the pair of value and gradient of `fun`.

    Arguments and errors are those of `grad`.  With `has_aux` the value is the pair that `fun`
    returned.
    """
    if not callable(fun):
        raise ArgumentError(op="grad", argument="fun", value=repr(fun), expected="a function")

    def both(*args: Any, **kwargs: Any) -> Any:
        places = _argument_positions(argnums, len(args))
        leaves, tree = flatten(tuple(args[k] for k in places))
        names = paths(tree)
        with _taping():
            inputs = [_Leaf(x, name) for x, name in zip(leaves, names, strict=True)]
            full_args = list(args)
            wrapped = unflatten(tree, iter([x.shown for x in inputs]))
            for k, x in zip(places, wrapped, strict=True):
                full_args[k] = x
            result, aux = _split_aux(fun(*full_args, **kwargs), has_aux)
            node = _scalar(result)
            steps = _autodiff().tape([node], [x.node for x in inputs])
        seed = constant(1.0, node.type.dtype)
        slopes = _reverse(steps, {node: seed}, inputs)
        nest = unflatten(tree, iter(slopes))
        out = Array.of(node)
        slope = nest if isinstance(argnums, Sequence) else nest[0]
        return ((out, aux) if has_aux else out), slope

    return Transformed("value_and_grad", fun, both)


def vjp(fun: Function, *primals: Any, has_aux: bool = False) -> Any:
    """Return the value of `fun` at `primals`, and its vector-Jacobian product there.

    Args:
        fun: takes arrays, floats or nests of them, and returns a nest of arrays.
        *primals: the arguments.
        has_aux: whether `fun` returns a pair; its second part is passed on.

    Returns:
        The result and a function.  The latter takes a nest like the result with a cotangent for
        each array (of its shape and dtype) and returns a tuple with a nest for each of `primals`.
        With `has_aux` there is a third part, the second of the pair.

    Raises GradientError for arguments that are not floats, operators without a derivative, and
    cotangents that do not fit the result.
    """
    leaves, tree = flatten(primals)
    with _taping():
        inputs = [_Leaf(x, name) for x, name in zip(leaves, paths(tree), strict=True)]
        wrapped = unflatten(tree, iter([x.shown for x in inputs]))
        result, aux = _split_aux(fun(*wrapped), has_aux)
        outputs, shape = flatten(result)
        nodes = [_array(x) for x in outputs]
        steps = _autodiff().tape(nodes, [x.node for x in inputs])

    def pull(cotangents: Any) -> Any:
        """Return the cotangents of the arguments, from those of the result."""
        cotangent_leaves, nest = flatten(cotangents)
        if nest != shape:
            raise GradientError(op="vjp", reason="the cotangents are not nested as the result is")
        seeds: dict[Node, Value] = {}
        for node, x in zip(nodes, cotangent_leaves, strict=True):
            if node.type.dtype.is_float:
                seed = _seed(node, x)
                before = seeds.get(node)
                if before is not None:
                    seed = (Array.of(before) + Array.of(seed)).node
                seeds[node] = seed
        return unflatten(tree, iter(_reverse(steps, seeds, inputs)))

    out = unflatten(shape, iter([Array.of(node) for node in nodes]))
    return (out, pull, aux) if has_aux else (out, pull)


def stop_gradient(x: Any, /) -> Any:
    """Mark arrays as constants for `grad`: `x` itself, or a nest with all its arrays."""
    leaves, tree = flatten(x)
    return unflatten(tree, iter([_stopped(leaf) for leaf in leaves]))


def _stopped(x: Any) -> Any:
    if isinstance(x, Scalar):
        return Scalar(record(Stop(), (x.rank0,)), x.hint, x.scope)
    if isinstance(x, (bool, int, float, Size)):
        return x
    node = value(x, "stop_gradient")
    return Array.of(record(Stop(), (node,))) if node.type.dtype.is_float else x


# ---- arguments and results ---------------------------------------------------------------------


def _argument_positions(argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Return positions of arguments counted from 0.

    Raises ArgumentError.
    """
    requested = [as_integer(k, "grad(argnums=...)") for k in axis_list(argnums)]
    for k in requested:
        if not -count <= k < count:
            expected = f"places among the {count} positional arguments of the call"
            raise ArgumentError.of("grad", "argnums", argnums, expected)
    places = tuple(k % count for k in requested)
    if len(set(places)) != len(places):
        raise ArgumentError.of("grad", "argnums", argnums, "each argument at most once")
    return places


class _UnguardedScope(Scope):
    """Scope of a number outside of recordings: reading it needs no guard."""

    def pin_scalars(self, node: Node) -> None:
        pass


_UNGUARDED = _UnguardedScope("grad")


class _Leaf:
    """Array or number to differentiate by; `node` identifies it on the tape.

    `shown` is the array or number that the function receives.
    """

    __slots__ = ("node", "shown")

    def __init__(self, x: Any, name: str) -> None:
        operand = number_or_value(x, "grad")
        weak = isinstance(operand, (float, Scalar))
        if isinstance(operand, (bool, int, Size)) or (
            isinstance(operand, Scalar) and not operand.dtype.is_float
        ):
            raise GradientError(
                op="grad", reason=f"argument {name} is an integer, not a float: {x!r}"
            )
        node = number(operand, f64, "grad") if weak else operand
        if not node.type.dtype.is_float:
            raise GradientError(
                op="grad", reason=f"argument {name} is {node.type_text}, not floats"
            )
        self.node = record(Reshape(shape_of(node)), (node,), STATE.scope)
        STATE.differentiation_inputs.add(self.node)
        self.shown: Any = Array.of(self.node)
        if isinstance(operand, Scalar):
            self.shown = Scalar(self.node, operand.hint, operand.scope)
        elif isinstance(operand, float):
            self.shown = Scalar(self.node, operand, _UNGUARDED)


def _split_aux(result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    pair = cast("tuple[Any, ...]", result) if isinstance(result, (tuple, list)) else ()
    if len(pair) != 2:
        raise GradientError(op="grad", reason="with has_aux the function gives a pair")
    return pair[0], pair[1]


def _array(x: Any) -> Value:
    operand = number_or_value(x, "grad")
    if isinstance(operand, Value):
        return operand
    return (
        operand.node(operand.dtype) if isinstance(operand, Number) else number(operand, f64, "grad")
    )


def _scalar(result: Any) -> Value:
    """Return the value that is differentiated; raise GradientError unless it is one float."""
    if isinstance(result, ComplexArray):
        raise GradientError(
            op="grad",
            reason=f"the function gives {result.type_text}, which is complex",
            hint="Differentiate a real number: abs(y), or y.real.",
        )
    if flatten(result)[1] != "leaf":
        raise GradientError(
            op="grad", reason="the function gives several values; has_aux=True takes a pair"
        )
    node = _array(result)
    if node.type.shape or not node.type.dtype.is_float:
        raise GradientError(
            op="grad", reason=f"the function gives {node.type_text}, not one float (see sm.vjp)"
        )
    return node


def _seed(node: Value, x: Any) -> Value:
    """Return a cotangent as a value; raise GradientError unless it has the result's type."""
    operand = number_or_value(x, "vjp")
    seed = operand if isinstance(operand, Value) else number(operand, node.type.dtype, "vjp")
    same = node.type.dtype == seed.type.dtype and len(shape_of(node)) == len(shape_of(seed))
    scope = node.scope or seed.scope
    for a, b in zip(shape_of(node), shape_of(seed)):
        same = same and (a == b if scope is None else scope.same(a, b))
    if not same:
        raise GradientError(
            op="vjp", reason=f"a cotangent is {seed.type_text}, the value {node.type_text}"
        )
    return seed


# ---- the reverse pass --------------------------------------------------------------------------


@contextmanager
def _taping() -> Generator[None]:
    """Keep the operands of all values computed inside, and record jitted functions."""
    STATE.tapes += 1
    follow(1)
    previous = set(STATE.differentiation_inputs)
    try:
        yield
    finally:
        STATE.tapes -= 1
        follow(-1)
        STATE.differentiation_inputs = previous
        if not STATE.tapes:
            retained, STATE.retained = STATE.retained, []
            for node in retained:
                node.inputs = ()


def _reverse(
    steps: Sequence[TapeStep], seeds: Mapping[Node, Node], inputs: Sequence[_Leaf]
) -> list[Array]:
    """Return the gradients, zeros for inputs that the result does not depend on."""
    wrt = [x.node for x in inputs]
    scope = next((x.scope for x in wrt if x.scope is not None), STATE.scope)
    cotangents = _autodiff().reverse(_builder(scope), steps, seeds, wrt)
    slopes: list[Array] = []
    for x, slope in zip(wrt, cotangents, strict=True):
        if slope is None:
            zero = record(Reshape(()), (constant(0.0, x.type.dtype),), scope)
            slope = expand(zero, shape_of(x))
        assert isinstance(slope, Value)
        named = isinstance(slope.op, Input) or any(slope is s.node for s in slopes)
        slopes.append(Array.of(identity_copy(slope) if named else slope))
    return slopes


def _builder(scope: Scope | None) -> Builder:
    """Return a builder that records in a scope, or lazily.

    Operators get the origin of the operator that is differentiated.
    """

    seen = (lambda x: x) if scope is None else scope.type
    return _autodiff().Builder(functools.partial(_emit, scope), seen)


def vmap(fun: Function, in_axes: Any = 0, out_axes: Any = 0) -> Function:
    """Return a function that computes `fun` for each slice of its arguments.

    Args:
        fun: takes and returns nests of arrays.
        in_axes: the axis of every argument that is mapped; None for arguments that each slice gets
            whole. A tuple has an entry for each positional argument: an axis, None, or a nest of
            these like the argument. Keyword arguments are mapped along axis 0.
        out_axes: where the results have that axis: an axis, or a nest of axes like the result.

    Returns:
        A function with the parameters of `fun`, for arrays with one more dimension.

    Raises LengthError if mapped axes differ in length or there is none, ArgumentError for axes that
    do not fit, AxisError for an axis that an array does not have.
    """
    if not callable(fun):
        raise ArgumentError(op="vmap", argument="fun", value=repr(fun), expected="a function")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = flatten((args, kwargs))
        axes = _axes_of_arguments(in_axes, args, kwargs)
        names = paths(tree, "argument")
        places = [k for k, a in enumerate(axes) if a is not None]
        values = [_front(_mapped(leaves[k], "vmap"), axes[k]) for k in places]
        count = _count(values, [names[k] for k in places])
        trees: list[Tree] = []

        def call(slices: list[Array]) -> list[Value]:
            arguments = list(leaves)
            for k, x in zip(places, slices, strict=True):
                arguments[k] = x
            positional, named = unflatten(tree, iter(arguments))
            results, nest = flatten(fun(*positional, **named))
            trees.append(nest)
            return [_result(x) for x in results]

        step = record_step("vmap", call, (), values)
        outputs = _batched(step, values, count)
        goals = _spread(out_axes, trees[-1], "out_axes")
        arrays = [Array.of(_moved(x, a)) for x, a in zip(outputs, goals, strict=True)]
        return unflatten(trees[-1], iter(arrays))

    return Transformed("vmap", fun, mapped)


def _batched(step: Step, values: Sequence[Value], count: Index) -> list[Value]:
    """Record the step's operators for all slices at once; return its results."""
    scope = next((x.scope for x in (*values, *step.captured) if x.scope is not None), STATE.scope)
    graph = with_sizes(step.graph, dict(zip(step.names, step.sizes, strict=True)))
    batch = Batch(count, functools.partial(_emit, scope))
    inputs = [*((x, True) for x in values), *((x, False) for x in step.captured)]
    results = batch.run(graph, inputs)
    whole = [batch.whole(y, x.type.shape) for y, x in zip(results, graph.outputs, strict=True)]
    return [_value(x) for x in whole]


def _emit(
    scope: Scope | None, op: TensorOp, inputs: tuple[Node, ...], origin: Origin | None
) -> Node:
    result = record(op, tuple(_value(x) for x in inputs), scope)
    result.origin = origin
    return result


def _value(x: Node) -> Value:
    return x if isinstance(x, Value) else Value(x.op, x.inputs, x.type, x.origin)


def _front(x: Value, axis: int) -> Value:
    at = axis_of(axis, x.type.rank, "vmap")
    order = (at, *(k for k in range(x.type.rank) if k != at))
    return x if at == 0 else permute(x, order)


def _moved(x: Value, axis: int) -> Value:
    at = axis_of(axis, x.type.rank, "vmap")
    order = [*range(1, x.type.rank)]
    order.insert(at, 0)
    return x if at == 0 else permute(x, tuple(order))


def _mapped(x: Any, what: str) -> Value:
    value = number_or_value(x, what)
    if not isinstance(value, Value):
        raise ArgumentError.of(what, "a mapped argument", x, "an array, or None in in_axes")
    return value


def _result(x: Any) -> Value:
    value = result_value(x)
    if value is None:
        raise StructureError(where="the result of a function of vmap", type=type(x).__name__)
    return value


def _count(values: Sequence[Value], names: Sequence[str]) -> Index:
    if not values:
        raise LengthError(op="vmap", reason="no argument is mapped: every entry of in_axes is None")
    first = shape_of(values[0])[0]
    for name, x in zip(names[1:], values[1:], strict=True):
        other = shape_of(x)[0]
        scope = x.scope or values[0].scope
        if first != other and (scope is None or not scope.same(first, other)):
            sizes = [d if scope is None else scope.hint(d) for d in (first, other)]
            raise LengthError(
                op="vmap",
                reason=f"{names[0]} has {sizes[0]} slices, {name} has {sizes[1]}",
            )
    scope = next((x.scope for x in values if x.scope is not None), None)
    return shape_of(values[0])[0] if scope is None else scope.canon(first)


def _axes_of_arguments(in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the axis of each leaf of the arguments, None for whole ones."""
    if in_axes is None or isinstance(in_axes, int):
        entries: Sequence[Any] = [in_axes] * len(args)
    else:
        entries = list(in_axes)
        if len(entries) != len(args):
            expected = f"an entry for each of {len(args)} positional arguments"
            raise ArgumentError.of("vmap", "in_axes", in_axes, expected)
    axes: list[Any] = []
    for entry, x in zip(entries, args, strict=True):
        axes += _spread(entry, flatten(x)[1], "in_axes")
    return axes + [0] * len(flatten(kwargs)[0])


def _spread(entry: Any, tree: Any, what: str) -> list[Any]:
    """Return the axis of each leaf, from one axis or a nest of axes."""
    if entry is None or isinstance(entry, int):
        return [entry] * len(paths(tree))
    children = () if tree == LEAF else tree[3]
    items = list(entry.values()) if isinstance(entry, dict) else list(entry)
    if not children or len(items) != len(children):
        raise ArgumentError.of("vmap", what, entry, "an axis, or axes nested as the arrays")
    return [a for item, child in zip(items, children) for a in _spread(item, child, what)]
