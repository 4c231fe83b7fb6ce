"""Print a function of the loop language as LLVM: its arguments, tasks and scratch memory.

func(arguments, first, last, scratch):
  load the addresses of arrays, and sizes, from `arguments`
  statements before the chunks
  for task in first .. last:         the linearised chunks, an odometer of their variables
    statements
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.function import (
    KERNEL,
    ArgumentOrder,
    advance_task,
    decode_task,
    emit_store_fence,
    load_arguments,
)
from smelt.codegen.llvm.instructions.indexing import I64, number, opaque
from smelt.codegen.llvm.lower_to_loop import LoweredPhase
from smelt.codegen.llvm.print_loops import LoopPrinter
from smelt.loop import ir as loop
from smelt.machine.target import Target
from smelt.types.expr import Expr, Index, add, axis, floordiv, mul

SCRATCH_ALIGNMENT, SCRATCH_PAD = 64, 512
"""Bytes to which scratch arrays are aligned, and those behind each that may be written."""


def print_function(
    module: ir.Module,
    phase: LoweredPhase,
    func: loop.Func,
    symbol: str,
    words: ArgumentOrder,
    target: Target,
    *,
    streaming: bool,
) -> Index:
    """Print a phase's loops into a module; return a thread's scratch bytes.

    `streaming` functions store past the caches.
    """
    printer = _FunctionPrinter(module, phase, func, symbol, words, target)
    printer.run(streaming=streaming)
    return printer.scratch_nbytes


class _FunctionPrinter(LoopPrinter):
    """Prints one function."""

    def __init__(
        self,
        module: ir.Module,
        phase: LoweredPhase,
        func: loop.Func,
        symbol: str,
        words: ArgumentOrder,
        target: Target,
    ) -> None:
        self.func = func
        self.function = ir.Function(module, KERNEL, symbol)
        self.function.args[0].add_attribute("noalias")
        self.function.args[3].add_attribute("noalias")
        super().__init__(ir.IRBuilder(self.function.append_basic_block("entry")), target)
        buffers, sizes = load_arguments(self.b, self.function.args[0], words)
        for name, value in sizes.items():
            self.bind(name, value)
        for p in func.params:
            self.add_array(p.name, buffers[phase.buffers[p.name]], p.dtype)
        self.bind_skews(func)
        self.scratch_nbytes: Index = 0
        """Bytes of scratch memory that a thread needs."""

    def run(self, *, streaming: bool) -> None:
        """Print the function."""
        is_chunk = [isinstance(s, loop.For) and s.kind == "chunk" for s in self.func.body]
        before = self.func.body[: is_chunk.index(True)] if any(is_chunk) else ()
        chunk = self.func.body[len(before)] if any(is_chunk) else None
        assert chunk is None or isinstance(chunk, loop.For)
        self.block(before)
        self._tasks(chunk, self.func.body if chunk is None else chunk.body, streaming=streaming)

    # ---- tasks ---------------------------------------------------------------------------------

    def _tasks(
        self, chunk: loop.For | None, body: Sequence[loop.Statement], *, streaming: bool
    ) -> None:
        """Print the loop over tasks; parts of its variable are counted, not divided."""
        b, (_, first, last, _) = self.b, self.function.args
        grid = [] if chunk is None else grid_of(chunk)
        counts = [(name, self.index(n)) for name, n in grid]
        starts = decode_task(b, first, counts)
        for s in body:
            if isinstance(s, loop.Alloc):
                self._alloc(s)
        inside, done = (b.append_basic_block(n) for n in ("task", "done"))
        before = b.block
        b.cbranch(b.icmp_signed("<", first, last), inside, done)
        b.position_at_end(inside)
        (task := b.phi(I64)).add_incoming(first, before)
        numbers = [b.phi(I64) for _ in counts]
        for (name, _), phi, start in zip(counts, numbers, starts, strict=True):
            phi.add_incoming(start, before)
            self.bind(name, phi)
        parts = {name for name, _ in grid}
        self.block(
            [
                s
                for s in body
                if not isinstance(s, loop.Alloc)
                and not (isinstance(s, loop.Let) and s.name in parts)
            ]
        )
        following = advance_task(b, numbers, counts)
        after = b.add(task, number(1))
        task.add_incoming(after, b.block)
        for phi, value in zip(numbers, following, strict=True):
            phi.add_incoming(value, b.block)
        b.cbranch(b.icmp_signed("<", after, last), inside, done)
        b.position_at_end(done)
        if streaming:
            emit_store_fence(b, self.target)
        b.ret_void()

    def _alloc(self, alloc: loop.Alloc) -> None:
        """Give an array its part of the scratch memory."""
        at = opaque(self.b, self.index(self.scratch_nbytes))
        scratch = self.function.args[3]
        address = self.b.gep(scratch, [at], source_etype=ir.IntType(8))
        self.add_array(alloc.name, address, alloc.dtype.compute)
        need = add(mul(alloc.elements, alloc.dtype.compute.itemsize), SCRATCH_PAD)
        need = mul(floordiv(add(need, SCRATCH_ALIGNMENT - 1), SCRATCH_ALIGNMENT), SCRATCH_ALIGNMENT)
        self.scratch_nbytes = add(self.scratch_nbytes, need)


def grid_of(chunk: loop.For) -> list[tuple[str, Index]]:
    """Return the parts of a task's number: their names and counts.

    chunk t in 0 .. a*b              a, i = t//b;  b, j = t%b
      i = t//b
      j = t%b
    """
    rest: Index = axis(chunk.var, chunk.high)
    count, grid = chunk.high, list[tuple[str, Index]]()
    for s in reversed([s for s in chunk.body if isinstance(s, loop.Let)]):
        index = loop.as_index(s.value)
        part = index if isinstance(index, Expr) and is_atom(index) else None
        if part is not None and part.terms[0][0][0].kind == "%":
            above, below = part.terms[0][0][0].args
            if above == rest:
                grid.insert(0, (s.name, below))
                rest, count = floordiv(rest, below), floordiv(count, below)
                continue
        if grid and index == rest:
            return [(s.name, count), *grid]
    return [(chunk.var, chunk.high)]


def is_atom(e: Expr) -> bool:
    """Return whether an expression is a single variable or operation."""
    return len(e.terms) == 1 and e.terms[0][1] == 1 and len(e.terms[0][0]) == 1


__all__ = ["grid_of", "print_function"]
