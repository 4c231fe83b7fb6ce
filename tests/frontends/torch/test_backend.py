"""`torch.compile(model, backend="smelt")`: the same answers as eager, for every size."""

from __future__ import annotations

import gc
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import entry_points
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import Encoder, compiled, seeded, tokens  # noqa: E402

import smelt.torch  # noqa: E402
from smelt import knobs  # noqa: E402
from smelt.errors import FallbackWarning  # noqa: E402
from smelt.frontends.torch import backend as module  # noqa: E402
from smelt.frontends.torch import table  # noqa: E402
from smelt.frontends.torch.row import Row  # noqa: E402

ROOT = Path(__file__).parents[3]
SEES_ALL_OBJECTS = True  # it counts those that are hidden


pytestmark = pytest.mark.usefixtures("strict")


def test_the_entry_point_is_declared():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    where, _, name = points["torch_dynamo_backends"]["smelt"].partition(":")
    assert where == module.__name__
    assert getattr(module, name) is smelt.torch.backend
    assert "smelt" in torch._dynamo.list_backends()


def test_the_name_is_found_without_an_import():
    names = [p.name for p in entry_points(group="torch_dynamo_backends")]
    if "smelt" not in names:
        pytest.skip("the package was installed before it had the entry point")
    code = "import torch; print(torch.compile(lambda x: x + 1, backend='smelt')(torch.ones(1)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": "src", "PATH": ""},
    )
    assert done.stdout.split() == ["tensor([2.])"], done.stderr


def test_importing_smelt_does_not_import_torch():
    code = (
        "import sys, smelt; smelt.ones(3); print('torch' in sys.modules); "
        "print(smelt.torch.explain.__name__, smelt.record is smelt.torch.record)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": "src", "PATH": ""},
    )
    assert done.stdout.split() == ["False", "explain", "True"], done.stderr


WARM = """
import hashlib, sys, torch

fast = torch.compile(lambda x: torch.softmax(x @ x.T, -1) + 1, backend="smelt", dynamic=False)
answer = fast(torch.arange(48.0).reshape(6, 8) / 48)
print(hashlib.sha256(answer.numpy().tobytes()).hexdigest())
heavy = "smelt.compiler.driver", "smelt.fusion", "llvmlite.binding"
print(*(m for m in heavy if m in sys.modules))
"""


def test_a_second_process_plans_nothing(tmp_path):
    settings = {
        "PYTHONPATH": "src",
        "PATH": "",
        "SMELT_CACHE_DIR": str(tmp_path / "cache"),
        "SMELT_PROBE": "off",
        "SMELT_STRICT": "1",
        "HOME": str(tmp_path),
    }
    reported: list[list[str]] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", WARM],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=settings,
        )
        assert done.returncode == 0, done.stderr
        reported.append(done.stdout.splitlines())
    assert reported[0][1].split() == ["smelt.compiler.driver", "smelt.fusion", "llvmlite.binding"]
    assert reported[1] == [reported[0][0], ""]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_an_encoder_answers_as_eager_for_every_size(context):
    model = seeded(Encoder)
    fast = compiled(model, dynamic=True)
    with context():
        for batch, length in ((3, 5), (4, 7), (2, 9), (8, 32)):
            ids, mask = tokens(batch, length)
            torch.testing.assert_close(fast(ids, mask), model(ids, mask), rtol=1e-5, atol=1e-5)


def test_an_unknown_operator_is_one_call_of_torch():
    def f(x):
        values, places = torch.sort(torch.exp(x) + 1)
        return torch.log(values * 2), places, torch.fft.rfft(x).real

    x = torch.randn(4, 9)
    for a, b in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(a, b)


def test_a_rule_that_fails_costs_one_operator(monkeypatch):
    def broken(*_args, **_options):
        raise AttributeError("a bug")

    monkeypatch.setitem(table.TABLE, "aten.erf.default", Row("aten.erf.default", broken))
    x = torch.randn(4)
    with knobs.config(strict=False), smelt.torch.record() as record:
        assert torch.equal(compiled(lambda x: (x + 1).erf() * 2)(x), (x + 1).erf() * 2)
    (graph,) = record.graphs
    assert [(y.operator, y.reason) for y in graph.left] == [
        ("aten.erf.default", "AttributeError: a bug")
    ]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a bug"):
        compiled(lambda x: (x + 2).erf())(x)


def test_a_failure_inside_runs_eagerly_with_one_warning(monkeypatch):
    def broken(*_args, **_options):
        raise ValueError("a bug")

    monkeypatch.setattr(module, "Program", broken)
    x = torch.randn(4)
    with knobs.config(strict=False), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(compiled(lambda x: x + 1)(x), x + 1)
    reported = [w for w in caught if issubclass(w.category, FallbackWarning)]
    assert len(reported) == 1
    assert "ValueError: a bug" in str(reported[0].message)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a bug"):
        compiled(lambda x: x + 2)(x)


def test_what_fails_as_it_is_traced_runs_eagerly_too(monkeypatch):
    """AOTAutograd cannot trace everything that Dynamo can, and our cut is a part of it."""

    def broken(*_args, **_options):
        raise ValueError("no trace")

    monkeypatch.setattr(module, "partition", broken)
    x = torch.randn(4, requires_grad=True)
    with knobs.config(strict=False), pytest.warns(FallbackWarning, match="no trace") as caught:
        compiled(lambda x: x.sin().sum())(x).backward()
    assert torch.equal(x.grad, x.detach().cos())
    (warning,) = (w for w in caught if issubclass(w.category, FallbackWarning))
    assert warning.filename == __file__  # the user's line, not one of PyTorch's
    assert "at " + __file__ in str(warning.message)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no trace"):
        compiled(lambda x: x.cos().sum())(x)


@pytest.mark.parametrize("fails", [False, True])
def test_dynamo_traces_beside_what_a_process_holds(fails):
    """Dynamo traces beside live objects, also after a reset.

    A reset forgets callbacks, and shows everything again where a trace ends in an error.
    """
    torch._dynamo.reset()
    usual, seen = gc.get_threshold(), []

    @torch._dynamo.assume_constant_result
    def looks():  # called while Dynamo traces
        seen.append((gc.get_freeze_count() > 0, gc.get_threshold()[0] > usual[0]))
        if fails:
            raise RuntimeError("as it is traced")
        return 2.0

    def f(x):
        return x * looks()

    x = torch.arange(3.0)
    for _ in range(2):  # the first call has the callbacks installed, if a reset has removed them
        run = torch.compile(f, backend="smelt")
        if fails:
            with pytest.raises(RuntimeError, match="as it is traced"):
                run(x)
        else:
            assert torch.equal(run(x), 2 * x)
        assert gc.get_freeze_count() == 0 and gc.get_threshold() == usual
        torch.compile(lambda x: x + 1, backend="smelt")(x)
        assert torch._dynamo.callback_handler.start_callbacks == [module._on_trace_start]
        torch._dynamo.eval_frame.remove_from_cache(f)
    assert seen[-1] == (True, True)


def test_an_argument_that_is_mutated_is_mutated():
    def f(x, y):
        x.mul_(2)
        y[1:] += x[1:]
        return x + y

    ours, theirs = ([torch.arange(4.0), torch.ones(4)] for _ in range(2))
    torch.testing.assert_close(compiled(f)(*ours), f(*theirs))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_results_do_not_share_memory_unless_eager_code_does():
    def f(x):
        y = x * 1.0
        return y, y + 0.0, x.t(), x + x, x + x

    x = torch.randn(3, 4)
    results = compiled(f)(x)
    for a, b in zip(results, f(x), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    places = [r.data_ptr() for r in results]
    assert places[2] == x.data_ptr()
    assert len(set(places)) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_layouts_are_those_of_eager_code(dtype):
    def f(x):
        y = x.transpose(0, 2) * 2
        return y, y.permute(1, 0, 2), (x + 1).expand(2, *x.shape), x[::2, 1:].exp()

    x = torch.randn(4, 5, 6).to(dtype)
    for inputs in (x, x.permute(2, 0, 1), x[1:, ::2], x[:1].expand(4, 5, 6)):
        for a, b in zip(compiled(f, dynamic=False)(inputs), f(inputs), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


@pytest.mark.parametrize("written", [False, True])
def test_lines_that_nobody_reads_are_not_written(written, monkeypatch):
    """Where a line of source lies is asked of its file, which takes longer than many operators."""
    from torch._dynamo import guards, output_graph, symbolic_convert

    versions: list[int] = []
    monkeypatch.setattr(output_graph.trace_call_log, "isEnabledFor", lambda _: written)
    monkeypatch.setattr(symbolic_convert, "get_funcname", lambda _, n: versions.append(n))
    actual = symbolic_convert.get_funcname, guards.profile_guard_manager
    torch.compile(lambda x: x + 1, backend="smelt")(torch.ones(2))  # has callbacks installed
    versions.clear()
    torch.compile(lambda x: x + 2, backend="smelt")(torch.ones(2))
    assert bool(versions) == written
    assert actual == (symbolic_convert.get_funcname, guards.profile_guard_manager)
