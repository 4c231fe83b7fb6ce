"""Reports of compiled graphs: numbers add up, JSON fits its schema, texts are lazy."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from tests.explain import programs, schema
from tests.explain.programs import SIZES, TEXTS, arrays, compiled
from tests.strategies.graphs import graphs

from smelt import knobs
from smelt.compiler import driver
from smelt.errors import ArgumentError, UnsupportedError
from smelt.explain.api import as_text, cost_analysis, memory_analysis
from smelt.explain.api import report as report_of
from smelt.explain.data import VERSION, ReportData
from smelt.graph.interp import solve_sizes
from smelt.graph.text import parse
from smelt.journal.facts import Journal
from smelt.kernel import interp
from smelt.ops.spec import dims_at
from smelt.runtime import code

NAMES = list(TEXTS)


@pytest.fixture(autouse=True)
def _no_disk():
    with knobs.config(cache=False):
        yield


# --- the data -----------------------------------------------------------------------------------


def test_schema_file_is_that_of_the_classes():
    assert schema.PATH.read_text() == schema.schema_text(), "python -m tests.explain.schema"


@pytest.mark.parametrize("name", NAMES)
def test_json_has_the_schema(name):
    program = compiled(name)
    result = report_of(program, SIZES, arrays(program.graph.inputs))
    text = result.to_json()
    data = msgspec.json.decode(text, type=ReportData, strict=True)
    assert json.loads(text) == json.loads(msgspec.json.encode(data)), "keys beyond the schema"
    assert (data.format, data.version) == ("smelt-report", VERSION)


@pytest.mark.parametrize("name", NAMES)
def test_references_resolve_and_sums_add_up(name):
    data = report_of(compiled(name), SIZES).data
    count = len(data.nodes)
    assert [n.id for n in data.nodes] == list(range(count))
    for n in data.nodes:
        assert all(x < n.id for x in n.inputs)
        assert all(n.id in [o.node for o in data.kernels[k].operators] for k in n.kernels)
    for e in data.edges:
        assert e.producer in data.nodes[e.reader].inputs
        assert e.nbytes == data.nodes[e.producer].nbytes
    for k in data.kernels:
        assert k.bytes == k.read_bytes + k.written_bytes == sum(p.touched_bytes for p in k.params)
        assert {data.nodes[p.node].shape for p in k.params} == {p.shape for p in k.params}
        assert k.floor_ns >= 0 and k.predicted_ns > 0 and k.measured is None
    assert sorted(k for group in data.launches for k in group) == [k.id for k in data.kernels]
    t = data.total
    assert t.bytes == sum(k.bytes for k in data.kernels)
    assert t.bytes_unfused == sum(k.bytes_unfused for k in data.kernels)
    assert t.kernels + t.calls == len(data.kernels)
    for b in data.buffers:
        placed = b.place in ("arena", "within")
        assert b.first <= b.last and placed == (b.offset is not None)
        assert (b.place == "within") == (b.within in data.outputs)


def test_virtual_values_are_distinguished_from_stored_ones():
    data = report_of(compiled("library"), SIZES).data
    kinds = {(data.nodes[e.producer].op, data.nodes[e.reader].op): e.kind for e in data.edges}
    assert kinds["exp", "extern.sort"] == kinds["extern.sort", "mul"] == "memory"
    assert kinds["mul", "add"] == "virtual"
    assert {n.op: n.kind for n in data.nodes} == {
        "input": "input",
        "exp": "operator",
        "extern.sort": "call",
        "mul": "operator",
        "add": "operator",
        "constant": "constant",
    }


def test_axes_have_roles():
    kernel = report_of(compiled("softmax"), SIZES).data.kernels[0]
    assert [(a.name, a.size, a.role) for a in kernel.axes] == [
        ("r", 48, "grid"),
        ("c", 40, "tile"),
    ]


def test_lines_of_the_program():
    data = report_of(compiled("softmax"), SIZES).data
    places = {n.label: n.place for n in data.nodes}
    assert places["exp#3"].line == 13 and places["exp#3"].file == "/home/ann/model.py"
    assert [p.line for p in data.kernels[0].places] == list(range(10, 17))


# --- traffic ------------------------------------------------------------------------------------


def counted(built: driver.Compiled, given_, sizes) -> int:
    """Bytes that the interpreter of kernels sees in a whole plan; calls move theirs whole."""
    values = dict(zip(built.plan.graph.inputs, given_, strict=True))
    total = 0
    for cluster, kernel in zip(built.plan.clusters, built.kernels, strict=True):
        if kernel is None:
            local = {n: values[n] for n in cluster.inputs}
            for node in cluster.nodes:
                local[node] = node.op.reference(sizes, *(local[x] for x in node.inputs))
            values.update({n: local[n] for n in cluster.outputs})
            total += sum(values[n].nbytes for n in (*cluster.inputs, *cluster.outputs))
            continue
        trace = interp.Trace()
        with np.errstate(all="ignore"):
            result = interp.run(kernel, [values[n] for n in cluster.inputs], sizes, trace=trace)
        for n, p in zip(cluster.outputs, kernel.outputs, strict=True):
            values[n] = result[p.name].reshape(dims_at(n.type.shape, sizes))
        total += trace.nbytes
    return total


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=8))
def test_bytes_accessed_are_what_the_interpreter_counts(program):
    graph, given_ = program
    sizes = solve_sizes(graph, given_)
    with knobs.config(cache=False):
        try:
            fused = driver.compile(graph, hints=sizes)
            with knobs.config(fuse=False):
                single = driver.compile(graph, hints=sizes)
        except UnsupportedError:
            assume(False)
    data = report_of(fused, sizes).data
    names = {n.op for n in data.nodes}
    seen = counted(fused, given_, sizes)
    if data.total.exact:
        assert data.total.bytes == seen
        costs = cost_analysis(fused, sizes)
        assert costs["bytes accessed"] == seen
    else:
        assert data.total.bytes >= seen
        assert any("gather" in name or "scatter" in name for name in names)
    apart = report_of(single, sizes).data
    assert data.total.bytes_unfused == apart.total.bytes
    if apart.total.exact:
        assert apart.total.bytes == counted(single, given_, sizes)


def test_softmax_moves_two_arrays_instead_of_eight():
    t = report_of(compiled("softmax"), SIZES).data.total
    array, row = 4 * 48 * 40, 4 * 48
    assert (t.bytes, t.bytes_unfused) == (2 * array, 8 * array + 4 * row)
    assert (t.transfers, t.transfers_unfused) == (2, 12)
    assert (t.operators, t.kernels) == (5, 1)


def test_sizes_of_another_call():
    program = compiled("softmax")
    t = report_of(program, {"r": 1000, "c": 2000}).data.total
    assert t.bytes == 2 * 4 * 1000 * 2000
    assert report_of(program, (1000, 2000)).data.total.bytes == t.bytes


@pytest.mark.parametrize("wrong", [{"r": 4}, {"r": 4, "c": 4, "z": 4}, {"r": -1, "c": 2}, (4,)])
def test_wrong_sizes_are_refused(wrong):
    with pytest.raises(ArgumentError, match="a number for each size: c, r"):
        report_of(compiled("softmax"), wrong)


# --- texts and caches ---------------------------------------------------------------------------


def test_texts_are_rendered_on_demand():
    report = report_of(compiled("library"), SIZES)
    _, call, kernel = report.kernels
    assert (call.text, call.llvm, call.asm) == ("", "", "")
    assert kernel.text.startswith("kernel k2(") and "define" in kernel.llvm
    assert "ret" in kernel.asm and kernel.ir_size == kernel.llvm.count("\n")
    assert kernel.name == "k2" and repr(kernel).startswith("<kernel k2: kernel k2(")


def test_a_warm_cache_explains_as_well_as_a_cold_one(tmp_path):
    code.forget()
    with knobs.config(cache=True, cache_dir=str(tmp_path)):
        cold = report_of(compiled("softmax"), SIZES)
        code.forget()
        warm = report_of(compiled("softmax"), SIZES)
        memory = report_of(compiled("softmax"), SIZES)
    states = [r.data.kernels[0].compile.cache for r in (cold, warm, memory)]
    assert states == ["miss", "hit-disk", "hit-memory"]
    assert cold.data.kernels[0].compile.emit_seconds > 0
    assert warm.data.kernels[0].compile.emit_seconds is None
    assert warm.data.kernels[0].compile.load_seconds > 0
    assert cold.to_json(times=False) == warm.to_json(times=False) == memory.to_json(times=False)
    assert warm.kernels[0].llvm == cold.kernels[0].llvm
    assert str(warm.why("exp", "sum")) == str(cold.why("exp", "sum"))
    assert "(cached)" in str(warm) and "(cached)" not in str(cold)


@pytest.mark.parametrize("name", NAMES)
def test_equal_programs_give_equal_texts(name):
    one, other = (report_of(compiled(name), SIZES) for _ in range(2))
    assert one.to_json(times=False) == other.to_json(times=False)
    assert one.to_json(times=False) == one.to_json(times=False)


# --- measuring ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "layer", "twice", "table", "library"])
def test_every_step_is_measured_on_its_own_data(name):
    program = compiled(name)
    given_ = arrays(program.graph.inputs)
    before = [a.copy() for a in given_]
    report = report_of(program, SIZES, given_)
    for k in report.data.kernels:
        assert k.measured.runs >= 6 and 0 <= k.measured.least_ns <= k.measured.median_ns
    assert report.data.total.measured.median_ns > 0
    assert all(np.array_equal(a, b) for a, b in zip(given_, before, strict=True))


def test_kernels_without_results_run_when_they_are_measured():
    """A kernel between others, whose values nobody is given, takes the time that it takes."""
    source = """graph f(x: f32[r,512], w: f32[512,512], v: f32[512,8]) {
      v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
      v1 = reduce.sum(v0) {axes=(0,)}
      v2 = div(v0, v1)
      v3 = contract(v2, v) {spec="m,k; k,n -> m,n"}
      return v3
    }"""
    program = driver.compile(parse(source), hints={"r": 256}, journal=Journal())
    report = report_of(program, {"r": 256}, arrays(program.graph.inputs, {"r": 256}))
    assert len(report.data.kernels) > 1
    assert report.data.kernels[0].measured.median_ns > 20_000  # 134 million operations


def test_steps_alone_compute_what_they_compute_together():
    from smelt.explain.measure import _SingleStep

    program = compiled("twice")
    given_ = arrays(program.graph.inputs)
    exe = program.executable
    numbers = tuple(SIZES[n] for n in exe.size_names)
    inputs_by_value = {n: given_[v.number] for n, v in enumerate(exe.values) if v.place == "input"}
    for step in (s for group in exe.launches for s in group):
        inputs_by_value.update(_SingleStep(exe, step, inputs_by_value, given_).results(numbers))
    for number, whole in zip(exe.outputs, exe.run(given_, numbers), strict=True):
        assert np.array_equal(inputs_by_value[number], whole)


# --- operations ---------------------------------------------------------------------------------


def test_operations_are_counted_as_written():
    r, c = SIZES["r"], SIZES["c"]
    costs = cost_analysis(compiled("softmax"), SIZES)
    assert costs["flops"] == 4 * r * c  # max, sub, sum, div
    assert costs["transcendentals"] == r * c
    layer = cost_analysis(compiled("layer"), SIZES)
    assert layer["flops"] == 2 * r * c * 32 + 3 * r * 32


# --- ahead of time, in JAX's words --------------------------------------------------------------


def test_cost_analysis_keys():
    costs = cost_analysis(compiled("library"), SIZES)
    r, c = SIZES["r"], SIZES["c"]
    moved = 4 * 6 * r * c
    assert costs["bytes accessed"] == moved
    assert costs["bytes accessed0{}"] == 4 * r * c and costs["utilization0{}"] == 1.0
    assert costs["bytes accessedout{}"] == 4 * r * c
    assert costs["bytes accessed unfused"] == moved + 8 * r * c and costs["predicted ns"] > 0
    assert {d["code"] for d in costs["decisions"]} & {"F004", "F005"}
    assert costs["kernels"] == 3 and costs["operators"] == 4
    json.dumps(costs)


def test_memory_analysis():
    r, c = SIZES["r"], SIZES["c"]
    m = memory_analysis(compiled("library"), SIZES)
    assert m.argument_size_in_bytes == 4 * r * c
    assert m.output_size_in_bytes == 4 * r * c and m.alias_size_in_bytes == 0
    assert m.generated_code_size_in_bytes > 0
    assert 4 * r * c <= m.temp_size_in_bytes <= 8 * r * c  # exp, sort: one place or two
    same = memory_analysis(compiled("identity"), SIZES)
    assert same.alias_size_in_bytes == same.output_size_in_bytes == 4 * r * c


def test_as_text():
    program = compiled("library")
    assert as_text(program, "graph").startswith("graph library(")
    assert ") -> v1 = v1\n" in as_text(program, "plan")
    assert as_text(program).startswith("kernel k0(")
    assert "define" in as_text(program, "llvm")
    assert as_text(program, "asm")
    with pytest.raises(ArgumentError, match="graph, plan, kernel, llvm, asm"):
        as_text(program, "html")


def test_nothing_to_do():
    report = report_of(compiled("identity"), SIZES)
    assert report.kernels == () and report.data.total.bytes == 0
    assert "0 operators run as 0 kernels; 0 B through memory" in str(report)


def test_sizes_of_zero():
    program = compiled("softmax")
    empty = {"r": 0, "c": 40}
    x = np.zeros((0, 40), np.float32)
    report = report_of(program, empty, [x])
    assert report.data.total.bytes == 0 and "0 B" in str(report)
    assert programs.ANYWHERE.isa == "avx2"
