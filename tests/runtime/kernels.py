"""Tiny kernels in LLVM IR, in the calling convention of `smelt.kernel.abi`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from smelt.kernel.abi import PARALLEL
from smelt.runtime.code import Loaded, load
from smelt.runtime.jit import compile_ir

Words = npt.NDArray[np.int64]

_LOOP = """
define void @{name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
entry:
  %out = load ptr, ptr %args
  %more.at = getelementptr i64, ptr %args, i64 1
  %more = load i64, ptr %more.at
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %latch ]
  %inside = icmp slt i64 %i, %end
  br i1 %inside, label %body, label %done
body:
  %at = getelementptr i64, ptr %out, i64 %i
{body}
  br label %latch
latch:
  %i.next = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""

_BODIES = {
    # out[i] += i + 1, atomically: a chunk that ran twice or never shows.
    "count": """
  %add = add i64 %i, 1
  %old = atomicrmw add ptr %at, i64 %add monotonic""",
    # out[i] = 31 out[i] + args[1]: shows the order of launches.
    "step": """
  %old = load i64, ptr %at
  %times = mul i64 %old, 31
  %new = add i64 %times, %more
  store i64 %new, ptr %at""",
    # args[1] turns of nothing for each task, then out[i] = 1.
    "busy": """
  br label %turn
turn:
  %k = phi i64 [ 0, %body ], [ %k.next, %turn ]
  call void asm sideeffect "", "~{memory}"()
  %k.next = add i64 %k, 1
  %again = icmp slt i64 %k.next, %more
  br i1 %again, label %turn, label %over
over:
  store i64 1, ptr %at""",
    # out[i] = address of this thread's scratch, after a while.
    "place": """
  br label %turn
turn:
  %k = phi i64 [ 0, %body ], [ %k.next, %turn ]
  call void asm sideeffect "", "~{memory}"()
  %k.next = add i64 %k, 1
  %again = icmp slt i64 %k.next, 20000
  br i1 %again, label %turn, label %over
over:
  %address = ptrtoint ptr %scratch to i64
  store i64 %address, ptr %at""",
    # Fill args[1] words of scratch with i, then count in out[i] those that differ from i.
    "scribble": """
  br label %fill
fill:
  %k = phi i64 [ 0, %body ], [ %k.next, %fill ]
  %k.at = getelementptr i64, ptr %scratch, i64 %k
  store volatile i64 %i, ptr %k.at
  %k.next = add i64 %k, 1
  %again = icmp slt i64 %k.next, %more
  br i1 %again, label %fill, label %check
check:
  %m = phi i64 [ 0, %fill ], [ %m.next, %check ]
  %bad = phi i64 [ 0, %fill ], [ %bad.next, %check ]
  %m.at = getelementptr i64, ptr %scratch, i64 %m
  %value = load volatile i64, ptr %m.at
  %wrong = icmp ne i64 %value, %i
  %wrong.64 = zext i1 %wrong to i64
  %bad.next = add i64 %bad, %wrong.64
  %m.next = add i64 %m, 1
  %more.check = icmp slt i64 %m.next, %more
  br i1 %more.check, label %check, label %over
over:
  store i64 %bad.next, ptr %at""",
}

_MXCSR = """
define void @mxcsr(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  %out = load ptr, ptr %args
  %at = getelementptr i64, ptr %out, i64 %begin
  %state = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %state)
  %value = load i32, ptr %state
  %wide = zext i32 %value to i64
  store i64 %wide, ptr %at
  ret void
}
declare void @llvm.x86.sse.stmxcsr(ptr)
"""

NAMES = tuple(_BODIES)


@cache
def kernels() -> Loaded:
    """All kernels of this module, compiled and loaded."""
    parts = [_LOOP.format(name=name, body=body) for name, body in _BODIES.items()]
    return load(compile_ir("\n".join(parts)), NAMES)


@cache
def mxcsr_kernel() -> Loaded:
    """Kernel `mxcsr` (x86 only): out[begin] = the floating-point control register."""
    return load(compile_ir(_MXCSR), ["mxcsr"])


@dataclass
class Program:
    """Tables of a plan over one output array, built launch by launch."""

    out: Words
    more: int = 0
    chunks: list[tuple[int, int, int, int]] = field(default_factory=list)
    launches: list[tuple[int, int, int, int]] = field(default_factory=list)
    frame: list[int] = field(default_factory=list)
    code: list[Loaded] = field(default_factory=list)
    """What addresses in `chunks` are of: threads that ask first at once load the kernels twice."""

    def launch(
        self, kernel: str, count: int, size: int = 1, parallel: bool = True, more: int = 0
    ) -> Program:
        """Add a launch of `count` chunks with `size` tasks each; `more` is the second argument."""
        loaded = mxcsr_kernel() if kernel == "mxcsr" else kernels()
        self.code.append(loaded)
        offset = 8 * len(self.frame)
        self.frame += [self.out.ctypes.data, more]
        first = len(self.chunks)
        address = loaded.address(kernel)
        self.chunks += [(address, offset, i * size, (i + 1) * size) for i in range(count)]
        self.launches.append((first, count, PARALLEL if parallel else 0, 0))
        return self

    def tables(self) -> tuple[Words, Words, Words]:
        """Arguments of `Pool.run`."""
        return (
            np.array(self.chunks, np.int64).reshape(-1, 4),
            np.array(self.launches, np.int64).reshape(-1, 4),
            np.array(self.frame or [0], np.int64),
        )


def program(size: int) -> Program:
    """A program over `size` zeros."""
    return Program(np.zeros(size, np.int64))
