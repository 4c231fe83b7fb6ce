r"""Collect the bounds checks that a graph's gathers and scatters need.

Kernels clamp every index into its axis, so they never read out of bounds; NumPy and PyTorch raise
an error for an index out of bounds, and so do we.  Indices that depend on sizes alone become
conditions on sizes, checked before the graph runs.  Indices that depend on data are checked by the
graph itself, with one more output: whether any is out of bounds.  Indices that are provably in
bounds, such as an argmax, a clamped value or a remainder, cost nothing.  An empty axis has no
index to clamp to: that whoever reads or writes there has nothing to do is a condition on sizes.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n], i: i64[m]) {\n v0 = gather(x, i) {first=0}\n return v0\n}")
>>> collect_bounds_checks(graph.outputs).flag
<reduce.any bool[]>
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from typing import NoReturn

from smelt import knobs
from smelt.errors import OutsideError
from smelt.graph import build
from smelt.graph.bounds import constant_value, is_in_bounds, value_range
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop, loop_key
from smelt.ops.create import Input, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce
from smelt.ops.view import Expand, Flip, Permute, Reshape, Slice
from smelt.python.dataclass import dataclass
from smelt.python.origin import Origin
from smelt.types.dtype import DType, i64
from smelt.types.expr import Index, add, mul, nonnegative, product, sizes_of, sub

Trust = Callable[[Node, Node], bool]
"""Whether indices (as used, and before negative ones were wrapped) have been checked before."""
Reader = tuple[str, "Origin | None"]
"""Description of an operator, and its origin in the user's program."""
Read = tuple[Node, Index, Reader]
"""Indices, the extent of their axis, and the operator that reads there."""


@dataclass(frozen=True, slots=True)
class BoundsChecks:
    """Conditions on the indices that a graph reads or writes."""

    flag: Node | None = None
    """A boolean scalar: whether any index that depends on data is out of bounds."""
    sizes: tuple[Index, ...] = ()
    """Expressions that may not be negative: distances of the least index from the start of its
    axis, and of the greatest from the end."""
    readers: tuple[Reader, ...] = ()
    """Operators whose indices are not provably in bounds."""
    conditions: tuple[tuple[Node, Index, Index, Reader], ...] = ()
    """Checks in `flag`: indices, least allowed index, extent of the axis, and the first operator
    that reads there."""


def collect_bounds_checks(
    outputs: Sequence[Node],
    promised: Collection[Node] = (),
    signed: Collection[str] = (),
    more: Sequence[Read] = (),
    trusted: Trust | None = None,
    guard: Callable[[Index], bool] | None = None,
) -> BoundsChecks:
    """Return the checks for these outputs, and for `more` reads.

    Args:
        outputs: results of the graph.
        promised: gathers and scatters whose own rule keeps indices in bounds.
        signed: sizes that may be negative numbers.
        more: further reads to check.
        trusted: whether indices have been checked before, given as used and before wrapping.
        guard: whether an expression is not negative, in this call and all that run the graph. If
            the greatest index that codes can name is inside their table, no data is checked.
    """
    nodes = Graph("looks", (), (*outputs, *(at for at, _, _ in more))).nodes()
    reads = [*((*r, True) for r in _reads(nodes, promised)), *((*r, False) for r in more)]
    depends: set[Node] = set()
    for node in nodes if reads else ():
        if isinstance(node.op, Input) or any(x in depends for x in node.inputs):
            depends.add(node)
    flags: dict[tuple[Index, ...], dict[tuple[Node, Index, Index], Node]] = {}
    sizes: dict[Index, None] = {}
    readers: dict[Reader, None] = {}
    conditions: list[tuple[Node, Index, Index, Reader]] = []
    check_data = knobs.CHECK_POSITIONS.get()
    for at, low, extent, operator in _loop_positions(nodes) if check_data else ():
        checks = flags.setdefault(at.type.shape, {})
        checks[at, low, extent] = _is_out_of_bounds(at, low, extent)
        readers[operator] = None
        conditions.append((at, low, extent, operator))
    for at, extent, operator, from_graph in reads:
        if trusted is not None and trusted(
            _core(at), _core(_unwrap_negative(_base(at), extent)[0])
        ):
            continue
        if guard is not None and at in depends and not isinstance(extent, int):
            least, greatest = value_range(at)
            are_codes = isinstance(least, int) and least >= 0
            if are_codes and isinstance(greatest, int) and guard(sub(extent, greatest + 1)):
                continue
        base, low = _unwrap_negative(_base(at), extent)
        span = _span(base)
        distances = () if span is None else (sub(span[0], low), sub(sub(extent, 1), span[1]))
        unproven = [
            _if_nonempty(n, at.type.shape)
            for n in distances
            if not nonnegative(n) or {*sizes_of(n)} & {*signed}
        ]
        if at not in depends and (span is not None or (from_graph and low == 0)):
            # An unknown range is then a rule's own arithmetic, as for padding: indices of a caller
            # may be negative, or are among `more`.
            sizes |= dict.fromkeys(unproven)
            readers |= {operator: None} if unproven else {}
        elif check_data and (span is None or unproven) and (signed or not is_in_bounds(at, extent)):
            checks = flags.setdefault(base.type.shape, {})
            if (base, low, extent) not in checks:
                checks[base, low, extent] = _is_out_of_bounds(base, low, extent)
                readers[operator] = None
                conditions.append((base, low, extent, operator))
    for node in nodes:
        if missing := _missing_elements(node):
            sizes |= dict.fromkeys(missing)
            readers[reader(node)] = None
    return BoundsChecks(
        _any([[*group.values()] for group in flags.values()]),
        tuple(sizes),
        tuple(readers),
        tuple(conditions),
    )


def _if_nonempty(distance: Index, shape: Sequence[Index]) -> Index:
    """Return the distance, or 0 if there are no indices."""
    return mul(distance, product(d for d in shape if d == 0 or not isinstance(d, int)))


def _missing_elements(node: Node) -> list[Index]:
    """Return expressions that are negative if a node indexes an empty axis.

    The node is a gather or a scatter.  The expressions are returned for promised ones too, whose
    indices are only clamped.
    """
    if isinstance(node.op, Gather):
        x, *index = node.inputs
        extents = x.type.shape[node.op.first : node.op.first + len(index)]
        shape = node.type.shape
    elif isinstance(node.op, Scatter):
        x, updates, *index = node.inputs
        extents = x.type.shape[: len(index)]
        # One number may be written at every position, so the indices decide as well.
        shapes = (updates.type.shape, *(at.type.shape for at in index), x.type.shape[len(index) :])
        shape = tuple(dict.fromkeys(d for dims in shapes for d in dims))
    else:
        return []
    distances = [_if_nonempty(sub(n, 1), shape) for n in extents if not nonnegative(sub(n, 1))]
    return [n for n in distances if not nonnegative(n)]


def _reads(nodes: Sequence[Node], promised: Collection[Node]) -> Iterator[Read]:
    for node in nodes:
        if node in promised:
            continue
        if isinstance(node.op, Gather):
            x, *index = node.inputs
            for k, at in enumerate(index):
                yield at, x.type.shape[node.op.first + k], reader(node)
        elif isinstance(node.op, Scatter):
            x, _, *index = node.inputs
            for k, at in enumerate(index):
                yield at, x.type.shape[k], reader(node)


def _loop_positions(nodes: Sequence[Node]) -> Iterator[tuple[Node, Index, Index, Reader]]:
    """Iterate over the positions that loops carry to be checked, with their bounds."""
    seen: set[object] = set()
    for node in nodes:
        if not isinstance(node.op, Loop) or (key := loop_key(node)) in seen:
            continue
        seen.add(key)
        for op, low, end in node.op.checked:
            origin = op.body.graph.outputs[op.which].origin
            yield build.apply(op, *node.inputs, origin=node.origin), low, end, ("a loop", origin)


def _any(groups: Sequence[Sequence[Node]]) -> Node | None:
    """Return whether any element is true; shapes are equal within a group."""
    total: Node | None = None
    for group in groups:
        each = reduce(_or, group)
        if each.type.rank:
            each = build.apply(Reduce("any", tuple(range(each.type.rank))), each)
        total = each if total is None else _or(total, each)
    return total


def _or(a: Node, b: Node) -> Node:
    return build.map("or", a, b)


def _is_out_of_bounds(at: Node, low: Index, extent: Index) -> Node:
    """Whether each index is below `low`, or at `extent` or above."""
    dtype = at.type.dtype
    above = build.map("ge", at, _number(extent, dtype))
    if dtype.kind == "uint":
        return above
    return build.map("or", build.map("lt", at, _number(low, dtype)), above)


def _number(n: Index, dtype: DType) -> Node:
    return build.constant(n, dtype) if isinstance(n, int) else build.apply(SizeOf(n, dtype))


def _core(at: Node) -> Node:
    """Return the indices behind views and integer casts."""
    at = _base(at)
    while isinstance(at.op, Cast) and at.inputs[0].type.dtype.is_integer:
        at = _base(at.inputs[0])
    return at


def _base(at: Node) -> Node:
    """Return the indices behind views that only rearrange or repeat them."""
    while isinstance(at.op, (Expand, Reshape, Permute, Flip)):
        (at,) = at.inputs
    return at


def _unwrap_negative(at: Node, extent: Index) -> tuple[Node, Index]:
    """Return indices before negative ones were wrapped, and the least allowed index.

    Indices without wrapping are returned as they are, with 0.
    """
    if isinstance(at.op, Map) and at.op.scalar == "select":
        test, wrapped, unwrapped = at.inputs
        if (
            isinstance(test.op, Map)
            and test.op.scalar == "lt"
            and test.inputs[0] is unwrapped
            and constant_value(test.inputs[1]) == 0
            and isinstance(wrapped.op, Map)
            and wrapped.op.scalar == "add"
            and wrapped.inputs[0] is unwrapped
            and constant_value(wrapped.inputs[1]) == extent
        ):
            return _base(unwrapped), mul(extent, -1)
    return at, 0


def _span(at: Node) -> tuple[Index, Index] | None:
    """Return the least and the greatest index, both attained, or None if unknown."""
    at = _base(at)
    constant = constant_value(at)
    if constant is not None:
        return constant, constant
    if isinstance(at.op, Iota):
        return 0, sub(at.op.shape[at.op.axis], 1)
    if isinstance(at.op, Slice):
        (x,) = at.inputs
        if not isinstance(x.op, Iota):
            return None
        a = x.op.axis
        first, step = at.op.starts[a], at.op.steps[a]
        return (first, add(first, mul(sub(at.op.sizes[a], 1), step))) if step > 0 else None
    if isinstance(at.op, Cast):
        (x,) = at.inputs
        return _span(x) if x.type.dtype.kind in ("int", "uint") and at.op.dtype == i64 else None
    if not isinstance(at.op, Map):
        return None
    if at.op.scalar == "select":
        unwrapped = _span(at.inputs[2])
        tests_sign = isinstance(at.inputs[0].op, Map) and at.inputs[0].op.scalar == "lt"
        is_wrapping = tests_sign and at.inputs[0].inputs[0] is at.inputs[2]
        return (
            unwrapped
            if is_wrapping and unwrapped is not None and nonnegative(unwrapped[0])
            else None
        )
    if at.op.scalar in ("add", "sub", "mul") and len(at.inputs) == 2:
        x, c = at.inputs
        if constant_value(c) is None and at.op.scalar != "sub":
            x, c = c, x
        limits, n = _span(x), constant_value(c)
        if limits is None or n is None:
            return None
        if at.op.scalar == "mul":
            return (mul(limits[0], n), mul(limits[1], n)) if nonnegative(n) else None
        shift = add if at.op.scalar == "add" else sub
        return shift(limits[0], n), shift(limits[1], n)
    return None


def reader(node: Node) -> Reader:
    """Describe an operator for an out-of-bounds error."""
    return getattr(node.origin, "operator", "") or f"a {node.op.doc}", node.origin


def refuse_out_of_bounds(readers: Sequence[Reader]) -> NoReturn:
    """Raise OutsideError, naming the operators that may have read out of bounds."""
    descriptions = dict.fromkeys(_description(*r, is_only=len(readers) == 1) for r in readers)
    first = next((o for _, o in readers if o is not None and o.known), None)
    raise OutsideError(reader=" or ".join(descriptions), origin=first)


def _description(operator: str, origin: Origin | None, *, is_only: bool) -> str:
    """Describe an operator with its module or, if there are several, its line."""
    module = getattr(origin, "module", None)
    if module is None and not is_only and origin is not None and origin.known:
        return f"{operator} ({origin})"
    return f"{operator} {module or ''}".strip()
