"""Calling convention between compiled CPU kernels and the runtime.

Code generation emits functions of this shape and the runtime calls them. A kernel is `void
kernel(int64_t *args, int64_t begin, int64_t end, uint8_t *scratch)`:

* `args` points at the kernel's arguments, one 64-bit word each: addresses, sizes and strides in
  the order of the kernel's parameter list. Whether a stride counts bytes or elements depends on
  the kernel.
* `[begin, end)` is a range of tasks of the linearised grid; the ranges of one launch are disjoint
  and may run in any order, on any thread, concurrently.
* `scratch` is memory private to this thread, aligned to `SCRATCH_ALIGNMENT` bytes and at least as
  long as the plan declared; its content is undefined on entry.

A kernel neither blocks nor keeps a pointer after it returns. One whose tasks may take long polls:
it refers to the symbol `POLL_SYMBOL`, at whose address the function `int32_t poll(void *address)`
is stored, or null; and it returns with its work undone if that function returns 1.

The calls of one plan are two tables of 64-bit words, built once for given sizes and reused:

* a *chunk* row is `(function address, byte offset of its args from the frame base, begin, end)`;
* a *launch* row is `(index of the first chunk, number of chunks, flags, 0)`.

Launches run one after another; the chunks of a launch run in any order. The *frame* is the block
of words that the argument offsets point into.
"""

from __future__ import annotations

from typing import Final

PARALLEL: Final = 1
"""Launch flag: the chunks may run on several threads at once."""

SCRATCH_ALIGNMENT: Final = 64
"""Alignment in bytes of the scratch pointer."""

POLL_SYMBOL: Final = "smelt_poll"
"""Name of the memory in which a kernel finds the function that it polls."""

ABI_VERSION: Final = 1
"""Version of the calling convention, part of every object's cache key."""
