"""Multiply by the reciprocal of a divisor that several elements share.

    y[i,j] = e[i,j] / s[i]   ->   y[i,j] = e[i,j] * (1 / s[i])

A quotient takes a reciprocal on a GPU anyway, from a unit that few lanes have; here there is one
for each divisor. The reciprocal is rounded once more. Where divisors are subnormal it may be
infinite, as such numbers may be 0 to the approximate instruction.
"""

from __future__ import annotations

from smelt.kernel.env import Env, dtype_of
from smelt.kernel.ir import Apply, Const, Kernel, Value
from smelt.kernel.walk import axes_of_body, axes_of_value, map_values, visit_body
from smelt.types.dtype import f32


def share_divisors(kernel: Kernel) -> Kernel:
    """Return a kernel whose float32 quotients by values of fewer axes are products."""
    if not any(isinstance(v, Apply) and v.op == "div" for v in visit_body(kernel)):
        return kernel
    names, types = axes_of_body(kernel.body), Env.after(kernel)

    def change(value: Value) -> Value:
        if not isinstance(value, Apply) or value.op != "div":
            return value
        dividend, divisor = value.args
        axes, shared = (axes_of_value(v, names) for v in (dividend, divisor))
        is_shared = bool(axes - shared) and shared <= axes and not isinstance(divisor, Const)
        if not is_shared or dtype_of(value, types) != f32:
            return value
        return Apply("mul", (dividend, Apply("div", (Const(1.0, f32), divisor))))

    return map_values(kernel, change)
