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
from dataclasses import field, fields, is_dataclass, replace
from typing import Any

from smelt.kernel.ir import Kernel, Let, Position
from smelt.kernel.text_print import text
from smelt.kernel.walk import indices_of, splits, statements, states
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.expr import Atom, Expr, Index, axis, map_variables, size, sizes_of, value

CANONICAL_NAME = "k"
"""Name of every canonical kernel."""
_WORD = re.compile(r"[^\W\d]\w*")
_WORDS = frozenset(("op", "combine", "join", "dtype"))
"""Fields of a kernel's parts that are words of the language."""


@dataclass(frozen=True, slots=True)
class CanonicalKernel:
    """Kernel with canonical names; those of the same text are equal."""

    kernel: Kernel = field(compare=False)
    text: str


def canonical_kernel(kernel: Kernel) -> tuple[CanonicalKernel, Mapping[str, str]]:
    """Return the kernel with names a0, a1, .. in order of appearance, and their originals."""
    names = dict.fromkeys(names_of(kernel))
    words = _WORD.findall(text(kernel).partition("(")[2])
    order = dict.fromkeys((*(word for word in words if word in names), *names))
    new = {name: f"a{k}" for k, name in enumerate(order)}
    renamed = replace(_renamed(kernel, new), name=CANONICAL_NAME, comments=())
    return CanonicalKernel(renamed, text(renamed)), {short: name for name, short in new.items()}


def _renamed(part: Any, new: Mapping[str, str]) -> Any:
    """Return a part of a kernel with other names."""

    def leaf(atom: Atom) -> Index:
        name = new[atom.name]
        if atom.kind == "size":
            return size(name)
        return (axis if atom.kind == "axis" else value)(name, _renamed(atom.extent, new))

    match part:
        case str():
            return new.get(part, part)
        case tuple():
            return tuple([_renamed(x, new) for x in part])
        case Expr():
            return map_variables(part, leaf)
        case _ if is_dataclass(part):
            names = [f.name for f in fields(part)]
            parts = {n: getattr(part, n) for n in names if n != "origin"}
            return type(part)(
                **{n: x if n in _WORDS else _renamed(x, new) for n, x in parts.items()}
            )
        case _:
            return part


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
