"""Rows of recurrent networks: LSTM, GRU, RNN, and their quantised forms.

Products with the input are one contraction outside of the loop; the step is a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import smelt as sm
from smelt.errors import UnsupportedError
from smelt.frontends.array.array import Array
from smelt.onnx.known import Known
from smelt.onnx.row import Call, Row
from smelt.onnx.rows_elementwise import like
from smelt.onnx.rows_quantized import IntegerWeights, dynamic_quantized

Product = Callable[[Array], Array]
"""A product with recurrent weights."""


_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")
_WITH_ALPHA = (*_WITH_BETA, "LeakyRelu", "ThresholdedRelu", "Elu")
"""Activations that take the next element of `activation_alpha`; the others skip none."""


def _activation(name: str, alpha: Any, beta: Any) -> Callable[[Array], Array]:
    first = 0.01 if alpha is None and name == "LeakyRelu" else 1.0 if alpha is None else alpha
    table: dict[str, Callable[[Array], Array]] = {
        "Sigmoid": sm.sigmoid,
        "Tanh": sm.tanh,
        "Relu": lambda x: sm.maximum(x, like(x, 0)),
        "Affine": lambda x: like(x, first) * x + like(x, beta or 0.0),
        "LeakyRelu": lambda x: sm.where(x < like(x, 0), like(x, first) * x, x),
        "ThresholdedRelu": lambda x: sm.where(x > like(x, first), x, like(x, 0)),
        "ScaledTanh": lambda x: like(x, first) * sm.tanh(like(x, beta or 1.0) * x),
        "HardSigmoid": lambda x: sm.clip(
            like(x, 0.2 if alpha is None else alpha) * x + like(x, 0.5 if beta is None else beta),
            like(x, 0),
            like(x, 1),
        ),
        "Elu": lambda x: sm.where(x < like(x, 0), like(x, first) * sm.expm1(x), x),
        "Softsign": lambda x: x / (like(x, 1) + sm.abs(x)),
        "Softplus": lambda x: sm.logaddexp(x, like(x, 0)),
    }
    if name not in table:
        raise UnsupportedError(f"the activation {name!r} in a recurrent network")
    return table[name]


class _Net:
    """One recurrent node: settings shared by its directions."""

    def __init__(self, c: Call, gates: int, functions: tuple[str, ...]) -> None:
        self.c = c
        self.gates = gates
        self.hidden = c.get("hidden_size")
        self.direction = c.get("direction", "forward")
        self.count = 2 if self.direction == "bidirectional" else 1
        names = list(c.get("activations") or functions * self.count)
        alphas, betas = list(c.get("activation_alpha") or ()), list(c.get("activation_beta") or ())
        self.functions = [
            _activation(
                n,
                alphas.pop(0) if alphas and n in _WITH_ALPHA else None,
                betas.pop(0) if betas and n in _WITH_BETA else None,
            )
            for n in names
        ]
        self.per_direction = len(functions)

    def clipped(self, x: Array) -> Array:
        bound = self.c.get("clip")
        return x if not bound else sm.clip(x, like(x, -bound), like(x, bound))

    def of(self, d: int) -> list[Callable[[Array], Array]]:
        return self.functions[d * self.per_direction : (d + 1) * self.per_direction]


def _run(
    net: _Net,
    x: Array,
    project: Callable[[int, Array], Array],
    lengths: Any,
    states: list[Any],
    step: Callable[[int, Array, list[Array]], list[Array]],
) -> tuple[Array, list[Array]]:
    """Run all directions; x is [time, batch, input].

    `project` gives the input's products of a direction; `step` maps them and the states of a step
    to the next states, the first of which is the result. Returns [time, directions, batch, hidden]
    and the last states, [directions, batch, hidden].
    """
    time, batch = x.shape[0], x.shape[1]
    zeros = sm.zeros((batch, net.hidden), dtype=x.dtype)
    outputs: list[Array] = []
    last: list[list[Array]] = []
    for d in range(net.count):
        is_reverse = net.direction == "reverse" or d == 1
        first = [zeros if s is None else s[d] for s in states]
        projected: dict[str, Array] = {"x": project(d, x)}
        if lengths is not None:
            steps = sm.reshape(sm.arange(time), (-1, 1))
            ends = sm.reshape(sm.astype(lengths, sm.int64), (1, -1))
            projected["on"] = sm.expand_dims(steps < ends, axis=-1)

        def body(carry: list[Array], at: dict[str, Array], d: int = d) -> Any:
            new = step(d, at["x"], list(carry))
            if "on" not in at:
                return new, new[0]
            kept = [sm.where(at["on"], n, o) for n, o in zip(new, carry, strict=True)]
            return kept, sm.where(at["on"], new[0], like(new[0], 0))

        if isinstance(time, int) and time == 1:  # what is not a loop fuses with what is around it
            carry, result = body(first, {name: x[0] for name, x in projected.items()})
            result = sm.expand_dims(result, axis=0)
        else:
            carry, result = sm.scan(body, first, projected, reverse=is_reverse)
        outputs.append(result)
        last.append(list(carry))
    stacked = [sm.stack([side[k] for side in last], axis=0) for k in range(len(states))]
    return sm.stack(outputs, axis=1), stacked


def _results(c: Call, y: Array, states: list[Array]) -> tuple[Array, ...]:
    """Return the results in the layout that the node asks for."""
    if c.get("layout", 0):
        y = sm.permute_dims(y, (2, 0, 1, 3))
        states = [sm.permute_dims(s, (1, 0, 2)) for s in states]
    return (y, *states)


def _inputs(c: Call, x: Array, *states: Any) -> list[Any]:
    """Return the input and states with time, and directions, first."""
    if not c.get("layout", 0):
        return [x, *states]
    moved = [None if s is None else sm.permute_dims(s, (1, 0, 2)) for s in states]
    return [sm.permute_dims(x, (1, 0, 2)), *moved]


def _parts(x: Array, count: int) -> list[Array]:
    width = x.shape[-1] // count
    return [x[..., k * width : (k + 1) * width] for k in range(count)]


def _project(
    net: _Net, products: Sequence[Product], bias: Any, gates: int
) -> Callable[[int, Array], Array]:
    """Return a function that multiplies an input by weights and adds both biases."""

    def project(d: int, x: Array) -> Array:
        projected = products[d](x)
        if bias is None:
            return projected
        return projected + (bias[d, : gates * net.hidden] + bias[d, gates * net.hidden :])

    return project


# LSTM


def _run_lstm(
    net: _Net,
    project: Callable[[int, Array], Array],
    products: list[Product],
    x: Array,
    lengths: Any = None,
    h: Any = None,
    cell: Any = None,
    peepholes: Any = None,
) -> Any:
    x, h, cell = _inputs(net.c, x, h, cell)
    coupled = bool(net.c.get("input_forget", 0))

    def step(d: int, projected: Array, states: list[Array]) -> list[Array]:
        h, cell = states
        f, g, k = net.of(d)
        i, o, forget, c = _parts(projected + products[d](h), 4)
        holes = [] if peepholes is None else _parts(peepholes[d], 3)
        if holes:
            i, forget = i + holes[0] * cell, forget + holes[2] * cell
        i = f(net.clipped(i))
        forget = like(i, 1) - i if coupled else f(net.clipped(forget))
        new = forget * cell + i * g(net.clipped(c))
        if holes:
            o = o + holes[1] * new
        return [f(net.clipped(o)) * k(new), new]

    return _results(net.c, *_run(net, x, project, lengths, [h, cell], step))


def _lstm(c: Call, x: Array, w: Array, r: Array, bias: Any = None, *states: Any) -> Any:
    """Run an LSTM; `states` are lengths, both states and peepholes, all of them optional."""
    net = _Net(c, 4, ("Sigmoid", "Tanh", "Tanh"))
    inputs, products = ([_product(m[d]) for d in range(net.count)] for m in (w, r))
    return _run_lstm(net, _project(net, inputs, bias, 4), products, x, *states)


def _product(r: Array) -> Product:
    """Return the product of states with the transpose of recurrent weights."""
    weights = sm.matrix_transpose(r)
    return lambda h: sm.matmul(h, weights)


def _dynamic_lstm(c: Call, x: Array, w: Array, r: Array, bias: Any, *more: Any) -> Any:
    """Run an LSTM whose weights are integers and whose operands are quantised in each product."""
    net = _Net(c, 4, ("Sigmoid", "Tanh", "Tanh"))
    *states, w_scale, w_zero, r_scale, r_zero = more

    def products(m: Array, zero: Known, scale: Array) -> list[Product]:
        weights = [IntegerWeights(m[d], _zero_of(zero, d)) for d in range(net.count)]
        return [lambda v, d=d: scaled(v, weights[d], scale[d]) for d in range(net.count)]

    def scaled(v: Array, weights: IntegerWeights, scale: Array) -> Array:
        steps, factor, shift = dynamic_quantized(v)
        return sm.astype(weights.product(steps, shift), v.dtype) * (factor * scale)

    project = _project(net, products(w, w_zero, w_scale), bias, 4)
    return _run_lstm(net, project, products(r, r_zero, r_scale), x, *states)


def _zero_of(zero: Known, d: int) -> Known:
    return Known(np.ascontiguousarray(zero.elements[d : d + 1].reshape(-1)))


# GRU and RNN


def _gru(
    c: Call, x: Array, w: Array, r: Array, bias: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    net = _Net(c, 3, ("Sigmoid", "Tanh"))
    size, before = net.hidden, bool(c.get("linear_before_reset", 0))
    x, h = _inputs(c, x, h)

    def project(d: int, x: Array) -> Array:
        projected = sm.matmul(x, sm.matrix_transpose(w[d]))
        if bias is None:
            return projected
        outer, recurrent = bias[d, : 3 * size], bias[d, 3 * size :]
        if before:  # the last third of the recurrent bias is inside of the reset
            recurrent = sm.concat([recurrent[: 2 * size], sm.zeros((size,), dtype=x.dtype)])
        return projected + (outer + recurrent)

    gates = [_product(r[d, : 2 * size]) for d in range(net.count)]
    rest = [_product(r[d, 2 * size :]) for d in range(net.count)]

    def step(d: int, projected: Array, states: list[Array]) -> list[Array]:
        (old,) = states
        f, g = net.of(d)
        z, reset, new = _parts(projected, 3)
        both = gates[d](old)
        z = f(net.clipped(z + both[..., :size]))
        reset = f(net.clipped(reset + both[..., size:]))
        if before:
            inner = rest[d](old)
            inner = inner if bias is None else inner + bias[d, 5 * size :]
            new = new + reset * inner
        else:
            new = new + rest[d](reset * old)
        return [(like(z, 1) - z) * g(net.clipped(new)) + z * old]

    return _results(c, *_run(net, x, project, lengths, [h], step))


def _rnn(
    c: Call, x: Array, w: Array, r: Array, bias: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    net = _Net(c, 1, ("Tanh",))
    x, h = _inputs(c, x, h)
    inputs, products = ([_product(m[d]) for d in range(net.count)] for m in (w, r))

    def step(d: int, projected: Array, states: list[Array]) -> list[Array]:
        (f,) = net.of(d)
        return [f(net.clipped(projected + products[d](states[0])))]

    return _results(c, *_run(net, x, _project(net, inputs, bias, 1), lengths, [h], step))


ROWS: tuple[Row, ...] = (
    Row("LSTM", _lstm),
    Row("GRU", _gru),
    Row("RNN", _rnn),
    Row("DynamicQuantizeLSTM", _dynamic_lstm, (9, 11), domain="com.microsoft"),
)
