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

>>> import numpy as np
>>> chunks = np.array([(0x1000, 0, 0, 8), (0x1000, 0, 8, 16)], np.int64)
>>> launches = np.array([(0, 2, PARALLEL, 0)], np.int64)
>>> check_tables(chunks, launches)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

CHUNK_WORDS: Final = 4
"""Words of a chunk row: function address, args offset in bytes, begin, end."""

LAUNCH_WORDS: Final = 4
"""Words of a launch row: first chunk, number of chunks, flags, reserved (zero)."""

PARALLEL: Final = 1
"""Launch flag: the chunks may run on several threads at once."""

SCRATCH_ALIGNMENT: Final = 64
"""Alignment in bytes of the scratch pointer."""

POLL_SYMBOL: Final = "smelt_poll"
"""Name of the memory in which a kernel finds the function that it polls."""

ABI_VERSION: Final = 1
"""Version of the calling convention, part of every object's cache key."""


def check_tables(chunks: npt.NDArray[np.int64], launches: npt.NDArray[np.int64]) -> None:
    """Raise ValueError unless both tables have the documented shapes, types and ranges.

    The native loop trusts its tables, so check tables built by hand here. The check takes
    microseconds: run it when a table is built, not on every call.
    """
    for name, table, words in (("chunk", chunks, CHUNK_WORDS), ("launch", launches, LAUNCH_WORDS)):
        if table.dtype != np.int64 or table.ndim != 2 or table.shape[1] != words:
            raise ValueError(
                f"a {name} table is int64 of shape (n, {words}), not {table.dtype}{table.shape}"
            )
        if not table.flags.c_contiguous:
            raise ValueError(f"a {name} table is contiguous")
    if len(chunks) and not chunks[:, 0].all():
        raise ValueError("a chunk calls address 0")
    first, count, flags = launches[:, 0], launches[:, 1], launches[:, 2]
    if (first < 0).any() or (count < 0).any() or (first + count > len(chunks)).any():
        raise ValueError(f"a launch reaches outside the {len(chunks)} chunks")
    if ((flags & ~PARALLEL) != 0).any() or launches[:, 3].any():
        raise ValueError("unknown launch flags")
