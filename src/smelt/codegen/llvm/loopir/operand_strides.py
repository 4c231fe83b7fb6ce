"""Find along which axes operands of contractions are contiguous, or have fixed strides."""

from __future__ import annotations

from smelt.codegen.llvm.loopir.items import Item, Load
from smelt.codegen.llvm.loopir.periodic_index import find_period
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Index, axes_of


def contiguous_axis(x: Item, axes: tuple[str, ...]) -> str:
    """Return the axis along which most of a value's loads have stride 1.

    It is one of `axes`.
    """
    votes = dict.fromkeys(axes, 0)
    pending, seen = [x], {x}
    while pending:
        item = pending.pop()
        new_args = [a for a in item.args if a not in seen]
        pending += new_args
        seen.update(new_args)
        if isinstance(item, Load):
            for a in axes:
                if _is_unit_stride(item.access.offset, a):
                    votes[a] += 64 ** len(item.axes)
    return max(axes, key=lambda a: votes[a])


def _is_unit_stride(offset: Index, axis: str) -> bool:
    """Return whether neighbours along an axis are neighbours in memory.

    Or the same element several times, as two numbers of a byte.
    """
    step = coefficient(offset, axis)
    if step is not None:
        return step == 1
    period = find_period(offset, axis)
    return period is not None and 0 < period.step <= period.period


def is_strided_load(item: Item, dtype: DType, axes: tuple[str, str], unit: tuple[str, ...]) -> bool:
    """Return whether an operand is a plain load with fixed strides along `axes`.

    One of `unit` must have stride 1.
    """
    if not isinstance(item, Load) or item.access.limits or item.args or item.dtype != dtype:
        return False
    steps = {a: coefficient(item.access.offset, a) for a in axes}
    has_fixed_strides = all(s is not None and not axes_of(s) for s in steps.values())
    return has_fixed_strides and any(steps[a] == 1 for a in unit)
