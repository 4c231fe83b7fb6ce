"""Views that split and merge dimensions whose sizes only guards make multiples."""

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402
from smelt.frontends.torch.rows_view import _respell_dims  # noqa: E402
from smelt.types.expr import floordiv, mul, size  # noqa: E402

F = torch.nn.functional
N, M = size("n"), size("m")


def test_dimensions_in_the_words_of_their_parts():
    fifth = floordiv(N, 5)
    assert _respell_dims((M, N, 3), (M, fifth, 5, 3)) == (M, mul(5, fifth), 3)
    assert _respell_dims((M, N), (M, 5, 1, fifth)) == (M, mul(5, fifth))
    assert _respell_dims((1, N, 1), (fifth, 5)) == (1, mul(5, fifth), 1)
    assert _respell_dims((N, 3), (mul(fifth, 3), 5)) is None  # joined and parted otherwise
    assert _respell_dims((N,), (M,)) is None
    assert _respell_dims((N,), (N, 3)) is None


def windows(x):
    """Scores within windows of 3 by 3 of an image."""
    b, h, w, c = x.shape
    y = x.view(b, h // 3, 3, w // 3, 3, c).transpose(2, 3).reshape(-1, 9, c)
    y = y.softmax(1)
    return y.view(b, h // 3, w // 3, 3, 3, c).transpose(2, 3).reshape(b, h, w, c) + x


def test_windows_are_found_by_their_rows_and_columns(strict):
    fast = torch.compile(windows, backend="smelt", dynamic=True)
    with smelt.torch.record() as record:
        for shape in ((2, 6, 9, 4), (3, 12, 6, 4)):
            x = torch.randn(shape)
            assert torch.allclose(fast(x), windows(x), atol=1e-6)
    assert not record.left
    assert all("%size(" not in k.text for k in record.kernels)  # not by places in the whole image


def test_no_tensor_is_created_to_query_its_size(strict):
    def padded(x):
        b, n, c = x.shape
        y = F.pad(x, (0, 0, 0, -n % 4)).view(b, -1, 4, c)
        return (y.softmax(2) * y).sum(2).repeat_interleave(4, 1)[:, :n]

    fast = torch.compile(padded, backend="smelt", dynamic=True)
    x = torch.randn(2, 9, 8)
    with smelt.torch.record() as record:
        assert torch.allclose(fast(x), padded(x), atol=1e-6)
    assert len(record.kernels) == 1
    assert "-> y:" in record.kernels[0].text


def test_products_of_what_only_guards_make_as_long_are_ours(strict):
    """Blocks of sixteen rows: how many rows each has is a quotient of sizes."""

    def f(x, w):
        missing = -x.shape[0] % 16
        x = F.pad(x, (0, 0, 0, missing)) if missing else x
        blocks = x.reshape((x.shape[0] + missing) // 16, -1, 3)
        whole = w.expand(blocks.shape[0], 16, 16)
        return torch.bmm(whole, blocks), torch.bmm(blocks.mT, whole), torch.mm(w, blocks[0])

    w = torch.arange(256.0).view(16, 16) % 7
    run = torch.compile(f, backend="smelt", dynamic=True)
    with torch.no_grad(), smelt.torch.record() as record:
        for n in (32, 80):
            x = torch.arange(n * 3.0).view(n, 3) % 5
            assert all(map(torch.equal, run(x, w), f(x, w)))
    assert not any(g.left for g in record.graphs)
