"""`EmbeddingBag`: sums of table rows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import compiled  # noqa: E402

import smelt.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("strict")
F = torch.nn.functional
AT = torch.tensor([3, 0, 3, 1, 7, 3, 5, 5, 2, 0, 6, 1])

BAGS = {
    "sums": ((AT, torch.tensor([0, 3, 4, 9])), {"mode": "sum"}),
    "means": ((AT, torch.tensor([0, 3, 4, 9])), {"mode": "mean"}),
    "empty bags": ((AT, torch.tensor([0, 0, 5, 5, 12])), {"mode": "mean"}),
    "with an end": (
        (AT, torch.tensor([0, 3, 9, 12])),
        {"mode": "mean", "include_last_offset": True},
    ),
    "rows": ((AT.reshape(4, 3), None), {"mode": "sum"}),
    "narrow positions": ((AT.int(), torch.tensor([0, 2, 6]).int()), {"mode": "mean"}),
}


def run(f, *inputs):
    table = torch.arange(24.0, dtype=torch.float64).reshape(8, 3).sin().requires_grad_()
    result = f(table, *inputs)
    (result * torch.arange(1.0, result.numel() + 1).reshape(result.shape)).sum().backward()
    return result.detach(), table.grad


@pytest.mark.parametrize("most", [1 << 14, 0])
@pytest.mark.parametrize("name", BAGS)
def test_bags_and_their_gradient(name, most, monkeypatch):
    """Large bags are summed by torch, and their gradients by us."""
    monkeypatch.setattr("smelt.frontends.torch.decompositions._MAX_ELEMENTS", most)
    (at, offsets), options = BAGS[name]

    def f(table, at, offsets):
        return F.embedding_bag(at, table, offsets, **options)

    expected = run(f, at, offsets)
    with smelt.torch.record() as r:
        actual = run(compiled(f), at, offsets)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)
    assert [x.operator for x in r.left] == ["aten._embedding_bag.default"] * (most == 0)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "max"},
        {"mode": "sum", "padding_idx": 3},
        {"mode": "sum", "per_sample_weights": torch.linspace(0, 1, 12, dtype=torch.float64)},
    ],
    ids=str,
)
def test_other_bags_are_left_to_torch(options):
    def f(table, at, offsets):
        return F.embedding_bag(at, table, offsets, **options)

    inputs = AT, torch.tensor([0, 3, 4, 9])
    torch.testing.assert_close(run(compiled(f), *inputs), run(f, *inputs), rtol=1e-13, atol=1e-13)


def test_a_row_outside_of_the_table_is_an_error():
    table, offsets = torch.ones(4, 2), torch.tensor([0, 2])
    call = compiled(lambda at: F.embedding_bag(at, table, offsets, mode="sum"))
    call(torch.tensor([0, 1, 3]))
    with pytest.raises(IndexError):
        call(torch.tensor([0, 1, 4]))


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_of_weights_that_have_a_length_of_their_own(shape, dtype):
    v = torch.arange(float(torch.Size(shape).numel()), dtype=dtype).reshape(shape).cos()
    length = torch.linspace(1, 2, shape[0], dtype=dtype).reshape(-1, *[1] * (len(shape) - 1))

    def f(v, g):
        return torch._weight_norm(v, g, 0).sin()

    def slopes(call):
        inputs = [x.clone().requires_grad_() for x in (v, length)]
        call(*inputs).sum().backward()
        return [x.grad for x in inputs]

    with smelt.torch.record() as r:
        actual = slopes(compiled(f))
    bound = 32 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual, slopes(f), rtol=bound, atol=bound)
    assert not r.left
