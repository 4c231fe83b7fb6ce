"""A failure in any compiler stage costs only the operators that cause it."""

from __future__ import annotations

import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import compiled, seeded, tokens  # noqa: E402

import smelt.torch  # noqa: E402
from smelt import fusion, knobs, lower, passes  # noqa: E402
from smelt.codegen import build as cpu_backend  # noqa: E402
from smelt.compiler import driver  # noqa: E402
from smelt.errors import FallbackWarning, InternalError  # noqa: E402
from smelt.frontends.torch import backend, plans, segment  # noqa: E402
from smelt.graph.ir import Graph  # noqa: E402
from smelt.kernel.text_print import text as kernel_text  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("fresh")


def names_of(nodes):
    """What nodes compute, by the names of our operators."""
    return {getattr(n.op, "scalar", n.op.name) for n in nodes}


STAGES = {
    "looks": (
        segment,
        "collect_bounds_checks",
        lambda ends: names_of(Graph("f", (), ends).nodes()),
    ),
    "compile": (plans.warm, "compile", lambda graph: names_of(graph.nodes())),
    "passes": (passes, "run", lambda graph: names_of(graph.nodes())),
    "plan": (fusion, "plan", lambda graph: names_of(graph.nodes())),
    "lower": (lower, "run", lambda cluster: names_of(cluster.nodes)),
    "build": (
        cpu_backend,
        "build_all",
        lambda kernels: {
            word for kernel, _ in kernels for word in re.findall(r"\w+", kernel_text(kernel))
        },
    ),
    "assemble": (driver, "assemble", lambda plan: names_of(plan.graph.nodes())),
}


def planted(monkeypatch, stage, fails):
    """Has a stage of the compiler fail for what `fails` says; the failures."""
    reported = []
    home, name, names_in = STAGES[stage]
    real = getattr(home, name)

    def run(*inputs, **options):
        names = names_in(inputs[0])
        if fails(names):
            reported.append(names)
            raise InternalError("planted")
        return real(*inputs, **options)

    monkeypatch.setattr(home, name, run)
    if stage == "build":  # nothing that others have built is known
        monkeypatch.setattr(driver, "find", lambda key, journal: None)
    plans._PLANS.clear()
    return reported


def model(x, w):
    y = (x @ w).relu() + 1
    z = torch.softmax(y.erf() * 2, -1)
    return z.sum(0), (z[:, 1:] * y[:, :-1]).tanh(), x.t()


@pytest.fixture
def arguments():
    torch.manual_seed(0)
    return torch.randn(5, 7), torch.randn(7, 6)


def same(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


@pytest.mark.parametrize(
    ("stage", "dynamic"), [*((s, k % 2 == 1) for k, s in enumerate(STAGES)), ("plan", False)]
)
def test_an_operator_that_fails_is_left_to_torch(stage, dynamic, arguments, monkeypatch):
    reported = planted(monkeypatch, stage, lambda names: "erf" in names)
    fast = compiled(model, dynamic=dynamic)
    with knobs.config(strict=False), smelt.torch.record() as record:
        with pytest.warns(FallbackWarning, match="planted") as caught:
            actual = fast(*arguments)
        same(actual, model(*arguments))
        same(fast(*arguments), model(*arguments))
    (graph,) = record.graphs
    assert reported
    assert [(x.operator, "planted" in x.reason) for x in graph.left] == [("aten.erf.default", True)]
    assert len([w for w in caught if issubclass(w.category, FallbackWarning)]) == 1
    assert "aten.erf.default" in str(caught[0].message)
    assert len(graph.program.segments) == 2  # what stands before it and what stands behind
    assert "planted" in graph.failed and "runs in parts" in str(record)


@pytest.mark.parametrize("stage", STAGES)
def test_operators_that_fail_together_are_compiled_apart(stage, arguments, monkeypatch):
    planted(monkeypatch, stage, lambda names: {"erf", "tanh"} <= names)
    settings = knobs.config(strict=False, fuse=stage not in ("lower", "build"))
    with settings, smelt.torch.record() as record, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(compiled(model)(*arguments), model(*arguments))
    (graph,) = record.graphs
    assert not graph.left
    reported = [w for w in caught if issubclass(w.category, FallbackWarning)]
    assert len(reported) == bool(graph.failed) == (stage != "lower")  # clusters are apart already
    assert len(graph.program.segments) == 1 + bool(graph.failed)


@pytest.mark.parametrize("stage", STAGES)
def test_strictness_raises_what_failed(stage, arguments, monkeypatch):
    planted(monkeypatch, stage, lambda names: "erf" in names)
    with knobs.config(strict=True), pytest.raises(Exception, match="planted"):
        compiled(model)(*arguments)


@pytest.mark.parametrize("stage", STAGES)
def test_a_compiler_that_always_fails_gives_eager_numbers(stage, arguments, monkeypatch):
    monkeypatch.setattr(backend, "MAX_FAILURES", 3)
    planted(monkeypatch, stage, lambda names: True)
    warned = pytest.warns(FallbackWarning, match="planted")
    with knobs.config(strict=False), smelt.torch.record() as record, warned as caught:
        same(compiled(model)(*arguments), model(*arguments))
    assert len([w for w in caught if issubclass(w.category, FallbackWarning)]) == 1
    assert not record.kernels


class Words(torch.nn.Module):
    """Each word among all of its text."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.out = torch.nn.Linear(16, 8)

    def forward(self, ids, mask):
        x = self.norm(self.words(ids))
        shares = (x @ x.mT).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        return self.out(x + shares @ x)


@pytest.mark.parametrize("fails", ["exp", "gather"])
def test_a_step_of_training_has_eager_gradients(fails, monkeypatch):
    model = seeded(Words)
    inputs = tokens(3, 6)
    planted(monkeypatch, "plan", lambda names: fails in names)
    with knobs.config(strict=False), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        fast = compiled(model)
        for f in (fast, fast):
            result, wanted = (
                torch.autograd.grad(g(*inputs).square().mean(), [*model.parameters()])
                for g in (f, model)
            )
            for a, b in zip(result, wanted, strict=True):
                torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


def test_arguments_are_written_whatever_fails(monkeypatch):
    def f(x, y):
        x.mul_(2)
        y[1:] += x[1:].erf()
        return x + y

    planted(monkeypatch, "plan", lambda names: "erf" in names)
    ours, theirs = ([torch.arange(4.0), torch.ones(4)] for _ in range(2))
    with knobs.config(strict=False), pytest.warns(FallbackWarning):
        torch.testing.assert_close(compiled(f)(*ours), f(*theirs))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_other_sizes_are_found_after_a_failure(arguments, monkeypatch):
    reported = planted(monkeypatch, "plan", lambda names: "erf" in names)
    fast = compiled(model, dynamic=True)
    with knobs.config(strict=False):
        with pytest.warns(FallbackWarning):
            fast(*arguments)
        for n in (5, 9, 3):
            x = torch.randn(n, 7)
            same(fast(x, arguments[1]), model(x, arguments[1]))
    assert 0 < len(reported) < 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_later_sizes_that_no_kernel_supports_run_eagerly(dtype, monkeypatch):
    def model(x, w):
        y = (x @ w).relu()
        return y.sum(0), y * 2, x.t()

    def inputs_of(n, d):
        return torch.randn(n, d).to(dtype), torch.randn(d, d).to(dtype)

    def fails(*_, **__):
        raise InternalError("planted")

    for home in (driver, plans.warm):  # nothing that others have built is known
        monkeypatch.setattr(home, "find", lambda key, journal: None)
    with knobs.config(strict=False, cache=False):
        fast = compiled(model, dynamic=True)
        fast(*inputs_of(5, 2))
        monkeypatch.setattr(cpu_backend, "build", fails)
        x, w = inputs_of(4, 7)
        with pytest.warns(FallbackWarning, match="n0=4.*planted") as caught:
            actual = fast(x, w)
        same(actual, model(x, w))
        same(fast(x, w), model(x, w))
    (warning,) = (w for w in caught if issubclass(w.category, FallbackWarning))
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (lambda x: torch.sort(x.exp()).values + 1, "F004 extern-barrier"),
        (lambda x: x.cumsum(0).flip(0).cumsum(1), "F003 reduction-crossing"),
    ],
)
def test_a_demand_is_not_narrowed_down(code, reason):
    x = torch.randn(40, 50)
    apart = torch.compile(code, backend="smelt", options={"never": True})
    torch.testing.assert_close(apart(x), code(x))
    with pytest.raises(Exception, match=reason):
        torch.compile(code, backend="smelt", options={"must": True})(x)
