"""Define nodes and graphs: immutable data; nodes compare by identity.

>>> x = build.input("x", TensorType(f32, (4,)))  # doctest: +SKIP
>>> Graph("f", (x,), (build.map("exp", x),))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from smelt.errors import VerifyError
from smelt.ops.create import Input
from smelt.ops.spec import TensorOp
from smelt.python.dataclass import dataclass
from smelt.python.origin import Origin
from smelt.types.expr import Index
from smelt.types.tensor import TensorType


class Node:
    """A value in a graph: an operator applied to other nodes.  Immutable."""

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
    """A condition on sizes under which the graph is valid: `left relation right`."""

    left: Index
    relation: str
    """One of == != < <=."""
    right: Index


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Inputs in calling order, outputs in returning order, and facts about sizes.

    The last `checks` outputs are not results but boolean checks of the inputs: true is an error.  A
    planner may compute them separately from what they check.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    facts: tuple[Fact, ...] = ()
    checks: int = 0
    _nodes: tuple[Node, ...] | None = field(default=None, init=False, repr=False)
    _kinds: frozenset[type[TensorOp]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for node in self.inputs:
            if not isinstance(node.op, Input):
                raise VerifyError(f"graph {self.name}: {node} is not an input")

    @property
    def results(self) -> tuple[Node, ...]:
        """Return the outputs that are not checks."""
        return self.outputs[: len(self.outputs) - self.checks]

    @property
    def check_outputs(self) -> tuple[Node, ...]:
        """Return the outputs that are checks."""
        return self.outputs[len(self.outputs) - self.checks :]

    def nodes(self) -> tuple[Node, ...]:
        """Return every node, operands before users: inputs first, then in order of first use."""
        if self._nodes is None:
            object.__setattr__(self, "_nodes", tuple(self._walk()))
            assert self._nodes is not None
        return self._nodes

    def kinds(self) -> frozenset[type[TensorOp]]:
        """Return the classes of its operators, which decide whether a stage applies."""
        if self._kinds is None:
            object.__setattr__(self, "_kinds", frozenset(type(x.op) for x in self.nodes()))
            assert self._kinds is not None
        return self._kinds

    def _walk(self) -> Iterator[Node]:
        seen: set[Node] = set(self.inputs)
        yield from self.inputs
        stack: list[tuple[Node, int]] = [(node, 0) for node in reversed(self.outputs)]
        while stack:
            node, position = stack.pop()
            if node in seen:
                continue
            if position < len(node.inputs):
                stack.append((node, position + 1))
                stack.append((node.inputs[position], 0))
                continue
            seen.add(node)
            yield node
