"""After planning, no legal and faster fusion of two kernels is reported.

What is told is what the search would have of it: of kernels that read the same arrays, one launch
is not a gain, for they start together anyway.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE

from smelt import passes
from smelt.fusion import plan
from smelt.fusion.decide import Decisions
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal


def untaken(graph: Graph, sizes: dict[str, int]) -> list[float]:
    """Return the gains that searches report and do not take, and reported decisions without gain.

    They are computed at the sizes of the plan and at larger ones.
    """
    results: list[float] = []
    split = Decisions.split

    def record_gain(
        self: Decisions,
        one: Any,
        other: Any,
        after: Any,
        refusal: Any,
        gain: float = 0.0,
        *,
        siblings: bool,
    ) -> None:
        split(self, one, other, after, refusal, gain, siblings=siblings)
        if after is not None and refusal is None:
            results.append(max(gain, self.records[-1].saves_ns))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decisions, "split", record_gain)
        plan(graph, MACHINE, Journal(), sizes)
    return [gain for gain in results if gain > 1e-3]


SEEDS = [(432, 20), *((seed, 10 * (1 + seed % 4)) for seed in range(200))]
"""Random graphs and their operators.  In the first one, two kernels that read the same array gain
only together by joining a third one."""


@pytest.mark.parametrize("block", range(4))
def test_no_reported_gain_is_missed(block: int) -> None:
    for seed, operators in SEEDS[block::4]:
        g, graph = random_graph(seed, operators, results=2)
        graph = passes.run(graph, Journal(), "eager")
        assert untaken(graph, g.sizes) == [], seed
