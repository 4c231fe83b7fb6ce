"""Derive the sizes of a call from array shapes, checked against every parameter.

>>> from smelt.kernel.ir import Axis, Kernel, Param
>>> from smelt.types.dtype import f32
>>> from smelt.types.expr import size
>>> kernel = Kernel("k", (Param("x", f32, (size("n"), size("n") * 2)),), (), (), (), ())
>>> sizes_of_call(kernel, {"x": np.zeros((3, 6), np.float32)})
{'n': 3}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import VerifyError
from smelt.kernel.ir import Kernel, Param
from smelt.types.expr import Index, evaluate, sizes_of, symbol_of

Array = np.ndarray[Any, Any]


def input_arrays(
    kernel: Kernel, arrays: Mapping[str, Any] | Sequence[Any]
) -> dict[str, list[Array]]:
    """Return the arrays of each input: one, or as many as its family has.

    Raises VerifyError for missing and superfluous arrays, wrong types, ranks and counts.
    """
    names = [p.name for p in kernel.inputs]
    if not isinstance(arrays, Mapping):
        if len(arrays) != len(names):
            raise VerifyError(f"{kernel.name} takes {len(names)} arrays, not {len(arrays)}")
        arrays = dict(zip(names, arrays, strict=True))
    if set(arrays) != set(names):
        wrong = sorted(set(arrays) ^ set(names))
        raise VerifyError(f"{kernel.name} takes {', '.join(names)}; see {', '.join(wrong)}")
    return {p.name: _member_list(p, arrays[p.name]) for p in kernel.inputs}


def _member_list(param: Param, arrays: Any) -> list[Array]:
    members = [np.asarray(a) for a in arrays] if param.each else [np.asarray(arrays)]
    if param.each and len(members) != param.each:
        raise VerifyError(f"{param.name} is a family of {param.each} arrays, not {len(members)}")
    for a in members:
        if a.dtype != param.dtype.numpy:
            raise VerifyError(f"{param.name} has type {param.dtype.long}, not {a.dtype}")
        if a.ndim != len(param.shape):
            raise VerifyError(f"{param.name} has {len(param.shape)} dimensions, not {a.ndim}")
    return members


def sizes_of_call(
    kernel: Kernel, arrays: Mapping[str, Array], overrides: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return every size: from dimensions that are a plain symbol, or from `overrides`.

    Raises VerifyError if shapes disagree, a size is unknown, or a fact does not hold.
    """
    sizes: dict[str, int] = dict(overrides or {})
    for p in kernel.inputs:
        for d, n in zip(p.shape, arrays[p.name].shape, strict=True):
            symbol = symbol_of(d)
            if symbol is not None:
                sizes.setdefault(symbol, n)
    for p in kernel.inputs:
        for d, n in zip(p.shape, arrays[p.name].shape, strict=True):
            if _number(d, sizes) != n:
                raise VerifyError(f"{p.name} has a dimension of {n} where {d} is needed ({sizes})")
    for axis in kernel.axes:
        _number(axis.extent, sizes)
    for fact in kernel.facts:
        if _number(fact, sizes) < 0:
            raise VerifyError(f"{kernel.name} requires {fact} >= 0, which fails for {sizes}")
    return sizes


def _number(d: Index, sizes: Mapping[str, int]) -> int:
    missing = [s for s in sizes_of(d) if s not in sizes]
    if missing:
        raise VerifyError(f"the size {missing[0]} follows from no array: give it")
    return int(evaluate(d, sizes))
