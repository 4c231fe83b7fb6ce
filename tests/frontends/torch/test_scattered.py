"""Rows added at positions: as `index_put`, in more ways than one and at any position."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from smelt.frontends.torch import scattered  # noqa: E402

PUT = torch.ops.aten.index_put.default


def at(n, most, *shape):
    made = torch.Generator().manual_seed(n)
    found = torch.randint(-most, most, (n,), generator=made)
    return found.view(shape) if shape else found


CASES = {
    "rows": ((50, 64), [at(600, 50)], (600, 64)),
    "one position, many elements": ((3, 40000), [at(1, 3)], (1, 40000)),
    "an inner dimension": ((4, 30, 40), [None, at(250, 30)], (4, 250, 40)),
    "the last dimension": ((80, 3, 30), [None, None, at(150, 30)], (80, 3, 150)),
    "two dimensions": ((2, 30, 16, 16), [None, None, at(33, 16, 33, 1), at(31, 16)],
                       (2, 30, 33, 31)),
    "two of three dimensions": ((16, 17, 40), [at(33, 16, 33, 1), at(31, 17, 1, 31)],
                                (33, 31, 40)),
    "positions beside one another": ((16, 17, 64), [at(600, 16), at(600, 17)], (600, 64)),
    "positions with a gap": ((16, 3, 17, 64), [at(20, 16, 20, 1), None, at(20, 17)],
                             (20, 20, 3, 64)),
    "a table of positions": ((50, 64), [at(600, 50, 30, 20)], (30, 20, 64)),
    "values that are spread": ((50, 64), [at(600, 50)], (64,)),
    "no position": ((50, 64), [at(0, 50)], (0, 64)),
    "nothing to add to": ((50, 0), [at(9, 50)], (9, 0)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_as_index_put(case, accumulate, dtype):
    shape, positions, given = CASES[case]
    torch.manual_seed(0)
    # Small whole numbers: every order of sums gives the same.
    x, values = (torch.randint(0, 2, s).to(dtype) for s in (shape, given))
    if not accumulate:  # which of several values stays is not told
        values = torch.ones_like(values)
    before = x.clone()
    found, want = (f(x, positions, values, accumulate) for f in (scattered.put, PUT))
    assert torch.equal(found, want)
    assert found.stride() == want.stride()
    assert torch.equal(x, before)


AT_ONCE = (
    "rows", "one position, many elements", "an inner dimension", "the last dimension",
    "two dimensions", "two of three dimensions",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_added_at_once(case, monkeypatch):
    shape, positions, given = CASES[case]
    called = []
    monkeypatch.setattr(scattered, "_added", lambda *args: called.append(args))
    scattered.put(torch.zeros(shape), positions, torch.ones(given), True)
    assert bool(called) == (case in AT_ONCE)


@pytest.mark.parametrize("far", [50, -51])
def test_a_position_outside_is_an_error(far):
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        scattered.put(torch.zeros(50, 64), [torch.full((600,), far)], torch.ones(600, 64), True)


def test_a_mask_is_left_to_torch():
    x, mask = torch.zeros(300, 64), torch.arange(300) % 2 == 0
    assert scattered.put(x, [mask], torch.ones(150, 64), True).sum() == 150 * 64


def test_the_gradient_of_repeated_pixels_is_eagers():
    call = torch.compile(lambda x: x[:, :, rows[:, None], columns].sin(), backend="smelt")
    rows, columns = torch.arange(32) // 2, torch.arange(32) // 2
    x = torch.randn(2, 16, 16, 16, requires_grad=True)
    (found,) = torch.autograd.grad(call(x).sum(), x)
    torch.testing.assert_close(found, 4 * x.detach().cos())
