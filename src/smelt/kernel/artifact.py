"""Compiled kernels as plain data: machine code, how to call it, its variants and their cost.

This is what the object cache stores, so a warm start needs neither the kernel's IR nor code
generation. A call takes the variant with the least predicted cycles, which are those of its matrix
products.

A product is C[m, n] = A[m, k] B[k, n].  Its plan says in a `ProductCost` how its code works: the
heights of its register tiles, which operands it packs and how often, where its sums wait.  The same
function turns each into cycles of one core.

What counts is what plans do differently.  Rates are in cycles for a cache line of 64 bytes that is
moved, not for a vector: so they hold for every vector width.  Multiply-adds follow from the tiles:
two vectors a cycle, but no more than their latency allows.

>>> from smelt.types.expr import size
>>> plan = ProductCost(size("m"), size("n"), 64, heights=(12, 4, 1), lanes=16, packed_right=88)
>>> {part: round(n) for part, n in cost_parts(plan, {"m": 26, "n": 48}).items() if n}
{'multiply-adds': 3328, 'loop steps': 461, 'packing': 1056}
>>> compiled = CompiledKernel(
...     b"", ("x", "y"), ("n",), (), (), (Function("k", size("n"), 0, size("n")),), 7
... )
>>> CompiledKernel.from_data(compiled.to_data(), b"") == compiled
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, evaluate, size
from smelt.types.formula import choose, common_divisor, larger, smaller, whole
from smelt.types.json_data import from_data, to_data

LATENCY = 4
"""Cycles of a multiply-add: a tile of fewer sums than two pipes hold waits for its own."""
LOOP_STEP = 0.9
"""Cycles of a tile for one position along k besides its multiply-adds: loads, and the loop."""
LINE, PAGE = 64, 4096
"""Bytes of a cache line, and the distance of addresses that share a set of the L1 cache."""
L1_SHARE = 0.9
"""Share of the L1 cache that one panel of rows may take before the next row of tiles misses it."""
MISS = 0.75
"""Cycles of a line that a tile reads from L2 each time, besides what other work hides."""
FAR_STEP = 2.0
"""Cycles of such a line for one position along k of a tile, which waits for it; twice from L3."""
SPLIT_LOAD = 0.2
"""Cycles of a vector in place that crosses a cache line, where a tile has other loads to wait for.
"""
UNITS = 16
"""Rates are in sixteenths of a cycle."""
PACK, SCRATCH, BLOCK_SUMS = 88, 56, 40
"""Rates of packing an operand; of sums that go through scratch to what reads them, and that wait
there for the next block of k.  The planner prices both by them as well."""
MANY = 1 << 40
"""More than any size."""


_INDICES = (*("rows", "columns", "reduced", "batch", "right_pitch", "left_pitch", "left_step"),)


@dataclass(frozen=True, slots=True)
class ProductCost:
    """What one product of a code variant does: its sizes, its tiles, and rates of the rest.

    Rates are sixteenths of a cycle for each cache line; 0 for what the plan does not do.
    """

    rows: Index
    columns: Index
    reduced: Index
    batch: Index = 1
    """Products of these sizes."""
    tasks: int = 1
    """Tasks to cut results into before each takes more."""
    task_rows: tuple[int, int] = (MANY, MANY)
    """Least and most rows of a task, which share what it packs of the right operand."""
    task_columns: tuple[int, int] = (MANY, MANY)
    """Least and most columns of a task, which share what it packs of the left operand."""
    panel_elements: int = MANY
    """Elements of the right operand that a task packs at once, of all its reduced positions."""
    heights: tuple[int, ...] = ()
    """Rows of the tile, and of the tiles for remainders; of one height alone, it is repeated."""
    lanes: int = 1
    vectors: int = 2
    """Vectors of a full tile."""
    has_narrow_tiles: bool = True
    """Whether one-vector tiles take a remainder of the columns."""
    itemsize: int = 4
    packed_right: int = 0
    """Rate of packing the right operand."""
    packed_left: int = 0
    """Rate of packing the left operand."""
    sums: int = 0
    """Rate of what goes through scratch for each result."""
    depth: int = 0
    """Positions of such a block."""
    epilogue: int = 0
    """Sixteenths of a cycle for each vector of results."""
    start: int = 0
    """Cycles for each product, whatever its size."""
    right_pitch: Index = 0
    """Elements between rows of a right operand that may be read in place; 0 if it may not."""
    short_pitch: int = 0
    """Maximum pitch of whole panels of a right operand that are read in place, not packed.
    """
    left_pitch: Index = 0
    """Elements between rows of a left operand in place, if it is contiguous along k."""
    left_step: Index = 0
    """Elements between positions along k of a left operand in place, if these are far apart."""
    far_left: int = 0
    """Rate of reading a left operand that L2 does not hold, for each task of the same rows."""
    far_runs: int = 0
    """Sixteenths of a cycle for each run of such a right operand that a task packs."""
    far_right: int = 0
    """Rate of packing such a right operand, besides that of one in L2."""
    far_results: int = 0
    """Rate of results that tiles store directly, if L2 does not hold them and a task has parts of
    their rows."""
    l1_bytes: int = 0
    """The L1 cache, from which tiles read operands in place."""
    l2_bytes: int = 0
    """What operands and results may take of L2."""

    def map_indices(self, change: Callable[[Index], Index]) -> ProductCost:
        """Return the same with every expression of sizes changed."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in _INDICES}
        return replace(self, **changed)


def tile_steps(rows: int, heights: Sequence[int]) -> list[tuple[int, int]]:
    """Return the tiles that rows take: pairs of a height and how many there are.

    >>> tile_steps(31, (12, 4, 1)), tile_steps(31, (12,))
    ([(12, 2), (4, 1), (1, 3)], [(12, 3)])
    """
    if len(heights) == 1:
        return [(heights[0], -(-rows // heights[0]))]
    tiles: list[tuple[int, int]] = []
    for height in heights:
        count, rows = rows // height, rows % height
        if not isinstance(count, int) or count:
            tiles.append((height, count))
    return tiles


def cost_parts(c: ProductCost, sizes: Mapping[str, int]) -> dict[str, float]:
    """Return the predicted cycles of one product by what they are spent on.

    Sizes may be numbers that only a call will know (`smelt.types.formula`): nothing branches on
    them here, and conditions are 0 or 1.
    """
    m, n, k, batch = (whole(evaluate(e, sizes)) for e in (c.rows, c.columns, c.reduced, c.batch))
    full, rest = n // (c.vectors * c.lanes), n % (c.vectors * c.lanes)
    right_pitch = whole(evaluate(c.right_pitch, sizes))
    in_place = (right_pitch != 0) * (
        (right_pitch <= c.short_pitch) * (rest == 0) if c.packed_right else 1
    )
    has_narrow = 1 if c.has_narrow_tiles else in_place
    narrow = has_narrow * (rest > 0) * (rest <= (c.vectors - 1) * c.lanes)
    full = full + (rest > 0) - narrow
    tiles = tile_steps(m, c.heights)
    count = sum(number for _, number in tiles)
    multiply = sum(
        number * (full * max(h * c.vectors / 2, LATENCY) + narrow * max(h / 2, LATENCY))
        for h, number in tiles
    )
    vectors = -(-n // c.lanes)
    lines = c.lanes * c.itemsize / (LINE * UNITS)  # of a vector, for rates in sixteenths
    blocks = -(-k // c.depth) - 1 if c.depth else 0
    left_times, right_times = _task_counts(c, (m, n, k), batch)
    parts = {
        "multiply-adds": k * multiply,
        "loop steps": LOOP_STEP * k * count * (full + narrow),
        "packing": choose(in_place, 0.0, lines * c.packed_right * k * vectors * right_times),
        "packing rows": c.packed_left * k * m * left_times * c.itemsize / (LINE * UNITS),
        "sums": lines * m * vectors * (c.sums + BLOCK_SUMS * larger(blocks, 0)),
        "epilogue": c.epilogue * m * vectors / UNITS,
        "operands in place": k
        * (
            vectors * count * _right_in_place(c, choose(in_place, right_pitch, 0), k)
            + (full + narrow) * _left_in_place(c, sizes, (m, k), count)
        ),
        "memory": _memory_cycles(c, (m, n, k), (left_times, right_times), batch),
        "start": float(c.start),
    }
    return {part: batch * cycles for part, cycles in parts.items()}


def _task_counts(c: ProductCost, extents: tuple[int, int, int], batch: int) -> tuple[int, int]:
    """Return how many tasks share rows, and how many columns: they pack them anew."""
    m, n, k = extents
    (low_rows, high_rows), (low_columns, high_columns) = c.task_rows, c.task_columns
    results = m * n * batch // c.tasks
    columns = larger(results // larger(smaller(m, low_rows), 1), low_columns)
    columns = smaller(smaller(columns, high_columns), _panel_columns(c, k))
    across = larger(-(-n // columns), 1)
    rows = smaller(larger(results // larger(-(-n // across), 1), low_rows), high_rows)
    return across, larger(-(-m // rows), 1)


def _panel_columns(c: ProductCost, k: int) -> int:
    return larger(c.panel_elements // larger(k, 1), c.vectors * c.lanes)


def _right_in_place(c: ProductCost, pitch: int, k: int) -> float:
    """Return the waits for a vector in place: it crosses lines, or was evicted."""
    nbytes, split = pitch * c.itemsize, pitch * c.itemsize % LINE > 0
    lines = max(c.vectors * c.lanes * c.itemsize // LINE, 1) + split
    held = smaller(_rows_in_l1(c, nbytes), L1_SHARE * c.l1_bytes / (LINE * lines))
    waits = c.lanes * c.itemsize / LINE * (SPLIT_LOAD * split + MISS * (k > held))
    return choose(pitch, waits, 0.0)


def _left_in_place(
    c: ProductCost, sizes: Mapping[str, int], extents: tuple[int, int], tiles: int
) -> float:
    """Return the waits for a column of the left operand that tiles evict from L1."""
    m, k = extents
    pitch, step = (whole(evaluate(e, sizes)) * c.itemsize for e in (c.left_pitch, c.left_step))
    height = c.heights[0] if c.heights else 0
    far = FAR_STEP * tiles * choose(m * k * c.itemsize > c.l2_bytes, 2, 1)
    waits = choose((step != 0) * (k > _rows_in_l1(c, step)), far, 0.0)
    return choose((pitch != 0) * (height > _rows_in_l1(c, pitch)), MISS * m, waits)


def _memory_cycles(
    c: ProductCost, extents: tuple[int, int, int], times: tuple[int, int], batch: int
) -> float:
    """Return the waits for what L2 does not hold."""
    (m, n, k), (left_times, right_times) = extents, times
    left, right, results = (x * c.itemsize for x in (m * k, k * n, m * n))
    cycles = choose(left > c.l2_bytes, c.far_left * left / LINE * left_times, 0.0)
    panels = (c.far_runs * k * left_times + c.far_right * right / LINE) * right_times
    cycles = cycles + choose(right > c.l2_bytes, panels, 0.0)
    is_far = (results * batch > c.l2_bytes) * (left_times > 1)
    return (cycles + choose(is_far, c.far_results * results / LINE, 0.0)) / UNITS


def _rows_in_l1(c: ProductCost, pitch: int) -> int:
    """Return how many rows, `pitch` bytes apart, the sets of the L1 cache hold."""
    return max(c.l1_bytes // PAGE, 1) * (PAGE // larger(common_divisor(pitch, PAGE), LINE))


def product_cycles(costs: Sequence[ProductCost], sizes: Mapping[str, int]) -> float:
    """Return the predicted cycles of one core for all products of a variant."""
    return sum(sum(cost_parts(c, sizes).values()) for c in costs)


# ---- variants and code ---------------------------------------------------------------------------


Variant = str
"""What a specialised code variant assumes about the sizes; "" assumes nothing.

"small": all contractions are small. "rows" ("columns"): contractions have few rows (columns).
"narrow": convolution windows slide along narrow image rows.
"transposed": rows so short that the array is transposed. For a kernel with one contraction:
"tall_skinny" (few columns, short reduction), "panels" (many rows and columns, reduction short
enough for a single pass), "small_m" (as "panels" with fewer rows), "k_blocked" (any reduction
length). "packed": right operands are packed once per call, because many tasks of few rows each
share them. Sizes fixed at compile time follow an @: "small@a1=3,a2=8".
"""
SizeLimits = tuple[tuple[Index, int], ...]
"""Upper bounds of sizes: pairs (size expression, largest value allowed)."""


class Candidate(NamedTuple):
    """A code variant: the sizes that it is possible or known to be best for, and its products.

    `costs` says what its products do, if it competes with others by predicted time.
    """

    variant: Variant
    limits: SizeLimits
    costs: tuple[ProductCost, ...] = ()

    def map_indices(self, change: Callable[[Index], Index]) -> Candidate:
        """Return the same candidate with every expression of sizes changed."""
        return Candidate(
            self.variant,
            tuple((change(n), most) for n, most in self.limits),
            tuple(c.map_indices(change) for c in self.costs),
        )


Variants = tuple[Candidate, ...]
"""Code variants of a kernel, best first; the default one is last if it competes by its time."""


class Function(NamedTuple):
    """Entry point of a kernel: symbol, task count, scratch bytes, cycles on one core."""

    symbol: str
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Object code of a kernel and how to call it.

    `smelt.codegen.llvm.module.Artifact` is the code generator's result that this stores.
    """

    code: bytes
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    strides: tuple[tuple[str, str, int], ...]
    partials: tuple[tuple[str, Index], ...]
    functions: tuple[Function, ...]
    ir_size: int
    variant: Variant = ""

    def to_data(self) -> dict[str, Any]:
        """Return everything but the code as JSON data."""
        data: dict[str, Any] = to_data(replace(self, code=b""))
        return data

    @staticmethod
    def from_data(facts: dict[str, Any], code: bytes) -> CompiledKernel:
        """Rebuild a compiled kernel from `to_data` and its code.

        Raises KeyError, TypeError or ValueError for malformed data.
        """
        built: CompiledKernel = from_data(CompiledKernel, facts)
        return replace(built, code=code)


def size_or_number(name: str) -> Index:
    """Return the size that a canonical kernel's name stands for: a symbol or a number.

    >>> size_or_number("n"), size_or_number("7")
    (n, 7)
    """
    return int(name) if name.isdigit() else size(name)


def select_variant(forms: Variants, sizes: Mapping[str, int]) -> Variant:
    """Select the variant for these sizes: the first whose limits hold, else the default one.

    If it competes by its predicted time, select the fastest of all that do.
    """
    return select_candidate(forms, sizes).variant


def select_candidate(forms: Variants, sizes: Mapping[str, int]) -> Candidate:
    """Select as `select_variant`, and return the variant with what is known of it."""
    competing: list[Candidate] = []
    for c in forms:
        if (c.costs or not competing) and _holds(c, sizes):
            if not c.costs:
                return c
            competing.append(c)
    return min(
        competing,
        key=lambda c: product_cycles(c.costs, sizes),
        default=Candidate("", ()),
    )


def competing_candidates(forms: Variants, sizes: Mapping[str, int]) -> list[Candidate]:
    """Return the variants that compete by their predicted times at these sizes."""
    return [c for c in forms if c.costs and _holds(c, sizes)]


def _holds(c: Candidate, sizes: Mapping[str, int]) -> bool:
    return all(evaluate(n, sizes) <= limit for n, limit in c.limits)
