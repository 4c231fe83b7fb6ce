"""Apply rewrite rules bottom-up until none matches, and count which fired.

The engine works on any representation that shows its values through `smelt.rewrite.term.Values`.

    rewriter = Rewriter(GraphValues(), EXACT)
    node = rewriter.rewrite(node)          # operands first: the operands must be rewritten already
    rewriter.fired                         # Counter({'double negation': 1})
"""

from __future__ import annotations

from collections import Counter
from typing import Generic

import numpy as np

from smelt.rewrite.match import match
from smelt.rewrite.rule import Rule, RuleSet
from smelt.rewrite.term import Call, Num, Number, Term, V, Values, Var, number_type
from smelt.types.dtype import DType

MAX_APPLICATIONS = 64
"""Maximum rules that fire on one value and its parts. Every rule makes terms cheaper, so that this
is never reached."""


class Rewriter(Generic[V]):
    """Applies `rules` to values, one value at a time."""

    def __init__(self, values: Values[V], rules: RuleSet) -> None:
        self.values = values
        self.fired: Counter[str] = Counter()
        self._rules = rules.by_operator
        self._budget = MAX_APPLICATIONS

    def rewrite(self, value: V) -> V:
        """Return `value` in its simplest form; its operands must be in theirs."""
        self._budget = MAX_APPLICATIONS
        return self._rewrite(value)

    def _rewrite(self, value: V) -> V:
        while self._budget > 0:
            op = self.values.op(value)
            new = None if op is None else self._apply_first(value, op)
            if new is None:
                break
            value = new
        return value

    def _apply_first(self, value: V, op: str) -> V | None:
        for left, rule in self._rules.get(op, ()):
            bound = match(left, value, self.values)
            if bound is None or not self._is_allowed(rule, bound):
                continue
            self._budget -= 1
            new = self._build(rule.right, bound, rule, value, self.values.dtype(value))
            if new is not None:
                self.fired[rule.name] += 1
                return new
        return None

    def _is_allowed(self, rule: Rule, bound: dict[str, V]) -> bool:
        dtype = self.values.dtype(bound[rule.subject])
        if not rule.accepts(dtype):
            return False
        return rule.when is None or rule.when(self._numbers(rule, bound), dtype)

    def _numbers(self, rule: Rule, bound: dict[str, V]) -> dict[str, Number]:
        numbers = {
            name: self.values.number(v) for name, v in bound.items() if name in rule.constants
        }
        return {name: number for name, number in numbers.items() if number is not None}

    def _build(self, t: Term, bound: dict[str, V], rule: Rule, like: V, dtype: DType) -> V | None:
        """Build and rewrite the value of `t` on the right side of a rule.

        Numbers without typed siblings get `dtype`.
        """
        if isinstance(t, Var):
            if t.name in bound:
                return bound[t.name]
            number = rule.compute[t.name](self._numbers(rule, bound))
            return self.values.constant(number, dtype, like)
        if isinstance(t, Num):
            number = t.value_for(dtype)
            return None if number is None else self.values.constant(number, dtype, like)
        parts: dict[int, V] = {}
        for are_typed in (True, False):  # numbers last: they take the type of their siblings
            for k, arg in enumerate(t.args):
                if _is_typed(arg, bound) is not are_typed:
                    continue
                sibling_types = {j: self.values.dtype(v) for j, v in parts.items()}
                part = self._build(
                    arg, bound, rule, like, number_type(t.row, sibling_types) or dtype
                )
                if part is None:
                    return None
                parts[k] = part
        return self._apply(t, tuple(parts[k] for k in range(len(t.args))), like)

    def _apply(self, t: Call, args: tuple[V, ...], like: V) -> V:
        """Apply the operator to values; computed now if all of them are numbers."""
        numbers = [self.values.number(a) for a in args]
        if all(n is not None for n in numbers):
            dtypes = [self.values.dtype(a) for a in args]
            arrays = [np.asarray(n).astype(d.numpy) for n, d in zip(numbers, dtypes)]
            computed = np.asarray(t.row.numpy(*arrays))
            result = t.row.result(*dtypes)
            number = computed.astype(np.float64) if result.is_float else computed
            return self.values.constant(number.item(), result, like)
        return self._rewrite(self.values.apply(t.op, args, like))


def _is_typed(t: Term, bound: dict[str, V]) -> bool:
    """Whether a part of a right side has a type of its own."""
    return isinstance(t, Call) or (isinstance(t, Var) and t.name in bound)
