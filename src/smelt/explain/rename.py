"""Show a report with the names of the program's source, for values and for sizes.

A graph and its kernels number what they compute, since their texts are keys of the cache. This
module replaces those names in a report's data, after everything has been counted.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel k(x: f32[n0]) -> y: f32[n0]
...   grid n0
...   y[n0] = exp(x[n0])
... ''')
>>> print(Renaming({"n0": "n"}, {}).kernel_text(kernel, {"y": "out"}))
kernel k(x: f32[n]) -> out: f32[n]
  grid n
  out[n] = exp(x[n])
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from smelt.errors import SmeltError
from smelt.explain.compiled import Compiled
from smelt.explain.data import DecisionData, KernelData, NodeData, Place, ReportData
from smelt.explain.entries import Entry
from smelt.explain.page.differences import reduced_nodes
from smelt.explain.page_data import Code, KernelRun, PageData, SmallRun
from smelt.graph.ir import Node
from smelt.graph.source_names import source_names, unique_name
from smelt.graph.text import name_values
from smelt.kernel.canonical import names_of
from smelt.kernel.ir import Kernel, Let, Load
from smelt.kernel.text import parse
from smelt.kernel.text_print import RESERVED, text
from smelt.kernel.walk import statements
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass

T = TypeVar("T")
Text = TypeVar("Text", KernelData, KernelRun)
Words = Mapping[str, str]
_WORD = re.compile(r"(?<![\w.])[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Renaming:
    """Names of the source for sizes, values of the graph, and names in each kernel."""

    sizes: Words
    values: Words
    kernels: Sequence[Words] = ()
    """One per entry of the report; sizes included."""

    def kernel_text(self, kernel: Kernel, words: Words) -> str:
        """Return a kernel's text with other names; unchanged where it would not parse."""
        renamed = rename(text(kernel), {**self.sizes, **words})
        return _wrap_lines(renamed) or text(kernel)

    def report(self, data: ReportData) -> ReportData:
        """Return a report's data with the names of the source."""
        graph_words = {**self.sizes, **self.values}
        kernels = tuple(
            _with_lines(_renamed(k, words))
            for k, words in zip(data.kernels, self.kernels, strict=True)
        )
        return replace(
            data,
            text=rename(data.text, graph_words),
            plan=rename(data.plan, graph_words),
            sizes={self.sizes.get(n, n): value for n, value in data.sizes.items()},
            nodes=tuple(self._node(n) for n in data.nodes),
            kernels=kernels,
            decisions=tuple(self._decision(d, data.nodes) for d in data.decisions),
            constants=_renamed(data.constants, graph_words),
            libraries=_renamed(data.libraries, graph_words),
        )

    def page(self, page: PageData, data: ReportData) -> PageData:
        """Return what only the page shows with the names of the source.

        `data` are the report's before they were renamed. Kernels that the report does not have,
        those of the program without fusion, get the names of sizes only.
        """
        texts = {k.id: k.text for k in data.kernels}

        def run(k: KernelRun) -> KernelRun:
            same = k.kernel is not None and texts.get(k.kernel) == k.text
            words = self.kernels[k.kernel] if same and k.kernel is not None else sizes
            return _with_lines(_renamed(k, words))

        sizes: Words = {} if page.run.original else self.sizes
        return replace(
            page,
            accesses=tuple(_renamed(a, self.kernels[a.kernel]) for a in page.accesses),
            run=SmallRun(
                sizes=_renamed(page.run.sizes, sizes),
                original=page.run.original,
                fused=tuple(run(k) for k in page.run.fused),
                unfused=tuple(run(k) for k in page.run.unfused),
                note=page.run.note,
            ),
        )

    def _node(self, node: NodeData) -> NodeData:
        return replace(
            node,
            name=self.values.get(node.name, node.name),
            shape=rename(node.shape, self.sizes),
            attributes=rename(node.attributes, self.sizes),
        )

    def _decision(self, d: DecisionData, nodes: Sequence[NodeData]) -> DecisionData:
        def name(plain: str, node: int | None) -> str:
            is_unique = node is not None and nodes[node].name == plain
            return self.values.get(plain, plain) if is_unique else plain

        return replace(
            d,
            a=name(d.a, d.a_node),
            b=name(d.b, d.b_node),
            sentence=rename(d.sentence, self.sizes),
            details=_renamed(d.details, self.sizes),
        )


def source_renaming(compiled: Compiled, listed: Sequence[Entry], sizes: Words) -> Renaming:
    """Return the renaming for a compiled graph; `listed` are the entries of its report."""
    plan = compiled.plan
    names = source_names(plan.graph)
    numbered = name_values(plan.graph)
    values = {numbered[node]: name for node, name in names.items()}
    for _, body in plan.chunked_clusters:
        names |= {n: names[full] for n, full in body.of.items() if full in names}
    return Renaming(sizes, values, [_kernel_words(e, names, sizes) for e in listed])


def _kernel_words(entry: Entry, names: Mapping[Node, str], sizes: Words) -> Words:
    """Return the names to show in a kernel, by the kernel's own names."""
    kernel = entry.kernel
    if kernel is None:
        return sizes
    plain_names = list(dict.fromkeys(names_of(kernel)))
    wanted = dict(_wanted(kernel, entry, names))
    wanted |= {n: sizes[n] for n in plain_names if n in sizes}
    extents = {a.name: str(a.extent) for a in kernel.axes}
    wanted |= {a: sizes[e] for a, e in extents.items() if a not in sizes and e in sizes}
    first = [n for n in plain_names if n in sizes]
    params = [p.name for p in (*kernel.inputs, *kernel.outputs)]
    taken = {*RESERVED, *SCALARS}
    words: dict[str, str] = {}
    for name in dict.fromkeys([*first, *params, *extents, *plain_names]):
        words[name] = unique_name(wanted.get(name, name), taken)
        taken.add(words[name])
    shown = {old: new for old, new in words.items() if old != new}
    plain = text(kernel)
    return {} if _wrap_lines(rename(plain, shown)) is None else shown


def _wanted(kernel: Kernel, entry: Entry, names: Mapping[Node, str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a kernel's name and the source's name for it.

    An array in memory has the name, if the value is one, and the value before it is stored has not.
    """
    nodes, arrays = entry.arrays.nodes, entry.arrays
    stored = {*arrays.outputs}
    lets = [s for s in statements(kernel) if isinstance(s, Let) and s.origin >= 0]
    last = {s.origin: s for s in lets}
    for s in lets:
        node = nodes[s.origin]
        is_operand = isinstance(s.value, Load) and not node.op.is_view
        same_step = _step(s) == _step(last[s.origin])  # the value, maybe at other positions
        if node in names and node not in stored and same_step and not is_operand:
            yield s.name, names[node]
    for state, node in reduced_nodes(kernel, arrays).items():
        if node in names:
            yield state, names[node]
    for params, side in ((kernel.inputs, arrays.inputs), (kernel.outputs, arrays.outputs)):
        for param, node in zip(params, side, strict=True):
            if node in names:
                yield param.name, names[node]


def _step(let: Let) -> tuple[type, str]:
    """Return what a statement does, whatever it reads."""
    return type(let.value), str(getattr(let.value, "op", ""))


def _wrap_lines(source: str) -> str | None:
    """Return a kernel's text with its lines broken anew; None if it does not parse."""
    try:
        result = text(parse(source))
    except SmeltError:
        return None
    return result if "".join(result.split()) == "".join(source.split()) else None


def rename(source: str, words: Words) -> str:
    """Replace words of a text.

    >>> rename("v1 = exp(v10) : f32[n1]", {"v1": "e", "n1": "d"})
    'e = exp(v10) : f32[d]'
    """
    if not words:
        return source
    return _WORD.sub(lambda match: words.get(match.group(), match.group()), source)


def _with_lines(kernel: Text) -> Text:
    """Return a kernel's data with the lines of its text broken anew."""
    source = kernel.text
    return replace(kernel, text=_wrap_lines(source) or source) if source else kernel


_KEPT = frozenset({"name", "kind", "role", "dtype", "combine"})
"""Fields that hold no names of the graph, except in classes of arrays and axes."""


def _renamed(value: T, words: Words) -> T:
    """Replace words in all texts of some data; places in the source stay."""
    result: Any = value
    if isinstance(value, str):
        result = rename(value, words)
    elif isinstance(value, Place | Code):
        pass
    elif isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        result = tuple(_renamed(x, words) for x in items)
    elif isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        result = {_renamed(k, words): _renamed(x, words) for k, x in pairs.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        kept = _KEPT if isinstance(value, KernelData | KernelRun) else _KEPT - {"name"}
        changed = {
            f.name: _renamed(getattr(value, f.name), words)
            for f in fields(value)
            if f.name not in kept
        }
        result = replace(value, **changed)
    return result
