"""List a model's nodes as lines of a file, which errors and reports name.

Origins are lines of source. A model has none, so its nodes are listed as text under the model's
name, one a line, and each node is computed by a call from its line.

>>> listing = Listing("doctest.onnx", [("y = Relu(x)", 1)])
>>> from smelt.python.origin import here
>>> listing.call(1, here).text
'y = Relu(x)'
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable, Iterable
from typing import Any

from smelt.onnx.model import Graph, Node


class Listing:
    """Lines of a model's nodes, and functions whose frames are these lines."""

    def __init__(self, name: str, nodes: Iterable[tuple[str, int]]) -> None:
        """List nodes as (text, key); a name that another model has gets a number."""
        lines: list[str] = []
        self._lines: dict[int, int] = {}
        for text, key in nodes:
            lines.append(f"{text}\n")
            self._lines[key] = len(lines)
        names = (name if k == 1 else f"{name}#{k}" for k in itertools.count(1))
        self.name = next(n for n in names if linecache.getlines(n) in ([], lines))
        linecache.cache[self.name] = sum(map(len, lines)), None, lines, self.name
        self._callers: dict[int, Callable[..., Any]] = {}

    def call(self, key: int, function: Callable[[], Any]) -> Any:
        """Call a function from a node's line; without a line add no frame."""
        line = self._lines.get(key)
        if line is None:
            return function()
        caller = self._callers.get(line)
        if caller is None:
            source = "\n" * (line - 1) + "lambda f: f()"
            caller = self._callers[line] = eval(compile(source, self.name, "eval"))  # noqa: S307
        return caller(function)


def list_nodes(name: str, graph: Graph) -> Listing:
    """Return the listing of a graph's nodes, and of the graphs in their attributes."""

    def nodes(graph: Graph, indent: str) -> Iterable[tuple[str, int]]:
        for node in graph.nodes:
            yield indent + _text(node), id(node)
            for inner in node.graphs():
                yield from nodes(inner, indent + "    ")

    return Listing(name, nodes(graph, ""))


def _text(node: Node) -> str:
    """Return a node as an assignment."""
    results = ", ".join(_identifier(n) for n in node.outputs)
    operands = ", ".join(_identifier(n) if n else "None" for n in node.inputs)
    label = f"  # {node.name}" if node.name else ""
    return f"{results} = {node.op}({operands}){label}".replace("\n", " ")


def _identifier(name: str) -> str:
    """Return a value's name as Python spells names."""
    plain = re.sub(r"\W", "_", name) or "_"
    return f"_{plain}" if plain[0].isdigit() else plain
