"""How many vectors the main loop of a nest handles at once.

An operator's result is there some cycles after it starts, and two or more may start in each of
them: a loop that is to keep the arithmetic units busy needs about eight runs of operators that do
not wait for one another.  The processor finds them in later rounds of the loop, but it looks only
some hundred instructions ahead; so several vectors go through the loop together, the more the
longer its operators wait for one another.  `logaddexp` takes 70 % of the time with eight vectors
that it takes with two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from smelt.codegen.llvm.instructions.indexing import multiple_of, steady
from smelt.codegen.llvm.instructions.reductions import PAIRED, accumulator, is_paired
from smelt.codegen.llvm.loopir.items import Folding, Item, accesses_of
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.expr import Index

if TYPE_CHECKING:
    from smelt.codegen.llvm.schedule.build_nests import Nest

BUDGET = 24
"""Vector registers that the loads, stores and folds of an unrolled loop body may hope for."""
USUAL, MOST = 4, 8
"""Vectors that go together where nothing speaks against it, and where one chain is long."""
LONG = 20.0
"""Cycles a vector from which a chain of operators that wait for one another is long."""


def choose_unroll(nest: Nest, lanes: int) -> int:
    """How many vectors of so many lanes the main loop of a nest handles at once."""
    if nest.vector is None:
        return 1
    if any(adds_pairs(f, nest) for f in nest.folds):
        return PAIRED  # which elements are added first does not depend on what else is computed
    inner = [i for i in nest.items if nest.vector in i.axes]
    live = len([i for i in inner if i.kind == "load"]) + len(nest.stores)
    live += sum(_registers(f, lanes) for f in nest.folds if not known_from(nest, f))
    wide = MOST if only_chain(inner) > LONG else USUAL
    while wide > 1 and wide * live > BUDGET:
        wide //= 2
    return wide


def keep_to_runs(nest: Nest, lanes: int, block: Mapping[str, Index]) -> None:
    """Takes fewer vectors of a nest together, and of those that pack for it, where a task's blocks
    begin at no multiple of them: i%s goes on by one only inside of a run of s positions.  Blocks of
    48 rows begin inside of such runs for 4 vectors of 8, and at the start of one for 2."""
    for each in (nest, *nest.packs):
        begins = multiple_of(block.get(each.vector or "", 0))
        while each.wide > 1 and begins % (lanes * each.wide) and _in_runs(each, lanes):
            each.wide //= 2


def lanes_of_runs(block: Mapping[str, Index], axis: str, lanes: int) -> int:
    """The elements of a vector if every task's block of an axis begins at a multiple of them; 0 if
    not, or if nothing is known of where loops along it begin."""
    return lanes if axis in block and multiple_of(block[axis]) % lanes == 0 else 0


def _in_runs(nest: Nest, lanes: int) -> bool:
    """Whether some array is read or written in runs that are shorter than the vector axis."""
    accesses = [*accesses_of(nest.items), *(s.access for s in nest.stores)]
    v = nest.vector or ""
    broken = (a.offset for a in accesses if coefficient(a.offset, v) is None)
    return any(coefficient(steady(e, v, lanes), v) is not None for e in broken)


def known_from(nest: Nest, fold: Item) -> Item | None:
    """The fold of a nest for a place that knows what is there: the extreme that `fold` asks for."""
    extreme = fold.payload
    assert isinstance(extreme, Folding)
    for other in nest.folds if nest.in_registers(fold) else ():
        place = other.payload
        assert isinstance(place, Folding)
        same = other.args[0] is fold.args[0] and set(place.over) == set(extreme.over)
        if same and place.row.winner == extreme.row.name:
            return other
    return None


def _registers(fold: Item, lanes: int) -> int:
    """Vector registers of a fold's state and of one step, for one vector of elements: a step of a
    place needs none, what wins is moved to the state under a mask."""
    assert isinstance(fold.payload, Folding)
    folding = fold.payload
    parts = accumulator(folding.row, fold.args[0].dtype, fold.dtype, plain=folding.plain).parts
    return (1 if folding.row.positional else 2) * max(sum(d.bits for d in parts) * lanes // 512, 1)


def adds_pairs(fold: Item, nest: Nest) -> bool:
    """Whether vectors of a fold are added as pairs before its state takes them."""
    along = isinstance(fold.payload, Folding) and nest.vector in fold.payload.over
    return nest.pairs and along and is_paired(fold)


def only_chain(items: list[Item]) -> float:
    """Cycles a vector of the longest run of operators that wait for one another; 0 where it is
    less than half of all there is to do, because others run beside it."""
    ends: dict[Item, float] = {}
    total = 0.0
    for i in items:
        own = SCALARS[i.payload].cost if i.kind == "apply" and isinstance(i.payload, str) else 0.0
        total += own
        ends[i] = own + max((ends.get(a, 0.0) for a in i.args), default=0.0)
    longest = max(ends.values(), default=0.0)
    return longest if 2 * longest > total else 0.0
