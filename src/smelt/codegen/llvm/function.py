"""Emit one phase as one LLVM function: arguments, the loop over tasks, and its nests.

    phase(arguments, first, last, scratch):
      load the addresses of buffers, and sizes, from `arguments`
      for task in first .. last:                  the linearised grid, split among threads
        one block number for each grid axis       outer to inner
        the loop nests of the schedule            `smelt.codegen.llvm.nest`

If rows are stored one task late (`smelt.codegen.llvm.loops.pipeline_store`), the loop also carries
the previous task's block numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.prefetch import assign_row_shares
from smelt.codegen.llvm.instructions.indexing import I64, IndexEmitter, number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Program
from smelt.codegen.llvm.loops.full_unroll import is_single_block
from smelt.codegen.llvm.loops.pipeline_store import StorePipeline, can_pipeline_store
from smelt.codegen.llvm.nest import NestEmitter
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.codegen.llvm.scratch.workspace import Storage
from smelt.codegen.llvm.scratch.zero_pad import zero_operands
from smelt.codegen.llvm.streams import run_segments
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.expr import Atom, Expr, Index, add, atoms, floordiv, mul, product, sub

Value = ir.Value
PTR = ir.PointerType()
KERNEL = ir.FunctionType(ir.VoidType(), [PTR, I64, I64, PTR])
"""Type of a kernel function: arguments, first task, task after the last, scratch memory."""


@dataclass(frozen=True, slots=True)
class ArgumentOrder:
    """The order of a kernel's arguments: buffers, then sizes (strides are sizes too)."""

    buffers: tuple[str, ...]
    sizes: tuple[str, ...]


def argument_order(program: Program, schedules: Iterable[Schedule]) -> ArgumentOrder:
    """Return every buffer, and every size that some phase reads."""
    sizes: dict[str, None] = {}
    for s in schedules:
        for e in _indices(s):
            sizes.update((a.name, None) for a in atoms(e) if a.kind == "size")
    return ArgumentOrder(tuple(b.name for b in program.buffers), tuple(sizes))


def _indices(s: Schedule) -> Iterable[Index]:
    """Yield the index expressions of a schedule."""
    yield from s.phase.axes.values()
    yield from (length for _, length in s.phase.cut.values())
    for item in s.phase.items:
        payload = item.payload
        if isinstance(payload, Access):
            yield payload.offset
            yield from (e for pair in payload.limits for e in pair)
        elif isinstance(payload, Expr):
            yield payload
        elif hasattr(payload, "extent"):
            yield payload.extent  # type: ignore[union-attr]
    yield from (st.access.offset for st in s.phase.stores)


def grid_counts(s: Schedule) -> list[tuple[str, Index]]:
    """Return the number of blocks along each grid axis, outer to inner."""
    counts: list[tuple[str, Index]] = []
    for g in s.phase.grid:
        extent = s.phase.axes[g]
        if g in s.block:
            extent = floordiv(add(extent, sub(s.block[g], 1)), s.block[g])
        counts.append((g, extent))
    return counts


def task_count(s: Schedule) -> Index:
    """Return the number of tasks of the linearised grid."""
    return product(n for _, n in grid_counts(s))


class FunctionEmitter:
    """Emits one schedule into a module."""

    def __init__(
        self,
        module: ir.Module,
        program: Program,
        s: Schedule,
        words: ArgumentOrder,
        target: Target,
        streaming: bool,
    ) -> None:
        self.s, self.program, self.words, self.target = s, program, words, target
        self.streaming = streaming
        self.function = ir.Function(module, KERNEL, s.phase.name)
        self.function.args[0].add_attribute("noalias")
        self.function.args[3].add_attribute("noalias")
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.buffers: dict[str, Value] = {}
        self.dtypes = {buffer.name: buffer.dtype for buffer in program.buffers}
        self.lengths = {
            x.name: x.nbytes // x.dtype.itemsize
            for x in program.buffers
            if isinstance(x.nbytes, int) and x.is_dense and not x.written
        }
        """Elements of the contiguous inputs whose length is known."""
        self.sizes: dict[str, Value] = {}
        self.storage = Storage(s)
        self.entry = IndexEmitter(self.b, self._size)
        """Index expressions that are computed before the loop over tasks."""
        self.pipelines_store = streaming and can_pipeline_store(s)
        """Whether rows are stored while the next ones are computed."""
        self.store_pipeline: StorePipeline | None = None
        self.shares = assign_row_shares(s)
        self.done: ir.Block | None = None
        """Where the function returns, after the last task or when its run was given up."""

    def emit(self) -> ir.Function:
        """Emit the function."""
        self._arguments()
        first, last = self.function.args[1], self.function.args[2]
        counts = [(g, self.entry.emit(n)) for g, n in grid_counts(self.s)]
        start = self._decode(first, counts)
        scratch = self.function.args[3]
        self.storage.emit_addresses(self.b, scratch, self.entry.emit)
        zero_operands(self.b, self.storage, scratch, self.entry, self.sizes.values())
        self._task_loop(first, last, counts, start)
        return self.function

    @property
    def scratch_nbytes(self) -> Index:
        """Bytes of scratch memory that a thread needs."""
        return mul(self.storage.nbytes, 2) if self.pipelines_store else self.storage.nbytes

    def index(self, e: Index) -> Value:
        """Emit an expression over sizes alone, inside a task."""
        return IndexEmitter(self.b, self._size, self.entry.found).emit(e)

    def _size(self, atom: Atom) -> Value:
        return self.sizes[atom.name]

    def _arguments(self) -> None:
        """Load the arguments: addresses of buffers, and sizes."""
        args = self.function.args[0]
        for k, name in enumerate(self.words.buffers):
            address = self.b.gep(args, [number(k)], source_etype=I64)
            self.buffers[name] = self.b.load(address, typ=PTR, name=name)
        for alias, name in self.s.phase.aliases.items():
            self.buffers[alias], self.dtypes[alias] = self.buffers[name], self.s.phase.dtypes[alias]
        for k, name in enumerate(self.words.sizes):
            address = self.b.gep(args, [number(len(self.words.buffers) + k)], source_etype=I64)
            self.sizes[name] = self.b.load(address, typ=I64, name=name)

    def _decode(self, task: Value, counts: list[tuple[str, Value]]) -> list[Value]:
        """Return the block numbers of a task, outer to inner."""
        numbers: list[Value] = []
        for dim, (_, count) in enumerate(reversed(counts)):
            if dim == len(counts) - 1:
                numbers.append(task)
            else:
                safe = self.b.select(self.b.icmp_signed(">", count, number(0)), count, number(1))
                numbers.append(self.b.urem(task, safe))
                task = self.b.udiv(task, safe)
        return numbers[::-1]

    def _task_loop(
        self, first: Value, last: Value, counts: list[tuple[str, Value]], start: list[Value]
    ) -> None:
        """Emit the loop over tasks from `first` to `last`."""
        b, function = self.b, self.function
        body, done = (function.append_basic_block(n) for n in ("task", "done"))
        self.done = done
        stride = self.entry.emit(self.storage.nbytes) if self.pipelines_store else number(0)
        entry = b.block
        b.cbranch(b.icmp_signed("<", first, last), body, done)
        b.position_at_end(body)
        task = b.phi(I64)
        task.add_incoming(first, entry)
        numbers = [b.phi(I64) for _ in counts]
        for phi, value in zip(numbers, start, strict=True):
            phi.add_incoming(value, entry)
        turns = StorePipeline(b, entry, stride, start) if self.pipelines_store else None
        home = self._nests(numbers)
        if turns is None:
            run_segments(home)
        else:
            turns.begin(home, self._nests(turns.numbers))
            self.store_pipeline = turns
            for nest in self.s.nests[:-1]:
                home.run(nest)
            self.store_pipeline = None
        following = self._advance(numbers, counts)
        after = b.add(task, number(1))
        if turns is not None:
            more = b.icmp_signed("<", after, last)
            turns.end(more, self._nests(following).ranges)
        latch = b.block
        if turns is not None:
            turns.close(latch, numbers)
        task.add_incoming(after, latch)
        for phi, value in zip(numbers, following, strict=True):
            phi.add_incoming(value, latch)
        b.cbranch(b.icmp_signed("<", after, last), body, done)
        b.position_at_end(done)
        if self.streaming:
            self._fence()
        b.ret_void()

    def _fence(self) -> None:
        """Emit the fence after which non-temporal stores are visible."""
        if name := self.target.facts.store_fence:
            kind = ir.FunctionType(ir.VoidType(), [])
            module = self.b.module
            self.b.call(module.globals.get(name) or ir.Function(module, kind, name), [])
        else:
            self.b.fence("seq_cst")

    def _advance(self, numbers: Sequence[Value], counts: list[tuple[str, Value]]) -> list[Value]:
        """Return the block numbers of the next task: an odometer."""
        b = self.b
        following: list[Value] = []
        carry: Value = number(1)
        for dim in range(len(counts) - 1, -1, -1):
            up = b.add(numbers[dim], carry)
            if dim == 0:
                following.append(up)
                break
            full = b.icmp_signed(">=", up, counts[dim][1])
            following.append(b.select(full, number(0), up))
            carry = b.select(full, number(1), number(0))
        return following[::-1]

    def _nests(self, blocks: Sequence[Value]) -> NestEmitter:
        """Return the nest emitter of a task, given its block numbers."""
        b, numbers = self.b, dict(zip(self.s.phase.grid, blocks, strict=True))
        scope = Scope()
        ranges: dict[str, tuple[Value, Value]] = {}
        for axis in self.s.local:
            extent = self.index(self.s.phase.axes[axis])
            if is_single_block(self.s, axis):
                ranges[axis] = number(0), extent
                continue
            if axis in self.s.block:
                step = self.index(self.s.block[axis])
                low = b.mul(numbers[axis], step)
            elif axis in self.s.phase.cut:
                part, length = self.s.phase.cut[axis]
                step = self.index(length)
                low = b.mul(numbers[part], step)
            else:
                ranges[axis] = (number(0), extent)
                continue
            low = b.select(b.icmp_signed("<", low, extent), low, extent)
            high = b.add(low, step)
            ranges[axis] = (low, b.select(b.icmp_signed("<", high, extent), high, extent))
        for position_axis, reach in self.s.phase.window_positions.items():
            low, high = ranges[reach.axis]
            first = b.mul(low, number(reach.step))
            last = b.add(b.mul(b.sub(high, number(1)), number(reach.step)), number(reach.length))
            ranges[position_axis] = first, b.select(b.icmp_signed("<", low, high), last, first)
        for g, value in numbers.items():
            if g not in self.s.local:
                scope.axes[g] = value
        return NestEmitter(self.b, self, ranges, scope)
