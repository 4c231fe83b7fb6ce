"""Cases as text: a graph, the passes, and what comes out.  Both sides are also run and compared.

A `.case` file is a list of

    [case name]
    [passes canonicalize cse]        or [rounding eager] / [rounding fast] for the whole pipeline
    graph f(x: f32[n]) { ... }
    [out]
    graph f(x: f32[n]) { ... }

`python -m tests.golden.test_golden --update` writes the outputs anew; review the difference.
"""

from __future__ import annotations

import re
import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.strategies import data
from tests.strategies.comparison import Judge, same_bits

from smelt import knobs, passes
from smelt.errors import SmeltError
from smelt.graph.interp import run
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.graph.walk import all_size_names
from smelt.ops.spec import dims_at

FOLDER = Path(__file__).parent
SECTION = re.compile(r"^\[case (?P<name>[^\]]+)\]$", re.MULTILINE)


class Case(NamedTuple):
    """One case of a file."""

    file: str
    name: str
    order: str
    source: str
    out: str

    @property
    def fast(self) -> bool:
        names = {step.name for step in passes.PASSES if step.fast} | {"fast"}
        return not names.isdisjoint(self.order.split())

    @property
    def bitwise(self) -> bool:
        """Floats are summed in an order that follows the layout of the operands, and at once."""
        resums = {"propagate-layouts", "merge-reductions"} & {*self.order.split()}
        follows = "contract(" in self.source or ("reduce.sum(" in self.source and bool(resums))
        return not self.fast and not follows

    def result(self) -> Graph:
        """The graph that the named passes (or the pipeline) make of the source."""
        kind, *names = self.order.split()
        graph = parse(self.source)
        with knobs.config(verify=True):
            if kind == "passes":
                return passes.run_named(graph, names)
            return passes.run(graph, rounding=names[0])  # type: ignore[arg-type]

    def spelled(self) -> str:
        """The case as its file has it."""
        return f"[case {self.name}]\n[{self.order}]\n{self.source}\n[out]\n{self.out}\n"


def read(path: Path) -> list[Case]:
    """The cases of a file, in order."""
    parts = SECTION.split(path.read_text())[1:]
    results: list[Case] = []
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        order, _, rest = body.strip().partition("\n")
        source, _, out = rest.partition("[out]")
        results.append(Case(path.stem, name, order.strip("[]"), source.strip(), out.strip()))
    return results


CASES = [case for path in sorted(FOLDER.glob("*.case")) for case in read(path)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.file}-{c.name}")
def test_text(case: Case) -> None:
    assert text(case.result()) == case.out


WHOLE = [case for case in CASES if case.order.startswith("rounding ")]


@pytest.mark.parametrize("case", WHOLE, ids=lambda c: f"{c.file}-{c.name}")
def test_the_pipeline_has_nothing_left_to_do(case: Case) -> None:
    after = text(case.result())
    assert text(case._replace(source=after).result()) == after


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.file}-{c.name}")
def test_both_sides_compute_the_same(case: Case) -> None:
    before, after = parse(case.source), parse(case.out)
    ran = 0
    for flavour in ("counting", "normal", "special"):
        for values in product((8, 9, 1), repeat=min(len(all_size_names(before)), 2)):
            arrays = inputs(before, values, flavour)
            if arrays is None:
                continue
            wanted, actual = run(before, arrays), run(after, arrays)
            if case.bitwise:
                assert all(same_bits(a, b) for a, b in zip(wanted, actual, strict=True))
            elif flavour != "special":
                assert not Judge(before, arrays).complaint(actual)
            ran += 1
    assert ran


def inputs(graph: Graph, values: tuple[int, ...], flavour: str) -> list[np.ndarray] | None:
    """Arrays for the graph's inputs; None if these sizes do not fit it."""
    sizes = dict(zip(all_size_names(graph), (*values, 5, 3, 4, 2), strict=False))
    arrays = [
        data.array(node.type.dtype, dims_at(node.type.shape, sizes), flavour, k)
        for k, node in enumerate(graph.inputs)
    ]
    arrays = [a % 3 if a.dtype == np.int64 else a for a in arrays]  # may be positions
    try:
        run(graph, arrays)
    except (SmeltError, ValueError):
        return None
    return arrays


def test_names_are_unique() -> None:
    names = [(case.file, case.name) for case in CASES]
    assert len(names) == len(set(names))


def test_every_pass_has_cases() -> None:
    named = {name for case in CASES for name in case.order.split()[1:]}
    assert {step.name for step in passes.PASSES} <= named


def update() -> None:
    """Write every file anew with what the passes give now."""
    for path in sorted(FOLDER.glob("*.case")):
        cases = [case._replace(out=text(case.result())) for case in read(path)]
        path.write_text("\n".join(case.spelled() for case in cases))


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(__doc__)
    update()
