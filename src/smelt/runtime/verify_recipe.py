"""Check a recipe from a file before addresses are made of it: it is data, and may say anything.

`verify_recipe` checks what holds for all sizes: every number refers to something. `verify_sizes`
checks each call's sizes: inputs and results have the graph's types and shapes, and intermediates
lie inside of their memory, where no other value lives at the same time. What the machine code does
with its arguments is its own: code is as trusted as a package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from smelt.graph.ir import Graph, Node
from smelt.runtime.executable_format import CallUse, ChunkedUse, KernelUse, LoopUse, Recipe, Use
from smelt.runtime.plan_tables import Value
from smelt.types.expr import Index, evaluate, sizes_of

__all__ = ["verify_recipe", "verify_sizes"]

_PLACES = ("input", "held", "output", "arena", "within")


def verify_recipe(recipe: Recipe, inputs: int, outputs: int) -> None:
    """Raise ValueError unless all numbers and names of a recipe refer to something.

    `inputs` and `outputs` are the numbers of the graph's.
    """
    names = set(recipe.size_names)
    for v in recipe.values:
        _require(v.place in _PLACES, f"a value in {v.place!r}")
        _check_names(names, [*v.shape, v.offset])
    by_place = {
        place: sorted(v.number for v in recipe.values if v.place == place) for place in _PLACES
    }
    _require(by_place["input"] == list(range(inputs)), f"inputs that are not 0 to {inputs - 1}")
    for place, count in (("held", len(recipe.parts)), ("output", len(by_place["output"]))):
        _require(by_place[place] == list(range(count)), f"{place} values in no order")
    _check_range(by_place["within"], len(by_place["output"]), "memory of a result")
    _check_range((v.overwrites for v in recipe.values), inputs, "an input", least=-1)
    _require(len(recipe.outputs) == outputs, f"{len(recipe.outputs)} results, not {outputs}")
    _check_range(recipe.outputs, len(recipe.values), "a result")
    places = {recipe.values[n].place for n in recipe.outputs}
    _require(places <= {"input", "output"}, "a result in memory between kernels")
    _check_names(names, recipe.arena)
    _check_range((k for p in recipe.parts for k in p.sources), inputs, "a constant")
    numbers = sorted(k for group in recipe.launches for k in group)
    _require(numbers == list(range(len(recipe.steps))), "launches that are not of each step once")
    for step in recipe.steps:
        _check_range(_values_of(step), len(recipe.values), f"a value of {step.name}")
        if isinstance(step, KernelUse):
            for c in step.variants:
                _check_names(names, [n for n, _ in c.limits])
                for cost in c.costs:
                    cost.map_indices(lambda e: _check_names(names, [e]) or e)
        elif isinstance(step, CallUse):
            counts = len(step.inputs), len(step.outputs)
            wanted = len(step.graph.inputs), len(step.graph.outputs)
            _require(counts == wanted, f"other arguments of {step.name}")
        elif isinstance(step, ChunkedUse):
            _check_names(names, [step.rounds.extent])
            _check_body(step.body, step)
        else:
            _check_names(names, [*step.shape.length, *step.shape.sizes])
            _check_body(step.body, step)


def _check_body(body: Recipe, step: ChunkedUse | LoopUse) -> None:
    """Check a recipe of a step, with inputs such as the number of a row."""
    inputs = sum(v.place == "input" for v in body.values)
    _require(len(body.outputs) > 0, f"no results of {step.name}")
    _require(not body.parts, f"constants computed in {step.name}")
    verify_recipe(body, inputs, len(body.outputs))


def _values_of(step: Use) -> Iterable[int]:
    if isinstance(step, KernelUse):
        return [*step.values.values(), *step.arrays]
    return [*step.inputs, *step.outputs]


def _check_range(numbers: Iterable[int], end: int, what: str, *, least: int = 0) -> None:
    for n in numbers:
        _require(type(n) is int and least <= n < end, f"{what} numbered {n!r}")


def _check_names(names: set[str], expressions: Iterable[Index]) -> None:
    for e in expressions:
        _require(names.issuperset(sizes_of(e)), f"a size that is not one of {sorted(names)}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"its plan has {what}")


# ---- sizes ---------------------------------------------------------------------------------------


def verify_sizes(recipe: Recipe, graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raise ValueError unless values have their types and their own memory at these sizes."""
    values = recipe.values
    by_number = {v.number: v for v in values if v.place == "input"}
    for k, node in enumerate(graph.inputs):
        _check_type(by_number[k], node, sizes, "an input")
    for n, node in zip(recipe.outputs, graph.outputs, strict=True):
        _check_type(values[n], node, sizes, "a result")
    top = max((int(evaluate(end, sizes)) for end in recipe.arena), default=0)
    rooms = {("output", v.number): _nbytes(v, sizes) for v in values if v.place == "output"}
    spans: list[tuple[tuple[str, int], int, int, int]] = []
    for n, v in enumerate(values):
        if v.place in ("arena", "within"):
            host = ("output", v.number) if v.place == "within" else ("arena", -1)
            begin = int(evaluate(v.offset, sizes))
            end, room = begin + _nbytes(v, sizes), rooms.get(host, top)
            _require(begin >= 0 and end <= room, f"value {n} outside of its memory")
            spans.append((host, begin, end, n))
    lives = _lifetimes(recipe)
    spans += [(host, 0, n, _number(values, host)) for host, n in rooms.items()]
    for k, (host, begin, end, n) in enumerate(spans):
        for other_host, other_begin, other_end, m in spans[:k]:
            if host == other_host and begin < other_end and other_begin < end:
                (first, last), (other_first, other_last) = lives[n], lives[m]
                apart = last <= other_first or other_last <= first
                _require(apart, f"values {n} and {m} in the same memory")


def _check_type(v: Value, node: Node, sizes: Mapping[str, int], what: str) -> None:
    shapes = [[int(evaluate(d, sizes)) for d in shape] for shape in (v.shape, node.type.shape)]
    same = v.dtype == node.type.dtype and shapes[0] == shapes[1]
    _require(same, f"{what} of another type than the graph's")


def _nbytes(v: Value, sizes: Mapping[str, int]) -> int:
    dims = [int(evaluate(d, sizes)) for d in v.shape]
    _require(min(dims, default=0) >= 0, "a negative dimension")
    return math.prod(dims) * v.dtype.itemsize


def _number(values: Sequence[Value], host: tuple[str, int]) -> int:
    return next(n for n, v in enumerate(values) if (v.place, v.number) == host)


def _lifetimes(recipe: Recipe) -> dict[int, tuple[int, int]]:
    """Return the first and last launch that touches each value; (0, 0) for none."""
    lives: dict[int, tuple[int, int]] = dict.fromkeys(range(len(recipe.values)), (0, 0))
    touched = set[int]()
    for time, group in enumerate(recipe.launches):
        for n in (n for k in group for n in _values_of(recipe.steps[k])):
            lives[n] = lives[n][0] if n in touched else time, time
            touched.add(n)
    return lives
