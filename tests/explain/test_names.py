"""Reports show the names of the user's program, and plans do not depend on them."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.errors import ArgumentError, FusionError
from smelt.explain.data import ReportData
from smelt.graph.text import text as graph_text
from smelt.kernel.canonical import canonical_kernel
from smelt.kernel.text import parse

Q = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)


def attention(q, k, v):
    n, d = q.shape  # noqa: RUF059 - names
    scores = q @ k.T / d**0.5
    weights = sm.nn.softmax(scores, axis=1)
    mixed = weights @ v
    return {"result": mixed * 2.0}


def renamed(a, b, c):
    rows, columns = a.shape  # noqa: RUF059 - names
    s = a @ b.T / columns**0.5
    w = sm.nn.softmax(s, axis=1)
    m = w @ c
    return {"y": m * 2.0}


def test_values_sizes_and_results_have_their_names():
    report = sm.explain(attention, Q, Q, Q)
    names = {n.name for n in report.data.nodes}
    assert {"scores", "weights", "mixed", "result", "q", "k", "v"} <= names
    assert report.sizes["n"] == 64 and report.sizes["d"] == 32
    kernels = "".join(k.text for k in report.kernels)
    assert "q: f32[n,d]" in kernels and "-> result: f32[n," in kernels and "scores = " in kernels
    assert "scores = div(" in report.data.text and "n=64 d=32" in str(report)
    assert {a.name for k in report.data.kernels for a in k.axes} >= {"n", "d"}


def test_texts_parse_and_the_page_has_the_names(tmp_path):
    report = sm.explain(attention, Q, Q, Q)
    for k in report.kernels:
        assert parse(k.text)
        assert canonical_kernel(parse(k.text))[0].text == canonical_kernel(k.kernel)[0].text
    page = json.loads(json.dumps(report.to_data(page=True)))
    run = page["page"]["run"]
    assert set(run["sizes"]) == set(page["sizes"])
    assert any("scores" in step["name"] for k in run["fused"] for step in k["steps"])
    assert "scores = " in report.save(tmp_path / "report.html").read_text()


def test_names_are_not_part_of_a_program():
    first, second = (sm.explain(sm.jit(f), Q, Q, Q).compiled.graph for f in (attention, renamed))
    plain = [re.sub(r"\b[abcqkv]\b|attention|renamed", "_", graph_text(g)) for g in (first, second)]
    assert plain[0] == plain[1] and "scores" not in plain[0]


def test_a_variable_of_a_loop_is_numbered_and_other_values_keep_numbers():
    def smooth(u):
        for _ in range(3):
            u = sm.exp(u) * 0.5
        return u

    names = [n.name for n in sm.explain(smooth, Q).data.nodes if n.kind == "operator"]
    assert names == ["v0", "u_2", "v2", "u_3", "v4", "u_4"]  # u is the argument


def test_names_that_clash_stay_apart():
    def clash(x, n):
        rows, k = x.shape  # noqa: RUF059 - names
        v3 = x * 2.0
        exp = sm.sum(v3, axis=1)
        return exp + n

    report = sm.explain(clash, Q, np.ones(64, np.float32))
    for k in report.kernels:
        assert parse(k.text)
    names = [n.name for n in report.data.nodes]
    assert len(set(names)) == len(names)
    assert "exp" in names and {"rows", "k"} <= set(report.sizes)


def test_settings_and_questions_take_the_names():
    def f(x):
        scaled = sm.exp(x) * 3.0
        total = sm.sum(scaled, axis=1)
        return total  # noqa: RET504 - a name

    x = np.ones((512, 512), np.float32)
    report = sm.explain(f, x)
    assert report.why("scaled", "total").together
    assert '("scaled", "total")' in report.text(4)
    with knobs.config(never_fuse=[("scaled", "total")]):
        assert not sm.explain(sm.jit(f), x).why("scaled", "total").together
    with pytest.raises(FusionError, match="total") as caught:
        sm.explain(sm.jit(f, must=[("exp", "sum")], never=[("scaled", "total")]), x)
    assert "scaled" in str(caught.value)


def test_a_number_that_is_a_size_has_its_parameters_name():
    def split(x, heads):
        rows, width = x.shape
        return sm.sum(sm.reshape(x, (rows, heads, width // heads)), axis=2)

    report = sm.explain(split, Q, 4)
    assert report.sizes["heads"] == 4 and report.sizes["rows"] == 64
    assert "[rows,heads," in report.data.text


def test_gradients_do_not_have_the_names_of_what_they_are_of():
    def cost(x):
        squares = x * x
        weights = sm.exp(squares)
        return sm.sum(weights)

    names = {n.name for n in sm.explain(sm.grad(cost), Q).data.nodes if n.kind == "operator"}
    assert names <= {"squares", "weights", *(f"v{k}" for k in range(9))}
    nodes = sm.explain(sm.grad(cost), Q).data.nodes
    assert {n.op for n in nodes if n.name == "weights"} <= {"exp"}
    assert {n.op for n in nodes if n.name == "squares"} <= {"mul", "square"}


def test_sizes_of_specs_keep_theirs():
    report = sm.explain(sm.exp, sm.spec("f32[tokens,d]"))
    assert set(report.sizes) == {"tokens", "d"}


def test_reports_keep_their_form():
    data = sm.explain(attention, Q, Q, Q).to_json()
    assert msgspec.json.decode(data, type=ReportData, strict=True).sizes["n"] == 64


# --- what the program calls ---------------------------------------------------------------------


def block(x, w, b):
    h = x @ w + b
    return sm.max(h / 2.0, axis=1)


@pytest.mark.parametrize(
    "names",
    [
        ("matmul", "add"),
        ("@", "+"),
        ("x @ w", "x @ w + b"),
        ("matmul#0", "add#1"),
        ("contract", "add"),
        ("contract#0", "max"),
        ("@", "sm.max"),
        ("reduce.max", "/"),
        ("h = x @ w + b", "return sm.max(h / 2.0, axis=1)"),
        ("h", "max"),
    ],
)
def test_why_takes_the_words_of_the_program(names):
    report = sm.explain(block, Q, Q.T, Q[:, 0])
    answer = report.why(*names)
    assert answer.together and answer.decisions, str(answer)


def test_reports_show_the_words_of_the_program():
    report = sm.explain(block, Q, Q.T, Q[:, 0])
    assert [n.label for n in report.data.nodes if n.kind == "operator"] == [
        "matmul#0",
        "add#1",
        "div#2",
        "max#3",
    ]
    text = report.text(4) + str(report.why("@", "max"))
    assert "contract" not in text and "reduce." not in text and "k0  matmul add" in text


CALLS = {
    "functions": (lambda x: sm.maximum(sm.matmul(x, x.T), 0.0), {"matmul", "maximum"}),
    "methods": (lambda x: x.sum(axis=1), {"sum"}),
    "einsum": (lambda x: sm.einsum("ij,kj->ik", x, x), {"einsum"}),
    "reductions": (lambda x: sm.min(x) + sm.prod(x), {"min", "prod", "add"}),
    "several operators each": (
        lambda x: sm.nn.softmax(x @ x.T, axis=1),
        {"matmul", "max", "sub", "exp", "sum", "div"},
    ),
    "a power": (lambda x: x**2, {"pow"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_labels_are_what_is_called(name):
    f, labels = CALLS[name]
    nodes = sm.explain(f, sm.spec("f32[8,8]")).data.nodes
    assert {n.label.partition("#")[0] for n in nodes if n.kind == "operator"} == labels


def test_a_composite_means_all_of_its_operators():
    report = sm.explain(attention, Q, Q, Q)
    assert report.why("softmax", "matmul").decisions
    softmax = [n for n in report.data.nodes if "softmax" in n.words]
    assert {n.words[0] for n in softmax} >= {"max", "exp", "sum"}


def test_settings_take_the_words_of_the_program():
    with knobs.config(never_fuse=[("@", "+")]):
        assert not sm.explain(sm.jit(block), Q, Q.T, Q[:, 0]).why("matmul", "add").together


def test_gradients_are_not_called_as_what_they_are_of():
    nodes = sm.explain(sm.grad(lambda x: sm.sum(sm.tanh(x) @ x)), Q[:32]).data.nodes
    assert not [n.label for n in nodes if n.op != "tanh" and n.label.startswith("tanh")]


# --- arrays that are pending --------------------------------------------------------------------


def test_what_is_pending_behind_an_array_is_explained():
    x = sm.asarray(Q)
    y = sm.max(x @ x.T, axis=1) * 2.5
    report = sm.explain(y)
    assert report.why("matmul", "max").together and report.data.total.measured is not None
    assert y.node.is_pending
    assert "sm_90" in sm.explain(y, target="h100").text(1)
    np.testing.assert_allclose(np.asarray(y), (Q @ Q.T).max(axis=1) * 2.5, rtol=1e-5)
    with pytest.raises(ArgumentError, match="nothing is pending"):
        sm.explain(y)
    with pytest.raises(ArgumentError, match="takes no arguments"):
        sm.explain(x + 1, x)
    assert sm.explain(sm.astype(x, sm.complex64) * 2).data.total.kernels
