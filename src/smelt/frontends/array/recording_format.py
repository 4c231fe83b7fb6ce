"""A recording as data of a program file, and back.

The graph is text with the user's lines beside it, guards and sizes are a formula's text, constants
are arrays of the file. Nothing of it is code of Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np

from smelt.errors import SaveError, UnknownNameError
from smelt.frontends.array.engine import Permutations
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.sizes import Guard
from smelt.frontends.array.trace import Argument, Result, Trace
from smelt.frontends.array.tree import tree_from_data, tree_to_data
from smelt.frontends.array.value import Value, leaf
from smelt.graph.bounds_checks import BoundsChecks, collect_bounds_checks
from smelt.graph.ir import Graph, Node
from smelt.graph.text import parse, text
from smelt.ops.create import Constant, Input
from smelt.origin import UNKNOWN, Origin
from smelt.saved.file import ProgramFile, Writer
from smelt.types.dtype import DTYPES, from_numpy
from smelt.types.expr import Index
from smelt.types.expr import text as expr_text
from smelt.types.formula import Formula
from smelt.types.parse_expr import parse_sizes
from smelt.types.tensor import shape_text

__all__ = ["argument_from_data", "argument_to_data", "recording_from_data", "recording_to_data"]

_DTYPES = {d.name: d for d in DTYPES}


# ---- recordings ----------------------------------------------------------------------------------


def recording_to_data(writer: Writer, trace: Trace) -> dict[str, Any]:
    """Return a recording as data; constants become arrays of the file.

    Raises GraphTextError for an operator without a text form, SaveError for another result.
    """
    sizes = trace.result_sizes
    return {
        "graph": writer.add(text(trace.graph).encode()),
        "origins": _origins(trace.graph),
        "arguments": trace.arguments,
        "captured": [writer.add_array(evaluate(x)) for x in trace.captured],
        "results": [_result_to_data(writer, r) for r in trace.results],
        "tree": tree_to_data(trace.tree),
        "match": [trace.match.parameters, trace.match.body],
        "guards": [
            (expr_text(g.left), g.relation, expr_text(g.right), _place(g.origin))
            for g in trace.guards
        ],
        "hints": trace.hints,
        "leaves": trace.leaves,
        "result_sizes": None if sizes is None else [sizes.parameters, sizes.body],
        "value_dependent": trace.value_dependent,
        "size_inputs": trace.size_inputs,
        "permutations": trace.permutations
        and [trace.permutations.inputs, trace.permutations.outputs],
        "parameters": trace.parameters,
        "number_names": dict(trace.number_names),
    }


def recording_from_data(file: ProgramFile, facts: Mapping[str, Any]) -> Trace:
    """Return a recording that is not compiled yet; its constants lie in the file's memory.

    Raises GraphTextError for a damaged graph, KeyError, TypeError or ValueError for other damage.
    """
    graph = _with_origins(parse(file.read(facts["graph"]).decode()), facts["origins"])
    sizes, turns = facts["result_sizes"], facts["permutations"]
    arguments = tuple(map(int, facts["arguments"]))
    captured = tuple(leaf(file.array(x)) for x in facts["captured"])
    if len(arguments) + len(captured) + len(facts["size_inputs"]) != len(graph.inputs):
        raise ValueError("other inputs than those of the graph")
    return Trace(
        graph,
        arguments,
        captured,
        tuple(_result_from_data(file, r) for r in facts["results"]),
        tree_from_data(facts["tree"]),
        Formula.read(*facts["match"]),
        tuple(
            Guard(parse_sizes(a), relation, parse_sizes(b), Origin(*place))
            for a, relation, b, place in facts["guards"]
        ),
        {str(name): int(n) for name, n in facts["hints"].items()},
        (),
        int(facts["leaves"]),
        None if sizes is None else Formula.read(*sizes),
        bool(facts["value_dependent"]),
        tuple(map(int, facts["size_inputs"])),
        _bounds(graph),
        None if turns is None else Permutations(*(tuple(map(_axes, side)) for side in turns)),
        tuple(map(str, facts["parameters"])),
        (),
        {str(name): str(label) for name, label in facts["number_names"].items()},
    )


def _axes(order: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if order is None else tuple(map(int, order))


def _bounds(graph: Graph) -> BoundsChecks:
    """Return the bounds checks of a graph, whose flag is its last output."""
    if not graph.checks:
        return BoundsChecks()
    (flag,) = graph.check_outputs
    checks = collect_bounds_checks(graph.results, trusted=lambda _, plain: _is_constant(plain))
    return replace(checks, flag=flag)


def _is_constant(x: Node) -> bool:
    return isinstance(x.op, Input) and x.op.constant


# ---- the user's lines ----------------------------------------------------------------------------


def _place(origin: Origin | None) -> list[Any]:
    """Return a place in the user's program as data, without the folders of this machine."""
    place = (origin or UNKNOWN).place
    return [PurePath(place.file).name, *place[1:]]


def _operators(graph: Graph) -> list[Node]:
    return [x for x in graph.nodes() if not isinstance(x.op, Input | Constant)]


def _origins(graph: Graph) -> dict[str, Any]:
    """Return the places of the operators: the distinct ones, and a number for each operator."""
    places: dict[tuple[Any, ...], int] = {}
    numbers = [
        places.setdefault(tuple(_place(x.origin)), len(places)) for x in _operators(graph)
    ]
    return {"places": list(places), "numbers": numbers}


def _with_origins(graph: Graph, facts: Mapping[str, Any]) -> Graph:
    origins = [Origin(*place) for place in facts["places"]]
    numbers = iter(facts["numbers"])
    copies: dict[Node, Node] = {}
    for x in graph.nodes():
        if isinstance(x.op, Input | Constant):
            copies[x] = x
            continue
        origin = origins[next(numbers)]
        copies[x] = Node(x.op, tuple(copies[i] for i in x.inputs), x.type, origin)
    outputs = tuple(copies[x] for x in graph.outputs)
    return replace(graph, outputs=outputs)


# ---- results -------------------------------------------------------------------------------------


def _result_to_data(writer: Writer, r: Result) -> list[Any]:
    value: Any = None
    if r.kind == "captured":
        value = writer.add_array(evaluate(r.value))
    elif r.kind == "size":
        value = expr_text(r.value)
    elif r.kind == "plain":
        if type(r.value) not in (bool, int, float, complex, str):
            raise SaveError(what=f"a result of type {type(r.value).__name__}")
        value = [type(r.value).__name__, str(r.value)]
    return [r.kind, r.position, value]


def _result_from_data(file: ProgramFile, data: Sequence[Any]) -> Result:
    kind, position, value = data
    if kind == "captured":
        return Result(kind, int(position), leaf(file.array(value)))
    if kind == "size":
        return Result(kind, int(position), parse_sizes(value))
    if kind == "plain":
        return Result(kind, int(position), _number(*value))
    if kind not in ("graph", "argument"):
        raise ValueError(f"a result of kind {kind!r}")
    return Result(kind, int(position))


def _number(kind: str, written: str) -> Any:
    if kind == "bool":
        return written == "True"
    return {"int": int, "float": float, "complex": complex, "str": str}[kind](written)


# ---- arguments -----------------------------------------------------------------------------------


def argument_to_data(argument: Argument, value: Value | None) -> dict[str, Any]:
    """Return what an argument has to be: type and shape of an array, or a kind of number.

    `value` is the graph's input for it, if the program reads it: its shape names sizes.
    """
    if argument.data is None and argument.spec is None:
        number = argument.number
        if argument.is_static:
            return {"constant": [type(number).__name__, str(number)]}
        return {"number": type(number).__name__}
    if argument.spec is not None:
        return {
            "dtype": argument.spec.dtype.name,
            "shape": [expr_text(d) for d in argument.spec.shape],
        }
    assert argument.data is not None
    shape: Sequence[Index] = argument.data.shape if value is None else value.type.shape
    return {
        "dtype": from_numpy(argument.data.dtype).name,
        "shape": [expr_text(d) for d in shape],
    }


class SavedArgument:
    """What an argument of a program has to be."""

    __slots__ = ("constant", "dtype", "number", "shape")

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.number = facts.get("number")
        self.constant: Any = _number(*facts["constant"]) if "constant" in facts else None
        self.dtype = None if "dtype" not in facts else _DTYPES[facts["dtype"]]
        self.shape = tuple(parse_sizes(d) for d in facts.get("shape", ()))

    def accepts(self, a: Argument) -> bool:
        """Return whether dtype, rank and fixed dimensions agree; sizes are at least 2."""
        if self.dtype is None:
            is_same = a.is_static and a.number == self.constant
            return a.data is None and (is_same or type(a.number).__name__ == self.number)
        return (
            a.data is not None
            and a.data.dtype == self.dtype.numpy
            and a.data.ndim == len(self.shape)
            and all(
                n == d if isinstance(d, int) else n > 1
                for n, d in zip(a.data.shape, self.shape, strict=True)
            )
        )

    def __str__(self) -> str:
        if self.dtype is None:
            return self.number or repr(self.constant)
        return f"{self.dtype.name}[{shape_text(self.shape)}]"


def argument_from_data(facts: Mapping[str, Any]) -> SavedArgument:
    """Return what an argument has to be; raises KeyError, TypeError or ValueError for damage."""
    return SavedArgument(facts)
