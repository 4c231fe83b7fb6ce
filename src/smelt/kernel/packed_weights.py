"""A kernel whose product reads an operand that was packed before: at [n//w, k, n%w].

    kernel k0(x: f32[m,768], w: f32[3072,768]) ..     v1 = w[n,k]
    kernel k0(x: f32[m,768], w: f32[96,768,32]) ..    v1 = w[n//32,k,n%32]

Short numbers, which are multiplied in groups, lie in groups: w[n//32,k//2,n%32,k%2].
The array is the one that `smelt.passes.constant_subgraph.panelled` makes.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.dataclass import dataclass
from smelt.kernel.ir import Kernel, Load, Param, Value
from smelt.kernel.walk import map_values
from smelt.types.expr import Index, add, floordiv, mod
from smelt.types.tensor import Shape


@dataclass(frozen=True, slots=True)
class Panel:
    """How a parameter is to be packed: panels of `width` positions of its dimension `across`, the
    dimension `along` from end to end in each, by groups of so many neighbours."""

    param: str
    across: int
    along: int
    width: int
    group: int = 1


def read_panels(kernel: Kernel, panel: Panel) -> Kernel:
    """The kernel on the packed parameter."""

    def change(v: Value) -> Value:
        if not isinstance(v, Load) or v.param != panel.param:
            return v
        n, k = v.index[panel.across], v.index[panel.along]
        inside = floordiv(n, panel.width), floordiv(k, panel.group), mod(n, panel.width)
        last = (mod(k, panel.group),) if panel.group > 1 else ()
        return replace(v, index=(*_others(v.index, panel), *inside, *last))

    inputs = tuple(_packed(p, panel) if p.name == panel.param else p for p in kernel.inputs)
    return replace(map_values(kernel, change), inputs=inputs)


def _packed(p: Param, panel: Panel) -> Param:
    return replace(p, shape=panelled_shape(p.shape, panel), strides=None)


def panelled_shape(shape: Shape, panel: Panel) -> Shape:
    """The packed parameter's: its other dimensions, panels, groups along them, the panels' width,
    and that of the groups where there are any."""
    count = floordiv(add(shape[panel.across], panel.width - 1), panel.width)
    deep = floordiv(add(shape[panel.along], panel.group - 1), panel.group)
    last = (panel.group,) if panel.group > 1 else ()
    return (*_others(shape, panel), count, deep, panel.width, *last)


def _others(values: tuple[Index, ...], panel: Panel) -> tuple[Index, ...]:
    return tuple(v for a, v in enumerate(values) if a not in (panel.across, panel.along))


__all__ = ["Panel", "panelled_shape", "read_panels"]
