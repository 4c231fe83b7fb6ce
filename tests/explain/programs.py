"""Programs that the tests of reports compile: graph texts with sizes, and arrays for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smelt.compiler import driver
from smelt.graph.ir import Graph, Node
from smelt.graph.text import parse
from smelt.journal.facts import Journal
from smelt.machine.target import Target
from smelt.ops.spec import dims_at
from smelt.python.origin import Origin

TEXTS = {
    "softmax": """graph softmax(x: f32[r,c]) {
  v0 = reduce.max(x) {axes=(1,)}
  v1 = reshape(v0) {shape=(r,1)}
  v2 = sub(x, v1)
  v3 = exp(v2)
  v4 = reduce.sum(v3) {axes=(1,)}
  v5 = reshape(v4) {shape=(r,1)}
  v6 = div(v3, v5)
  return v6
}""",
    "layer": """graph layer(x: f32[r,c], w: f32[c,32], b: f32[32]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = add(v0, b)
  v2 = max(v1, 0.0:f32)
  v3 = mul(v2, 2.0:f32)
  return v3
}""",
    "library": """graph library(x: f32[r,c]) {
  v0 = exp(x)
  v1 = extern.sort(v0) {axis=1, descending=false, stable=true}
  v2 = mul(v1, 2.0:f32)
  v3 = add(v2, 1.0:f32)
  return v3
}""",
    "apart": """graph apart(x: f32[r,c], y: f32[c,r]) {
  v0 = exp(x)
  v1 = log(y)
  return v0, v1
}""",
    "twice": """graph twice(x: f32[r,c], w: f32[c,16]) {
  v0 = exp(x)
  v1 = contract(v0, w) {spec="m,k; k,n -> m,n"}
  v2 = reduce.sum(v0) {axes=(1,)}
  v3 = exp(v1)
  return v2, v3
}""",
    "table": """graph table(x: f32[r,c], i: i64[r]) {
  v0 = exp(x)
  v1 = gather(v0, i) {first=0}
  v2 = add(v1, 1.0:f32)
  return v2
}""",
    "identity": """graph identity(x: f32[r,c]) {
  return x
}""",
}
SIZES = {"r": 48, "c": 40}


def graph(name: str) -> Graph:
    """A graph whose operators come from lines of an imaginary program, one after another."""
    result = parse(TEXTS[name])
    for k, node in enumerate(n for n in result.nodes() if n not in result.inputs):
        node.origin = Origin("/home/ann/model.py", 10 + k, "f", f"v{k} = ...")
    return result


def compiled(name: str, sizes: Mapping[str, int] = SIZES, **options) -> driver.Compiled:
    """Compiled for a machine that is the same everywhere, but for its instructions."""
    return driver.compile(graph(name), hints=sizes, journal=Journal(), **options)


def arrays(inputs: tuple[Node, ...], sizes: Mapping[str, int] = SIZES) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    built = []
    for node in inputs:
        shape = dims_at(node.type.shape, sizes)
        if node.type.dtype.is_float:
            built.append(np.abs(rng.standard_normal(shape)).astype(node.type.dtype.numpy) + 0.5)
        else:
            built.append(rng.integers(0, 8, shape).astype(node.type.dtype.numpy))
    return built


ANYWHERE = Target.for_isa("avx2")
