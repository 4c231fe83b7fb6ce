"""torch's own samples of every operator with an axis cut to no element: eager code's result."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.test_opinfo import RANDOM  # noqa: E402
from torch.func import functionalize  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from smelt.errors import OutsideError, UnsupportedError  # noqa: E402
from smelt.frontends.torch.lower import Lowering  # noqa: E402
from smelt.frontends.torch.program import Program  # noqa: E402
from smelt.frontends.torch.table import decompositions  # noqa: E402

CUTS = (
    lambda k, x: x[:0],
    lambda k, x: x[..., :0],
    lambda k, x: x[:0] if k == 0 else x,
    lambda k, x: x[..., :0] if k == 0 else x,
    lambda k, x: x[:0] if k == 1 else x,
)
"""What is left of operand k of at least one dimension."""
EAGER = {
    "lu_unpack": "PyTorch itself ends the process",
    "_segment_reduce": "PyTorch itself ends the process",
    "resize_": "what is added is memory that nobody has written",
    "resize_as_": "what is added is memory that nobody has written",
    "index_add": "PyTorch checks no positions where nothing can be written; a test pins ours",
    "nn.functional.multilabel_margin_loss": "PyTorch returns what was in memory",
    "_native_batch_norm_legit": "private: it does not check the lengths of its statistics",
}
"""Operators whose eager code is not a reference, and why."""


def outcome(op, sample, cut):
    """The results of eager code and ours; None where PyTorch or the front end refuses."""
    tree = torch.utils._pytree
    leaves, nest = tree.tree_flatten((sample.input, sample.args, sample.kwargs))
    whole = [x.detach() for x in leaves if isinstance(x, torch.Tensor)]
    if any(x.layout is not torch.strided for x in whole):
        return None
    operands = [(cut(k, x) if x.dim() else x).clone() for k, x in enumerate(whole)]

    def call(*tensors):
        rest = iter(tensors)
        filled = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
        x, arguments, options = tree.tree_unflatten(filled, nest)
        results = tree.tree_leaves(op.op(x, *arguments, **options))
        return [y for y in results if isinstance(y, torch.Tensor)]

    def copies():
        return [x.clone() for x in operands]

    try:
        expected = call(*copies())
        trace = make_fx(
            functionalize(call), decomposition_table=decompositions(), tracing_mode="fake"
        )(*copies())
        program = Program(trace, Lowering(trace.graph))
    except (Exception, UnsupportedError):  # noqa: BLE001 - refused, or nothing torch can trace
        return None
    results = tree.tree_leaves(program.call(copies()))
    return [y for y in results if isinstance(y, torch.Tensor)], expected


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_samples_with_an_empty_axis(part):
    pytest.importorskip("expecttest")
    methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    wrong, compared = [], 0
    for op in methods.op_db[part::8]:
        if op.name in RANDOM | set(EAGER) or torch.float32 not in op.dtypes:
            continue
        samples = list(op.sample_inputs("cpu", torch.float32))
        for sample in (samples[0], samples[len(samples) // 2]) if samples else ():
            for number, cut in enumerate(CUTS):
                try:
                    both = outcome(op, sample, cut)
                    compared += both is not None
                    if both is not None:
                        torch.testing.assert_close(*both, rtol=2e-5, atol=2e-5, equal_nan=True)
                except Exception as error:  # noqa: BLE001 - all are listed
                    wrong.append(f"{op.name}, cut {number}: {type(error).__name__} {error}"[:200])
    assert not wrong, "\n".join(wrong)
    assert compared > 200


@pytest.mark.filterwarnings("ignore")
def test_positions_in_an_empty_axis_are_outside_of_it():
    """A limit: eager code adds nothing, and does not look."""
    x, index, source = torch.zeros(5, 0), torch.tensor([2, 0]), torch.ones(5, 2)

    def add(x, index, source):
        return torch.index_add(x, 1, index, source)

    assert add(x, index, source).shape == (5, 0)
    trace = make_fx(functionalize(add), decomposition_table=decompositions(), tracing_mode="fake")(
        x, index, source
    )
    with pytest.raises(OutsideError):
        Program(trace, Lowering(trace.graph)).call([x, index, source])
