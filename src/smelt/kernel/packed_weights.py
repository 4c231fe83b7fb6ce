"""Rewrite a kernel to read a weight packed in panels: at [n//w, k, n%w].

    kernel k0(x: f32[m,768], w: f32[3072,768]) ..     v1 = w[n,k]
    kernel k0(x: f32[m,768], w: f32[96,768,32]) ..    v1 = w[n//32,k,n%32]

Narrow types, which dot-product instructions multiply in groups, interleave `group` neighbours
along k: w[n//32,k//2,n%32,k%2]. `smelt.passes.constant_subgraph.pack_panels` makes the packed
array.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.kernel.ir import Kernel, Load, Param, Value
from smelt.kernel.walk import map_values
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, add, floordiv, mod
from smelt.types.tensor import Shape


@dataclass(frozen=True, slots=True)
class Panel:
    """Packed layout of a parameter: panels of `width` positions of dimension `n_dim`.

    Each panel holds dimension `k_dim` (the reduction axis) in full, `group` neighbouring
    positions interleaved.
    """

    param: str
    n_dim: int
    k_dim: int
    width: int
    group: int = 1


def read_panels(kernel: Kernel, panel: Panel) -> Kernel:
    """Return the kernel with its loads rewritten for the packed parameter."""

    def change(v: Value) -> Value:
        if not isinstance(v, Load) or v.param != panel.param:
            return v
        n, k = v.index[panel.n_dim], v.index[panel.k_dim]
        inside = floordiv(n, panel.width), floordiv(k, panel.group), mod(n, panel.width)
        last = (mod(k, panel.group),) if panel.group > 1 else ()
        return replace(v, index=(*_other_dims(v.index, panel), *inside, *last))

    inputs = tuple(_packed_param(p, panel) if p.name == panel.param else p for p in kernel.inputs)
    return replace(map_values(kernel, change), inputs=inputs)


def _packed_param(p: Param, panel: Panel) -> Param:
    return replace(p, shape=packed_shape(p.shape, panel), strides=None)


def packed_shape(shape: Shape, panel: Panel) -> Shape:
    """Return the packed shape: other dimensions, panels, k groups, panel width, group size.

    The last dimension is missing if the group size is 1.
    """
    count = floordiv(add(shape[panel.n_dim], panel.width - 1), panel.width)
    groups = floordiv(add(shape[panel.k_dim], panel.group - 1), panel.group)
    last = (panel.group,) if panel.group > 1 else ()
    return (*_other_dims(shape, panel), count, groups, panel.width, *last)


def _other_dims(values: tuple[Index, ...], panel: Panel) -> tuple[Index, ...]:
    return tuple(v for a, v in enumerate(values) if a not in (panel.n_dim, panel.k_dim))
