"""A recorded program as data of a program file: graph, guards, arguments and results.

The graph is text with the user's lines beside it, guards and sizes are the text of a formula,
constants are arrays of the file. Nothing of it is code of Python. Each front end makes a
`Recording` of its programs; `sm.load` runs one, whichever front end it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from smelt.errors import SaveError
from smelt.graph.ir import Graph, Node
from smelt.graph.text import parse, text
from smelt.ops.create import Constant, Input
from smelt.python.origin import UNKNOWN, Origin
from smelt.saved.file import ProgramFile, Writer
from smelt.types.dtype import DTYPES, DType
from smelt.types.expr import text as expr_text
from smelt.types.formula import Formula, Guard
from smelt.types.tensor import Shape, shape_text
from smelt.types.text import parse_sizes

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...] | None
_DTYPES = {d.name: d for d in DTYPES}


class Outcome(NamedTuple):
    """Source of a leaf of the result."""

    kind: str
    """One of graph (an output), argument, captured (a constant), plain (a Python number), size."""
    position: int = 0
    """Index of the output or argument."""
    value: Any = None


class SavedArgument(NamedTuple):
    """What an argument has to be: an array of a type and shape, a kind of number, or one number."""

    dtype: DType | None = None
    shape: Shape = ()
    number: str = ""
    """The type of a number that may have any value."""
    constant: Any = None

    def accepts(self, data: Array | None, number: Any) -> bool:
        """Return whether an array, or else a number, may be passed.

        Named sizes are at least 2.
        """
        if data is None:
            kind = type(number).__name__
            # Text tells zeros of both signs apart, and NaN equals itself.
            is_same = type(number) is type(self.constant) and repr(number) == repr(self.constant)
            return self.dtype is None and (is_same or kind == self.number)
        return (
            self.dtype is not None
            and data.dtype == self.dtype.numpy
            and data.ndim == len(self.shape)
            and all(
                n == d if isinstance(d, int) else n > 1
                for n, d in zip(data.shape, self.shape, strict=True)
            )
        )

    def __str__(self) -> str:
        if self.dtype is None:
            return self.number or repr(self.constant)
        return f"{self.dtype.name}[{shape_text(self.shape)}]"


class Parameter(NamedTuple):
    """A parameter of the function; its kind is a name of `inspect.Parameter`."""

    name: str
    kind: str
    has_default: bool


class Recording(NamedTuple):
    """A program for arguments of certain types, for all sizes that its guards allow."""

    parameters: tuple[Parameter, ...]
    """Of the function; none if it does not tell."""
    call: Any
    """Nesting of the arguments: see `smelt.frontends.array.tree.tree_to_data`."""
    statics: Any
    """Static arguments: position or name, type and text of each."""
    names: tuple[str, ...]
    """Of the leaves of the arguments."""
    leaves: tuple[SavedArgument, ...]
    graph: Graph
    """Its inputs are arguments, constants, then sizes that no other input determines."""
    arguments: tuple[int, ...]
    """For each leading input of the graph, the leaf of the arguments."""
    constants: tuple[Array, ...]
    outcomes: tuple[Outcome, ...]
    result: Any
    """Nesting of the results."""
    match: Formula
    """From all dimensions, then all numbers, to the graph's sizes; None if a guard fails."""
    guards: tuple[Guard, ...]
    hints: Mapping[str, int]
    """Likely values of the sizes, in their order."""
    result_sizes: Formula | None = None
    value_dependent: bool = False
    """Whether the value of a number argument affects more than elements."""
    size_inputs: tuple[int, ...] = ()
    """Indices of the sizes that inputs of their own pass."""
    permutations: tuple[tuple[Axes, ...], tuple[Axes, ...]] | None = None
    """Dimensions of inputs and results where the graph has them in another order."""
    match_names: tuple[str, ...] = ()
    """Names of the parameters of `match`."""
    number_names: Mapping[str, str] = {}


# ---- recordings ----------------------------------------------------------------------------------


def write(writer: Writer, r: Recording) -> dict[str, Any]:
    """Return a recording as data; constants become arrays of the file.

    Raises GraphTextError for an operator without a text form, SaveError for another result.
    """
    return {
        **r._asdict(),
        "leaves": [_leaf_to_data(x) for x in r.leaves],
        "graph": writer.add(text(r.graph).encode()),
        "origins": _origins(r.graph),
        "constants": [writer.add_array(x) for x in r.constants],
        "outcomes": [_outcome_to_data(writer, x) for x in r.outcomes],
        "match": [r.match.parameters, r.match.body],
        "guards": [
            (expr_text(g.left), g.relation, expr_text(g.right), _place(g.origin)) for g in r.guards
        ],
        "hints": dict(r.hints),
        "result_sizes": r.result_sizes and [r.result_sizes.parameters, r.result_sizes.body],
        "number_names": dict(r.number_names),
    }


def read(file: ProgramFile, facts: Mapping[str, Any]) -> Recording:
    """Return a recording; its constants lie in the file's memory.

    Raises GraphTextError for a damaged graph, KeyError, TypeError or ValueError for other damage.
    """
    graph = _with_origins(parse(file.read(facts["graph"]).decode()), facts["origins"])
    sizes, permutations = facts["result_sizes"], facts["permutations"]
    recording = Recording(
        tuple(Parameter(str(n), str(kind), bool(d)) for n, kind, d in facts["parameters"]),
        facts["call"],
        facts["statics"],
        tuple(map(str, facts["names"])),
        tuple(map(_leaf_from_data, facts["leaves"])),
        graph,
        tuple(map(int, facts["arguments"])),
        tuple(map(file.array, facts["constants"])),
        tuple(_outcome_from_data(file, x) for x in facts["outcomes"]),
        facts["result"],
        Formula.read(*facts["match"]),
        tuple(
            Guard(parse_sizes(a), str(relation), parse_sizes(b), Origin(*place))
            for a, relation, b, place in facts["guards"]
        ),
        {str(name): int(n) for name, n in facts["hints"].items()},
        None if sizes is None else Formula.read(*sizes),
        bool(facts["value_dependent"]),
        tuple(map(int, facts["size_inputs"])),
        None if permutations is None else (_all_axes(permutations[0]), _all_axes(permutations[1])),
        tuple(map(str, facts["match_names"])),
        {str(name): str(label) for name, label in facts["number_names"].items()},
    )
    inputs = len(recording.arguments) + len(recording.constants) + len(recording.size_inputs)
    if inputs != len(graph.inputs) or len(recording.names) != len(recording.leaves):
        raise ValueError("other inputs than those of the graph")
    return recording


def _all_axes(orders: Sequence[Sequence[int] | None]) -> tuple[Axes, ...]:
    return tuple(None if order is None else tuple(map(int, order)) for order in orders)


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
    numbers = [places.setdefault(tuple(_place(x.origin)), len(places)) for x in _operators(graph)]
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


def _outcome_to_data(writer: Writer, r: Outcome) -> list[Any]:
    value: Any = None
    if r.kind == "captured":
        value = writer.add_array(r.value)
    elif r.kind == "size":
        value = expr_text(r.value)
    elif r.kind == "plain":
        if type(r.value) not in (bool, int, float, complex, str):
            raise SaveError(what=f"a result of type {type(r.value).__name__}")
        value = [type(r.value).__name__, str(r.value)]
    return [r.kind, r.position, value]


def _outcome_from_data(file: ProgramFile, data: Sequence[Any]) -> Outcome:
    kind, position, value = data
    if kind == "captured":
        value = file.array(value)
    elif kind == "size":
        value = parse_sizes(value)
    elif kind == "plain":
        value = _number(*value)
    elif kind not in ("graph", "argument"):
        raise ValueError(f"a result of kind {kind!r}")
    return Outcome(kind, int(position), value)


def _number(kind: str, written: str) -> Any:
    if kind == "bool":
        return written == "True"
    return {"int": int, "float": float, "complex": complex, "str": str}[kind](written)


# ---- arguments -----------------------------------------------------------------------------------


def _leaf_to_data(x: SavedArgument) -> dict[str, Any]:
    if x.dtype is not None:
        return {"dtype": x.dtype.name, "shape": [expr_text(d) for d in x.shape]}
    if x.number:
        return {"number": x.number}
    return {"constant": [type(x.constant).__name__, str(x.constant)]}


def _leaf_from_data(facts: Mapping[str, Any]) -> SavedArgument:
    if "dtype" in facts:
        return SavedArgument(_DTYPES[facts["dtype"]], tuple(map(parse_sizes, facts["shape"])))
    if "number" in facts:
        return SavedArgument(number=str(facts["number"]))
    return SavedArgument(constant=_number(*facts["constant"]))
