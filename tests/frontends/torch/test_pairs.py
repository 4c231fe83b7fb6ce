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
    transposed = pairs * turns[: x.shape[1], None]
    return torch.view_as_real(transposed).flatten(3).type_as(x) * 2


def written(a, b):
    out = torch.zeros_like(a)
    out[:2, 1:4] = a[:2, 1:4] * b[:2, :3]
    out[-2:, :3] = b[-2:, -3:]
    out[2] = a[1]
    return out


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
    "quotients": lambda a, b: (a / b, a / b.abs(), 2 / b, a.real / b, (a / b.conj()).abs()),
    "matrices": lambda a, b: (a @ b.T, a @ b.mH, a.conj() @ b.T, torch.einsum("ij,kj->ik", a, b)),
    "a few rows": lambda a, b: (a[:1] @ b.T, a[:1].conj() @ b.mH, b[:1] @ a.conj().T),
    "a few rows of stacks": lambda a, b: torch.einsum("bx,iox->box", a[:2], torch.stack([a, b], 1)),
    "a linear layer": lambda a, b: torch.nn.functional.linear(a, b[:4], b[0, :4]),
    "stacks of matrices": lambda a, b: torch.einsum("ix,jx->xij", a, b[:3]).sum(0),
    "powers of e": lambda a, b: (torch.exp(a * 0.3) - 1.0) * b,
    "sums of rows": lambda a, b: ((a * b).sum(0), (a * b).sum(-1, keepdim=True), (a + b).sum()),
    "side by side": lambda a, b: torch.cat([a * 2, b], -1)[:, 3:9] * 0.5,
    "margins": lambda a, b: torch.nn.functional.pad(a, (1, 2)) * 2,
    "parts that are written": lambda a, b: written(a, b) * 2,
    "views of views": lambda a, b: (
        a[1:, ::2].T[None, :, 1].expand(3, -1) * 2,
        b.conj()[2:].reshape(-1).unsqueeze(0) * 1.5,
    ),
    "an imaginary factor": lambda a, b: (1j * a.real + b, b.real * 2j - a.imag, 3 - 1j * a),
    "axes in another order": lambda a, b: (a.mT.exp() * b.mT.abs(), torch.stack([a, b]).mT.abs()),
    "moved in another order": lambda a, b: (
        (a.mT * 2).flip(0).roll(1, 1) * b.mT,
        torch.cat([a.mT * 2, b.mT], 1).cumsum(1) * 0.5,
        (a.mT[torch.tensor([2, 0])] * 2).tril() + b.mT[:2].sum(0),
        torch.where(a.mT.real > 0, a.mT, b.mT * 2) * 2,
        a.mT.angle() + 1,
    ),
    "laid out anew": lambda a, b: (a.mT.contiguous() * 2, a.mT.clone() + 0, b.conj().clone() * 2),
    "logarithms": lambda a, b: torch.log(a) * b.log().conj(),
    "angles": lambda a, b: (torch.polar(a.abs(), b.angle()), a.angle() * b.real),
    "averages": lambda a, b: (a * b).mean(0) + (a + b).mean(-1, keepdim=True)[0] + a.mean(),
    "reciprocals": lambda a, b: 1 / a + (b**2).reciprocal(),
    "choices": lambda a, b: torch.where(a.real > 0, a, b).masked_fill(b.imag > 1, 2 - 1j) * 2,
    "places": lambda a, b: (
        a[torch.tensor([2, 0, 2])] * 2,
        (a * b).index_select(1, torch.tensor([3, 1])),
        (a + b).flip(0).roll((1, 2), (0, 1)) * 2,
    ),
    "sums at places": lambda a, b: (
        torch.zeros_like(a).index_add(0, torch.tensor([1, 1, 0]), b[:3] * 2) * a,
        (a * 2).index_put((torch.tensor([1, 0]),), b[:2]),
    ),
    "stacks": lambda a, b: (torch.stack([a * 2, b], 1).repeat(1, 2, 1) * 3, a.tril(1) * b.triu()),
    "pieces": lambda a, b: (
        torch.stack([x * y for x, y in zip((a * b).split(3, 1), (a + b).split(3, 1))][:2]),
        (a * b).unbind(1)[2] * 2,
    ),
    "running sums": lambda a, b: (a * b).cumsum(1) * 0.5,
    "lengths": lambda a, b: a / torch.linalg.vector_norm(a * b, dim=-1, keepdim=True),
    "made anew": lambda a, b: torch.full_like(a, 1 + 2j) * a + torch.ones_like(b) * b,
    "from what is real": lambda a, b: torch.complex(a.real, b.real).exp() * b.abs().to(b.dtype),
    "products that are added": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "roots and powers": lambda a, b: ((a + 3).sqrt() * b, a**3, b**-2, a.rsqrt() + b**0.5),
    "circular functions": lambda a, b: (a.sin() * b.cos(), (b * 0.3).tan(), a.log1p()),
    "hyperbolic functions": lambda a, b: (a.sinh(), b.cosh() * a.tanh(), a.expm1(), b.log2()),
    "out and in": lambda a, b: torch.view_as_complex(torch.view_as_real(a) * 2) * b,
}


# Each in one of both widths: they differ in the type of all that is computed, and in nothing else.
WIDTHS = [(name, (torch.complex64, torch.complex128)[k % 2]) for k, name in enumerate(CASES)]


@pytest.mark.parametrize(("name", "dtype"), WIDTHS)
def test_values_and_gradients_are_eagers(name, dtype):
    f = CASES[name]
    call = torch.compile(f, backend="smelt")
    for rows in (5, 6, 9):
        inputs = [drawn(rows, 7, dtype=dtype).requires_grad_() for _ in range(2)]
        actual, want = ([*r] if isinstance(r, tuple) else [r] for r in (call(*inputs), f(*inputs)))
        slopes = [
            torch.autograd.grad(sum(r.abs().sum() for r in x), inputs, allow_unused=True)
            for x in (actual, want)
        ]
        for got, eager in zip([*actual, *slopes[0]], [*want, *slopes[1]], strict=True):
            assert (got is None) == (eager is None)
            if eager is not None:
                torch.testing.assert_close(got, eager, rtol=2e-5, atol=2e-5)
        assert [x.stride() for x in actual] == [x.stride() for x in want]
        assert [x.is_conj() for x in actual] == [x.is_conj() for x in want]


SPECIAL = {
    "product": lambda a, b: a * b,
    "by a conjugate": lambda a, b: a * b.conj(),
    "by what is real": lambda a, b: (a * b.real, a.imag * b, a * 2.0, 2j * a, a.real * 3j),
    "quotient": lambda a, b: a / b,
    "by a real one": lambda a, b: (a / b.real, a.real / b, a / 3.0, a / 2j, 1 / a),
    "magnitude": lambda a, b: (a.abs(), a.sgn(), a.angle(), torch.polar(a.real, b.imag)),
    "powers": lambda a, b: (a**2, a.exp(), a.log()),
    "roots": lambda a, b: (a.sqrt(), a**0.5),
    "circular": lambda a, b: (a.sin(), a.cos(), a.tan()),
    "hyperbolic": lambda a, b: (a.sinh(), a.cosh(), a.tanh()),
    "questions": lambda a, b: (a == b, a != b, a.isnan(), a.isinf(), a.isfinite()),
    "mean": lambda a, b: a.view(-1, 2).mean(1),
    "numbers for others": lambda a, b: (a.nan_to_num(), b.conj().nan_to_num(0.5, posinf=3.0)),
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", SPECIAL)
def test_infinite_and_tiny_numbers_are_eagers(name, dtype):
    """Zeros, infinite numbers, those that are none and those whose squares overflow."""
    eps, big = torch.finfo(dtype).eps, torch.finfo(dtype).max / 4
    parts = torch.tensor(
        [0.0, -0.0, 1, -2.5, torch.inf, -torch.inf, torch.nan, big, 4 / big], dtype=dtype.to_real()
    )
    grid = torch.complex(*torch.meshgrid(parts, parts, indexing="ij")).reshape(-1)
    a, b = grid.repeat_interleave(len(grid))[:-1], grid.repeat(len(grid))[:-1]
    result, want = torch.compile(SPECIAL[name], backend="smelt")(a, b), SPECIAL[name](a, b)
    pairs = zip(result, want, strict=True) if isinstance(want, tuple) else [(result, want)]
    for got, eager in pairs:
        if got.is_complex():  # what is left of a difference is as exact as the greater part
            most = torch.view_as_real(eager).abs().nan_to_num(0, 0, 0).amax(-1, keepdim=True)
            got, eager = torch.view_as_real(got), torch.view_as_real(eager)
            rest = ((got - eager).abs() <= 8 * eps * most) & eager.isfinite()
            open_sign = got.isinf() & eager.isinf() & eager.flip(-1).isnan()  # C99 leaves it open
            got = torch.where(rest | open_sign, eager, got)
        torch.testing.assert_close(got, eager, rtol=8 * eps, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_inputs_of_any_layout_and_number():
    """Notes of conjugation, steps, other orders of dimensions, views of others, sizes that vary."""

    def f(a, b):
        return a * b + a.conj().abs(), (a / (b.abs() + 1)).sum(-1)

    call = torch.compile(f, backend="smelt", dynamic=True)
    for n in (6, 7, 11):
        z, w = (drawn(2 * n, n, 4, dtype=torch.complex128) for _ in range(2))
        views = (
            lambda x: x.conj()[: len(x) // 2],
            lambda x: x[::2],
            lambda x: x[len(x) // 2 :].mT.conj().mT,
            lambda x: x[: len(x) // 2].transpose(0, 1),
            lambda x: torch.view_as_real(x)[: len(x) // 2].mul(2),
        )
        for view in views:
            slopes = []
            for g in (call, f):
                inputs = [x.clone().requires_grad_() for x in (z, w)]
                seen = [view(x) for x in inputs]
                if not seen[0].is_complex():
                    seen = [torch.view_as_complex(x) for x in seen]
                result = g(*seen)
                total = sum(x.abs().sum() for x in result)
                slopes.append((*result, *torch.autograd.grad(total, inputs)))
            for got, eager in zip(*slopes, strict=True):
                torch.testing.assert_close(got, eager, rtol=1e-12, atol=1e-12)


def test_rotary_positions_are_one_kernel_each_way():
    """The way back reads the turns that it is given: no part of them is kept beside."""

    def turn(x, turns):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)

    angles = torch.outer(torch.arange(9.0), 1 / 100 ** (torch.arange(0, 8, 2) / 8))
    turns = torch.polar(torch.ones_like(angles), angles)
    x = torch.randn(2, 9, 3, 8, generator=G).requires_grad_()
    call = torch.compile(turn, backend="smelt")
    with smelt.torch.record() as record:
        slopes = [torch.autograd.grad(f(x, turns).square().sum(), x)[0] for f in (call, turn)]
    torch.testing.assert_close(*slopes)
    assert [len(g.kernels()) for g in record.graphs] == [1, 1], str(record)
    assert not [k for g in record.graphs for k in g.kept if not k.again]


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
                result = f(x, turns, w)
                pairs.append((result, *torch.autograd.grad(result.float().square().sum(), (x, w))))
            for got, eager in zip(*pairs, strict=True):
                eps = torch.finfo(dtype).eps
                least = 8 * eps * eager.abs().max().item()
                torch.testing.assert_close(got, eager, rtol=8 * eps, atol=least)
    assert not any(g.fallback for g in record.graphs)
    for g in record.graphs:
        assert len(g.program.segments) == 1, g.program.source
        assert not any("mul" in x.operator for x in g.left)


def test_transposed_times_broadcast_numbers_are_ours():
    def rotated_twice(x, angle):
        z = torch.view_as_complex(x.transpose(1, 2).reshape(*x.shape[:1], 4, -1, 8, 2))
        turns = torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.view_as_real(z * turns), torch.view_as_real(turns / z)

    x, angle = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 8)
    with smelt.torch.record() as record:
        result = torch.compile(rotated_twice, backend="smelt")(x, angle)
    assert not record.left
    for got, eager in zip(result, rotated_twice(x, angle), strict=True):
        assert torch.allclose(got, eager, atol=1e-6 * eager.abs().max().item())
        assert got.stride() == eager.stride()


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


def filtered(x, w):
    """A layer of a Fourier neural operator."""
    f = torch.fft.rfft2(x)
    out = torch.zeros_like(f)
    out[:, :, :4, :4] = torch.einsum("bixy,ioxy->boxy", f[:, :, :4, :4], torch.view_as_complex(w))
    out[:, :, -4:, :4] = torch.einsum("bixy,ioxy->boxy", f[:, :, -4:, :4], torch.view_as_complex(w))
    return torch.fft.irfft2(out, s=x.shape[-2:]) + x


def test_a_filter_of_a_spectrum_is_ours_between_the_transforms():
    x = torch.randn(2, 3, 16, 16, generator=G)
    w = torch.randn(3, 3, 4, 4, 2, generator=G).requires_grad_()
    call = torch.compile(filtered, backend="smelt")
    with smelt.torch.record() as record:
        slopes = [torch.autograd.grad(f(x, w).square().sum(), w)[0] for f in (call, filtered)]
        actual = call(x, w)
    torch.testing.assert_close(actual, filtered(x, w), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-4, atol=1e-4 * slopes[1].abs().max())
    views = ("view", "permute", "transpose", "squeeze", "_unsafe_view", "new_empty_strided")
    for g in record.graphs:
        assert not g.fallback
        for x in g.left:
            name = x.operator.removeprefix("aten.")
            assert name.startswith(("_fft", *views)), name


class Spectral(torch.nn.Module):
    """A layer of a Fourier neural operator, for signals of two channels."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 12)
        self.weights = torch.nn.Parameter(drawn(12, 12, 8) / 12)

    def forward(self, x):
        f = torch.fft.rfft(self.inner(x).mT)
        out = torch.zeros_like(f)
        out[:, :, :8] = torch.einsum("bix,iox->box", f[:, :, :8], self.weights)
        return torch.fft.irfft(out, n=x.shape[1])


def test_weights_of_a_few_rows_are_read_in_place():
    """Weights of a few rows are not copied.

    Nor does a caller's size of two make the parts of complex numbers a size.
    """
    m = Spectral()
    call = torch.compile(m, backend="smelt")
    inputs = [torch.randn(b, 32, 2, generator=G) for b in (2, 3)]
    with smelt.torch.record() as record:
        slopes = []
        for f in (call, m):
            loss = sum(f(x).square().sum() for x in inputs)
            slopes.append(torch.autograd.grad(loss, list(m.parameters())))
    for got, eager in zip(*slopes, strict=True):
        torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-4 * eager.abs().max())
    forward = [g for g in record.graphs if g.kind == "forward"]
    kernels = [k.text for g in forward for k in g.kernels()]
    assert not any("12,12,2" in t or "2,12,2" in t.partition("->")[2] for t in kernels), kernels
    for g in record.graphs:
        for s in g.program.segments:
            for p in (p for k in s.compiled.kernels for p in k.inputs):
                assert p.shape[-1] == 2 or p.shape[1:3] != (12, 17), p
