"""Micro-benchmark loops in LLVM IR: memory traffic and arithmetic throughput.

Each loop is unrolled by hand at the host's vector width and skips the optimiser, which would
replace a fill by a library call and delete a loop whose result nobody reads. Every loop repeats
inside native code, so the cost of the call from Python is negligible.

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
from typing import NamedTuple

from smelt.machine.target import Target
from smelt.packages.llvm import llvm
from smelt.python.dataclass import dataclass

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
    parts += [_arithmetic(name, lanes, target) for name in ARITHMETIC]
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


def _arithmetic(name: str, lanes: int, target: Target) -> str:
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
