"""What a graph of Dynamo's tells beside its operators.

Dynamo notes at each value an example without data.  Whether something requires a gradient, what
eager code would hold at once and which results are views is read from those before the graph is
compiled; a program that PyTorch saves keeps the answers and leaves the examples out.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from smelt.frontends.torch.aliasing import Shown, traced_results
from smelt.frontends.torch.eager_memory import held_by_eager, kept_by_autocast

__all__ = ["Told", "told_by"]


@dataclass(frozen=True, slots=True)
class Told:
    """Facts of one graph."""

    held: int | None
    """Bytes that eager code holds at once, if that is known."""
    cast: tuple[bool, ...]
    """Of which arguments autocast keeps a converted copy."""
    results: list[Shown | None]
    """How each result that is a tensor lies."""
    makes_gradients: bool
    """Whether autograd follows a result: then forward and backward are cut before anything is
    written, and what a step writes into its arguments is copied behind it."""
    writes_scalars: bool
    """Whether a program writes into a tensor of one float64.  PyTorch also takes that for a number
    of Python's, and traces again if it finds no use for it as one: then it drops what is written
    and not read."""
    without_memory: bool
    """Whether an argument is zeros without memory; guards tell those from other tensors."""


def told_by(module: torch.fx.GraphModule) -> Told:
    """The facts of a graph that Dynamo has just traced."""
    graph = module.graph
    return Told(
        held_by_eager(module),
        kept_by_autocast(module),
        traced_results(module),
        any(
            x.requires_grad
            for n in graph.find_nodes(op="output")[0].all_input_nodes
            if (x := _example(n)) is not None
        ),
        any(
            x.dtype is torch.float64 and x.dim() == 0
            for n in graph.nodes
            if n.op.startswith("call") and not n.users and (x := _example(n)) is not None
        ),
        any(map(_has_no_memory, graph.find_nodes(op="placeholder"))),
    )


def _example(node: torch.fx.Node) -> torch.Tensor | None:
    found: Any = node.meta.get("example_value")
    return found if isinstance(found, torch.Tensor) else None


def _has_no_memory(argument: torch.fx.Node) -> bool:
    example = getattr(argument.meta.get("grapharg"), "example", None)
    return isinstance(example, torch.Tensor) and example._is_zerotensor()
