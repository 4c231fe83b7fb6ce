"""`smelt.torch.check`: a model compared with eager code, and the first operator that differs.

The compiled model, eager code, and eager code in double precision run on the same arguments.  What
is compiled may err as far from the double result as eager code does, times a margin.  If a result
is further off, the traced graphs are cut: eager values go in, one operator at a time comes out.

    difference = smelt.torch.check(model, x)
    assert difference is None, difference
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from smelt.dataclass import dataclass
from smelt.frontends.torch.explained import fresh
from smelt.frontends.torch.lower import Lowering
from smelt.frontends.torch.origins import module_of, origin_of
from smelt.frontends.torch.program import Program
from smelt.frontends.torch.record import Compiled, record
from smelt.graph.text import text

__all__ = ["Difference", "check"]

MARGIN = 16.0
"""How many times eager's own error is allowed: another order of summation may cost some."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A result that is further from the double precision one than rounding explains."""

    result: int
    """Its place among the tensors of the result."""
    error: float
    """The largest distance from double precision, relative to the largest element."""
    eager_error: float
    """The same of eager code."""
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
        """Writes the graph to a file.  Raises OSError."""
        Path(path).write_text(self.repro, encoding="utf-8")


def check(
    model: Callable[..., Any], /, *args: Any, margin: float = MARGIN, **kwargs: Any
) -> Difference | None:
    """None if the compiled model is as accurate as eager code, else where it first is not.

    Args:
        model: a module or function without randomness; it is called five times.
        *args: arguments as of a call.
        margin: how many times eager's own error is allowed.
        **kwargs: keyword arguments as of a call.

    Raises what compiling raises, and never falls back.
    """
    with torch.no_grad():
        exact = _tensors(_double(model)(*_double(args), **_double(kwargs)))
        with _unchanged(model):
            eager = _tensors(model(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
        with _unchanged(model), record(keep_arguments=True) as found:
            fast = torch.compile(model, backend=fresh(), options={"strict": True})
            ours = _tensors(fast(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    for place, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
        error, own = _error(a, c), _error(b, c)
        if not error <= margin * max(own, _step(a)):
            name, where, repro = _first(found.graphs, margin)
            return Difference(place, error, own, name, where, repro)
    return None


def _tensors(nest: Any) -> list[Any]:
    """Copies of all tensors: a result may be a buffer, which the next run finds as it was."""
    return [x.clone() for x in tree_leaves(nest) if isinstance(x, torch.Tensor)]


@contextmanager
def _unchanged(model: Any) -> Generator[None]:
    """Gives a module's buffers back what was in them: every run starts from the same state."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    held = [(part, *own) for part in parts for own in part.named_buffers(recurse=False)]
    before = [None if b.is_inference() else b.clone() for *_, b in held]
    try:
        yield
    finally:
        for (part, name, b), was in zip(held, before, strict=True):
            setattr(part, name, b)
            if was is not None:
                b.copy_(was)


def _double(x: Any) -> Any:
    """A module or nest of arguments with all floats in double precision."""
    if isinstance(x, torch.nn.Module):
        followed = {id(b): b.detach().clone() for b in x.buffers() if not b.is_leaf}
        return copy.deepcopy(x, followed).double()
    return tree_map(
        lambda a: a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a, x
    )


def _error(a: Any, exact: Any) -> float:
    """The largest distance over the largest element; infinite where one is NaN and one is not."""
    if a.numel() == 0:
        return 0.0
    a, exact = a.double(), exact.double()
    same = (a == exact) | (a.isnan() & exact.isnan())
    gap = torch.where(same, 0.0, (a - exact).abs()).max().item()
    size = torch.where(exact.isfinite(), exact.abs(), 0.0).max().item()
    return float("inf") if gap != gap else gap / max(size, 1e-30)


def _step(a: Any) -> float:
    """The relative distance of neighbouring numbers; integers are exact."""
    return torch.finfo(a.dtype).eps if a.is_floating_point() else 0.0


def _first(graphs: list[Compiled], margin: float) -> tuple[str, str, str]:
    """The first operator whose result differs when its operands are eager's."""
    for made in graphs:
        if made.program is None or made.first_arguments is None:
            continue
        values = _eager_values(made.program.module, list(made.first_arguments))
        for node in made.program.module.graph.nodes:
            if node.op != "call_function" or not isinstance(values.get(node), torch.Tensor):
                continue
            found = _alone(node, values, margin)
            if found is not None:
                return str(node.target), module_of(node), found
    return "", "", ""


def _eager_values(module: Any, arguments: list[Any]) -> dict[Any, Any]:
    """Every traced value, computed by torch."""
    values: dict[Any, Any] = {}

    class Noting(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            values[n] = super().run_node(n)
            return values[n]

    with torch.no_grad():
        Noting(module).run(*arguments)
    return values


def _alone(node: Any, values: dict[Any, Any], margin: float) -> str | None:
    """The graph of one operator if its result differs from eager's; else None."""
    graph = torch.fx.Graph()
    made: dict[Any, Any] = {}
    given: list[Any] = []

    def operand(x: Any) -> Any:
        if x not in made:
            made[x] = graph.placeholder(f"a{len(made)}")
            made[x].meta.update(x.meta)
            made[x].meta["smelt_guarded"] = False
            given.append(values[x])
        return made[x]

    copied = graph.node_copy(node, operand)
    copied.meta["smelt_origin"] = origin_of(node)
    graph.output((copied,))
    lowering = Lowering(graph)
    if lowering.left:
        return None  # torch's own
    program = Program(torch.fx.GraphModule({}, graph), lowering)
    (ours,) = program.call(list(given))
    theirs = values[node]
    if _error(ours, theirs) <= margin * 64 * max(_step(ours), 0.0):
        return None
    return "\n".join(text(s.compiled.graph) for s in program.segments)
