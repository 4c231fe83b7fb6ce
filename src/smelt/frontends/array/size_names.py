"""Name sizes as the recorded function does: `n, d = x.shape` names the dimensions `n` and `d`.

Names are for reports and messages. Graphs keep the sizes' own names, which are part of the cache's
key.

>>> from smelt.python.origin import Origin
>>> from smelt.types.expr import size
>>> read = Origin("user.py", 1)
>>> size_names({"n0": 3, "n1": 4}, [(read, (size("n0"), size("n1")))], [], {})
{}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from smelt.graph.source_names import is_source_name, unique_name
from smelt.graph.text import RESERVED
from smelt.python.origin import Origin
from smelt.types.expr import Expr, sizes_of
from smelt.types.tensor import Shape

_NUMBERED = re.compile(r"[nku]\d+_*")
"""Names of sizes that no spec names."""


def size_names(
    names: Collection[str],
    reads: Sequence[tuple[Origin, Shape]],
    inputs: Iterable[str],
    numbers: Mapping[str, str],
) -> dict[str, str]:
    """Return the source's names of sizes, by the graph's; the first one counts.

    `reads` are the places where shapes were read, `inputs` names that are taken, `numbers` the
    parameters that are sizes, by the sizes.
    """
    taken = {*inputs, *(n for n in names if not _NUMBERED.fullmatch(n))}
    result: dict[str, str] = {}
    for symbol, name in numbers.items():
        if symbol in names and is_source_name(name) and name not in RESERVED:
            result[symbol] = unique_name(name, taken)
            taken.add(result[symbol])
    for origin, shape in reads:
        for position, name in origin.assigned_items.items():
            if not -len(shape) <= position < len(shape):
                continue
            dim = shape[position]
            symbol = str(dim)
            if not isinstance(dim, Expr) or sizes_of(dim) != (symbol,) or symbol in result:
                continue
            if _NUMBERED.fullmatch(symbol) and is_source_name(name) and name not in RESERVED:
                result[symbol] = unique_name(name, taken)
                taken.add(result[symbol])
    return {n: result[n] for n in names if n in result}
