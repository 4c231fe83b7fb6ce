"""Tables of arrays: one launch computes the elementwise kernels of many arrays.

    first program of each array | first one behind it | elements | addresses of the first array, ...

The table is memory that belongs to the call's stream. Kernels fill it from their parameters before
the launch that reads it: the driver copies parameters when a launch is queued or recorded, so that
no memory of the host has to outlive it, and a graph that is replayed has the addresses it was
recorded with. Words of parameters are words of a call's frame, like any other argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from smelt.types.expr import Index, evaluate, sizes_of

if TYPE_CHECKING:
    from smelt.runtime.cuda.driver import Device

__all__ = [
    "DIVISOR",
    "FILL_PTX",
    "FILL_THREADS",
    "FILL_WORDS",
    "ArrayTable",
    "families",
    "fill_function",
    "launches_of",
    "padded",
]

FILL_WORDS: Final = 510
"""Words that one launch writes: with an address they are 4 KiB, the most that parameters take."""
LEAST_ARRAYS: Final = 4
"""Arrays from which a table is worth its launches."""
MOST_ARRAYS: Final = 1024
"""Arrays in one table: each program reads the end of every one."""
MOST_TABLE_ELEMENTS: Final = 1 << 22
"""Elements of an array in a table: the launch of a larger one takes little of its time."""
DIVISOR: Final = 16
"""Large arrays whose elements are a multiple share tables: programs read them in vectors."""
LEAST_VECTORS: Final = 1 << 16
"""Elements of such an array; smaller ones share tables with arrays of any number of elements."""
_NO_PROGRAM: Final = (1 << 31) - 1

FILL_PTX: Final = b"""\
// writes its parameters to memory
.version 6.0
.target sm_50
.address_size 64

.visible .entry smelt_fill(.param .u64 target, .param .align 8 .b8 words[4080])
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  .reg .b64 %rd<8>;
  mov.u32 %r1, %tid.x;
  setp.ge.u32 %p1, %r1, 510;
  @%p1 bra end;
  mul.wide.u32 %rd1, %r1, 8;
  mov.b64 %rd2, words;
  add.s64 %rd3, %rd2, %rd1;
  ld.param.u64 %rd4, [%rd3];
  ld.param.u64 %rd5, [target];
  cvta.to.global.u64 %rd6, %rd5;
  add.s64 %rd7, %rd6, %rd1;
  st.global.u64 [%rd7], %rd4;
end:
  ret;
}
"""
FILL_THREADS: Final = 512


def fill_function(device: Device) -> int:
    """Return the kernel that writes `FILL_WORDS` words to an address; both are its parameters.

    Raises DriverCallError if the driver does not compile it.
    """
    if device.fill is None:
        device.fill = device.load(FILL_PTX)
    return device.fill.function("smelt_fill")


class ArrayTable(NamedTuple):
    """Contents of a table: numbers, and addresses of arrays by column.

    `arrays` has the values of each array's kernel, in the order of its parameters.
    """

    numbers: tuple[int, ...]
    arrays: tuple[tuple[int, ...], ...]
    programs: int
    members: int
    """Arrays that there is room for: a power of two."""

    @staticmethod
    def make(elements: Sequence[int], arrays: Sequence[tuple[int, ...]], grid: Index) -> ArrayTable:
        """Return the table of these arrays; one of them has `grid` programs."""
        members = padded(len(elements))
        (name,) = sizes_of(grid)
        counts = [int(evaluate(grid, {name: n})) for n in elements]
        ends = [*accumulate(counts)]
        total, behind = ends[-1], members - len(elements)
        firsts = [end - n for end, n in zip(ends, counts, strict=True)]
        columns = ((firsts, total), (ends, _NO_PROGRAM), (elements, 0))
        numbers = (n for values, last in columns for n in (*values, *[last] * behind))
        return ArrayTable(tuple(numbers), tuple(arrays), total, members)

    @property
    def nbytes(self) -> int:
        """Its bytes, with what the last launch that fills it writes behind it."""
        return 8 * FILL_WORDS * (launches_of(len(self.arrays), len(self.arrays[0])) - 1)

    def words(self) -> list[tuple[int, int]]:
        """Return the table's words: a number, and the value whose address it is (-1: none)."""
        behind = [(0, -1)] * (self.members - len(self.arrays))
        columns = zip(*self.arrays, strict=True)
        addresses = [w for column in columns for w in (*((0, n) for n in column), *behind)]
        return [*((n, -1) for n in self.numbers), *addresses]


def padded(count: int) -> int:
    """Return the next power of two.

    >>> padded(4), padded(5)
    (4, 8)
    """
    return 1 << (count - 1).bit_length()


def launches_of(count: int, params: int) -> int:
    """Return the launches that a table of arrays takes, with those that fill it.

    >>> launches_of(100, 3), launches_of(1000, 7)
    (3, 22)
    """
    return 1 + math.ceil((3 + params) * padded(count) / FILL_WORDS)


Step = TypeVar("Step")


def families(
    steps: Sequence[tuple[Step, str, int, int]],
) -> list[list[Step]]:
    """Group independent steps into launches over many arrays, or of one.

    Each step has the name of its map ("": it is none), its elements and the number of its arrays.
    """
    groups: dict[tuple[str, bool, int] | int, list[Step]] = {}
    params: dict[tuple[str, bool, int] | int, int] = {}
    seen: dict[tuple[str, bool], int] = {}
    for k, (step, flat, elements, count) in enumerate(steps):
        key: tuple[str, bool, int] | int = k
        if flat and elements <= MOST_TABLE_ELEMENTS:
            kind = flat, elements >= LEAST_VECTORS and elements % DIVISOR == 0
            key = (*kind, seen.get(kind, 0) // MOST_ARRAYS)
            seen[kind] = seen.get(kind, 0) + 1
        groups.setdefault(key, []).append(step)
        params[key] = count
    result: list[list[Step]] = []
    for key, group in groups.items():
        saves = len(group) >= LEAST_ARRAYS and launches_of(len(group), params[key]) < len(group)
        result += [group] if saves else [[step] for step in group]
    return result
