"""Reports of chunked plans, by every front end, for machines with small caches."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.compiler import driver, warm
from smelt.explain.analysis import cost_analysis, memory_analysis
from smelt.explain.data import ReportData
from smelt.explain.report import Report, report
from smelt.fusion.predict import chunked_traffic
from smelt.machine.target import Target

ROWS, DEPTH, COLUMNS = 96, 24, 600


def small(isa: str, l3_bytes: int = 1 << 16) -> Target:
    """A machine whose caches a few hundred rows outgrow."""
    return replace(Target.for_isa(isa), l1_bytes=1 << 11, l2_bytes=1 << 13, l3_bytes=l3_bytes)


def mlp(x: Any, u: Any, v: Any) -> Any:
    return sm.maximum(x @ u, 0) @ v


def mlp_loss(x: Any, u: Any, v: Any) -> Any:
    return sm.sum(mlp(x, u, v))


def cross_entropy(x: Any, w: Any, y: Any) -> Any:
    z = x @ w
    picked = sm.take_along_axis(z, y[:, None], axis=1)[:, 0]
    return sm.mean(sm.nn.logsumexp(z, axis=-1) - picked)


def divergence(x: Any, u: Any, v: Any) -> Any:
    a, b = sm.nn.log_softmax(x @ u), sm.nn.log_softmax(x @ v)
    return sm.mean(sm.sum(sm.exp(a) * (a - b), axis=-1))


def f32(*shape: int) -> Any:
    return sm.spec(shape, np.float32)


X, U, V = f32(ROWS, DEPTH), f32(DEPTH, COLUMNS), f32(COLUMNS, DEPTH)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mlp": (mlp, (X, U, V)),
    "gradient of an mlp": (sm.value_and_grad(mlp_loss, (0, 1, 2)), (X, U, V)),
    **{
        f"cross-entropy, {dtype.__name__} labels": (
            sm.value_and_grad(cross_entropy, (0, 1)),
            (X, U, sm.spec((ROWS,), dtype)),
        )
        for dtype in (np.int64, np.int32)
    },
    "divergence": (sm.value_and_grad(divergence, (0, 1, 2)), (X, U, U)),
}


def report_of(name: str, target: Target, memory: int | None = None) -> Report:
    function, arguments = PROGRAMS[name]
    trace = sm.jit(function).lower(*arguments).trace
    with knobs.config(max_extra_memory=memory):
        compiled = driver.compile(trace.graph, hints=trace.hints, target=target)
    return report(compiled, trace.hints)


def check(built: Report) -> None:
    """Every form of a report can be had, and its references resolve."""
    data = msgspec.json.decode(built.to_json(), type=ReportData, strict=True)
    assert json.loads(built.to_json()) == json.loads(msgspec.json.encode(data))
    assert all(built.text(level) for level in (1, 2, 3, 4))
    memory_analysis(built.compiled, data.sizes)
    cost_analysis(built.compiled, data.sizes)
    chunked = {k.id for k in data.kernels if k.kind == "rounds"}
    assert chunked
    for k, entry in zip(data.kernels, built.entries, strict=True):
        assert k.within is None or k.within in chunked
        if entry.kernel is None:
            continue
        params = (*entry.kernel.inputs, *entry.kernel.outputs)
        for p, param in zip(k.params, params, strict=True):
            assert p.dtype == param.dtype.name and f"{p.name}:" in k.text
            assert p.touched_bytes <= p.nbytes
            assert p.node is not None or k.within is not None


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "divergence"])
def test_every_report_has_all_formats(name: str, isa: str) -> None:
    compiled_report = report_of(name, small(isa))
    check(compiled_report)
    assert compiled_report.data.total.bytes <= compiled_report.data.total.bytes_unfused


@pytest.mark.nightly
@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_a_divergence_of_two_heads_too(isa: str) -> None:
    check(report_of("divergence", small(isa)))


def test_values_that_only_chunks_have_are_no_values_of_the_graph() -> None:
    """The first row's number, and whether it is 0: a kernel of their own reads and writes them."""
    compiled_report = report_of("mlp", small("avx512"))
    alone = [k for k in compiled_report.data.kernels if k.within is not None and not k.operators]
    assert [(p.dtype, p.shape, p.node) for k in alone for p in k.params] == [
        ("i64", "", None),
        ("bool", "", None),
    ]
    assert "prepares a chunk" in str(compiled_report)
    names = {n.name for n in compiled_report.data.nodes}
    for decision in compiled_report.decisions:
        for name in (decision.a, decision.b):
            assert name in names or name.startswith("chunk.")


def test_what_stays_in_the_cache_between_chunks_counts_once() -> None:
    """The operands and sums of a few rows, however many chunks a limit on memory asks for."""
    tight, roomy = small("avx512", 1 << 12), small("avx512", 1 << 20)
    compiled_report = report_of("mlp", roomy, 20_000)
    ((number, body),) = compiled_report.compiled.plan.chunked_clusters
    cluster = compiled_report.compiled.plan.clusters[number]
    count = sum(1 for _ in body.chunks.ranges(compiled_report.data.sizes))
    x, u, v = (n * 4 for n in (ROWS * DEPTH, DEPTH * COLUMNS, COLUMNS * DEPTH))
    sizes = compiled_report.data.sizes
    assert count > 2
    assert chunked_traffic(cluster, sizes, roomy.l3_bytes) == ((x, u, v), (x,))
    uncached = chunked_traffic(cluster, sizes, tight.l3_bytes)
    assert uncached == ((x * count, u, v), (2 * x * count,))
    assert (
        compiled_report.data.total.bytes == x + u + v + x < compiled_report.data.total.bytes_unfused
    )


@pytest.mark.parametrize("isa", ["avx2"])
def test_the_record_of_a_compiled_module(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    smelt_torch = pytest.importorskip("smelt.torch")
    monkeypatch.setattr(warm, "host", lambda: small(isa))
    torch._dynamo.reset()
    head = torch.nn.Linear(DEPTH, COLUMNS)
    layers = torch.nn.Sequential(head, torch.nn.ReLU(), torch.nn.Linear(COLUMNS, DEPTH))
    x, labels = torch.randn(ROWS, DEPTH), torch.randint(0, COLUMNS, (ROWS,))

    def loss(x: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(head(x), labels)

    with smelt_torch.record() as record:
        with torch.no_grad():
            torch.compile(layers, backend="smelt")(x)
        torch.compile(loss, backend="smelt")(x, labels).backward()
    torch._dynamo.reset()
    built = [r for graph in record.graphs for r in graph.reports()]
    assert [k for graph in record.graphs for k in graph.kernels()] and str(record)
    chunked = [r for r in built if any(k.kind == "rounds" for k in r.data.kernels)]
    assert chunked
    for r in chunked:
        check(r)
