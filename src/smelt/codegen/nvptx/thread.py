"""Print a kernel as LLVM IR for the threads of a GPU.

Every index of the grid's axes is a *point*, which one thread computes, or a warp of 32. Values
along other axes are not stored: a loop over the axis computes them where they are read. In a warp
the innermost loop of a reduction, or of a store, is shared: a lane takes every 32nd index, and the
lanes' parts are combined by exchanges. Rows that lie in memory along the reduced axis are read by
warps, columns by threads, so that neighbours read neighbours.

    kernel k0(x: f32[n,m]) -> y: f32[n]      point = thread / 32, lane = thread % 32
      grid n                                 if point >= n: return
      v0 = sum(x[n,m] over m)                for m from lane to m by 32: acc = acc + x[point,m]
      y[n] = v0                              acc = sum of the lanes' acc; lane 0 stores y[point]

Scalar operators come from the rows that the CPU uses. Sums of floats are accumulated in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final, NamedTuple

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import IndexEmitter, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.errors import DeviceKernelError
from smelt.kernel.bounds import nonnegative
from smelt.kernel.ir import (
    Apply,
    Block,
    Cast,
    Const,
    If,
    IndexValue,
    Kernel,
    Let,
    Load,
    Param,
    Position,
    Reduce,
    Ref,
    Store,
    Value,
)
from smelt.kernel.verify_sizes import size_names
from smelt.kernel.walk import NO_AXES, Axes, axes_of_body, axes_of_value, loads
from smelt.machine.processor import INSTRUCTION_SETS
from smelt.ops.cast import cast
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import scalar
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, f64, i64
from smelt.types.expr import Atom, Index, axes_of, product, sub

WARP: Final = 32
"""Lanes of a warp."""
THREADS: Final = 128
"""Threads of a block."""
_I64, _I32, _POINTER = ir.IntType(64), ir.IntType(32), ir.PointerType()
_EVERYONE: Final = -1
"""Mask of an exchange: all lanes of the warp."""


class _Gpu:
    """Properties that `LLVMMachine` asks of a processor."""

    facts = INSTRUCTION_SETS["portable"]
    registers = 255
    has_fast_division = True
    has_half_conversions = False
    has_fma = True

    def has(self, feature: str) -> bool:
        return False


class _Typed(NamedTuple):
    """A value in a register with its type."""

    value: Any
    dtype: DType


@dataclass(frozen=True, slots=True)
class ThreadProgram:
    """LLVM IR of a kernel, its parameters in order, and the lanes of a point."""

    symbol: str
    text: str
    pointers: tuple[str, ...]
    strides: tuple[tuple[str, int], ...]
    sizes: tuple[str, ...]
    lanes: int
    points: Index


def print_threads(kernel: Kernel) -> ThreadProgram:
    """Return the program of a kernel; raise DeviceKernelError for what threads do not compute.

    That are streams, split axes, contractions, scans, positions of extremes, families, and stores
    that join.
    """
    return _Printer(kernel).print()


def refuse(kernel: str, missing: str) -> Any:
    """Raise DeviceKernelError."""
    raise DeviceKernelError(kernel=kernel, missing=f"{missing}, which PTX by LLVM has not")


class _Machine(LLVMMachine):
    """Scalar operations of a thread; a GPU has no C library."""

    def __init__(self, builder: ir.IRBuilder, kernel: str) -> None:
        super().__init__(builder, None, _Gpu())
        self.kernel = kernel

    def libm(self, function: str, *args: Any) -> Any:
        return refuse(self.kernel, f"{function} of the C library")


class _Printer:
    """Printer of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.grid: dict[str, Index] = {}
        for entry in kernel.grid:
            if not isinstance(entry, Block):
                refuse(kernel.name, "a split axis or a family of arrays")
            else:
                self.grid[entry.axis] = kernel.axis(entry.axis).extent
        self.lets: dict[str, Value] = {}
        self.names_axes = axes_of_body(kernel.body)
        self.names: dict[str, _Typed] = {}
        self.positions: dict[str, Any] = {}
        self.axes: dict[str, Any] = {}
        self.sizes = size_names(kernel)
        self.params = list(dict.fromkeys((*kernel.inputs, *kernel.outputs)))
        self.params = list({p.name: p for p in self.params}.values())
        self.strides = [
            (p.name, d) for p in self.params for d, n in enumerate(p.strides or ()) if n is None
        ]
        self.lanes = WARP if self._reads_rows() else 1
        self.is_shared = self.lanes > 1

    # ---- the function ----------------------------------------------------------------------------

    def print(self) -> ThreadProgram:
        module = ir.Module(name=self.kernel.name)
        kinds = [_POINTER] * len(self.params)
        kinds += [_I64] * (len(self.strides) + len(self.sizes))
        symbol = f"kernel_{self.kernel.name}"
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), symbol)
        self.builder = b = ir.IRBuilder(function.append_basic_block("entry"))
        self.machine = _Machine(b, self.kernel.name)
        arguments = iter(function.args)
        self.pointers = {p.name: next(arguments) for p in self.params}
        self.stride_values = {s: next(arguments) for s in self.strides}
        self.size_values = {s: next(arguments) for s in self.sizes}
        self._place_point()
        for statement in self.kernel.body:
            self._statement(statement)
        b.ret_void()
        text = str(module).replace("define void @", "define ptx_kernel void @", 1)
        return ThreadProgram(
            symbol,
            text,
            tuple(p.name for p in self.params),
            tuple(self.strides),
            self.sizes,
            self.lanes,
            product(self.grid.values()),
        )

    def _register(self, name: str) -> Any:
        value = self.machine.call(f"llvm.nvvm.read.ptx.sreg.{name}", _I32)
        return self.builder.zext(value, _I64)

    def _place_point(self) -> None:
        """Compute this thread's point and lane, and leave if there is no such point."""
        b = self.builder
        thread = b.add(b.mul(self._register("ctaid.x"), number(THREADS)), self._register("tid.x"))
        self.lane = b.urem(thread, number(self.lanes))
        point = b.udiv(thread, number(self.lanes))
        end = b.append_basic_block("end")
        go_on = b.append_basic_block("point")
        total = self.index(product(self.grid.values()))
        b.cbranch(b.icmp_signed("<", point, total), go_on, end)
        b.position_at_end(end)
        b.ret_void()
        b.position_at_end(go_on)
        for axis, extent in reversed(self.grid.items()):
            size = self.index(extent)
            self.axes[axis] = b.urem(point, size)
            point = b.udiv(point, size)

    # ---- statements ------------------------------------------------------------------------------

    def _statement(self, s: Any) -> None:
        match s:
            case Let(name=name, value=value):
                self.lets[name] = value
                if not self._free(value):
                    self.names[name] = self.value(value)
            case Position(name=name, value=value, extent=extent):
                if self._free(value):
                    refuse(self.kernel.name, "a computed position along a looped axis")
                b, x = self.builder, self.cast(self.value(value), i64).value
                last = b.sub(self.index(extent), number(1))
                x = b.select(b.icmp_signed(">", x, number(0)), x, number(0))
                self.positions[name] = b.select(b.icmp_signed("<", x, last), x, last)
            case Store(join=""):
                self._store(s)
            case _:
                refuse(self.kernel.name, f"a statement of kind {type(s).__name__}")

    def _store(self, s: Store) -> None:
        param = self.kernel.param(s.param)
        values = [s.value] if s.where is None else [s.value, s.where]
        free = self._free(*values) | {a for e in s.index for a in axes_of(e)} - set(self.grid)
        over = [a.name for a in self.kernel.axes if a.name in free]

        def store() -> None:
            b, conditions = self.builder, list[Any]()
            if s.where is not None:
                conditions.append(self.cast(self.value(s.where), bool_).value)
            if self.lanes > 1 and not over:
                conditions.append(b.icmp_signed("==", self.lane, number(0)))
            value = None if s.where is not None else self.cast(self.value(s.value), param.dtype)
            with self._under(conditions):
                if value is None:
                    value = self.cast(self.value(s.value), param.dtype)
                raw = self.machine.store_convert(value.value, param.dtype)
                b.store(raw, self._address(param, s.index))

        self._loops(over, store)

    @contextmanager
    def _under(self, conditions: Sequence[Any]) -> Generator[None]:
        """Emit a body where all conditions hold; its loops are not shared by lanes."""
        if not conditions:
            yield
            return
        with self._private(), self.builder.if_then(reduce(self.builder.and_, conditions)):
            yield

    @contextmanager
    def _private(self) -> Generator[None]:
        """Emit values seen only inside, in loops that each lane runs alone."""
        names, shared = dict(self.names), self.is_shared
        self.is_shared = False
        yield
        self.names, self.is_shared = names, shared

    # ---- loops -----------------------------------------------------------------------------------

    def _loops(self, over: Sequence[str], body: Callable[[], None]) -> None:
        """Run a body at every index of axes; lanes share the last one."""

        def step(_: Sequence[Any]) -> Sequence[Any]:
            body()
            return ()

        self._fold(over, (), step)

    def _fold(
        self,
        over: Sequence[str],
        first: Sequence[Any],
        step: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> Sequence[Any]:
        """Carry values through loops over axes and return what they are behind."""
        if not over:
            return step(first)
        b, (axis, *rest) = self.builder, over
        is_split = self.is_shared and not rest
        begin = self.lane if is_split else number(0)
        stride = self.lanes if is_split else 1
        extent = self.index(self.kernel.axis(axis).extent)
        before = b.block
        head, inside, behind = (b.append_basic_block(x) for x in ("loop", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        counter = b.phi(_I64)
        counter.add_incoming(begin, before)
        carried = [b.phi(x.type) for x in first]
        for phi, x in zip(carried, first, strict=True):
            phi.add_incoming(x, before)
        b.cbranch(b.icmp_signed("<", counter, extent), inside, behind)
        b.position_at_end(inside)
        names, shared = dict(self.names), self.is_shared
        self.axes[axis] = counter
        self.is_shared = shared and bool(rest)
        new = self._fold(rest, carried, step)
        self.names, self.is_shared = names, shared
        del self.axes[axis]
        counter.add_incoming(b.add(counter, number(stride)), b.block)
        for phi, x in zip(carried, new, strict=True):
            phi.add_incoming(x, b.block)
        b.branch(head)
        b.position_at_end(behind)
        return carried

    def _reduce(self, v: Reduce) -> _Typed:
        row = COMBINES[v.combine]
        if row.positional:
            refuse(self.kernel.name, "the position of an extreme")
        result = v.dtype.compute
        kind = f64 if row.wide and result.is_float else result
        operator = scalar(row.scalar)
        is_shared = self.is_shared

        def combine(a: Any, b: Any) -> Any:
            return operator.apply(self.machine, [kind, kind], [a, b])

        def step(carried: Sequence[Any]) -> Sequence[Any]:
            x = self.cast(self.cast(self.value(v.arg), result), kind)
            return [combine(carried[0], x.value)]

        over = [a.name for a in self.kernel.axes if a.name in v.over]
        start = self.machine.const(kind, row.identity(kind))
        (total,) = self._fold(over, [start], step)
        if is_shared and over:
            distance = self.lanes // 2
            while distance:
                total = combine(total, self._exchange(total, kind, distance))
                distance //= 2
        return self.cast(_Typed(total, kind), result)

    def _exchange(self, x: Any, dtype: DType, distance: int) -> Any:
        """Return the value of the lane whose number differs in one bit."""
        b, bits = self.builder, 8 * max(dtype.itemsize, 4)
        if dtype == bool_:
            word: Any = b.zext(x, _I32)
        elif dtype.is_float:
            word = b.bitcast(x, ir.IntType(bits))
        else:
            word = x if dtype.itemsize >= 4 else b.zext(x, _I32)
        parts = [word]
        if bits == 64:
            parts = [b.trunc(word, _I32), b.trunc(b.lshr(word, number(32)), _I32)]
        arguments = [ir.Constant(_I32, distance), ir.Constant(_I32, WARP - 1)]
        mask = ir.Constant(_I32, _EVERYONE)
        name = "llvm.nvvm.shfl.sync.bfly.i32"
        got = [self.machine.call(name, _I32, mask, part, *arguments) for part in parts]
        if bits == 64:
            high = b.shl(b.zext(got[1], _I64), number(32))
            word = b.or_(high, b.zext(got[0], _I64))
        else:
            word = got[0]
        if dtype == bool_:
            return b.icmp_unsigned("!=", word, ir.Constant(_I32, 0))
        kind = self.machine.register_type(dtype)
        if dtype.is_float:
            return b.bitcast(word, kind)
        return word if dtype.itemsize >= 4 else b.trunc(word, kind)

    # ---- values ----------------------------------------------------------------------------------

    def value(self, v: Value) -> _Typed:
        """Return a value at the current indices."""
        match v:
            case Const(value=x, dtype=dtype):
                return _Typed(self.machine.const(dtype.compute, x), dtype.compute)
            case IndexValue(index=index, dtype=dtype):
                return self.cast(_Typed(self.index(index), i64), dtype)
            case Load():
                return self._load(v)
            case Apply(op=op, args=args):
                operands = [self.value(a) for a in args]
                dtypes = [x.dtype for x in operands]
                row = scalar(op)
                result = row.apply(self.machine, dtypes, [x.value for x in operands])
                return _Typed(result, row.result(*dtypes).compute)
            case Cast(arg=arg, dtype=dtype):
                return self.cast(self.value(arg), dtype)
            case Reduce():
                return self._reduce(v)
            case Ref(name=name) if name in self.positions:
                return _Typed(self.positions[name], i64)
            case Ref(name=name):
                if name not in self.names:
                    self.names[name] = self.value(self.lets[name])
                return self.names[name]
            case If():  # a branch, so that loads of the other side are not done
                condition = self.cast(self.value(v.condition), bool_).value
                return self._either(
                    condition, lambda: self.value(v.value), lambda: self.value(v.other)
                )
            case _:
                return refuse(self.kernel.name, f"a value of kind {type(v).__name__}")

    def cast(self, x: _Typed, dtype: DType) -> _Typed:
        """Convert a value; half types round and stay in float32 registers."""
        return _Typed(cast(self.machine, x.value, x.dtype, dtype), dtype.compute)

    def _either(
        self, condition: Any, yes: Callable[[], _Typed], no: Callable[[], _Typed]
    ) -> _Typed:
        b, sides = self.builder, list[tuple[_Typed, Any]]()
        with b.if_else(condition) as branches:
            for branch, side in zip(branches, (yes, no), strict=True):
                with self._private(), branch:
                    result = side()
                    sides.append((result, b.block))
        phi = b.phi(sides[0][0].value.type)
        for result, block in sides:
            phi.add_incoming(result.value, block)
        return _Typed(phi, sides[0][0].dtype)

    # ---- memory ----------------------------------------------------------------------------------

    def _load(self, v: Load) -> _Typed:
        param = self.kernel.param(v.param)
        dtype = param.dtype.compute

        def load() -> _Typed:
            kind = self.machine.raw_type(param.dtype)
            raw = self.builder.load(self._address(param, v.index), typ=kind)
            return _Typed(self.machine.load_convert(raw, param.dtype), dtype)

        inside = [] if v.other is None else self._bounds(param, v.index)
        if not inside or v.other is None:
            return load()
        fill = _Typed(self.machine.const(dtype, v.other.value), dtype)
        return self._either(reduce(self.builder.and_, inside), load, lambda: fill)

    def _bounds(self, param: Param, index: Sequence[Index]) -> list[Any]:
        """Return the conditions that an index is inside which are not proven."""
        b, conditions = self.builder, list[Any]()
        for e, extent in zip(index, param.shape, strict=True):
            if not nonnegative(e, self.kernel.facts):
                conditions.append(b.icmp_signed(">=", self.index(e), number(0)))
            if not nonnegative(sub(sub(extent, 1), e), self.kernel.facts):
                conditions.append(b.icmp_signed("<", self.index(e), self.index(extent)))
        return conditions

    def _address(self, param: Param, index: Sequence[Index]) -> Any:
        b = self.builder
        offset: Any = number(0)
        for d, e in enumerate(index):
            fixed = product(param.shape[d + 1 :]) if param.strides is None else param.strides[d]
            stride = self.stride_values[param.name, d] if fixed is None else self.index(fixed)
            offset = b.add(offset, b.mul(self.index(e), stride))
        kind = self.machine.raw_type(param.dtype)
        return b.gep(self.pointers[param.name], [offset], source_etype=kind)

    def index(self, e: Index) -> Any:
        """Return an index expression in 64 bits."""
        return IndexEmitter(self.builder, self._leaf).emit(e)

    def _leaf(self, atom: Atom) -> Any:
        if atom.kind == "size":
            return self.size_values[atom.name]
        return (self.positions if atom.kind == "value" else self.axes)[atom.name]

    # ---- axes ------------------------------------------------------------------------------------

    def _free(self, *values: Value) -> Axes:
        """Return the axes outside of the grid that values have."""
        return NO_AXES.union(*(axes_of_value(v, self.names_axes) for v in values)) - {*self.grid}

    def _reads_rows(self) -> bool:
        """Return whether a load is contiguous along an axis outside of the grid."""
        return any(
            load.index and set(axes_of(load.index[-1])) - set(self.grid)
            for load in loads(self.kernel)
        )
