"""How the grid of a phase is cut into tasks.

Products say themselves how their rows and columns are taken; otherwise tasks take long runs along
the axis that vectors run along, squares where an array is turned, and several short rows.
"""

from __future__ import annotations

from smelt.blocks import BLOCK, TASKS, rows_together
from smelt.codegen.llvm.access.memory import FARTHEST_STEP
from smelt.codegen.llvm.access.vector_axis import across_axis, lanes_of, pinned
from smelt.codegen.llvm.loopir.compute_at import place_blocks, place_rows
from smelt.codegen.llvm.loopir.items import Access, Item, Phase
from smelt.codegen.llvm.schedule.contract import Contraction, product_block
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.schedule.stream_tiling import fold_columns, streamed_rows
from smelt.codegen.llvm.schedule.tall_skinny import TallSkinnyPlan
from smelt.dataclass import dataclass
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.expr import Index, floordiv, maximum, minimum, mul, product

GATHERED = 8
"""Times as many rows where some of what a task reads is gathered once for all of them."""
SIDE = 64
"""Side of the tiles in which arrays and operands are turned, at least: whole cache lines of results
and runs of them.  Rows that lie a power of two apart share a cache's sets, and more of them would
push one another out."""

Placed = ConvPlan | DepthwisePlan | NhwcConvPlan | TallSkinnyPlan
"""Products whose operands are packed place by place."""
_Others = (
    dict[Item, DepthwisePlan]
    | dict[Item, NhwcConvPlan]
    | dict[Item, TallSkinnyPlan]
    | dict[Item, DepthwisePlan | NhwcConvPlan]
)
Products = dict[Item, Contraction] | dict[Item, ConvPlan] | _Others


@dataclass(frozen=True, slots=True)
class Cut:
    """How the grid is cut."""

    block: dict[str, Index]
    """Axes that tasks take in blocks, and how many positions."""
    held: dict[str, Index]
    """How many of those a task has at most."""
    across: str | None
    """The axis beside the vectors' one that makes squares with it."""
    rows: frozenset[str]
    """The axis along which a task takes several rows that folds end."""


def task_blocks(phase: Phase, products: Products, vector: str | None, target: Target) -> Cut:
    """How a phase with these products is cut, whose vectors run along that axis."""
    grid = set(phase.grid) - pinned(phase)
    folded = any(i.kind == "fold" for i in phase.items)
    wide = fold_columns(phase, target) if folded else BLOCK
    block: dict[str, Index] = {}
    if vector in grid and vector is not None:
        block[vector] = wide
    plainer = [c for c in products.values() if isinstance(c, Contraction)]
    rows = {c.m for c in plainer}
    for c in products.values():
        if not isinstance(c, Contraction):
            block |= c.blocks(phase)
            continue
        if c.m is None and c.n in rows:
            continue  # one column beside a product of these rows
        cut = product_block(c, phase, plainer, target)
        if phase.regions() and not c.thin:
            cut = streamed_rows(phase, products.values(), target), cut[1]
        for a, n in zip((c.m, c.n), cut, strict=True):
            if a in grid and a is not None:
                block[a] = minimum(n, block[a]) if a in block and a != vector else n
    plain = block and not (products or phase.regions() or phase.places)
    across = across_axis(phase, vector) if plain else None
    if vector is not None and across is not None:
        side = turned_side(lanes_of(phase, target))
        block = {across: side, vector: side}
        # Neighbouring tasks go on along the rows that they read; what they store is not read.
        phase.grid = [*(a for a in phase.grid if a != across), across]
    elif vector is not None and plain and not folded:
        for outer in [a for a in phase.grid if a in grid and a != vector][-1:]:
            block[outer] = _rows(phase, vector, outer)
    if phase.places:
        block |= _around_places(phase, products)
    rows = frozenset[str]()
    ended = folded or any(i.kind == "scan" for i in phase.items)
    if vector is not None and ended and not (block or products or phase.regions() or phase.cut):
        # Rows that folds end: while one waits for its last sum, the next ones are computed.
        rows = frozenset([a for a in phase.grid if a in grid][-1:])
        whole = product(n for a, n in phase.axes.items() if a not in phase.grid)
        block |= dict.fromkeys(rows, rows_together(whole))
    return Cut(block, _held(phase, products, block), across, rows)


def _held(phase: Phase, products: Products, block: dict[str, Index]) -> dict[str, Index]:
    """Most positions that a task has of the axes that are cut: of a product's rows and columns no
    more than there are.  All of its sums are cleared, in every task of a batch of small ones."""
    found = dict(block)
    for c in products.values():
        if not isinstance(c, Contraction):
            continue
        for a in {c.m, c.n} & block.keys() - {None}:
            assert a is not None
            n = phase.axes[a]
            if isinstance(n, int) or (c.thin and a == c.n and isinstance(found[a], int)):
                found[a] = minimum(n, found[a])
    return found


def _rows(phase: Phase, vector: str, outer: str) -> Index:
    """Rows that a task takes: more where it gathers for all of them what lies across."""
    rows = rows_together(phase.axes[vector])
    if not any(gathers(i, vector) and outer not in i.axes for i in phase.items):
        return rows
    whole = product(phase.axes[a] for a in phase.grid)
    return mul(rows, maximum(minimum(floordiv(whole, TASKS * BLOCK), GATHERED), 1))


def gathers(item: Item, vector: str | None) -> bool:
    """Whether a load takes its lanes from far apart."""
    access = item.payload
    if not isinstance(access, Access) or vector not in item.axes or access.limits or item.args:
        return False
    if access.positions:
        return False
    step = coefficient(access.offset, vector or "")
    return step is not None and not (isinstance(step, int) and abs(step) <= FARTHEST_STEP)


def _around_places(phase: Phase, products: Products) -> dict[str, Index]:
    """How the grid is cut where products are held at places that windows reach."""
    sizes = [c.item.dtype.itemsize for c in products.values()]
    found = place_blocks(phase, max(sizes, default=4))
    rows = {c.m for c in products.values() if isinstance(c, ConvPlan)} & {*phase.grid}
    return found | dict.fromkeys(sorted(rows), place_rows(phase))


def turned_side(lanes: int) -> int:
    """Side of a turned tile: whole vectors, two at least."""
    return max(SIDE, 2 * lanes)
