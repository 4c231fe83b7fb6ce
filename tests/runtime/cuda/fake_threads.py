"""Run the LLVM IR of threads on the CPU: one call per thread, one thread of Python per lane.

The IR is the one that becomes PTX; only the registers of a thread's place and the exchange between
lanes are functions here. A warp's lanes meet at every exchange, as they do on a GPU, and one that
does not come is a failure and not a hang.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from tests.runtime.cuda.fake_driver import FakeDriver, FakeError, engine, image

from smelt.codegen.nvptx.source import ThreadCompiler
from smelt.codegen.nvptx.thread import WARP, ThreadProgram
from smelt.runtime.jit import compile_ir, link

PATIENCE = 20.0
"""Seconds that a lane waits for the others."""


def fake_threads() -> ThreadCompiler:
    """The compiler of threads, whose images are IR for this machine."""
    return ThreadCompiler(_emit)


def _emit(program: ThreadProgram, arch: str) -> bytes:
    numbers = len(program.strides) + len(program.sizes)
    kinds = ["ptr"] * len(program.pointers) + ["i64"] * numbers
    data = {
        "engine": "threads",
        "text": program.text,
        "lanes": program.lanes,
        "symbol": program.symbol,
        "arguments": kinds,
    }
    return image(**{program.symbol: data})


class _Lane(threading.local):
    """Place of the thread that runs."""

    block = thread = 0


LANE = _Lane()
BARRIER = threading.Barrier(WARP, timeout=PATIENCE)
VALUES = [0] * WARP


@ctypes.CFUNCTYPE(ctypes.c_int32)
def thread_number() -> int:
    return LANE.thread


@ctypes.CFUNCTYPE(ctypes.c_int32)
def block_number() -> int:
    return LANE.block


@ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int32] * 4)
def exchange(mask: int, value: int, distance: int, clamp: int) -> int:
    lane = LANE.thread % WARP
    VALUES[lane] = value
    BARRIER.wait()
    result = VALUES[lane ^ distance]
    BARRIER.wait()
    return result


FUNCTIONS = {
    "llvm.nvvm.read.ptx.sreg.tid.x": thread_number,
    "llvm.nvvm.read.ptx.sreg.ctaid.x": block_number,
    "llvm.nvvm.shfl.sync.bfly.i32": exchange,
}


@cache
def _function(text: str, symbol: str, kinds: tuple[str, ...]) -> tuple[Any, Any]:
    text = text.replace("ptx_kernel ", "")
    for name, callback in FUNCTIONS.items():
        address = ctypes.cast(callback, ctypes.c_void_p).value
        for spelling in (f'@"{name}"', f"@{name}"):
            text = "\n".join(
                line
                if line.startswith("declare")
                else line.replace(f"{spelling}(", f"inttoptr (i64 {address} to ptr)(")
                for line in text.splitlines()
            )
    text = "\n".join(x for x in text.splitlines() if not (x.startswith("declare") and "nvvm" in x))
    library = link(compile_ir(text), [symbol])
    types = [ctypes.c_void_p if k == "ptr" else ctypes.c_int64 for k in kinds]
    return library, ctypes.CFUNCTYPE(None, *types)(library[symbol])


@engine
def threads(fake: FakeDriver, data: dict[str, Any], launch: dict[str, Any]) -> None:
    """Run every thread of a launch; a warp together if its lanes share work."""
    for kind, address in zip(data["arguments"], launch["arguments"], strict=True):
        if kind == "ptr" and address:
            fake.block_at(address)
    _, function = _function(data["text"], data["symbol"], tuple(data["arguments"]))
    failures: list[BaseException] = []

    def run(block: int, thread: int) -> None:
        LANE.block, LANE.thread = block, thread
        try:
            function(*launch["arguments"])
        except BaseException as error:  # noqa: BLE001 - raised by the launch
            failures.append(error)

    for block in range(launch["grid"][0]):
        for first in range(0, launch["threads"], WARP):
            lanes = range(first, first + WARP)
            if data["lanes"] == 1:
                for thread in lanes:
                    run(block, thread)
                continue
            BARRIER.reset()
            workers = [threading.Thread(target=run, args=(block, k)) for k in lanes]
            for w in workers:
                w.start()
            for w in workers:
                w.join()
            if BARRIER.broken:
                raise FakeError("not all lanes of a warp came to an exchange")
    if failures:
        raise failures[0]
