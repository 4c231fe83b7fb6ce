"""Emit the remainder of a row after its last full unrolled vector.

Masked vectors, except that unmasked ones come first where row groups process whole column groups,
or where an access is a permute-gather, which is slow under a mask.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.nests.environment import Environment

Value = ir.Value


def run_tail(
    env: Environment,
    bounds: tuple[Value, Value],
    at: Callable[..., Callable[[Value], None]],
) -> None:
    """Emit the positions of a row between two bounds.

    For a sum that a stream continues, the remainder is one unrolled vector, or half of it if that
    is enough.  `at` returns the body for a number of lanes, with or without the mask of the row's
    end, at multiples of a number.
    """
    b, nest, lanes = env.b, env.nest, env.s.lanes
    middle, high = bounds
    step, axis = env.reductions.tail_lanes(), nest.vector or ""
    alignment = env.loop_alignment(axis, lanes)

    def run_half_or_full(position: Value) -> None:
        fits_half = b.icmp_signed("<=", b.sub(high, position), number(step // 2))
        with b.if_else(fits_half) as (half, full_end):
            with half:
                at(step // 2, True, alignment)(position)
            with full_end:
                at(step, True, alignment)(position)

    is_single_vector = step == lanes
    groups = [x.groups.group for x in env.row_groups if nest in x.groups.nests]
    groups += [step] * (is_single_vector and any(env.step(x, axis) is None for x in env.accesses))
    for group in (n for n in groups if n < lanes * nest.unroll):
        full_end = b.add(middle, b.and_(b.sub(high, middle), number(-group)))
        env.loop(middle, full_end, group, at(group, False, alignment))
        middle = full_end
    env.loop(
        middle, high, step, at(step, True, alignment) if is_single_vector else run_half_or_full
    )
