"""List the operators between arguments and results that a gradient passes through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from smelt.graph.ir import Node
from smelt.ops.spec import TensorOp


class Step(NamedTuple):
    """An operator between arguments and results, with its operands when it was recorded."""

    node: Node
    op: TensorOp
    inputs: tuple[Node, ...]


def tape(outputs: Iterable[Node], wrt: Iterable[Node]) -> list[Step]:
    """Return the operators by which `outputs` depend on `wrt` through floats, operands first.

    >>> from smelt.graph.text import parse
    >>> graph = parse("graph f(x: f32[n]) {\\n a = sin(x)\\n b = gt(a, 0.5:f32)\\n return a, b\\n}")
    >>> [step.op.name for step in tape(graph.outputs, graph.inputs)]
    ['sin']
    """
    active = set(wrt)
    steps: list[Step] = []
    seen = set(active)
    stack = [(node, False) for node in outputs]
    while stack:
        node, ready = stack.pop()
        if ready:
            if node.type.dtype.is_float and any(x in active for x in node.inputs):
                active.add(node)
                steps.append(Step(node, node.op, node.inputs))
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((x, False) for x in reversed(node.inputs) if x not in seen)
    return steps
