"""Generate the decisions that docs/fusion.md explains, from today's planner.

Each case is a graph in its text form, compiled for a fixed generic machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import smelt as sm
from smelt.compiler import driver
from smelt.explain.report import report
from smelt.graph.text import parse
from smelt.journal.facts import Journal
from smelt.machine.target import Target
from smelt.python.origin import UNKNOWN

TARGET = Target.for_isa("avx512")


@dataclass(frozen=True)
class Case:
    """A graph, its sizes, and the two operators to explain."""

    graph: str
    sizes: Mapping[str, int]
    operator_pair: tuple[str, str]
    shows_graph: bool = True


CASES: Mapping[str, Case] = {
    "chain": Case(
        """graph chain(x: f32[n,d], b: f32[d]) {
  v0 = add(x, b)
  v1 = max(v0, 0.0:f32)
  return v1
}""",
        {"n": 4096, "d": 768},
        ("add", "max"),
    ),
    "row": Case(
        """graph softmax(x: f32[n,d]) {
  v0 = reduce.max(x) {axes=(1,)}
  v1 = reshape(v0) {shape=(n,1)}
  v2 = sub(x, v1)
  v3 = exp(v2)
  v4 = reduce.sum(v3) {axes=(1,)}
  v5 = reshape(v4) {shape=(n,1)}
  v6 = div(v3, v5)
  return v6
}""",
        {"n": 4096, "d": 768},
        ("reduce.max", "sub"),
    ),
    "recompute": Case(
        """graph rows(table: f32[v,d], i: i64[n]) {
  v0 = erf(table)
  v1 = gather(v0, i) {first=0}
  v2 = add(v1, 1.0:f32)
  return v2
}""",
        {"v": 4096, "d": 768, "n": 65536},
        ("erf", "gather"),
    ),
    "barrier": Case(
        """graph chosen(x: f32[n,d]) {
  v0 = exp(x)
  v1 = extern.sort(v0) {axis=1, descending=false, stable=true}
  v2 = mul(v1, 2.0:f32)
  return v2
}""",
        {"n": 4096, "d": 768},
        ("extern.sort", "mul"),
    ),
}


def render_case(case: Case) -> str:
    """Return the graph and the answer of `why`, as code blocks."""
    graph = parse(case.graph)
    for node in graph.nodes():
        node.origin = UNKNOWN
    with sm.config(cache=False):
        compiled = driver.compile(graph, hints=case.sizes, target=TARGET, journal=Journal())
    answer = str(report(compiled, case.sizes).why(*case.operator_pair))
    return f"```text\n{case.graph}\n```\n\n```text\n{answer.strip()}\n```\n"


PARTS: Mapping[str, Callable[[], str]] = {
    name: lambda case=case: render_case(case) for name, case in CASES.items()
}
"""Part of docs/fusion.md -> the function that generates it."""
