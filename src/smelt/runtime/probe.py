"""Measure this machine into a `Target`, in several tries, and store the figures.

The planner compares predicted nanoseconds, so its constants must be this machine's: bandwidth at
each memory level for one thread and for all, multiply-add peak, the cost of division, exponential
and gather, of fresh memory, of a native call and of LLVM. What else a shared machine does makes a
run slower, so each figure is the best of tries that are apart from each other, and processor time
is compared with wall time to tell quiet tries (`smelt.runtime.figures` decides what to trust).

Samples are stored as JSON next to the object cache, under the machine's identity
(`smelt.runtime.host`), after each part of the measurement: a process that ends meanwhile leaves
what it measured to the next one. Until all figures are settled the defaults of `Target.host()` are
used, and reports say that speeds are assumed.

Each loop that is timed is LLVM IR, unrolled by hand at the host's vector width. It skips the
optimiser, which would replace a fill by a library call and delete a loop whose result nobody reads,
and repeats inside native code, so that the cost of the call from Python is negligible.

    target = host.host_target()             # stored figures if there are any
    probe.start_background(done=planner.use)  # measure while the user works, once a process

>>> kernels = Kernels(Target.host())
>>> block = map_block(1 << 16)
>>> kernels.run("write", block.address, block.address, 1 << 16, 3)
>>> kernels.instructions > 200
True
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from smelt.kernel.abi import PARALLEL
from smelt.machine.target import DEFAULT_OP_NS, LEVELS, Level, Target
from smelt.packages.llvm import llvm
from smelt.python.dataclass import dataclass
from smelt.runtime import figures
from smelt.runtime.figures import Sample, Samples
from smelt.runtime.host import available_memory, store_samples, stored_samples, usable_host
from smelt.runtime.threads import pool

PROBE_UNROLL = 8
"""Vectors per iteration of a traffic loop."""
CHAINS = 12
"""Independent chains of arithmetic: more than latency (4 cycles) times ports (2)."""

_EXP = tuple(map(float.fromhex, ("0x1.715476p0", "0x1.62e400p-1", "0x1.7f7d1cp-20")))
_EXP_POLY = tuple(
    map(
        float.fromhex,
        ("0x1.6a4f28p-10", "0x1.123980p-7", "0x1.5558aep-5", "0x1.555492p-3", "0x1.fffffcp-2"),
    )
)
_MAGIC = float(3 << 22)
"""1.5 * 2**23: adding it rounds a small float32 to an integer.

The integer is in the low mantissa bits of the sum.
"""

ARITHMETIC = ("add", "mul", "fma", "div", "sqrt", "exp", "gather")
TRAFFIC = ("read", "write", "copy", "write_nt", "copy_nt")
_OTHERS = ("touch", "sequence", "nothing")
TABLE_BYTES = 1 << 14
"""Bytes of the table that the gather loop reads."""


@dataclass(frozen=True)
class MappedBlock:
    """Fresh anonymous memory, page-aligned, freed with the object."""

    memory: mmap.mmap
    address: int
    size: int


def map_block(size: int, huge: bool = True) -> MappedBlock:
    """Map `size` untouched bytes; `huge` requests huge pages."""
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    flags = {"flags": private} if private else {}
    memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), **flags)
    advice = getattr(mmap, "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # the system may not support huge pages
            memory.madvise(advice)
    view = ctypes.c_char.from_buffer(memory)
    return MappedBlock(memory, ctypes.addressof(view), size)


Step = tuple[str, int, int, int]
"""Loop and its memory: name, address written, address read, bytes."""


class Kernels:
    """Compiled loops for `target`, callable from any thread without the GIL."""

    def __init__(self, target: Target) -> None:
        self.target = target
        wall, started = wall_ns(), thread_ns()
        text = module_text(target)
        module = llvm.parse_assembly(text)
        module.verify()
        self._engine = llvm.create_mcjit_compiler(module, target_machine(target))
        self._engine.finalize_object()
        self.compile_ns = thread_ns() - started
        self.compile_share = _share(self.compile_ns, wall_ns() - wall)
        self.instructions = sum(line.startswith("  ") for line in text.splitlines())
        self._functions = {name: self._bind(name) for name in (*TRAFFIC, *ARITHMETIC, *_OTHERS)}

    def _bind(self, name: str) -> Callable[[int, int, int, int], int]:
        int64 = ctypes.c_int64
        prototype = ctypes.CFUNCTYPE(int64, int64, int64, int64, int64)
        return prototype(self.address(name))

    def table(self, steps: Sequence[Step]) -> ctypes.Array[ctypes.c_int64]:
        """Return rows for the `sequence` loop, which runs several loops inside native code."""
        words: list[int] = []
        for name, to, source, size in steps:
            words += [self.address(name), to, source, size]
        return (ctypes.c_int64 * len(words))(*words)

    def address(self, name: str) -> int:
        """Return the address of a loop's machine code."""
        return self._engine.get_function_address(f"smelt_probe_{name}")

    def run(self, name: str, target: int, source: int, size: int, repeat: int) -> None:
        """Run a loop `repeat` times over `size` bytes; arithmetic loops ignore the memory."""
        self._functions[name](target, source, size, repeat)

    def elapsed_ns(self, name: str, target: int, source: int, size: int, repeat: int) -> int:
        """Run a loop and return this thread's CPU time, unaffected by other processes."""
        return self.timed(name, target, source, size, repeat).ns

    def timed(self, name: str, target: int, source: int, size: int, repeat: int) -> Run:
        """Run a loop and return its CPU time and its share of a processor."""
        function = self._functions[name]
        wall, started = wall_ns(), thread_ns()
        function(target, source, size, repeat)
        busy = thread_ns() - started
        return Run(busy, _share(busy, wall_ns() - wall))


_HAS_FINE_CLOCK = time.get_clock_info("thread_time").resolution < 1e-6


def thread_ns() -> int:
    """Return this thread's CPU time in ns, or wall time if that is coarse."""
    return time.thread_time_ns() if _HAS_FINE_CLOCK else time.perf_counter_ns()


class Run(NamedTuple):
    """Time of a run, and its threads' least share of a processor."""

    ns: int
    share: float


def _share(busy: int, wall: int) -> float:
    """Return CPU time over wall time; 1 if no other thread wanted the processor."""
    return min(busy / wall, 1.0) if wall > 0 else 1.0


def wall_ns() -> int:
    """Return the wall clock in ns."""
    return time.perf_counter_ns()


def run_parallel(kernels: Kernels, jobs: Sequence[Step], repeat: int) -> int:
    """Run each job `repeat` times in its own thread; return the total ns."""
    return timed_parallel(kernels, jobs, repeat).ns


def timed_parallel(kernels: Kernels, jobs: Sequence[Step], repeat: int) -> Run:
    """Like `run_parallel`, with the share of a processor that every thread got.

    Time counts from the first start to the last end.
    """
    if len(jobs) == 1:
        return kernels.timed(*jobs[0], repeat)
    gate = threading.Barrier(len(jobs))
    spans: list[tuple[int, int, float]] = []

    def work(job: Step) -> None:
        gate.wait()
        started, busy = wall_ns(), thread_ns()
        kernels.run(*job, repeat)
        busy, ended = thread_ns() - busy, wall_ns()
        spans.append((started, ended, _share(busy, ended - started)))

    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs[1:]]
    for thread in threads:
        thread.start()
    work(jobs[0])
    for thread in threads:
        thread.join()
    total = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
    return Run(total, min(share for _, _, share in spans))


def target_machine(target: Target) -> llvm.TargetMachine:
    """Return LLVM's code generator for `target`, configured for the loops."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm_target = llvm.Target.from_triple(target.triple)
    return llvm_target.create_target_machine(
        cpu=target.cpu, features=target.feature_string, opt=2, reloc="pic", codemodel="jitdefault"
    )


def module_text(target: Target) -> str:
    """Return the LLVM module with every loop, for the vector width of `target`."""
    lanes = target.lanes(4)
    parts = [f'target triple = "{target.triple}"']
    parts += [_traffic(name, target) for name in TRAFFIC]
    parts += [_arithmetic_loop(name, lanes, target) for name in ARITHMETIC]
    parts += [_touch(), _sequence(), _header("nothing") + "  ret i64 0\n}"]
    vector, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    suffix, gathered = f"v{lanes}f32", f"<{lanes} x ptr>, i32, <{lanes} x i1>, {vector}"
    parts += [
        f"declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})",
        f"declare {vector} @llvm.sqrt.{suffix}({vector})",
        f"declare {vector} @llvm.masked.gather.{suffix}.v{lanes}p0({gathered})",
        f"declare i32 @llvm.vector.reduce.xor.v{lanes}i32({ints})",
        "!0 = !{i32 1}",
    ]
    if target.triple.startswith("x86_64"):
        parts.append("declare void @llvm.x86.sse.sfence()")
    return "\n".join(parts) + "\n"


def _header(name: str) -> str:
    return (
        f"define i64 @smelt_probe_{name}(i64 %to, i64 %from, i64 %size, i64 %repeat) nounwind {{\n"
    )


def _traffic(name: str, target: Target) -> str:
    """Return a loop over all bytes, `PROBE_UNROLL` vectors at a time, repeated `repeat` times."""
    kind, _, suffix = name.partition("_")
    lanes, width = target.lanes(4), target.vector_bytes
    vector = f"<{lanes} x i32>"
    hint = ", !nontemporal !0" if suffix == "nt" else ""
    body: list[str] = []
    sums = ["zeroinitializer"] * PROBE_UNROLL
    for i in range(PROBE_UNROLL):
        body.append(f"  %o{i} = add i64 %at, {i * width}")
        if kind in ("read", "copy"):
            body.append(f"  %a{i} = add i64 %from, %o{i}")
            body.append(f"  %p{i} = inttoptr i64 %a{i} to ptr")
            body.append(f"  %v{i} = load {vector}, ptr %p{i}, align {width}")
        if kind in ("write", "copy"):
            value = f"%v{i}" if kind == "copy" else "%fill"
            body.append(f"  %b{i} = add i64 %to, %o{i}")
            body.append(f"  %q{i} = inttoptr i64 %b{i} to ptr")
            body.append(f"  store {vector} {value}, ptr %q{i}, align {width}{hint}")
        if kind == "read":
            body.append(f"  %t{i} = xor {vector} %s{i}, %v{i}")
            sums[i] = f"%t{i}"
    carried = [
        f"  %s{i} = phi {vector} [ %e{i}, %outer ], [ {sums[i]}, %inner ]"
        for i in range(PROBE_UNROLL)
    ]
    outer = [
        f"  %e{i} = phi {vector} [ zeroinitializer, %entry ], [ {sums[i]}, %next ]"
        for i in range(PROBE_UNROLL)
    ]
    fence = suffix == "nt" and target.triple.startswith("x86_64")
    return "\n".join(
        [
            _header(name) + "entry:",
            f"  %seed = insertelement {vector} zeroinitializer, i32 1, i32 0",
            f"  %fill = add {vector} %seed, zeroinitializer",
            "  br label %outer",
            "outer:",
            "  %left = phi i64 [ %repeat, %entry ], [ %less, %next ]",
            *outer,
            "  br label %inner",
            "inner:",
            "  %at = phi i64 [ 0, %outer ], [ %on, %inner ]",
            *carried,
            *body,
            f"  %on = add i64 %at, {PROBE_UNROLL * width}",
            "  %more = icmp slt i64 %on, %size",
            "  br i1 %more, label %inner, label %next",
            "next:",
            "  %less = sub i64 %left, 1",
            "  %again = icmp sgt i64 %less, 0",
            "  br i1 %again, label %outer, label %done",
            "done:",
            *(["  call void @llvm.x86.sse.sfence()"] if fence else []),
            *_combine(vector, lanes, sums),
            "}",
        ]
    )


def _combine(vector: str, lanes: int, sums: Sequence[str]) -> list[str]:
    """Combine accumulators into the result, so that no load is dead."""
    lines = [f"  %f0 = xor {vector} {sums[0]}, zeroinitializer"]
    lines += [f"  %f{i} = xor {vector} %f{i - 1}, {sums[i]}" for i in range(1, len(sums))]
    call = f"call i32 @llvm.vector.reduce.xor.v{lanes}i32({vector} %f{len(sums) - 1})"
    return [*lines, f"  %x = {call}", "  %r = zext i32 %x to i64", "  ret i64 %r"]


def _touch() -> str:
    """Return a loop that writes one byte per 4 KiB page, to time page faults."""
    return "\n".join(
        [
            _header("touch") + "entry:",
            "  br label %loop",
            "loop:",
            "  %at = phi i64 [ 0, %entry ], [ %on, %loop ]",
            "  %a = add i64 %to, %at",
            "  %p = inttoptr i64 %a to ptr",
            "  store i8 1, ptr %p",
            "  %on = add i64 %at, 4096",
            "  %more = icmp slt i64 %on, %size",
            "  br i1 %more, label %loop, label %done",
            "done:",
            "  ret i64 0",
            "}",
        ]
    )


def _sequence() -> str:
    """Return a loop that runs a table of loops, `%repeat` times.

    The table has `%size` rows {function, to, from, size}.
    """
    row = [f"  %w{i} = getelementptr i64, ptr %row, i64 {i}" for i in range(4)]
    row += [f"  %l{i} = load i64, ptr %w{i}" for i in range(4)]
    return "\n".join(
        [
            _header("sequence") + "entry:",
            "  %table = inttoptr i64 %from to ptr",
            "  br label %outer",
            "outer:",
            "  %left = phi i64 [ %repeat, %entry ], [ %less, %next ]",
            "  br label %inner",
            "inner:",
            "  %i = phi i64 [ 0, %outer ], [ %j, %inner ]",
            "  %first = mul i64 %i, 4",
            "  %row = getelementptr i64, ptr %table, i64 %first",
            *row,
            "  %f = inttoptr i64 %l0 to ptr",
            "  %ignored = call i64 %f(i64 %l1, i64 %l2, i64 %l3, i64 1)",
            "  %j = add i64 %i, 1",
            "  %more = icmp slt i64 %j, %size",
            "  br i1 %more, label %inner, label %next",
            "next:",
            "  %less = sub i64 %left, 1",
            "  %again = icmp sgt i64 %less, 0",
            "  br i1 %again, label %outer, label %done",
            "done:",
            "  ret i64 0",
            "}",
        ]
    )


def _arithmetic_loop(name: str, lanes: int, target: Target) -> str:
    """Return a loop of `repeat` steps of one operation on `CHAINS` independent vectors."""
    vector, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    body: list[str] = []
    for i in range(CHAINS):
        body += _operation(name, i, lanes, target)
    lines = [_header(name) + "entry:", "  br label %loop", "loop:"]
    lines.append("  %left = phi i64 [ %repeat, %entry ], [ %less, %loop ]")
    start = "zeroinitializer" if name == "gather" else _splat(0.75, lanes)
    lines += [
        *(f"  %x{i} = phi {vector} [ {start}, %entry ], [ %y{i}, %loop ]" for i in range(CHAINS)),
        *body,
        "  %less = sub i64 %left, 1",
        "  %again = icmp sgt i64 %less, 0",
        "  br i1 %again, label %loop, label %done",
        "done:",
        *(f"  %z{i} = bitcast {vector} %y{i} to {ints}" for i in range(CHAINS)),
        *_combine(ints, lanes, [f"%z{i}" for i in range(CHAINS)]),
        "}",
    ]
    return "\n".join(lines)


def _splat(value: float, lanes: int) -> str:
    word = ctypes.c_uint64.from_buffer(ctypes.c_double(ctypes.c_float(value).value)).value
    return "<" + ", ".join([f"float 0x{word:016X}"] * lanes) + ">"


def _fused(out: str, a: str, b: str, c: str, lanes: int, target: Target) -> list[str]:
    """Emit `out = a * b + c`, as one FMA if possible."""
    vector = f"<{lanes} x float>"
    if target.has_fma:
        call = f"call {vector} @llvm.fma.v{lanes}f32({vector} {a}, {vector} {b}, {vector} {c})"
        return [f"  {out} = {call}"]
    return [f"  {out}p = fmul {vector} {a}, {b}", f"  {out} = fadd {vector} {out}p, {c}"]


def _operation(name: str, i: int, lanes: int, target: Target) -> list[str]:
    """Emit instructions that compute `%y{i}` from `%x{i}` and stay in the normal range."""
    vector, x, y = f"<{lanes} x float>", f"%x{i}", f"%y{i}"
    near_one, shift = _splat(0.9999999, lanes), _splat(0.125, lanes)
    if name == "fma":
        return _fused(y, x, near_one, shift, lanes, target)
    if name in ("add", "mul"):
        return [f"  {y} = f{name} {vector} {x}, {shift if name == 'add' else near_one}"]
    if name == "div":
        return [f"  {y} = fdiv {vector} {near_one}, {x}"]
    if name == "sqrt":
        return [f"  {y} = call {vector} @llvm.sqrt.v{lanes}f32({vector} {x})"]
    if name == "gather":
        return _gather(i, lanes)
    return _exponential(i, lanes, target)


def _gather(i: int, lanes: int) -> list[str]:
    """Emit a read of `lanes` table entries; the (zero) values read decide the next addresses."""
    vector, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    stride = "<" + ", ".join(f"i32 {(17 * k + 5 * i) % 4096}" for k in range(lanes)) + ">"
    ones = "<" + ", ".join(["i1 true"] * lanes) + ">"
    call = f"call {vector} @llvm.masked.gather.v{lanes}f32.v{lanes}p0"
    return [
        f"  %gi{i} = bitcast {vector} %x{i} to {ints}",
        f"  %gj{i} = or {ints} %gi{i}, {stride}",
        f"  %gb{i} = inttoptr i64 %from to ptr",
        f"  %gp{i} = getelementptr float, ptr %gb{i}, {ints} %gj{i}",
        f"  %y{i} = {call}(<{lanes} x ptr> %gp{i}, i32 4, <{lanes} x i1> {ones}, {vector} undef)",
    ]


def _exponential(i: int, lanes: int, target: Target) -> list[str]:
    """Emit the polynomial exponential, then a step back into [-1, 1].

    See `docs/derivations.md`, precision.
    """
    vector, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    magic = _splat(_MAGIC, lanes)
    lines = _fused(f"%n{i}", f"%x{i}", _splat(_EXP[0], lanes), magic, lanes, target)
    lines.append(f"  %k{i} = fsub {vector} %n{i}, {magic}")
    high, low = _splat(-_EXP[1], lanes), _splat(-_EXP[2], lanes)
    lines += _fused(f"%h{i}", f"%k{i}", high, f"%x{i}", lanes, target)
    lines += _fused(f"%r{i}", f"%k{i}", low, f"%h{i}", lanes, target)
    value = _splat(_EXP_POLY[0], lanes)
    for step, coefficient in enumerate((*_EXP_POLY[1:], 1.0, 1.0)):
        result = f"%c{i}_{step}"
        lines += _fused(result, value, f"%r{i}", _splat(coefficient, lanes), lanes, target)
        value = result
    places = "<" + ", ".join(["i32 23"] * lanes) + ">"
    lines += [
        f"  %ni{i} = bitcast {vector} %n{i} to {ints}",
        f"  %sh{i} = shl {ints} %ni{i}, {places}",
        f"  %vi{i} = bitcast {vector} {value} to {ints}",
        f"  %ei{i} = add {ints} %vi{i}, %sh{i}",
        f"  %e{i} = bitcast {ints} %ei{i} to {vector}",
    ]
    back = (_splat(-0.25, lanes), _splat(0.125, lanes))
    return lines + _fused(f"%y{i}", f"%e{i}", *back, lanes, target)


# ---- measurements --------------------------------------------------------------------------------


_SKEW = 33 * 64
"""Offset between two streams modulo 4 KiB, so that loads do not alias earlier stores."""

_KINDS = ("read", "write", "copy")
_RUNS = 3
"""Timed runs per figure and try, of which the best counts."""
TRIES_AT_ONCE = 2
"""Tries of a figure in one process: the parts are measured one after another, then once more."""

Progress = Callable[[str], None]


# Measuring ------------------------------------------------------------------------------------


def measure(
    target: Target | None = None, seconds: float = 2.0, say: Progress | None = None
) -> Target:
    """Return `target` (default: the host) with every figure measured, in about `seconds`.

    `say` is called with the name of each part before it begins. Raises OutOfMemory or
    RuntimeError if memory or LLVM fail.
    """
    target = target or usable_host()
    measured = figures.target_of(target, measure_samples(target, seconds, say))
    assert measured is not None
    return measured


def measure_samples(
    target: Target | None = None, seconds: float = 2.0, say: Progress | None = None
) -> Samples:
    """Like `measure`, but return the tries of every figure, with their quietness."""
    bench = Bench(target or usable_host(), seconds)
    samples: Samples = {}
    for number in range(TRIES_AT_ONCE):
        for part in PARTS:
            if say is not None and number == 0:
                say(part.title)
            samples = figures.add_samples(samples, part.run(bench))
    return samples


class Bench:
    """What the parts of a measurement share: loops and memory, made when first needed."""

    def __init__(self, target: Target, seconds: float = 2.0) -> None:
        self.target = target
        self.run_ns = seconds * 1e9 / (180 * TRIES_AT_ONCE)
        """Nanoseconds of one run."""

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(self.target)

    def block(self, level: Level) -> MappedBlock:
        """Return memory for streams at a level, already touched."""
        return self._far_block if level == "dram" else self._near_block

    @cached_property
    def _near_block(self) -> MappedBlock:
        levels: tuple[Level, ...] = ("l1", "l2", "l3")
        counts = (1, self.target.cores)
        sizes = (n * (_level_bytes(self.target, x, n) + _SKEW) for x in levels for n in counts)
        return self._touched(max(sizes) + 2 * _SKEW)

    @cached_property
    def _far_block(self) -> MappedBlock:
        return self._touched(_dram_bytes(self.target) * 2 + (4 + self.target.cores) * _SKEW)

    def _touched(self, size: int) -> MappedBlock:
        block = map_block(size)
        self.kernels.run("write", block.address, block.address, block.size // 4096 * 4096, 1)
        return block


class Part(NamedTuple):
    """Figures that are measured together."""

    title: str
    names: tuple[str, ...]
    run: Callable[[Bench], dict[str, Sample]]


def _sample(value: float, share: float) -> Sample:
    return Sample(value, share, time.time())


def _dram_bytes(target: Target) -> int:
    """Return a stream size that no cache holds, within free memory."""
    free = available_memory()
    limit = min(384 << 20, (free if free is not None else 8 << 30) // 8)
    return min(max(2 * target.l3_bytes, 48 << 20), limit) & ~0xFFF


def _level_bytes(target: Target, level: Level, threads: int) -> int:
    """Return a working set per thread that fits `level` but not the level above it."""
    size = {
        "l1": target.l1_bytes // 2,
        "l2": target.l2_bytes // 2,
        "l3": min(target.l3_bytes // 2, max(6 * target.l2_bytes, target.l3_bytes // 4)) // threads,
        "dram": 2 * _dram_bytes(target) // threads,
    }[level]
    return max(1 << 13, size & ~0xFFF)


def _stream(kind: str, address: int, size: int) -> Step:
    """Return a traffic loop over `size` bytes at `address`; a copy uses two halves."""
    if not kind.startswith("copy"):
        return (kind, address, address, size)
    half = size // 2 & ~0xFFF
    return (kind, address + half + _SKEW, address, half)


def _rate(bench: Bench, kind: str, level: Level, threads: int) -> Sample:
    """Return the best GB/s of `threads` threads on a memory level."""
    size, block = _level_bytes(bench.target, level, threads), bench.block(level)
    starts = [(block.address + i * (size + _SKEW)) & ~63 for i in range(threads)]
    jobs = [_stream(kind, start, size) for start in starts]
    moved = sum(job[3] * (2 if kind.startswith("copy") else 1) for job in jobs)
    kernels = bench.kernels
    trial = max(1, run_parallel(kernels, jobs, 1))
    repeat = max(1, int(bench.run_ns / trial))
    if repeat > 8:  # the trial includes thread start: repeat it with a longer run
        trial = max(1, run_parallel(kernels, jobs, repeat))
        repeat = max(1, int(repeat * bench.run_ns / trial))
    best = min(timed_parallel(kernels, jobs, repeat) for _ in range(_RUNS))
    return _sample(moved * repeat / max(1, best.ns), best.share)


def _bandwidth(bench: Bench, side: str, level: Level) -> dict[str, Sample]:
    """Measure the rates of a memory level, with one thread or with all."""
    threads = 1 if side == "one_thread" else bench.target.cores
    return {f"{side}.{level}.{kind}": _rate(bench, kind, level, threads) for kind in _KINDS}


def _nontemporal(bench: Bench) -> dict[str, Sample]:
    """Measure non-temporal stores in main memory with all threads."""
    names = zip(figures.NONTEMPORAL, ("write_nt", "copy_nt"), strict=True)
    return {name: _rate(bench, kind, "dram", bench.target.cores) for name, kind in names}


def _arithmetic(bench: Bench) -> dict[str, Sample]:
    """Measure the nanoseconds of one vector operation on one core, by operation."""
    kernels, table = bench.kernels, map_block(TABLE_BYTES)
    samples: dict[str, Sample] = {}
    for name in DEFAULT_OP_NS:
        at = table.address
        trial = max(1, kernels.elapsed_ns(name, at, at, 0, 1000))
        repeat = max(1000, int(1000 * bench.run_ns / 2 / trial))
        best = min(kernels.timed(name, at, at, 0, repeat) for _ in range(_RUNS))
        ns = best.ns / repeat / CHAINS
        samples[f"op_ns.{name}"] = _sample(ns, best.share)
    return samples


def _faults(bench: Bench) -> dict[str, Sample]:
    """Measure the first touch of fresh memory, in small pages and in huge ones."""
    names = zip(figures.FAULTS, (False, True), strict=True)
    return {name: _fault_ns_per_byte(bench.kernels, huge) for name, huge in names}


def _fault_ns_per_byte(kernels: Kernels, huge: bool) -> Sample:
    size = 16 << 20
    runs: list[Run] = []
    for _ in range(_RUNS):
        block = map_block(size, huge)
        runs.append(kernels.timed("touch", block.address, block.address, size, 1))
    best = min(runs)
    return _sample(best.ns / size, best.share)


def _compilation(bench: Bench) -> dict[str, Sample]:
    """Measure LLVM on the loops of the measurement itself."""
    kernels = Kernels(bench.target)
    ns = kernels.compile_ns / kernels.instructions
    return {"compile_ns_per_instr": _sample(ns, kernels.compile_share)}


def _calls(bench: Bench) -> dict[str, Sample]:
    """Measure a plan call with an empty kernel, and what forking adds."""
    workers = pool()
    count = max(2, workers.threads)
    address = bench.kernels.address("nothing")
    chunks = np.array([(address, 0, i, i + 1) for i in range(count)], np.int64)
    frame = np.zeros(1, np.int64)
    runs: list[Run] = []
    for flags in (0, PARALLEL):
        launches = np.array([(0, count, flags, 0)], np.int64)
        places = (chunks.ctypes.data, launches.ctypes.data, 1, frame.ctypes.data)
        runs.append(_best_calls(lambda at=places: workers.run_addresses(*at), _CALLS))
    alone, forked = (max(1.0, run.ns / _CALLS) for run in runs)
    share = runs[0].share  # a launch waits for its helpers
    return {
        "dispatch_ns": _sample(alone, share),
        "launch_ns": _sample(max(50.0, forked - alone), share),
    }


_CALLS = 1000
"""Calls of one run."""


def _best_calls(call: Callable[[], object], count: int) -> Run:
    runs: list[Run] = []
    for _ in range(5):
        started, busy = wall_ns(), thread_ns()
        for _ in range(count):
            call()
        ns, busy = wall_ns() - started, thread_ns() - busy
        runs.append(Run(ns, min(busy / max(ns, 1), 1.0)))
    return min(runs)


def _bandwidth_part(side: str, level: Level) -> Part:
    names = tuple(f"{side}.{level}.{kind}" for kind in _KINDS)
    threads = "one thread" if side == "one_thread" else "all threads"
    return Part(
        f"bandwidth of {level.upper()}, {threads}",
        names,
        lambda bench: _bandwidth(bench, side, level),
    )


PARTS: tuple[Part, ...] = (
    Part("arithmetic", figures.OPERATIONS, _arithmetic),
    *(_bandwidth_part(s, level) for s in ("one_thread", "all_threads") for level in LEVELS),
    Part("non-temporal stores", figures.NONTEMPORAL, _nontemporal),
    Part("calls", figures.CALLS, _calls),
    Part("page faults", figures.FAULTS, _faults),
    Part("compilation", figures.COMPILATION, _compilation),
)
"""The parts of a measurement, each some tens of milliseconds, the cheapest to prepare first."""


# Background measurement --------------------------------------------------------------------------


_background: list[threading.Thread] = []
_background_lock = threading.Lock()


def start_background(
    directory: Path | None = None,
    done: Callable[[Target], object] | None = None,
    *,
    again: bool = False,
) -> threading.Thread | None:
    """Measure and store in a daemon thread, once per process; None if already started.

    `done` is called in that thread with the measured target once all figures are settled. A failing
    measurement is ignored: the figures in force stay in use. `again` starts another measurement
    if the first one has ended.
    """

    def work() -> None:
        try:
            measured = measure_due(directory)
        except (OSError, RuntimeError, MemoryError, ValueError):
            return
        if measured is not None and done is not None:
            done(measured)

    with _background_lock:
        if _background and not (again and not _background[-1].is_alive()):
            return None
        run = copy_context().run  # the settings in force name the directory
        thread = threading.Thread(target=run, args=(work,), name="smelt-probe", daemon=True)
        _background.append(thread)
    thread.start()
    return thread


def wait_for_background() -> None:
    """Wait until no measurement runs: two at once would disturb each other."""
    with _background_lock:
        threads = tuple(_background)
    for thread in threads:
        thread.join()


def measure_due(directory: Path | None = None, seconds: float = 2.0) -> Target | None:
    """Try the figures that are due, and store each part.

    Return the target once all are settled.

    Samples that other processes stored meanwhile count.
    """
    bench = Bench(usable_host(), seconds)
    taken: Samples = {}
    for number in range(TRIES_AT_ONCE):
        for part in PARTS:
            samples = figures.merge(stored_samples(directory), taken)
            now = time.time()
            tried = len(taken.get(part.names[0], ()))
            if tried > number or not any(
                figures.is_due(name, samples.get(name, ()), now) for name in part.names
            ):
                continue
            taken = figures.add_samples(taken, part.run(bench))
            store_samples(figures.merge(stored_samples(directory), taken), directory)
    samples = figures.merge(stored_samples(directory), taken)
    if not figures.all_settled(samples):
        return None
    store_samples(samples, directory)
    return figures.target_of(bench.target, samples)
