"""Parts of arguments are written where they stand: rows of caches, slots of queues."""

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402
from smelt.frontends.torch.in_place import share_no_memory  # noqa: E402

pytestmark = pytest.mark.usefixtures("strict")


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    torch.manual_seed(0)


def drawn(*shapes):
    return [torch.randn(s, dtype=torch.float64) for s in shapes]


def both(f, inputs, *, times=3, **options):
    """Run `f` eagerly and compiled on copies of the same tensors.

    Return the record of what was compiled and the last results.
    """
    theirs, ours = deepcopy(inputs), deepcopy(inputs)
    fast = torch.compile(f, backend="smelt", **options)
    with smelt.torch.record() as record, torch.no_grad():
        for _ in range(times):
            where = [x.data_ptr() for x in ours if isinstance(x, torch.Tensor)]
            torch.testing.assert_close(fast(*ours), f(*theirs))
            torch.testing.assert_close(ours, theirs)
            assert [x.data_ptr() for x in ours if isinstance(x, torch.Tensor)] == where
    return record


def updates(actual):
    return sum(len(g.program.lowering.updates) for g in actual.graphs)


def attended(k, v, q):
    return (q @ k.mT).softmax(-1) @ v


def at_positions(k, v, x, at):
    k.index_copy_(1, at, x)
    v[:, at] = x * 2
    return attended(k, v, x)


def at_a_position(k, v, x, at):
    k[:, 3:4] = x
    v.select(1, 5).copy_(x[:, 0] + 1)
    return attended(k, v, x)


def twice(k, v, x, at):
    k[:, at] = x
    k[:, at + 1] = x + k.new_ones(())
    v[0, at] = x[0]
    return attended(k, v, x)


def scattered(k, v, x, at):
    i = at.view(1, 1, 1).expand_as(x)
    k.scatter_(1, i, x)
    v.scatter_(1, i, 2.0)
    return attended(k, v, x)


def cache_inputs(rows=2, length=200, width=80):
    k, v, x = drawn((rows, length, width), (rows, length, width), (rows, 1, width))
    return [k, v, x, torch.tensor([7])]


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (at_positions, 2),
        (at_a_position, 2),
        (twice, 3),
        (scattered, 2),
    ],
)
def test_parts_are_written_where_they_stand(program, count):
    assert updates(both(program, cache_inputs())) == count


def test_small_arguments_are_written_whole_by_kernels():
    assert updates(both(at_a_position, cache_inputs(length=8, width=3))) == 0
    assert (
        updates(both(at_positions, cache_inputs(length=8, width=3))) == 2
    )  # calls of torch anyway


def test_bytes_of_a_part_are_moved():
    """A call copies nothing as large as the cache."""
    k, v, x, at = cache_inputs()
    fast = torch.compile(at_positions, backend="smelt")
    with torch.no_grad():
        for _ in range(2):
            fast(k, v, x, at)
        with torch.profiler.profile(profile_memory=True) as seen:
            fast(k, v, x, at)
    largest = max(e.self_cpu_memory_usage for e in seen.key_averages())
    assert largest < k.nbytes / 2


def reads_the_old(k, v, x, at):
    old = k[:, 7] + 1
    k[:, at] = x
    return old * 2, k.sum()


def reads_the_old_late(k, v, x, at):
    y = torch.linalg.inv(torch.eye(80, dtype=x.dtype) * 2)
    old = (k * 3).sum(1)
    k[:, at] = x
    return old @ y


def gives_the_argument(k, v, x, at):
    k[:, at] = x
    return k


def gives_a_view(k, v, x, at):
    k[:, at] = x
    return k[:, 3:9], v[0]


def swaps(k, v, x, at):
    old = k[:, at].clone()
    k[:, at] = v[:, at]
    v[:, at] = old
    return k.sum()


def moves_along(k, v, x, at):
    k[:, 1:2] = k[:, 2:3]
    k[:, 2:3] = k[:, 1:2] * 2
    return v.sum()


def adds(k, v, x, at):
    k.index_put_((torch.zeros(2, dtype=torch.long), at.expand(2)), x[:, 0], accumulate=True)
    return k.sum()


@pytest.mark.parametrize(
    "program",
    [
        reads_the_old,
        reads_the_old_late,
        gives_the_argument,
        gives_a_view,
        swaps,
        moves_along,
        adds,
    ],
)
def test_others_read_what_eager_code_lets_them_read(program):
    both(program, cache_inputs())


def test_positions_and_lengths_may_be_symbols():
    def step(k, p, x):
        k[:, p : p + 1] = x
        return (k[:, : p + 1] * 2).sum()

    fast = torch.compile(step, backend="smelt")
    (theirs,) = drawn((2, 300, 40))
    ours = theirs.clone()
    with smelt.torch.record() as record, torch.no_grad():
        for p in range(3, 12):
            x = torch.randn(2, 1, 40, dtype=torch.float64)
            torch.testing.assert_close(fast(ours, p, x), step(theirs, p, x))
            torch.testing.assert_close(ours, theirs)
    assert len(record.graphs) == 2
    assert updates(record) == 2


def test_arguments_that_share_memory_are_copied():
    """Whether they do is looked at in every call: the tracer has seen them apart.  What was read
    before is not what is written."""

    def step(k, v, x, at):
        y = v + 1
        k[at] = x
        return (k * y).sum(1)

    fast = torch.compile(step, backend="smelt")
    with smelt.torch.record() as record, torch.no_grad():
        for shift in (None, 200, 0, 5, 200):
            k, v, x = drawn((200, 80), (200, 80), (1, 80))
            flat, at = torch.cat([k, v]), torch.tensor([7])
            if shift is not None:
                k, v = flat[:200], flat[shift : shift + 200]
            assert share_no_memory([k], [v]) == (shift in (None, 200))
            y = v + 1
            torch.testing.assert_close(fast(k, v, x, at), (k.index_copy(0, at, x) * y).sum(1))
            assert torch.equal(k[at], x)
    assert len(record.graphs) == 1
    assert updates(record) == 1


@pytest.mark.parametrize("turn", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_arguments_have_any_layout(turn):
    k, v, x, at = cache_inputs()
    back = [turn.index(d) for d in range(3)]
    both(at_positions, [k.permute(turn).contiguous().permute(back), v, x, at])


def test_every_other_element():
    k, v, x, at = cache_inputs(length=400)
    both(at_positions, [k[:, ::2], v[:, 1::2], x, at])


def test_autograd_notices_what_is_written():
    k, v, x, at = cache_inputs()
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    y = (w * k).sum() + (w * w * v).sum()
    fast = torch.compile(at_positions, backend="smelt")
    with torch.no_grad():
        fast(k, v, x, at)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_memory_that_is_shared():
    x = torch.zeros(4, 6)
    assert share_no_memory([x[:, :3].contiguous()], [x])
    assert not share_no_memory([x[:, :3]], [x[:, 3:]])  # spans, not elements
    assert share_no_memory([x[:2]], [x[2:]])
