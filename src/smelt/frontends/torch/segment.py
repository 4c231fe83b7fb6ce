"""Compile one graph of a program and call it on torch's memory without copies.

Kernels read tensors in place and write results into our own memory blocks, which are returned as
tensors on that memory; a block returns to the pool when torch releases the tensor.
"""

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
from smelt.frontends.torch.in_place import InPlaceInputs
from smelt.frontends.torch.layout import complex_axis, constant_permutation, is_fixed, memory_order
from smelt.frontends.torch.lower import Stage
from smelt.frontends.torch.sizes import Sizes
from smelt.graph import build
from smelt.graph.bounds_checks import BoundsChecks, collect_bounds_checks
from smelt.graph.generalize_shapes import Generalized, generalize
from smelt.graph.ir import Graph
from smelt.graph.sink_expand import sink_expands
from smelt.graph.walk import all_size_names as sizes_of_graph
from smelt.graph.walk import input_size_names
from smelt.ops.create import Input
from smelt.python.imports import fork_safe_import
from smelt.runtime import call_cache
from smelt.runtime.executable import Executable
from smelt.runtime.prelude import Allowance, Prelude, Run
from smelt.types.dtype import bf16, f32
from smelt.types.expr import Index, evaluate, size, sizes_of, substitute
from smelt.types.tensor import TensorType

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.compiler.warm import CachedProgram
    from smelt.fusion.plan import Donate

_LOG = logging.getLogger("smelt.torch")

_SIZES_LIMIT = 1024
"""Maximum sizes of one graph whose calls are remembered."""

Runner = Callable[[tuple[Any, ...], tuple[int, ...]], Sequence[Any]]
Finish = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
Permutations = Mapping[int, tuple[int, ...]]
"""Input -> its dimensions from slowest to fastest."""


class Segment:
    """A compiled graph with tensors in and out."""

    def __init__(
        self,
        compiled: Compiled | CachedProgram,
        orders: Sequence[tuple[int, ...] | None],
        extra_inputs: int,
        nodes: Sequence[Any],
        written: Mapping[int, int],
        dense: Sequence[bool],
        looks: BoundsChecks,
        sizes: Mapping[str, Index],
        hints: Mapping[str, int],
        permutations: Permutations,
    ) -> None:
        """Prepare the calls of a compiled graph.

        Args:
            compiled: the plan.
            orders: the permutation of each result from memory order to its shape; None for none.
            extra_inputs: number of inputs after the tensors that only determine a size.
            nodes: the traced nodes of the results.
            written: results that are new values of inputs, mapped to the inputs.
            dense: inputs without gaps between elements.
            looks: bounds checks, in sizes of the program; the last result is their flag, if there
                is one.
            sizes: each size of the plan in terms of the program.
            hints: each size of the plan in the traced call.
            permutations: permutations of inputs to their memory order.
        """
        self.sizes = sizes
        self.hints = hints
        self.compiled = compiled
        self.bounds_checks = looks
        self.nodes = tuple(nodes)
        prelude = compiled.executable.prelude
        self.constant_bytes = 0 if prelude is None else prelude.nbytes
        """Bytes of constants that it keeps between calls."""
        self.size_names = compiled.size_names
        self.step_count = self._count_steps()
        """Kernels and library calls of the plan."""
        run = self._runner(
            _finish_results(compiled, orders, written, permutations), extra_inputs, permutations
        )
        self.run: Runner = _copying_overlaps(
            run, InPlaceInputs(compiled.executable, written, dense)
        )
        self._permutations = permutations

    def _count_steps(self) -> int:
        return len(self.compiled.recipe.steps)

    def arrays(self, tensors: Sequence[Any], sizes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
        """Return what a call with these tensors passes to the executable."""
        views = [permuted_array(t, self._permutations.get(k)) for k, t in enumerate(tensors)]
        named = dict(zip(self.size_names, sizes, strict=True))
        values = [v for v in self.compiled.executable.values if v.place == "input"]
        shapes = {v.number: [int(evaluate(n, named)) for n in v.shape] for v in values}
        count = len(views)  # the inputs after them only determine a size
        return [*views, *(np.zeros(shapes[k], "f4") for k in range(count, len(shapes)))]

    def _runner(
        self, finish: Finish | None, extra_inputs: int, permutations: Permutations
    ) -> Runner:
        executable = self.compiled.executable
        run_at = executable.run_at
        read_constants = _prelude_reader(executable.prelude, permutations)
        dummies = [_DUMMY.data_ptr()] * extra_inputs
        halves = any(executable.values[v].dtype.name == "bf16" for v in executable.outputs)
        wrap: Callable[[Any], Any] = as_tensor if halves else torch.from_numpy
        repeats = _NativeCalls(executable, wrap)
        records, strides = repeats.known, repeats.asked

        def run(tensors: tuple[Any, ...], sizes: tuple[int, ...]) -> Sequence[Any]:
            key = (*sizes, *[tensors[k].stride(d) for k, d in strides]) if strides else sizes
            native = records.get(key)
            if native is not None and read_constants is None:
                results = native[0](native[1], (*tensors, *dummies) if dummies else tensors)
                return results if finish is None else finish(results, tensors)
            addresses = [t.data_ptr() for t in tensors]
            if dummies:
                addresses += dummies
            constants = None if read_constants is None else read_constants(tensors, addresses)
            if native is not None and constants is not None:
                results = native[0](native[1], addresses + constants.addresses)
            else:
                look = partial(self.arrays, tensors, sizes)
                results = [wrap(a) for a in run_at(addresses, sizes, tensors, look, constants)]
                repeats.note(sizes, tensors)
            return results if finish is None else finish(results, tensors)

        return run


class _NativeCalls:
    """Calls of one graph that native code makes from the second one on.

    Keyed by sizes and by the strides of arguments that no guard checks.
    """

    def __init__(self, executable: Any, wrap: Callable[[Any], Any]) -> None:
        self.known: dict[tuple[int, ...], tuple[Any, int, Any]] = {}
        """The native function, the address of its record, and the record."""
        self.asked: list[tuple[int, int]] = []
        """Strides that are part of the key: (input, dimension)."""
        self._executable = executable
        self._wrap = wrap
        self._seen: dict[tuple[int, ...], int] = {}

    def note(self, sizes: tuple[int, ...], tensors: Sequence[Any]) -> None:
        """Count a call that Python has made; record it for native code when it repeats."""
        if len(self._seen) >= _SIZES_LIMIT:
            self._seen.clear()
            self.known.clear()
        if not self._seen and type(self._executable) is Executable:
            of_plan = self._executable.prepared(sizes).strides
            self.asked[:] = sorted({(source, d) for _, source, d in of_plan})
        strides = {(k, d): tensors[k].stride(d) for k, d in self.asked}
        key = (*sizes, *strides.values())
        self._seen[key] = count = self._seen.get(key, 0) + 1
        if count != knobs.NATIVE_FROM_CALL or not knobs.NATIVE_CALLS.get():
            return
        runner = call_cache.address_runner()
        record = None
        if runner is not None:
            record = call_cache.record_by_address(self._executable, sizes, self._wrap, strides)
        if record is not None:
            self.known[key] = runner, record.address, record


_DUMMY = torch.zeros(1)
_DEVICE_SEGMENTS = {
    "driver": ("device_segment", "DeviceSegment", "compile_plan"),
    "torch": ("printed_program", "PrintedSegment", "compile_printed"),
}
"""By the setting `device_launch`: module, class and compiler of what has tensors of a GPU."""


def _copying_overlaps(run: Runner, in_place: InPlaceInputs) -> Runner:
    """Wrap a runner to copy written inputs that overlap others in a call."""
    if not in_place.inputs:
        return run

    def call(tensors: tuple[Any, ...], sizes: tuple[int, ...]) -> Sequence[Any]:
        overlapping = in_place.overlapping_inputs(tensors, sizes)
        if not overlapping:
            return run(tensors, sizes)
        copies = tuple(t.clone() if k in overlapping else t for k, t in enumerate(tensors))
        results = run(copies, sizes)
        for k in overlapping:
            tensors[k].copy_(copies[k])
        return results

    return call


def _prelude_reader(
    prelude: Prelude | None, input_permutations: Permutations
) -> Callable[[tuple[Any, ...], list[int]], Run] | None:
    """Return a function that gives the prelude's results for the tensors of a call.

    Results are cached by identity and version of the tensors. A tensor's version counts what torch
    writes into it, in any mode; its address changes with `p.data = ..`. Writes through `p.data` or
    an array on the same memory are not counted: for these the memory itself is watched.
    """
    if prelude is None:
        return None
    sources = prelude.sources
    permutations = [(k, input_permutations.get(k)) for k in sources]

    def elements(tensors: tuple[Any, ...], k: int) -> np.ndarray[Any, Any]:
        return permuted_array(tensors[k], input_permutations.get(k))

    def ready(tensors: tuple[Any, ...], addresses: list[int]) -> Run:
        owners = [tensors[k] for k in sources]
        try:
            stamps = tuple(
                [
                    (addresses[k], tensors[k]._version, permutation)
                    for k, permutation in permutations
                ]
            )
        except RuntimeError:  # tensors made in inference mode have no version
            return prelude.run_uncached([elements(tensors, k) for k in range(len(tensors))])
        return prelude.run(owners, stamps, lambda k: elements(tensors, k), watched=True)

    return ready


def permuted_array(
    tensor: torch.Tensor, permutation: tuple[int, ...] | None
) -> np.ndarray[Any, Any]:
    """View a tensor as an array, with its dimensions permuted."""
    array = as_array(tensor)
    return array if permutation is None else array.transpose(permutation)


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """View a tensor's memory as an array; the inverse of `as_tensor`."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(bf16.numpy)
    return tensor.numpy()


def as_tensor(a: np.ndarray[Any, Any]) -> torch.Tensor:
    """View an array as a tensor; torch does not know NumPy's bfloat16."""
    if a.dtype.kind == "V" or a.dtype.name == "bfloat16":
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def _finish_results(
    compiled: Compiled | CachedProgram,
    orders: Sequence[tuple[int, ...] | None],
    written: Mapping[int, int],
    permutations: Permutations,
) -> Finish | None:
    """Return what remains to be done for the results of a call; None for nothing.

    A permuted view, a copy of what two results share, and for new values of inputs a copy, unless
    kernels have written them in place.
    """
    values = compiled.executable.values
    fresh = sorted(v.number for v in values if v.place == "output" and v.overwrites < 0)
    finishers: list[Callable[[Sequence[Any], Sequence[Any]], Any]] = []
    copies: list[tuple[int, Callable[[Sequence[Any], Sequence[Any]], Any]]] = []
    seen: set[int] = set()
    plain = True
    for k, (v, order) in enumerate(zip(compiled.executable.outputs, orders, strict=True)):
        value = values[v]
        source = value.number if value.place == "input" else value.overwrites
        number = fresh.index(value.number) if source < 0 else source
        if k not in written:
            is_copied = source >= 0 or v in seen
            seen.add(v)
            plain = plain and order is None and not is_copied and number == len(finishers)
            finishers.append(
                _finish_one(source >= 0, number, order, is_copied, permutations.get(source))
            )
        elif written[k] != source:
            finisher = _finish_one(source >= 0, number, None, source >= 0, permutations.get(source))
            copies.append((written[k], finisher))
    if plain and not copies:
        return None

    def finish(results: Sequence[Any], tensors: Sequence[Any]) -> Sequence[Any]:
        finished = [f(results, tensors) for f in finishers]
        for k, new in [(k, f(results, tensors)) for k, f in copies]:
            tensors[k].copy_(new)
        return finished

    return finish


def _finish_one(
    is_input: bool,
    number: int,
    order: tuple[int, ...] | None,
    copied: bool,
    permutation: tuple[int, ...] | None,
) -> Any:
    def finish(results: Sequence[Any], tensors: Sequence[Any]) -> Any:
        result = tensors[number] if is_input else results[number]
        if permutation is not None:
            result = result.permute(permutation)
        if copied:
            result = result.detach().clone()
        return result if order is None else result.permute(order)

    return finish


def make_segment(
    stage: Stage,
    sizes: Sizes,
    allowance: Allowance | None,
    *,
    check_bounds: bool = True,
    varying_dims: Collection[int] | None = None,
    device: torch.device | None = None,
) -> Segment:
    """Compile the graph of a stage, or find its plan (`smelt.frontends.torch.plans`).

    With `check_bounds` the graph checks whether its reads are in bounds. Numbers among
    `varying_dims` become sizes of the graph; None: dimensions stay as traced. On a GPU as `device`
    the graph is compiled for it, now.
    """
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
    argument_nodes, result_nodes = list(stage.inputs), list(stage.outputs)
    written = {result_nodes.index(n): argument_nodes.index(x) for n, x in stage.written.items()}
    donate = tuple((i, j) for j, i in written.items())
    traced = Graph("torch", tuple(inputs), tuple(outputs))
    ready = _prepare(stage, _as_traced(stage, traced), sizes, check_bounds)
    kind, plan_and_sizes = Segment, None
    if device is not None and device.type == "cuda":
        name, kind_name, compile_name = _DEVICE_SEGMENTS[knobs.DEVICE_LAUNCH.get()]
        module = fork_safe_import(f"smelt.frontends.torch.{name}")
        kind = getattr(module, kind_name)
        plan_and_sizes = getattr(module, compile_name)(ready.graph, ready.hints, device)
    else:
        plan_and_sizes = plans.find_plan(ready.graph, ready.hints, allowance, donate)
    if plan_and_sizes is None:
        plan_and_sizes, ready = _find_or_make_plan(
            stage, traced, sizes, varying_dims, check_bounds, allowance, donate
        )
    plan, names = plan_and_sizes
    if ready.bounds_checks.flag is not None:
        orders.append(None)
    program_sizes = {n: substitute(e, ready.program_sizes, "size") for n, e in names.items()}
    return kind(
        plan,
        orders,
        len(ready.graph.inputs) - len(inputs),
        result_nodes,
        written,
        [x.op.strides is None for x in inputs],
        ready.bounds_checks,
        program_sizes,
        _hint_values(program_sizes, sizes),
        {
            k: permutation
            for k, n in enumerate(argument_nodes)
            if (permutation := constant_permutation(n)) is not None
        },
    )


def graph_of_outputs(
    stage: Stage, outputs: Sequence[Any], sizes: Sizes
) -> tuple[Graph, BoundsChecks]:
    """Return the graph of a stage with these outputs, and its bounds checks."""
    inputs = tuple(_input_node(v.node) for v in stage.inputs.values())
    traced = Graph("torch", inputs, tuple(outputs))
    ready = _prepare(stage, _as_traced(stage, traced), sizes, check_bounds=True)
    return ready.graph, ready.bounds_checks


class _Ready(NamedTuple):
    """A graph that may be planned, with a flag for reads out of bounds."""

    graph: Graph
    bounds_checks: BoundsChecks
    """Bounds checks, in sizes of the program."""
    program_sizes: Mapping[str, Index]
    """Each size of the graph in terms of the program."""
    hints: Mapping[str, int]


def _prepare(stage: Stage, generalized: Generalized, sizes: Sizes, check_bounds: bool) -> _Ready:
    """Add bounds checks and size inputs to a stage's graph."""
    graph, checks = generalized.graph, BoundsChecks()
    if check_bounds:
        new = {str(e): size(n) for n, e in generalized.sizes.items() if not isinstance(e, int)}
        signed = {n for n, e in generalized.sizes.items() if sizes.signed.intersection(sizes_of(e))}
        reads = [
            (generalized.nodes[positions], substitute(n, new, "size"), o)
            for positions, n, o in stage.reads
        ]
        inside = {generalized.nodes[n] for n in stage.in_bounds if n in generalized.nodes}
        checks = collect_bounds_checks(graph.outputs, inside, signed, reads)
    if checks.flag is not None:
        graph = _with_size_inputs(replace(graph, outputs=(*graph.outputs, checks.flag), checks=1))
    program_sizes = {n: generalized.sizes.get(n, size(n)) for n in input_size_names(graph)}
    checks = replace(
        checks, sizes=tuple([substitute(e, program_sizes, "size") for e in checks.sizes])
    )
    return _Ready(graph, checks, program_sizes, _hint_values(program_sizes, sizes))


def _hint_values(meant: Mapping[str, Index], sizes: Sizes) -> dict[str, int]:
    """Return the sizes in the traced call."""
    return {n: int(evaluate(e, sizes.hints)) for n, e in meant.items()}


def _find_or_make_plan(
    stage: Stage,
    traced: Graph,
    sizes: Sizes,
    varying_dims: Collection[int] | None,
    check_bounds: bool,
    allowance: Allowance | None,
    donate: Donate,
) -> tuple[tuple[Compiled | CachedProgram, Mapping[str, Index]], _Ready]:
    """Return a plan of the graph with varying numbers as sizes, cached or new.

    The cached plans are searched with each choice of numbers among `varying_dims`.
    """
    first: _Ready | None = None
    for generalized in _generalizations(stage, traced, sizes, varying_dims):
        ready = _prepare(stage, generalized, sizes, check_bounds)
        first = first or ready
        if (cached := plans.find_plan(ready.graph, ready.hints, allowance, donate)) is not None:
            return cached, ready
        if not plans.has_similar_plan(ready.graph):
            break
    first = first or _prepare(stage, _as_traced(stage, traced), sizes, check_bounds)
    return plans.make_plan(first.graph, first.hints, allowance, donate), first


def _generalizations(
    stage: Stage, graph: Graph, sizes: Sizes, varying_dims: Collection[int] | None
) -> Iterator[Generalized]:
    """Yield the graph with varying numbers replaced by sizes, the likeliest choice first.

    Nothing if no numbers may vary.
    """
    if varying_dims is None:
        return
    checked = _with_checked_positions(stage, graph)
    fixed = [_input_node(v.node) for x, v in stage.inputs.items() if is_fixed(x)]
    counts = {
        _input_node(v.node): [axis]
        for x, v in stage.inputs.items()
        if (axis := complex_axis(x)) is not None
    }
    choices = generalize(checked, fixed=fixed, hints=sizes.hints, among=varying_dims, counts=counts)
    try:
        for choice in choices:
            yield _without_checked_positions(stage, choice)
    except SmeltError:  # plan with the traced numbers
        if knobs.STRICT.get():
            raise
        _LOG.debug("a graph keeps its numbers", exc_info=True)


def _as_traced(stage: Stage, graph: Graph) -> Generalized:
    """Return the graph with its traced sizes."""
    checked = _with_checked_positions(stage, graph)
    generalized = Generalized(
        checked, {n: size(n) for n in input_size_names(checked)}, {n: n for n in checked.nodes()}
    )
    return _without_checked_positions(stage, generalized)


def _with_checked_positions(stage: Stage, graph: Graph) -> Graph:
    """Add the positions that rules compare as results, so that generalizing keeps them."""
    reads = [positions for positions, _, _ in stage.reads]
    return _with_size_inputs(replace(graph, outputs=(*graph.outputs, *reads)))


def _without_checked_positions(stage: Stage, generalized: Generalized) -> Generalized:
    """Drop those positions, and sink expands.

    So a batch of one and a larger one give the same graph.
    """
    graph, replacements = sink_expands(generalized.graph)
    graph = replace(graph, outputs=graph.outputs[: -len(stage.reads) or None])
    return Generalized(
        graph, generalized.sizes, {x: replacements[y] for x, y in generalized.nodes.items()}
    )


def _with_size_inputs(graph: Graph) -> Graph:
    """Add an input for each size that no other input determines."""
    determined = {*input_size_names(graph)}
    missing = [n for n in sizes_of_graph(graph) if n not in determined]
    count = len(graph.inputs)
    added = [
        build.input(f"size{count + k}", TensorType(f32, (size(n),)), (0,))
        for k, n in enumerate(missing)
    ]
    return replace(graph, inputs=(*graph.inputs, *added)) if added else graph


def _input_node(node: Any) -> Any:
    """Return the input behind the permutation of an argument's memory order."""
    while not isinstance(node.op, Input):
        (node,) = node.inputs
    return node
