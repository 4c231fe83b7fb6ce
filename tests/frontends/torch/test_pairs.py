"""Complex numbers, element by element, are computed by kernels as pairs of real ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("strict")
G = torch.Generator().manual_seed(0)


def drawn(*shape, dtype=torch.complex64):
    return torch.randn(*shape, generator=G, dtype=dtype)


def rotated(x, turns, w):
    """Rotary positions as reference code of language models writes them."""
    pairs = torch.view_as_complex((x @ w).float().unflatten(-1, (-1, 2)))
    turned = pairs * turns[: x.shape[1], None]
    return torch.view_as_real(turned).flatten(3).type_as(x) * 2


CASES = {
    "product": lambda a, b: a * b,
    "conjugate": lambda a, b: a * b.conj() + a,
    "real factor": lambda a, b: b.real * a * 0.5,
    "sums": lambda a, b: torch.add(a, b, alpha=3) - b,
    "magnitudes": lambda a, b: torch.log(a.abs() + 1) * b.abs(),
    "directions": lambda a, b: -a.sgn() * b,
    "a spectrum": lambda a, b: torch.fft.ifft(torch.fft.fft(a * b) * b.conj()).real,
    "a row of factors": lambda a, b: a * b[:1] - b[0],
    "turned over": lambda a, b: (a.mT * b.mT, a.mT.abs()),
    "parts": lambda a, b: (torch.complex(a.real * 2, b.imag), (a * b).imag),
    "numbers": lambda a, b: (a * 2.0 + 1, b - 1j, a * (2 + 1j), a[0, 0] * b, a / b),
    "out and in": lambda a, b: torch.view_as_complex(torch.view_as_real(a) * 2) * b,
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_eagers(name, dtype):
    f = CASES[name]
    call = torch.compile(f, backend="smelt")
    for rows in (5, 6, 9):
        given = [drawn(rows, 7, dtype=dtype).requires_grad_() for _ in range(2)]
        found, want = ([*r] if isinstance(r, tuple) else [r] for r in (call(*given), f(*given)))
        slopes = [torch.autograd.grad(sum(r.abs().sum() for r in x), given, allow_unused=True)
                  for x in (found, want)]  # fmt: skip
        for got, eager in zip([*found, *slopes[0]], [*want, *slopes[1]], strict=True):
            assert (got is None) == (eager is None)
            if eager is not None:
                torch.testing.assert_close(got, eager, rtol=2e-5, atol=2e-5)
        assert [x.stride() for x in found] == [x.stride() for x in want]
        assert [x.is_conj() for x in found] == [x.is_conj() for x in want]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_positions_are_one_graph(dtype):
    angles = torch.outer(torch.arange(32.0), 1 / 100 ** (torch.arange(0, 8, 2) / 8))
    turns = torch.polar(torch.ones_like(angles), angles)
    w = (drawn(6, 8, dtype=torch.float32) / 2).to(dtype).requires_grad_()
    call = torch.compile(rotated, backend="smelt")
    with smelt.torch.record() as record:
        for n in (9, 12, 20):
            x = drawn(2, n, 3, 6, dtype=torch.float32).to(dtype).requires_grad_()
            pairs = []
            for f in (call, rotated):
                found = f(x, turns, w)
                pairs.append((found, *torch.autograd.grad(found.float().square().sum(), (x, w))))
            for got, eager in zip(*pairs, strict=True):
                eps = torch.finfo(dtype).eps
                least = 8 * eps * eager.abs().max().item()
                torch.testing.assert_close(got, eager, rtol=8 * eps, atol=least)
    assert not any(g.fallback for g in record.graphs)
    for g in record.graphs:
        assert len(g.program.segments) == 1, g.program.source
        assert not any("mul" in x.operator for x in g.left)


def test_an_argument_that_is_written_is_read_as_it_was():
    """A view of it that torch makes does not go ahead of what the program wrote before."""

    def f(z, x):
        before = torch.view_as_real(z[1:]).sum(-1) + x
        z.mul_(2)
        return before, torch.view_as_real(z[:1]) + 1, z.abs()

    call = torch.compile(f, backend="smelt")
    for rows in (4, 5, 7):
        z, x = drawn(rows, 3), torch.randn(3, generator=G)
        mine = z.clone()
        for got, eager in zip(call(mine, x), f(z, x), strict=True):
            torch.testing.assert_close(got, eager)
        torch.testing.assert_close(mine, z)
