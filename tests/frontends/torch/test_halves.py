"""Half types: their products, and autocast conversions done once."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

import smelt as sm

torch = pytest.importorskip("torch")

from bench.diffusion import diffusion_block  # noqa: E402
from smelt.frontends.torch.fake_facts import autocast_cached_arguments  # noqa: E402
from smelt.runtime import prelude  # noqa: E402

EPS = 2.0**-8
"""Half the distance between 1 and the next bfloat16 number."""


def kernels(call: Any, *inputs: Any) -> tuple[Any, list[str]]:
    torch._dynamo.reset()
    with sm.record() as r:
        result = call(*inputs)
    assert not r.left
    return result, [k.text for k in r.kernels]


class Attends(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(256, 768)
        self.outer = torch.nn.Linear(256, 256)

    def forward(self, x: Any) -> Any:
        q, k, v = self.inner(x).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        result = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.outer(result.transpose(1, 2).flatten(2))


def test_linear_layers_are_products_of_bfloat16_rounded_once() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(300, 70).bfloat16()
    x = torch.randn(40, 300).bfloat16()
    with torch.no_grad():
        actual, texts = kernels(torch.compile(layer, backend="smelt"), x)
        wide = x.double() @ layer.weight.double().T
        exact = wide + layer.bias.double()
        sums = x.double().abs() @ layer.weight.double().abs().T + layer.bias.double().abs()
    assert any("as bf16" in t for t in texts)
    bound = EPS * exact.abs() + 301 * 2.0**-24 * sums
    assert ((actual.double() - exact).abs() <= bound * (1 + EPS)).all()


def test_attention_is_products_of_bfloat16() -> None:
    """Both of them: weights are rounded where they are multiplied, as PyTorch's kernel does."""
    model = Attends().bfloat16()
    x = torch.randn(4, 70, 256).bfloat16()
    with torch.no_grad():
        actual, texts = kernels(torch.compile(model, backend="smelt"), x)
        exact = Attends().double()
        exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
        want = exact(x.double())
        eager = (model(x).double() - want).abs().max()
    assert sum(t.count("as bf16") for t in texts) == 4
    assert (actual.double() - want).abs().max() <= 2 * eager


@pytest.mark.parametrize("inside", [False, True])
def test_what_autocast_keeps_is_kept(inside: bool) -> None:
    """Converted weights may be kept.

    Eager code keeps a converted copy of every weight until the region ends.
    """
    model = Attends().eval()
    x = torch.randn(1, 20, 256)
    torch._dynamo.reset()
    gc.collect()
    before = prelude.held_bytes()

    def run(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    with torch.no_grad():
        want = run(x)
        if inside:
            actual, _ = kernels(torch.compile(run, backend="smelt"), x)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                actual, _ = kernels(torch.compile(model, backend="smelt"), x)
    torch.testing.assert_close(actual, want, rtol=0.02, atol=0.02)
    assert prelude.held_bytes() - before >= 2 * 768 * 256


def test_what_eager_code_drops_is_not_counted() -> None:
    """Frozen weights, other tensors, regions that keep nothing, and no region at all."""
    seen: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(autocast_cached_arguments(module))
        return module.forward

    def kept(**options: Any) -> int:
        model = Attends()
        model.inner.weight.requires_grad_(not options.pop("frozen", False))
        torch._dynamo.reset()
        with torch.autocast("cpu", torch.bfloat16, **options):
            torch.compile(model, backend=backend)(torch.randn(1, 5, 256))
        (result,) = seen
        seen.clear()
        return sum(result)

    def inside(**options: Any) -> int:
        model = Attends()

        def run(x: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16, **options):
                return model(x)

        torch._dynamo.reset()
        torch.compile(run, backend=backend)(torch.randn(1, 5, 256))
        (result,) = seen
        seen.clear()
        return sum(result)

    assert [inside(), inside(cache_enabled=False), inside(enabled=False)] == [4, 0, 0]
    assert kept() == 4
    assert kept(frozen=True) == 3
    assert kept(cache_enabled=False) == 0
    assert kept(enabled=False) == 0


@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_errs_as_much_as_eager_code(autocast: bool) -> None:
    """Against the same model in float64: as many roundings, at the same places."""
    model = diffusion_block(32, 4).eval()
    torch.manual_seed(1)
    inputs = torch.randn(2, 32, 12, 12), torch.randn(2, 6)
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        want = wide(*(x.double() for x in inputs))
        if not autocast:
            model, inputs = model.bfloat16(), tuple(x.bfloat16() for x in inputs)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            eager = model(*inputs).double() - want
            actual = torch.compile(model, backend="smelt")(*inputs).double() - want
    assert actual.square().mean() <= (1.2 * 1.2) * eager.square().mean()


BY_NUMBERS = {
    "mul": lambda t: t * 0.1,
    "decay": lambda t: t.mul(0.999),  # 1 as bfloat16
    "whole": lambda t: t * 257,
    "div": lambda t: t / 0.3,
    "rdiv": lambda t: 1.1 / t,
    "add": lambda t: t + 0.7,
    "sub": lambda t: t - 0.3,
    "rsub": lambda t: 0.1 - t,
    "size": lambda t: t * t.shape[0],
    "clamp": lambda t: torch.clamp(t * 0.001, max=0.7),
    "less": lambda t: t < 100.3,
    "pow": lambda t: t**1.7,
    "where": lambda t: torch.where(t > 3, t, 0.1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BY_NUMBERS)
def test_numbers_are_rounded_where_eager_code_rounds_them(name: str, dtype: Any) -> None:
    """Sums and products take them as float32, all else as halves."""
    torch._dynamo.reset()
    t, f = torch.arange(1, 2000).to(dtype), BY_NUMBERS[name]
    actual, expected = torch.compile(f, backend="smelt")(t), f(t)
    assert actual.dtype == expected.dtype
    if name == "pow":
        torch.testing.assert_close(actual, expected, rtol=2 * EPS, atol=0)
    else:
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_with_a_factor_are_rounded_once(dtype: Any) -> None:
    torch._dynamo.reset()
    t = torch.arange(1, 2000).to(dtype)
    actual = torch.compile(lambda t: torch.add(t, t, alpha=0.1), backend="smelt")(t)
    exact = t.double() * (1 + 0.1)
    unit = torch.finfo(dtype).eps / 2
    assert ((actual.double() - exact).abs() <= unit * exact * (1 + 2.0**-10)).all()
