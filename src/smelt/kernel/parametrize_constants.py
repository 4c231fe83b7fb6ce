"""Replace constant indices by sizes so that unrolled loop steps share one kernel.

Step 7 of a recurrence reads `x[i,7,k]` where step 8 reads `x[i,8,k]`. With the position passed as
a size of the call, both run the same machine code.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel step(x: f32[n,12,64], h: f32[n,64]) -> y: f32[n,64]
...   axis i in n, k in 64
...   grid i
...   y[i,k] = h[i,k] + x[i,7,k]
... ''')
>>> shared, numbers = parametrize(kernel)
>>> print(text(shared).splitlines()[-1], numbers)
  y[i,k] = h[i,k] + x[i,size(at_0),k] {'at_0': 7}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from smelt.kernel.canonical import names_of
from smelt.kernel.ir import Kernel, Load, Value
from smelt.kernel.walk import loads, map_values
from smelt.types.expr import Index, add, mul, size

_NUMBER = re.compile(r"\d+")

FixedIndex = tuple[str, int, int]
"""Constant index: parameter, dimension, position."""


def parametrize(kernel: Kernel) -> tuple[Kernel, Mapping[str, int]]:
    """Replace constant indices of parameters by sizes; return the kernel and their values.

    A bound that the kernel's loads rely on becomes a fact of its calls. Positions along a last
    dimension are kept if there are several, since code may load neighbours together.
    """
    every_load = [*loads(kernel)]
    fixed = _constant_indices(kernel, every_load)
    if not fixed:
        return kernel, {}
    kernel_names = set(names_of(kernel))
    unused = (name for k in count() if (name := f"at_{k}") not in kernel_names)
    names = dict(zip(fixed, unused, strict=False))

    def index_size(param: str, d: int, e: Index) -> Index:
        name = names.get((param, d, e)) if isinstance(e, int) else None
        return e if name is None else size(name)

    def change(value: Value) -> Value:
        if not isinstance(value, Load):
            return value
        at = tuple(index_size(value.param, d, e) for d, e in enumerate(value.index))
        return replace(value, index=at)

    facts = tuple(
        add(add(kernel.param(param).shape[d], -1), mul(size(name), -1))
        for (param, d, number), name in names.items()
        if any(v.param == param and v.index[d] == number and v.other is None for v in every_load)
    )
    result = replace(map_values(kernel, change), facts=(*kernel.facts, *facts))
    return result, {name: number for (_, _, number), name in names.items()}


def erase_numbers(text: str) -> str:
    """Replace numbers by 0, so that kernels which `parametrize` may unify compare equal.

    >>> erase_numbers("a1[a0,7]") == erase_numbers("a1[a0,12]")
    True
    """
    return _NUMBER.sub("0", text)


def _constant_indices(kernel: Kernel, loads: Sequence[Load]) -> list[FixedIndex]:
    """List the constant indices in order of appearance."""
    places = {
        (v.param, d, e): None
        for v in loads
        for d, e in enumerate(v.index)
        if isinstance(e, int) and e >= 0 and kernel.param(v.param).shape[d] != 1
    }
    times = Counter((param, d) for param, d, _ in places)
    last = {p.name: len(p.shape) - 1 for p in kernel.inputs}
    return [(p, d, e) for p, d, e in places if d < last.get(p, 0) or times[p, d] == 1]
