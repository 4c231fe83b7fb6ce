"""Optimisers as functions of nests of arrays: an initial state, and a step.

Nothing here is an operator: an update is elementwise code, so that under `sm.jit` the updates of
all parameters, and what becomes of their gradients, run in one launch.  States are nests, so they
go through `sm.jit` as arguments and results; `step` counts from 1.

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
from smelt.frontends.array.promote import cast
from smelt.frontends.array.reduction import floating
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.tree import flatten, unflatten

__all__ = ["Optimiser", "adam", "adamw", "clip", "norm", "sgd"]


class Optimiser(NamedTuple):
    """`start(parameters)` gives a state, `step(parameters, slopes, state)` both of them anew."""

    start: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], tuple[Any, Any]]


Update = Callable[..., tuple[Any, ...]]


def sgd(rate: Any, *, momentum: float = 0.0, nesterov: bool = False) -> Optimiser:
    """Stochastic gradient descent: p - rate·g, or with the running sum m·momentum + g for g.

    Args:
        rate: of learning, a number or an array of rank 0.
        momentum: of the running sum; 0 keeps none.
        nesterov: look one step ahead (Y. Nesterov, 1983, as I. Sutskever et al. write it, 2013).
    """

    def update(p: Array, g: Array, count: Any, *state: Array) -> tuple[Any, ...]:
        pace = _like(rate, p)
        if not state:
            return (p - pace * g,)
        m = momentum * state[0] + g
        return p - pace * (g + momentum * m if nesterov else m), m

    return _optimiser(update, 1 if momentum else 0)


def adam(rate: Any, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> Optimiser:
    """Mean gradients over the root of their mean squares (D. Kingma and J. Ba, 2015).

    Args:
        rate: of learning, a number or an array of rank 0.
        betas: what is kept of both means in each step.
        eps: added to the root.
    """
    return adamw(rate, betas=betas, eps=eps, decay=0.0)


def adamw(
    rate: Any, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.01
) -> Optimiser:
    """Adam whose weights decay by themselves (I. Loshchilov and F. Hutter, 2019).

    Args:
        rate: of learning, a number or an array of rank 0.
        betas: what is kept of both means in each step.
        eps: added to the root.
        decay: of the weights, times the rate.
    """
    first, second = betas

    def update(p: Array, g: Array, count: Any, m: Array, v: Array) -> tuple[Any, ...]:
        m = first * m + (1 - first) * g
        v = second * v + (1 - second) * (g * g)
        full = [_like(1 - beta**count, p) for beta in betas]
        size = (m / full[0]) / (sqrt(v / full[1]) + eps)
        pace = _like(rate, p)
        kept = p if not decay else p - pace * decay * p
        return kept - pace * size, m, v

    return _optimiser(update, 2)


def norm(nest: Any) -> Array:
    """The root of the sum of squares of all elements of all arrays in a nest."""
    leaves, _ = flatten(nest)
    if not leaves:
        raise ArgumentError(op="norm", argument="nest", value=nest, expected="at least one array")
    squares = [total(x * x) for x in map(_wide, leaves)]
    found = squares[0]
    for square in squares[1:]:
        found = found + square
    return sqrt(found)


def clip(slopes: Any, largest: float) -> Any:
    """Gradients scaled down so that their common norm is at most `largest`."""
    leaves, tree = flatten(slopes)
    factor = minimum(largest / (norm(slopes) + 1e-6), 1.0)
    return unflatten(tree, iter([_narrow(_wide(x) * factor, x) for x in leaves]))


def _wide(x: Any) -> Array:
    return Array.of(floating(value(x, "optim")))


def _narrow(found: Array, x: Any) -> Array:
    return Array.of(cast(found.node, value(x, "optim").type.dtype))


def _like(x: Any, p: Array) -> Any:
    """A number, or one computed in float64, beside a parameter: it does not widen that."""
    return Array.of(cast(x.node, p.dtype)) if isinstance(x, Array) else x


def _optimiser(update: Update, kept: int) -> Optimiser:
    """An optimiser of all arrays of a nest, each with `kept` arrays of its own."""

    def start(parameters: Any) -> Any:
        leaves, tree = flatten(parameters)
        nests = [unflatten(tree, iter([zeros_like(_wide(x)) for x in leaves])) for _ in range(kept)]
        return (zeros((), dtype="float64"), *nests)

    def step(parameters: Any, slopes: Any, state: Any) -> tuple[Any, Any]:
        leaves, tree = flatten(parameters)
        given, nest = flatten(slopes)
        if nest != tree:
            raise ArgumentError(
                op="step",
                argument="slopes",
                value="a nest",
                expected="the nest that the parameters are in",
            )
        count, *states = state
        count = count + 1.0
        rows = zip(leaves, given, *(flatten(s)[0] for s in states), strict=True)
        made = [update(_wide(p), _wide(g), count, *own) for p, g, *own in rows]
        new = unflatten(tree, iter([_narrow(m[0], p) for m, p in zip(made, leaves, strict=True)]))
        others = (unflatten(tree, iter([m[k + 1] for m in made])) for k in range(kept))
        return new, (count, *others)

    return Optimiser(start, step)
