"""How states of a split stream are joined: derived from their updates.

An update `s' = t(s) + x` folds what the block contributes, x, into the old state, which t carries
over to the new gauge.  Two parts of the stream are then joined by `t(s of the one) + t(s of the
other)`, with the joined gauges in place of the new ones: the state is a monoid.

    l' = ldexp(l, r - r') + sum(w over n)    joins as    ldexp(l1, r1 - r) + ldexp(l2, r2 - r)
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.kernel.ir import Kernel, Value


@dataclass(frozen=True, slots=True)
class MergeRule:
    """state = op(transported of one part, transported of the other).

    In `transported` an old state is that of the part, a new one (`s'`) is already joined.
    """

    state: str
    op: str
    transported: Value


def merge_rules(kernel: Kernel) -> dict[str, MergeRule]:
    """The rule of every state that the kernel merges, in the order to apply them."""
    return {}
