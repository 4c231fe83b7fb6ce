"""A libcuda in machine code that does nothing: what remains of a call is our own time.

    with use_library(NativeDriver()) as _: ...

Functions that return something store a constant; allocations are numbered addresses that nothing
may read. Launches, allocations and frees are counted (`NativeDriver.count`).
"""

from __future__ import annotations

import ctypes
import timeit

import numpy as np
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.compiler.device import use_compiler
from smelt.runtime.cuda.driver import SIGNATURES, use_library
from smelt.runtime.jit import compile_ir, link

IR_TYPES = {
    "p": "ptr",
    "i": "i32",
    "u": "i32",
    "q": "i64",
    "b": "i8",
    "h": "i16",
    "s": "ptr",
    "f": "float",
}
STORED = {
    "cuDriverGetVersion": ("i32", 12_080),
    "cuDeviceGetCount": ("i32", 1),
    "cuDeviceGet": ("i32", 0),
    "cuDevicePrimaryCtxRetain": ("i64", 0xC0),
    "cuModuleLoadDataEx": ("i64", 0x10),
    "cuModuleGetFunction": ("i64", 0x20),
    "cuStreamIsCapturing": ("i32", 0),
    "cuStreamCreate": ("i64", 0x30),
    "cuGraphInstantiateWithFlags": ("i64", 0x50),
    "cuEventCreate": ("i64", 0x60),
    "cuMemHostAlloc": ("i64", 0x70),
    "cuMemGetInfo_v2": ("i64", 1 << 40),
}
"""What functions store at their first argument (the stream's state: at their second)."""
COUNTED = ("cuLaunchKernel", "cuGraphLaunch", "cuMemAllocAsync", "cuMemFreeAsync")
COUNT = """
  %old = load i64, ptr @count_{0}
  %new = add i64 %old, 1
  store i64 %new, ptr @count_{0}
"""
BODIES = {
    "cuCtxGetCurrent": "  %c = load i64, ptr @context\n  store i64 %c, ptr %a0\n",
    "cuCtxPushCurrent_v2": "  %c = ptrtoint ptr %a0 to i64\n  store i64 %c, ptr @context\n",
    "cuCtxPopCurrent_v2": "  store i64 0, ptr @context\n",
    "cuStreamIsCapturing": "  store i32 0, ptr %a1\n",
    "cuStreamEndCapture": "  store i64 64, ptr %a1\n",
    "cuDeviceGetAttribute": """
  switch i32 %a1, label %other [ i32 16, label %processors
                                 i32 75, label %major
                                 i32 76, label %minor
                                 i32 115, label %pools ]
processors:
  store i32 132, ptr %a0
  ret i32 0
major:
  store i32 9, ptr %a0
  ret i32 0
minor:
  store i32 0, ptr %a0
  ret i32 0
pools:
  store i32 1, ptr %a0
  ret i32 0
other:
  store i32 0, ptr %a0
""",
    "cuMemAllocAsync": """
  %at = load i64, ptr @next
  %end = add i64 %at, %a1
  %up = add i64 %end, 511
  %aligned = and i64 %up, -512
  store i64 %aligned, ptr @next
  store i64 %at, ptr %a0
""",
}


def _function(name: str, kinds: str) -> str:
    parameters = ", ".join(f"{IR_TYPES[k]} %a{i}" for i, k in enumerate(kinds))
    body = COUNT.format(name) if name in COUNTED else ""
    if name in BODIES:
        body += BODIES[name]
    elif name in STORED:
        kind, value = STORED[name]
        body += f"  store {kind} {value}, ptr %a0\n"
    return f"define i32 @{name}({parameters}) {{\n{body}  ret i32 0\n}}\n"


IR = "\n".join(
    [
        "@context = internal global i64 0",
        "@next = internal global i64 4294967296",
        *[f"@count_{name} = global i64 0" for name in COUNTED],
        *[_function(name, kinds) for name, kinds in SIGNATURES.items()],
    ]
)


class NativeDriver:
    """Library whose functions cost nanoseconds."""

    def __init__(self) -> None:
        symbols = [*SIGNATURES, *[f"count_{name}" for name in COUNTED]]
        self._addresses = link(compile_ir(IR), symbols)

    def address(self, symbol: str) -> int | None:
        return self._addresses[symbol]

    def count(self, symbol: str) -> int:
        """How often a function of `COUNTED` was called."""
        return ctypes.c_int64.from_address(self._addresses[f"count_{symbol}"]).value


def main() -> None:
    """Print the host's time of repeated calls: `python -m tests.runtime.cuda.native_driver`."""
    x, *more = (sm.asarray(np.ones((64, 100), np.float32), device="cuda:0") for _ in range(8))
    double, total = sm.jit(lambda x: x * 2), sm.jit(lambda *xs: sum(xs[1:], xs[0]))
    scans = sm.jit(
        lambda x: sm.cumulative_sum(sm.cumulative_sum(sm.cumulative_sum(x, axis=0), axis=1), axis=0)
    )
    w = sm.asarray(np.ones((100, 100), np.float32), device="cuda:0")
    steps = sm.jit(lambda x, w: sm.scan(lambda h, _: (h @ w + x, None), x, None, 1000)[0])
    y = sm.asarray(np.ones((64, 100), np.float32), device="cuda:0")

    many = [sm.asarray(np.ones(50 + 7 * k, np.float32), device="cuda:0") for k in range(100)]
    updates = sm.jit(lambda *xs: [x * 2 for x in xs])
    norms = sm.jit(lambda *xs: [sm.sqrt(sm.sum(x * x)) for x in xs])
    norm = sm.jit(lambda *xs: sm.sqrt(sum(sm.sum(x * x) for x in xs)))

    def into(x):
        return double(x, out=y)

    def in_place(x):
        return double(x, out=x)

    for name, function, arguments in (
        ("1 array, 1 kernel", double, (x,)),
        ("the same with out=", into, (x,)),
        ("the same in place", in_place, (x,)),
        ("8 arrays, 1 kernel", total, (x, *more)),
        ("1 array, 3 kernels", scans, (x,)),
        ("100 arrays, 1 kernel each", updates, (*many,)),
        ("the same with out=", lambda *xs: updates(*xs, out=many), (*many,)),
        ("100 norms", norms, (*many,)),
        ("the norm of 100 arrays", norm, (*many,)),
        ("a loop of 1000 steps, 1 kernel each", steps, (x, w)),
    ):
        function(*arguments)
        number = 5 if function is steps else 1000
        times = timeit.repeat(lambda f=function, a=arguments: f(*a), number=number, repeat=9)
        print(f"{name}: {min(times) / number * 1e6:.1f} us")


if __name__ == "__main__":
    with use_library(NativeDriver()), use_compiler(FakeTriton()):
        main()
