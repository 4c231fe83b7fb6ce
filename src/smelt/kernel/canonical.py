"""Kernels that differ in names alone are one: the same text once every name is a number.

A hundred updates of a hundred parameters are a hundred kernels in a plan, over arrays and sizes of
their own, and one piece of machine code.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel step(w: f32[n], g: f32[n]) -> y: f32[n]
...   grid n
...   y[n] = w[n] - g[n] * 0.1
... ''')
>>> plain, names = canonical(kernel)
>>> print(plain.text.splitlines()[0], names["a1"])
kernel k(a0: f32[a1], a2: f32[a1]) -> a3: f32[a1] n
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from smelt.dataclass import dataclass
from smelt.errors import SmeltError
from smelt.kernel.ir import IndexValue, Kernel, Let, Load, Position, Statement, Store
from smelt.kernel.text import parse, text
from smelt.kernel.walk import splits, statements, states, values_of, visit
from smelt.types.expr import Index, sizes_of

NAME = "k"
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """A kernel without its names; kernels with the same text share theirs."""

    kernel: Kernel
    text: str


def canonical(kernel: Kernel) -> tuple[Plain, Mapping[str, str]]:
    """The kernel with names a0, a1, .. in order of appearance, and what each was before.

    A kernel one of whose names is also a word of the language keeps all of them.
    """
    plain = replace(kernel, name=NAME, comments=())
    own = set(names_of(kernel))
    new: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        word = found.group()
        return new.setdefault(word, f"a{len(new)}") if word in own else word

    source = text(plain)
    head, _, rest = source.partition("(")
    made = _parsed(f"{head}({_WORD.sub(renamed, rest)}")
    if made is None or len(made.kernel.axes) != len(kernel.axes):
        return Plain(plain, source), {name: name for name in own}
    return made, {short: name for name, short in new.items()}


@lru_cache(maxsize=1024)
def _parsed(source: str) -> Plain | None:
    try:
        found = parse(source)
    except SmeltError:
        return None
    return Plain(found, text(found))


def names_of(kernel: Kernel) -> Iterator[str]:
    """Everything in a kernel that has a name of its own choosing."""
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
        for e in _indices(s):
            yield from sizes_of(e)


def _indices(s: Statement) -> Iterator[Index]:
    """Index expressions of a statement itself."""
    if isinstance(s, Store):
        yield from s.index
    elif isinstance(s, Position):
        yield s.extent
    for root in values_of(s):
        for value in visit(root):
            if isinstance(value, Load):
                yield from value.index
            elif isinstance(value, IndexValue):
                yield value.index
