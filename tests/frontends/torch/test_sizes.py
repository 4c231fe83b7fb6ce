"""Another batch or length finds the plan of the first: nothing is compiled again."""

import copy
import math
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402
from smelt import knobs  # noqa: E402
from smelt.errors import UnsupportedError  # noqa: E402
from smelt.frontends.torch import plans, segment  # noqa: E402
from smelt.frontends.torch.sizes import Sizes  # noqa: E402
from smelt.types.expr import add, floordiv, size, sub  # noqa: E402

nn, F = torch.nn, torch.nn.functional
SIZES = ((4, 16), (4, 24), (3, 7), (2, 33), (6, 5))


class Encoder(nn.Module):
    """Embeddings with learnt positions, attention over heads, a mean over the length."""

    def __init__(self, width=32, heads=4, kind="causal"):
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(64, width)
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mix, self.up = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.down, self.heads, self.kind = nn.Linear(2 * width, width), heads, kind

    def forward(self, words):
        b, n = words.shape
        x = self.words(words) + self.places(torch.arange(n))
        q, k, v = self.project(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.kind == "causal":
            mask = torch.ones(n, n, dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        x = x + self.mix((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))
        x = x + self.down(F.gelu(self.up(x)))
        if self.kind == "last":
            return x[:, -1]
        if self.kind == "shifted":
            return x[:, 1:] - x[:, :-1]
        if self.kind == "whole":
            return x
        if self.kind == "picked":
            return x[torch.arange(b), words.sum(1) % n]
        return x.mean(1)


class Masked(nn.Module):
    """Sums the features of words that a mask leaves; it is read at positions."""

    def __init__(self, *, checked):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.checked = checked

    def forward(self, words, mask):
        if self.checked and words.shape[1] != mask.shape[1]:
            raise ValueError("the same length is wanted")
        b, n = words.shape
        rows, columns = torch.arange(b)[:, None], torch.arange(n)
        return (self.table(words) * mask[rows, columns][:, :, None]).sum(1)


@pytest.fixture
def compiled_graphs(monkeypatch):
    """Graphs that were compiled, one after another."""
    results = []
    real = plans.warm.compile

    def noted(graph, **facts):
        results.append(graph)
        return real(graph, **facts)

    monkeypatch.setattr(plans.warm, "compile", noted)
    plans._PLANS.clear()
    torch._dynamo.reset()
    return results


@pytest.mark.parametrize("kind", ["causal", "last", "shifted", "picked"])
def test_one_plan_for_every_batch_and_length(kind, compiled_graphs):
    torch.manual_seed(0)
    m = Encoder(kind=kind).eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for size in SIZES:
            words = torch.randint(0, 50, size)
            torch.testing.assert_close(f(words), m(words), atol=1e-5, rtol=1e-4)
    most = 2 if kind == "picked" else 1  # whose first trace divides by a number, the others by n
    assert len(compiled_graphs) == most


@pytest.mark.parametrize("kind", ["causal", "last", "shifted"])
def test_what_is_compiled_for_a_batch_of_one_serves_every_other(kind, compiled_graphs):
    torch.manual_seed(0)
    m = Encoder(kind=kind).eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for size in ((1, 16), (2, 16), (5, 12), (1, 9), (3, 4)):
            words = torch.randint(0, 50, size)
            torch.testing.assert_close(f(words), m(words), atol=1e-5, rtol=1e-4)
    assert len(compiled_graphs) == 1


class Kinds(nn.Module):
    """Embeddings of words and of their kinds, a row that is repeated for the batch."""

    def __init__(self):
        super().__init__()
        self.words, self.kinds = nn.Embedding(50, 32), nn.Embedding(2, 32)
        self.register_buffer("all_one", torch.zeros(1, 64, dtype=torch.long))

    def forward(self, words):
        b, n = words.shape
        x = self.words(words) + self.kinds(self.all_one[:, :n].expand(b, n))
        mask = (torch.arange(n) < 5)[None, :, None].expand(b, n, 1)
        return torch.where(mask, x, 0.0).sum(1)


@pytest.mark.parametrize("batches", [(1, 2, 3), (3, 1)])
def test_a_row_that_is_repeated_for_the_batch_is_no_other_graph(batches, compiled_graphs):
    m = Kinds().eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for b in batches:
            words = torch.randint(0, 50, (b, 9 + b))
            torch.testing.assert_close(f(words), m(words))
    assert len(compiled_graphs) == 1


class Step(nn.Module):
    """Attention of one more word to all before it, whose keys and values the caller keeps."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, x, keys, values):
        x = self.project(x).view(x.shape[0], 1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, x[1]], 2), torch.cat([values, x[2]], 2)
        return F.scaled_dot_product_attention(x[0], keys, values), keys, values


def test_keys_and_values_that_are_kept_grow_without_another_plan(compiled_graphs):
    torch.manual_seed(0)
    m = Step().eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True), smelt.torch.record() as record:
        for b in (1, 2):
            inputs = wanted = [torch.randn(b, 4, 5, 8) for _ in range(2)]
            for _ in range(4):
                x = torch.randn(b, 1, 32)
                y, *inputs = f(x, *inputs)
                z, *wanted = m(x, *wanted)
                torch.testing.assert_close(y, z, atol=1e-5, rtol=1e-4)
    assert len(compiled_graphs) == 1
    assert not any(g.left for g in record.graphs)


@pytest.mark.parametrize("kind", ["stacked", "in between"])
def test_a_batch_of_one_is_distinguished_from_added_dimensions(kind, compiled_graphs):
    """New dimensions of 1 stand before the batch and beside it."""
    torch.manual_seed(0)

    class Model(Encoder):
        def forward(self, words):
            x = super().forward(words)
            if kind == "stacked":
                return torch.stack([x, x.exp(), x.sin()]).sum(0)
            return (x.unsqueeze(0) * x.unsqueeze(1)).sum(-1)

    m = Model(kind="whole").eval()
    fast = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for size in ((1, 16), (2, 16), (5, 12), (3, 4)):
            words = torch.randint(0, 50, size)
            torch.testing.assert_close(fast(words), m(words), atol=1e-5, rtol=1e-4)
    assert len(compiled_graphs) == 1


def test_a_further_trace_is_not_generalised_again(compiled_graphs, monkeypatch):
    """It is looked for as it was traced: numbers and sizes are the general graph's alike."""
    seen = []
    real = segment.generalize

    def noted(graph, **facts):
        seen.append(graph)
        return real(graph, **facts)

    monkeypatch.setattr(segment, "generalize", noted)
    torch.manual_seed(0)
    m = Encoder(kind="last").eval()
    with torch.no_grad(), knobs.config(strict=True):
        for dynamic in (False, True, None):
            torch._dynamo.reset()
            fast = torch.compile(m, backend="smelt", dynamic=dynamic)
            for size in SIZES:
                words = torch.randint(0, 50, size)
                torch.testing.assert_close(fast(words), m(words), atol=1e-5, rtol=1e-4)
    assert len(seen) == len(compiled_graphs) == 1


def test_rooms_of_positions_are_those_of_the_graph_that_reads(compiled_graphs):
    """A plan in which words and masks have lengths of their own has other names for sizes."""
    torch.manual_seed(0)

    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.places = nn.Embedding(50, 32), nn.Embedding(12, 32)

        def forward(self, words, mask):
            n = words.shape[1]
            if words.shape[0] != mask.shape[0]:
                raise ValueError("as many texts as masks are wanted")
            x = self.table(words) + self.places(torch.arange(n))
            return (x * mask[:, torch.arange(n)][:, :, None]).sum(1)

    m = Placed().eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for b, n in ((2, 5), (3, 7), (20, 4), (2, 12)):
            words, mask = torch.randint(0, 50, (b, n)), torch.rand(b, n + 1) < 0.7
            torch.testing.assert_close(f(words, mask), m(words, mask), atol=1e-5, rtol=1e-4)
        with pytest.raises(Exception, match="outside"):
            f(torch.randint(0, 50, (2, 13)), torch.ones(2, 13, dtype=torch.bool))
        with pytest.raises(Exception, match="outside"):
            f(torch.randint(0, 50, (2, 9)), torch.ones(2, 8, dtype=torch.bool))
    assert len(compiled_graphs) == 1


def test_another_process_finds_the_plan_for_another_length(compiled_graphs, tmp_path):
    """The first length of a process may be any; far more rows are planned for anew."""
    torch.manual_seed(0)
    m = Encoder().eval()
    with torch.no_grad(), knobs.config(strict=True, cache_dir=str(tmp_path), verify=False):
        for size, actual in (((4, 7), False), ((3, 20), True), ((32, 64), False), ((3, 9), True)):
            plans._PLANS.clear()  # as a new process has none
            torch._dynamo.reset()
            words = torch.randint(0, 50, size)
            f = torch.compile(m, backend="smelt")
            torch.testing.assert_close(f(words), m(words), atol=1e-5, rtol=1e-4)
            ((built),) = plans._PLANS.values()
            assert isinstance(built.plan, plans.warm.CachedProgram) == actual
            assert (built.hints["n0"] != size[0]) == actual


@pytest.mark.parametrize("kind", ["masked", "counted"])
def test_words_and_masks_whose_sizes_only_some_checks_tie(kind, compiled_graphs):
    """Only a check in Python states the length of the mask, which is read by rows."""
    torch.manual_seed(0)
    m = Masked(checked=kind == "counted").eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for b, n in SIZES:
            words, mask = torch.randint(0, 50, (b, n)), torch.rand(b, n) < 0.7
            torch.testing.assert_close(f(words, mask), m(words, mask), atol=1e-5, rtol=1e-4)
        with pytest.raises(Exception, match=r"outside|same"):
            f(torch.randint(0, 50, (6, 9)), torch.ones(5, 9, dtype=torch.bool))
    assert len(compiled_graphs) == 1


@pytest.mark.parametrize("size", [(1, 9), (5, 1), (1, 1), (4, 4), (32, 8), (50, 3)])
def test_sizes_that_are_ones_or_widths_of_the_model(size, compiled_graphs):
    """A batch as wide as the heads, the width or the vocabulary; those of one are numbers."""
    torch.manual_seed(0)
    m = Encoder().eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for b, n in (size, (3, 7), size, (2, 11)):
            words = torch.randint(0, 50, (b, n))
            torch.testing.assert_close(f(words), m(words), atol=1e-5, rtol=1e-4)


def test_training_of_every_batch_and_length(compiled_graphs):
    """Forward and backward graphs; gradients are eager's."""
    torch.manual_seed(0)
    m = Encoder()
    f = torch.compile(lambda words: m(words).square().mean(), backend="smelt")
    with knobs.config(strict=True):
        for size in SIZES[:3]:
            words = torch.randint(0, 50, size)
            wanted = torch.autograd.grad(m(words).square().mean(), [*m.parameters()])
            result = torch.autograd.grad(f(words), [*m.parameters()])
            for a, b in zip(result, wanted, strict=True):
                torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)
    forward = [
        g
        for g in compiled_graphs
        if any(x.op.label == "x0" and not x.type.dtype.is_float for x in g.inputs)
    ]
    assert len(forward) <= 2 < len(SIZES)


def test_texts_without_their_last_word_are_read_without_tests():
    """A language model reads all words but the last: rows of n - 1 places, as one axis."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.up, self.down = nn.Embedding(9, 8), nn.Linear(8, 16), nn.Linear(16, 9)

        def forward(self, words):
            x = self.down(F.gelu(self.up(self.words(words[:, :-1]))))
            return F.cross_entropy(x.flatten(0, 1), words[:, 1:].flatten())

    model = Model()
    words = [torch.randint(0, 9, shape) for shape in ((4, 17), (3, 12), (2, 2))]
    fast = torch.compile(model, backend="smelt", fullgraph=True)
    with smelt.torch.record() as r:
        for inputs in words:
            actual, expected = (
                torch.autograd.grad(f(inputs), model.parameters()) for f in (fast, model)
            )
            torch.testing.assert_close(actual, expected)
    texts = [k.text for k in r.graphs[0].kernels() + r.graphs[1].kernels()]
    assert any("//(size(" in t for t in texts)
    assert not [t for t in texts if "//(size(" in t and "else 0" in t]


def test_windows_keep_what_they_slide_along(compiled_graphs):
    """Images of another batch find the plan; of another size they do not, and are right."""
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(2)
    ).eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for b, n, plans in ((2, 12, 1), (5, 12, 1), (3, 12, 1), (3, 16, 2)):
            x = torch.randn(b, 3, n, n)
            torch.testing.assert_close(f(x), m(x), atol=1e-5, rtol=1e-4)
            assert len(compiled_graphs) == plans


def test_functions_without_parameters_stay_as_they_were_traced(compiled_graphs):
    """Nothing tells there which dimensions vary."""
    f = torch.compile(lambda x: F.softmax(x, -1), backend="smelt")
    x = torch.randn(6, 128)
    torch.testing.assert_close(f(x), F.softmax(x, -1))
    (graph,) = compiled_graphs
    assert graph.inputs[0].type.shape == (6, 128)


def test_a_position_outside_is_still_an_error_for_every_length(compiled_graphs):
    m = Encoder().eval()
    f = torch.compile(m, backend="smelt")
    with torch.no_grad(), knobs.config(strict=True):
        for n in (8, 20):
            f(torch.randint(0, 50, (2, n)))
        with pytest.raises(Exception, match="outside"):
            f(torch.full((2, 9), 50))
        with pytest.raises(Exception, match="outside"):
            f(torch.randint(0, 50, (2, 65)))


def test_reports_of_kernels_name_sizes():
    m = Encoder().eval()
    with torch.no_grad(), smelt.torch.record() as record:
        torch.compile(m, backend="smelt")(torch.randint(0, 50, (3, 9)))
    assert any("n0" in k.text for k in record.kernels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(record)


def test_the_front_end_starts_without_the_compiler():
    """A plan that an earlier process stored runs without passes, planner and code generation."""
    code = (
        "import sys, smelt.torch; parts = ('passes', 'rewrite', 'fusion', 'lower', 'codegen');"
        "print(*(m for m in sys.modules if m.startswith(tuple(f'smelt.{p}' for p in parts))))"
    )
    facts = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert facts.stdout.split() == []


def test_a_batch_without_elements_finds_no_plan_that_divides_by_it():
    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(4, 4)

        def forward(self, x, y):
            return self.project(x) * (len(x) // max(len(y), 1)), y * 2

    model = Shares()
    run = torch.compile(model, backend="smelt", dynamic=True)
    for a, b in ((7, 3), (5, 0), (0, 5)):
        x, y = torch.randn(a, 4), torch.randn(b, 4)
        with torch.no_grad():
            torch.testing.assert_close(run(x, y), model(x, y))


def test_a_size_that_comes_out_as_1_is_stretched(strict):
    """Guards say that the second part is one row: it was read as if it had as many as the first."""

    def f(x):
        a, b = x.chunk(2, 0)
        c, d = (x * 2).split(x.shape[0] - 1)
        return a * b, torch.lerp(c, d, 0.25), a.unsqueeze(-1) @ b.unsqueeze(-2)

    x = torch.arange(12.0).view(3, 4)
    torch.testing.assert_close(torch.compile(f, backend="smelt", dynamic=True)(x), f(x))


def test_parts_that_guards_make_equal_are_adjacent(strict):
    """Both halves of an associative scan, whose lengths are spelt by other divisions."""

    def scan(x):
        n = x.shape[0]
        if n < 2:
            return x
        odd = scan(x[:-1:2] + x[1::2])
        even = torch.cat([x[:1], x[2::2] + (odd[:-1] if n % 2 == 0 else odd)])
        longer = even.shape[0] == odd.shape[0] + 1
        both = torch.stack([even, F.pad(odd, (0, 0, 0, 1)) if longer else odd], 1).flatten(0, 1)
        return both[: odd.shape[0] + even.shape[0]] if longer else both

    x = torch.arange(160.0).view(40, 4)
    with torch.no_grad(), smelt.torch.record() as record:
        actual = torch.compile(scan, backend="smelt", dynamic=True)(x)
    torch.testing.assert_close(actual, x.cumsum(0))
    (graph,) = record.graphs
    assert not graph.left and len(graph.kernels()) < 3


def test_sizes_that_nothing_makes_equal_are_not_taken_for_equal():
    sizes = Sizes()
    sizes.hints.update(n0=3)
    n = size("n0")
    half = floordiv(add(n, 1), 2)
    rest = sub(n, half)
    with pytest.raises(UnsupportedError, match="wanted"):
        sizes.require_equal_hints((rest, 4), (half, 4))
    sizes.require_equal_hints((rest, 1), (1, 4))
    sizes.require_equal_hints((n,), (7, add(half, rest)))


OF_SIZES = {
    "a quotient": lambda x: x * (1.0 / x.shape[0]),
    "a ratio": lambda x: x * (x.shape[0] / (x.shape[0] - 1)),
    "a root": lambda x: x / x.shape[1] ** 0.5,
    "a number beside integers": lambda x: x.long() * (x.shape[0] / 3),
    "a bound": lambda x: x.clamp(max=1 / x.shape[0]),
    "a factor of a sum": lambda x: torch.add(x, x, alpha=x.shape[0] / 3),
    "halves": lambda x: x.bfloat16() * (x.shape[0] / 3),
    "a filling": lambda x: x.masked_fill(x > 0, x.shape[0] / 7),
    "a comparison": lambda x: x > x.shape[0] / 9,
    "a part": lambda x: x[: int(x.shape[0] * 0.5)],
    "a third of a dimension": lambda x: x[:, : int(x.shape[1] / 3)],
    "a part, rounded up": lambda x: x[:, : math.ceil(x.shape[1] / 3)],
    "a larger image": lambda x: F.interpolate(x[None, None], scale_factor=1.5),
}


@pytest.mark.parametrize("kind", OF_SIZES)
def test_numbers_that_are_computed_of_sizes(kind, strict):
    code = OF_SIZES[kind]
    compiled = torch.compile(code, backend="smelt", dynamic=True)
    for k, n in enumerate((6, 9, 5)):
        x = torch.randn(n, n + 4)
        with smelt.torch.record() as record:
            torch.testing.assert_close(compiled(x), code(x), rtol=1e-6, atol=1e-6)
        assert len(record.graphs) == (k == 0)
        assert not any(g.left for g in record.graphs)


def test_a_batch_norm_is_trained_in_one_graph_for_every_batch(strict):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    model = copy.deepcopy(plain)
    compiled = torch.compile(model, backend="smelt", dynamic=True)
    for k, n in enumerate((12, 7, 31)):
        x = torch.randn(n, 8)
        with smelt.torch.record() as record:
            compiled(x).square().sum().backward()
        plain(x).square().sum().backward()
        assert [len(g.program.segments) for g in record.graphs] == [1, 1] * (k == 0)
        assert not any(g.left for g in record.graphs)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(model.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_positions_counted_down_by_floats_are_ours():
    def f(x):
        return x[:, :1].sum() + torch.arange(len(x), -x.shape[1], -1.0) * 2

    fast = torch.compile(f, backend="smelt", dynamic=True)
    with smelt.record() as record:
        for size in ((5, 7), (2, 3), (16, 4)):
            x = torch.randn(size)
            torch.testing.assert_close(fast(x), f(x))
    assert len(record.graphs) == 1 and not record.left
