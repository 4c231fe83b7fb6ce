"""Running what is pending: live arrays become the outputs of a graph, equal programs share a plan.

The graph is recorded with the sizes of this moment.  Before it is compiled, every distinct size of
a leaf (above 1) is turned into a symbol and the attributes of views into expressions over these
symbols, as long as that gives the same graph for the sizes at hand; so the same program with other
sizes finds the plan that is already there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smelt.frontends.array.engine import compile_graph
from smelt.frontends.array.lift import lift, structure
from smelt.frontends.array.value import STATE, Buffer, Value
from smelt.ops.create import Input

if TYPE_CHECKING:
    from smelt.driver import Compiled

__all__ = ["flush", "realise"]

_SEEN_LIMIT = 2048

_SEEN: dict[Any, tuple[Compiled, tuple[int, ...]]] = {}
_COMPILED: dict[Any, Compiled] = {}


def realise(value: Value) -> Buffer:
    """The elements of a value, computing everything that is pending in this thread.

    Raises DonatedError, ChangedError, and what running raises.
    """
    data = value.buffer()
    if data is None:
        flush(value)
        data = value.data
        assert data is not None
    return data


def flush(*wanted: Value) -> None:
    """Compute `wanted` and every pending value of this thread that an array still holds."""
    pending, STATE.pending = STATE.pending, []
    outputs: dict[Value, None] = dict.fromkeys(wanted)
    for reference in pending:
        array = reference()
        if array is not None and array._node.data is None and array._node.scope is None:
            outputs[array._node] = None
    nodes = _walk(outputs)
    _run(nodes, tuple(outputs))


def _walk(outputs: dict[Value, None]) -> list[Value]:
    """Every value that has to be computed or read, operands before users."""
    order: list[Value] = []
    seen: set[Value] = set()
    stack: list[tuple[Any, bool]] = [(node, False) for node in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        if node.data is None:
            stack.extend((x, False) for x in reversed(node.inputs) if x not in seen)
    return order


def _run(nodes: list[Value], outputs: tuple[Value, ...]) -> None:
    leaves = [x for x in nodes if x.data is not None or isinstance(x.op, Input)]
    buffers: list[Buffer] = []
    for x in leaves:
        data = x.buffer()
        assert data is not None
        buffers.append(data)
    key = structure(nodes, leaves, outputs)
    found = _SEEN.get(key)
    if found is None:
        lifted = lift(nodes, leaves, outputs)
        executable = _COMPILED.get(lifted.key)
        if executable is None:
            executable = _COMPILED[lifted.key] = compile_graph(lifted.graph, lifted.hints)
        if len(_SEEN) > _SEEN_LIMIT:
            _SEEN.clear()
        found = _SEEN[key] = executable, lifted.sizes
    executable, sizes = found
    for node, data in zip(outputs, executable.run(buffers, sizes), strict=True):
        node.data = data
        node.inputs = ()
