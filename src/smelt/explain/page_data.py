"""Data that only the page of a report shows: layout, transfers, accesses, and a run in steps.

Cells of an array are row-major positions. Values are numbers, or the text of a number that JSON
lacks (`nan`, `inf`, `-inf`).

>>> Cells(array="x", cells=(0, 1)).array
'x'
"""

from __future__ import annotations

from typing import Literal

from smelt.python.dataclass import dataclass

Number = float | int | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """A node of the drawn graph: its centre and width in pixels."""

    node: int
    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEdge:
    """A drawn edge: its points from `producer` to `reader`, one in each layer on the way."""

    producer: int
    reader: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layered drawing of the graph; constants and what follows from sizes are left out."""

    width: float
    height: float
    nodes: tuple[PlacedNode, ...]
    edges: tuple[PlacedEdge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Accesses of kernels to one value in memory, with fusion and without.

    `reads` and `writes` count kernels. `least_bytes` must cross memory in any case: inputs once and
    results once.
    """

    node: int
    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    reads_unfused: int
    read_bytes_unfused: int
    writes_unfused: int
    written_bytes_unfused: int
    least_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Element positions that 32 neighbouring lanes along `axis` access together.

    None stands for a lane out of bounds. `sectors` counts sectors of 32 bytes, `lines_64` and
    `lines_128` cache lines. `scattered` with `least` below `sectors` depends on data: `sectors` is
    the worst case.
    """

    axis: str
    kind: Literal["same", "contiguous", "strided", "scattered"]
    stride: int | None
    offsets: tuple[int | None, ...]
    sectors: int
    lines_64: int
    lines_128: int
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPattern:
    """A load or store of a kernel, with lanes along each axis; `chosen` is usual."""

    kernel: int
    array: str
    role: Literal["in", "out"]
    text: str
    itemsize: int
    chosen: int
    lanes: tuple[Lanes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Elements of one array that a step or a block accesses."""

    array: str
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A value in registers: named dimensions, first index along each, and its elements."""

    axes: tuple[str, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    values: tuple[Number, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a step's elements differ from those of the program without fusion.

    `cells` are positions among the step's elements, or among the cells that it stores; `fused` and
    `unfused` the two numbers that are furthest apart, in full. `kind` "rounding" means that all
    are close, "interim" that a stream corrects the value later.
    """

    kind: Literal["rounding", "interim"]
    cells: tuple[int, ...]
    largest: Number
    fused: Number
    unfused: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A statement that ran in one block of the grid.

    `visit` names the blocks of enclosing streams, as in `n4 2..3`, and `visit_number` counts them.
    `kind` "state" is a carried value, "store" a write to memory. `compared` says whether the
    program without fusion has the same value, `difference` where it has other bits.
    """

    block: int
    visit: str
    visit_number: int
    kind: Literal["value", "position", "state", "store"]
    name: str
    text: str
    node: int | None
    value: Tile | None
    loads: tuple[Cells, ...]
    stores: tuple[Cells, ...]
    compared: bool = False
    difference: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GridBlock:
    """A block of the grid: its range of each axis, and the cells it loads and stores."""

    ranges: dict[str, tuple[int, int]]
    loads: tuple[Cells, ...]
    stores: tuple[Cells, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArray:
    """An array of a kernel, with its elements at the small size.

    `node` is None for an array that only chunks have.
    """

    name: str
    node: int | None
    shape: tuple[int, ...]
    dtype: str
    role: Literal["in", "out"]
    values: tuple[Number, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRun:
    """A kernel run at the small size.

    `kernel` is its number in the report, None for a kernel of the program without fusion. `loaded`
    and `stored` count elements, every access. `steps` may end early; `complete` says so. `blocks`
    are the first of `block_count`.
    """

    kernel: int | None
    name: str
    text: str
    nodes: tuple[int, ...]
    arrays: tuple[StepArray, ...]
    loaded: int
    stored: int
    blocks: tuple[GridBlock, ...]
    block_count: int
    steps: tuple[Step, ...]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRun:
    """The program at `sizes`, with fusion and without; without runs, `note` says why.

    `original` are the numbers that `sizes` stand for where the program has fixed ones; kernels are
    then those of a copy of the program with sizes that have names.
    """

    sizes: dict[str, int]
    original: dict[str, int]
    fused: tuple[KernelRun, ...]
    unfused: tuple[KernelRun, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Generated texts of a kernel, cut after `MAX_CODE` characters, and its tasks per launch."""

    kernel: int
    llvm: str
    asm: str
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """All data that the page needs beyond the report's numbers.

    `launches_unfused` counts kernels and library calls of the program without fusion.
    """

    launches_unfused: int
    layout: Layout
    transfers: tuple[Transfer, ...]
    accesses: tuple[AccessPattern, ...]
    run: SmallRun
    codes: tuple[Code, ...]
