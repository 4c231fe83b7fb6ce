"""Results that are views of written arguments have eager code's memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
]


def of_the_whole(x):
    x[..., ::2] += 1
    return x.flatten(-2)


def of_a_view(x):
    y = x.flatten(-2)
    y += 1
    return y[1:, ::3], y


def repeated(x):
    y = x.flatten(-2)
    x.mul_(2)
    return y.unsqueeze(0).expand(2, *y.shape), y[:, 1]


def transposed(x):
    y = x.view(x.shape[0], -1).mT
    y += 1
    return y[1:], x * 2


@pytest.mark.parametrize(
    ("call", "grads"),
    [
        (of_the_whole, False),
        (of_a_view, False),
        (repeated, False),
        (transposed, True),
    ],
)
def test_views_of_a_part_of_memory(call, grads):
    fast = torch.compile(call, backend="smelt", dynamic=True)
    for n, start in ((3, 1), (4, 0)):
        whole = [
            torch.arange((n + 2) * 8.0).view(n + 2, 4, 2).requires_grad_(grads) * 1
            for _ in range(2)
        ]
        with torch.set_grad_enabled(grads):
            sides = [f(x[start:]) for f, x in zip((call, fast), whole, strict=True)]
        for expected, actual in zip(*map(torch.utils._pytree.tree_leaves, sides), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
            assert actual.stride() == expected.stride()
            homes = [
                x.untyped_storage().data_ptr() == w.untyped_storage().data_ptr()
                for x, w in zip((expected, actual), whole, strict=True)
            ]
            assert homes[0] == homes[1]
            assert not homes[0] or actual.storage_offset() == expected.storage_offset()
        torch.testing.assert_close(*whole, rtol=0, atol=0)


def test_a_view_of_an_argument_does_not_keep_it_from_being_written_in_place():
    x = torch.arange(24.0).view(3, 4, 2)
    with smelt.torch.record() as record, torch.no_grad():
        torch.compile(of_the_whole, backend="smelt", dynamic=True)(x)
    (graph,) = record.graphs
    assert "copy_" not in graph.program.source and not graph.left


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("grads", [False, True])
def test_beside_a_call_that_looks_at_what_lapack_says(grads, dynamic):
    """Such calls are kept in order by an argument and a result of their own."""

    def f(x, y, a):
        y += 1
        x *= 3
        return torch.linalg.solve(a, a), y[1:], x.view(-1)[2:5], y.sum()

    fast = torch.compile(f, backend="smelt", dynamic=dynamic)
    sides = []
    for call in (f, fast):
        x, y = (torch.arange(12.0).view(3, 4).requires_grad_(grads) * 1 for _ in range(2))
        with torch.set_grad_enabled(grads):
            actual = call(x, y, 2 * torch.eye(4) + 1)
        sides.append([*actual, x, y])
        homes = [v.untyped_storage().data_ptr() for v in (*actual[1:3], y, x)]
        assert homes[:2] == homes[2:]
    for expected, actual in zip(*sides, strict=True):
        torch.testing.assert_close(actual, expected)
