"""Name values of a graph as the program's source does, for reports and messages.

Names of the source are never part of a graph's text, which is the cache's key: `name_values` there
numbers the values.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n]) {
...   v0 = exp(x)
...   return v0
... }''')
>>> source_names(graph)
{}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from keyword import iskeyword

from smelt.graph.ir import Graph, Node
from smelt.graph.text import RESERVED
from smelt.ops.create import Constant, Input
from smelt.python.origin import Origin
from smelt.types.expr import Expr, sizes_of
from smelt.types.tensor import Shape

_NUMBERED = re.compile(r"v\d+")
"""Names of the values that have none of their own."""
_NUMBERED_SIZE = re.compile(r"[nku]\d+_*")
"""Names of sizes that no spec names."""


def source_names(graph: Graph) -> dict[Node, str]:
    """Return the names that the source gives to values, unique and different from the inputs'.

    Where several operators stand for one expression, as in a call of `softmax`, the last has its
    name. A variable that is assigned several times is `u`, `u_2`, and so on.
    """
    nodes = graph.nodes()
    excluded = _unnamed_nodes(graph)
    named = {node for node in graph.inputs if node.origin is not None and node.origin.assigned}
    taken = {n.op.label for n in graph.inputs if isinstance(n.op, Input) and n not in named}
    names: dict[Node, str] = {}
    for node in nodes:
        origin = node.origin
        if isinstance(node.op, Constant) or origin is None or node in excluded:
            continue
        name = origin.assigned
        if is_source_name(name) and name != graph.name:  # nor what the function itself returns
            names[node] = unique_name(name, taken)
            taken.add(names[node])
    return names


def called_names(nodes: Sequence[Node]) -> dict[Node, tuple[str, ...]]:
    """Return what the program calls each operator, the name to show first.

    It is the function or Python's operator, as in `matmul`, `@`, `q @ k.T`.
    An expression that became several operators, such as a call of `softmax`, means all of them,
    and each is shown by its own name.
    """
    located = [n for n in nodes if n.origin is not None and n.origin.known]
    computed = [n for n in located if not (n.op.is_source or n.op.is_view)]
    operators: dict[Origin | None, set[str]] = {}
    for n in computed:
        operators.setdefault(n.origin, set()).add(n.op.name)
    words: dict[Node, tuple[str, ...]] = {}
    for n in nodes:
        called = () if n.origin is None or n.op.is_source else n.origin.called
        alone = not n.op.is_view and len(operators.get(n.origin, ())) == 1
        op_names = () if called and alone else (n.op.plain_name,)
        words[n] = tuple(dict.fromkeys((*op_names, *called)))
    return words


def size_names(
    names: Collection[str],
    reads: Sequence[tuple[Origin, Shape]],
    inputs: Iterable[str],
    numbers: Mapping[str, str],
) -> dict[str, str]:
    """Return the source's names of sizes, by the graph's; the first one counts.

    `reads` are the places where shapes were read, `inputs` names that are taken, `numbers` the
    parameters that are sizes, by the sizes.

    >>> size_names(["n0", "n1", "rows"], [], [], {"n0": "rows", "n1": "width"})
    {'n0': 'rows_2', 'n1': 'width'}
    """
    taken = {*inputs, *(n for n in names if not _NUMBERED_SIZE.fullmatch(n))}
    result: dict[str, str] = {}
    for symbol, name in numbers.items():
        if symbol in names and is_source_name(name) and name not in RESERVED:
            result[symbol] = unique_name(name, taken)
            taken.add(result[symbol])
    for origin, shape in reads:
        for position, name in origin.assigned_items.items():
            if not -len(shape) <= position < len(shape):
                continue
            dim = shape[position]
            symbol = str(dim)
            if not isinstance(dim, Expr) or sizes_of(dim) != (symbol,) or symbol in result:
                continue
            if _NUMBERED_SIZE.fullmatch(symbol) and is_source_name(name) and name not in RESERVED:
                result[symbol] = unique_name(name, taken)
                taken.add(result[symbol])
    return {n: result[n] for n in names if n in result}


def is_source_name(name: str) -> bool:
    """Return whether a name of the source can stand in texts of graphs and kernels."""
    return name.isidentifier() and not iskeyword(name) and not _NUMBERED.fullmatch(name)


def _unnamed_nodes(graph: Graph) -> set[Node]:
    """Return nodes that are a part of an expression: another operator of it reads them.

    An expression of one operator that is applied to its own result in a loop has none. Where
    passes made different operators of one, it is not certain which has its value: all are returned.
    """
    located = [n for n in graph.nodes() if n.origin is not None and n.origin.known]
    expressions = {n: _expression(n) for n in located if not isinstance(n.op, Input)}
    operators: dict[object, set[str]] = {}
    for node, expression in expressions.items():
        operators.setdefault(expression, set()).add(node.op.name)
    inner = {
        x
        for node, expression in expressions.items()
        if len(operators[expression]) > 1
        for x in node.inputs
        if expressions.get(x) == expression
    }
    last: dict[object, set[str]] = {}
    for node, expression in expressions.items():
        if node not in inner:
            last.setdefault(expression, set()).add(node.op.name)
    return inner | {n for n, expression in expressions.items() if len(last[expression]) > 1}


def _expression(node: Node) -> object:
    origin = node.origin
    assert origin is not None
    return origin.place, origin.assigned, getattr(origin, "module", "")


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or `name_2`, `name_3`, ... if it is taken.

    >>> unique_name("u", {"u", "u_2"})
    'u_3'
    """
    plain, count = name, 1
    while name in taken:
        count += 1
        name = f"{plain}_{count}"
    return name
