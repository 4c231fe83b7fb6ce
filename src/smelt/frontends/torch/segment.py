"""One graph of a program: compiled, and called on torch's memory without copies.

Kernels read tensors where they are and write results into blocks of our own, which come back as
tensors on that memory; the block returns to the stock when torch lets the tensor go.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from smelt import knobs
from smelt.errors import SmeltError
from smelt.frontends.torch import plans
from smelt.frontends.torch.in_place import Places
from smelt.frontends.torch.layout import is_fixed, memory_order, parts_at, turn_of
from smelt.frontends.torch.lower import Stage
from smelt.frontends.torch.sizes import Sizes
from smelt.graph import build
from smelt.graph.bounds_checks import Looks, looked_at
from smelt.graph.generalize_shapes import Generalized, generalize
from smelt.graph.ir import Graph
from smelt.graph.sink_expand import late
from smelt.graph.walk import size_names
from smelt.graph.walk import sizes as sizes_of_graph
from smelt.ops.create import Input
from smelt.runtime import call_cache
from smelt.runtime.executable import Executable
from smelt.runtime.prelude import Allowance, Prelude, Run
from smelt.types.dtype import bf16, f32
from smelt.types.expr import Index, evaluate, size, sizes_of, substitute
from smelt.types.tensor import TensorType

if TYPE_CHECKING:
    from smelt.driver import Compiled
    from smelt.fusion.plan import Donate
    from smelt.warm import Found

__all__ = ["Segment", "make_segment"]

_LOG = logging.getLogger("smelt.torch")

_SIZES_LIMIT = 1024
"""Sizes of one graph whose calls are remembered."""

Runner = Callable[[tuple[Any, ...], tuple[int, ...]], Sequence[Any]]
Finish = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
Turns = Mapping[int, tuple[int, ...]]
"""By input: its dimensions from the slowest to the fastest."""


class Segment:
    """A compiled graph with tensors in and out."""

    def __init__(
        self,
        compiled: Compiled | Found,
        orders: Sequence[tuple[int, ...] | None],
        more: int,
        nodes: Sequence[Any],
        written: Mapping[int, int],
        dense: Sequence[bool],
        looks: Looks,
        sizes: Mapping[str, Index],
        hints: Mapping[str, int],
        turns: Turns,
    ) -> None:
        """`orders` say how each result is turned from its memory order into its shape; `written`
        are inputs by the results that are their new values, `dense` tells those without gaps.  The
        last result is the flag of `looks`, if it has one, whose sizes are the program's.  `sizes`
        says what each size of the plan is in the program, and `hints` what it was in the call that
        was traced; `turns`, by input, how tensors are turned to their memory order."""
        self.sizes = sizes
        self.hints = hints
        self.compiled = compiled
        self.looks = looks
        self.nodes = tuple(nodes)
        prelude = compiled.executable.prelude
        self.kept = 0 if prelude is None else prelude.nbytes
        """Bytes of constants that it keeps between calls."""
        self.size_names = compiled.size_names
        run = self._runner(_finish(compiled, orders, written, turns), more, turns)
        self.run: Runner = _apart(run, Places(compiled.executable, written, dense))
        self._turns = turns

    def arrays(self, tensors: Sequence[Any], sizes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
        """What a call with these tensors gives to the executable."""
        given = [turned(t, self._turns.get(k)) for k, t in enumerate(tensors)]
        named = dict(zip(self.size_names, sizes, strict=True))
        values = [v for v in self.compiled.executable.values if v.place == "input"]
        shapes = {v.number: [int(evaluate(n, named)) for n in v.shape] for v in values}
        count = len(given)  # behind them stand those that only tell a size
        return [*given, *(np.zeros(shapes[k], "f4") for k in range(count, len(shapes)))]

    def _runner(self, finish: Finish | None, more: int, turns: Turns) -> Runner:
        executable = self.compiled.executable
        run_at = executable.run_at
        ready = _holder(executable.prelude, turns)
        dummies = [_DUMMY.data_ptr()] * more
        halves = any(executable.values[v].dtype.name == "bf16" for v in executable.outputs)
        wrap: Callable[[Any], Any] = as_tensor if halves else torch.from_numpy
        repeats = _Repeats(executable, wrap)
        known, asked = repeats.known, repeats.asked

        def run(tensors: tuple[Any, ...], sizes: tuple[int, ...]) -> Sequence[Any]:
            key = (*sizes, *[tensors[k].stride(d) for k, d in asked]) if asked else sizes
            found = known.get(key)
            if found is not None and ready is None:
                results = found[0](found[1], (*tensors, *dummies) if dummies else tensors)
                return results if finish is None else finish(results, tensors)
            where = [t.data_ptr() for t in tensors]
            if dummies:
                where += dummies
            held = None if ready is None else ready(tensors, where)
            if found is not None and held is not None:
                results = found[0](found[1], where + held.addresses)
            else:
                look = partial(self.arrays, tensors, sizes)
                results = [wrap(a) for a in run_at(where, sizes, tensors, look, held)]
                repeats.note(sizes, tensors)
            return results if finish is None else finish(results, tensors)

        return run


class _Repeats:
    """Calls of one graph that native code makes from the second one on, by sizes and by the strides
    of arguments that no guard vouches for."""

    def __init__(self, executable: Any, wrap: Callable[[Any], Any]) -> None:
        self.known: dict[tuple[int, ...], tuple[Any, int, Any]] = {}
        """The native function, the address of its record, and the record."""
        self.asked: list[tuple[int, int]] = []
        """The strides that a call is asked for: of an input, along a dimension."""
        self._executable = executable
        self._wrap = wrap
        self._seen: dict[tuple[int, ...], int] = {}

    def note(self, sizes: tuple[int, ...], tensors: Sequence[Any]) -> None:
        """Python has made a call with these sizes."""
        if len(self._seen) >= _SIZES_LIMIT:
            self._seen.clear()
            self.known.clear()
        if not self._seen and type(self._executable) is Executable:
            of_plan = self._executable.prepared(sizes).strides
            self.asked[:] = sorted({(source, d) for _, source, d in of_plan})
        told = {(k, d): tensors[k].stride(d) for k, d in self.asked}
        key = (*sizes, *told.values())
        self._seen[key] = count = self._seen.get(key, 0) + 1
        if count != knobs.NATIVE_FROM_CALL or not knobs.NATIVE_CALLS.get():
            return
        at = call_cache.runner_at()
        record = None
        if at is not None:
            record = call_cache.record_at(self._executable, sizes, self._wrap, told)
        if record is not None:
            self.known[key] = at, record.address, record


_DUMMY = torch.zeros(1)


def _apart(run: Runner, places: Places) -> Runner:
    """The same, with copies of the inputs that are written and share memory with others."""
    if not places.inputs:
        return run

    def call(tensors: tuple[Any, ...], sizes: tuple[int, ...]) -> Sequence[Any]:
        shared = places.shared(tensors, sizes)
        if not shared:
            return run(tensors, sizes)
        own = tuple(t.clone() if k in shared else t for k, t in enumerate(tensors))
        results = run(own, sizes)
        for k in shared:
            tensors[k].copy_(own[k])
        return results

    return call


def _holder(
    prelude: Prelude | None, turns: Turns
) -> Callable[[tuple[Any, ...], list[int]], Run] | None:
    """What gives the prelude's results for the tensors of a call, by identity and version.

    A tensor's version counts what torch writes into it, in whatever mode; its address changes with
    `p.data = ..`.  Writes through `p.data` or an array on the same memory count nowhere: for their
    sake the memory itself is watched.
    """
    if prelude is None:
        return None
    sources = prelude.sources
    known = [(k, turns.get(k)) for k in sources]

    def elements(tensors: tuple[Any, ...], k: int) -> np.ndarray[Any, Any]:
        return turned(tensors[k], turns.get(k))

    def ready(tensors: tuple[Any, ...], where: list[int]) -> Run:
        owners = [tensors[k] for k in sources]
        try:
            stamps = tuple([(where[k], tensors[k]._version, turn) for k, turn in known])
        except RuntimeError:  # tensors made in inference mode count nothing
            return prelude.once([elements(tensors, k) for k in range(len(tensors))])
        return prelude.run(owners, stamps, lambda k: elements(tensors, k), watched=True)

    return ready


def turned(tensor: torch.Tensor, turn: tuple[int, ...] | None) -> np.ndarray[Any, Any]:
    """An array on a tensor's memory, its dimensions in another order."""
    found = as_array(tensor)
    return found if turn is None else found.transpose(turn)


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """An array on a tensor's memory; the inverse of `as_tensor`."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(bf16.numpy)
    return tensor.numpy()


def as_tensor(a: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor on an array's memory; NumPy's bfloat16 is unknown to torch."""
    if a.dtype.kind == "V" or a.dtype.name == "bfloat16":
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def _finish(
    compiled: Compiled | Found,
    orders: Sequence[tuple[int, ...] | None],
    written: Mapping[int, int],
    turns: Turns,
) -> Finish | None:
    """What is left to do for the results: another view, or a copy of what two results share; and
    for new values of inputs a copy, unless kernels have written them there.  None for nothing."""
    values = compiled.executable.values
    fresh = sorted(v.number for v in values if v.place == "output" and v.over < 0)
    made: list[Callable[[Sequence[Any], Sequence[Any]], Any]] = []
    copies: list[tuple[int, Callable[[Sequence[Any], Sequence[Any]], Any]]] = []
    seen: set[int] = set()
    plain = True
    for k, (v, order) in enumerate(zip(compiled.executable.outputs, orders, strict=True)):
        value = values[v]
        source = value.number if value.place == "input" else value.over
        number = fresh.index(value.number) if source < 0 else source
        if k not in written:
            copied = source >= 0 or v in seen
            seen.add(v)
            plain = plain and order is None and not copied and number == len(made)
            made.append(_finisher(source >= 0, number, order, copied, turns.get(source)))
        elif written[k] != source:
            made_of = _finisher(source >= 0, number, None, source >= 0, turns.get(source))
            copies.append((written[k], made_of))
    if plain and not copies:
        return None

    def finish(results: Sequence[Any], tensors: Sequence[Any]) -> Sequence[Any]:
        found = [f(results, tensors) for f in made]
        for k, new in [(k, f(results, tensors)) for k, f in copies]:
            tensors[k].copy_(new)
        return found

    return finish


def _finisher(
    is_input: bool,
    number: int,
    order: tuple[int, ...] | None,
    copied: bool,
    turn: tuple[int, ...] | None,
) -> Any:
    def finish(results: Sequence[Any], tensors: Sequence[Any]) -> Any:
        found = tensors[number] if is_input else results[number]
        if turn is not None:
            found = found.permute(turn)
        if copied:
            found = found.detach().clone()
        return found if order is None else found.permute(order)

    return finish


def make_segment(
    stage: Stage,
    sizes: Sizes,
    allowance: Allowance | None,
    *,
    looks: bool = True,
    among: Collection[int] | None = None,
) -> Segment:
    """Compile the graph of a stage, or find it (`smelt.frontends.torch.plans`).  With `looks` the
    graph tells whether positions that it reads are outside.  Numbers `among` which dimensions may
    vary are sizes of the graph; None: as they were traced."""
    inputs = [_input_node(v.node) for v in stage.inputs.values()]
    outputs: list[Any] = []
    orders: list[tuple[int, ...] | None] = []
    for node, value in stage.outputs.items():
        order = memory_order(stage.written.get(node, node).meta["val"])
        if order is None or order == list(range(len(order))):
            outputs.append(value.node)
            orders.append(None)
        else:
            outputs.append(value.permute(*order).node)
            orders.append(tuple(order.index(a) for a in range(len(order))))
    places, results = list(stage.inputs), list(stage.outputs)
    written = {results.index(n): places.index(x) for n, x in stage.written.items()}
    donate = tuple((i, j) for j, i in written.items())
    traced = Graph("torch", tuple(inputs), tuple(outputs))
    ready = _ready(stage, _as_traced(stage, traced), sizes, looks)
    found = plans.found(ready.graph, ready.hints, allowance, donate)
    if found is None:
        found, ready = _general(stage, traced, sizes, among, looks, allowance, donate)
    plan, names = found
    if ready.looks.flag is not None:
        orders.append(None)
    meant = {n: substitute(e, ready.told, "size") for n, e in names.items()}
    return Segment(
        plan,
        orders,
        len(ready.graph.inputs) - len(inputs),
        results,
        written,
        [x.op.strides is None for x in inputs],
        ready.looks,
        meant,
        _values(meant, sizes),
        {k: turn for k, n in enumerate(places) if (turn := turn_of(n)) is not None},
    )


class _Ready(NamedTuple):
    """A graph that may be planned, with a result that tells whether positions are outside."""

    graph: Graph
    looks: Looks
    """Of which the sizes are the program's."""
    told: Mapping[str, Index]
    """What each size of the graph is in the program."""
    hints: Mapping[str, int]


def _ready(stage: Stage, made: Generalized, sizes: Sizes, looks: bool) -> _Ready:
    """A stage's graph, made general or not."""
    graph, read = made.graph, Looks()
    if looks:
        new = {str(e): size(n) for n, e in made.sizes.items() if not isinstance(e, int)}
        signed = {n for n, e in made.sizes.items() if sizes.signed.intersection(sizes_of(e))}
        reads = [(made.nodes[at], substitute(n, new, "size"), o) for at, n, o in stage.reads]
        inside = {made.nodes[n] for n in stage.inside if n in made.nodes}
        read = looked_at(graph.outputs, inside, signed, reads)
    if read.flag is not None:
        graph = _telling(replace(graph, outputs=(*graph.outputs, read.flag), checks=1))
    told = {n: made.sizes.get(n, size(n)) for n in size_names(graph)}
    read = replace(read, sizes=tuple([substitute(e, told, "size") for e in read.sizes]))
    return _Ready(graph, read, told, _values(told, sizes))


def _values(meant: Mapping[str, Index], sizes: Sizes) -> dict[str, int]:
    """What sizes were in the call that was traced."""
    return {n: int(evaluate(e, sizes.hints)) for n, e in meant.items()}


def _general(
    stage: Stage,
    traced: Graph,
    sizes: Sizes,
    among: Collection[int] | None,
    looks: bool,
    allowance: Allowance | None,
    donate: Donate,
) -> tuple[tuple[Compiled | Found, Mapping[str, Index]], _Ready]:
    """The plan of a graph with the numbers `among` which dimensions may vary as sizes: one that is
    known, for whatever of its numbers, or a new one."""
    first: _Ready | None = None
    for made in _sized(stage, traced, sizes, among):
        ready = _ready(stage, made, sizes, looks)
        first = first or ready
        if (known := plans.found(ready.graph, ready.hints, allowance, donate)) is not None:
            return known, ready
        if not plans.alike(ready.graph):
            break
    first = first or _ready(stage, _as_traced(stage, traced), sizes, looks)
    return plans.made(first.graph, first.hints, allowance, donate), first


def _sized(
    stage: Stage, graph: Graph, sizes: Sizes, among: Collection[int] | None
) -> Iterator[Generalized]:
    """The graph with the numbers `among` which dimensions may vary as sizes, the likeliest first;
    none where there is no such."""
    if among is None:
        return
    whole = _whole(stage, graph)
    fixed = [_input_node(v.node) for x, v in stage.inputs.items() if is_fixed(x)]
    counts = {
        _input_node(v.node): [at]
        for x, v in stage.inputs.items()
        if (at := parts_at(x)) is not None
    }
    made = generalize(whole, fixed=fixed, hints=sizes.hints, among=among, counts=counts)
    try:
        for found in made:
            yield _late(stage, found)
    except SmeltError:  # the numbers are right as well
        if knobs.STRICT.get():
            raise
        _LOG.debug("a graph keeps its numbers", exc_info=True)


def _as_traced(stage: Stage, graph: Graph) -> Generalized:
    """The graph with the sizes that it has."""
    whole = _whole(stage, graph)
    found = Generalized(
        whole, {n: size(n) for n in size_names(whole)}, {n: n for n in whole.nodes()}
    )
    return _late(stage, found)


def _whole(stage: Stage, graph: Graph) -> Graph:
    """The graph with all positions that its rules compare as results, too."""
    reads = [at for at, _, _ in stage.reads]
    return _telling(replace(graph, outputs=(*graph.outputs, *reads)))


def _late(stage: Stage, made: Generalized) -> Generalized:
    """The graph without those positions, and repeating elements as late as it can: so a batch of
    one and another one are the same graph."""
    graph, became = late(made.graph)
    graph = replace(graph, outputs=graph.outputs[: -len(stage.reads) or None])
    return Generalized(graph, made.sizes, {x: became[y] for x, y in made.nodes.items()})


def _telling(graph: Graph) -> Graph:
    """The graph with an input for each size that no other one tells."""
    told = {*size_names(graph)}
    missing = [n for n in sizes_of_graph(graph) if n not in told]
    count = len(graph.inputs)
    more = [
        build.input(f"size{count + k}", TensorType(f32, (size(n),)), (0,))
        for k, n in enumerate(missing)
    ]
    return replace(graph, inputs=(*graph.inputs, *more)) if more else graph


def _input_node(node: Any) -> Any:
    """The input behind the view that an argument's memory order asks for."""
    while not isinstance(node.op, Input):
        (node,) = node.inputs
    return node
