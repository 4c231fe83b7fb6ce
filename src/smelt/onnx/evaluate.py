"""Evaluate the nodes of a graph in order, by their rows.

Inside `jit` the arrays are symbolic and the result is a program. Where a rule needs elements that
the recording does not have, NeedsValueError ends it; the session then evaluates call by call, and
elements are computed when a rule asks for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import OnnxFileError, OnnxLimitError, SmeltError, UnsupportedError
from smelt.frontends.array.array import Array
from smelt.frontends.array.value import STATE
from smelt.graph.build import MISTAKES
from smelt.onnx.known import Known, Value, known_of
from smelt.onnx.listing import Listing
from smelt.onnx.model import Function, Graph, Model, Node, StoredTensor
from smelt.onnx.row import Call, NeedsHostError, NeedsValueError, Row, computable
from smelt.onnx.table import row_of
from smelt.onnx.tensors import decode

MAX_INLINED = 100
"""Deepest nesting of functions that call functions."""

Fallback = Callable[[Node, int, Sequence[Any]], list[Any]]
"""Computes a node without a rule: (node, opset, inputs in NumPy) -> results in NumPy."""


class Evaluation:
    """State of one walk through a model."""

    def __init__(
        self,
        model: Model,
        constants: dict[int, Known],
        external: Callable[[StoredTensor, int], memoryview],
        fallback: Fallback | None = None,
        listing: Listing | None = None,
    ) -> None:
        """Prepare a walk.

        `constants` caches decoded tensors by the identity of their records, across walks; `listing`
        gives nodes their lines.
        """
        self.model = model
        self.versions = model.opsets
        self.fallback_calls: Counter[str] = Counter()
        self._constants = constants
        self._external = external
        self._fallback = fallback
        self._listing = listing
        self._inlined = 0

    @property
    def is_recording(self) -> bool:
        """Whether arrays have no elements yet."""
        return STATE.scope is not None

    # Values

    def constant(self, tensor: Any) -> Known:
        """Return a tensor of the file, decoded once."""
        content = self._constants.get(id(tensor))
        if content is None:
            content = self._constants[id(tensor)] = Known(decode(tensor, self._external))
        return content

    def array(self, x: Value) -> Any:
        """Return a value as an array; raises UnsupportedError for types that arrays do not have."""
        if not isinstance(x, Known):
            return x
        if not computable(x.dtype):
            raise NeedsHostError(f"a tensor of {x.dtype}")
        return x.array()

    def known(self, x: Value) -> Known:
        """Return the elements of a value; raises NeedsValueError while recording."""
        if isinstance(x, Known):
            return x
        if not isinstance(x, Array):
            raise UnsupportedError(f"{type(x).__name__} where a tensor is expected")
        try:
            return Known(np.asarray(x))
        except SmeltError:
            if not self.is_recording:
                raise
            raise NeedsValueError from None

    # Graphs

    def graph(self, graph: Graph, env: dict[str, Value]) -> list[Value]:
        """Evaluate a graph; `env` has its inputs and what it reads from around it."""
        for name, tensor in graph.tensors.items():
            if name not in env:
                env[name] = self.constant(tensor)
        self.nodes(graph.nodes, env)
        return [env[p.name] for p in graph.outputs]

    def subgraph(self, graph: Graph, outer: Mapping[str, Value], inputs: Sequence[Value]) -> Any:
        """Evaluate a graph that is an attribute, with inputs by position."""
        env = {**outer, **{p.name: x for p, x in zip(graph.inputs, inputs, strict=True)}}
        env |= {name: self.constant(tensor) for name, tensor in graph.tensors.items()}
        return self.graph(graph, env)

    def nodes(self, nodes: Sequence[Node], env: dict[str, Value]) -> None:
        """Evaluate nodes in order; values are added to `env`."""
        for node in nodes:
            inputs = [env[name] if name else None for name in node.inputs]
            try:
                results = self._call(node, inputs, env)
            except SmeltError as error:
                _locate(error, node)
                raise
            except MemoryError as error:
                raise OnnxLimitError(f"{node.title} {_name(node)} needs too much memory") from error
            except MISTAKES as error:
                what = f"{node.title} {_name(node)}: {type(error).__name__}: {error}"
                raise OnnxFileError(what, hint=_NO_RULE) from error
            env.update({n: x for n, x in zip(node.outputs, results, strict=False) if n})
            missing = [n for n in node.outputs[len(results) :] if n]
            if missing:
                raise UnsupportedError(f"{node.title} has no result {missing[0]!r}")

    def _call(self, node: Node, inputs: list[Value], env: Mapping[str, Value]) -> Sequence[Value]:
        if self._listing is None:
            return self.node(node, inputs, env)
        return self._listing.call(id(node), lambda: self.node(node, inputs, env))

    def node(self, node: Node, inputs: list[Value], env: Mapping[str, Value]) -> Sequence[Value]:
        """Return the results of one node."""
        function = self.model.functions.get((node.domain, node.op, node.overload))
        if function is not None:
            return self._inline(function, node, inputs)
        version = self.versions.get(node.domain, 1)
        row = row_of(node.domain, node.op)
        if row is None:
            return self._fall_back(node, version, inputs)
        call = Call(self, node, version)
        try:
            return _as_tuple(self._apply(row, call, inputs, env))
        except NeedsHostError:
            return self._fall_back(node, version, inputs)

    def apply(
        self, op: str, inputs: Sequence[Value], attributes: Mapping[str, Any], version: int
    ) -> Any:
        """Return the result of an operator that is not a node of the model."""
        row = row_of("", op)
        assert row is not None
        node = Node(op, "", "", (), ("",), attributes, {})
        call = Call(self, node, version or max(self.versions.get("", 1), 18))
        return self._apply(row, call, list(inputs), {})

    def _apply(self, row: Row, call: Call, inputs: list[Value], env: Mapping[str, Value]) -> Any:
        if row.host is not None and inputs:
            contents = [x for x in inputs if isinstance(x, Known) and x.is_content]
            if len(contents) == len([x for x in inputs if x is not None]) and contents:
                elements = [x.elements if isinstance(x, Known) else None for x in inputs]
                result = row.host(call, *elements)
                if result is not NotImplemented:
                    results = result if isinstance(result, tuple) else (result,)
                    return tuple(known_of(r, contents[0]) for r in results)
        if row.raw:
            return row.lower(call, *inputs, **({"env": env} if row.name in _SCOPED else {}))
        operands = [
            x
            if x is None
            else self.known(x)
            if k in row.values or -1 in row.values
            else self.array(x)
            for k, x in enumerate(inputs)
        ]
        return row.lower(call, *operands)

    def _inline(self, function: Function, node: Node, inputs: list[Value]) -> list[Value]:
        """Evaluate a function of the file in place of a node that calls it."""
        if self._inlined >= MAX_INLINED:
            raise UnsupportedError(f"functions nested more than {MAX_INLINED} deep")
        attributes = {k: v for k, v in function.defaults.items() if v is not None}
        attributes |= node.attributes
        padded = [*inputs, *[None] * (len(function.inputs) - len(inputs))]
        env: dict[str, Value] = dict(zip(function.inputs, padded, strict=False))
        outer, self.versions = self.versions, {**self.versions, **function.opsets}
        self._inlined += 1
        try:
            self.nodes([_bound(n, attributes) for n in function.nodes], env)
        finally:
            self.versions = outer
            self._inlined -= 1
        return [env[name] for name in function.outputs]

    def _fall_back(self, node: Node, version: int, inputs: list[Value]) -> list[Value]:
        """Compute a node without a rule outside of programs, or raise UnsupportedError."""
        if self._fallback is None:
            raise UnsupportedError(f"the operator {node.title} of opset {version}")
        operands = [None if x is None else _host(self, x) for x in inputs]
        self.fallback_calls[node.title] += 1
        results = self._fallback(node, version, operands)
        return [_from_host(x) for x in results]


_SCOPED = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators whose graphs read values around them."""


def _host(evaluation: Evaluation, x: Value) -> Any:
    if isinstance(x, list):
        return [_host(evaluation, y) for y in x]  # pyright: ignore[reportUnknownVariableType]
    return evaluation.known(x).elements


def _from_host(x: Any) -> Value:
    if x is None or isinstance(x, (Known, Array)):
        return x
    if isinstance(x, list):
        return [_from_host(y) for y in x]  # pyright: ignore[reportUnknownVariableType]
    return Known(np.asarray(x))


def _as_tuple(result: Any) -> tuple[Value, ...]:
    return result if type(result) is tuple else (result,)


def _bound(node: Node, attributes: Mapping[str, Any]) -> Node:
    """Return a node of a function with the attributes of the function's caller."""
    bound = dict(node.attributes)
    bound |= {k: attributes[v] for k, v in node.references.items() if v in attributes}
    bound = {
        k: _bound_graph(v, attributes) if isinstance(v, Graph) else v for k, v in bound.items()
    }
    return Node(
        node.op, node.domain, node.name, node.inputs, node.outputs, bound, {}, node.overload
    )


def _bound_graph(graph: Graph, attributes: Mapping[str, Any]) -> Graph:
    nodes = tuple(_bound(n, attributes) for n in graph.nodes)
    return Graph(graph.name, nodes, graph.tensors, graph.inputs, graph.outputs)


def _name(node: Node) -> str:
    return f"(node {node.name or next(filter(None, node.outputs), '')!r})"


def _locate(error: SmeltError, node: Node) -> None:
    """Add the operator and the name of the innermost node to an error's message."""
    if "(node " not in error.message:
        error.detail = f"{node.title}: {error.message} {_name(node)}"


_NO_RULE = "The node's inputs or attributes do not fit the operator; onnx.checker may say more."
