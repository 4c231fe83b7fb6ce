"""Find values that results are computed with but do not depend on: gauges.

Softmax subtracts the largest element so that nothing overflows; any other number would do. If a
value ρ can be moved without moving any result, its cotangent is zero, and no gradient needs to flow
through it (`docs/derivations.md`, running-shift). The analysis moves ρ by an arbitrary δ, different
in each row, and propagates what happens: some values are shifted by c·δ, some are scaled by
e^(k·δ), and the results must not change.

>>> from smelt.autodiff.tape import tape
>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m]) {
...   a = reduce.max(x) {axes=(1,)}
...   b = reshape(a) {shape=(n, 1)}
...   c = sub(x, b)
...   d = exp(c)
...   e = reduce.sum(d) {axes=(1,)}
...   f = log(e)
...   g = add(f, a)
...   return g
... }''')
>>> steps = tape(graph.outputs, graph.inputs)
>>> [n.op.name for n in gauges(steps, graph.outputs, graph.inputs)]
['reduce.max']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from smelt.autodiff.tape import Step
from smelt.graph.ir import Node
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Constant, Iota
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Permute, Reshape, Slice, Stop, split_groups
from smelt.python.dataclass import dataclass
from smelt.types.tensor import Shape, TensorType, broadcast_shapes


@dataclass(frozen=True)
class Perturbation:
    """Effect on a value of moving ρ by δ: v·e^(scale·δ), or v + shift·δ.

    `at` are the axes of the value along which δ differs, in the order of the axes of ρ.
    """

    at: tuple[int, ...]
    shift: float = 0.0
    scale: float = 0.0


GAUGE_TOLERANCE = 1e-6
"""A smaller shift or scale counts as none: constants such as log2(e) are rounded to float32."""

Perturbations = list[Perturbation | None]
Types = tuple[TensorType, ...]
"""Types of the operands, then of the result."""
Rule = Callable[[Any, tuple[Node, ...], Perturbations, Types], "Perturbation | None"]
TypeOf = Callable[[Node], TensorType]


def raw_type(x: Node) -> TensorType:
    """Return the type that a node was made with."""
    return x.type


class _UnknownError(Exception):
    """The effect on a value cannot be determined."""


def gauges(
    steps: Sequence[Step], results: Iterable[Node], wrt: Iterable[Node], see: TypeOf = raw_type
) -> list[Node]:
    """Return the min/max reductions that may move without any result moving.

    Also values computed from such reductions alone.
    """
    ends = set(results)
    result: list[Node] = []
    candidates: set[Node] = set()
    active = {*wrt, *(step.node for step in steps)}
    for position, (node, op, inputs) in enumerate(steps):
        active_inputs = [x for x in inputs if x in active]
        extreme = isinstance(op, Reduce) and op.row.idempotent
        derived = bool(active_inputs) and all(x in candidates for x in active_inputs)
        if not (extreme or derived) or any(x in result for x in inputs):
            continue
        candidates.add(node)
        if _is_gauge(node, steps[position + 1 :], ends, see):
            result.append(node)
    return result


def _is_gauge(rho: Node, later: Sequence[Step], ends: set[Node], see: TypeOf) -> bool:
    axes = tuple(k for k, n in enumerate(see(rho).shape) if n != 1)
    moved: dict[Node, Perturbation] = {rho: Perturbation(axes, shift=1.0)}
    if rho in ends:
        return False
    try:
        for node, op, inputs in later:
            forms = [moved.get(x) for x in inputs]
            if not any(forms):
                continue
            rule = _RULES.get(type(op))
            if rule is None:
                return False
            form = rule(op, inputs, forms, tuple(map(see, (*inputs, node))))
            if form is None or max(abs(form.shift), abs(form.scale)) < GAUGE_TOLERANCE:
                continue
            if node in ends:
                return False
            moved[node] = form
    except _UnknownError:
        return False
    return True


# ---- elementwise ---------------------------------------------------------------------------------


def _map(
    op: Map, inputs: tuple[Node, ...], forms: Perturbations, types: Types
) -> Perturbation | None:
    rule = _SCALARS.get(op.scalar)
    if rule is None:
        raise _UnknownError
    rank = types[-1].rank
    aligned = [
        None if f is None else replace(f, at=tuple(a + rank - x.type.rank for a in f.at))
        for x, f in zip(inputs, forms, strict=True)
    ]
    axes_sets = {f.at for f in aligned if f is not None}
    if len(axes_sets) != 1:
        raise _UnknownError
    (at,) = axes_sets
    full = [f or Perturbation(at) for f in aligned]
    return replace(rule(inputs, full), at=at)


def _number(x: Node) -> float | None:
    while isinstance(x.op, (Expand, Reshape, Cast)) and x.inputs:
        (x,) = x.inputs
    return x.op.value if isinstance(x.op, Constant) else None


def _only(form: Perturbation, kind: str) -> float:
    """Return the shift or the scale of a value that has only that one."""
    if getattr(form, "scale" if kind == "shift" else "shift"):
        raise _UnknownError
    return float(getattr(form, kind))


def _sum(inputs: tuple[Node, ...], forms: list[Perturbation], sign: float) -> Perturbation:
    left, right = forms
    if left.scale or right.scale:
        if left.scale != right.scale or left.shift or right.shift:
            raise _UnknownError
        return left
    return replace(left, shift=left.shift + sign * right.shift)


def _product(inputs: tuple[Node, ...], forms: list[Perturbation], sign: float) -> Perturbation:
    left, right = forms
    number = _number(inputs[1])
    if left.shift and number:
        return replace(left, shift=left.shift * (number if sign > 0 else 1 / number))
    first = _number(inputs[0])
    if right.shift and first and sign > 0:
        return replace(right, shift=right.shift * first)
    return replace(left, scale=_only(left, "scale") + sign * _only(right, "scale"))


def _powers(factor: float) -> Callable[[tuple[Node, ...], list[Perturbation]], Perturbation]:
    return lambda inputs, forms: replace(forms[0], scale=factor * _only(forms[0], "scale"))


def _exponential(unit: float) -> Callable[[tuple[Node, ...], list[Perturbation]], Perturbation]:
    return lambda inputs, forms: Perturbation(forms[0].at, scale=unit * _only(forms[0], "shift"))


def _logarithm(unit: float) -> Callable[[tuple[Node, ...], list[Perturbation]], Perturbation]:
    return lambda inputs, forms: Perturbation(forms[0].at, shift=_only(forms[0], "scale") / unit)


def _select_between(inputs: tuple[Node, ...], forms: list[Perturbation]) -> Perturbation:
    """Both operands of a choice must move equally; 0 absorbs scales and infinity shifts."""
    live = [
        f
        for x, f in zip(inputs, forms, strict=True)
        if not (f.shift == f.scale == 0 and _number(x) is not None and _is_invariant(x, forms))
    ]
    if not live or any(f != live[0] for f in live):
        raise _UnknownError
    return live[0]


def _is_invariant(x: Node, forms: list[Perturbation]) -> bool:
    """Whether a constant is unchanged by the scale or shift of the others."""
    number = _number(x)
    if number == 0:
        return all(f.shift == 0 for f in forms)
    return number is not None and math.isinf(number) and all(f.scale == 0 for f in forms)


def _select(inputs: tuple[Node, ...], forms: list[Perturbation]) -> Perturbation:
    """Select: the mask is a step function and does not move with an infinitesimal δ.

    A sum that is replaced by a constant where it is zero, to divide by it, moves like the sum:
    where a sum of scaled terms is zero, so are the terms, and with them what is divided.
    """
    for value, other in ((1, 2), (2, 1)):
        if _number(inputs[other]) is not None and _compares_sum_with_zero(inputs[0], inputs[value]):
            return replace(forms[value], scale=_only(forms[value], "scale"))
    return _select_between(inputs[1:], forms[1:])


def _compares_sum_with_zero(mask: Node, value: Node) -> bool:
    compares = isinstance(mask.op, Map) and mask.op.scalar in ("eq", "ne") and mask.inputs
    if not compares or mask.inputs[0] is not value or _number(mask.inputs[1]) != 0:
        return False
    while isinstance(value.op, (Expand, Reshape)) and value.inputs:
        (value,) = value.inputs
    return isinstance(value.op, Reduce) and value.op.combine == "sum"


_SCALARS: dict[str, Callable[[tuple[Node, ...], list[Perturbation]], Perturbation]] = {
    "add": lambda inputs, forms: _sum(inputs, forms, 1.0),
    "sub": lambda inputs, forms: _sum(inputs, forms, -1.0),
    "neg": lambda inputs, forms: replace(forms[0], shift=-forms[0].shift),
    "mul": lambda inputs, forms: _product(inputs, forms, 1.0),
    "div": lambda inputs, forms: _product(inputs, forms, -1.0),
    "reciprocal": _powers(-1.0),
    "square": _powers(2.0),
    "sqrt": _powers(0.5),
    "rsqrt": _powers(-0.5),
    "exp": _exponential(1.0),
    "exp2": _exponential(math.log(2)),
    "log": _logarithm(1.0),
    "log2": _logarithm(math.log(2)),
    "log10": _logarithm(math.log(10)),
    "select": _select,
    "max": _select_between,
    "min": _select_between,
}


# ---- everything else -----------------------------------------------------------------------------


def _first(forms: Perturbations) -> Perturbation:
    form = forms[0]
    if form is None:
        raise _UnknownError
    return form


def _cast(op: Cast, inputs: tuple[Node, ...], forms: Perturbations, types: Types) -> Perturbation:
    return _first(forms)


def _stop(op: Stop, inputs: tuple[Node, ...], forms: Perturbations, types: Types) -> None:
    return None


def _reduce(
    op: Reduce, inputs: tuple[Node, ...], forms: Perturbations, types: Types
) -> Perturbation:
    form = _first(forms)
    additive = op.combine == "sum" and not form.shift
    if set(form.at) & set(op.axes) or not (additive or op.row.idempotent):
        raise _UnknownError
    return replace(form, at=tuple(a - sum(k < a for k in op.axes) for a in form.at))


def _permute(
    op: Permute, inputs: tuple[Node, ...], forms: Perturbations, types: Types
) -> Perturbation:
    form = _first(forms)
    return replace(form, at=tuple(op.perm.index(a) for a in form.at))


def _reshape(
    op: Reshape, inputs: tuple[Node, ...], forms: Perturbations, types: Types
) -> Perturbation:
    form = _first(forms)
    to = _kept_axes(types[0].shape, types[-1].shape)
    if any(a not in to for a in form.at):
        raise _UnknownError
    return replace(form, at=tuple(to[a] for a in form.at))


def _kept_axes(source: Shape, target: Shape) -> dict[int, int]:
    """Map axes that a reshape keeps, ignoring dimensions of size 1."""
    axes: dict[int, int] = {}
    s = t = 0
    for old, new in split_groups(source, target):
        left = [k for k, n in enumerate(old) if n != 1]
        right = [k for k, n in enumerate(new) if n != 1]
        if len(left) == len(right) == 1:
            axes[s + left[0]] = t + right[0]
        s, t = s + len(old), t + len(new)
    return axes


def _expand(
    op: Expand, inputs: tuple[Node, ...], forms: Perturbations, types: Types
) -> Perturbation:
    form = _first(forms)
    new = types[-1].rank - types[0].rank
    return replace(form, at=tuple(a + new for a in form.at))


def _slice(op: Slice, inputs: tuple[Node, ...], forms: Perturbations, types: Types) -> Perturbation:
    form = _first(forms)
    shape = types[0].shape
    for a in form.at:
        if op.starts[a] != 0 or op.steps[a] != 1 or op.sizes[a] != shape[a]:
            raise _UnknownError
    return form


def _concat(
    op: Concat, inputs: tuple[Node, ...], forms: Perturbations, types: Types
) -> Perturbation:
    form = _first(forms)
    if op.axis in form.at or any(f != form for f in forms):
        raise _UnknownError
    return form


def _gather(
    op: Gather, inputs: tuple[Node, ...], forms: Perturbations, types: Types
) -> Perturbation:
    """Keep δ along axes that are not indexed, or indexed by 0, 1, 2, .."""
    form = _first(forms)
    _, *index = inputs
    middle = broadcast_shapes(*(t.shape for t in types[1:-1]))
    at: list[int] = []
    for a in form.at:
        k = a - op.first
        if k < 0:
            at.append(a)
        elif k >= len(index):
            at.append(a - len(index) + len(middle))
        else:
            positions = index[k].op
            if not isinstance(positions, Iota) or positions.shape != index[k].type.shape:
                raise _UnknownError
            position = positions.axis + len(middle) - len(positions.shape)
            if middle[position] != types[0].shape[a]:
                raise _UnknownError
            at.append(op.first + position)
    return replace(form, at=tuple(at))


def _contract(
    op: Contract, inputs: tuple[Node, ...], forms: Perturbations, types: Types
) -> Perturbation:
    """Contraction: scales add up if δ varies along axes of the result."""
    scale, axes_sets = 0.0, set[tuple[int, ...]]()
    for terms, form in zip((op.left, op.right), forms, strict=True):
        if form is None:
            continue
        names = [bare_axis(terms[a]) for a in form.at]
        if form.shift or any(n is None or n not in op.out for n in names):
            raise _UnknownError
        scale += form.scale
        axes_sets.add(tuple(op.out.index(n) for n in names if n is not None))
    if len(axes_sets) != 1:
        raise _UnknownError
    return Perturbation(axes_sets.pop(), scale=scale)


_RULES: dict[type[TensorOp], Rule] = {
    Map: _map,
    Cast: _cast,
    Stop: _stop,
    Reduce: _reduce,
    Permute: _permute,
    Reshape: _reshape,
    Expand: _expand,
    Slice: _slice,
    Concat: _concat,
    Gather: _gather,
    Contract: _contract,
}
