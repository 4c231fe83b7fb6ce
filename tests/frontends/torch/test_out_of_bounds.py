"""Positions out of bounds are errors, as in eager code, and nothing outside is read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402
from smelt.errors import OutsideError  # noqa: E402
from smelt.graph.bounds_checks import BoundsChecks, collect_bounds_checks  # noqa: E402
from smelt.graph.text import parse  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("strict")
G = torch.Generator().manual_seed(0)
TABLE = torch.randn(10, 4, generator=G)


def at(*positions):
    return torch.tensor(positions)


CASES = {
    "embedding": (lambda w, i: F.embedding(i, w) * 2, at(0, 9, 3), at(1, 10), at(-1, 2)),
    "index": (lambda w, i: w[i] + 1, at(-1, -10, 9), at(1, 10), at(2, -11)),
    "index of two": (lambda w, i: w[i, i % 4] + 1, at(-10, 9, 3), at(10, 1), at(-11, 1)),
    "index_select": (lambda w, i: w.index_select(0, i).exp(), at(0, 9, 3), at(3, 10), at(-1, 3)),
    "gather": (lambda w, i: w.gather(1, i.expand(10, -1)).exp(), at(3, 0), at(4, 0), at(-1, 0)),
    "labels": (lambda w, i: F.cross_entropy(w[:3], i), at(3, -100, 0), at(0, 4, 1), at(0, -3, 1)),
    "scatter": (lambda w, i: torch.zeros(10, 4).scatter(1, i.expand(10, 1), 1.0) * w,
                at(3), at(4), at(-1)),
    "index_add": (lambda w, i: torch.zeros(10, 4).index_add(0, i, w[: len(i)]) * w,
                  at(0, 9, 3), at(1, 10), at(2, -1)),
    "index_put": (lambda w, i: torch.zeros(10, 4).index_put((i,), w[: len(i)], True) * w,
                  at(-1, -10, 9), at(1, 10), at(2, -11)),
    "scatter_add": (lambda w, i: torch.zeros(10, 4).scatter_add(
        0, i[:, None].expand(-1, 4), w[: len(i)]) * w, at(0, 9, 3), at(1, 10), at(2, -1)),
    "short positions": (lambda w, i: w[i.int()] + F.embedding(i.int(), w),
                        at(9, 0), at(2, 10), at(-11, 1)),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_positions_computed_of_sizes_alone_are_looked_at(dynamic):
    def read(x):
        return x[torch.arange(len(x)) * 3 % 5] + 1

    f = torch.compile(read, backend="smelt", dynamic=dynamic)
    x = torch.randn(9, generator=G)
    for n in (5, 7, 9):
        assert torch.equal(f(x[:n]), read(x[:n]))
    for n in (2, 3):
        with pytest.raises(OutsideError):
            f(x[:n])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [False, True])
def test_positions_out_of_bounds_are_errors(name, training):
    f, inside, *outside = CASES[name]
    compiled = torch.compile(f, backend="smelt", dynamic=True)
    table = TABLE.clone().requires_grad_(training)
    for _ in range(3):  # later calls are made by native code
        torch.testing.assert_close(compiled(table, inside), f(table, inside))
    for positions in outside:
        with pytest.raises((IndexError, RuntimeError)):
            f(table, positions)
        with pytest.raises(OutsideError) as caught:
            compiled(table, positions)
        assert isinstance(caught.value, IndexError)
        assert isinstance(caught.value, RuntimeError)
        assert "aten." in caught.value.message
    torch.testing.assert_close(compiled(table, inside), f(table, inside))


class Positions(torch.nn.Module):
    """A table of sixteen rows, read by counting, and by a buffer that counts."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 4)
        self.register_buffer("count", torch.arange(32)[None])

    def forward(self, x, past: int = 0):
        n = x.shape[1]
        counted = self.table(torch.arange(past, past + n))
        return x + counted + self.table(self.count[:, past : past + n])


@pytest.mark.parametrize("training", [False, True])
def test_a_text_longer_than_a_table_is_an_error(training):
    model = Positions()
    compiled = torch.compile(model, backend="smelt")
    with torch.set_grad_enabled(training):
        for n, past in ((5, 0), (8, 0), (16, 0), (7, 9), (6, 3)):
            x = torch.randn(2, n, 4, generator=G)
            torch.testing.assert_close(compiled(x, past), model(x, past))
        for n, past in ((17, 0), (20, 0), (7, 10), (3, 14)):
            with pytest.raises(OutsideError):
                compiled(torch.zeros(2, n, 4), past)


def test_what_is_inside_for_sure_is_not_looked_at():
    def looks(shape, axis):
        return collect_bounds_checks(
            parse(
                f"graph f(x: f32[n,4]) {{\nv0 = iota() {{shape=({shape}), axis=0, dtype=i64}}\n"
                f"v1 = gather(x, v0) {{first={axis}}}\nreturn v1\n}}"
            ).outputs
        )

    for shape, axis in (("n", 0), ("4", 1), ("3", 1)):
        assert looks(shape, axis) == BoundsChecks()
    for shape, axis in (("4", 0), ("n", 1)):
        assert looks(shape, axis).flag is None
        assert len(looks(shape, axis).sizes) == 1  # n may be less than 4, or more


def test_views_of_positions_are_looked_at_once():
    graph = parse(
        "graph f(x: f32[9,4], y: f32[5], i: i64[m]) {\n"
        "v0 = reshape(i) {shape=(m, 1)} : i64[m,1]\nv1 = expand(v0) {shape=(m, 4)} : i64[m,4]\n"
        "v2 = gather(x, v1) {first=0} : f32[m,4,4]\nv3 = gather(y, i) {first=0} : f32[m]\n"
        "return v2, v3\n}"
    )
    flag = collect_bounds_checks(graph.outputs).flag
    assert flag is not None
    assert flag.op.name == "reduce.any"
    assert flag.inputs[0].type.rank == 1


def test_padding_and_resized_images_are_not_checked():
    """They compute their positions, and promise that they are inside."""

    def f(x):
        resized = F.interpolate(x, scale_factor=2.0, mode="bilinear")
        return resized, F.pad(x, (2, 2, 1, 1), mode="reflect")

    compiled = torch.compile(f, backend="smelt", dynamic=True)
    with smelt.torch.record() as record:
        for n in (8, 9, 13):
            x = torch.randn(2, 3, n, n, generator=G)
            torch.testing.assert_close(compiled(x), f(x), rtol=1e-5, atol=1e-5)
    segments = [s for g in record.graphs if g.program for s in g.program.segments]
    assert segments
    assert all(s.bounds_checks.flag is None and not s.bounds_checks.readers for s in segments)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "read",
    [
        lambda x, at: x.index_select(0, at),
        lambda x, at: x.gather(0, at[:, None].expand(-1, 4)),
        lambda x, at: F.embedding(at, x),
        lambda x, at: x[at],
    ],
)
def test_positions_of_sizes_alone_are_looked_at(read, dynamic):
    """Indices that only sizes decide are checked.

    No data says where they are, and no trace line how far they reach.
    """
    torch._dynamo.reset()
    inside = torch.compile(
        lambda x: read(x, torch.arange(x.shape[0]) * 3 // 4) * 2, backend="smelt", dynamic=dynamic
    )
    outside = torch.compile(
        lambda x: read(x, torch.arange(x.shape[0]) * 3 // 2) * 2, backend="smelt", dynamic=dynamic
    )
    torch.testing.assert_close(inside(TABLE), read(TABLE, torch.arange(10) * 3 // 4) * 2)
    with pytest.raises(OutsideError):
        outside(TABLE)


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_positions_of_nothing_are_inside(dynamic):
    """Every position is the front of an axis that has none, and there are no positions."""

    def read(x):
        at = torch.zeros_like(x, dtype=torch.int64)
        return x.gather(0, at) + 1, x.mT.gather(1, at.mT) * 2

    f = torch.compile(read, backend="smelt", dynamic=dynamic)
    for n in (3, 0):
        for actual, want in zip(f(TABLE[:n]), read(TABLE[:n]), strict=True):
            assert torch.equal(actual, want)
