"""A failure inside the compiler, narrowed down to the operators that it comes from.

Where no kernels can be made of a graph, each half of it is tried as a graph of its own, and so on.
An operator that fails alone is left to torch, and the others are joined again around it.  A graph
whose halves are both compiled stays in two: what failed was the two together.

    program, failure = narrowed(traced.graph, lambda lowering: Program(traced, lowering))
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import knobs
from smelt.errors import FusionError, reason_of
from smelt.frontends.torch.lower import Lowering
from smelt.frontends.torch.program import Program, StageError

__all__ = ["narrowed"]

MOST = 64
"""Failures of one traced graph that are narrowed down; from then on a part that fails is torch's as
a whole."""


def narrowed(
    graph: torch.fx.Graph, make: Callable[[Lowering], Program]
) -> tuple[Program, Exception | None]:
    """What `make` makes of the stages of a traced graph, and what failed first of all, if anything
    did.  Raises that where strictness is asked for, what no operator is to blame for, and that
    operators are not one kernel which have to be."""
    refused: dict[Any, str] = {}
    parts: dict[Any, int] = {}
    failures: list[Exception] = []
    while True:
        lowering = Lowering(graph, refused, parts)
        try:
            program = make(lowering)
            break
        except StageError as error:
            failures.append(_cause(error))
            operators = lowering.operators(error.stage)
            demanded = isinstance(failures[-1], FusionError)
            if knobs.STRICT.get() or demanded or not operators:
                raise failures[-1] from None
            if len(operators) == 1 or len(failures) > MOST:
                refused |= dict.fromkeys(operators, reason_of(failures[-1]))
            else:
                parts = _halved(lowering, error.stage, operators)
    if refused and parts:
        try:
            program = make(Lowering(graph, refused))
        except StageError as error:
            failures.append(_cause(error))
    return program, failures[0] if failures else None


def _cause(error: StageError) -> Exception:
    cause = error.__cause__
    return cause if isinstance(cause, Exception) else error


def _halved(lowering: Lowering, stage: int, operators: Sequence[Any]) -> dict[Any, int]:
    """The stages of all operators, where one stage is cut in the middle of the program."""
    behind = {*operators[len(operators) // 2 :]}
    stages = {n: k for k in range(len(lowering.stages)) for n in lowering.operators(k)}
    return {n: k + (k > stage or n in behind) for n, k in stages.items()}
