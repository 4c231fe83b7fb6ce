"""Run a compiled plan: tables built once per sizes, then one native call per run.

A call looks up its sizes, allocates its results and one arena for intermediates, writes the
addresses into a copy of the argument frame, and enters native code once for each run of kernels
between library calls.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt import knobs
from smelt.errors import OutArgumentError, OutOfMemory, TargetError
from smelt.graph.ir import Graph
from smelt.graph.walk import all_size_names
from smelt.knobs.values import show_bytes
from smelt.machine.target import Target
from smelt.runtime.host import unsupported_reason
from smelt.runtime.launch_table import LaunchTableBuilder, Operand, Prepared, Segment
from smelt.runtime.memory import Block, address_of, allocate
from smelt.runtime.overlap import Spans
from smelt.runtime.prelude import Prelude, Run
from smelt.runtime.reference import is_recoverable, program_step, warn_fallback
from smelt.runtime.steps import CallStep, KernelStep, NativeFunction, Sizes, Step, Value
from smelt.runtime.threadpools import register_controller
from smelt.runtime.threads import pool
from smelt.types.expr import Index, evaluate

Array = np.ndarray[Any, Any]

MAX_PREPARED = 256
"""Prepared size tuples kept; the oldest is evicted first."""


def _fill_frame(p: Prepared, where: list[int], block: Block | None) -> array[int]:
    """Return the argument frame of a call with addresses filled in."""
    frame = p.frame[:]
    for slot, source, offset in p.addresses:
        frame[slot] = where[source] + offset
    if block is not None:
        base = block.address
        for slot, offset in p.arena:
            frame[slot] = base + offset
    return frame


MIN_TABLED_STEPS, MAX_TABLED_STEPS = 8, 256
"""Minimum and maximum steps of a loop in one native call; the maximum is even."""


class RepeatedKernels:
    """Kernels of a plan that run repeatedly, on parts of some arrays."""

    def __init__(
        self,
        p: Prepared,
        block: Block | None,
        arrays: Sequence[Sequence[Array]],
        moving: Sequence[int],
    ) -> None:
        """Prepare a frame for each list of arrays: inputs and results in row-major order.

        Those numbered in `moving` are passed as their part t, along the first dimension. `block`
        is the arena.
        """
        self.p, self.block, self.arrays = p, block, arrays
        self.frames = [_fill_frame(p, [address_of(a) for a in side], block) for side in arrays]
        places = {k: address_of(arrays[0][k]) for k in moving}
        self.moving = [
            (slot, places[source] + offset, arrays[0][source].strides[0])
            for slot, source, offset in p.addresses
            if source in places
        ]
        self.segments = [(s.chunks, s.launches, s.count) for s in p.segments]
        self.entries = [frame.buffer_info()[0] for frame in self.frames]
        self.run_addresses = pool().run_addresses

    def run(self, t: int, side: int) -> None:
        """Run on part t of the moving arrays of one list."""
        frame = self.frames[side]
        for slot, address, stride in self.moving:
            frame[slot] = address + t * stride
        for chunks, launches, count in self.segments:
            self.run_addresses(chunks, launches, count, self.entries[side], self.p.scratch)

    def run_steps(self, steps: range, stacked: Mapping[int, tuple[int, Array]]) -> None:
        """Run on part after part, on the arrays of the two lists in turn.

        Many steps are one native call: each has a frame of its own in one table. `stacked` has
        for some inputs the result that the next step reads as that input, and the array whose
        parts hold it.
        """
        if not self.segments:
            return
        (segment,) = self.p.segments
        words, most = len(self.frames[0]), min(len(steps), MAX_TABLED_STEPS)
        frames = np.empty((-(-most // 2), 2, words), np.int64)
        frames[:] = self.frames
        frames = frames.reshape(-1, words)[:most]
        chunks, launches = (np.repeat(t[None], most, axis=0) for t in segment.tables)
        chunks[..., 1] += 8 * words * np.arange(most)[:, None]
        launches[..., 0] += len(segment.tables[0]) * np.arange(most)[:, None]
        moving, lag = self.moving[:], list[tuple[int, int, int]]()
        for number, (result, parts) in stacked.items():
            for slot, source, offset in self.p.addresses:
                if source in (number, result):
                    row = slot, address_of(parts) + offset, parts.strides[0]
                    (lag if source == number else moving).append(row)
        for first in range(0, len(steps), most):
            part = np.array(steps[first : first + most])
            for slot, address, stride in moving:
                frames[: len(part), slot] = address + stride * part
            for slot, address, stride in lag:  # the first step of all reads what the loop is given
                start = 1 if first == 0 else 0
                frames[start : len(part), slot] = address + stride * (part[start:] - steps.step)
            chunks_at, launches_at, frames_at = map(address_of, (chunks, launches, frames))
            count = segment.count * len(part)
            self.run_addresses(chunks_at, launches_at, count, frames_at, self.p.scratch)


def _view_inside(host: Array, x: Operand) -> Array:
    nbytes = math.prod(x.shape) * x.dtype.itemsize
    data = host.reshape(-1).view(np.uint8)[x.offset : x.offset + nbytes]
    return data.view(x.dtype).reshape(x.shape)


class Executable:
    """Plan ready to run; safe to call from several threads."""

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
        """Build an executable from steps and values.

        `launches` are groups of independent steps, in order. `outputs` number the values that are
        returned (an input among them is returned as it is). `arena` lists where values in the
        arena end, in bytes. `prelude` computes the held values. `graph`, with these inputs and
        outputs, runs in NumPy for sizes that no kernels can be made for. `code_target` is the
        target of the kernels' code, None for the host.
        """
        self.size_names = size_names
        self.values = tuple(values)
        self.launches = tuple(tuple(group) for group in launches)
        self.arena = tuple(arena)
        self.outputs = tuple(outputs)
        self.prelude = prelude
        self.graph = graph
        self.code_target = made_for
        self.verify: Callable[[Mapping[str, int]], None] | None = None
        """Raises an error for sizes at which the plan is not one, if it comes from a file."""
        self.nested = False
        """Whether another executable runs this one and accounts for its memory."""
        register_controller()
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
        """Run the plan and return its results.

        `arrays` are the inputs and `all_size_names` the values of `size_names`. `out` are arrays to
        write into (None: allocate): one per output, or one per computed value in order of first
        return. `held` are the prelude's results for these inputs (None: compute now without
        caching). `between` is memory for intermediates, at least `arena_bytes` at these sizes
        (None: allocate).

        Raises OutArgumentError for an `out` array of another shape or type or that is read-only,
        OutOfMemory before anything runs when memory does not suffice, TargetError if the code
        uses instructions that this processor lacks.
        """
        p = self._prepared.get(sizes)
        if p is None:
            p = self._prepare(sizes)
        held_arrays = self._held_arrays(arrays, held)
        results: list[Array] = []
        copies: list[tuple[Array, Array]] = []
        one_per_output = len(self.outputs) == len(p.results)
        per_output = (
            out
            if out is not None and not one_per_output and len(out) == len(self.outputs)
            else None
        )
        targets = out if per_output is None else self._result_targets(p, arrays, per_output, copies)
        spans = Spans([] if targets is None else [*arrays, *targets])
        for k, (_, shape, dtype, nbytes, over) in enumerate(p.results):
            out_array = targets[k] if targets is not None else None
            if out_array is None and over >= 0:
                results.append(arrays[over])
            elif out_array is None:
                results.append(allocate(nbytes).array(shape, dtype))
            else:
                before = len(arrays) + k
                overlaps = any(j < before for j in spans.overlapping(out_array))
                results.append(_result_array(out_array, shape, dtype, overlaps, copies))
        block = between
        if block is None and p.arena_bytes:
            block = allocate(p.arena_bytes)
        frame = p.frame
        if frame:
            frame = _fill_frame(
                p, [address_of(a) for a in (*arrays, *results, *held_arrays)], block
            )
            for slot, source, d in p.strides:
                frame[slot] = arrays[source].strides[d] // arrays[source].itemsize
        address = frame.buffer_info()[0]
        run = pool().run_addresses
        for s in p.segments:
            if s.call is None:
                run(s.chunks, s.launches, s.count, address, p.scratch)
            else:
                self._call_library(s, p.sizes, (*arrays, *results, *held_arrays), block)
        for out_array, temporary in copies:
            out_array[...] = temporary
        if copies:
            written = {id(temporary): out_array for out_array, temporary in copies}
            results = [written.get(id(r), r) for r in results]
        return (
            results
            if one_per_output
            else self._arrange_outputs(p, arrays, results, per_output, out is None)
        )

    def run_at(
        self,
        addresses: list[int],
        sizes: tuple[int, ...],
        inputs: Sequence[Any],
        look: Callable[[], Sequence[Array]],
        held: Run | None = None,
    ) -> list[Array]:
        """Run on inputs passed by address and return newly allocated results.

        Results that are inputs or overwrite inputs are left out. `inputs` provide `stride(d)` in
        elements for strides passed at the call; `look` returns all inputs as arrays, for steps
        that run in Python. `held` as in `run`. Raises OutOfMemory.
        """
        p = self._prepared.get(sizes)
        if p is None:
            p = self._prepare(sizes)
        if any(s.call is not None for s in p.segments) or (held is None and self.prelude):
            results_by_output = self.run(look(), sizes, None, held)
            by_value = dict(zip(self.outputs, results_by_output, strict=True))
            return [by_value[v] for v, *_, over in p.results if over < 0]
        results: list[Array] = []
        all_addresses = addresses[:]
        for _, shape, dtype, nbytes, over in p.results:
            if over < 0:
                results.append(allocate(nbytes).array(shape, dtype))
            all_addresses.append(addresses[over] if over >= 0 else address_of(results[-1]))
        if held is not None:
            all_addresses += held.addresses
        block = allocate(p.arena_bytes) if p.arena_bytes else None
        frame = _fill_frame(p, all_addresses, block)
        for slot, source, d in p.strides:
            frame[slot] = inputs[source].stride(d)
        address = frame.buffer_info()[0]
        run = pool().run_addresses
        for s in p.segments:
            run(s.chunks, s.launches, s.count, address, p.scratch)
        return results

    def prepared(self, sizes: tuple[int, ...]) -> Prepared:
        """Return the tables for calls with these sizes."""
        return self._prepared.get(sizes) or self._prepare(sizes)

    def _held_arrays(self, arrays: Sequence[Array], held: Run | None) -> list[Array]:
        """Return the values that the prelude computes."""
        if self.prelude is None:
            return []
        return self.prelude.compute(arrays) if held is None else held.arrays

    def _result_targets(
        self,
        p: Prepared,
        arrays: Sequence[Array],
        out: Sequence[Array | None],
        copies: list[tuple[Array, Array]],
    ) -> list[Array | None]:
        """Return where each computed value goes: the first `out` array given for it.

        Inputs that are returned as they are become copies, made now, because they may be
        overwritten.
        """
        first: dict[int, Array | None] = {v: None for v, *_ in p.results}
        for v, out_array in zip(self.outputs, out, strict=True):
            if v not in first and out_array is not None:
                copies.append((out_array, arrays[self.values[v].number].copy()))
            elif v in first and first[v] is None:
                first[v] = out_array
        return list(first.values())

    def _arrange_outputs(
        self,
        p: Prepared,
        arrays: Sequence[Array],
        results: list[Array],
        out: Sequence[Array | None] | None,
        copy_shared: bool,
    ) -> list[Array]:
        """Return results by output, with inputs that are returned as they are.

        An output with an `out` array is written there. With `copy_shared`, inputs and repeated
        values are copied, so that writing to one returned array changes no other and no input.
        """
        computed = {v: r for (v, *_), r in zip(p.results, results, strict=True)}
        outputs: list[Array] = []
        returned_values: set[int] = set()
        for v, out_array in zip(self.outputs, out or [None] * len(self.outputs), strict=True):
            computed_value = computed.get(v)
            if (
                computed_value is not None
                and out_array is not None
                and out_array is not computed_value
            ):
                out_array[...] = computed_value
            result = arrays[self.values[v].number] if computed_value is None else computed_value
            if copy_shared and (computed_value is None or v in returned_values):
                result = result.copy(order="K")
            returned_values.add(v)
            outputs.append(result if out_array is None else out_array)
        return outputs

    def _call_library(
        self, s: Segment, sizes: Sizes, arrays: Sequence[Array], block: Block | None
    ) -> None:
        def view(x: Operand) -> Array:
            if x.whole:
                return arrays[x.source]
            if x.source >= 0:  # inside the memory of a result
                return _view_inside(arrays[x.source], x)
            if block is None:  # all intermediates are empty
                return np.empty(x.shape, x.dtype)
            return block.array(x.shape, x.dtype, offset=x.offset)

        assert s.call is not None
        s.call.call(sizes, [*map(view, s.inputs)], [*map(view, s.outputs)])

    # ---- preparation -----------------------------------------------------------------------------

    def _check_memory_limit(self, p: Prepared) -> None:
        """Raise OutOfMemory if a call needs more than the knob MAX_EXTRA_MEMORY allows."""
        limit = None if self.nested else knobs.MAX_EXTRA_MEMORY.get()
        largest = max((nbytes for *_, nbytes, _ in p.results), default=0)
        needed = p.arena_bytes + p.call_bytes
        needed += sum(nbytes for *_, nbytes, over in p.results if over < 0)
        if limit is not None and needed > limit:
            raise OutOfMemory(
                needed=show_bytes(needed),
                available=show_bytes(limit),
                largest=f"the largest result takes {show_bytes(largest)}",
            )

    def _reference_step(self, graph: Graph) -> CallStep:
        """Return one step that computes everything by the operators' references."""
        inputs = {v.number: n for n, v in enumerate(self.values) if v.place == "input"}
        results = {
            v: x
            for v, x in zip(self.outputs, graph.outputs, strict=True)
            if self.values[v].place == "output"
        }
        return program_step(graph, tuple(inputs[k] for k in range(len(inputs))), results)

    def _check_target(self) -> None:
        """Raise TargetError if this processor lacks instructions that the code uses."""
        reason = "" if self.code_target is None else unsupported_reason(self.code_target)
        if reason and self.code_target is not None:
            reason = f"{reason}; code for it can be shown, not run"
            raise TargetError(target=self.code_target.name, reason=reason)

    def _prepare(self, sizes: tuple[int, ...]) -> Prepared:
        self._check_target()
        named = dict(zip(self.size_names, sizes, strict=True))
        if self.verify is not None:
            self.verify(named)
        shapes = [tuple(int(evaluate(d, named)) for d in v.shape) for v in self.values]
        largest = max((math.prod(shape) for shape in shapes), default=0)
        if largest >= 1 << 62:  # byte counts below must fit 64 bits
            raise OutOfMemory(
                needed=f"{largest:,} elements",
                available="2**63 - 1 bytes at most",
                largest="a value of the program is larger",
            )
        try:
            p = LaunchTableBuilder(self.values, named, shapes).build(self.launches, self.arena)
        except Exception as error:
            if self.graph is None or not is_recoverable(error):
                raise
            p = LaunchTableBuilder(self.values, named, shapes).build(
                [[self._reference_step(self.graph)]], ()
            )
            at = ", ".join(f"{n}={k}" for n, k in named.items())
            warn_fallback(f"{self.graph.name} at {at or 'these sizes'}", error)
        for v, value in enumerate(self.values):
            if value.place == "output":
                nbytes = int(np.prod(shapes[v], dtype=object)) * value.dtype.itemsize
                p.results.append((v, shapes[v], value.dtype.numpy, nbytes, value.overwrites))
        p.results.sort(key=lambda r: self.values[r[0]].number)
        self._check_memory_limit(p)
        with self._lock:
            if len(self._prepared) >= MAX_PREPARED:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[sizes] = p
        return p


def reference_executable(graph: Graph) -> Executable:
    """Return an executable that computes a graph in NumPy by its operators' references."""
    computed = [x for x in dict.fromkeys(graph.outputs) if x not in graph.inputs]
    values = [
        Value(x.type.dtype, x.type.shape, place, k)
        for place, nodes in (("input", graph.inputs), ("output", computed))
        for k, x in enumerate(nodes)
    ]
    numbers = {x: n for n, x in enumerate((*graph.inputs, *computed))}
    outputs = [numbers[x] for x in graph.outputs]
    step = program_step(graph, tuple(range(len(graph.inputs))), {numbers[x]: x for x in computed})
    return Executable(tuple(all_size_names(graph)), values, [[step]], (), outputs)


def _result_array(
    out: Array,
    shape: tuple[int, ...],
    dtype: Any,
    overlaps: bool,
    copies: list[tuple[Array, Array]],
) -> Array:
    """Return where to write the result that the caller wants in `out`.

    That is `out` itself, or temporary memory if `out` is not contiguous or `overlaps` an input or
    another result; `copies` collects the copies to make at the end. Raises OutArgumentError for
    another shape or type, and for a read-only array.

    >>> out, copies = np.zeros(4)[::2], []
    >>> result = _result_array(out, (2,), np.dtype(np.float64), False, copies)
    >>> result is out, copies[0][0] is out
    (False, True)
    """
    if out.shape != shape or out.dtype != dtype:
        raise OutArgumentError(
            f"out is {out.dtype}{list(out.shape)}, the result {dtype}{list(shape)}"
        )
    if not out.flags.writeable:
        raise OutArgumentError("out is read-only")
    if out.flags.c_contiguous and not overlaps:
        return out
    temporary: Array = allocate(out.nbytes).array(shape, dtype)
    copies.append((out, temporary))
    return temporary


__all__ = [
    "CallStep",
    "Executable",
    "KernelStep",
    "NativeFunction",
    "Prepared",
    "RepeatedKernels",
    "Value",
    "reference_executable",
]
