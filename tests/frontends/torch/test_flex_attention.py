"""`flex_attention` is one kernel and equals PyTorch's own definition."""

import math

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import smelt.torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")

N, HEADS, SIZE = 512, 4, 32
SLOPES = torch.linspace(0.1, 0.4, HEADS)
PLACES = torch.linspace(-1, 1, 2 * N)
DOCUMENTS = torch.arange(N) // 129
LENGTHS = torch.tensor([N, 0])

MASKS = {
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 70),
    "documents": lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j],
    "prefix": lambda b, h, i, j: (j < 43) | (i >= j),
    "lengths": lambda b, h, i, j: j < LENGTHS[b],
}
SCORES = {
    "slopes": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "cap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "places": lambda s, b, h, i, j: s + PLACES[i - j + N],
    "masked": lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf),
}


def _given(batch=2, n=N, shared=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n)
    heads = (HEADS, HEADS // shared, HEADS // shared)
    return [torch.randn(batch, h, n, SIZE, generator=generator).to(dtype) for h in heads]


def _mask(name, n=N):
    return flex.create_block_mask(MASKS[name], 2, None, n, n, device="cpu", BLOCK_SIZE=64)


def _check(code, inputs, kernels=1, **tolerances):
    torch._dynamo.reset()
    compiled = torch.compile(code, backend="smelt", fullgraph=True)
    with smelt.torch.record() as record:
        actual = compiled(*inputs)
    (graph,) = record.graphs
    assert not graph.left
    steps = [step for s in graph.program.segments for step in s.compiled.recipe.steps]
    assert len(steps) <= kernels
    torch.testing.assert_close(actual, code(*inputs), **tolerances)
    return actual


@pytest.mark.parametrize("name", MASKS)
def test_masks(name, strict):
    mask = _mask(name)
    actual = _check(lambda q, k, v: flex.flex_attention(q, k, v, block_mask=mask), _given())
    if name == "lengths":
        assert not actual[1].any()  # queries that no key counts for


@pytest.mark.parametrize("name", SCORES)
def test_functions_of_scores(name, strict):
    score = SCORES[name]
    _check(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=score), _given())


def test_both_with_shared_keys_and_logarithms(strict):
    mask, score = _mask("causal"), SCORES["slopes"]

    def code(q, k, v):
        return flex.flex_attention(
            q, k, v, score_mod=score, block_mask=mask, enable_gqa=True, return_lse=True
        )

    _check(code, _given(shared=2), kernels=2)


def test_results_have_the_layout_of_queries(strict):
    def code(x):
        q, k, v = (y.view(2, N, HEADS, SIZE).transpose(1, 2) for y in x.chunk(3, -1))
        actual = flex.flex_attention(q, k, v, score_mod=SCORES["masked"])
        return actual, actual.transpose(1, 2).reshape(2, N, HEADS * SIZE)

    x = torch.randn(2, N, 3 * HEADS * SIZE)
    torch._dynamo.reset()
    actual, wanted = torch.compile(code, backend="smelt")(x), code(x)
    torch.testing.assert_close(actual, wanted)
    assert [y.stride() for y in actual] == [y.stride() for y in wanted]


def test_kernels_name_the_line_that_calls_attention(strict):
    def code(q, k, v):
        return flex.flex_attention(q, k, v, score_mod=SCORES["masked"])

    torch._dynamo.reset()
    with smelt.torch.record() as record:
        torch.compile(code, backend="smelt")(*_given())
    here = "test_flex_attention.py"
    assert here in str(record) and "flex_attention.py" not in str(record).replace(here, "")


def test_logarithms_have_the_type_that_eager_code_gives(strict):
    def code(q, k, v):
        return flex.flex_attention(q, k, v, block_mask=_causal, return_lse=True)

    _causal = _mask("causal")
    for dtype in (torch.float64, torch.float32):
        actual = _check(code, _given(dtype=dtype), kernels=2)
        assert [x.dtype for x in actual] == [dtype, dtype]


def test_halves(strict):
    mask = _mask("window")

    def code(q, k, v):
        return flex.flex_attention(q, k, v, block_mask=mask)

    inputs = _given(dtype=torch.bfloat16)
    wanted = code(*(x.double() for x in inputs))
    torch._dynamo.reset()
    actual = torch.compile(code, backend="smelt")(*inputs)
    theirs = code(*inputs)
    ours_off, theirs_off = ((x.double() - wanted).abs().max() for x in (actual, theirs))
    assert actual.dtype == torch.bfloat16
    assert ours_off <= 2 * theirs_off  # both round weights and results once


def test_every_length_finds_the_same_kernel(strict):
    torch._dynamo.reset()

    def code(q, k, v):
        return flex.flex_attention(q, k, v, score_mod=SCORES["masked"])

    compiled = torch.compile(code, backend="smelt", dynamic=True)
    for k, n in enumerate((40, 57, 96)):
        inputs = _given(n=n)
        with smelt.torch.record() as record:
            torch.testing.assert_close(compiled(*inputs), code(*inputs))
        assert len(record.graphs) == (k == 0)
