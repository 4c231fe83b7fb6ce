"""Parameters in inference are worked on once, and never used after they have changed."""

from __future__ import annotations

import copy
import gc
import os
import threading

import pytest

torch = pytest.importorskip("torch")

from bench.peak import eager_peak, smelt_peak  # noqa: E402
from smelt import config  # noqa: E402 - torch may be missing
from smelt.frontends.torch import plans  # noqa: E402
from smelt.graph.text import parse  # noqa: E402
from smelt.runtime import prelude  # noqa: E402
from smelt.runtime.memory import STOCK  # noqa: E402

FEATURES = 300  # of rows that are as many as pay for packing


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    prelude.clear()
    torch.manual_seed(3)
    with config(constants_extra=None):  # else small programs have no room for them
        yield
    torch._dynamo.reset()


def model():
    layers = torch.nn.Linear(FEATURES, 256), torch.nn.GELU(), torch.nn.Linear(256, 40)
    return torch.nn.Sequential(*layers).eval()


def x(rows: int = 200):
    return torch.randn(rows, FEATURES)


def agrees(f, m, inputs) -> None:
    with torch.no_grad():
        expected = m(inputs)
        atol = max(1e-4, 2e-6 * float(expected.abs().max()))  # sums round as their largest terms do
        torch.testing.assert_close(f(inputs), expected, atol=atol, rtol=1e-4)


def compiled(m):
    return torch.compile(m, backend="smelt", dynamic=False)


def test_packed_once_and_read_by_later_calls():
    m, inputs = model(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    held = prelude.held_bytes()
    assert held == 4 * 256 * FEATURES  # the second product is small: it is read as it lies
    built = [h.array.ctypes.data for h in prelude._HELD.values()]
    for _ in range(3):
        agrees(f, m, inputs)
    assert [h.array.ctypes.data for h in prelude._HELD.values()] == built
    assert prelude.held_bytes() == held


def test_with_the_knob_at_zero_nothing_is_kept():
    m = model()
    with config(constants=0):
        agrees(compiled(m), m, x())
    assert prelude.held_bytes() == 0


def _add(m) -> None:
    with torch.no_grad():
        m[0].weight.add_(1)


def _fill_one(m) -> None:
    with torch.no_grad():
        m[2].weight[3, 5] += 7.0


def _data(m) -> None:
    m[0].weight.data = torch.randn(256, FEATURES)


def _through_data(m) -> None:
    """What moving averages of weights are written as; torch counts no version for it."""
    m[0].weight.data.mul_(0.9).add_(torch.randn(256, FEATURES))


def _through_numpy(m) -> None:
    m[0].weight.detach().numpy()[...] += 0.5


def _data_again(m) -> None:
    """The second assignment may get the memory that the first one had."""
    shape = m[0].weight.shape
    m[0].weight.data = torch.zeros(shape)
    m[0].weight.data = torch.randn(shape)


def _load(m) -> None:
    m.load_state_dict({k: torch.randn_like(v) for k, v in m.state_dict().items()})


def _assign(m) -> None:
    m.load_state_dict({k: torch.randn_like(v) for k, v in m.state_dict().items()}, assign=True)


def _replace(m) -> None:
    m[0].weight = torch.nn.Parameter(torch.randn(256, FEATURES))


def _inference(m) -> None:
    with torch.inference_mode():
        m[0].weight.mul_(0.5)


def _step(m) -> None:
    optimiser = torch.optim.AdamW(m.parameters(), lr=0.1)
    m(x()).square().sum().backward()
    optimiser.step()


CHANGES = [
    _add,
    _fill_one,
    _data,
    _data_again,
    _through_data,
    _through_numpy,
    _load,
    _assign,
    _replace,
    _inference,
    _step,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__[1:])
def test_a_change_is_noticed(change):
    m, inputs = model(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    for _ in range(2):
        before = m(inputs)
        change(m)
        assert not torch.allclose(m(inputs), before)
        agrees(f, m, inputs)


def _one_element(m) -> None:
    m[0].weight.data[101, 7] += 9.0


def _one_element_by_numpy(m) -> None:
    m[0].weight.detach().numpy()[3, 3] = 5.0


@pytest.mark.parametrize("change", [_one_element, _one_element_by_numpy])
def test_one_element_that_torch_does_not_count_is_noticed_soon(change):
    m, inputs = model(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    turns = -(-4 * FEATURES * 256 // prelude.CHECKSUM_BYTES)
    for _ in range(2):
        change(m)
        with torch.no_grad():
            for _ in range(turns):
                f(inputs)
        agrees(f, m, inputs)


def test_a_second_model_reads_a_changed_parameter_as_it_is():
    a = torch.nn.Linear(FEATURES, 256).eval()
    b = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU()).eval()
    b[0].weight = a.weight
    inputs = x()
    agrees(compiled(a), a, inputs)
    a.weight.data[101, 7] += 9.0
    agrees(compiled(b), b, inputs)


def test_a_buffer_that_changes_is_noticed():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.randn(FEATURES, 256))

        def forward(self, inputs):
            return inputs @ self.w

    m, inputs = Scaled(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    m.w.mul_(2)
    agrees(f, m, inputs)


def test_a_buffer_that_the_model_itself_writes_is_no_constant():
    class Moving(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.randn(FEATURES, 256))

        def forward(self, inputs):
            result = inputs @ self.w
            self.w.mul_(0.5)
            return result

    m, inputs = Moving(), x()
    f, other = compiled(m), copy.deepcopy(m)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(f(inputs), other(inputs), atol=1e-4, rtol=1e-4)
    assert prelude.held_bytes() == 0


def test_a_version_that_wraps_is_another_version():
    m, inputs = model(), x()
    f = compiled(m)
    torch._C._autograd._unsafe_set_version_counter((m[0].weight,), (2**32 - 1,))
    agrees(f, m, inputs)
    with torch.no_grad():
        m[0].weight.add_(1)
    assert m[0].weight._version == 0
    agrees(f, m, inputs)


def test_inference_mode_tensors_are_checked_in_every_call():
    with torch.inference_mode():
        m = model()
        inputs = x()
        f = compiled(m)
        for _ in range(2):
            torch.testing.assert_close(f(inputs), m(inputs), atol=1e-4, rtol=1e-4)
            m[0].weight.add_(1)
    assert prelude.held_bytes() == 0


def test_packed_weights_die_with_the_model():
    m, inputs = model(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    assert prelude.held_bytes()
    del m, f
    torch._dynamo.reset()
    gc.collect()
    assert prelude.held_bytes() == 0


def test_packed_weights_die_with_a_parameter_that_is_replaced():
    m, inputs = model(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    assert (held := prelude.held_bytes())
    for _ in range(3):
        m[0].weight = torch.nn.Parameter(torch.randn(256, FEATURES))
        agrees(f, m, inputs)
        gc.collect()
        assert prelude.held_bytes() == held


def test_two_models_share_a_parameter_and_its_panels():
    a = torch.nn.Linear(FEATURES, 256).eval()
    b = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU()).eval()
    b[0].weight = a.weight
    inputs = x()
    f, g = compiled(a), compiled(b)
    agrees(f, a, inputs)
    assert (held := prelude.held_bytes())
    agrees(g, b, inputs)
    assert prelude.held_bytes() == held
    with torch.no_grad():
        a.weight.add_(1)
    agrees(g, b, inputs)
    agrees(f, a, inputs)
    del a, f
    torch._dynamo.reset()
    gc.collect()
    agrees(g, b, inputs)


def test_both_models_notice_a_write_that_torch_does_not_count():
    a = torch.nn.Linear(FEATURES, 256).eval()
    b = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU()).eval()
    b[0].weight = a.weight
    inputs = x()
    f, g = compiled(a), compiled(b)
    for _ in range(2):
        agrees(f, a, inputs)
        agrees(g, b, inputs)
        a.weight.data.neg_()
    agrees(g, b, inputs)
    agrees(f, a, inputs)


def test_a_deep_copy_has_weights_of_its_own():
    m, inputs = model(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    other = copy.deepcopy(m)
    g = compiled(other)
    agrees(g, other, inputs)
    _add(other)
    agrees(g, other, inputs)
    agrees(f, m, inputs)


def test_equal_layers_run_one_program_on_weights_of_their_own():
    layers = [torch.nn.Linear(256, 256).eval() for _ in range(4)]

    @torch.compile(backend="smelt", dynamic=False)
    def apply(layer, inputs):
        return layer(inputs)

    inputs = torch.randn(70, 256)
    with torch.no_grad():
        for _ in range(2):
            for layer in layers:
                torch.testing.assert_close(
                    apply(layer, inputs), layer(inputs), atol=1e-4, rtol=1e-4
                )


def test_threads_call_one_model_at_once():
    m, inputs = model(), x()
    f = compiled(m)
    agrees(f, m, inputs)  # Dynamo itself traces in one thread at a time
    with torch.no_grad():
        expected = m(inputs)
    prelude.clear()
    wrong: list[float] = []

    def work() -> None:
        with torch.no_grad():
            wrong.extend(float((f(inputs) - expected).abs().max()) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(wrong) == 120 and max(wrong) < 1e-4


def test_ten_thousand_calls_hold_no_more_than_one():
    m, inputs = model(), x(2)
    f = compiled(m)
    with torch.no_grad():
        _ = f(x()), f(inputs)  # of two rows nothing is packed
        held, runs = prelude.held_bytes(), len(prelude._ORDER)
        for _ in range(10_000):
            f(inputs)
    assert (prelude.held_bytes(), len(prelude._ORDER)) == (held, runs)


def test_many_changes_hold_no_more_than_one():
    m, inputs = model(), x()  # of two rows nothing is packed
    f = compiled(m)
    agrees(f, m, inputs)
    assert (held := prelude.held_bytes())
    for _ in range(300):
        _add(m)
        with torch.no_grad():
            f(inputs)
    assert prelude.held_bytes() == held
    agrees(f, m, inputs)


def test_above_the_cap_the_oldest_goes_and_comes_again():
    with config(constants=600_000):  # one of these holds 307200 bytes
        models = [torch.nn.Linear(FEATURES, 256).eval() for _ in range(3)]
        inputs, fs = x(), []
        for m in models:
            fs.append(compiled(m))
            agrees(fs[-1], m, inputs)
            assert prelude.held_bytes() <= 600_000
        for f, m in zip(fs, models, strict=True):
            agrees(f, m, inputs)
            with torch.no_grad():
                m.weight.add_(1)
            agrees(f, m, inputs)
            assert prelude.held_bytes() <= 600_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_reads_and_changes_its_own():
    m, inputs = model(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            agrees(f, m, inputs)
            _add(m)
            agrees(f, m, inputs)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    agrees(f, m, inputs)


def test_training_packs_nothing():
    m, inputs = model().train(), x()
    f = compiled(m)
    torch.testing.assert_close(f(inputs), m(inputs), atol=1e-4, rtol=1e-4)
    f(inputs).sum().backward()
    assert prelude.held_bytes() == 0


def test_work_on_weights_is_done_once():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(256, FEATURES))
            self.s = torch.nn.Parameter(torch.randn(256, 1))

        def forward(self, inputs):
            return torch.nn.functional.linear(inputs, torch.tanh(self.w) * self.s)

    m, inputs = Scaled().eval(), x()
    f = compiled(m)
    agrees(f, m, inputs)
    assert prelude.held_bytes() == 4 * 256 * FEATURES  # one array: in panels, not as computed too
    with torch.no_grad():
        m.s.mul_(3)
    agrees(f, m, inputs)


def test_halves_under_autocast_are_cast_once():
    m, inputs = model(), x()
    f = compiled(m)
    for _ in range(2):
        # A context each: eager code keeps its own casts of weights for as long as one lasts.
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            actual, expected = f(inputs).float(), m(inputs).float()
        torch.testing.assert_close(actual, expected, atol=3e-2, rtol=3e-2)
        assert 40 <= prelude.held_bytes() / 512 - FEATURES <= 64  # a processor's panels may be wide
        _add(m)


class _Wide(torch.nn.Module):
    """Layers between whose products eager code holds several arrays."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(4))

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(torch.tanh(inputs) * torch.sin(inputs) + inputs * torch.cos(inputs))
        return inputs


@pytest.mark.parametrize("rows", [3, 200, 1000, 4000])
def test_no_more_memory_than_eager_code_holds(rows):
    m, inputs = _Wide().eval(), torch.randn(rows, 256)
    before = STOCK.usage().requested
    with torch.no_grad(), config(constants_extra=0):
        f = compiled(m)
        torch.testing.assert_close(f(inputs), m(inputs), atol=1e-4, rtol=1e-4)
        eager = eager_peak(lambda: m(inputs))
        assert smelt_peak(lambda: f(inputs), before) <= eager
        assert prelude.held_bytes() <= eager  # 1 KiB a row is left for 1 MiB, or some of it
        assert (rows >= 4000) <= (prelude.held_bytes() > 0) <= (rows > 200)


def test_an_equal_graph_is_compiled_again_where_the_first_keeps_more_than_it_may():
    graph = parse("""graph f(x: f32[300,256], w: f32[256,256] constant) {
  t = tanh(x)
  s = sin(t)
  e = add(s, x)
  c = contract(e, w) {spec="m,k; n,k -> m,n"}
  r = exp(c)
  return r
}""")
    panels = 256 * 256 * 4
    ample, none = prelude.Allowance(1 << 40, 2 * panels), prelude.Allowance(1 << 40, 0)

    def planned(*inputs):
        return (plans.find_plan(*inputs) or plans.make_plan(*inputs))[0]

    with config(constants_extra=0):
        first = planned(graph, {}, ample)
        assert first.executable.prelude and first.executable.prelude.nbytes == panels
        assert planned(graph, {}, ample) is first
        second = planned(graph, {}, none)
        assert second is not first and second.executable.prelude is None
        assert planned(graph, {}, none) is second
        third = planned(graph, {}, ample)  # what had no room has it now
        assert third.executable.prelude and third.executable.prelude.nbytes == panels
        assert planned(graph, {}, prelude.Allowance(1 << 40, 4 * panels)) is third
    with config(constants_extra=panels):
        more = planned(graph, {}, none)
        assert planned(graph, {}, none) is more
        assert more.executable.prelude is not None
