"""Scatter-adds of rows, in several spellings and at any position."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import smelt  # noqa: E402
from smelt.frontends.torch import in_place  # noqa: E402

PUT = torch.ops.aten.index_put.default


def at(n, most, *shape):
    generator = torch.Generator().manual_seed(n)
    result = torch.randint(-most, most, (n,), generator=generator)
    return result.view(shape) if shape else result


CASES = {
    "rows": ((50, 64), [at(600, 50)], (600, 64)),
    "one position, many elements": ((3, 40000), [at(1, 3)], (1, 40000)),
    "an inner dimension": ((4, 30, 40), [None, at(250, 30)], (4, 250, 40)),
    "the last dimension": ((80, 3, 30), [None, None, at(150, 30)], (80, 3, 150)),
    "two dimensions": (
        (2, 30, 16, 16),
        [None, None, at(33, 16, 33, 1), at(31, 16)],
        (2, 30, 33, 31),
    ),
    "two of three dimensions": ((16, 17, 40), [at(33, 16, 33, 1), at(31, 17, 1, 31)], (33, 31, 40)),
    "positions beside one another": ((16, 17, 64), [at(600, 16), at(600, 17)], (600, 64)),
    "positions with a gap": (
        (16, 3, 17, 64),
        [at(20, 16, 20, 1), None, at(20, 17)],
        (20, 20, 3, 64),
    ),
    "a table of positions": ((50, 64), [at(600, 50, 30, 20)], (30, 20, 64)),
    "values that are spread": ((50, 64), [at(600, 50)], (64,)),
    "no position": ((50, 64), [at(0, 50)], (0, 64)),
    "nothing to add to": ((50, 0), [at(9, 50)], (9, 0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_as_index_put(case, accumulate, dtype):
    shape, positions, inputs = CASES[case]
    torch.manual_seed(0)
    # Small whole numbers: every order of sums gives the same.
    x, values = (torch.randint(0, 2, s).to(dtype) for s in (shape, inputs))
    if not accumulate:  # which of several values stays is not told
        values = torch.ones_like(values)
    before = x.clone()
    actual, want = (f(x, positions, values, accumulate) for f in (in_place.fast_index_put, PUT))
    assert torch.equal(actual, want)
    assert actual.stride() == want.stride()
    assert torch.equal(x, before)


AT_ONCE = (
    "rows",
    "one position, many elements",
    "an inner dimension",
    "the last dimension",
    "two dimensions",
    "two of three dimensions",
)


@pytest.mark.parametrize("case", CASES)
def test_what_is_added_at_once(case, monkeypatch):
    shape, positions, inputs = CASES[case]
    called = []
    monkeypatch.setattr(in_place, "_add_rows", lambda *args: called.append(args))
    in_place.fast_index_put(torch.zeros(shape), positions, torch.ones(inputs), True)
    assert bool(called) == (case in AT_ONCE)


@pytest.mark.parametrize("far", [50, -51])
def test_a_position_outside_is_an_error(far):
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        in_place.fast_index_put(
            torch.zeros(50, 64), [torch.full((600,), far)], torch.ones(600, 64), True
        )


def test_a_mask_is_left_to_torch():
    x, mask = torch.zeros(300, 64), torch.arange(300) % 2 == 0
    assert in_place.fast_index_put(x, [mask], torch.ones(150, 64), True).sum() == 150 * 64


def test_the_gradient_of_repeated_pixels_is_eagers():
    call = torch.compile(lambda x: x[:, :, rows[:, None], columns].sin(), backend="smelt")
    rows, columns = torch.arange(32) // 2, torch.arange(32) // 2
    x = torch.randn(2, 16, 16, 16, requires_grad=True)
    (actual,) = torch.autograd.grad(call(x).sum(), x)
    torch.testing.assert_close(actual, 4 * x.detach().cos())


# ---- in programs ---------------------------------------------------------------------------------


def source(record):
    """The texts of all programs."""
    return "".join(graph.program.source for graph in record.graphs)


class Read(torch.nn.Module):
    """A table that is read twice, and by a product."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(40, 8)
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, i, j):
        x = self.layer(self.table(i)) * self.table(j)
        return (x @ self.table.weight.T).logsumexp(-1).sum()


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_read_twice_has_one_array_of_gradients(dtype):
    torch.manual_seed(0)
    model = Read().to(dtype)
    i, j = at(300, 20).abs(), at(300, 40).abs()
    exact = Read().double()
    exact.load_state_dict(model.state_dict())
    exact(i, j).backward()
    model(i, j).backward()
    near = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with smelt.record() as record:
        torch.compile(model, backend="smelt")(i, j).backward()
    assert "[40, 8], 0" not in source(record)
    for p, eager, q in zip(model.parameters(), near, exact.parameters(), strict=True):
        size = q.grad.abs().max()
        bound = 2 * (eager - q.grad).abs().max() + 1e-5 * size
        assert (p.grad - q.grad).abs().max() <= bound


WRITERS = {
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "index_copy": lambda x, i, v: x.index_copy(0, i[:1], v[:1]),
    "index_put": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i[:, None].expand_as(v), v),
    "scatter_reduce": lambda x, i, v: x.scatter_reduce(0, i[:, None].expand_as(v), v, "amax"),
    "scatter": lambda x, i, v: x.scatter(0, i[:1, None].expand(1, 8), 3.0),
}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    ("writer", "dynamic"),
    [*((w, True) for w in WRITERS), ("index_put", False), ("scatter_reduce", False)],
)
def test_only_what_nobody_else_reads_is_written_in_place(writer, dynamic):
    write = WRITERS[writer]

    def add_in_place(x, i, v, w):
        return write(x * 2, i, v), write((x + w).T.contiguous().T, i, v)

    def read_again(x, i, v, w):
        y = x * 2
        return write(y, i, v), y

    def seen_by_a_view(x, i, v, w):
        y = x * 2
        return write(y, i, v), y.reshape(-1)[3:]

    def twice(x, i, v, w):
        zeros = torch.zeros_like(x)
        return write(zeros, i, v), write(zeros, i, v * 2), zeros

    def an_argument(x, i, v, w):
        return write(x, i, v), write(x * 1, i, v), write(x.view(-1, 8), i, v), write(w + 0, i, v)

    def repeated(x, i, v, w):
        return write(x.sum(0, keepdim=True).expand(x.shape), i, v), write((x + w)[::2][:6], i, v)

    i = torch.tensor([1, 2, 1, 0])
    for function in (add_in_place, repeated, read_again, seen_by_a_view, twice, an_argument):
        compiled = torch.compile(function, backend="smelt", dynamic=dynamic)
        for n in (6, 9):
            arguments = (torch.randn(n, 8), i, torch.randn(4, 8), torch.randn(n, 8))
            before = [a.clone() for a in arguments]
            with torch.no_grad():
                wanted = function(*arguments)
                for _ in range(3):
                    actual = compiled(*arguments)
                    torch.testing.assert_close(actual, wanted)
            assert all(map(torch.equal, arguments, before))


@pytest.mark.usefixtures("strict")
def test_what_parameters_alone_make_is_not_written_twice():
    class Held(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(300, 64))

        def forward(self, i, v):
            return (self.w.exp() * 2).index_add(0, i, v * 2)

    model, i, v = Held().eval(), at(600, 299).abs(), torch.randn(600, 64)
    compiled = torch.compile(model, backend="smelt")
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(compiled(i, v), model(i, v))


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("words", [1, 6])
def test_the_gradient_of_a_table_from_which_one_word_is_read(words):
    """One row is added at one place: no axis of updates is left to visit."""

    def f(table, word):
        return (
            torch.nn.functional.embedding(word, table).half().float().sin().sum()
            + table.cos().sum()
        )

    table, word = torch.randn(words, 7, requires_grad=True), torch.tensor(words - 1)
    (actual,) = torch.autograd.grad(torch.compile(f, backend="smelt")(table, word), table)
    (want,) = torch.autograd.grad(f(table, word), table)
    torch.testing.assert_close(actual, want, rtol=1e-5, atol=1e-5)
