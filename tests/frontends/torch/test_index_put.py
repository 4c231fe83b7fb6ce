"""Writes at computed positions: in our kernels, with torch's results."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.test_rows import agree, tensor  # noqa: E402

import smelt.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("strict")
AT = torch.tensor([3, 0, 3, 1, 0, 3, 5])
PUTS = torch.tensor([3, 0, 2, 1, 5])  # of two values for one place torch keeps any


def wide(i, d):
    return i[:, None].expand(-1, d)


ADDED = {
    "index_add": lambda u, i: u.new_zeros(6, 4).index_add(0, i, u * 2),
    "index_add and a factor": lambda u, i: u.new_ones(6, 4).index_add(0, i, u, alpha=3),
    "along an inner axis": lambda u, i: u.new_zeros(4, 6).index_add(1, i, u.T),
    "along the middle": lambda u, i: u.new_zeros(2, 6, 4).index_add(1, i, torch.stack([u, u * 2])),
    "scatter_add": lambda u, i: u.new_zeros(6, 4).scatter_add(0, wide(i, 4), u),
    "numbers": lambda u, i: u.new_zeros(6).scatter_add(0, i, u[:, 0]),
    "a last axis": lambda u, i: u.new_zeros(4, 6).scatter_add(1, i.expand(4, -1), u.T),
    "places of their own": lambda u, i: u.new_zeros(2, 6).scatter_add(
        1, torch.cat([i[None], i.flip(0)[None]]), u[:, :2].T
    ),
    "index_put": lambda u, i: u.new_zeros(6, 4).index_put((i,), u * 2, accumulate=True),
    "negative positions": lambda u, i: u.new_zeros(6, 4).index_put((i - 6,), u, accumulate=True),
    "index_put inside": lambda u, i: u.new_zeros(3, 6, 4).index_put(
        (torch.arange(3)[:, None], i), u, accumulate=True
    ),
    "index_put of an inner axis": lambda u, i: torch.ops.aten.index_put(
        u.new_zeros(4, 6), [None, i], u.T, True
    ),
    "sum": lambda u, i: u.new_ones(6, 4).scatter_reduce(0, wide(i, 4), u, "sum"),
    "sum alone": lambda u, i: u.new_ones(6, 4).scatter_reduce(
        0, wide(i, 4), u, "sum", include_self=False
    ),
    "greatest": lambda u, i: u.new_ones(6, 4).scatter_reduce(0, wide(i, 4), u, "amax"),
    "greatest alone": lambda u, i: u.new_zeros(6, 4).scatter_reduce(
        0, wide(i, 4), u, "amax", include_self=False
    ),
    "least": lambda u, i: u.new_ones(6).scatter_reduce(0, i, u[:, 1], "amin"),
    "means": lambda u, i: (
        u.double().new_ones(6, 4).scatter_reduce(0, wide(i, 4), u.double(), "mean")
    ),
    "means of half numbers": lambda u, i: (
        u.bfloat16()
        .new_ones(6, 4)
        .scatter_reduce(0, wide(i, 4), u.bfloat16(), "mean", include_self=False)
    ),
    "means alone": lambda u, i: (
        u.double().new_ones(6, 4).index_reduce(0, i, u.double(), "mean", include_self=False)
    ),
    "greatest of rows": lambda u, i: u.new_ones(3, 6).index_reduce(
        1, i, u.T[:3], "amax", include_self=False
    ),
    "a row at every position": lambda u, i: (u.repeat(2, 1) * 2).index_put(
        (i,), u[0] * 3, accumulate=True
    ),
    "product": lambda u, i: u.new_ones(6, 4).scatter_reduce(0, wide(i, 4), u, "prod"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("name", ADDED)
@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
def test_scatter_reductions(name, dtype):
    # Small whole numbers: every order of sums gives the same, in every type.
    u = tensor(7, 4, dtype=torch.int64, low=-2, high=3).to(dtype)
    agree(ADDED[name], u, AT)


PUT = {
    "index_put": lambda u, i: u.new_zeros(6, 4).index_put((i,), u.exp()),
    "a row at some positions": lambda u, i: u.repeat(2, 1).exp().index_put((i,), u[0] * 3),
    "index_put of a number": lambda u, i: u.new_zeros(6, 4).index_put((i,), u[0, 0]),
    "scatter": lambda u, i: u.new_zeros(6, 4).scatter(0, wide(i, 4), u),
    "scatter of a number": lambda u, i: u.new_zeros(6, 4).scatter(0, wide(i, 4), 2.0) + u[:1],
    "scatter along the last axis": lambda u, i: u.new_zeros(4, 6).scatter(1, i.expand(4, -1), u.T),
}


@pytest.mark.parametrize("name", PUT)
def test_scatter_assignments(name):
    agree(PUT[name], tensor(5, 4), PUTS)


LEFT = {
    "means of whole numbers": lambda u, i: (
        u.long().new_zeros(6, 4).scatter_reduce(0, wide(i, 4), u.long(), "mean")
    ),
    "a small part of a large array": lambda u, i: (u.repeat(100, 1) * 2).index_add(0, i, u),
    "positions of elements": lambda u, i: u.new_zeros(6, 4).scatter_add(
        0, torch.cat([i[:, None]] * 4, 1), u
    ),
    "part of a row": lambda u, i: u.new_zeros(6, 9).scatter_add(0, wide(i, 4), u),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_torch(name):
    agree(LEFT[name], tensor(7, 4), AT, left=1)


def messages(h, w, source, target):
    """A round of attention along the edges of a graph."""
    e = (h[source] * h[target]).sum(-1)
    n = h.shape[0]
    top = torch.full((n,), -1e30).scatter_reduce(0, target, e, "amax")
    p = torch.exp(e - top[target])
    whole = torch.zeros(n).index_add(0, target, p)
    return torch.zeros_like(h).index_add(0, target, h[source] * w * (p / whole[target])[:, None])


def test_messages_of_a_graph():
    h, w = tensor(30, 20), tensor(400, 1, seed=1)
    source, target = tensor(400, dtype=torch.int64, low=0, high=30), AT.repeat(100)[:400] * 5
    wanted = messages(h, w, source, target)
    compiled = torch.compile(messages, backend="smelt")
    with smelt.record() as record:
        first = compiled(h, w, source, target)
    (graph,) = record.graphs
    assert "torch.ops" not in graph.program.source
    torch.testing.assert_close(first, wanted, rtol=1e-5, atol=1e-5)
    for threads in (1, 2, 4):
        with smelt.config(threads=threads):
            assert torch.equal(compiled(h, w, source, target), first)


def test_a_gradient_of_messages():
    h, w = tensor(30, 20).requires_grad_(), tensor(400, 1, seed=1).requires_grad_()
    source = tensor(400, dtype=torch.int64, low=0, high=30)

    def loss(h, w):
        return (
            torch.zeros(30, 20).index_add(0, source.flip(0), torch.tanh(h[source] * w)).sin().sum()
        )

    wanted = torch.autograd.grad(loss(h, w), (h, w))
    actual = torch.autograd.grad(torch.compile(loss, backend="smelt")(h, w), (h, w))
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


def test_the_only_element_of_a_product():
    """A result of one element, of which its kernel knows no position."""

    def f(x, i, u):
        return (x @ x.T).index_put((torch.arange(1), i), u, accumulate=True)

    agree(f, tensor(1, 9), torch.zeros(1, dtype=torch.int64), tensor(1))


@pytest.mark.parametrize(
    "case",
    [
        ((4, 6), 0, 0, 1),
        ((4, 6), 2, 0, 1),
        ((4, 6), -1, 0, 1),
        ((6, 4), 3, 1, 0),
        ((6, 4), -3, 0, 1),
        ((3, 5, 2, 5), 1, 1, 3),
    ],
    ids=str,
)
def test_a_diagonal_that_is_written_and_its_gradient(case):
    shape, *where = case
    x = tensor(*shape)
    y = tensor(*x.diagonal(*where).shape, low=3, high=5)
    agree(lambda x, y: torch.diagonal_scatter(x * 2, y + 1, *where) * 3, x, y)

    def slope(call):
        inputs = x.clone().requires_grad_()
        (call(inputs) * y).sum().backward()
        return inputs.grad

    def f(x):
        return x.diagonal(*where).sin()

    with smelt.torch.record() as r:
        actual = slope(torch.compile(f, backend="smelt"))
    torch.testing.assert_close(actual, slope(f))
    assert not r.left
