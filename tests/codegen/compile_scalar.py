"""Compile one scalar row as `void f(ptr in..., ptr out, i64 n)` and run it on arrays.

The main loop works on vectors of any width, the rest one element at a time, so both faces of the
LLVM machine are tested together.

>>> from smelt.ops.scalar import SCALARS
>>> from smelt.types.dtype import f32
>>> function = compile_row(SCALARS["add"], (f32, f32), lanes=16)
>>> function(np.ones(3, "f4"), np.ones(3, "f4"))
array([2., 2., 2.], dtype=float32)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.machine import LLVMMachine, emit
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.machine.processor import INSTRUCTION_SETS, InstructionSet, Isa
from smelt.ops.scalar import cast
from smelt.ops.spec import ScalarOp
from smelt.types.dtype import DType

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

I64 = ir.IntType(64)
POINTER = ir.PointerType()
Body = Callable[[LLVMMachine, Sequence[Any]], Any]
_serial = count()

_CPUS = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "portable": "x86-64", "neon": "generic"}
_ARM = "aarch64-unknown-linux-gnu"


@dataclass(frozen=True)
class FakeTarget:
    """An instruction set level; enough of a target for the LLVM machine."""

    isa: Isa
    has_fast_division: bool = False
    registers: int = 16

    @property
    def facts(self) -> InstructionSet:
        return INSTRUCTION_SETS[self.isa]

    @property
    def has_fma(self) -> bool:
        return self.isa != "portable"

    @property
    def has_half_conversions(self) -> bool:
        return self.has_fma

    def has(self, feature: str) -> bool:
        return self.isa != "portable" and feature in ("f16c", "fma", "avx2")


def host_levels() -> tuple[str, ...]:
    """The levels this processor can run, best first."""
    host = llvm.get_host_cpu_features()
    levels = ["portable"]
    if host.get("avx2") and host.get("fma") and host.get("f16c"):
        levels.insert(0, "avx2")
        if all(host.get(f"avx512{x}") for x in ("f", "bw", "dq", "vl")):
            levels.insert(0, "avx512")
    return tuple(levels)


LEVELS = host_levels()


@cache
def _machine(isa: str) -> llvm.TargetMachine:
    return target_machine(isa, fresh=True)


def target_machine(isa: str, *, fresh: bool = False) -> llvm.TargetMachine:
    """The target machine of a level; an execution engine takes its own away, so `fresh`."""
    if not fresh:
        return _machine(isa)
    target = llvm.Target.from_triple(_ARM) if isa == "neon" else llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=_CPUS[isa], opt=3, codemodel="jitdefault")


class Compiled:
    """A row in machine code; keeps the engine alive."""

    def __init__(self, ins: Sequence[DType], out: DType, engine: Any, name: str, text: Any):
        self.ins, self.out, self._engine = tuple(ins), out, engine
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(ins) + 1), ctypes.c_int64)
        self.native = signature(engine.get_function_address(name))
        self._text = text

    def assembly(self) -> str:
        """What LLVM made of it."""
        return self._text()

    def __call__(self, *arrays: Any) -> Any:
        """Broadcasts to one shape, runs, and gives a fresh array."""
        whole = np.broadcast_arrays(*arrays)
        inputs = [
            np.ascontiguousarray(a, dtype=d.numpy) for a, d in zip(whole, self.ins, strict=True)
        ]
        out = np.empty(inputs[0].shape, self.out.numpy)
        self.native(*[a.ctypes.data for a in inputs], out.ctypes.data, out.size)
        return out


def compile_body(
    body: Body, ins: Sequence[DType], out: DType, lanes: int | None = 16, isa: str = LEVELS[0]
) -> Compiled:
    """Compile `body(machine, registers) -> register` into a loop."""
    parsed, name = _optimised(body, ins, out, lanes, isa)
    engine = llvm.create_mcjit_compiler(parsed, target_machine(isa, fresh=True))
    engine.finalize_object()
    return Compiled(ins, out, engine, name, lambda: target_machine(isa).emit_assembly(parsed))


def row_assembly(op: ScalarOp, dtypes: Sequence[DType], lanes: int, isa: str) -> str:
    """What a row becomes on any instruction set, the foreign "neon" included."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    out = op.result(*dtypes)
    parsed, _ = _optimised(lambda m, args: emit(op, m, dtypes, args), dtypes, out, lanes, isa)
    return target_machine(isa).emit_assembly(parsed)


def _optimised(
    body: Body, ins: Sequence[DType], out: DType, lanes: int | None, isa: str
) -> tuple[llvm.ModuleRef, str]:
    """The module of one function, verified and through LLVM's passes, and the function's name."""
    name = f"f{next(_serial)}"
    module = ir.Module(name)
    kind = ir.FunctionType(ir.VoidType(), [POINTER] * (len(ins) + 1) + [I64])
    function = ir.Function(module, kind, name)
    for argument in function.args[: len(ins) + 1]:
        argument.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    n = function.args[-1]
    done: Any = ir.Constant(I64, 0)
    if lanes is not None:
        done = builder.mul(builder.udiv(n, I64(lanes)), I64(lanes))
        _loop(builder, function, body, (tuple(ins), out), I64(0), done, (lanes, isa))
    _loop(builder, function, body, (tuple(ins), out), done, n, (None, isa))
    builder.ret_void()
    machine = target_machine(isa)
    module.triple = machine.triple
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return parsed, name


def _loop(
    builder: ir.IRBuilder,
    function: ir.Function,
    body: Body,
    types: tuple[tuple[DType, ...], DType],
    start: Any,
    stop: Any,
    shape: tuple[int | None, str],
) -> None:
    """for i in start, start + lanes ... stop: out[i] = body(in[i] ...)"""
    (ins, out), (lanes, isa) = types, shape
    before = builder.block
    head, inside, after = (function.append_basic_block(x) for x in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    i = builder.phi(I64)
    i.add_incoming(start, before)
    builder.cbranch(builder.icmp_unsigned("<", i, stop), inside, after)
    builder.position_at_end(inside)
    machine = LLVMMachine(builder, lanes, FakeTarget(isa))
    registers = []
    for dtype, pointer in zip(ins, function.args, strict=False):
        place = builder.gep(pointer, [i], source_etype=memory_type(dtype))
        raw = builder.load(place, typ=machine.raw_type(dtype), align=dtype.itemsize)
        registers.append(machine.load_convert(raw, dtype))
    result = machine.store_convert(body(machine, registers), out)
    place = builder.gep(function.args[len(ins)], [i], source_etype=memory_type(out))
    builder.store(result, place, align=out.itemsize)
    i.add_incoming(builder.add(i, I64(lanes or 1)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)


def compile_row(
    op: ScalarOp, dtypes: Sequence[DType], lanes: int | None = 16, isa: str = LEVELS[0]
) -> Compiled:
    """One row for the given operand types."""
    out = op.result(*dtypes)
    return compile_body(lambda m, args: emit(op, m, dtypes, args), dtypes, out, lanes, isa)


def compile_cast(
    source: DType, target: DType, lanes: int | None = 16, isa: str = LEVELS[0]
) -> Compiled:
    """The conversion from `source` to `target`."""
    return compile_body(
        lambda m, args: cast(m, args[0], source, target), (source,), target, lanes, isa
    )
