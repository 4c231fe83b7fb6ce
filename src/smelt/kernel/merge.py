"""How states of a split stream are joined: derived from their updates, or refused.

An update `s' = t(s) + x` folds what a block contributes, x, into the old state, which t carries
over to the new gauge.  Two parts of the stream then join as `t(s of one) + t(s of the other)`
with the joined gauges for new ones: that is the monoid of an online softmax and its relatives.

    l' = ldexp(l, r - r') + sum(w over n)    joins as    ldexp(l1, r1 - r) + ldexp(l2, r2 - r)

It needs an associative operator, its identity as first value, a t that distributes over the
operator, is nothing for equal gauges, and composes: t(a to b) then t(b to c) is t(a to c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import VerifyError
from smelt.kernel.ir import (
    NO_EXPONENT,
    Apply,
    Cast,
    Const,
    Kernel,
    Let,
    Merge,
    Ref,
    State,
    Stream,
    Update,
    Value,
)
from smelt.kernel.walk import transform, visit
from smelt.ops.cast import cast_reference
from smelt.ops.combine import CHOICE, EXTREMES
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType

_SCALES = {"add": ("mul", "div", "ldexp"), "max": ("add", "sub"), "min": ("add", "sub")}
"""Operators whose first (or, commuted, other) operand distributes over the key."""


@dataclass(frozen=True, slots=True)
class MergeRule:
    """state = op(transported of one part, transported of the other).

    In `transported` an old state is that of the part, a new one (`s'`) is already joined.
    """

    state: str
    op: str
    transported: Value


def merge_rules(kernel: Kernel) -> dict[str, MergeRule]:
    """The rule of every state that the kernel merges, in the order to apply them.

    Raises VerifyError for a state that is no monoid under what its update says.
    """
    rules: dict[str, MergeRule] = {}
    for merge in kernel.body:
        if isinstance(merge, Merge):
            stream = _stream_of(kernel, merge.part)
            rules.update(_Deriver(stream, merge.states).rules())
    return rules


def _stream_of(kernel: Kernel, part: str) -> Stream:
    found = [
        s for s in kernel.body if isinstance(s, Stream) and any(b.part == part for b in s.blocks)
    ]
    if len(found) != 1:
        raise VerifyError(f"merge {part}: {len(found)} streams are spread over {part}, not one")
    return found[0]


class _Deriver:
    def __init__(self, stream: Stream, names: tuple[str, ...]) -> None:
        self.lets = {s.name: s.value for s in stream.body if isinstance(s, Let)}
        self.updates = {s.state: s.value for s in stream.body if isinstance(s, Update)}
        self.states = {s.name: s for s in stream.states if s.name in names}
        for name in names:
            if name not in self.states:
                raise VerifyError(f"merge: {name} is no state of the split stream")
            if name not in self.updates:
                raise VerifyError(f"merge: {name} is never updated, its parts hold nothing")

    def rules(self) -> dict[str, MergeRule]:
        return {name: self._rule(name) for name in self.updates if name in self.states}

    def _rule(self, name: str) -> MergeRule:
        update = self._inlined(self.updates[name])
        if not isinstance(update, Apply) or len(update.args) != 2:
            self._refuse(name, "its update is no operator on two values")
        row = SCALARS[update.op]
        if not (row.associative and row.commutative):
            self._refuse(name, f"{update.op} is not associative and commutative")
        first, second = update.args
        own, new = (first, second) if self._reads(first, name) else (second, first)
        if not self._reads(own, name):
            self._refuse(name, "its update forgets the old state")
        if any(self._reads(new, other) for other in self.states):
            self._refuse(name, "what a block adds depends on an old state")
        self._check_start(self.states[name], update.op)
        self._check_shape(name, update.op, own)
        self._check_gauge(name, own)
        return MergeRule(name, update.op, own)

    def _refuse(self, name: str, reason: str) -> NoReturn:
        raise VerifyError(f"the state {name} is no monoid that parts can join in: {reason}")

    def _inlined(self, v: Value) -> Value:
        """`v` without names that stand for something with an old or a new state in it."""

        def change(x: Value) -> Value:
            if isinstance(x, Ref) and not x.next and x.name in self.lets:
                inner = self._inlined(self.lets[x.name])
                if any(isinstance(y, Ref) and y.name in self.states for y in visit(inner)):
                    return inner
            return x

        return transform(v, change)

    def _reads(self, v: Value, name: str) -> bool:
        return Ref(name) in set(visit(v))

    # ---- what makes it a monoid ----------------------------------------------------------------

    def _check_start(self, state: State, op: str) -> None:
        init, row = state.init, SCALARS[op]
        if isinstance(init, Const):
            if op == "max" and init.value == NO_EXPONENT:
                return
            identity = None if row.identity is None else row.identity(init.dtype)
            if identity is not None and Const(identity, init.dtype).value == init.value:
                return
        self._refuse(state.name, f"its first value is not the identity of {op}")

    def _check_shape(self, name: str, op: str, own: Value) -> None:
        """Whether carrying over distributes over the operator, seen from its form."""
        while own != Ref(name):
            if (kept := self._chosen(name, op, own)) is not None:
                own = kept
                continue
            if not isinstance(own, Apply) or own.op not in _SCALES.get(op, ()):
                self._refuse(name, f"its old value reaches {op} through more than a rescaling")
            place = 0
            if SCALARS[own.op].commutative and not self._reads(own.args[0], name):
                place = 1
            factor = own.args[1 - place]
            if self._reads(factor, name) or not self._reads(own.args[place], name):
                self._refuse(name, "its rescaling depends on itself")
            for v in visit(factor):
                known = isinstance(v, Const | Apply | Cast)
                if not known and not (isinstance(v, Ref) and v.name in self.states):
                    self._refuse(name, "its rescaling depends on more than merged states")
            own = own.args[place]

    def _chosen(self, name: str, op: str, own: Value) -> Value | None:
        """What a choice carries over, if it takes the old value or nothing by gauges that only
        grow, or only fall: what is as it was at last was so all the while."""
        if not isinstance(own, Apply) or own.op != CHOICE:
            return None
        condition, kept, other = own.args
        gauges = {v.name for v in visit(condition) if isinstance(v, Ref)}
        plain = all(isinstance(v, Const | Apply | Ref) for v in visit(condition))
        identity = SCALARS[op].identity
        nothing = (
            isinstance(other, Const)
            and identity is not None
            and other.value == identity(other.dtype)
        )
        if not (plain and nothing and gauges <= set(self.states) - {name}):
            self._refuse(name, "its old value is chosen by more than merged states")
        for gauge in gauges:
            found = self._inlined(self.updates[gauge])
            if not (isinstance(found, Apply) and found.op in EXTREMES and Ref(gauge) in found.args):
                self._refuse(name, f"its old value is chosen by {gauge}, which comes back")
        return kept

    def _check_gauge(self, name: str, own: Value) -> None:
        """Whether equal gauges rescale by nothing and rescalings compose, on sample values."""
        gauges = sorted({v.name for v in visit(own) if isinstance(v, Ref)} - {name})
        start = self._sample(name, 2)
        for shift in range(3):
            a, b, c = ({g: self._sample(g, k * 3 + shift) for g in gauges} for k in range(3))
            same = self._carry(own, name, start, a, a)
            direct = self._carry(own, name, start, a, c)
            onward = self._carry(own, name, self._carry(own, name, start, a, b), b, c)
            if not (np.allclose(same, start) and np.allclose(direct, onward, rtol=1e-4)):
                self._refuse(name, "its rescaling depends on more than the difference of gauges")

    def _dtype(self, name: str) -> DType:
        state = self.states[name]
        init = state.init
        known = state.dtype or (init.dtype if isinstance(init, Const) else _unknown(name))
        return known.compute

    def _sample(self, name: str, k: int) -> Any:
        dtype, number = self._dtype(name), (3, 1, 2, -1, 4, 5, 2, 7, 3)[k % 9]
        return np.asarray(abs(number) if dtype.kind == "uint" else number, dtype.numpy)

    def _carry(
        self, own: Value, name: str, start: Any, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Any:
        def number(v: Value) -> Any:
            match v:
                case Const(value=value, dtype=dtype):
                    return np.asarray(value, dtype.numpy)
                case Ref(name=ref, next=following):
                    if ref == name:
                        return start
                    return (new if following else old)[ref]
                case Cast(arg=arg, dtype=dtype):
                    return cast_reference(number(arg), dtype)
                case Apply(op=op, args=args):
                    return SCALARS[op].numpy(*(number(a) for a in args))
                case _:
                    raise AssertionError(f"{v} is checked not to occur")

        with np.errstate(all="ignore"):
            return number(own)


def _unknown(name: str) -> NoReturn:
    raise VerifyError(f"the state {name} has no type")
