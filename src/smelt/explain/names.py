"""Resolve names such as `exp`, `exp#3`, `@`, `v3` or `model.py:41` to nodes of a report.

>>> from smelt.explain.data import NodeData
>>> def node(k, name, op):
...     return NodeData(
...         id=k,
...         name=name,
...         label=f"{op}#{k}",
...         op=op,
...         attributes="",
...         kind="operator",
...         dtype="f32",
...         shape="",
...         dims=(),
...         nbytes=4,
...         inputs=(),
...         output=False,
...         kernels=(0,),
...         place=None,
...     )
>>> nodes = [node(0, "v0", "exp"), node(1, "v1", "reduce.sum"), node(2, "v2", "exp")]
>>> find(nodes, "exp"), find(nodes, "exp#2"), find(nodes, "sum"), find(nodes, "v0")
((0, 2), (2,), (1,), (0,))

Nodes are labelled by what the program calls, or else by operator, and position:

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

import re
from collections.abc import Callable, Sequence
from pathlib import PurePath

from smelt.errors import UnknownNameError, nearest
from smelt.explain.data import NodeData, Place
from smelt.graph.ir import Graph, Node
from smelt.graph.source_names import called_names
from smelt.graph.text import name_values
from smelt.ops.create import Constant, Input
from smelt.python.origin import Origin

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")


def find(nodes: Sequence[NodeData], name: str) -> tuple[int, ...]:
    """Return the indices of the nodes that `name` refers to.

    A label, a value's name, what the program calls (`matmul`, `@`, `x @ w`), an operator's name or
    a line of the program, as `file.py:12` or its text. Raises UnknownNameError if no node matches.
    """
    line = _LINE.fullmatch(name)
    file, number = (line["file"], int(line["line"])) if line is not None else ("", 0)
    tests: tuple[Callable[[NodeData], bool], ...] = (
        lambda n: name in (n.label, f"{n.op}#{n.label.rpartition('#')[2]}"),
        lambda n: n.name == name,
        lambda n: name in n.words and n.kind in ("operator", "call"),
        lambda n: name in (*n.words, n.op, n.op.rpartition(".")[2]),
        lambda n: line is not None and _is_at(n.place, file, number),
        lambda n: n.place is not None and name.strip() == n.place.text,
    )
    for matches in (tuple(n.id for n in nodes if test(n)) for test in tests):
        if matches:
            return matches
    candidates = [
        x
        for n in nodes
        for x in (n.label, *n.words[:1], n.op, short_place(n.place))
        if n.kind != "constant"
    ]
    candidates = [x for x in dict.fromkeys(candidates) if x]
    close = nearest(name, candidates)
    listed = ", ".join(n.label for n in nodes if n.kind in ("operator", "call"))
    listed = listed if len(listed) < 200 else listed[:200].rpartition(",")[0] + ", ..."
    hint = f"; did you mean {close}?" if close else f"; there are {listed}"
    raise UnknownNameError(kind="operator or line", name=name, suggestion=hint)


def find_unique(nodes: Sequence[NodeData], name: str, place: Place | None) -> int | None:
    """Return the node that a decision calls `name`, or None if it is ambiguous."""
    try:
        matches = find(nodes, name)
    except UnknownNameError:
        return None
    if len(matches) > 1 and place is not None:
        matches = tuple(k for k in matches if nodes[k].place == place)
    return matches[0] if len(matches) == 1 else None


def _is_at(place: Place | None, file: str, line: int) -> bool:
    if place is None or place.line != line:
        return False
    place_parts, wanted_parts = PurePath(place.file).parts, PurePath(file).parts
    return place_parts[-len(wanted_parts) :] == wanted_parts


def place_of(origin: Origin | None) -> Place | None:
    """Return an origin as data; None if it is unknown."""
    if origin is None or not origin.known:
        return None
    p = origin.place
    return Place(file=p.file, line=p.line, function=p.function, text=p.text)


def plain_name(node: NodeData) -> str:
    """Return an operator's name without its number: what the program calls it."""
    return node.label.rpartition("#")[0].rpartition(".")[2] or node.label


def short_place(place: Place | None) -> str:
    """Return `model.py:41`; empty for no place."""
    return f"{PurePath(place.file).name}:{place.line}" if place is not None else ""


class Labels:
    """Numbers, names and labels of the nodes of a graph, in order."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes()
        self.number = {node: k for k, node in enumerate(self.nodes)}
        self.name = name_values(graph)
        self.words = called_names(self.nodes)
        self.label = {node: self._label(node) for node in self.nodes}

    def _label(self, node: Node) -> str:
        name = self.name[node]
        if isinstance(node.op, Input | Constant):
            return name
        digits = name.removeprefix("v")
        return f"{self.words[node][0]}#{digits if digits.isdigit() else self.number[node]}"
