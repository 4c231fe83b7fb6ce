"""Map a function over a dimension of its arguments, without a loop: `vmap`.

The function is recorded once, on arrays without that dimension, and each operator that it applied
is recorded again on arrays with it (`smelt.graph.batch`).

>>> import smelt as sm
>>> dot = vmap(lambda a, b: sm.sum(a * b), in_axes=(0, None))
>>> dot(sm.asarray([[1.0, 2.0], [3.0, 4.0]]), sm.asarray([1.0, 10.0]))
Array([21., 43.])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from smelt.errors import ArgumentError, LengthError, StructureError
from smelt.frontends.array.array import Array, number_or_value
from smelt.frontends.array.scope import Scope
from smelt.frontends.array.steps import Step, record_step, result_value
from smelt.frontends.array.transformed import Transformed
from smelt.frontends.array.tree import LEAF, Tree, flatten, paths, unflatten
from smelt.frontends.array.value import STATE, Value, record
from smelt.frontends.array.views import axis_of, permute, shape_of
from smelt.graph.batch import Batch
from smelt.graph.ir import Node
from smelt.graph.loop import with_sizes
from smelt.ops.spec import TensorOp
from smelt.python.origin import Origin
from smelt.types.expr import Index

Function = Callable[..., Any]


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
        values = [_front(_array(leaves[k], "vmap"), axes[k]) for k in places]
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


def _array(x: Any, what: str) -> Value:
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
    """Return the length of the mapped axes."""
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
            raise ArgumentError(
                op="vmap",
                argument="in_axes",
                value=in_axes,
                expected=f"an entry for each of {len(args)} positional arguments",
            )
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
        raise ArgumentError(
            op="vmap", argument=what, value=entry, expected="an axis, or axes nested as the arrays"
        )
    return [a for item, child in zip(items, children) for a in _spread(item, child, what)]
