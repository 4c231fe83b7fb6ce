"""The calling convention between compiled CPU kernels and the run time that calls them.

Code generation emits functions of this shape and the run time calls them; the two meet nowhere
else. A kernel is `void kernel(int64_t *args, int64_t begin, int64_t end, uint8_t *scratch)`:

* `args` points at the kernel's arguments, one 64-bit word each: addresses, sizes and strides in
  the order of the kernel's parameter list. Strides count bytes or elements as the kernel says.
* `[begin, end)` is a range of tasks of the linearised grid; ranges of one launch are disjoint
  and may run in any order, on any thread, at the same time.
* `scratch` is memory of this thread alone, aligned to `SCRATCH_ALIGNMENT` bytes and at least as
  long as the plan declared; its content is undefined at entry.

A kernel neither blocks, nor calls Python, nor keeps a pointer past its return. Calls of one plan
are two tables of 64-bit words, built once for given sizes and used again:

* a `Chunk` row is `(function address, byte offset of its args from the frame base, begin, end)`;
* a `Launch` row is `(index of the first chunk, number of chunks, flags, 0)`.

Launches run one after another, the chunks of a launch in any order. The *frame* is the block of
words that the argument offsets point into.

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

ABI_VERSION: Final = 1
"""Part of every object's cache key: code of one version never meets a run time of another."""


def check_tables(chunks: npt.NDArray[np.int64], launches: npt.NDArray[np.int64]) -> None:
    """Raise ValueError unless both tables have the shapes, types and ranges described above.

    The native loop trusts its tables, so whoever builds them by hand checks them here; the check
    costs microseconds and belongs to the making of a table, not to every call.
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
