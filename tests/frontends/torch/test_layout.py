"""Results have eager code's strides and share memory as its results do."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import smelt.torch  # noqa: E402
from smelt.frontends.torch.layout import memory_order  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


def dense(x):
    order = sorted(range(x.dim()), key=lambda a: -x.stride(a))
    return x.permute(order).is_contiguous()


def same_layout(actual, expected):
    """Equal values and strides, and eager's places within what they share."""
    assert len(actual) == len(expected)
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y)
        moving = [a for a, n in enumerate(y.shape) if n > 1]
        if y.numel():
            assert [x.stride(a) for a in moving] == [y.stride(a) for a in moving]
        if y.numel() and not dense(y):
            assert x.storage_offset() == y.storage_offset()
    for k in range(len(expected)):
        for j in range(k):
            one, two = (
                v[k].untyped_storage().data_ptr() == v[j].untyped_storage().data_ptr()
                for v in (actual, expected)
            )
            assert one or not two


@st.composite
def chains(draw):
    """Views one after another, as functions of a tensor of four dimensions."""
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(
            st.sampled_from(
                [
                    "slice",
                    "select",
                    "permute",
                    "expand",
                    "unsqueeze",
                    "split",
                    "diagonal",
                    "flatten",
                ]
            )
        )
        steps.append(
            (kind, draw(st.integers(0, 3)), draw(st.integers(0, 2)), draw(st.integers(1, 3)))
        )
    return tuple(steps)


def apply(x, steps):
    for kind, a, start, step in steps:
        rank = x.dim()
        a = a % rank if rank else 0
        if kind == "unsqueeze":
            x = x.unsqueeze(a)
        elif kind == "expand":
            x = x.unsqueeze(a).expand(*x.shape[:a], step + 1, *x.shape[a:])
        elif not rank:
            continue
        elif kind == "slice":
            x = x[(*[slice(None)] * a, slice(start, None, step))]
        elif kind == "select" and x.shape[a]:
            x = x.select(a, start % x.shape[a])
        elif kind == "permute":
            x = x.transpose(a, (a + step) % rank)
        elif kind == "split" and x.shape[a]:
            parts = x.split(max(1, x.shape[a] // 2), a)
            x = parts[start % len(parts)]
        elif kind == "diagonal" and rank > 1:
            x = x.diagonal(0, a, (a + 1) % rank)
        elif kind == "flatten" and x.is_contiguous():
            x = x.flatten()
    return x


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(chains(), chains(), st.sampled_from(["one", "two", "base", "argument"]))
def test_chains_of_views_have_eager_strides(first, second, results):
    def f(x):
        y = x * 2 + 1
        if results == "argument":
            return apply(x, first), apply(y, second)
        if results == "two":
            return apply(y, first), apply(y, second)
        return (apply(y, first), y) if results == "base" else (apply(y, first),)

    torch._dynamo.reset()
    x = torch.randn(3, 4, 2, 5)
    with torch.no_grad():
        same_layout(torch.compile(f, backend="smelt")(x), f(x))


def test_a_small_part_is_computed_alone():
    """The last row of a product: eager's strides, and not the work of the other rows."""

    def f(x, w):
        return (x @ w)[:, -1]

    x, w = torch.randn(3, 50, 16), torch.randn(16, 40)
    with smelt.record() as record:
        actual = torch.compile(f, backend="smelt")(x, w)
    same_layout((actual,), (f(x, w),))
    (segment,) = record.graphs[0].program.segments
    (result,) = segment.compiled.plan.graph.outputs
    assert result.type.shape == (3, 40)


def test_parts_have_eager_strides_for_every_size():
    def f(x):
        y = x.exp()
        return y[:, 1:3], y.sum(-1, keepdim=True).expand(*y.shape)[:, ::2]

    fast = torch.compile(f, backend="smelt", dynamic=True)
    for n in (6, 9, 17):
        x = torch.randn(2, n, 4)
        same_layout(fast(x), f(x))


def test_writing_into_one_part_shows_in_the_other():
    def f(x):
        y = x + 1
        return y[:3], y[1:]

    def write(parts):
        parts[0][2] = 7.0
        return parts

    x = torch.randn(6, 2)
    with torch.no_grad():
        same_layout(write(torch.compile(f, backend="smelt")(x)), write(f(x)))


def test_results_of_a_training_step_have_eager_strides():
    def f(x):
        y = (x * 3).tanh()
        return y[:, 1:3], y.transpose(0, 1)[::2]

    x = torch.randn(4, 6, 5, requires_grad=True)
    same_layout(torch.compile(f, backend="smelt")(x), f(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w, b: torch.tanh(torch.nn.functional.linear(x, w, b)),
        lambda x, w, b: (x.view(2, 3, 4) * b.view(6, 1)[:3]).permute(2, 0, 1).sin() @ w.T[:3],
        lambda x, w, b: (x.sin() * b.view(6, 1)).sum() + (w + 1).cos().T.sum(),
        lambda x, w, b: (x.T.exp(), w.view(24).sort().values, b * 2),
    ],
    ids=["linear", "chain", "sums", "places"],
)
def test_gradients_that_are_views_are_stored_as_they_are(f):
    inputs = [torch.randn(6, 4), torch.randn(6, 4), torch.randn(6)]
    fast = torch.compile(f, backend="smelt")

    def gradients(function):
        leaves_ = [x.clone().requires_grad_() for x in inputs]
        actual = function(*leaves_)
        actual = actual if isinstance(actual, tuple) else (actual,)
        return torch.autograd.grad(sum((y**2).sum() for y in actual), leaves_)

    with smelt.record() as record:
        actual = gradients(fast)
    same_layout(actual, gradients(f))
    assert record.graphs[-1].kind == "backward"
    assert " = f_" not in record.graphs[-1].program.source


def test_a_kept_view_may_differ_from_the_traced_layout():
    """Forward stores a transposed slice of a computed row alone, by rows."""

    def program(w, z, x):
        a, c = (z @ w).split([12, 24], -1)
        return torch.bmm(x * a.view(-1, 1, 12), c.view(-1, 12, 2)).square().sum()

    def gradients(call):
        w = torch.linspace(-1, 1, 3 * 36, dtype=torch.float64).view(3, 36).requires_grad_()
        z = torch.linspace(1, 2, 15, dtype=torch.float64).view(5, 3).requires_grad_()
        x = torch.linspace(2, 1, 5 * 7 * 12, dtype=torch.float64).view(5, 7, 12)
        call(w, z, x).backward()
        return w.grad, z.grad

    torch._dynamo.reset()
    fast = torch.compile(program, backend="smelt", fullgraph=True)
    torch.testing.assert_close(gradients(fast), gradients(program), rtol=1e-11, atol=1e-11)


def test_a_part_that_a_call_of_torch_reads_is_a_part_of_the_result():
    def f(x):
        y = x * 2
        part = y[:, -1]
        return part, y, torch.special.zeta(part, 2.0)

    x = torch.rand(4, 6) + 1
    with torch.no_grad(), smelt.record() as record:
        actual, expected = torch.compile(f, backend="smelt")(x), f(x)
    assert record.left
    same_layout(actual, expected)
    assert actual[0].data_ptr() - actual[1].data_ptr() == 5 * x.itemsize


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from((0, 1, 2, 3, 4, 6, 8, 12, 24))), max_size=4
    )
)
def test_the_order_in_memory_is_torchs_own(dims):
    """Dense tensors are those that torch calls contiguous when transposed."""
    shape, strides = (tuple(d[k] for d in dims) for k in (0, 1))
    x = torch.empty(3000).as_strided(shape, strides)
    order = memory_order(x)
    if order is not None:
        assert sorted(order) == [*range(len(dims))]
        assert x.permute(order).is_contiguous()
    else:
        slow = sorted(range(len(dims)), key=lambda a: (-strides[a], a))
        assert 0 in strides or not x.permute(slow).is_contiguous()
