"""Places that are numbers become sizes: the steps of a loop that was written out are one kernel.

Step 7 of a recurrence reads `x[i,7,k]` where step 8 reads `x[i,8,k]`.  Told as a size of the call,
the place no longer tells them apart, and both run the same machine code.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel step(x: f32[n,12,64], h: f32[n,64]) -> y: f32[n,64]
...   axis i in n, k in 64
...   grid i
...   y[i,k] = h[i,k] + x[i,7,k]
... ''')
>>> found, numbers = freed(kernel)
>>> print(text(found).splitlines()[-1], numbers)
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
from smelt.kernel.walk import map_values, statements, values_of, visit
from smelt.types.expr import Index, add, mul, size

__all__ = ["but_for_numbers", "freed"]

_NUMBER = re.compile(r"\d+")

Place = tuple[str, int, int]
"""A parameter, a dimension of it, and the number at which that is read."""


def freed(kernel: Kernel) -> tuple[Kernel, Mapping[str, int]]:
    """The kernel with sizes for the numbers at which it reads dimensions of parameters, and those
    numbers.  That they are inside, where no test says so, is a fact of its calls.

    Numbers along a last dimension stay where there are several: code may read neighbours at once.
    """
    loads = [
        v
        for s in statements(kernel)
        for root in values_of(s)
        for v in visit(root)
        if isinstance(v, Load)
    ]
    fixed = _fixed(kernel, loads)
    if not fixed:
        return kernel, {}
    own = set(names_of(kernel))
    free = (name for k in count() if (name := f"at_{k}") not in own)
    names = dict(zip(fixed, free, strict=False))

    def told(param: str, d: int, e: Index) -> Index:
        name = names.get((param, d, e)) if isinstance(e, int) else None
        return e if name is None else size(name)

    def change(value: Value) -> Value:
        if not isinstance(value, Load):
            return value
        at = tuple(told(value.param, d, e) for d, e in enumerate(value.index))
        return replace(value, index=at)

    facts = tuple(
        add(add(kernel.param(param).shape[d], -1), mul(size(name), -1))
        for (param, d, number), name in names.items()
        if any(v.param == param and v.index[d] == number and v.other is None for v in loads)
    )
    made = replace(map_values(kernel, change), facts=(*kernel.facts, *facts))
    return made, {name: number for (_, _, number), name in names.items()}


def but_for_numbers(text: str) -> str:
    """What the texts of kernels have in common that `freed` may make one of: all but numbers.

    >>> but_for_numbers("a1[a0,7]") == but_for_numbers("a1[a0,12]")
    True
    """
    return _NUMBER.sub("0", text)


def _fixed(kernel: Kernel, loads: Sequence[Load]) -> list[Place]:
    """The numbers at which dimensions are read, in order."""
    found = {
        (v.param, d, e): None
        for v in loads
        for d, e in enumerate(v.index)
        if isinstance(e, int) and e >= 0 and kernel.param(v.param).shape[d] != 1
    }
    times = Counter((param, d) for param, d, _ in found)
    last = {p.name: len(p.shape) - 1 for p in kernel.inputs}
    return [(p, d, e) for p, d, e in found if d < last.get(p, 0) or times[p, d] == 1]
