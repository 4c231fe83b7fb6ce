"""Rename a kernel's names to a0, a1, ... so that isomorphic kernels share code.

A hundred optimiser updates of a hundred parameters are a hundred kernels in a plan, with
different array and size names, but one piece of machine code.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel step(w: f32[n], g: f32[n]) -> y: f32[n]
...   grid n
...   y[n] = w[n] - g[n] * 0.1
... ''')
>>> plain, names = canonical_kernel(kernel)
>>> print(plain.text.splitlines()[0], names["a1"])
kernel k(a0: f32[a1], a2: f32[a1]) -> a3: f32[a1] n
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from smelt.errors import SmeltError
from smelt.kernel.ir import Kernel, Let, Position
from smelt.kernel.text import parse, text
from smelt.kernel.walk import indices_of, splits, statements, states
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.expr import sizes_of

CANONICAL_NAME = "k"
"""Name of every canonical kernel."""
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True, eq=False)
class CanonicalKernel:
    """Kernel with canonical names; kernels with the same text share one object."""

    kernel: Kernel
    text: str


def canonical_kernel(kernel: Kernel) -> tuple[CanonicalKernel, Mapping[str, str]]:
    """Return the kernel with names a0, a1, .. in order of appearance, and their originals.

    A kernel one of whose names is also a word of the kernel language keeps all its names.
    """
    plain = replace(kernel, name=CANONICAL_NAME, comments=())
    kernel_names = set(names_of(kernel))
    new: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        word = match.group()
        return new.setdefault(word, f"a{len(new)}") if word in kernel_names else word

    source = text(plain)
    head, _, rest = source.partition("(")
    result = _parse_canonical(f"{head}({_WORD.sub(renamed, rest)}")
    if result is None or len(result.kernel.axes) != len(kernel.axes):
        return CanonicalKernel(plain, source), {name: name for name in kernel_names}
    return result, {short: name for name, short in new.items()}


@lru_cache(maxsize=256)
def _parse_canonical(source: str) -> CanonicalKernel | None:
    try:
        kernel = parse(source)
    except SmeltError:
        return None
    return CanonicalKernel(kernel, text(kernel))


def unused_name(stem: str, taken: set[str]) -> str:
    """Return a name that is not taken, and mark it as taken.

    >>> unused_name("part", {"part"}), unused_name("part", set())
    ('part_', 'part')
    """
    while stem in taken:
        stem += "_"
    taken.add(stem)
    return stem


def numbered_name(base: str, taken: set[str], separator: str = "") -> str:
    """Return an untaken name that is not an operator's, and mark it as taken.

    >>> numbered_name("v", {"v", "v2"}), numbered_name("exp", set(), "_")
    ('v3', 'exp_2')
    """
    name, k = base, 1
    while name in taken or name in SCALARS:
        k += 1
        name = f"{base}{separator}{k}"
    taken.add(name)
    return name


def names_of(kernel: Kernel) -> Iterator[str]:
    """Yield every user-chosen name in a kernel."""
    for p in (*kernel.inputs, *kernel.outputs):
        yield p.name
        for d in p.shape:
            yield from sizes_of(d)
    for a in kernel.axes:
        yield a.name
        yield from sizes_of(a.extent)
    for fact in kernel.facts:
        yield from sizes_of(fact)
    yield from (s.name for s in splits(kernel))
    yield from states(kernel)
    for s in statements(kernel):
        if isinstance(s, Let | Position):
            yield s.name
        for e in indices_of(s):
            yield from sizes_of(e)
