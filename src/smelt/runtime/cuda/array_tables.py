"""Tables of arrays: one launch computes what many kernels do to the elements of their arrays.

    first program of each array | first one behind it | elements | addresses of the first array, ...

Reductions take two launches with a table each: results of chunks, and their merges. The tables of
kernels that start together follow one another in memory that belongs to the call's stream. Kernels
fill it from their parameters before the launches that read it: the driver copies parameters when a
launch is queued or recorded, so that no memory of the host has to outlive it, and a graph that is
replayed has the addresses it was recorded with. Words of parameters are words of a call's frame,
like any other argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from smelt.kernel.device_code import MAX_MAPPED_ELEMENTS, MAX_REDUCED_ELEMENTS
from smelt.types.expr import Index, evaluate, sizes_of

if TYPE_CHECKING:
    from smelt.runtime.cuda.driver import Device

FILL_WORDS: Final = 510
"""Words that one launch writes: with an address they are 4 KiB, the most that parameters take."""
MIN_ARRAYS: Final = 4
"""Minimum arrays for a table to be worth its launches."""
MAX_ARRAYS: Final = 1024
"""Arrays in one table: each program reads the end of every one."""
DIVISOR: Final = 16
"""Large arrays whose elements are a multiple share tables: programs read them in vectors."""
MIN_VECTORS: Final = 1 << 16
"""Elements of such an array; smaller ones share tables with arrays of any number of elements."""
VECTOR_BYTES: Final = 16
_NO_PROGRAM: Final = (1 << 31) - 1
NUMBER: Final = -1
IN_ARENA: Final = -2
"""The value of a word that is not a value's address: a number, or an address in the arena."""

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


class Word(NamedTuple):
    """A word of a table: a number, or the address of `value`, or of an offset in the arena.

    The offset is `number`, behind the table.
    """

    number: int
    value: int = NUMBER


class ArrayTable(NamedTuple):
    """Contents of a table: numbers, and addresses of arrays by column."""

    numbers: tuple[int, ...]
    arrays: tuple[tuple[Word, ...], ...]
    """The words of each array, in the order of the columns."""
    programs: int
    members: int
    """Arrays that there is room for: a power of two."""

    @staticmethod
    def make(
        elements: Sequence[int], arrays: Sequence[tuple[Word, ...]], grid: Index
    ) -> ArrayTable:
        """Return the table of these arrays; one of them has `grid` programs."""
        members = padded(len(elements))
        counts = [at_elements(grid, n) for n in elements]
        ends = [*accumulate(counts)]
        total, behind = ends[-1], members - len(elements)
        firsts = [end - n for end, n in zip(ends, counts, strict=True)]
        columns = ((firsts, total), (ends, _NO_PROGRAM), (elements, 0))
        numbers = (n for values, last in columns for n in (*values, *[last] * behind))
        return ArrayTable(tuple(numbers), tuple(arrays), total, members)

    def words(self) -> list[Word]:
        """Return the table's words."""
        behind = [Word(0)] * (self.members - len(self.arrays))
        columns = zip(*self.arrays, strict=True)
        addresses = [w for column in columns for w in (*column, *behind)]
        return [*map(Word, self.numbers), *addresses]


class ArrayTables(NamedTuple):
    """The tables of the launches that compute some kernels together."""

    tables: tuple[ArrayTable, ...]
    workspace_bytes: int
    """Memory behind the tables, for results of chunks."""

    @staticmethod
    def make(
        elements: Sequence[int],
        arrays: Sequence[tuple[int, ...]],
        columns: Sequence[tuple[int, ...]],
        grids: Sequence[Index],
        workspaces: Sequence[Index],
    ) -> ArrayTables:
        """Return the tables of kernels, one for each launch.

        Kernel k has `elements[k]` elements and the values `arrays[k]`. A launch lists `columns` of
        these: 0 is a kernel's first value, -1 its first one of `workspaces`, given in bytes.
        """
        offset, places = 0, list[list[int]]()
        for n in elements:
            places.append([])
            for nbytes in workspaces:
                places[-1].append(offset)
                offset += -(-at_elements(nbytes, n) // VECTOR_BYTES) * VECTOR_BYTES

        def word(column: int, k: int) -> Word:
            return (
                Word(0, arrays[k][column])
                if column >= 0
                else Word(places[k][-1 - column], IN_ARENA)
            )

        tables = (
            ArrayTable.make(
                elements, [tuple(word(c, k) for c in of_launch) for k in range(len(elements))], grid
            )
            for of_launch, grid in zip(columns, grids, strict=True)
        )
        return ArrayTables(tuple(tables), offset)

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables, with what the last launch that fills them writes behind them."""
        return 8 * FILL_WORDS * -(-sum(len(t.words()) for t in self.tables) // FILL_WORDS)


def at_elements(e: Index, elements: int) -> int:
    """Evaluate an expression over the number of elements of an array."""
    return int(evaluate(e, dict.fromkeys(sizes_of(e), elements)))


def padded(count: int) -> int:
    """Return the next power of two.

    >>> padded(4), padded(5)
    (4, 8)
    """
    return 1 << (count - 1).bit_length()


def launches_of(count: int, columns: Sequence[int]) -> int:
    """Return the launches that tables of arrays take, with those that fill them.

    `columns` has the arrays that each table lists for a kernel.

    >>> launches_of(100, [3]), launches_of(1000, [7]), launches_of(100, [2, 2])
    (3, 22, 5)
    """
    return len(columns) + math.ceil(sum(3 + n for n in columns) * padded(count) / FILL_WORDS)


Step = TypeVar("Step")


def families(
    steps: Sequence[tuple[Step, str, int, Sequence[int]]],
) -> list[list[Step]]:
    """Group independent steps into launches over many arrays, or of one.

    Each step has the name of its kernel on flat arrays ("": it has none), its elements, and the
    arrays that each table lists.
    """
    groups: dict[tuple[str, bool, int] | int, list[Step]] = {}
    params: dict[tuple[str, bool, int] | int, Sequence[int]] = {}
    seen: dict[tuple[str, bool], int] = {}
    for k, (step, flat, elements, columns) in enumerate(steps):
        key: tuple[str, bool, int] | int = k
        most = MAX_MAPPED_ELEMENTS if len(columns) == 1 else MAX_REDUCED_ELEMENTS
        if flat and elements <= most:
            kind = flat, elements >= MIN_VECTORS and elements % DIVISOR == 0
            key = (*kind, seen.get(kind, 0) // MAX_ARRAYS)
            seen[kind] = seen.get(kind, 0) + 1
        groups.setdefault(key, []).append(step)
        params[key] = columns
    result: list[list[Step]] = []
    for key, group in groups.items():
        saves = len(group) >= MIN_ARRAYS and launches_of(len(group), params[key]) < len(group)
        result += [group] if saves else [[step] for step in group]
    return result
