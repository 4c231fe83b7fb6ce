"""Invalid input gets eager code's error, and an empty axis is never read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.func import functionalize  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from smelt.frontends.torch.lower import Lowering  # noqa: E402
from smelt.frontends.torch.program import Program  # noqa: E402
from smelt.frontends.torch.refusals import is_refused  # noqa: E402
from smelt.frontends.torch.table import decompositions  # noqa: E402
from smelt.graph.bounds_checks import collect_bounds_checks  # noqa: E402
from smelt.graph.text import parse  # noqa: E402

F = torch.nn.functional
ATEN = torch.ops.aten
WHOLE = torch.ones(6, 6, dtype=torch.int64)

REFUSED = {
    "a negative beta": lambda x, n: F.smooth_l1_loss(x, x + 1, beta=-1),
    "the fraction of integers": lambda x, n: torch.frac(n) + x,
    "a sum of integers and a product": lambda x, n: torch.addmm(n, x, x),
    "a product with integers": lambda x, n: torch.mv(x, n[0]),
    "a cross product of two types": lambda x, n: torch.linalg.cross(x[:, :3], n[:, :3]),
    "a diagonal of another length": lambda x, n: torch.diagonal_scatter(x, torch.ones(4)),
}


def program(f, *operands):
    """Compile `f` as AOTAutograd would pass it, without Dynamo."""
    traced = make_fx(functionalize(f), decomposition_table=decompositions(), tracing_mode="fake")(
        *operands
    )
    return Program(traced, Lowering(traced.graph))


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_code_refuses_raises_its_error(name):
    x = torch.rand(6, 6)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        REFUSED[name](x, WHOLE)
    with pytest.raises(expected.type) as raised:
        program(REFUSED[name], x, WHOLE).call([x, WHOLE])
    assert str(raised.value) == str(expected.value)


def test_a_compiled_call_raises_it_too(strict):
    x = torch.rand(5, 6)
    refused = torch.compile(lambda x: F.smooth_l1_loss(x, x * 2, beta=-1), backend="smelt")
    with pytest.raises(RuntimeError, match="negative values for beta"):
        refused(x)


def test_operands_that_eager_code_takes_are_not_refused():
    image, large = torch.rand(2, 12, 40, 40), torch.rand(300, 500)
    accepted = [
        (
            ATEN.convolution.default,
            image,
            torch.rand(24, 6, 3, 3),
            None,
            [1, 1],
            [1, 1],
            [1, 1],
            False,
            [0, 0],
            2,
        ),
        (ATEN.slice_scatter.default, large, torch.rand(300, 100), 1, 400, 500),
        (ATEN.select_backward.default, torch.rand(300), [300, 500], 1, 450),
        (ATEN.select.int, large, 1, 450),
        (ATEN.embedding.default, large, torch.tensor([7, 299])),
        (ATEN.index.Tensor, large, [torch.tensor([299])]),
        (ATEN.floor_divide.default, torch.tensor([4]), torch.tensor([2])),
        (ATEN.native_layer_norm.default, large, [500], None, None, 1e-5),
        (ATEN.adaptive_avg_pool1d.default, large, [50]),
        (ATEN.mm.default, large, large.T),
    ]
    for op, *operands in accepted:
        assert not is_refused(op, operands, {}), op
    assert is_refused(ATEN.mm.default, (large, large.T.long()), {})
    assert is_refused(ATEN.select.int, (large, 1, 500), {})


EMPTY = {
    "bilinear": (lambda x: F.interpolate(x, size=(4, 4), mode="bilinear"), (1, 2, 0, 3)),
    "bicubic": (lambda x: F.interpolate(x, size=(4, 4), mode="bicubic"), (1, 2, 3, 0)),
    "nearest": (lambda x: F.interpolate(x, size=(4, 4)), (1, 2, 0, 3)),
    "trilinear": (lambda x: F.interpolate(x, size=(2, 2, 2), mode="trilinear"), (1, 1, 2, 0, 2)),
    "linear": (lambda x: F.interpolate(x, size=4, mode="linear"), (1, 2, 0)),
    "no images": (lambda x: F.interpolate(x, size=(4, 4), mode="bilinear"), (0, 2, 3, 3)),
    "grid": (
        lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2), align_corners=False),
        (1, 2, 0, 3),
    ),
    "index": (lambda x: x[torch.tensor([0, 1])], (0, 3)),
    "index of nothing": (lambda x: x[torch.tensor([], dtype=torch.int64)], (0, 3)),
    "embedding": (lambda x: F.embedding(torch.tensor([0]), x), (0, 3)),
    "take": (lambda x: x.take(torch.tensor([0])), (0,)),
    "gather": (lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.int64)), (0, 3)),
    "index_select": (lambda x: x.index_select(1, torch.tensor([0])), (3, 0)),
    "put": (lambda x: x.index_put((torch.tensor([0]),), torch.ones(3)), (0, 3)),
    "scatter": (lambda x: x.scatter(0, torch.zeros(1, 3, dtype=torch.int64), 1.0), (0, 3)),
    "mean of nothing written": (
        lambda x: x.index_reduce(0, torch.tensor([], dtype=torch.int64), x, "mean"),
        (0,),
    ),
    "reflected": (lambda x: F.pad(x, (1, 1), mode="reflect"), (2, 0)),
    "replicated": (lambda x: F.pad(x, (1, 1), mode="replicate"), (2, 0)),
    "largest": (lambda x: x.amax(1), (3, 0)),
    "place of the largest": (lambda x: x.argmax(0), (0, 3)),
    "pooled": (lambda x: F.max_pool2d(x, 2), (1, 1, 0, 4)),
    "averaged": (lambda x: F.adaptive_avg_pool2d(x, 2), (1, 2, 0, 4)),
    "sum of nothing": (lambda x: x.sum(0) + 1, (0, 3)),
}


@pytest.mark.filterwarnings("ignore:index_reduce")  # in beta
@pytest.mark.parametrize("name", EMPTY)
def test_empty_operands_give_eager_codes_result_or_an_error(name):
    f, shape = EMPTY[name]
    x = torch.ones(shape)
    try:
        expected = f(x)
    except (RuntimeError, IndexError):
        with pytest.raises((RuntimeError, IndexError, TypeError)):
            program(f, x).call([x])
    else:
        torch.testing.assert_close(program(f, x).call([x]), expected)


def test_promised_reads_of_an_empty_axis_are_conditions_on_sizes():
    text = "graph f(x: f32[{n},3], i: i64[m]) {{\n v0 = gather(x, i) {{first=0}}\n return v0\n}}"
    for n, sizes in (("0", 1), ("n - 1", 1), ("n", 0), ("4", 0)):
        graph = parse(text.format(n=n))
        (read,) = graph.outputs
        assert len(collect_bounds_checks(graph.outputs, {read}).sizes) == sizes, n
