"""Roles: which axes of a definition are `grid`, which stay `tile`, and which are split.

An axis is `grid` when every output has it and no fold ends it: then its positions are independent.
When too few positions are independent, the largest folded axis is split over the grid and its
partial results are merged in fixed order, so that the bits do not depend on the thread count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.blocks import (
    COLUMNS,
    FEW_COLUMNS,
    LEAST_LANES,
    LEAST_TASKS,
    LONG_SUM,
    PART_ROWS,
    PARTS,
    SHORT_BLOCK,
    SHORT_ROW,
    SHORT_ROWS,
    SPLIT_ABOVE,
    STREAM_BYTES,
    fold_columns,
    fold_parts,
    parts_of,
    product_parts,
)
from smelt.dataclass import dataclass
from smelt.errors import InternalError
from smelt.kernel.ir import (
    Apply,
    Axis,
    Block,
    Cast,
    Const,
    Dot,
    IndexValue,
    Kernel,
    Let,
    Load,
    Merge,
    Position,
    Reduce,
    Ref,
    Scan,
    Split,
    State,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.lower.argreduce import winner
from smelt.lower.define import Definition
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine
from smelt.types.affine import axes_through
from smelt.types.dtype import f64
from smelt.types.expr import Index, atoms, axes_of, evaluate, product

MAP_BLOCK = 4096
"""Elements of a grid block of the innermost axis; back ends choose their own."""


@dataclass
class Facts:
    """Axes of every bound name, and the axes that folds end."""

    axes: dict[str, frozenset[str]]
    ended: set[str]


def value_axes(value: Value, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The axes that a value varies along."""
    match value:
        case Const():
            return frozenset()
        case Ref(name=name):
            return known[name]
        case IndexValue(index=index):
            return index_axes((index,), known)
        case Load(index=index):
            return index_axes(index, known)
        case Apply(args=args):
            return frozenset[str]().union(*(value_axes(a, known) for a in args))
        case Cast(arg=arg) | Scan(arg=arg):
            return value_axes(arg, known)
        case Reduce(arg=arg, over=over):
            return value_axes(arg, known) - set(over)
        case Dot(left=left, right=right, over=over):
            return (value_axes(left, known) | value_axes(right, known)) - set(over)
        case _:
            raise InternalError(f"lowering makes no {type(value).__name__}")


def index_axes(index: tuple[Index, ...], known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The axes of index expressions, through computed positions."""
    return axes_through(index, known.__getitem__)


def analyse(body: list[Statement]) -> Facts:
    """Axes of each name in straight-line statements."""
    facts = Facts({}, set())
    for s in body:
        if isinstance(s, (Let, Position)):
            facts.axes[s.name] = value_axes(s.value, facts.axes)
            if isinstance(s.value, (Reduce, Dot)):
                facts.ended.update(s.value.over)
            if isinstance(s.value, Scan):
                facts.ended.add(s.value.along)
    return facts


def assign(name: str, d: Definition, hints: Mapping[str, int]) -> Kernel:
    """The kernel of a definition: every axis gets its role."""
    d.body = live(d.body)
    facts = analyse(d.body)
    grid = independent(d, facts)
    split = _split_axis(d, facts, grid, hints)
    if split is not None:
        return _split_kernel(name, d, facts, grid, split, rows_at_once(d, split, facts, hints))
    folded = _column_fold(d, facts, grid)
    if folded is not None and rows_at_once(d, folded, facts, hints):
        return _split_kernel(name, d, facts, grid, folded, SHORT_ROWS, parts=1)
    blocks = tuple(_blocks(grid, d, facts, _lanes_axis(d, grid, facts, hints), hints))
    return Kernel(
        name, tuple(d.inputs), tuple(d.outputs), tuple(d.axes.values()), blocks, tuple(d.body)
    )


def independent(d: Definition, facts: Facts) -> list[Axis]:
    """The axes whose positions have nothing to do with one another."""
    common = frozenset(d.axes)
    for s in d.body:
        if isinstance(s, Store):
            common &= index_axes(s.index, facts.axes)
    folds = [s for s in d.body if isinstance(s, Let) and isinstance(s.value, (Reduce, Dot))]
    products = [s for s in folds if isinstance(s.value, Dot)]
    for s in products or folds:  # they would be done again along axes that they lack
        common &= facts.axes[s.name] | set(s.value.over)  # type: ignore[union-attr]
    return [a for a in d.axes.values() if a.name in common and a.name not in facts.ended]


def _lanes_axis(
    d: Definition, grid: list[Axis], facts: Facts, hints: Mapping[str, int]
) -> Axis | None:
    """The grid axis that vectors run along because rows are short: each lane takes its own row."""
    long = [a for a in grid if number(a.extent, hints) >= LEAST_LANES]
    return long[-1] if long and _short_rows(d, long[-1], facts, hints, grid) else None


def _short_rows(
    d: Definition, lanes: Axis, facts: Facts, hints: Mapping[str, int], grid: Sequence[Axis] = ()
) -> bool:
    """Whether rows are so short, and so many along an axis, that each lane takes its own row: one
    that folds end, or one of a few results."""
    lets = [s.value for s in d.body if isinstance(s, Let)]
    folds = [v for v in lets if isinstance(v, (Reduce, Scan))]
    if not folds or any(isinstance(v, Dot) for v in lets):
        return False
    rows = fastest(d)
    if not rows or lanes.name in rows or not rows <= facts.ended | {a.name for a in grid}:
        return False
    if number(lanes.extent, hints) < LEAST_LANES:
        return False
    if rows <= facts.ended and _width(d, lanes, hints) > SHORT_BLOCK:
        return False
    return all(number(d.axes[name].extent, hints) <= SHORT_ROW for name in rows)


def rows_at_once(d: Definition, split: Axis, facts: Facts, hints: Mapping[str, int]) -> int | None:
    """How many positions of a split axis are taken at once, with vectors along them: because each
    lane folds a short row of its own first, or because there are few columns to fold.  None: all
    of a part.  Sums of doubles carry their errors along the whole part: no row waits in it."""
    folds = [s.value for s in d.body if isinstance(s, Let) and isinstance(s.value, Reduce)]
    joined = [f for f in folds if split.name in f.over]
    rows = len(joined) < len(folds)
    if any(f.over != (split.name,) or (rows and f.dtype == f64) for f in joined):
        return None
    told = _short_rows if rows else _few_columns
    return SHORT_ROWS if told(d, split, facts, hints) else None


def _column_fold(d: Definition, facts: Facts, grid: list[Axis]) -> Axis | None:
    """The one axis that all folds end in one sweep, where nothing else is folded."""
    over = {s.value.over for s in d.body if isinstance(s, Let) and isinstance(s.value, Reduce)}
    inside = [a for a in d.axes.values() if a not in grid]
    if over != {tuple(a.name for a in inside)} or len(inside) != 1:
        return None
    return inside[0] if _one_sweep(d, facts, inside[0].name) else None


def _few_columns(d: Definition, fold: Axis, facts: Facts, hints: Mapping[str, int]) -> bool:
    """Whether arrays are walked along so few columns, and so many rows are folded, that vectors
    along the columns would be nearly empty."""
    lets = [s.value for s in d.body if isinstance(s, Let)]
    if any(isinstance(v, (Dot, Scan)) for v in lets):
        return False
    columns = _inside_of(d, fold.name)
    if not columns or columns & facts.ended or number(fold.extent, hints) < LEAST_LANES:
        return False
    return number(product(d.axes[name].extent for name in columns), hints) <= FEW_COLUMNS


def _inside_of(d: Definition, axis: str) -> set[str]:
    """The axes that arrays are walked along further in than along another one."""
    found: set[str] = set()
    for s in d.body:
        if isinstance(s, Let) and isinstance(s.value, Load):
            at = [axes_of(e) for e in s.value.index]
            first = next((k for k, axes in enumerate(at) if axis in axes), len(at))
            found.update(name for axes in at[first:] for name in axes if name != axis)
    return found


def _blocks(
    grid: list[Axis], d: Definition, facts: Facts, lanes: Axis | None, hints: Mapping[str, int]
) -> list[Block]:
    """Blocks of one, but for the innermost grid axis when nothing stays inside a position, or when
    vectors run along it."""
    if lanes is not None:
        rows = _rows_in_cache(d, lanes, hints)
        return [Block(a.name, rows if a == lanes else 1) for a in grid]
    blocks = [Block(a.name, 1) for a in grid]
    inner_free = len(d.axes) == len(grid)
    columns = grid and facts.ended and grid[-1].name == list(d.axes)[-1]
    if blocks and (inner_free or columns):
        blocks[-1] = Block(grid[-1].name, MAP_BLOCK if inner_free else MAP_BLOCK // 4)
    return blocks


def _rows_in_cache(d: Definition, lanes: Axis, hints: Mapping[str, int]) -> int:
    """How many positions of an axis are taken together where each lane takes one: what they read is
    walked again for every position further in, and stays in the first cache."""
    fit = STREAM_BYTES // 2 // max(_width(d, lanes, hints), 1)
    return min(max(1 << fit.bit_length() - 1 if fit else 0, LEAST_LANES), MAP_BLOCK // 4)


def _width(d: Definition, lanes: Axis, hints: Mapping[str, int]) -> int:
    """Elements that the arrays have further in for a position of an axis."""
    return number(product(d.axes[name].extent for name in _inside_of(d, lanes.name)), hints)


def number(e: Index, hints: Mapping[str, int]) -> int:
    """What an expression over sizes is at the first call; a guess where that is not known."""
    try:
        return int(evaluate(e, hints))
    except KeyError:
        return 1 << 10


def _split_axis(
    d: Definition, facts: Facts, grid: list[Axis], hints: Mapping[str, int]
) -> Axis | None:
    """The axis to split, if the grid is too small and one sweep is all that the folds need."""
    folds = [s.value for s in d.body if isinstance(s, Let) and isinstance(s.value, (Reduce, Dot))]
    if not folds or any(isinstance(s, Let) and isinstance(s.value, Scan) for s in d.body):
        return None
    if any(isinstance(f, Dot) for f in folds):
        return _split_product(d, facts, grid, hints) if len(folds) == 1 else None
    shared = set(folds[0].over).union(*(f.over for f in folds))
    candidates = [a for a in d.axes.values() if a.name in shared and _one_sweep(d, facts, a.name)]
    if not candidates:
        return None
    runs = fastest(d)
    # Parts of what arrays are walked along fastest are whole vectors, or lines are read again.
    least = {a.name: PARTS * (LEAST_LANES if a.name in runs else 1) for a in candidates}
    long = [a for a in candidates if number(a.extent, hints) >= least[a.name]]
    slow = [a for a in candidates if a.name not in runs] or candidates
    best = (
        min(long, key=lambda a: _depth_in_memory(d, a))
        if long
        else max(slow, key=lambda a: number(a.extent, hints))
    )
    work = product(a.extent for a in d.axes.values() if a not in grid)
    positions = number(product(a.extent for a in grid), hints)
    if number(work, hints) * max(positions, 1) < SPLIT_ABOVE:
        return None
    columns = [number(a.extent, hints) for a in grid if a.name in runs]
    # Vectors run along one of them, and tasks take a block of it.
    width = fold_columns(len(folds))
    tasks = [positions // max(n, 1) * -(-n // width) for n in columns] or [positions]
    least_rows = 2 * PART_ROWS if _is_column_by_column(d, best) else 1
    few = max(tasks) < LEAST_TASKS and number(best.extent, hints) >= least_rows
    return best if few else None


def _is_column_by_column(d: Definition, axis: Axis) -> bool:
    """Whether each part of an axis has a result for every column of its rows, and nothing else is
    folded: parts of few rows would write and read again as much as they fold."""
    folds = [s.value for s in d.body if isinstance(s, Let) and isinstance(s.value, (Reduce, Dot))]
    return axis.name not in fastest(d) and all(f.over == (axis.name,) for f in folds)


def _split_product(
    d: Definition, facts: Facts, grid: list[Axis], hints: Mapping[str, int]
) -> Axis | None:
    """The longest summed axis of the one product, if it is long and the result has few tiles."""
    dot = next(s.value for s in d.body if isinstance(s, Let) and isinstance(s.value, Dot))
    left, right = (value_axes(v, facts.axes) for v in (dot.left, dot.right))
    summed = [a for a in d.axes.values() if a.name in dot.over]
    longest = max(summed, key=lambda a: number(a.extent, hints))
    tasks = 1
    for a in grid:
        n = number(a.extent, hints)
        tasks *= n if a.name in left & right else -(-n // COLUMNS)
    long = number(longest.extent, hints) >= LONG_SUM
    return longest if long and tasks < LEAST_TASKS and _one_sweep(d, facts, longest.name) else None


def _depth_in_memory(d: Definition, a: Axis) -> int:
    """How far in an axis stands in the arrays that it walks; the slowest is 0."""
    loads = [s.value for s in d.body if isinstance(s, Let) and isinstance(s.value, Load)]
    places = [k for load in loads for k, e in enumerate(load.index) if a.name in axes_of(e)]
    return min(places, default=0)


def fastest(d: Definition) -> set[str]:
    """Axes that the last dimensions of the arrays with most dimensions are walked along: a number
    for each row, say, does not decide how rows are taken."""
    loads = [s.value for s in d.body if isinstance(s, Let) and isinstance(s.value, Load)]
    walked = [[e for e in load.index if not isinstance(e, int)] for load in loads]
    most = max(map(len, walked), default=0)
    return {a for index in walked if most and len(index) == most for a in axes_of(index[-1])}


def _one_sweep(d: Definition, facts: Facts, axis: str) -> bool:
    """Whether nothing along `axis` waits for a fold over `axis`, and folds can be carried."""
    late: set[str] = set()
    for s in d.body:
        if isinstance(s, (Let, Position)):
            names = names_in(s.value)
            waits = any(n in late for n in names)
            if isinstance(s, Let) and isinstance(s.value, (Reduce, Dot)) and axis in s.value.over:
                if waits or not _joins(s.value, axis):
                    return False
                late.add(s.name)
            elif waits:
                if axis in facts.axes[s.name] or _folds(s.value, axis):
                    return False
                late.add(s.name)
        elif isinstance(s, Store):
            waits = any(n in late for n in names_in(s.value))
            if waits and axis in index_axes(s.index, facts.axes):
                return False
    return True


def _joins(fold: Reduce | Dot, axis: str) -> bool:
    """Whether results of parts of an axis join: places do where that axis is counted first."""
    return not _is_place(fold) or fold.over[0] == axis


def _is_place(fold: Reduce | Dot) -> bool:
    return _combine(fold).positional


def _folds(value: Value, axis: str) -> bool:
    return isinstance(value, (Reduce, Dot)) and axis in value.over


def _combine(fold: Reduce | Dot) -> Combine:
    return COMBINES[SUM_OF_PRODUCTS[0] if isinstance(fold, Dot) else fold.combine]


def names_in(value: Value) -> list[str]:
    """Bound names that a value reads."""
    match value:
        case Ref(name=name):
            return [name]
        case Load(index=index):
            return [a.name for e in index for a in atoms(e) if a.kind == "value"]
        case IndexValue(index=index):
            return [a.name for a in atoms(index) if a.kind == "value"]
        case Apply(args=args):
            return [n for a in args for n in names_in(a)]
        case Cast(arg=arg) | Reduce(arg=arg) | Scan(arg=arg):
            return names_in(arg)
        case Dot(left=left, right=right):
            return names_in(left) + names_in(right)
        case _:
            return []


def _split_kernel(
    name: str,
    d: Definition,
    facts: Facts,
    grid: list[Axis],
    axis: Axis,
    rows: int | None,
    parts: Index | None = None,
) -> Kernel:
    """Folds over `axis` become carried states of a stream over parts of it, all of a part at once
    or some rows."""
    states: list[State] = []
    inside: list[Statement] = []
    after: list[Statement] = []
    late: set[str] = set()
    for s in d.body:
        if (
            isinstance(s, Let)
            and isinstance(fold := s.value, (Reduce, Dot))
            and _folds(fold, axis.name)
        ):
            row, dtype = _combine(fold), fold.dtype
            late.add(s.name)
            axes = tuple(sorted(facts.axes[s.name] - {a.name for a in grid}))
            if row.positional:
                (held, place), steps = winner(d, s, axis, axes)
                states += [held, place]
                inside += steps
                continue
            if isinstance(fold, Dot):
                parts, dtype = product_parts(axis.extent), dtype.compute
            states.append(State(s.name, Const(row.identity(fold.dtype), dtype), axes, dtype))
            inside.append(Update(s.name, Apply(row.scalar, (Ref(s.name), fold))))
        elif (
            any(n in late for n in names_in(s.value))
            if isinstance(s, (Let, Position, Store))
            else False
        ):
            after.append(s)
            if isinstance(s, (Let, Position)):
                late.add(s.name)
        elif isinstance(s, Store) and axis.name not in index_axes(s.index, facts.axes):
            after.append(s)
        else:
            inside.append(s)
    inside, after = _needed_after(inside, after)
    if parts is None:
        parts = parts_for(d, grid, axis, rows)
    names = ("p", "part", *(f"p{k}" for k in range(len(d.axes))))
    part = next(name for name in names if name not in d.axes)
    stream = Stream((Block(axis.name, rows, None, part),), tuple(states), tuple(inside))
    body = (stream, Merge(part, tuple(s.name for s in states)), *after)
    blocks = (*(Block(a.name, 1) for a in grid), Split(part, axis.name, parts))
    return Kernel(name, tuple(d.inputs), tuple(d.outputs), tuple(d.axes.values()), blocks, body)


def parts_for(d: Definition, grid: Sequence[Axis], axis: Axis, rows: int | None) -> Index:
    """How many parts an axis is split into, of whose positions so many are taken at once: each has
    rows enough where it has results for many columns, else elements enough."""
    columns = any(a.name in fastest(d) for a in grid) or _is_column_by_column(d, axis)
    if columns:
        return parts_of(axis.extent, max(rows or 1, PART_ROWS))
    width = product(a.extent for a in d.axes.values() if a not in grid and a.name != axis.name)
    return fold_parts(axis.extent, width)


def _needed_after(
    inside: list[Statement], after: list[Statement]
) -> tuple[list[Statement], list[Statement]]:
    """Copies what `after` reads but `inside` defines (values without the split axis), and leaves
    inside only what is read there."""
    defined = {s.name: s for s in inside if isinstance(s, (Let, Position))}
    wanted: list[str] = []
    pending = [n for s in after if isinstance(s, (Let, Position, Store)) for n in names_in(s.value)]
    while pending:
        n = pending.pop()
        if n in defined and n not in wanted:
            wanted.append(n)
            pending.extend(names_in(defined[n].value))
    copies: list[Statement] = [
        s for s in inside if isinstance(s, (Let, Position)) and s.name in wanted
    ]
    return live(inside), copies + after


def live(body: list[Statement]) -> list[Statement]:
    """The statements without values that nobody reads."""
    names: set[str] = set()
    kept: list[Statement] = []
    for s in reversed(body):
        if isinstance(s, (Store, Update)) or (isinstance(s, (Let, Position)) and s.name in names):
            kept.append(s)
            names.update(names_in(s.value))
    return kept[::-1]
