"""Rows of control flow, sequences and optionals.

A branch or loop becomes one of the recording's where that is possible: a condition that sizes
decide is decided now, a loop with carries of fixed shapes is a loop of the graph. Otherwise
NeedsValueError ends the recording, and the loop runs in Python over compiled steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import smelt as sm
from smelt.errors import CarryError, UnsupportedError
from smelt.frontends.array.array import Array
from smelt.frontends.array.number import Number
from smelt.onnx.known import Known, Value
from smelt.onnx.model import Graph
from smelt.onnx.row import Call, NeedsValueError, Row, axis_of
from smelt.onnx.tensors import dtype_of

MAX_UNROLLED = 64
"""Maximum steps of a loop that are recorded one by one because its carries change their shapes."""
UNLIMITED_STEPS = 1 << 40
"""Steps of a loop without a trip count."""

Env = Mapping[str, Value]


def _truth(c: Call, x: Any) -> bool:
    return bool(c.known(x).elements.reshape(-1)[0])


def _if(c: Call, condition: Any, env: Env) -> Any:
    branches = c.graph("then_branch"), c.graph("else_branch")
    if isinstance(condition, Known) or not c.evaluation.is_recording:
        taken = branches[0] if _truth(c, condition) else branches[1]
        return tuple(c.evaluation.subgraph(taken, env, ()))

    def branch(graph: Graph) -> Any:
        def run() -> list[Array]:
            return [_tensor(c, x) for x in c.evaluation.subgraph(graph, env, ())]

        return run

    try:
        return tuple(sm.cond(sm.reshape(condition, ()), *map(branch, branches)))
    except CarryError:
        raise NeedsValueError(f"{c.node.name}: branches of different shapes") from None


def _tensor(c: Call, x: Any) -> Array:
    array = c.array(x)
    if not isinstance(array, Array):
        raise NeedsValueError("a sequence inside a loop or branch")
    return array


# Loops


def _loop(c: Call, limit: Any, condition: Any, *carries: Any, env: Env) -> Any:
    body = c.graph("body")
    always = condition is None or (isinstance(condition, Known) and _truth(c, condition))
    if c.evaluation.is_recording:
        if always and limit is not None and isinstance(limit, Known) and _keeps_going(body):
            try:
                return _counted(c, body, limit.item(), carries, env)
            except (CarryError, NeedsValueError):
                if not isinstance(limit.item(), int) or limit.item() > MAX_UNROLLED:
                    raise NeedsValueError("a loop whose carries change their shapes") from None
        elif not isinstance(limit, Known) or not _keeps_going(body):
            return _until(c, body, limit, condition, carries, env)
    return _python_loop(c, body, limit, condition, carries, env)


def _keeps_going(body: Graph) -> bool:
    """Whether a body returns its condition as it got it, or true."""
    name = body.outputs[0].name
    producers = {out: n for n in body.nodes for out in n.outputs}
    while name in producers and producers[name].op == "Identity":
        name = producers[name].inputs[0]
    if name == body.inputs[1].name:
        return True
    node = producers.get(name)
    tensor = node.attributes.get("value") if node is not None and node.op == "Constant" else None
    tensor = body.tensors.get(name) if tensor is None else tensor
    if tensor is None:
        return False
    fields: Any = getattr(tensor, "fields", {})
    return bytes(fields.get("raw", b"")) == b"\x01" or list(fields.get("int32s", ())) == [1]


def _counted(c: Call, body: Graph, count: Any, carries: Sequence[Any], env: Env) -> Any:
    """Record a loop with a number of steps that is known, or a size."""
    first = [_tensor(c, x) for x in carries]

    def step(state: list[Array], k: Array) -> Any:
        inputs = [k, Known(np.array(True)), *state]
        _, *results = c.evaluation.subgraph(body, env, inputs)
        arrays = [_tensor(c, x) for x in results]
        return arrays[: len(first)], arrays[len(first) :]

    if not isinstance(count, Number) and count <= 0:
        raise NeedsValueError("a loop without steps")
    last, stacked = sm.scan(step, first, sm.arange(count))
    return (*last, *stacked)


def _until(
    c: Call, body: Graph, limit: Any, condition: Any, carries: Sequence[Any], env: Env
) -> Any:
    """Record a loop that ends by its condition, if nothing is stacked."""
    if len(body.outputs) != 1 + len(carries):
        raise NeedsValueError("results of a loop whose number of steps is not known")
    first = [_tensor(c, x) for x in carries]
    start = sm.full((), True, dtype=sm.bool)
    start = start if condition is None else sm.reshape(_tensor(c, condition), ())
    most = None if limit is None else sm.reshape(_tensor(c, limit), ())

    def goes_on(state: Any) -> Array:
        k, on, _ = state
        return on if most is None else on & (k < most)

    def step(state: Any) -> Any:
        k, on, values = state
        flag, *results = c.evaluation.subgraph(body, env, [k, on, *values])
        return k + 1, sm.reshape(_tensor(c, flag), ()), [_tensor(c, x) for x in results]

    try:
        counter = sm.full((), 0, dtype=sm.int64)
        _, _, last = sm.while_loop(goes_on, step, (counter, start, first))
    except CarryError:
        raise NeedsValueError("a loop whose carries change their shapes") from None
    return tuple(last)


def _python_loop(
    c: Call, body: Graph, limit: Any, condition: Any, carries: Sequence[Any], env: Env
) -> Any:
    """Run a loop step by step; while recording its condition must be known."""
    most = UNLIMITED_STEPS if limit is None else int(c.known(limit).item())
    on = condition is None or _truth(c, condition)
    states = list(carries)
    stacked: list[list[Any]] = [[] for _ in body.outputs[1 + len(states) :]]
    k = 0
    while on and k < most:
        inputs = [Known(np.array(k, np.int64)), Known(np.array(True)), *states]
        flag, *results = c.evaluation.subgraph(body, env, inputs)
        states = results[: len(states)]
        for column, x in zip(stacked, results[len(states) :], strict=True):
            column.append(x)
        k += 1
        on = k < most and _truth(c, flag)
    columns = [
        _stack(c, column) if column else _no_steps(port)
        for column, port in zip(stacked, body.outputs[1 + len(states) :], strict=True)
    ]
    return (*states, *columns)


def _stack(c: Call, column: list[Any]) -> Any:
    return sm.stack([_tensor(c, x) for x in column], axis=0)


def _no_steps(port: Any) -> Any:
    dims = [d if isinstance(d, int) else 0 for d in port.dims or ()]
    return Known(np.zeros((0, *dims), dtype_of(port.data_type)))


def _scan(c: Call, *inputs: Any, env: Env) -> Any:
    body, count = c.graph("body"), c.get("num_scan_inputs")
    if c.version < 9:
        return _scan_of_batches(c, body, count, inputs[1:], env)
    states = [_tensor(c, x) for x in inputs[: len(inputs) - count]]
    sequences = [_tensor(c, x) for x in inputs[len(inputs) - count :]]
    return _scanned(c, body, states, sequences, env)


def _scanned(
    c: Call, body: Graph, states: list[Array], sequences: list[Array], env: Env
) -> tuple[Any, ...]:
    axes = c.get("scan_input_axes") or (0,) * len(sequences)
    flips = c.get("scan_input_directions") or c.get("directions") or (0,) * len(sequences)
    slices: list[Array] = []
    for x, axis, is_reverse in zip(sequences, axes, flips, strict=True):
        moved = sm.moveaxis(x, axis_of(axis, x.ndim), 0)
        slices.append(sm.flip(moved, axis=0) if is_reverse else moved)

    def step(carry: list[Array], at: list[Array]) -> Any:
        results = [_tensor(c, x) for x in c.evaluation.subgraph(body, env, [*carry, *at])]
        return results[: len(states)], results[len(states) :]

    last, stacked = sm.scan(step, states, slices)
    out_axes = c.get("scan_output_axes") or (0,) * len(stacked)
    out_flips = c.get("scan_output_directions") or (0,) * len(stacked)
    results: list[Array] = []
    for x, axis, is_reverse in zip(stacked, out_axes, out_flips, strict=True):
        x = sm.flip(x, axis=0) if is_reverse else x
        results.append(sm.moveaxis(x, 0, axis_of(axis, x.ndim)))
    return (*last, *results)


def _scan_of_batches(
    c: Call, body: Graph, count: int, inputs: Sequence[Any], env: Env
) -> tuple[Any, ...]:
    """Run the first version of Scan, whose operands have a batch dimension."""
    arrays = [_tensor(c, x) for x in inputs]
    rows: list[tuple[Any, ...]] = []
    for b in range(int(arrays[0].shape[0])):
        parts = [x[b] for x in arrays]
        split = len(parts) - count
        rows.append(_scanned(c, body, parts[:split], parts[split:], env))
    return tuple(sm.stack(list(column), axis=0) for column in zip(*rows, strict=True))


# Sequences and optionals


def _items(x: Any) -> list[Any]:
    if not isinstance(x, list):
        raise UnsupportedError("a tensor where a sequence is expected")
    return x  # pyright: ignore[reportUnknownVariableType]


def _index(c: Call, x: Any) -> int:
    return int(c.known(x).item())


def _insert(c: Call, items: Any, x: Any, position: Any = None) -> list[Any]:
    result = list(_items(items))
    result.insert(len(result) if position is None else _index(c, position), x)
    return result


def _erase(c: Call, items: Any, position: Any = None) -> list[Any]:
    result = list(_items(items))
    del result[-1 if position is None else _index(c, position)]
    return result


def _concat_sequence(c: Call, items: Any) -> Any:
    arrays = [c.array(x) for x in _items(items)]
    if c.get("new_axis", 0):
        return sm.stack(arrays, axis=c.get("axis"))
    return sm.concat(arrays, axis=c.get("axis"))


def _split_sequence(c: Call, x: Any, parts: Any = None) -> list[Any]:
    array = c.array(x)
    axis = axis_of(c.get("axis", 0), array.ndim)
    extent = int(array.shape[axis])
    if parts is None:
        lengths, keeps = [1] * extent, bool(c.get("keepdims", 1))
    else:
        sizes, keeps = c.known(parts), True
        lengths = [int(n) for n in sizes.ints()]
        if sizes.ndim == 0:
            whole = lengths[0]
            lengths = [min(whole, extent - k) for k in range(0, extent, whole)]
    results: list[Any] = []
    first = 0
    for n in lengths:
        part = array[(slice(None),) * axis + (slice(first, first + n),)]
        results.append(part if keeps else sm.squeeze(part, axis=axis))
        first += n
    return results


def _map_sequence(c: Call, items: Any, *others: Any, env: Env) -> Any:
    columns: list[list[Any]] = []
    for k, x in enumerate(_items(items)):
        inputs = [x, *(o[k] if isinstance(o, list) else o for o in others)]
        columns.append(c.evaluation.subgraph(c.graph("body"), env, inputs))
    return tuple(map(list, zip(*columns, strict=True)))


ROWS: tuple[Row, ...] = (
    Row("If", _if, raw=True),
    Row("Loop", _loop, raw=True),
    Row("Scan", _scan, raw=True),
    Row("SequenceMap", _map_sequence, raw=True),
    Row("SequenceEmpty", lambda c: [], raw=True),
    Row("SequenceConstruct", lambda c, *x: list(x), raw=True),
    Row("SequenceInsert", _insert, raw=True),
    Row("SequenceErase", _erase, raw=True),
    Row("SequenceAt", lambda c, items, k: _items(items)[_index(c, k)], raw=True),
    Row("SequenceLength", lambda c, x: Known(np.array(len(_items(x)), np.int64)), raw=True),
    Row("ConcatFromSequence", _concat_sequence, raw=True),
    Row("SplitToSequence", _split_sequence, raw=True),
    Row("Optional", lambda c, x=None: x, raw=True),
    Row("OptionalHasElement", lambda c, x=None: Known(np.array(x is not None)), raw=True),
    Row("OptionalGetElement", lambda c, x: x, raw=True),
)
