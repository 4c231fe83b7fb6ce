"""Bytes without running: the same as the interpreter of kernels counts, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes
from tests.strategies.graphs import graphs

from smelt import lower
from smelt.errors import SmeltError
from smelt.explain.traffic import traffic
from smelt.fusion.plan import Cluster
from smelt.graph.interp import solve_sizes
from smelt.kernel import interp
from smelt.kernel.sizes import input_arrays, sizes_of_call
from smelt.kernel.text import parse
from smelt.ops.create import Input

STEPS = ("gather", "scatter")


def counted(kernel, arrays, sizes):
    trace = interp.Trace()
    with np.errstate(all="ignore"):
        interp.run(kernel, arrays, sizes, trace=trace)
    return trace


def check(kernel, arrays, sizes):
    """Compare by parameter; returns whether every number was exact."""
    result, seen = traffic(kernel, sizes), counted(kernel, arrays, sizes)
    for mine, theirs in ((result.loads, seen.loads), (result.stores, seen.stores)):
        for name, touched in mine.items():
            unique = theirs[name].unique
            if touched.exact:
                assert touched.elements == unique, name
                assert touched.nbytes == theirs[name].unique_nbytes
            else:
                assert touched.elements >= unique, name
    return result.exact


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=8), st.booleans())
def test_equal_to_the_interpreter_on_random_programs(program, large):
    graph, arrays = program
    nodes = tuple(n for n in graph.nodes() if not isinstance(n.op, Input))
    outputs = tuple(dict.fromkeys(n for n in graph.outputs if not isinstance(n.op, Input)))
    assume(outputs and all(n.op.fusible for n in nodes))
    read = {x for n in nodes for x in n.inputs}
    inputs = tuple(x for x in graph.inputs if x in read)
    sizes = solve_sizes(graph, arrays)
    hints = dict.fromkeys(sizes, 1 << 20) if large else sizes  # folds are split for large ones
    try:
        kernel = lower.run(Cluster("k0", nodes, inputs, outputs), "eager", hints)
    except SmeltError:
        assume(False)
    given_ = [a for x, a in zip(graph.inputs, arrays, strict=True) if x in read]
    exact = check(kernel, given_, sizes)
    # Only positions that depend on data leave a doubt.
    assert exact or any(len(n.inputs) > 1 and "gather" in n.op.name for n in nodes)


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens(name):
    kernel = parse(GOLDENS[name])
    arrays = REFERENCES[name].inputs(np.random.default_rng(1), 2)
    given_ = input_arrays(kernel, arrays)
    sizes = sizes_of_call(kernel, {k: v[0] for k, v in given_.items()}, extra_sizes(name, arrays))
    if not any(p.each for p in kernel.inputs):
        check(kernel, arrays, sizes)


CASES = {
    "overlap": (
        "kernel k(x: f32[n]) -> y: f32[n - 2]\n  axis i in n - 2\n  grid i\n"
        "  y[i] = x[i] + x[i + 2]"
    ),
    "flip": "kernel k(x: f32[r,c]) -> y: f32[r,c]\n  grid r, c\n  y[r,c] = x[size(r) - 1 - r, c]",
    "diagonal": "kernel k(x: f32[n,n]) -> y: f32[n]\n  grid n\n  y[n] = x[n,n]",
    "even": ("kernel k(x: f32[n*2]) -> y: f32[n]\n  axis i in n\n  grid i\n  y[i] = x[i*2]"),
    "even and odd": (
        "kernel k(x: f32[n*2]) -> y: f32[n]\n  axis i in n\n  grid i\n  y[i] = x[i*2] + x[i*2 + 1]"
    ),
    "thirds": (
        "kernel k(x: f32[n*6]) -> y: f32[n]\n  axis i in n\n  grid i\n  y[i] = x[i*2] + x[i*3]"
    ),
    "split": (
        "kernel k(x: f32[n,6]) -> y: f32[n*6]\n  axis i in n*6\n  grid i\n  y[i] = x[i//6, i%6]"
    ),
    "joined": (
        "kernel k(x: f32[n*6]) -> y: f32[n,6]\n  axis i in n, j in 6\n  grid i, j\n"
        "  y[i,j] = x[i*6 + j]"
    ),
    "holes": (
        "kernel k(x: f32[n*6]) -> y: f32[n,3]\n  axis i in n, j in 3\n  grid i, j\n"
        "  y[i,j] = x[i*6 + j]"
    ),
    "padded": (
        "kernel k(x: f32[n]) -> y: f32[n + 5]\n  axis i in n + 5\n  grid i\n"
        "  y[i] = x[i - 3] else 0"
    ),
    "strided pad": (
        "kernel k(x: f32[n]) -> y: f32[n]\n  axis i in n\n  grid i\n  y[i] = x[i*2 - 3] else 0"
    ),
    "nothing": "kernel k(x: f32[n]) -> y: f32[n]\n  grid n\n  y[n] = 1",
    "window": (
        "kernel k(x: f32[n + 2]) -> y: f32[n]\n  axis i in n, j in 3\n  grid i\n"
        "  y[i] = sum(x[i + j] over j)"
    ),
}


@pytest.mark.parametrize("n", [1, 2, 5, 12])
@pytest.mark.parametrize("case", CASES)
def test_patterns(case, n):
    kernel = parse(CASES[case])
    if case == "overlap" and n < 3:
        n = 3
    sizes = {s: n + k for k, s in enumerate("rcn")}
    actual = traffic(kernel, sizes)
    arrays = [
        np.ones([int(_number(d, sizes)) for d in p.shape], p.dtype.numpy) for p in kernel.inputs
    ]
    seen = counted(kernel, arrays, sizes)
    assert actual.exact
    assert actual.nbytes == seen.nbytes
    assert {k: t.elements for k, t in actual.loads.items()} == {
        k: a.unique for k, a in seen.loads.items()
    }


def _number(d, sizes):
    from smelt.types.expr import evaluate

    return evaluate(d, sizes)


def test_large_sizes_cost_nothing():
    """No list of 64 billion elements is made."""
    kernel = parse(CASES["split"])
    actual = traffic(kernel, {"n": 10**10})
    assert actual.exact and actual.nbytes == 2 * 4 * 6 * 10**10
    actual = traffic(parse(CASES["even and odd"]), {"n": 10**12})
    assert actual.exact and actual.read == 8 * 10**12


def test_positions_from_data_are_bounds():
    kernel = parse(
        "kernel rows(x: f32[r,c], i: i64[n]) -> y: f32[n,c]\n"
        "  axis n, c, r\n  grid n, c\n  p = position(i[n], size(r))\n  y[n,c] = x[p,c]"
    )
    actual = traffic(kernel, {"r": 1000, "c": 4, "n": 10})
    assert not actual.exact
    assert actual.loads["x"].elements == 40  # ten rows at most
    assert traffic(kernel, {"r": 3, "c": 4, "n": 10}).loads["x"].elements == 12  # all there is
    bound = parse(
        "kernel rows(x: f32[r,c], i: i64[n]) -> y: f32[n,c]\n"
        "  axis n, c, r\n  grid n, c\n  v = i[n]\n  p = position(v, size(r))\n  y[n,c] = x[p,c]"
    )
    assert traffic(bound, {"r": 1000, "c": 4, "n": 10}).loads["x"].elements == 40
