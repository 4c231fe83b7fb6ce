"""Read facts from Dynamo's example values that the operators do not show.

Dynamo stores an example without data at each value. Whether a result requires a gradient, the peak
memory of eager code and which results are views are read from these before the graph is compiled; a
program that PyTorch saves keeps the facts and drops the examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from smelt.frontends.torch.aliasing import ResultLayout, traced_layouts
from smelt.frontends.torch.eager_memory import autocast_cached_arguments, eager_peak_bytes


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts of one graph."""

    eager_bytes: int | None
    """Peak bytes of eager code; None if unknown."""
    autocast_cached: tuple[bool, ...]
    """For each argument, whether autocast keeps a converted copy of it."""
    results: list[ResultLayout | None]
    """The layout of each result; None for what is not a strided tensor."""
    makes_gradients: bool
    """Whether autograd follows a result. Forward and backward are then split before anything is
    written, and what a step writes into its arguments is copied after the forward graph."""
    writes_scalars: bool
    """Whether a program writes into a tensor of one float64. PyTorch may take such a tensor for a
    Python number, and traces again if it finds no use for it as one; it then drops what is written
    and not read."""
    has_zero_tensors: bool
    """Whether an argument is an efficient zero tensor, which has no memory; guards distinguish
    those from other tensors."""


def graph_facts(module: torch.fx.GraphModule) -> GraphFacts:
    """Read the facts of a graph that Dynamo has just traced."""
    graph = module.graph
    return GraphFacts(
        eager_peak_bytes(module),
        autocast_cached_arguments(module),
        traced_layouts(module),
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
        any(map(_is_zero_tensor, graph.find_nodes(op="placeholder"))),
    )


def _example(node: torch.fx.Node) -> torch.Tensor | None:
    example: Any = node.meta.get("example_value")
    return example if isinstance(example, torch.Tensor) else None


def _is_zero_tensor(argument: torch.fx.Node) -> bool:
    example = getattr(argument.meta.get("grapharg"), "example", None)
    return isinstance(example, torch.Tensor) and example._is_zerotensor()
