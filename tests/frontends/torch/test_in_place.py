"""Programs that write into their arguments: new values stand where the old ones did."""

import threading
from copy import deepcopy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402
from smelt.frontends.torch.in_place import InPlaceInputs  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    torch.manual_seed(0)


def drawn(*shapes):
    return [torch.randn(s, dtype=torch.float64) for s in shapes]


def both(f, inputs, *, times=3, **options):
    """Run `f` eagerly and compiled on copies, and compare results and arguments.

    Return the record of what was compiled.
    """
    theirs, ours = deepcopy(inputs), deepcopy(inputs)
    fast = torch.compile(f, backend="smelt", **options)
    with smelt.torch.record() as record:
        for _ in range(times):
            expected, got = f(*theirs), fast(*ours)
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(ours, theirs)
    return record


def in_place(actual):
    """How many results are written over arguments, and how many are copied behind the graphs."""
    programs = [g.program for g in actual.graphs]
    plans = [s.compiled.plan for p in programs for s in p.segments]
    slots = [s for p in plans for s in p.slots if s.offset is None]
    over = sum(s.reuses is not None for s in slots)
    return over, len(slots) - over + sum(len(p.lowering.final_writes) for p in programs)


def adam(p, m, v, g):
    m.lerp_(g, 0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.addcdiv_(m, v.sqrt() + 1e-8, value=-0.01)


def take(optimiser):
    optimiser.step()


def moments(*shape):
    p, m, v, g = drawn(shape, shape, shape, shape)
    return [p, m, v.abs(), g]


@pytest.mark.parametrize("shape", [(), (1,), (7919,), (40, 30), (3, 1, 5)])
def test_a_step_writes_each_array_once(shape):
    inputs = [x.float() for x in moments(*shape)]
    assert in_place(both(adam, inputs)) == (3, 0)


def test_a_step_on_empty_tensors_does_nothing():
    both(adam, moments(0, 3))


def test_several_values_that_calls_of_torch_make_are_written():
    """Write several results of torch calls, as a key-value cache does."""

    def step(k, v, x, at):
        k.index_copy_(1, at, x)
        v[:, at] = x * 2
        return (k @ v.mT).softmax(-1)

    both(step, [*drawn((2, 8, 3), (2, 8, 3), (2, 1, 3)), torch.tensor([4])])


def test_sizes_may_be_symbols():
    fast = torch.compile(adam, backend="smelt", dynamic=True)
    for n in (5, 9, 100):
        theirs = moments(n, 3)
        ours = deepcopy(theirs)
        adam(*theirs)
        fast(*ours)
        torch.testing.assert_close(ours, theirs)


def counts(x, total, rate):
    x.add_(total * rate)
    total.mul_(rate)
    total.add_(1)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_scalar_is_written(kind):
    """PyTorch's tracer takes one float64 for a number of Python's, and loses what is written."""
    theirs = [torch.ones(3, dtype=kind), torch.tensor(2.0, dtype=kind)]
    ours = deepcopy(theirs)
    fast = torch.compile(counts, backend="smelt")
    for rate in (2.5, 2.5, 3.5, 0.5):
        counts(*theirs, rate)
        fast(*ours, rate)
        torch.testing.assert_close(ours, theirs)


def transposed(x):
    return x.t().contiguous().t()


def with_gaps(x):
    return torch.stack([x, x * 2], -1)[..., 0]


@pytest.mark.parametrize("turn", [transposed, with_gaps])
@pytest.mark.parametrize("which", [(0,), (3,), (0, 1, 2, 3)])
def test_arguments_have_any_layout(turn, which):
    inputs = [turn(x) if k in which else x for k, x in enumerate(moments(40, 30))]
    both(adam, inputs)


def swap(a, b):
    old = a.clone()
    a.copy_(b)
    b.copy_(old)


def swap_back(a, b):
    old = b.clone()
    b.copy_(a)
    a.copy_(old)


def round_about(a, b):
    old = b.clone()
    b.copy_(a * 2)
    a.copy_(old + 1)
    return old


def keeps_old(a, b):
    old = a * 1.0
    a.add_(b)
    return old, a.sum(), old.t()


def shares_new(a, b):
    new = a * 2 + b
    a.copy_(new)
    b.copy_(new)


def returns_new(a, b):
    new = a * 2 + b
    a.copy_(new)
    return new


def returns_part_of_new(a, b):
    new = a * 2 + b
    a.copy_(new)
    return new[1:3]


def returns_argument(a, b):
    return a.add_(b), a.t()


def constants(a, b):
    a.zero_()
    b.fill_(2.0)


def shifted(a, b):
    a.copy_(torch.roll(a, 1, 0))
    b.copy_(b.flip(0))


def summed(a, b):
    a.div_(a.norm() + 1)
    b.copy_(b.cumsum(0) / 10)


def product(a, b):
    a.add_(a @ b.t() @ b, alpha=0.01)
    b.addmm_(a, a.t() @ b, alpha=0.01)


def part(a, b):
    a[:, 1:3].mul_(b[:, 1:3])
    b.view(-1)[5:].neg_()


def after_a_call_of_torch(a, b):
    a.add_(a.sort(0).values)
    b.mul_(a)


def before_a_call_of_torch(a, b):
    a.add_(b)
    return a.sort(0).values


def through_a_view(a, b):
    a.as_strided((4,), (1,), 2).add_(1.0)
    b.t().add_(a.t())


PROGRAMS = [
    swap,
    swap_back,
    round_about,
    keeps_old,
    shares_new,
    returns_new,
    returns_part_of_new,
    returns_argument,
    constants,
    shifted,
    summed,
    product,
    part,
    after_a_call_of_torch,
    before_a_call_of_torch,
    through_a_view,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_old_values_are_read_before_they_are_written_over(program):
    both(program, drawn((6, 6), (6, 6)))


def test_other_types_are_cast():
    a, b = drawn((5, 7), (5, 7))
    both(lambda a, b: (a.add_(b), None)[1], [a.float(), b])


def test_neighbours_in_memory_are_written_in_place():
    flat = torch.rand(4 * 1200, dtype=torch.float64)
    theirs = [flat.clone()[k * 1200 : (k + 1) * 1200].view(40, 30) for k in range(4)]
    ours = flat.clone()
    parts = [ours[k * 1200 : (k + 1) * 1200].view(40, 30) for k in range(4)]
    fast = torch.compile(adam, backend="smelt")
    fast(*parts)
    adam(*theirs)
    torch.testing.assert_close(parts, theirs)


def test_a_later_call_may_share_memory():
    """The tracer has seen tensors apart; then the gradient is a part of the parameter's memory."""
    fast = torch.compile(lambda p, g: (p.add_(g.flip(0)), None)[1], backend="smelt")
    for shift in (1200, 1200, 600):
        flat = torch.arange(2400.0)
        p, g = flat[:1200], flat[shift : shift + 1200]
        expected = p + g.flip(0)
        fast(p, g)
        assert torch.equal(p, expected)


def test_the_same_tensor_twice():
    for k in (0, 1):
        theirs = moments(40, 30)
        ours = deepcopy(theirs)
        theirs[3], ours[3] = theirs[k], ours[k]
        adam(*theirs)
        torch.compile(adam, backend="smelt")(*ours)
        torch.testing.assert_close(ours, theirs)


def test_autograd_notices_what_a_step_writes():
    p = torch.nn.Parameter(torch.randn(40, 30))
    rest = [torch.randn(40, 30), torch.rand(40, 30), torch.randn(40, 30)]

    @torch.no_grad()
    def step():
        adam(p, *rest)

    fast = torch.compile(step, backend="smelt")
    fast()
    loss = (p * p).sum()
    fast()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_sees_what_a_step_has_written():
    model = torch.nn.Linear(64, 64).double()
    x = torch.randn(8, 64, dtype=torch.float64)
    fast = torch.compile(model, backend="smelt")
    optimiser = torch.optim.SGD(model.parameters(), 1.0)
    step = torch.compile(take, backend="smelt")
    for _ in range(4):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        step(optimiser)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))


def test_tensors_of_inference_mode():
    with torch.inference_mode():
        theirs = moments(40, 30)
        ours = [x.clone() for x in theirs]
        for _ in range(3):
            adam(*theirs)
        fast = torch.compile(adam, backend="smelt")
        for _ in range(3):
            fast(*ours)
        torch.testing.assert_close(ours, theirs)


def test_threads_write_their_own_arguments():
    inputs = moments(40, 30)
    expected = deepcopy(inputs)
    fast = torch.compile(adam, backend="smelt")
    fast(*deepcopy(inputs))
    for _ in range(20):
        adam(*expected)
    actual = []

    def work():
        ours = deepcopy(inputs)
        for _ in range(20):
            fast(*ours)
        actual.append(ours)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(actual) == 4
    for ours in actual:
        torch.testing.assert_close(ours, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_what_autograd_follows_is_copied_as_before():
    def double(x, count):
        x.mul_(2)
        count.add_(1)

    leaf, count = torch.ones(3, requires_grad=True), torch.zeros(3)
    x = leaf * 1
    torch.compile(double, backend="smelt")(x, count)
    x.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0] * 3
    assert count.tolist() == [1.0] * 3


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, 1e-2, 0.9, nesterov=True, weight_decay=0.1),
    "maximize": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, maximize=True, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, foreach=False),
    "capturable": lambda p: torch.optim.Adam(p, torch.tensor(1e-2)),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_over_strided_parameters(name):
    def steps(call):
        torch.manual_seed(0)
        values = [torch.randn(8, 4), torch.randn(4, 8).t(), torch.randn(8, 8)[:, ::2]]
        model = torch.nn.ParameterList(torch.nn.Parameter(x.double()) for x in values)
        optimiser = OPTIMISERS[name](model.parameters())
        run = call(take)
        for k in range(4):
            for p in model:
                p.grad = torch.sin(p.detach() * (k + 1))
            run(optimiser)
        return [p.detach() for p in model]

    fast = steps(lambda f: torch.compile(f, backend="smelt"))
    # a compiled step counts in float32 tensors what an eager one counts in Python's numbers
    torch.testing.assert_close(fast, steps(lambda f: f), rtol=2e-5, atol=2e-6)


def test_an_optimiser_step_copies_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    step = torch.compile(take, backend="smelt")
    for k in range(2):  # the first one makes the state
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        with smelt.torch.record() as record:
            step(optimiser)
        if k:
            assert in_place(record)[1] == 0


def scaled_and_read(a, b):
    a.mul_(3.0)
    return b * 2.0


def test_strides_decide_what_overlaps():
    """An argument with gaps may begin where it did and reach into another one now."""
    fast = torch.compile(scaled_and_read, backend="smelt", dynamic=True)
    for step in (3, 3, 15, 3, 20):
        theirs, ours = torch.arange(300.0), torch.arange(300.0)
        want, got = (
            f(x[100:200], x.as_strided((10,), (step,)))
            for f, x in ((scaled_and_read, theirs), (fast, ours))
        )
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours, theirs)


def test_a_call_with_the_same_addresses_and_other_strides_is_looked_at_again():
    base = torch.arange(300.0)
    value = SimpleNamespace(overwrites=0)
    places = InPlaceInputs(SimpleNamespace(values=[value], outputs=[0]), {0: 0}, [True, False])
    for step, shared in ((3, []), (3, []), (15, [0]), (3, [])):
        assert (
            places.overlapping_inputs([base[100:200], base.as_strided((10,), (step,))], (10,))
            == shared
        )


class Teacher(torch.nn.Module):
    """A moving average of another layer, which autograd does not follow; a gain that it does."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        self.gain = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        with torch.no_grad():
            pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
            for mine, other in pairs:
                mine.mul_(0.9).add_(other, alpha=0.1)
            self.gain.clamp_(max=2.0)
            aim = self.teacher(x)
        return ((self.student(x) * self.gain - aim) ** 2).mean(), self.gain.sum()


def test_what_is_written_unseen_has_the_gradients_of_eager_code():
    """None at all where nothing else reads it, which an optimiser tells from zeros."""
    model = Teacher()
    twin = deepcopy(model)
    fast = torch.compile(twin, backend="smelt")
    for _ in range(3):
        x = torch.randn(5, 4)
        for m, call in ((model, model), (twin, fast)):
            m.zero_grad()
            sum(call(x)).backward()
        assert model.teacher.weight.grad is None
        for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            torch.testing.assert_close(mine, theirs)
            if theirs.grad is not None:
                torch.testing.assert_close(mine.grad, theirs.grad)
