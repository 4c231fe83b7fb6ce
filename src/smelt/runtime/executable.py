"""A compiled plan and its calls: tables made once for given sizes, one native call after that.

A call looks its sizes up, takes blocks for its results and one for everything in between, writes
the addresses into a copy of the argument frame, and enters native code once for each run of
kernels without a library call between them.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt import knobs
from smelt.errors import OutOfMemory, TargetError
from smelt.graph.ir import Graph
from smelt.graph.walk import sizes
from smelt.knobs.values import show_bytes
from smelt.runtime.host import cannot_run
from smelt.runtime.launch_table import Builder, Operand, Prepared, Segment
from smelt.runtime.memory import Block, address_of, allocate
from smelt.runtime.places import target
from smelt.runtime.prelude import Prelude, Run
from smelt.runtime.reference import in_place_of, is_spared, tell_spared
from smelt.runtime.steps import CallStep, KernelStep, Native, Sizes, Step, Value
from smelt.runtime.threadpools import announce
from smelt.runtime.threads import pool
from smelt.target import Target
from smelt.types.expr import Index, evaluate

Array = np.ndarray[Any, Any]

KEPT_SIZES = 256
"""Prepared tables kept; the oldest goes first."""


def _filled(p: Prepared, where: list[int], block: Block | None) -> array[int]:
    """The argument frame of a call, addresses written into it."""
    frame = p.frame[:]
    for slot, source, offset in p.addresses:
        frame[slot] = where[source] + offset
    if block is not None:
        base = block.address
        for slot, offset in p.arena:
            frame[slot] = base + offset
    return frame


def _within(host: Array, x: Operand) -> Array:
    nbytes = math.prod(x.shape) * x.dtype.itemsize
    bits = host.reshape(-1).view(np.uint8)[x.offset : x.offset + nbytes]
    return bits.view(x.dtype).reshape(x.shape)


class Executable:
    """A plan that runs.  Safe to call from several threads."""

    def __init__(
        self,
        size_names: tuple[str, ...],
        values: Sequence[Value],
        launches: Sequence[Sequence[Step]],
        arena: Sequence[Index],
        outputs: Sequence[int],
        prelude: Prelude | None = None,
        graph: Graph | None = None,
        made_for: Target | None = None,
    ) -> None:
        """`launches` are groups of independent steps, in order; `outputs` number the values that
        are returned (an input among them is returned as it is); `arena` lists where values in
        the arena end, in bytes; `prelude` makes the values that are held; `graph`, whose inputs and
        outputs these are, runs in NumPy for sizes that no kernels can be made for; `made_for` is
        the target of the kernels' code, None for the host."""
        self.size_names = size_names
        self.values = tuple(values)
        self.launches = tuple(tuple(group) for group in launches)
        self.arena = tuple(arena)
        self.outputs = tuple(outputs)
        self.prelude = prelude
        self.graph = graph
        self.made_for = made_for
        self.inside = False
        """Whether it runs inside of another one, which answers for the memory of both."""
        announce()
        self._prepared: dict[tuple[int, ...], Prepared] = {}
        self._lock = threading.Lock()

    # ---- calls -----------------------------------------------------------------------------------

    def run(
        self,
        arrays: Sequence[Array],
        sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
        held: Run | None = None,
        between: Block | None = None,
    ) -> list[Array]:
        """The results.  `arrays` are the inputs, `sizes` the values of `size_names`, `out` arrays
        to write into (None: allocate), for each result, or for each value that is computed in
        order of first return where that is another number, `held` the prelude's results for these
        inputs (None: computed now, kept nowhere), `between` memory for what stands between kernels,
        at least the `arena_bytes` of these sizes (None: taken for this call).

        Raises OutArgumentError for an `out` array of another shape or type or that is read-only,
        OutOfMemory before anything runs when memory does not suffice, TargetError where the code
        uses instructions that this processor lacks.
        """
        p = self._prepared.get(sizes)
        if p is None:
            p = self._prepare(sizes)
        ready = self._ready(arrays, held)
        results: list[Array] = []
        copies: list[tuple[Array, Array]] = []
        same = len(self.outputs) == len(p.results)
        each = out if out is not None and not same and len(out) == len(self.outputs) else None
        wanted = out if each is None else self._wanted(p, arrays, each, copies)
        for k, (_, shape, dtype, nbytes, over) in enumerate(p.results):
            given = wanted[k] if wanted is not None else None
            if given is None and over >= 0:
                results.append(arrays[over])
            elif given is None:
                results.append(allocate(nbytes).array(shape, dtype))
            else:
                results.append(target(given, shape, dtype, (*arrays, *results), copies))
        block = between
        if block is None and p.arena_bytes:
            block = allocate(p.arena_bytes)
        frame = p.frame
        if frame:
            frame = _filled(p, [address_of(a) for a in (*arrays, *results, *ready)], block)
            for slot, source, d in p.strides:
                frame[slot] = arrays[source].strides[d] // arrays[source].itemsize
        address = frame.buffer_info()[0]
        run = pool().run_addresses
        for s in p.segments:
            if s.call is None:
                run(s.chunks, s.launches, s.count, address, p.scratch)
            else:
                self._library(s, p.sizes, (*arrays, *results, *ready), block)
        for given, temporary in copies:
            given[...] = temporary
            results = [given if r is temporary else r for r in results]
        return results if same else self._returned(p, arrays, results, each, out is None)

    def run_at(
        self,
        addresses: list[int],
        sizes: tuple[int, ...],
        inputs: Sequence[Any],
        look: Callable[[], Sequence[Array]],
        held: Run | None = None,
    ) -> list[Array]:
        """The results for inputs that are told by their addresses.  Left out are inputs among
        them, and those that are written over inputs.

        `inputs` answer `stride(d)` in elements where a stride is told at the call; `look` gives all
        of them as arrays, for what runs in Python.  `held` as in `run`.  Raises OutOfMemory.
        """
        p = self._prepared.get(sizes)
        if p is None:
            p = self._prepare(sizes)
        if any(s.call is not None for s in p.segments) or (held is None and self.prelude):
            found = self.run(look(), sizes, None, held)
            by_value = dict(zip(self.outputs, found, strict=True))
            return [by_value[v] for v, *_, over in p.results if over < 0]
        results: list[Array] = []
        where = addresses[:]
        for _, shape, dtype, nbytes, over in p.results:
            if over < 0:
                results.append(allocate(nbytes).array(shape, dtype))
            where.append(addresses[over] if over >= 0 else address_of(results[-1]))
        if held is not None:
            where += held.addresses
        block = allocate(p.arena_bytes) if p.arena_bytes else None
        frame = _filled(p, where, block)
        for slot, source, d in p.strides:
            frame[slot] = inputs[source].stride(d)
        address = frame.buffer_info()[0]
        run = pool().run_addresses
        for s in p.segments:
            run(s.chunks, s.launches, s.count, address, p.scratch)
        return results

    def prepared(self, sizes: tuple[int, ...]) -> Prepared:
        """Everything about calls with these sizes."""
        return self._prepared.get(sizes) or self._prepare(sizes)

    def _ready(self, arrays: Sequence[Array], held: Run | None) -> list[Array]:
        """The values that are held."""
        if self.prelude is None:
            return []
        return self.prelude.compute(arrays) if held is None else held.arrays

    def _wanted(
        self,
        p: Prepared,
        arrays: Sequence[Array],
        out: Sequence[Array | None],
        copies: list[tuple[Array, Array]],
    ) -> list[Array | None]:
        """Where each value that is computed goes, the first place of several; inputs that are
        returned as they are become copies, made now: something may be written over them."""
        first: dict[int, Array | None] = {v: None for v, *_ in p.results}
        for v, given in zip(self.outputs, out, strict=True):
            if v not in first and given is not None:
                copies.append((given, arrays[self.values[v].number].copy()))
            elif v in first and first[v] is None:
                first[v] = given
        return list(first.values())

    def _returned(
        self,
        p: Prepared,
        arrays: Sequence[Array],
        results: list[Array],
        out: Sequence[Array | None] | None,
        apart: bool,
    ) -> list[Array]:
        """Results by output, inputs returned as they are among them: those are in the arrays given
        for them, as is the first of several that share a value; `apart`, the others and inputs are
        copies, for whoever gave an input may write to it, and whoever gets a result to that."""
        computed = {v: r for (v, *_), r in zip(p.results, results, strict=True)}
        found: list[Array] = []
        handed: set[int] = set()
        for v, given in zip(self.outputs, out or [None] * len(self.outputs), strict=True):
            made = computed.get(v)
            if made is not None and given is not None and given is not made:
                given[...] = made
            own = arrays[self.values[v].number] if made is None else made
            if apart and (made is None or v in handed):
                own = own.copy(order="K")
            handed.add(v)
            found.append(own if given is None else given)
        return found

    def _library(
        self, s: Segment, sizes: Sizes, known: Sequence[Array], block: Block | None
    ) -> None:
        def view(x: Operand) -> Array:
            if x.whole:
                return known[x.source]
            if x.source >= 0:  # in the memory of a result
                return _within(known[x.source], x)
            if block is None:  # every value between the steps is empty
                return np.empty(x.shape, x.dtype)
            return block.array(x.shape, x.dtype, offset=x.offset)

        assert s.call is not None
        s.call.call(sizes, [*map(view, s.given)], [*map(view, s.made)])

    # ---- preparation -----------------------------------------------------------------------------

    def _within_limit(self, p: Prepared) -> None:
        """Raises OutOfMemory if a call needs more than the knob MAX_EXTRA_MEMORY allows."""
        limit = None if self.inside else knobs.MAX_EXTRA_MEMORY.get()
        largest = max((nbytes for *_, nbytes, _ in p.results), default=0)
        needed = p.arena_bytes + p.beside
        needed += sum(nbytes for *_, nbytes, over in p.results if over < 0)
        if limit is not None and needed > limit:
            raise OutOfMemory(
                needed=show_bytes(needed),
                available=show_bytes(limit),
                largest=f"the largest result takes {show_bytes(largest)}",
            )

    def _whole(self, graph: Graph) -> CallStep:
        """All that is computed, by the references of the operators."""
        inputs = {v.number: n for n, v in enumerate(self.values) if v.place == "input"}
        results = {
            v: x
            for v, x in zip(self.outputs, graph.outputs, strict=True)
            if self.values[v].place == "output"
        }
        return in_place_of(graph, tuple(inputs[k] for k in range(len(inputs))), results)

    def _runs_here(self) -> None:
        """Raise TargetError if this processor lacks instructions that the code uses."""
        reason = "" if self.made_for is None else cannot_run(self.made_for)
        if reason and self.made_for is not None:
            reason = f"{reason}; code for it can be shown, not run"
            raise TargetError(target=self.made_for.name, reason=reason)

    def _prepare(self, sizes: tuple[int, ...]) -> Prepared:
        self._runs_here()
        named = dict(zip(self.size_names, sizes, strict=True))
        shapes = [tuple(int(evaluate(d, named)) for d in v.shape) for v in self.values]
        most = max((math.prod(shape) for shape in shapes), default=0)
        if most >= 1 << 62:  # what follows counts in 64 bits
            raise OutOfMemory(
                needed=f"{most:,} elements",
                available="2**63 - 1 bytes at most",
                largest="a value of the program is larger",
            )
        try:
            p = Builder(self.values, named, shapes).build(self.launches, self.arena)
        except Exception as error:
            if self.graph is None or not is_spared(error):
                raise
            p = Builder(self.values, named, shapes).build([[self._whole(self.graph)]], ())
            at = ", ".join(f"{n}={k}" for n, k in named.items())
            tell_spared(f"{self.graph.name} at {at or 'these sizes'}", error)
        for v, value in enumerate(self.values):
            if value.place == "output":
                nbytes = int(np.prod(shapes[v], dtype=object)) * value.dtype.itemsize
                p.results.append((v, shapes[v], value.dtype.numpy, nbytes, value.over))
        p.results.sort(key=lambda r: self.values[r[0]].number)
        self._within_limit(p)
        with self._lock:
            if len(self._prepared) >= KEPT_SIZES:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[sizes] = p
        return p


def of_references(graph: Graph) -> Executable:
    """What computes a graph in NumPy, by the references of its operators."""
    made = [x for x in dict.fromkeys(graph.outputs) if x not in graph.inputs]
    values = [
        Value(x.type.dtype, x.type.shape, place, k)
        for place, nodes in (("input", graph.inputs), ("output", made))
        for k, x in enumerate(nodes)
    ]
    numbers = {x: n for n, x in enumerate((*graph.inputs, *made))}
    outputs = [numbers[x] for x in graph.outputs]
    step = in_place_of(graph, tuple(range(len(graph.inputs))), {numbers[x]: x for x in made})
    return Executable(tuple(sizes(graph)), values, [[step]], (), outputs)


__all__ = ["CallStep", "Executable", "KernelStep", "Native", "Prepared", "Value", "of_references"]
