"""Report on a model: `smelt.torch.explain`, and `smelt.torch.check` against eager code.

    print(smelt.torch.explain(model, x))          # what the compiler makes of it
    difference = smelt.torch.check(model, x)
    assert difference is None, difference

For a check the compiled model, eager code, and eager code in double precision run on the same
arguments. The compiled model may be as far from the double result as eager code is, times a margin.
If a result is further off, each traced operator is compiled alone on eager values, to find the
first that differs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from smelt.frontends.torch.backend import backend
from smelt.frontends.torch.lower import Lowering
from smelt.frontends.torch.origins import module_of, origin_of
from smelt.frontends.torch.program import Program
from smelt.frontends.torch.record import Compiled, Record, record
from smelt.graph.text import text
from smelt.python.dataclass import dataclass


def fresh_backend() -> Callable[..., Any]:
    """Return the backend as a new function, so that Dynamo traces a known program again."""

    def again(module: Any, inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
        return backend(module, inputs, options=options)

    return again


def explain(
    model: Callable[..., Any],
    /,
    *args: Any,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> Record:
    """Compile and run `model(*args, **kwargs)` anew and report every kernel with its time.

    Each kernel is measured on the data of that call.

    Args:
        model: a module or a function.
        *args: arguments as of a call.
        options: settings of `smelt.config`.
        dynamic: as of `torch.compile`.
        **kwargs: keyword arguments as of a call.

    Returns:
        A record: `print` it, or read `kernels`, `left`, `breaks` and `graphs`.

    Raises what the call raises.
    """
    settings: Any = dict(options) if options else None
    with record(measures=True) as result:
        torch.compile(model, backend=fresh_backend(), options=settings, dynamic=dynamic)(
            *args, **kwargs
        )
    return result


ERROR_MARGIN = 16.0
"""Factor on eager code's own error: another order of summation may cost some accuracy."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A result that is further from double precision than rounding explains."""

    result: int
    """Its position among the tensors of the result."""
    error: float
    """The largest distance from double precision, relative to the largest element."""
    eager_error: float
    """Eager code's relative distance from double precision."""
    operator: str
    """The first ATen operator that differs by itself; empty if none does."""
    where: str
    """Its module and line."""
    repro: str
    """A graph in text form, for `smelt run`; empty if no single operator differs."""

    def __str__(self) -> str:
        first = f"; first at {self.operator} {self.where}" if self.operator else ""
        return (
            f"result {self.result} is off by {self.error:.2g}, eager code by "
            f"{self.eager_error:.2g}{first}"
        )

    def write(self, path: str | Path) -> None:
        """Write the graph to a file; raises OSError."""
        Path(path).write_text(self.repro, encoding="utf-8")


def check(
    model: Callable[..., Any], /, *args: Any, margin: float = ERROR_MARGIN, **kwargs: Any
) -> Difference | None:
    """Compare a compiled model with eager code; return the first difference.

    None if the compiled model is as accurate as eager code.

    Args:
        model: a module or function without randomness; it is called five times.
        *args: arguments as of a call.
        margin: factor on eager code's own error.
        **kwargs: keyword arguments as of a call.

    Raises what compiling raises, and never falls back.
    """
    with torch.no_grad():
        exact = _cloned_tensors(_to_double(model)(*_to_double(args), **_to_double(kwargs)))
        with _restore_buffers(model):
            eager = _cloned_tensors(model(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
        with _restore_buffers(model), record(keep_arguments=True) as compilations:
            fast = torch.compile(model, backend=fresh_backend(), options={"strict": True})
            ours = _cloned_tensors(fast(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    for position, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
        error, eager_error = _relative_error(a, c), _relative_error(b, c)
        if not error <= margin * max(eager_error, _epsilon(a)):
            name, where, repro = _first_difference(compilations.graphs, margin)
            return Difference(position, error, eager_error, name, where, repro)
    return None


def _cloned_tensors(nest: Any) -> list[Any]:
    """Clone all tensors of a result: one may be a buffer that is restored later."""
    return [x.clone() for x in tree_leaves(nest) if isinstance(x, torch.Tensor)]


@contextmanager
def _restore_buffers(model: Any) -> Generator[None]:
    """Restore a module's buffers afterwards, so that every run starts from the same state."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    buffers = [(part, *item) for part in parts for item in part.named_buffers(recurse=False)]
    before = [None if b.is_inference() else b.clone() for *_, b in buffers]
    try:
        yield
    finally:
        for (part, name, b), old in zip(buffers, before, strict=True):
            setattr(part, name, b)
            if old is not None:
                b.copy_(old)


def _to_double(x: Any) -> Any:
    """Convert the floats of a module or nest of arguments to double precision."""
    if isinstance(x, torch.nn.Module):
        memo = {id(b): b.detach().clone() for b in x.buffers() if not b.is_leaf}
        return copy.deepcopy(x, memo).double()
    return tree_map(
        lambda a: a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a, x
    )


def _relative_error(a: Any, exact: Any) -> float:
    """Return the largest distance over the largest element; infinite if only one side is NaN."""
    if a.numel() == 0:
        return 0.0
    a, exact = a.double(), exact.double()
    same = (a == exact) | (a.isnan() & exact.isnan())
    gap = torch.where(same, 0.0, (a - exact).abs()).max().item()
    size = torch.where(exact.isfinite(), exact.abs(), 0.0).max().item()
    return float("inf") if gap != gap else gap / max(size, 1e-30)


def _epsilon(a: Any) -> float:
    """Return the machine epsilon of a type; 0 for integers."""
    return torch.finfo(a.dtype).eps if a.is_floating_point() else 0.0


def _first_difference(graphs: list[Compiled], margin: float) -> tuple[str, str, str]:
    """Return the first operator whose result differs when its operands are eager code's."""
    for compilation in graphs:
        if compilation.program is None or compilation.first_arguments is None:
            continue
        values = _eager_values(compilation.program.module, list(compilation.first_arguments))
        for node in compilation.program.module.graph.nodes:
            if node.op != "call_function" or not isinstance(values.get(node), torch.Tensor):
                continue
            repro = _repro_if_different(node, values, margin)
            if repro is not None:
                return str(node.target), module_of(node), repro
    return "", "", ""


def _eager_values(module: Any, arguments: list[Any]) -> dict[Any, Any]:
    """Return every traced value, computed by torch."""
    values: dict[Any, Any] = {}

    class Noting(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            values[n] = super().run_node(n)
            return values[n]

    with torch.no_grad():
        Noting(module).run(*arguments)
    return values


def _repro_if_different(node: Any, values: dict[Any, Any], margin: float) -> str | None:
    """Return the graph of one operator if its result differs from eager code's; else None."""
    graph = torch.fx.Graph()
    placeholders: dict[Any, Any] = {}
    arguments: list[Any] = []

    def operand(x: Any) -> Any:
        if x not in placeholders:
            placeholders[x] = graph.placeholder(f"a{len(placeholders)}")
            placeholders[x].meta.update(x.meta)
            placeholders[x].meta["smelt_guarded"] = False
            arguments.append(values[x])
        return placeholders[x]

    copied = graph.node_copy(node, operand)
    copied.meta["smelt_origin"] = origin_of(node)
    graph.output((copied,))
    lowering = Lowering(graph)
    if lowering.left:
        return None  # computed by torch
    program = Program(torch.fx.GraphModule({}, graph), lowering)
    (ours,) = program.call(list(arguments))
    theirs = values[node]
    if _relative_error(ours, theirs) <= margin * 64 * max(_epsilon(ours), 0.0):
        return None
    return "\n".join(text(s.compiled.graph) for s in program.segments)
