"""Isomorphic clusters are lowered once, into the kernel that each would have had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs, lower
from smelt.compiler import driver
from smelt.graph.text import parse
from smelt.kernel.canonical import canonical_kernel
from smelt.kernel.text import text


def lowerings(graph: Any, hints: dict[str, int]) -> tuple[int, driver.Compiled]:
    """How many kernels are lowered, and the compiled graph."""
    with pytest.MonkeyPatch.context() as patch:
        calls: list[None] = []
        run = lower.run
        patch.setattr(lower, "run", lambda *a: (calls.append(None), run(*a))[1])
        with knobs.config(fuse=False):
            program = driver.compile(graph, hints=hints)
    for cluster, kernel, named in zip(
        program.plan.all_clusters, program.kernels, program.identities, strict=True
    ):
        if kernel is not None and named is not None and "_packed" not in text(kernel):
            lowered = lower.run(cluster, "eager", hints)
            assert text(kernel) == text(lowered)
    return len(calls), program


def test_steps_of_a_loop_are_lowered_once() -> None:
    def steps(count: int) -> Any:
        def run(x: Any, w: Any) -> Any:
            for _ in range(count):
                x = sm.tanh(x @ w)
            return x

        w = np.zeros((64, 64), np.float32)
        return sm.jit(run).lower(w, w).trace.graph

    actual = {count: lowerings(steps(count), {}) for count in (4, 12)}
    assert actual[4][0] == actual[12][0]
    assert len(actual[12][1].kernels) >= len(actual[4][1].kernels) + 8


def test_layers_are_lowered_once_under_their_own_names() -> None:
    """Parameters with labels that other kernels, axes, values or functions have."""
    labels = ["w", "other", "i", "exp", "v0", "y", "t0", "k0"]
    lines = [
        f'v{k} = contract({"x" if not k else f"v{k - 1}"}, {label}) {{spec="m,k; k,n -> m,n"}}'
        for k, label in enumerate(labels)
    ]
    inputs = ", ".join(f"{label}: f32[64,64]" for label in labels)
    graph = parse(
        f"graph f(x: f32[64,64], {inputs}) {{\n"
        + "\n".join(lines).replace("v0 =", "u0 =").replace("(v0,", "(u0,")
        + f"\nreturn v{len(labels) - 1}\n}}"
    )
    count, built = lowerings(graph, {})
    assert len([k for k in built.kernels if k]) == len(labels)
    assert count < len(labels)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((64, 64)).astype("f4") / 8 for _ in range(len(labels) + 1)]
    (actual,) = built.run(arrays, ())
    expected = arrays[0].astype("f8")
    for w in arrays[1:]:
        expected = expected @ w
    assert np.allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_what_a_kernel_depends_on_is_spelled() -> None:
    """Clusters that differ in a type, an operator, an operand, a view or what is written."""
    kinds = [
        "v0 = exp(x) : f32[n]",
        "v0 = sin(x) : f32[n]",
        "v0 = add(x, x) : f32[n]",
        "v0 = add(x, z) : f32[n]",
        "v0 = sub(x, z) : f32[n]",
        "v0 = sub(z, x) : f32[n]",
    ]
    spelled = set[Any]()
    for dtype in ("f32", "f64"):
        for kind in kinds:
            graph = parse(
                f"graph f(x: f32[n], z: f32[n]) {{\n{kind}\nreturn v0\n}}".replace("f32", dtype)
            )
            program = driver.compile(graph, hints={})
            (cluster,) = program.plan.clusters
            (kernel,) = program.kernels
            assert kernel is not None
            spelled.add(lower.cluster_signature(cluster))
            named = program.identities[0]
            assert named is not None and named.plain.text == canonical_kernel(kernel)[0].text
    assert len(spelled) == 2 * len(kinds)
