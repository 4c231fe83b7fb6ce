"""Saved programs compute the same when loaded, without being traced again."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
aot = pytest.importorskip("torch._dynamo.aot_compile")

from torch._dynamo.precompile_context import PrecompileContext  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from smelt.errors import UnsupportedError  # noqa: E402
from smelt.frontends.torch import saved  # noqa: E402


@pytest.fixture(autouse=True)
def _ahead_of_time():
    with torch._dynamo.config.patch(enable_aot_compile=True):
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def _loaded(f, *args, **options):
    """A function compiled ahead of time for these arguments, saved, and loaded."""
    jitted = torch.compile(f, fullgraph=True, backend="smelt", **options).aot_compile((args, {}))
    assert isinstance(jitted._artifacts.compiled_fn, saved.SavedProgram)
    text = aot.AOTCompiledFunction.serialize(jitted).serialized_data
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._dynamo.convert_frame, "fullgraph_capture", None)  # nothing is traced
        return torch.compiler.load_compiled_function(io.BytesIO(text), f_globals=f.__globals__)


def _softmax(x, y):
    return torch.softmax(x * 2 + y, -1), x.t()


def test_a_loaded_function_computes_the_same_and_views_stay_views():
    x, y = torch.randn(5, 7), torch.randn(7)
    loaded = _loaded(_softmax, x, y)
    actual, view = loaded(x, y)
    torch.testing.assert_close(actual, _softmax(x, y)[0])
    assert view.data_ptr() == x.data_ptr() and view.stride() == (1, 7)


def test_a_loaded_function_takes_new_sizes_and_guards_the_rest():
    x, y = torch.randn(5, 7), torch.randn(7)
    loaded = _loaded(_softmax, x, y, dynamic=True)
    for rows, columns in ((5, 7), (3, 33), (64, 2)):
        x, y = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(loaded(x, y)[0], _softmax(x, y)[0])
    with pytest.raises(RuntimeError, match="GuardManager check failed"):
        loaded(x.double(), y)


def _scaled(x, s):
    return (x / s).softmax(-1) * s


def _bounded(x, s):
    return x.clamp(-s, s)


def _raised(x, s):
    return x.abs() ** s


@pytest.mark.filterwarnings("error::smelt.errors.FallbackWarning")
def test_floats_decide_what_they_did_when_a_program_is_loaded():
    x = torch.randn(4, 8)
    loaded = _loaded(_raised, x, 1.5, dynamic=True)
    torch.testing.assert_close(loaded(x[:3], 1.5), _raised(x[:3], 1.5))
    with pytest.raises(RuntimeError, match="GuardManager check failed"):
        loaded(x, 2.0)


def test_floats_are_arguments_or_guarded():
    x = torch.randn(4, 8)
    loaded = _loaded(_scaled, x, 0.3, dynamic=True)
    for rows, s in ((4, 0.3), (3, 0.7), (5, -2.5)):
        torch.testing.assert_close(loaded(x[:rows], s), _scaled(x[:rows], s))
    loaded = _loaded(_bounded, x, 0.3, dynamic=True)
    torch.testing.assert_close(loaded(x, 0.3), _bounded(x, 0.3))
    with pytest.raises(RuntimeError, match="GuardManager check failed"):
        loaded(x, 0.7)


def _beside(x, y):
    return x * 2 + (y * y).real, x[1:]


def test_arguments_may_be_views():
    base = torch.randn(6, 8)
    inputs = base[1:5, ::2], torch.randn(4, 4, dtype=torch.complex64).conj()
    loaded = _loaded(_beside, *inputs)
    expected = _beside(*inputs)
    for actual, eager in zip(loaded(*inputs), expected, strict=True):
        torch.testing.assert_close(actual, eager)
    assert actual.data_ptr() == base[2:].data_ptr()


def _step(x, w, count):
    count.add_(1)
    return ((x @ w).tanh() * count).sum()


def test_gradients_and_what_is_written_are_saved():
    x, w, count = torch.randn(4, 6), torch.randn(6, 3, requires_grad=True), torch.zeros(())
    loaded = _loaded(_step, x, w, count)
    before = count.clone()
    loaded(x, w, count).backward()
    assert count == before + 1
    again = w.detach().clone().requires_grad_()
    _step(x, again, before.clone()).backward()
    torch.testing.assert_close(w.grad, again.grad)


def _product(x, w):
    return torch.nn.functional.gelu(x @ w)


def test_the_region_of_autocast_and_the_absence_of_gradients_are_saved():
    x, w = torch.randn(8, 16), torch.randn(16, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        loaded = _loaded(_product, x, w)
        expected = _product(x, w)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        actual = loaded(x, w)
    assert actual.dtype is torch.bfloat16 and not actual.requires_grad
    torch.testing.assert_close(actual, expected, atol=2e-2, rtol=2e-2)
    assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()


@torch.library.custom_op("smelt_tests::doubled", mutates_args=())
def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@_doubled.register_fake
def _(x):
    return torch.empty_like(x)


def _with_own_operator(x):
    return _doubled(x) + 1


def test_operators_of_the_users_own_are_saved_by_name():
    x = torch.randn(3)
    torch.testing.assert_close(_loaded(_with_own_operator, x)(x), x * 2 + 1)


def _through_a_function(x):
    return saved_marker(x) + 1


@torch.compiler.allow_in_graph
def saved_marker(x):
    return x * 3


def test_what_cannot_be_written_down_is_an_error_when_it_is_saved_and_not_before():
    x = torch.randn(3)
    compiled = torch.compile(_through_a_function, fullgraph=True, backend="smelt")
    built = compiled.aot_compile(((x,), {}))
    torch.testing.assert_close(built(x), x * 3 + 1)
    with pytest.raises(UnsupportedError, match="saving this program"):
        aot.AOTCompiledFunction.serialize(built)


@pytest.mark.parametrize("version", range(saved._FORMAT))
def test_a_text_of_an_older_format_is_refused_before_its_classes_are_looked_up(version):
    text = f'{{"format": {version}, "guards": []}}\ncsmelt.frontends.torch.gone\nClass\n.'
    with pytest.raises(UnsupportedError, match=rf"format {version} \(this version reads"):
        saved.SavedProgram.deserialize_compile_artifacts(text.encode())


def test_a_loaded_program_with_incomplete_guards_is_refused(monkeypatch):
    x, y = torch.randn(5, 7), torch.randn(7)
    jitted = torch.compile(_softmax, fullgraph=True, backend="smelt").aot_compile(((x, y), {}))
    text = saved.SavedProgram.serialize_compile_artifacts(jitted._artifacts.compiled_fn)
    monkeypatch.setattr(saved, "_guard_texts", lambda _: frozenset({"Eq(s0, 5)"}))
    with pytest.raises(UnsupportedError, match=r"no guard asks Eq\(s0, 5\)"):
        saved.SavedProgram.deserialize_compile_artifacts(text)


class _Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2


def test_the_cache_of_traced_programs_serves_them(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, x = _Model(), torch.randn(3, 4)
    with torch._dynamo.config.patch(caching_precompile=True), torch.no_grad():
        for hits in range(2):
            PrecompileContext.clear()
            torch._dynamo.reset()
            counters.clear()
            actual = torch.compile(model, backend="smelt")(x)
            torch.testing.assert_close(actual, model(x))
            assert counters["dynamo_cache"]["dynamo_cache_hit"] == hits
            assert counters["stats"]["unique_graphs"] == 1 - hits
            torch.compiler.save_cache_artifacts()
    PrecompileContext.clear()
