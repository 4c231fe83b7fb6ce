"""PyTorch's loops and branches that take functions run as loops of the compiler's."""

import math

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402

scan = pytest.importorskip("torch._higher_order_ops.scan").scan
while_loop = pytest.importorskip("torch._higher_order_ops.while_loop").while_loop
associative = pytest.importorskip("torch._higher_order_ops.associative_scan")

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

SHAPES = [(7, 3), (20, 3), (5, 9), (8, 8)]


def _randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _run(code, inputs, training):
    """Return the results of a function, and the gradients of its inputs."""
    inputs = [x.detach().clone().requires_grad_(training and x.is_floating_point()) for x in inputs]
    results = torch.utils._pytree.tree_leaves(code(*inputs))
    if training:
        weighted = (x * (1 + torch.arange(x.numel()).reshape(x.shape)) for x in results)
        sum(x.sum() for x in weighted if x.requires_grad).backward()
    gradients = [x.grad for x in inputs if x.grad is not None]
    return [x.detach() for x in results], gradients


def _check(code, cases, training=False, left=(), **tolerances):
    """Compare with eager code; return what was compiled."""
    torch._dynamo.reset()
    compiled = torch.compile(code, backend="smelt", dynamic=True, fullgraph=True)
    with smelt.torch.record() as record:
        for inputs in cases:
            actual, expected = (_run(f, inputs, training) for f in (compiled, code))
            torch.testing.assert_close(actual, expected, equal_nan=True, **tolerances)
    assert [x.operator for x in record.left] == list(left)
    assert not any(g.fallback or g.failed for g in record.graphs)
    return record


def _loops(record):
    """Return the text of each kernel that has a stream over steps, and of each body."""
    reports = [r for g in record.graphs for r in g.reports()]
    return [k.text for r in reports for k in r.kernels]


def _decay(xs, decay):
    def step(mean, x):
        mean = decay * mean + (1 - decay) * x
        return mean, mean * 2

    return scan(step, torch.zeros_like(xs[0]), xs, dim=0)


@pytest.mark.parametrize("training", [False, True])
def test_scan_of_elements_is_one_plan_for_all_lengths(training, strict):
    cases = [(_randn(n, c), torch.rand(c, dtype=torch.float64)) for n, c in SHAPES]
    record = _check(_decay, cases, training)
    assert [g.kind for g in record.graphs] == (
        ["forward", "backward"] if training else ["inference"]
    )
    assert any("stream" in text for text in _loops(record))


@pytest.mark.parametrize("training", [False, True])
def test_reverse_scan(training, strict):
    def code(xs):
        step = lambda c, x: (torch.maximum(c, x), c - x)  # noqa: E731
        return scan(step, torch.zeros_like(xs[0]), xs, dim=0, reverse=True)

    _check(code, [(_randn(*s),) for s in SHAPES], training)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-3), (torch.bfloat16, 0.1)]
)
def test_scan_of_a_product(dtype, tolerance, training, strict):
    def code(w, xs):
        def step(h, x):
            h = torch.tanh(h @ w + x)
            return h, h.clone()

        return scan(step, torch.zeros(xs.shape[1], w.shape[0], dtype=xs.dtype), xs, dim=0)

    w = (_randn(4, 4) / 8).to(dtype)
    cases = [(w, _randn(n, c, 4, seed=n).to(dtype)) for n, c in SHAPES]
    _check(code, cases, training, rtol=tolerance, atol=tolerance)


def test_scan_of_a_module_has_gradients_of_its_parameters(strict):
    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.back = (torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))

        def forward(self, xs):
            def step(h, x):
                h = torch.tanh(self.wide(x) + self.back(h))
                return h, h.clone()

            return scan(step, torch.zeros_like(xs[0]), xs, dim=0)[1]

    torch.manual_seed(0)
    cell = Cell()
    _check(cell, [(_randn(n, c, 4),) for n, c in SHAPES], training=True)
    compiled = torch.compile(cell, backend="smelt")
    gradients = []
    for f in (compiled, cell):
        cell.zero_grad()
        f(_randn(6, 2, 4)).square().sum().backward()
        gradients.append([p.grad for p in cell.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("training", [False, True])
def test_scan_inside_a_scan(training, strict):
    def code(xs):
        def inner(c, x):
            return c + x, c * x

        def outer(c, row):
            return scan(inner, c, row, dim=0)

        return scan(outer, xs.sum() * 0, xs, dim=0)

    _check(code, [(_randn(*s),) for s in SHAPES], training)


def test_scan_of_integers_wraps(strict):
    def code(xs):
        return scan(lambda c, x: (c * 3 + x, c ^ x), xs[0] * 0, xs, dim=0)

    _check(code, [(torch.arange(n, dtype=torch.int32),) for n in (3, 40, 9)])


def test_reads_of_a_step_are_checked(strict):
    def code(table, index):
        def step(c, k):
            return c + table.index_select(0, k).sum(0), c * 1.0

        return scan(step, torch.zeros_like(table[0]), index, dim=0)

    table = _randn(5, 3)
    _check(code, [(table, torch.tensor([[0, 4], [2, 2], [1, 0]]))])
    with pytest.raises(IndexError):
        torch.compile(code, backend="smelt")(table, torch.tensor([[0, 4], [2, 5], [1, 0]]))


def test_reads_of_a_branch_are_checked_where_it_is_taken(strict):
    def code(x, index):
        read = lambda x, index: x.index_select(0, index)  # noqa: E731
        other = lambda x, index: x[:1].expand(index.shape[0], -1).clone()  # noqa: E731
        return torch.cond(x.sum() > 0, read, other, (x, index))

    x, inside, outside = _randn(5, 3).abs(), torch.tensor([0, 4, 2]), torch.tensor([0, 5, 2])
    _check(code, [(x, inside), (-x, inside), (-x, outside)])
    with pytest.raises(IndexError):
        torch.compile(code, backend="smelt")(x, outside)


@pytest.mark.parametrize("sort", [True, False])
def test_a_step_without_rules_is_a_call_of_torch(sort):
    def code(xs):
        def step(c, x):
            y = c + x
            return (torch.sort(y)[0] if sort else y * torch.rand_like(y) * 0), c * 1

        return scan(step, xs[0] * 2, xs, dim=0)

    record = _check(code, [(_randn(n, c),) for n, c in SHAPES], left=["scan"])
    (left,) = record.left
    assert ("aten.sort" if sort else "aten.rand_like") in left.reason
    assert "test_loops.py" in left.reason


def test_while_loop_runs_until_its_condition_fails(strict):
    def halve(x):
        return while_loop(lambda c: (c.abs() > 1).any(), lambda c: (c / 2,), (x,))

    _check(halve, [(_randn(*s) * scale,) for s, scale in zip(SHAPES, (1, 1e3, 0, 1e9))])

    def root(a, first):
        def goes_on(x):
            return ((x * x - a).abs() > 1e-9 * a).any()

        return while_loop(goes_on, lambda x: ((x + a / x) / 2,), (first,))

    _check(
        root, [(1 + torch.arange(n, dtype=torch.float64), torch.ones(n).double()) for n in (2, 9)]
    )


def test_while_loop_with_a_counter(strict):
    def code(x, limit):
        def step(i, c):
            return i + 1, c * 2 + 1

        return while_loop(lambda i, c: i < limit, step, (torch.zeros((), dtype=torch.int64), x))

    _check(code, [(_randn(3), torch.tensor(n)) for n in (10, 0, -1, 1)])


def test_while_loop_with_a_python_number_is_a_call_of_torch():
    def code(x):
        return while_loop(lambda i, c: i < 5, lambda i, c: (i + 1, c * 2), (0, x))[1]

    record = _check(code, [(_randn(n),) for n in (4, 9)], left=["while_loop"])
    assert "a number that a loop carries" in record.left[0].reason


@pytest.mark.parametrize("training", [False, True])
def test_cond_of_cheap_branches_selects(training, strict):
    def code(x):
        return torch.cond(x.sum() > 0, lambda x: (x + 1, x * 2), lambda x: (x - 1, x * 3), (x,))

    record = _check(code, [(sign * _randn(6).abs(),) for sign in (1, -1)], training)
    assert len(record.graphs[0].kernels()) == 1


@pytest.mark.parametrize("training", [False, True])
def test_cond_runs_the_branch_that_is_taken(training, strict):
    def inner(x):
        return torch.cond(x[0] > 1, lambda x: x.cumsum(0), lambda x: x.cos(), (x,))

    def code(x, w):
        return torch.cond(x.sum() > 0, lambda x: inner(x @ w), lambda x: x.softmax(0), (x,))

    _check(code, [(x * _randn(6).abs(), _randn(6, 6)) for x in (9, 0.01, -1)], training)


def test_cond_with_a_stored_tensor_is_a_call_of_torch():
    def code(x):
        add = lambda x: x + torch.tensor([2.0], dtype=torch.float64)  # noqa: E731
        return torch.cond(x.sum() > 0, add, lambda x: x * 2, (x,))

    record = _check(code, [(_randn(5),), (-_randn(5),)], left=["cond"])
    assert "a stored tensor" in record.left[0].reason


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_associative_scan(reverse, training, strict):
    def code(a, x):
        def combine(p, q):
            return p[0] * q[0], q[0] * p[1] + q[1]

        scan = associative.associative_scan
        return scan(combine, (a, x), 0, reverse=reverse, combine_mode="generic")

    _check(code, [(_randn(n, 4), _randn(n, 4, seed=1)) for n in (1, 6)], training)


@pytest.mark.parametrize(
    ("combine", "kernels"),
    [
        (lambda a, b: [a + b], 1),
        (lambda a, b: [torch.maximum(b, a)], 1),
        (lambda a, b: [a * b + a + b], 3),
    ],
)
def test_associative_scan_as_one_operator(combine, kernels, strict):
    def code(x):
        return associative.associative_scan_op(combine, [x], ())

    x = _randn(9, 3)
    x[4, 1] = math.nan
    record = _check(code, [(x,), (x[:5],), (x[:, :2].clone(),)])
    assert {len(g.kernels()) for g in record.graphs} == {kernels}
