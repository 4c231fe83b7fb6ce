"""Optimisers as functions of nested arrays: an initial state, and a step.

An update is elementwise code, so under `sm.jit` the updates of all parameters, fused with the last
steps of their gradients, run in one launch.  States are nests of arrays, so they can be arguments
and results of jitted functions.  The state's step count starts from 1 in the first step.

>>> import smelt as sm
>>> start, step = sgd(0.1)
>>> p = {"w": sm.asarray([1.0, 2.0])}
>>> p, state = step(p, sm.grad(lambda p: sm.sum(p["w"] ** 2))(p), start(p))
>>> p["w"]
Array([0.8, 1.6])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from smelt.errors import ArgumentError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.creation import zeros, zeros_like
from smelt.frontends.array.elementwise import minimum, sqrt
from smelt.frontends.array.numpy_hints import missing_names
from smelt.frontends.array.promote import cast
from smelt.frontends.array.reduction import cast_to_float
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.tree import flatten, unflatten

__all__ = ["Optimiser", "adam", "adamw", "clip", "norm", "sgd"]

__getattr__ = missing_names("smelt.optim", __all__)


class Optimiser(NamedTuple):
    """Pair of functions `start(parameters)` and `step(parameters, slopes, state)`.

    `start` returns an initial state; `step` takes the gradients as `slopes`, in the nest of the
    parameters, and returns new parameters and a new state.  `step` raises ArgumentError if the
    nests differ.
    """

    start: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], tuple[Any, Any]]


Update = Callable[..., tuple[Any, ...]]


def sgd(rate: Any, *, momentum: float = 0.0, nesterov: bool = False) -> Optimiser:
    """Return stochastic gradient descent: p - rate·g.

    With momentum, g is replaced by the running sum m = momentum·m + g.

    Args:
        rate: the learning rate, a number or an array of rank 0.
        momentum: factor of the running sum; 0 stores none.
        nesterov: look one step ahead (Y. Nesterov, 1983, in the form of I. Sutskever et al.,
            2013).
    """

    def update(p: Array, g: Array, count: Any, *state: Array) -> tuple[Any, ...]:
        step_size = _in_type_of(rate, p)
        if not state:
            return (p - step_size * g,)
        m = momentum * state[0] + g
        return p - step_size * (g + momentum * m if nesterov else m), m

    return _optimiser(update, 1 if momentum else 0)


def adam(rate: Any, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> Optimiser:
    """Return Adam: mean gradients over the root of their mean squares.

    Args:
        rate: the learning rate, a number or an array of rank 0.
        betas: decay factors of both running means.
        eps: added to the root.

    See D. Kingma and J. Ba, 2015.
    """
    return adamw(rate, betas=betas, eps=eps, decay=0.0)


def adamw(
    rate: Any, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.01
) -> Optimiser:
    """Return Adam with decoupled weight decay.

    Args:
        rate: the learning rate, a number or an array of rank 0.
        betas: decay factors of both running means.
        eps: added to the root.
        decay: weight decay, multiplied by the rate.

    See I. Loshchilov and F. Hutter, 2019.
    """
    first, second = betas

    def update(p: Array, g: Array, count: Any, m: Array, v: Array) -> tuple[Any, ...]:
        m = first * m + (1 - first) * g
        v = second * v + (1 - second) * (g * g)
        bias_corrections = [_in_type_of(1 - beta**count, p) for beta in betas]
        direction = (m / bias_corrections[0]) / (sqrt(v / bias_corrections[1]) + eps)
        step_size = _in_type_of(rate, p)
        decayed = p if not decay else p - step_size * decay * p
        return decayed - step_size * direction, m, v

    return _optimiser(update, 2)


def norm(nest: Any) -> Array:
    """Return the Euclidean norm of all elements of all arrays in a nest.

    The result has rank 0.  Raises ArgumentError for a nest without arrays.
    """
    leaves, _ = flatten(nest)
    if not leaves:
        raise ArgumentError(op="norm", argument="nest", value=nest, expected="at least one array")
    squares = [total(x * x) for x in map(_to_compute_type, leaves)]
    sum_ = squares[0]
    for square in squares[1:]:
        sum_ = sum_ + square
    return sqrt(sum_)


def clip(slopes: Any, largest: float) -> Any:
    """Scale gradients down so that their common norm is at most `largest`.

    Returns a nest like `slopes`.
    """
    leaves, tree = flatten(slopes)
    factor = minimum(largest / (norm(slopes) + 1e-6), 1.0)
    return unflatten(tree, iter([_to_type_of(_to_compute_type(x) * factor, x) for x in leaves]))


def _to_compute_type(x: Any) -> Array:
    return Array.of(cast_to_float(value(x, "optim")))


def _to_type_of(result: Array, x: Any) -> Array:
    return Array.of(cast(result.node, value(x, "optim").type.dtype))


def _in_type_of(x: Any, p: Array) -> Any:
    """Cast an array to the dtype of a parameter, to avoid promotion."""
    return Array.of(cast(x.node, p.dtype)) if isinstance(x, Array) else x


def _optimiser(update: Update, state_count: int) -> Optimiser:
    """Build an optimiser from an elementwise update with `state_count` arrays of state."""

    def start(parameters: Any) -> Any:
        leaves, tree = flatten(parameters)
        nests = [
            unflatten(tree, iter([zeros_like(_to_compute_type(x)) for x in leaves]))
            for _ in range(state_count)
        ]
        return (zeros((), dtype="float64"), *nests)

    def step(parameters: Any, slopes: Any, state: Any) -> tuple[Any, Any]:
        leaves, tree = flatten(parameters)
        gradients, nest = flatten(slopes)
        if nest != tree:
            raise ArgumentError(
                op="step",
                argument="slopes",
                value="a nest",
                expected="the nest that the parameters are in",
            )
        count, *states = state
        count = count + 1.0
        entries = zip(leaves, gradients, *(flatten(s)[0] for s in states), strict=True)
        updated = [
            update(_to_compute_type(p), _to_compute_type(g), count, *arrays)
            for p, g, *arrays in entries
        ]
        new = unflatten(
            tree, iter([_to_type_of(m[0], p) for m, p in zip(updated, leaves, strict=True)])
        )
        others = (unflatten(tree, iter([m[k + 1] for m in updated])) for k in range(state_count))
        return new, (count, *others)

    return Optimiser(start, step)
