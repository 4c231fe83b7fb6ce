"""Nodes and graphs: frozen data, nodes equal only to themselves.

>>> x = build.input("x", TensorType(f32, (4,)))  # doctest: +SKIP
>>> Graph("f", (x,), (build.map("exp", x),))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from smelt.dataclass import dataclass
from smelt.errors import VerifyError
from smelt.ops.create import Input
from smelt.ops.spec import TensorOp
from smelt.origin import Origin
from smelt.types.expr import Index
from smelt.types.tensor import TensorType


class Node:
    """One value: an operator applied to other nodes.  Never changed after it is made."""

    __slots__ = ("__weakref__", "inputs", "op", "origin", "type")

    def __init__(
        self, op: TensorOp, inputs: tuple[Node, ...], type: TensorType, origin: Origin | None = None
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.type = type
        self.origin = origin

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.type}>"


@dataclass(frozen=True, slots=True)
class Fact:
    """What must hold of the sizes for the graph to be valid: `left relation right`."""

    left: Index
    relation: str
    """One of == != < <=."""
    right: Index


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Inputs in calling order, outputs in returning order, and facts about sizes.

    The last `checks` of the outputs are no results, but tell whether the inputs are as they have to
    be: true is an error.  A planner may keep them apart from what they are about.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    facts: tuple[Fact, ...] = ()
    checks: int = 0
    _nodes: tuple[Node, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for node in self.inputs:
            if not isinstance(node.op, Input):
                raise VerifyError(f"graph {self.name}: {node} is no input")

    @property
    def results(self) -> tuple[Node, ...]:
        """The outputs that are no checks."""
        return self.outputs[: len(self.outputs) - self.checks]

    @property
    def asked(self) -> tuple[Node, ...]:
        """The checks."""
        return self.outputs[len(self.outputs) - self.checks :]

    def nodes(self) -> tuple[Node, ...]:
        """Every node, operands before users: inputs first, then in order of first use."""
        if self._nodes is None:
            object.__setattr__(self, "_nodes", tuple(self._walk()))
            assert self._nodes is not None
        return self._nodes

    def _walk(self) -> Iterator[Node]:
        seen: set[Node] = set(self.inputs)
        yield from self.inputs
        stack: list[tuple[Node, int]] = [(node, 0) for node in reversed(self.outputs)]
        while stack:
            node, place = stack.pop()
            if node in seen:
                continue
            if place < len(node.inputs):
                stack.append((node, place + 1))
                stack.append((node.inputs[place], 0))
                continue
            seen.add(node)
            yield node
