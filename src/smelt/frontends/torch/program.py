"""A lowered program as one Python function: graphs run as kernels, calls go to torch.

The function is written as text and compiled once, so that a call costs no interpretation:

    def call(args):
        t0, t1, n0 = args
        t2, = graph0((t0, t1), (n0,))
        t3 = sort(t2, -1)
        return (t3[0],)
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from smelt.errors import UnsupportedError
from smelt.frontends.torch.aliasing import View, view_of
from smelt.frontends.torch.eager_memory import Budget
from smelt.frontends.torch.in_place import is_write
from smelt.frontends.torch.layout import (
    declared,
    fitted,
    is_guarded,
    laid_out,
    memory_order,
    plain,
    seen,
    turn_of,
)
from smelt.frontends.torch.lower import Lowering, Stage
from smelt.frontends.torch.scattered import put, there
from smelt.frontends.torch.segment import Segment, make_segment
from smelt.frontends.torch.updates import Update, apart, settled
from smelt.graph.bounds_checks import refused
from smelt.runtime.prelude import Allowance
from smelt.types.expr import size, sizes_of, text

__all__ = ["Program", "StageError"]


class StageError(Exception):
    """Nothing can be made of one of the stages; the cause says why."""

    def __init__(self, stage: int) -> None:
        super().__init__(f"stage {stage}")
        self.stage = stage


class Program:
    """What runs; `segments` are its graphs, `source` its text."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        lowering: Lowering,
        budget: Budget | None = None,
        *,
        looks: bool = True,
        among: Collection[int] | None = None,
    ) -> None:
        """`budget` is the memory that the graphs may take together; None: each what its operators
        would take one by one.  Without `looks` positions were looked at before.  Dimensions that
        are numbers `among` may vary, in another trace of the same program; None: none does."""
        self._among = among
        self.lowering, self._budget, self._looks = lowering, budget, looks
        self.segments: list[Segment] = []
        self.module = module
        self._names: dict[Any, str] = {}
        self._lines: list[str] = []
        self._space: dict[str, Any] = {}
        self._sizes: dict[str, str] = {}
        self._build(module.graph)
        self.source = "\n".join(self._lines) + "\n"
        exec(compile(self.source, "<smelt program>", "exec"), self._space)  # noqa: S102
        self.call: Callable[[list[Any]], Any] = self._space["call"]

    @property
    def varying(self) -> set[int]:
        """The numbers that its graphs take for sizes."""
        return {e for s in self.segments for e in s.sizes.values() if isinstance(e, int)}

    def shown(self, args: list[Any], look: Callable[[Segment, Any, Any], None]) -> Any:
        """One call; `look` is shown each graph, its tensors and its sizes before it runs."""

        def showing(segment: Segment) -> Callable[[Any, Any], Any]:
            def run(tensors: Any, sizes: Any) -> Any:
                look(segment, tensors, sizes)
                return segment.run(tensors, sizes)

            return run

        plain = dict(self._space)
        self._space |= {f"graph{k}": showing(s) for k, s in enumerate(self.segments)}
        try:
            return self.call(args)
        finally:
            self._space |= plain

    # ---- text ------------------------------------------------------------------------------------

    def _build(self, graph: torch.fx.Graph) -> None:
        self._lines.append("def call(args):")
        given = [n for n in graph.nodes if n.op == "placeholder"]
        for k, node in enumerate(given):
            self._names[node] = f"t{k}"
        if given:
            self._add("".join(f"{self._names[n]}, " for n in given) + "= args")
        self._add("args.clear()")
        self._size_sources(given)
        self._look_apart(given)
        for node in self.lowering.early:
            self._call(node)
        for k, stage in enumerate(self.lowering.stages):
            if stage.outputs:
                try:
                    self._segment(stage)
                except Exception as error:
                    raise StageError(k) from error
            for node in stage.calls:
                self._call(node)
        for k, node in enumerate(self.lowering.late):
            self._add(f"tl{k} = {self._name(node)}.clone()")
            self._names[node] = f"tl{k}"
        for node in self.lowering.last:
            self._call(node)
        for node in filter(is_write, graph.nodes):  # what it gives is the argument
            self._names[node] = self._names[node.args[0]]
        self._lay_out(next(n for n in graph.nodes if n.op == "output"))
        results = self._results()
        self._free_unused(results)
        self._add(f"return {results}")

    def _results(self) -> str:
        """What is given back, as text."""
        views = self.lowering.views
        if not views:
            return self._show(self.lowering.results)
        each = enumerate(self.lowering.results)
        shown = [self._view(x, views[k]) if k in views else self._show(x) for k, x in each]
        return f"({', '.join(shown)},)"

    def _view(self, node: Any, view: View) -> str:
        """A view of an argument, as text."""
        self._space["view_of"] = view_of
        shape, strides = (
            "".join(f"{self._number(n)}, " for n in side) for side in (view.shape, view.strides)
        )
        return f"view_of({self._name(node)}, ({shape}), ({strides}), {self._number(view.ahead)})"

    def _lay_out(self, output: Any) -> None:
        """Gives the user's results that are parts of values, made alone, the strides of eager."""
        for node in seen(output):
            if self.lowering.shares(node):
                continue
            fake = node.meta["val"]
            if not isinstance(fake, torch.Tensor) or memory_order(fake) is not None:
                continue
            told = [self._number(n) for n in (*fake.stride(), fake.storage_offset())]
            if None not in told:
                name = self._name(node)
                self._space["laid_out"] = laid_out
                strides = "".join(f"{n}, " for n in told[:-1])
                self._add(f"{name} = laid_out({name}, ({strides}), {told[-1]})")

    def _look_apart(self, given: list[Any]) -> None:
        """Looks whether arguments that are written where they stand share memory with others."""
        written = list(dict.fromkeys(self.lowering.updates.values()))
        if not written:
            return
        tensors = [n for n in given if isinstance(n.meta.get("val"), torch.Tensor)]
        lists = [
            ", ".join(self._names[n] for n in tensors if (n in written) == own)
            for own in (True, False)
        ]
        self._space["apart"] = apart
        self._add(f"{_APART} = apart([{lists[0]}], [{lists[1]}])")

    def _number(self, n: Any) -> str | None:
        return repr(n) if isinstance(n, int) else self._expression(n)

    def _add(self, line: str) -> None:
        self._lines.append(f"    {line}")

    def _size_sources(self, given: list[Any]) -> None:
        """Where each symbol's value comes from: an argument, or a dimension of one."""
        for node in given:
            found = node.meta.get("val")
            if isinstance(found, torch.SymInt):
                self._learn(found, self._names[node])
        for node in given:
            found = node.meta.get("val")
            if isinstance(found, torch.Tensor):
                for a, n in enumerate(found.shape):
                    if isinstance(n, torch.SymInt):
                        self._learn(n, f"{self._names[node]}.size({a})")

    def _learn(self, n: Any, source: str) -> None:
        try:
            expr = self.lowering.sizes.index(n)
        except UnsupportedError:
            return
        for name in self.lowering.sizes.names.values():
            if expr == size(name) and name not in self._sizes:
                self._sizes[name] = source
                self._add(f"{name} = {source}")

    def _segment(self, stage: Stage) -> None:
        made = make_segment(
            stage, self.lowering.sizes, self._allowance(), looks=self._looks, among=self._among
        )
        if self._budget is not None:
            self._budget.keep(made.kept)
        self.segments.append(made)
        name = f"graph{len(self.segments) - 1}"
        self._space[name] = made.run
        tensors = ", ".join(self._tensor(node) for node in stage.inputs)
        told = [made.sizes[n] for n in made.size_names]
        missing = [n for e in told for n in sizes_of(e) if n not in self._sizes]
        if missing:
            raise UnsupportedError(f"no argument tells the size {missing[0]}")
        sizes = "".join(f"{text(e)}, " for e in told)
        targets: list[str] = []
        for node in stage.outputs:
            if node in stage.written:
                continue
            self._names[node] = f"t{len(self._names)}"
            targets.append(f"{self._names[node]}, ")
        if made.looks.flag is not None:
            targets.append("outside, ")
        comma = "," if len(stage.inputs) == 1 else ""
        given = f"{''.join(targets)}= " if targets else ""
        self._look_inside(made, name)
        self._add(f"{given}{name}(({tensors}{comma}), ({sizes}))")
        if made.looks.flag is not None:
            self._add(f"if outside: refused_{name}()")

    def _look_inside(self, made: Segment, name: str) -> None:
        """Compares sizes with each other for the positions that a graph reads."""
        if made.looks.readers:
            self._space[f"refused_{name}"] = partial(refused, made.looks.readers)
        for room in made.looks.sizes:
            if all(s in self._sizes for s in sizes_of(room)):
                self._add(f"if {text(room)} < 0: refused_{name}()")

    def _allowance(self) -> Allowance | None:
        """The memory that the next graph may take, if anything is known of it."""
        if self._budget is None:
            return None
        stages = self.lowering.stages
        writes = all(map(is_write, self.lowering.last))
        alone = len(stages) == 1 and not stages[0].calls and writes
        return self._budget.allowance(alone=alone)

    def _tensor(self, node: Any) -> str:
        """A tensor as a graph takes it: in the memory order that its input declares."""
        name = self._name(node)
        fake = node.meta["val"]
        order = memory_order(fake)
        if turn_of(node) is not None:
            return name
        if fake.is_neg() or _is_tangent(node):
            self._space["plain"] = plain
            name = f"plain({name})" + (".contiguous()" if fake.is_neg() else "")
        if order is not None and order != list(range(len(order))):
            name = f"{name}.permute({order})"
        straight = order is None or order == list(range(len(order)))
        if node.op == "placeholder" and straight and is_guarded(node):
            return name
        if not is_guarded(node):  # some versions of torch announce another type than they give
            kind = self._show(fake.dtype)
            lies = f"{name}.dtype is {kind} and {name}.is_contiguous()"
            laid = f"{name}.to({kind})"
        else:
            lies, laid = f"{name}.is_contiguous()", name
        if order is None and node.op == "placeholder":
            self._space["fitted"] = fitted
            return f"fitted({laid}, {declared(fake, guarded=False)})"
        if not name.isidentifier():
            return f"{laid}.contiguous()"
        return f"({name} if {lies} else {laid}.contiguous())"  # asking takes less than calling

    def _name(self, node: Any) -> str:
        """The variable that holds a value, computed now if it is a view or a size."""
        found = self._names.get(node)
        if found is not None:
            return found
        known = node.meta.get("val")
        if isinstance(known, torch.SymInt):
            expr = self._expression(known)
            if expr is not None:
                return expr
        if node.op == "get_attr":
            name = f"c_{len(self._space)}"
            self._space[name] = _attribute(self.module, node.target)
            self._names[node] = name
            return name
        self._call(node)
        return self._names[node]

    def _expression(self, n: Any) -> str | None:
        """A size as text over the sizes of the arguments, where they tell it."""
        try:
            found = self.lowering.sizes.index(n)
        except UnsupportedError:
            return None
        return f"({text(found)})" if all(s in self._sizes for s in sizes_of(found)) else None

    def _call(self, node: Any) -> None:
        """One call of torch."""
        if node.target is operator.getitem:
            self._names[node] = name = f"t{len(self._names)}"
            self._add(f"{name} = {self._name(node.args[0])}[{node.args[1]!r}]")
            return
        args = [self._show(a) for a in node.args]
        args += [f"{key}={self._show(a)}" for key, a in node.kwargs.items()]
        function = f"f_{len(self._space)}"
        self._space[function] = _REPLACED.get(str(node.target), node.target)
        if node in self.lowering.updates:
            self._space[function] = Update(node.target)
            args = [_APART, *args]
        elif is_write(node) and node.args[1] in self.lowering.updates:
            self._space[function] = settled
        elif (written := there(node, self.lowering.row)) is not None:
            self._space[function] = written
        self._names[node] = name = f"t{len(self._names)}"
        self._add(f"{name} = {function}({', '.join(args)})")

    def _show(self, a: Any) -> str:
        """An argument as Python text."""
        if isinstance(a, torch.fx.Node):
            return self._name(a)
        if isinstance(a, (list, tuple)):
            inner = ", ".join(self._show(x) for x in a)
            return f"[{inner}]" if isinstance(a, list) else f"({inner}{',' if len(a) == 1 else ''})"
        if isinstance(a, slice):
            return f"slice({self._show(a.start)}, {self._show(a.stop)}, {self._show(a.step)})"
        if a is None or isinstance(a, (bool, int, str)):
            return repr(a)
        if isinstance(a, torch.SymInt) and (expr := self._expression(a)) is not None:
            return expr
        if isinstance(a, float) and math.isfinite(a):
            return repr(a)
        name = f"c_{len(self._space)}"
        self._space[name] = a
        return name

    def _free_unused(self, results: str) -> None:
        """Drops every variable after its last use, so that memory is given back early."""
        last: dict[str, int] = {}
        words = {name: None for name in self._names.values() if name.startswith("t")}
        for at, line in enumerate(self._lines):
            for word in _words(line):
                if word in words:
                    last[word] = at
        kept = set(_words(results))
        ends: dict[int, list[str]] = {}
        for word, at in last.items():
            if word not in kept and at > 1:
                ends.setdefault(at, []).append(word)
        lines: list[str] = []
        for at, line in enumerate(self._lines):
            lines.append(line)
            if at in ends and at < len(self._lines) - 1:
                lines.append(f"    {' = '.join(ends[at])} = None")
        self._lines = lines


def _words(line: str) -> list[str]:
    found: list[str] = []
    word = ""
    for letter in f"{line} ":
        if letter.isalnum() or letter == "_":
            word += letter
        elif word:
            found.append(word)
            word = ""
    return found


def _is_tangent(node: Any) -> bool:
    """Whether it is a gradient that a backward graph is given: of any kind that autograd knows."""
    return node.op == "placeholder" and "tangents" in str(node.target) and not is_guarded(node)


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _in_order(token: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A call that does more than compute, with the token that keeps it in order before its results.
    Lines of a program are in order anyway, so torch's own way there, which takes as long as ten
    calls, is left out."""
    found = function(*args, **options)
    return (token, *found) if isinstance(found, tuple) else (token, found)


_APART = "apart_"
"""Whether arguments of which parts are written share no memory with others in this call."""
_REPLACED: dict[str, Any] = {
    "aten.view.default": torch.ops.aten.reshape.default,
    "aten._unsafe_view.default": torch.ops.aten.reshape.default,
    "aten.index_put.default": put,
    "aten._unsafe_index_put.default": put,
    "with_effects": _in_order,
}
"""A view of a tensor that we laid out otherwise than eager code may need a copy; rows are added at
once; calls in order are called."""
