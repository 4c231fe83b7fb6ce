"""Positions in sorted rows and distances of points, in kernels of ours."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("strict")


def drawn(*shape, dtype=torch.float32):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("length", [1, 7, 8])
def test_rows_of_every_kind(dtype, length):
    """Search in one row for all or one for each, unsorted ones, ties and NaN too."""
    one, many = drawn(length, dtype=dtype).sort()[0], drawn(5, length, dtype=dtype)
    x, rows = drawn(5, 9, dtype=dtype), many.sort()[0]
    inputs = [one, rows, many, one[:1].expand(length).contiguous()]
    if dtype.is_floating_point:
        x[:, 0] = math.nan
        x[0, 1], x[0, 2] = math.inf, -math.inf
        unknown = rows.clone()
        unknown[:, -2:] = math.nan
        inputs.append(unknown)
    x[:, -1] = one[0]

    def f(row, x):
        return (
            torch.searchsorted(row, x),
            torch.searchsorted(row, x, right=True, out_int32=True),
            *(
                (torch.bucketize(x, row), torch.bucketize(x, row, right=True))
                if row.dim() == 1
                else ()
            ),
        )

    fast = torch.compile(f, backend="smelt", dynamic=False)
    for row in inputs:
        with smelt.torch.record() as record:
            result = fast(row, x)
        for a, b in zip(result, f(row, x), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        assert not record.left


def test_a_search_is_one_kernel_with_what_is_around_it_for_every_batch():
    """Steps of a spline, as flows make them: the bin of each element, and where in it it lies."""

    def f(edges, x):
        at = torch.searchsorted(edges, x.sigmoid()) - 1
        low, high = edges[at], edges[at + 1]
        return (x.sigmoid() - low) / (high - low)

    edges = torch.linspace(0, 1, 9)
    fast = torch.compile(f, backend="smelt")
    with smelt.torch.record() as record:
        for batch in (2, 3, 70):
            x = drawn(batch, 4)
            torch.testing.assert_close(fast(edges, x), f(edges, x))
    assert [len(g.kernels()) for g in record.graphs] == [1, 1]  # Dynamo learns that one size varies
    assert not record.left


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, math.inf])
def test_distances_of_pairs_of_points(p):
    """Forward and backward; two points are equal, which have no gradient."""
    a, b = drawn(2, 7, 3, dtype=torch.float64), drawn(2, 5, 3, dtype=torch.float64).flip(2)
    b[:, 1] = a[:, 2]

    def step(f):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        result = f(x, y)
        result.sin().sum().backward()
        return result, x.grad, y.grad

    def f(x, y):
        return torch.cdist(x, y, p=p)

    with smelt.torch.record() as record:
        got = step(torch.compile(f, backend="smelt"))
    torch.testing.assert_close(got, step(f), rtol=1e-12, atol=1e-12)
    assert not record.left


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("count", [1, 4, 17])
def test_distances_of_what_is_unknown_or_infinite(p, count):
    a, b = drawn(5, count), drawn(4, count)
    a[0, 0] = a[1, count - 1] = math.nan
    a[2, count // 2] = b[1, count // 2] = math.inf
    a[3, 0], b[2, 0], b[3] = 1e-45, 0.0, -math.inf
    got = torch.compile(lambda x, y: torch.cdist(x, y, p=p), backend="smelt")(a, b)
    torch.testing.assert_close(got, torch.cdist(a, b, p=p), equal_nan=True)
