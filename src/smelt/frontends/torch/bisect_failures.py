"""Bisect a failed compilation down to the operators that cause it.

If a graph cannot be compiled, each half of it is tried as a graph of its own, recursively. An
operator that fails alone is left to torch, and the others are merged again around it. A graph whose
halves both compile stays split: only their combination failed.

    program, failure = narrowed(traced.graph, lambda lowering: Program(traced, lowering))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import knobs
from smelt.errors import CaptureError, FusionError, reason_of
from smelt.frontends.torch.lower import Lowering
from smelt.frontends.torch.program import Program, StageError

NOT_LEFT_TO_TORCH = FusionError, CaptureError
"""Failures that the user acts on: a required fusion, and a program that a capture cannot have,
which would stay with torch when the capture has ended."""

MAX_FAILURES = 64
"""Maximum failures of one traced graph that are bisected; after that, a part that fails is left to
torch as a whole."""


def bisect_failures(
    graph: torch.fx.Graph, make: Callable[[Lowering], Program]
) -> tuple[Program, Exception | None]:
    """Build a program from a traced graph and leave failing operators to torch.

    `make` compiles the stages of a lowering. Returns the program and the first failure, if any.
    Re-raises a failure in strict mode, when no operator can be blamed, and those in
    `NOT_LEFT_TO_TORCH`.
    """
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
            is_required = isinstance(failures[-1], NOT_LEFT_TO_TORCH)
            if knobs.STRICT.get() or is_required or not operators:
                raise failures[-1] from None
            if len(operators) == 1 or len(failures) > MAX_FAILURES:
                refused |= dict.fromkeys(operators, reason_of(failures[-1]))
            else:
                parts = _split_stage(lowering, error.stage, operators)
    if refused and parts:
        try:
            program = make(Lowering(graph, refused))
        except StageError as error:
            failures.append(_cause(error))
    return program, failures[0] if failures else None


def _cause(error: StageError) -> Exception:
    cause = error.__cause__
    return cause if isinstance(cause, Exception) else error


def _split_stage(lowering: Lowering, stage: int, operators: Sequence[Any]) -> dict[Any, int]:
    """Assign a stage to every operator, cutting one stage in its middle."""
    second_half = {*operators[len(operators) // 2 :]}
    stages = {n: k for k in range(len(lowering.stages)) for n in lowering.operators(k)}
    return {n: k + (k > stage or n in second_half) for n, k in stages.items()}
