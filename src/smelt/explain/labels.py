"""Labels of nodes in a report.

A label joins an operator's name and the number of its value in the graph's text, `exp#3` for `v3 =
exp(v2)`; an input's label is its name, a constant's its number.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n]) {
...   v0 = exp(x)
...   v1 = add(v0, 1.0:f32)
...   return v1
... }''')
>>> labels = Labels(graph)
>>> [labels.label[node] for node in graph.nodes()]
['x', 'exp#0', '1.0:f32', 'add#1']
"""

from __future__ import annotations

from smelt.graph.ir import Graph, Node
from smelt.graph.text import name_values
from smelt.ops.create import Constant, Input

__all__ = ["Labels"]


class Labels:
    """Numbers, names and labels of the nodes of a graph, in order."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes()
        self.number = {node: k for k, node in enumerate(self.nodes)}
        self.name = name_values(graph)
        self.label = {node: self._label(node) for node in self.nodes}

    def _label(self, node: Node) -> str:
        name = self.name[node]
        if isinstance(node.op, Input | Constant):
            return name
        digits = name.removeprefix("v")
        return f"{node.op.name}#{digits if digits.isdigit() else self.number[node]}"
