"""Derive how the states of a split stream merge, or reject the split.

An update `s' = t(s) + x` adds a block's contribution x to the old state, which t rescales to the
new running shift. Two parts of the stream then merge as `t(s of one) + t(s of the other)`,
rescaled to the merged shift: the monoid of online softmax and its relatives (see
`docs/derivations.md`, merges).

    l' = ldexp(l, r - r') + sum(w over n)    merges as    ldexp(l1, r1 - r) + ldexp(l2, r2 - r)

Requirements: an associative operator, its identity as the initial value, and a t that distributes
over the operator, is the identity for equal shifts, and composes: t(a to b) then t(b to c) is t(a
to c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from smelt.errors import VerifyError
from smelt.kernel import ir
from smelt.kernel.walk import transform, visit
from smelt.ops.cast import cast_reference
from smelt.ops.combine import CHOICE, EXTREMES
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType

_SCALES = {"add": ("mul", "div", "ldexp"), "max": ("add", "sub"), "min": ("add", "sub")}
"""Scalar operators that distribute over a reduction operator in one operand.

The operand is the first one, or either one of a commutative operator.
"""


@dataclass(frozen=True, slots=True)
class MergeRule:
    """Merge of one state: op(rescaled state of one part, rescaled state of the other).

    In `rescaled`, a Ref to an old state reads the part's state; a new one (`s'`) reads the
    merged state.
    """

    state: str
    op: str
    rescaled: ir.Value


def merge_rules(kernel: ir.Kernel) -> dict[str, MergeRule]:
    """Return the merge rule of every state that the kernel merges, in evaluation order.

    Raises VerifyError for a state whose update does not define a monoid.
    """
    rules: dict[str, MergeRule] = {}
    for merge in kernel.body:
        if isinstance(merge, ir.Merge):
            stream = _stream_of(kernel, merge.part)
            rules.update(_Deriver(stream, merge.states).rules())
    return rules


def _stream_of(kernel: ir.Kernel, part: str) -> ir.Stream:
    streams = [
        s for s in kernel.body if isinstance(s, ir.Stream) and any(b.part == part for b in s.blocks)
    ]
    if len(streams) != 1:
        raise VerifyError(f"merge {part}: {len(streams)} streams are spread over {part}, not one")
    return streams[0]


class _Deriver:
    def __init__(self, stream: ir.Stream, names: tuple[str, ...]) -> None:
        self.lets = {s.name: s.value for s in stream.body if isinstance(s, ir.Let)}
        self.updates = {s.state: s.value for s in stream.body if isinstance(s, ir.Update)}
        self.states = {s.name: s for s in stream.states if s.name in names}
        for name in names:
            if name not in self.states:
                raise VerifyError(f"merge: {name} is not a state of the split stream")
            if name not in self.updates:
                raise VerifyError(f"merge: {name} is never updated, its parts hold nothing")

    def rules(self) -> dict[str, MergeRule]:
        return {name: self._rule(name) for name in self.updates if name in self.states}

    def _rule(self, name: str) -> MergeRule:
        update = self._inlined(self.updates[name])
        if not isinstance(update, ir.Apply) or len(update.args) != 2:
            self._refuse(name, "its update is not an operator on two values")
        row = SCALARS[update.op]
        if not (row.associative and row.commutative):
            self._refuse(name, f"{update.op} is not associative and commutative")
        first, second = update.args
        carried, new = (first, second) if self._reads(first, name) else (second, first)
        if not self._reads(carried, name):
            self._refuse(name, "its update forgets the old state")
        if any(self._reads(new, other) for other in self.states):
            self._refuse(name, "what a block adds depends on an old state")
        self._check_identity(self.states[name], update.op)
        self._check_distributes(name, update.op, carried)
        self._check_composition(name, carried)
        return MergeRule(name, update.op, carried)

    def _refuse(self, name: str, reason: str) -> NoReturn:
        raise VerifyError(f"the state {name} is not a monoid that parts can join in: {reason}")

    def _inlined(self, v: ir.Value) -> ir.Value:
        """Inline bound names in `v` whose definitions read an old or new state."""

        def change(x: ir.Value) -> ir.Value:
            if isinstance(x, ir.Ref) and not x.next and x.name in self.lets:
                inner = self._inlined(self.lets[x.name])
                if any(isinstance(y, ir.Ref) and y.name in self.states for y in visit(inner)):
                    return inner
            return x

        return transform(v, change)

    def _reads(self, v: ir.Value, name: str) -> bool:
        return ir.Ref(name) in set(visit(v))

    # ---- monoid laws ---------------------------------------------------------------------------

    def _check_identity(self, state: ir.State, op: str) -> None:
        init, row = state.init, SCALARS[op]
        if isinstance(init, ir.Const):
            if op == "max" and init.value == ir.NO_EXPONENT:
                return
            identity = None if row.identity is None else row.identity(init.dtype)
            if identity is not None and ir.Const(identity, init.dtype).value == init.value:
                return
        self._refuse(state.name, f"its first value is not the identity of {op}")

    def _check_distributes(self, name: str, op: str, carried: ir.Value) -> None:
        """Check from its form that the rescaling distributes over the operator."""
        while carried != ir.Ref(name):
            if (selected := self._selected(name, op, carried)) is not None:
                carried = selected
                continue
            if not isinstance(carried, ir.Apply) or carried.op not in _SCALES.get(op, ()):
                self._refuse(name, f"its old value reaches {op} through more than a rescaling")
            place = 0
            if SCALARS[carried.op].commutative and not self._reads(carried.args[0], name):
                place = 1
            factor = carried.args[1 - place]
            if self._reads(factor, name) or not self._reads(carried.args[place], name):
                self._refuse(name, "its rescaling depends on itself")
            for v in visit(factor):
                is_plain = isinstance(v, ir.Const | ir.Apply | ir.Cast)
                if not is_plain and not (isinstance(v, ir.Ref) and v.name in self.states):
                    self._refuse(name, "its rescaling depends on more than merged states")
            carried = carried.args[place]

    def _selected(self, name: str, op: str, carried: ir.Value) -> ir.Value | None:
        """Return the value a select carries over, or None if `carried` is not a select.

        The select must yield the old value or the identity, by a condition on shifts that only
        grow or only fall: if the old value is kept at the end, it was kept in every step.
        """
        if not isinstance(carried, ir.Apply) or carried.op != CHOICE:
            return None
        condition, selected, other = carried.args
        shifts = {v.name for v in visit(condition) if isinstance(v, ir.Ref)}
        is_plain = all(isinstance(v, ir.Const | ir.Apply | ir.Ref) for v in visit(condition))
        identity = SCALARS[op].identity
        is_identity = (
            isinstance(other, ir.Const)
            and identity is not None
            and other.value == identity(other.dtype)
        )
        if not (is_plain and is_identity and shifts <= set(self.states) - {name}):
            self._refuse(name, "its old value is chosen by more than merged states")
        for shift in shifts:
            update = self._inlined(self.updates[shift])
            if not (
                isinstance(update, ir.Apply)
                and update.op in EXTREMES
                and ir.Ref(shift) in update.args
            ):
                self._refuse(name, f"its old value is chosen by {shift}, which comes back")
        return selected

    def _check_composition(self, name: str, carried: ir.Value) -> None:
        """Check on samples that equal shifts rescale by 1 and that rescalings compose."""
        shifts = sorted({v.name for v in visit(carried) if isinstance(v, ir.Ref)} - {name})
        start = self._sample(name, 2)
        for offset in range(3):
            a, b, c = ({g: self._sample(g, k * 3 + offset) for g in shifts} for k in range(3))
            same = self._rescale(carried, name, start, a, a)
            direct = self._rescale(carried, name, start, a, c)
            onward = self._rescale(carried, name, self._rescale(carried, name, start, a, b), b, c)
            if not (np.allclose(same, start) and np.allclose(direct, onward, rtol=1e-4)):
                self._refuse(name, "its rescaling depends on more than the difference of gauges")

    def _dtype(self, name: str) -> DType:
        state = self.states[name]
        init = state.init
        dtype = state.dtype or (init.dtype if isinstance(init, ir.Const) else _unknown(name))
        return dtype.compute

    def _sample(self, name: str, k: int) -> Any:
        dtype, number = self._dtype(name), (3, 1, 2, -1, 4, 5, 2, 7, 3)[k % 9]
        return np.asarray(abs(number) if dtype.kind == "uint" else number, dtype.numpy)

    def _rescale(
        self,
        carried: ir.Value,
        name: str,
        start: Any,
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Any:
        def number(v: ir.Value) -> Any:
            match v:
                case ir.Const(value=value, dtype=dtype):
                    return np.asarray(value, dtype.numpy)
                case ir.Ref(name=ref, next=following):
                    if ref == name:
                        return start
                    return (new if following else old)[ref]
                case ir.Cast(arg=arg, dtype=dtype):
                    return cast_reference(number(arg), dtype)
                case ir.Apply(op=op, args=args):
                    return SCALARS[op].numpy(*(number(a) for a in args))
                case _:
                    raise AssertionError(f"{v} is checked not to occur")

        with np.errstate(all="ignore"):
            return number(carried)


def _unknown(name: str) -> NoReturn:
    raise VerifyError(f"the state {name} has no type")
