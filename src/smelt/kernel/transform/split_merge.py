"""Separate the merge of a split stream from its parts: a kernel for each.

The first kernel stores the states of all parts, the second combines them in the order of the
parts, so that results do not depend on which part ends first.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel f(x: f32[b,n]) -> y: f32[b]
...   axis b, n
...   grid b, p in split(n, 8)
...   stream n/512 of p with s = 0
...     s' = s + sum(x[b,n] over n)
...   merge p: (s)
...   y[b] = s
... ''')
>>> split = split_merge(kernel)
>>> print(text(split.parts))
kernel f(x: f32[b,n]) -> s_parts: f32[8,b]
  axis b, n
  grid b, p in split(n, 8)
  stream n/512 of p with s = 0
    s' = s + sum(x[b,n] over n)
  s_parts[p,b] = s
>>> print(text(split.merge(split.after, {})))
kernel f(x: f32[b,n], s_parts: f32[8,b]) -> y: f32[b]
  axis b, n, p in 8
  grid b
  stream p from index(1) with s = s_parts[0,b]
    s_part = s_parts[p,b]
    s' = s + s_part
  y[b] = s
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from smelt.kernel import ir
from smelt.kernel.canonical import unused_name
from smelt.kernel.merge import MergeRule, merge_rules
from smelt.kernel.walk import (
    axes_of_body,
    bindings_of,
    refs,
    splits,
    statements,
    states,
    stores,
    substitute,
    visit,
)
from smelt.ops.combine import COMBINES
from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, i64
from smelt.types.expr import Index


@dataclass(frozen=True, slots=True)
class PartStates:
    """A state, the array of all parts' states, and the axes of one."""

    state: ir.State
    param: ir.Param
    axes: tuple[ir.Axis, ...]

    def at(self, part: Index) -> tuple[Index, ...]:
        """Return the index of a part's state."""
        return part, *(a.index for a in self.axes)


@dataclass(frozen=True)
class SplitMerge:
    """A kernel with a split stream, and the arrays of its parts' states."""

    kernel: ir.Kernel
    before: Sequence[ir.Statement]
    after: Sequence[ir.Statement]
    arrays: Sequence[PartStates]

    @property
    def axis(self) -> ir.Axis:
        """The axis that numbers the parts."""
        (split,) = splits(self.kernel)
        return ir.Axis(split.name, split.parts)

    @cached_property
    def rules(self) -> Mapping[str, MergeRule]:
        """How the states merge."""
        return merge_rules(self.kernel)

    @property
    def parts(self) -> ir.Kernel:
        """The kernel that stores the states of all parts."""
        arrays = (s.param for s in self.arrays)
        late = {s.param for s in stores(self.after)}
        outputs = (*(p for p in self.kernel.outputs if p.name not in late), *arrays)
        part = self.axis.index
        kept = (ir.Store(s.param.name, s.at(part), ir.Ref(s.state.name)) for s in self.arrays)
        return replace(self.kernel, outputs=outputs, body=(*self.before, *kept))

    def needed(self, after: Iterable[ir.Statement]) -> list[MergeRule]:
        """Return the merges of the states that statements need, directly or not."""
        pending = [n for s in after for n in refs(s) if n in self.rules]
        needed: set[str] = set()
        while pending:
            name = pending.pop()
            if name not in needed:
                needed.add(name)
                rescaled = self.rules[name].rescaled
                pending += [v.name for v in visit(rescaled) if isinstance(v, ir.Ref)]
        return [rule for name, rule in self.rules.items() if name in needed]

    def reductions(self, after: Iterable[ir.Statement]) -> dict[str, str]:
        """Return the states that reduce those of all parts, with the operators.

        None of them is rescaled, or rescales another one.
        """
        rules = self.needed(after)
        read = {n for r in rules for n in refs(r.rescaled) if n != r.state}
        rows = {r.scalar: r.name for r in COMBINES.values() if not r.positional}
        plain = (r for r in rules if r.rescaled == ir.Ref(r.state) and r.state not in read)
        return {r.state: rows[r.op] for r in plain if r.op in rows}

    def merge(self, after: Sequence[ir.Statement], reduced: Mapping[str, str]) -> ir.Kernel:
        """Return the kernel of what follows the merge, or of some of it.

        States in `reduced`, which `reductions` allows, reduce the parts by its operators. Others,
        such as sums that are rescaled to a common maximum, are those of a stream over the parts,
        with the states that they are rescaled by.
        """
        wanted = {n for s in after for n in refs(s)}
        merging: list[ir.Statement] = [
            self._reduced(s, reduced[s.state.name])
            for s in self.arrays
            if s.state.name in wanted.intersection(reduced)
        ]
        if any(s.state.name in wanted.difference(reduced) for s in self.arrays):
            merging.append(self._stream([r for r in self.needed(after) if r.state not in reduced]))
        read = (*merging, *after)
        stored = {s.param for s in stores(after)}
        return replace(
            self.kernel,
            inputs=(*self.kernel.inputs, *(s.param for s in self.arrays)),
            outputs=tuple(p for p in self.kernel.outputs if p.name in stored),
            axes=(*self.kernel.axes, self.axis),
            grid=tuple(b for b in self.kernel.grid if not isinstance(b, ir.Split)),
            body=(*bindings_of(self.before, read), *read),
        )

    def _reduced(self, s: PartStates, combine: str) -> ir.Let:
        parts, dtype = ir.Load(s.param.name, s.at(self.axis.index)), s.param.dtype
        total = ir.Reduce(combine, parts, (self.axis.name,), dtype)
        final = state_type(s.state)
        return ir.Let(s.state.name, total if final == dtype else ir.Cast(total, final))

    def _stream(self, rules: Sequence[MergeRule]) -> ir.Stream:
        arrays = {s.state.name: s for s in self.arrays}
        merged = [s for s in self.arrays if any(r.state == s.state.name for r in rules)]
        taken = {*_names(self.kernel), *(s.param.name for s in self.arrays)}
        parts = {n: unused_name(f"{n}_part", taken) for n in arrays}
        names = {n: ir.Ref(part) for n, part in parts.items()}
        body: list[ir.Statement] = [
            ir.Let(parts[s.state.name], ir.Load(s.param.name, s.at(self.axis.index)))
            for s in merged
        ]
        for r in rules:
            sides = r.rescaled, substitute(r.rescaled, names=names)
            body.append(ir.Update(r.state, ir.Apply(r.op, sides)))
        first = tuple(replace(s.state, init=ir.Load(s.param.name, s.at(0))) for s in merged)
        return ir.Stream(
            (ir.Block(self.axis.name, 1, start=ir.IndexValue(1, i64)),), first, tuple(body)
        )


def split_merge(kernel: ir.Kernel, dtypes: Mapping[str, DType] | None = None) -> SplitMerge | None:
    """Separate a kernel's merge from its parts; None without a merge.

    States of the parts have the types of `dtypes` in memory, else their own.
    """
    places = [k for k, s in enumerate(kernel.body) if isinstance(s, ir.Merge)]
    if not places:
        return None
    k, merge = places[0], kernel.body[places[0]]
    assert isinstance(merge, ir.Merge)
    every, inside = states(kernel), axes_of_body(kernel.body)
    fixed = [b.axis for b in kernel.grid if isinstance(b, ir.Block)]
    taken = _names(kernel)
    (split,) = splits(kernel)
    arrays: list[PartStates] = []
    for name in merge.states:
        used = {*fixed, *every[name].axes, *inside[name]} - {split.name}
        declared = every[name].axes
        order = [*(a for a in fixed if a not in declared), *declared]
        axes = [a for a in kernel.axes if a.name in used]
        axes.sort(key=lambda a: order.index(a.name) if a.name in order else len(order))
        dtype = (dtypes or {}).get(name, state_type(every[name]))
        shape = (split.parts, *(a.extent for a in axes))
        param = ir.Param(unused_name(f"{name}_parts", taken), dtype, shape)
        arrays.append(PartStates(every[name], param, tuple(axes)))
    return SplitMerge(kernel, kernel.body[:k], kernel.body[k + 1 :], arrays)


def _names(kernel: ir.Kernel) -> set[str]:
    """Return the names of a kernel's arrays and values."""
    bound = (s.name for s in statements(kernel.body) if isinstance(s, ir.Let | ir.Position))
    return {*states(kernel), *bound, *(p.name for p in (*kernel.inputs, *kernel.outputs))}


def state_type(state: ir.State) -> DType:
    """Return the type of a state.

    Raises TypeError for one that follows from its first value.
    """
    if state.dtype is not None:
        return state.dtype.compute
    if isinstance(state.init, ir.Const):
        return state.init.dtype.compute
    raise TypeError(f"the state {state.name} has no type")
