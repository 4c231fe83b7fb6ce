"""Indices, padding and shifts computed from sizes that count from the end."""

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402

F = torch.nn.functional


def starts(x, table):
    """Slices and elements from the end, read and written."""
    n = x.shape[1]
    c = min(7, n)
    kept = table.clone()
    kept[:, -c:] = x[:, :c]
    more = x.clone()
    more[:, -n // 2 :] += 1
    later = torch.cat([table[:, -c:], x], 1)
    return (
        table[:, -c:] * 2,
        table[:, :-c] * 2,
        table[:, -c : -c // 2] * 2,
        table[:, -c::2] * 2,
        x[:, -c - 3 :: 2] * 2,
        x[:, n - 9 :] * 2,
        x[:, -9::2] * 2,
        table[:, -c] * 2,
        kept,
        more,
        later,
    )


def padding(x, table):
    """Margins that take away, or add in some calls only, within other margins."""
    n = x.shape[1]
    return (
        F.pad(F.pad(table, (0, -n)), (0, 30)),
        F.pad(F.pad(table, (-n, 2)), (20, 0)),
        F.pad(F.pad(x, (9 - n, 0)), (20, 2)),
        F.pad(F.pad(x, (-n // 2, -n // 4)), (8, 1)) + 1,
    )


def shifts(x, table):
    """Rolls along a size, by less and by more than it."""
    n = x.shape[1]
    return (
        x.roll(1, 1) - x,
        x.roll(-1, 1) - x,
        x.roll(20, 1) - x,
        x.roll(-20, 1) - x,
        x.roll(3) - x,
        x.roll((1, -3), (0, 1)) - x,
        table.roll(-n, 1) * 2,
    )


@pytest.mark.parametrize("program", [starts, padding, shifts])
def test_indices_that_count_from_the_end(program, strict):
    table = torch.rand(3, 40)
    fast = torch.compile(program, backend="smelt", dynamic=True)
    with smelt.torch.record() as record:
        for n in (9, 16, 5):
            x = torch.rand(3, n)
            for actual, eager in zip(fast(x, table), program(x, table), strict=True):
                assert torch.equal(actual, eager)
    assert not record.left


def test_a_number_that_is_negative_in_some_calls_and_counts_from_the_end(strict):
    def program(x, k):
        y = torch.zeros_like(x)
        y[:, :k] = x[:, :k] * 2
        return y, x[:, :k] * 3, torch.zeros(x.shape[1] + k) + 1

    fast = torch.compile(program, backend="smelt", dynamic=True)
    for k, ours in ((2, True), (-2, False), (3, True), (-3, False)):
        x = torch.rand(3, 9)
        with smelt.torch.record() as record:
            for actual, eager in zip(fast(x, k), program(x, k), strict=True):
                assert torch.equal(actual, eager)
        assert not (ours and record.left)


def test_the_gradient_of_a_spectrum_of_padded_rows(strict):
    filters = torch.rand(4, 24, requires_grad=True)

    def spectrum(x):
        n = x.shape[-1]
        return torch.view_as_real(torch.fft.rfft(filters[:, :n], n=2 * n))

    fast = torch.compile(spectrum, backend="smelt", dynamic=True)
    for n in (12, 7):
        weight = torch.rand(4, n + 1, 2)
        actual, eager = (
            torch.autograd.grad((f(torch.rand(2, n)) * weight).sum(), filters)[0]
            for f in (fast, spectrum)
        )
        assert torch.allclose(actual, eager, atol=1e-6)
