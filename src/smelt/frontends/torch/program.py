"""Generate one Python function that runs a lowered program.

Graphs run as kernels, calls go to torch. The function is written as text and compiled once, so that
a call costs no interpretation:

    def call(args):
        t0, t1, n0 = args
        t2, = graph0((t0, t1), (n0,))
        t3 = sort(t2, -1)
        return (t3[0],)
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from smelt.errors import UnsupportedError, raised_by_signal_handler
from smelt.frontends.torch.fake_facts import Budget, View, make_view
from smelt.frontends.torch.in_place import (
    Update,
    copy_if_new,
    fast_index_put,
    in_place_function,
    is_write,
    share_no_memory,
)
from smelt.frontends.torch.layout import (
    constant_permutation,
    copy_to_strides,
    declared_strides,
    is_guarded,
    match_strides,
    materialize,
    memory_order,
    user_results,
)
from smelt.frontends.torch.lower import Lowering, Stage
from smelt.frontends.torch.segment import Segment, make_segment
from smelt.frontends.torch.subgraph import submodule
from smelt.graph.bounds_checks import refuse_out_of_bounds
from smelt.runtime.prelude import Allowance
from smelt.types.expr import size, sizes_of, text


class StageError(Exception):
    """A stage cannot be compiled; the cause says why."""

    def __init__(self, stage: int) -> None:
        super().__init__(f"stage {stage}")
        self.stage = stage


class Program:
    """The generated function `call`; `segments` are its graphs, `source` its text."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        lowering: Lowering,
        budget: Budget | None = None,
        *,
        check_bounds: bool = True,
        varying_dims: Collection[int] | None = None,
    ) -> None:
        """Compile the graphs of a lowering and generate the function.

        `budget` is the memory that the graphs may take together; None: each what its operators
        would take one by one. Without `check_bounds` positions were checked before. Dimensions that
        are numbers among `varying_dims` may vary in another trace of the same program; None: none
        does.
        """
        self._varying_dims = varying_dims
        self.lowering, self._budget, self._emit_checks = lowering, budget, check_bounds
        self.segments: list[Segment] = []
        self.module = module
        self._names: dict[Any, str] = {}
        self._lines: list[str] = []
        self._namespace: dict[str, Any] = {}
        self._sizes: dict[str, str] = {}
        self._build(module.graph)
        self.source = "\n".join(self._lines) + "\n"
        exec(compile(self.source, "<smelt program>", "exec"), self._namespace)  # noqa: S102
        self.call: Callable[[list[Any]], Any] = self._namespace["call"]

    @property
    def varying_sizes(self) -> set[int]:
        """Return the numbers that its graphs take for sizes."""
        return {e for s in self.segments for e in s.sizes.values() if isinstance(e, int)}

    def call_observed(self, args: list[Any], look: Callable[[Segment, Any, Any], None]) -> Any:
        """Run one call; `look` gets each graph, its tensors and its sizes before it runs."""

        def observed(segment: Segment) -> Callable[[Any, Any], Any]:
            def run(tensors: Any, sizes: Any) -> Any:
                look(segment, tensors, sizes)
                return segment.run(tensors, sizes)

            return run

        original = dict(self._namespace)
        self._namespace |= {f"graph{k}": observed(s) for k, s in enumerate(self.segments)}
        try:
            return self.call(args)
        finally:
            self._namespace |= original

    # ---- text ------------------------------------------------------------------------------------

    def _build(self, graph: torch.fx.Graph) -> None:
        self._lines.append("def call(args):")
        arguments = [n for n in graph.nodes if n.op == "placeholder"]
        for k, node in enumerate(arguments):
            self._names[node] = f"t{k}"
        if arguments:
            self._add("".join(f"{self._names[n]}, " for n in arguments) + "= args")
        self._add("args.clear()")
        self._define_sizes(arguments)
        self._check_overlap(arguments)
        for node in self.lowering.early_views:
            self._call(node)
        for k, stage in enumerate(self.lowering.stages):
            if stage.outputs:
                try:
                    self._segment(stage)
                except Exception as error:
                    if raised_by_signal_handler(error):
                        raise
                    raise StageError(k) from error
            for node in stage.calls:
                self._call(node)
        for k, node in enumerate(self.lowering.copied_values):
            self._add(f"tl{k} = {self._name(node)}.clone()")
            self._names[node] = f"tl{k}"
        for node in self.lowering.final_writes:
            self._call(node)
        for node in filter(is_write, graph.nodes):  # its result is the argument
            self._names[node] = self._names[node.args[0]]
        self._restore_strides(next(n for n in graph.nodes if n.op == "output"))
        results = self._results()
        self._release_unused(results)
        self._add(f"return {results}")

    def _results(self) -> str:
        views = self.lowering.views
        if not views:
            return self._literal(self.lowering.results)
        each = enumerate(self.lowering.results)
        shown = [self._view(x, views[k]) if k in views else self._literal(x) for k, x in each]
        return f"({', '.join(shown)},)"

    def _view(self, node: Any, view: View) -> str:
        self._namespace["view_of"] = make_view
        shape, strides = (
            "".join(f"{self._number(n)}, " for n in side) for side in (view.shape, view.strides)
        )
        return f"view_of({self._name(node)}, ({shape}), ({strides}), {self._number(view.start)})"

    def _restore_strides(self, output: Any) -> None:
        """Give results that are parts of values, stored alone, eager code's strides."""
        for node in user_results(output):
            if self.lowering.is_torch_view(node):
                continue
            fake = node.meta["val"]
            if not isinstance(fake, torch.Tensor) or memory_order(fake) is not None:
                continue
            layout = [self._number(n) for n in (*fake.stride(), fake.storage_offset())]
            if None not in layout:
                name = self._name(node)
                self._namespace["laid_out"] = copy_to_strides
                strides = "".join(f"{n}, " for n in layout[:-1])
                self._add(f"{name} = laid_out({name}, ({strides}), {layout[-1]})")

    def _check_overlap(self, arguments: list[Any]) -> None:
        """Check at the call whether arguments written in place share memory with others."""
        written = list(dict.fromkeys(self.lowering.updates.values()))
        if not written:
            return
        tensors = [n for n in arguments if isinstance(n.meta.get("val"), torch.Tensor)]
        lists = [
            ", ".join(self._names[n] for n in tensors if (n in written) == is_written)
            for is_written in (True, False)
        ]
        self._namespace["apart"] = share_no_memory
        self._add(f"{_NO_OVERLAP} = apart([{lists[0]}], [{lists[1]}])")

    def _number(self, n: Any) -> str | None:
        return repr(n) if isinstance(n, int) else self._expression(n)

    def _add(self, line: str) -> None:
        self._lines.append(f"    {line}")

    def _define_sizes(self, arguments: list[Any]) -> None:
        """Define each symbol from an argument, or from a dimension of one."""
        for node in arguments:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self._define_size(value, self._names[node])
        for node in arguments:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                for a, n in enumerate(value.shape):
                    if isinstance(n, torch.SymInt):
                        self._define_size(n, f"{self._names[node]}.size({a})")

    def _define_size(self, n: Any, source: str) -> None:
        try:
            expr = self.lowering.sizes.index(n)
        except UnsupportedError:
            return
        for name in self.lowering.sizes.names.values():
            if expr == size(name) and name not in self._sizes:
                self._sizes[name] = source
                self._add(f"{name} = {source}")

    def _segment(self, stage: Stage) -> None:
        segment = make_segment(
            stage,
            self.lowering.sizes,
            self._allowance(),
            check_bounds=self._emit_checks,
            varying_dims=self._varying_dims,
            device=self.lowering.device,
        )
        if self._budget is not None:
            self._budget.reserve(segment.constant_bytes)
        self.segments.append(segment)
        name = f"graph{len(self.segments) - 1}"
        self._namespace[name] = segment.run
        tensors = ", ".join(self._tensor(node) for node in stage.inputs)
        expressions = [segment.sizes[n] for n in segment.size_names]
        missing = [n for e in expressions for n in sizes_of(e) if n not in self._sizes]
        if missing:
            raise UnsupportedError(f"no argument tells the size {missing[0]}")
        sizes = "".join(f"{text(e)}, " for e in expressions)
        targets: list[str] = []
        for node in stage.outputs:
            if node in stage.written:
                continue
            self._names[node] = f"t{len(self._names)}"
            targets.append(f"{self._names[node]}, ")
        if segment.bounds_checks.flag is not None:
            targets.append("outside, ")
        comma = "," if len(stage.inputs) == 1 else ""
        assignment = f"{''.join(targets)}= " if targets else ""
        self._check_bounds(segment, name)
        self._add(f"{assignment}{name}(({tensors}{comma}), ({sizes}))")
        if segment.bounds_checks.flag is not None:
            self._add(f"if outside: refused_{name}()")

    def _check_bounds(self, segment: Segment, name: str) -> None:
        """Add comparisons of sizes for the positions that a graph reads."""
        if segment.bounds_checks.readers:
            self._namespace[f"refused_{name}"] = partial(
                refuse_out_of_bounds, segment.bounds_checks.readers
            )
        for remaining in segment.bounds_checks.sizes:
            if all(s in self._sizes for s in sizes_of(remaining)):
                self._add(f"if {text(remaining)} < 0: refused_{name}()")

    def _allowance(self) -> Allowance | None:
        """Return the memory that the next graph may take; None if it is unknown."""
        if self._budget is None:
            return None
        stages = self.lowering.stages
        writes = all(map(is_write, self.lowering.final_writes))
        alone = len(stages) == 1 and not stages[0].calls and writes
        return self._budget.allowance(alone=alone)

    def _tensor(self, node: Any) -> str:
        """Return the text of a tensor in the memory order that the input declares."""
        name = self._name(node)
        fake = node.meta["val"]
        order = memory_order(fake)
        if constant_permutation(node) is not None:
            return name
        if fake.is_neg() or _is_tangent(node):
            self._namespace["plain"] = materialize
            name = f"plain({name})" + (".contiguous()" if fake.is_neg() else "")
        if order is not None and order != list(range(len(order))):
            name = f"{name}.permute({order})"
        in_order = order is None or order == list(range(len(order)))
        if node.op == "placeholder" and in_order and is_guarded(node):
            return name
        if not is_guarded(node):  # some versions of torch pass another type than the traced one
            kind = self._literal(fake.dtype)
            condition = f"{name}.dtype is {kind} and {name}.is_contiguous()"
            converted = f"{name}.to({kind})"
        else:
            condition, converted = f"{name}.is_contiguous()", name
        if order is None and node.op == "placeholder":
            self._namespace["fitted"] = match_strides
            return f"fitted({converted}, {declared_strides(fake, guarded=False)})"
        if not name.isidentifier():
            return f"{converted}.contiguous()"
        # The check is faster than the call.
        return f"({name} if {condition} else {converted}.contiguous())"

    def _name(self, node: Any) -> str:
        """Return the variable of a value.

        A view or a size is computed now.
        """
        variable = self._names.get(node)
        if variable is not None:
            return variable
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            expr = self._expression(value)
            if expr is not None:
                return expr
        if node.op == "get_attr":
            name = f"c_{len(self._namespace)}"
            self._namespace[name] = submodule(self.module, node.target)
            self._names[node] = name
            return name
        self._call(node)
        return self._names[node]

    def _expression(self, n: Any) -> str | None:
        """Return a size as text over sizes of the arguments.

        None if they do not determine it.
        """
        try:
            size_expression = self.lowering.sizes.index(n)
        except UnsupportedError:
            return None
        return (
            f"({text(size_expression)})"
            if all(s in self._sizes for s in sizes_of(size_expression))
            else None
        )

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            self._names[node] = name = f"t{len(self._names)}"
            self._add(f"{name} = {self._name(node.args[0])}[{node.args[1]!r}]")
            return
        args = [self._literal(a) for a in node.args]
        args += [f"{key}={self._literal(a)}" for key, a in node.kwargs.items()]
        function = f"f_{len(self._namespace)}"
        self._namespace[function] = _REPLACEMENTS.get(str(node.target), node.target)
        if node in self.lowering.updates:
            self._namespace[function] = Update(node.target)
            args = [_NO_OVERLAP, *args]
        elif is_write(node) and node.args[1] in self.lowering.updates:
            self._namespace[function] = copy_if_new
        elif (in_place := in_place_function(node, self.lowering.row)) is not None:
            self._namespace[function] = in_place
        self._names[node] = name = f"t{len(self._names)}"
        self._add(f"{name} = {function}({', '.join(args)})")

    def _literal(self, a: Any) -> str:
        """Return an argument as Python text."""
        if isinstance(a, torch.fx.Node):
            return self._name(a)
        if isinstance(a, (list, tuple)):
            inner = ", ".join(self._literal(x) for x in a)
            return f"[{inner}]" if isinstance(a, list) else f"({inner}{',' if len(a) == 1 else ''})"
        if isinstance(a, slice):
            return (
                f"slice({self._literal(a.start)}, {self._literal(a.stop)}, {self._literal(a.step)})"
            )
        if a is None or isinstance(a, (bool, int, str)):
            return repr(a)
        if isinstance(a, torch.SymInt) and (expr := self._expression(a)) is not None:
            return expr
        if isinstance(a, float) and math.isfinite(a):
            return repr(a)
        name = f"c_{len(self._namespace)}"
        self._namespace[name] = a
        return name

    def _release_unused(self, results: str) -> None:
        """Clear every variable after its last use, so that memory is released early."""
        last: dict[str, int] = {}
        words = {name: None for name in self._names.values() if name.startswith("t")}
        for number, line in enumerate(self._lines):
            for word in re.findall(r"\w+", line):
                if word in words:
                    last[word] = number
        returned = set(re.findall(r"\w+", results))
        ends: dict[int, list[str]] = {}
        for word, number in last.items():
            if word not in returned and number > 1:
                ends.setdefault(number, []).append(word)
        lines: list[str] = []
        for number, line in enumerate(self._lines):
            lines.append(line)
            if number in ends and number < len(self._lines) - 1:
                lines.append(f"    {' = '.join(ends[number])} = None")
        self._lines = lines


def _is_tangent(node: Any) -> bool:
    """Whether it is a gradient passed to a backward graph, of any tensor kind."""
    return node.op == "placeholder" and "tangents" in str(node.target) and not is_guarded(node)


def _call_with_token(token: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function with side effects and put its effect token before its results.

    Lines of a program run in order anyway, so torch's slow wrapper is skipped.
    """
    result = function(*args, **options)
    return (token, *result) if isinstance(result, tuple) else (token, result)


_NO_OVERLAP = "apart_"
"""Variable: whether partly written arguments share no memory with others in this call."""
_REPLACEMENTS: dict[str, Any] = {
    "aten.view.default": torch.ops.aten.reshape.default,
    "aten._unsafe_view.default": torch.ops.aten.reshape.default,
    "aten.index_put.default": fast_index_put,
    "aten._unsafe_index_put.default": fast_index_put,
    "with_effects": _call_with_token,
}
"""Functions called in place of traced operators: reshapes, as a view of a tensor with our strides
may need a copy; faster index_put; calls without the token wrapper."""
