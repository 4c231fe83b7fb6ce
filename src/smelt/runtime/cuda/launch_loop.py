"""Native loop that launches the kernels of a plan, without Python in between.

The loop is LLVM IR, which `native_call` compiles with what surrounds it.
It has no undefined symbols: it gets the address of `cuLaunchKernel` as an argument.

A table has a row of `ROW_WORDS` 64-bit words per launch: function, grid (three), threads, bytes of
shared memory, first argument, number of arguments. Arguments are words of the call's frame. The
driver reads them through an array of pointers, which the loop fills for one launch at a time; it
has copied the arguments when the launch returns. The result is 0, or the number of the launch
that failed (from 1) times 2**32 plus the driver's status.

>>> "define i64 @smelt_launch" in IR
True
"""

from __future__ import annotations

from typing import Final

__all__ = ["FIRST_ARGUMENT", "IR", "ROW_WORDS"]

ROW_WORDS: Final = 8
FIRST_ARGUMENT: Final = 6
"""The word of a row that says where in the frame its arguments begin."""

IR: Final = """
define i64 @smelt_launch(ptr %rows, i64 %count, ptr %frame, ptr %pointers, ptr %stream, ptr %call) {
entry:
  br label %launches

launches:
  %k = phi i64 [ 0, %entry ], [ %next, %launched ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %begin, label %done

begin:
  %row = getelementptr [8 x i64], ptr %rows, i64 %k
  %function = load ptr, ptr %row
  %p1 = getelementptr i64, ptr %row, i64 1
  %x64 = load i64, ptr %p1
  %x = trunc i64 %x64 to i32
  %p2 = getelementptr i64, ptr %row, i64 2
  %y64 = load i64, ptr %p2
  %y = trunc i64 %y64 to i32
  %p3 = getelementptr i64, ptr %row, i64 3
  %z64 = load i64, ptr %p3
  %z = trunc i64 %z64 to i32
  %p4 = getelementptr i64, ptr %row, i64 4
  %threads64 = load i64, ptr %p4
  %threads = trunc i64 %threads64 to i32
  %p5 = getelementptr i64, ptr %row, i64 5
  %shared64 = load i64, ptr %p5
  %shared = trunc i64 %shared64 to i32
  %p6 = getelementptr i64, ptr %row, i64 6
  %first = load i64, ptr %p6
  %p7 = getelementptr i64, ptr %row, i64 7
  %arguments = load i64, ptr %p7
  %words = getelementptr i64, ptr %frame, i64 %first
  br label %fill

fill:
  %i = phi i64 [ 0, %begin ], [ %i1, %filled ]
  %left = icmp slt i64 %i, %arguments
  br i1 %left, label %filled, label %launch

filled:
  %word = getelementptr i64, ptr %words, i64 %i
  %place = getelementptr ptr, ptr %pointers, i64 %i
  store ptr %word, ptr %place
  %i1 = add i64 %i, 1
  br label %fill

launch:
  %status = call i32 %call(ptr %function, i32 %x, i32 %y, i32 %z, i32 %threads, i32 1, i32 1,
                           i32 %shared, ptr %stream, ptr %pointers, ptr null)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %report, label %launched

launched:
  %next = add i64 %k, 1
  br label %launches

report:
  %number = add i64 %k, 1
  %high = shl i64 %number, 32
  %low = zext i32 %status to i64
  %both = or i64 %high, %low
  ret i64 %both

done:
  ret i64 0
}
"""
