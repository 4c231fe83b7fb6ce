"""Native code of a repeated call: context, memory, arguments, launches, and memory freed.

In Python this takes tens of microseconds, more than a small kernel on a device. It is LLVM IR
without undefined symbols: it gets the driver's functions by address, in the words of a call's
description (`CALL_WORDS`). It does nothing that Python does not do as well: where a call is not
what was recorded, or the driver refuses memory, it undoes what it did and returns `DECLINED`, and
Python makes the call, with its errors.

>>> "define i64 @smelt_device_call" in IR
True
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from functools import cache
from string import Template
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from smelt.runtime.cuda.launch_loop import IR as LAUNCH_IR
from smelt.runtime.loader import load
from smelt.runtime.native_object import native_object

if TYPE_CHECKING:
    from smelt.runtime.cuda.driver import Device

__all__ = ["CALL_WORDS", "DECLINED", "IR", "NativeCalls", "device_words", "native_calls"]

DECLINED: Final = -1
"""Result of a call that Python has to make."""
FUNCTIONS: Final = (
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamIsCapturing",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuLaunchKernel",
    "cuGraphLaunch",
)
"""The driver's functions, whose addresses are the first words of a description."""
CALL_WORDS: Final = (
    *FUNCTIONS,
    "context",
    "rows",
    "launches",
    "frame",
    "frame_words",
    "most_arguments",
    "patches",  # rows of three words: slot of the frame, number of the address, offset in bytes
    "patch_count",
    "blocks",  # bytes of each block to allocate
    "block_count",
    "first_block",  # number of the first block's address; an arena is the last block
    "has_arena",
)
"""Words of a description, in order."""


def _load(name: str, kind: str = "i64") -> str:
    """Return IR that loads a word of the description under its name."""
    k = CALL_WORDS.index(name)
    place = f"  %at_{name} = getelementptr i64, ptr %call, i64 {k}\n"
    return f"{place}  %{name} = load {kind}, ptr %at_{name}\n"


_ENTER: Final = """
  %now = alloca i64
  store i64 0, ptr %now
  %got = call i32 %cuCtxGetCurrent(ptr %now)
  %current = load i64, ptr %now
  %is_current = icmp eq i64 %current, %context
  br i1 %is_current, label %entered, label %push
push:
  %to = inttoptr i64 %context to ptr
  %pushed = call i32 %cuCtxPushCurrent_v2(ptr %to)
  %push_failed = icmp ne i32 %pushed, 0
  br i1 %push_failed, label %declined, label %entered
"""
_LEAVE: Final = """
  br i1 %is_current, label %left, label %pop
pop:
  %popped = call i32 %cuCtxPopCurrent_v2(ptr %now)
  br label %left
"""

_CALL: Final = Template(
    """
define i64 @smelt_device_call(ptr %call, ptr %addresses, ptr %stream, ptr %frame_out) {
entry:
$LOADS
  %state = alloca i32
  %pointer_words = add i64 %frame_words, %most_arguments
  %on_stack = alloca i64, i64 %pointer_words
  %is_told = icmp ne ptr %frame_out, null
  %own_frame = select i1 %is_told, ptr %frame_out, ptr %on_stack
  %room = getelementptr i64, ptr %own_frame, i64 %frame_words
$ENTER
entered:
  store i32 1, ptr %state
  %asked = call i32 %cuStreamIsCapturing(ptr %stream, ptr %state)
  %capturing = load i32, ptr %state
  %either = or i32 %asked, %capturing
  %is_other = icmp ne i32 %either, 0
  %first_address = getelementptr i64, ptr %addresses, i64 %first_block
  br i1 %is_other, label %decline, label %allocate

allocate:
  %b = phi i64 [ 0, %entered ], [ %b1, %got_block ]
  %more_blocks = icmp slt i64 %b, %block_count
  br i1 %more_blocks, label %block, label %copy
block:
  %at_bytes = getelementptr i64, ptr %blocks, i64 %b
  %bytes = load i64, ptr %at_bytes
  %at_block = getelementptr i64, ptr %first_address, i64 %b
  %refused = call i32 %cuMemAllocAsync(ptr %at_block, i64 %bytes, ptr %stream)
  %is_refused = icmp ne i32 %refused, 0
  br i1 %is_refused, label %undo, label %got_block
got_block:
  %b1 = add i64 %b, 1
  br label %allocate

undo:
  %u = phi i64 [ %b, %block ], [ %u1, %undo_one ]
  %any_left = icmp sgt i64 %u, 0
  br i1 %any_left, label %undo_one, label %decline
undo_one:
  %u1 = sub i64 %u, 1
  %at_undo = getelementptr i64, ptr %first_address, i64 %u1
  %undone = load ptr, ptr %at_undo
  %freed_again = call i32 %cuMemFreeAsync(ptr %undone, ptr %stream)
  br label %undo

copy:
  %w = phi i64 [ 0, %allocate ], [ %w1, %copy_one ]
  %more_words = icmp slt i64 %w, %frame_words
  br i1 %more_words, label %copy_one, label %patch
copy_one:
  %at_from = getelementptr i64, ptr %frame, i64 %w
  %word = load volatile i64, ptr %at_from
  %at_to = getelementptr i64, ptr %own_frame, i64 %w
  store i64 %word, ptr %at_to
  %w1 = add i64 %w, 1
  br label %copy

patch:
  %p = phi i64 [ 0, %copy ], [ %p1, %patch_one ]
  %more_patches = icmp slt i64 %p, %patch_count
  br i1 %more_patches, label %patch_one, label %patched
patch_one:
  %row = getelementptr [3 x i64], ptr %patches, i64 %p
  %slot = load i64, ptr %row
  %at_source = getelementptr i64, ptr %row, i64 1
  %source = load i64, ptr %at_source
  %at_offset = getelementptr i64, ptr %row, i64 2
  %offset = load i64, ptr %at_offset
  %at_address = getelementptr i64, ptr %addresses, i64 %source
  %address = load i64, ptr %at_address
  %argument = add i64 %address, %offset
  %at_slot = getelementptr i64, ptr %own_frame, i64 %slot
  store i64 %argument, ptr %at_slot
  %p1 = add i64 %p, 1
  br label %patch

patched:
  br i1 %is_told, label %leave, label %launch
launch:
  %failed = call i64 @smelt_launch(ptr %rows, i64 %launches, ptr %own_frame, ptr %room,
                                   ptr %stream, ptr %cuLaunchKernel)
  %arena_left = icmp ne i64 %has_arena, 0
  br i1 %arena_left, label %free, label %leave
free:
  %last = sub i64 %block_count, 1
  %at_arena = getelementptr i64, ptr %first_address, i64 %last
  %arena = load ptr, ptr %at_arena
  %freed = call i32 %cuMemFreeAsync(ptr %arena, ptr %stream)
  br label %leave

decline:
  br label %leave
leave:
  %result = phi i64 [ -1, %decline ], [ 0, %patched ], [ %failed, %launch ], [ %failed, %free ]
$LEAVE
left:
  ret i64 %result
declined:
  ret i64 -1
}

define i32 @smelt_device_free(ptr %call, ptr %address, ptr %stream) {
entry:
$FREE_LOADS
$ENTER
entered:
  %freed = call i32 %cuMemFreeAsync(ptr %address, ptr %stream)
$LEAVE
left:
  ret i32 %freed
declined:
  ret i32 -1
}

define i32 @smelt_device_replay(ptr %call, ptr %graph, ptr %stream) {
entry:
$REPLAY_LOADS
$ENTER
entered:
  %failed = call i32 %cuGraphLaunch(ptr %graph, ptr %stream)
$LEAVE
left:
  ret i32 %failed
declined:
  ret i32 -1
}
"""
)


def _loads(*names: str) -> str:
    pointers = {*FUNCTIONS, "rows", "frame", "patches", "blocks"}
    return "".join(_load(n, "ptr" if n in pointers else "i64") for n in names)


_CONTEXT: Final = ("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "context")
IR: Final = LAUNCH_IR + _CALL.substitute(
    ENTER=_ENTER,
    LEAVE=_LEAVE,
    LOADS=_loads(*(n for n in CALL_WORDS if n != "cuGraphLaunch")),
    FREE_LOADS=_loads(*_CONTEXT, "cuMemFreeAsync"),
    REPLAY_LOADS=_loads(*_CONTEXT, "cuGraphLaunch"),
)
_SYMBOLS: Final = (
    "smelt_launch",
    "smelt_device_call",
    "smelt_device_free",
    "smelt_device_replay",
)


class NativeCalls(NamedTuple):
    """Entry points; calling one releases the GIL."""

    launch: Callable[[Any, int, Any, Any, int, int], int]
    """Table, count, frame, room for argument pointers, stream, address of cuLaunchKernel."""
    call: Callable[[int, int, int, int], int]
    """Description, addresses, stream, room for the frame; with room, nothing is launched."""
    free: Callable[[int, int, int], int]
    """Description (its functions and context), address, stream."""
    replay: Callable[[int, int, int], int]
    """Description (its functions and context), graph, stream."""


@cache
def native_calls() -> NativeCalls:
    """Return the code for this machine."""
    loaded = load(native_object("calls of a GPU", IR), list(_SYMBOLS))
    # The code is needed for as long as the process lives: blocks are freed by it at the very end.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    pointer, integer, status = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    launch, call, free, replay = (loaded.address(s) for s in _SYMBOLS)
    return NativeCalls(
        ctypes.CFUNCTYPE(integer, pointer, integer, *[pointer] * 4)(launch),
        ctypes.CFUNCTYPE(integer, *[pointer] * 4)(call),
        ctypes.CFUNCTYPE(status, *[pointer] * 3)(free),
        ctypes.CFUNCTYPE(status, *[pointer] * 3)(replay),
    )


def device_words(device: Device) -> array[int]:
    """Return the first words of a description: the driver's functions and the context.

    They are the device's own, and what `free` and `replay` need.
    """
    if device.words is None:
        addresses = [device.driver.address(name) for name in FUNCTIONS]
        device.words = array("q", [*addresses, device.context])
    return device.words
