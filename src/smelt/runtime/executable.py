"""Run a compiled plan: tables built once per sizes, then one native call per run.

A call looks up its sizes, allocates its results and one arena for intermediates, writes the
addresses into a copy of the argument frame, and enters native code once for each run of kernels
between library calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import OutArgumentError, OutOfMemory, TargetError
from smelt.graph.ir import Graph
from smelt.graph.walk import all_size_names
from smelt.machine.target import Target
from smelt.runtime.host import unsupported_reason
from smelt.runtime.memory import Block, Spans, address_of, allocate
from smelt.runtime.plan_tables import (
    CallStep,
    KernelStep,
    LaunchTableBuilder,
    NativeFunction,
    Operand,
    PlanExecutable,
    Prepared,
    Segment,
    Sizes,
    Step,
    Value,
)
from smelt.runtime.prelude import Prelude, Run
from smelt.runtime.reference import is_recoverable, program_step, warn_fallback
from smelt.runtime.threads import pool, register_controller
from smelt.types.expr import Index

Array = np.ndarray[Any, Any]


def _view_inside(host: Array, x: Operand) -> Array:
    nbytes = math.prod(x.shape) * x.dtype.itemsize
    data = host.reshape(-1).view(np.uint8)[x.offset : x.offset + nbytes]
    return data.view(x.dtype).reshape(x.shape)


class Executable(PlanExecutable[Prepared]):
    """Plan ready to run; safe to call from several threads."""

    reads_strides = True

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
        *,
        is_part: bool = False,
    ) -> None:
        """Build an executable from steps and values.

        `launches` are groups of independent steps, in order. `outputs` number the values that are
        returned (an input among them is returned as it is). `arena` lists where values in the
        arena end, in bytes. `prelude` computes the held values. `graph`, with these inputs and
        outputs, runs in NumPy for sizes that no kernels can be made for. `code_target` is the
        target of the kernels' code, None for the host. Another executable runs one that `is_part`
        of it, and accounts for its memory.
        """
        super().__init__(size_names, values, launches, arena, outputs)
        self.prelude = prelude
        self.graph = graph
        self.code_target = made_for
        self.verify: Callable[[Mapping[str, int]], None] | None = None
        """Raises an error for sizes at which the plan is not one, if it comes from a file."""
        self._is_part = is_part
        register_controller()

    # ---- calls -----------------------------------------------------------------------------------

    def run(
        self,
        arrays: Sequence[Array],
        sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
        held: Run | None = None,
    ) -> list[Array]:
        """Run the plan and return its results.

        `arrays` are the inputs and `all_size_names` the values of `size_names`. `out` are arrays to
        write into (None: allocate): one per output, or one per computed value in order of first
        return. `held` are the prelude's results for these inputs (None: compute now without
        caching).

        Raises OutArgumentError for an `out` array of another shape or type or that is read-only,
        OutOfMemory before anything runs when memory does not suffice, TargetError if the code
        uses instructions that this processor lacks.
        """
        p = self.prepared(sizes)
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
        block = allocate(p.arena_bytes) if p.arena_bytes else None
        frame = p.frame
        if frame:
            where = [address_of(a) for a in (*arrays, *results, *held_arrays)]
            frame = p.fill(where, 0 if block is None else block.address)
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
        p = self.prepared(sizes)
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
        frame = p.fill(all_addresses, 0 if block is None else block.address)
        for slot, source, d in p.strides:
            frame[slot] = inputs[source].stride(d)
        address = frame.buffer_info()[0]
        run = pool().run_addresses
        for s in p.segments:
            run(s.chunks, s.launches, s.count, address, p.scratch)
        return results

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

    def _build_tables(self, named: dict[str, int]) -> Prepared:
        self._check_target()
        if self.verify is not None:
            self.verify(named)
        builder = LaunchTableBuilder(self.values, named)
        largest = max(map(math.prod, builder.shapes), default=0)
        if largest >= 1 << 62:  # byte counts below must fit 64 bits
            raise OutOfMemory(
                needed=f"{largest:,} elements",
                available="2**63 - 1 bytes at most",
                largest="a value of the program is larger",
            )
        try:
            p = builder.build(self.launches, self.arena)
        except Exception as error:
            if self.graph is None or not is_recoverable(error):
                raise
            step = self._reference_step(self.graph)
            p = LaunchTableBuilder(self.values, named).build([[step]], ())
            at = ", ".join(f"{n}={k}" for n, k in named.items())
            warn_fallback(f"{self.graph.name} at {at or 'these sizes'}", error)
        if not self._is_part:
            p.check_limit(p.call_bytes)
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
    "Value",
    "reference_executable",
]
