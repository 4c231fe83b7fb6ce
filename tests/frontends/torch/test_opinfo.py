"""torch's own samples of every operator, traced with symbolic sizes: no wrong number, no crash."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.func import functionalize  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from smelt.errors import UnsupportedError  # noqa: E402
from smelt.frontends.torch.lower import Lowering  # noqa: E402
from smelt.frontends.torch.program import Program  # noqa: E402
from smelt.frontends.torch.table import decompositions  # noqa: E402

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]

RANDOM = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential",
    "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided", "normal",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform",
    "nn.functional.fractional_max_pool3d", "nn.functional.fractional_max_pool2d",
    "nn.functional.rrelu", "nn.functional.scaled_dot_product_attention",
    "nn.functional.multi_head_attention_forward", "nn.functional.dropout",
}  # fmt: skip
"""Random, or memory that nobody has written: the samples seed inside of the traced function."""
TIES = {"topk"}
"""Whose positions among equal values PyTorch does not promise: their values are compared."""
SAMPLES = 4
DTYPES = (torch.float32, torch.int64, torch.bool)


def run(op, sample):
    """Whether the sample was traced and compared."""
    leaves, nest = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]

    def f(*inputs):
        rest = iter(inputs)
        filled = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
        x, args, options = torch.utils._pytree.tree_unflatten(filled, nest)
        result = torch.utils._pytree.tree_leaves(op.op(x, *args, **options))
        return [y for y in result if isinstance(y, torch.Tensor)]

    copies = [[t.clone() for t in tensors] for _ in range(3)]
    try:
        expected = f(*copies[0])
        traced = make_fx(
            functionalize(f), decomposition_table=decompositions(), tracing_mode="symbolic"
        )(*copies[1])
    except Exception:  # noqa: BLE001 - torch cannot trace this sample
        return False
    try:
        program = Program(traced, Lowering(traced.graph))
    except UnsupportedError:  # functionalize leaves some writes in place, AOTAutograd none
        return False
    result = torch.utils._pytree.tree_leaves(program.call(copies[2]))
    got = [y for y in result if isinstance(y, torch.Tensor)]
    if op.name in TIES:
        got, expected = got[:1], expected[:1]
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    return True


@pytest.mark.timeout(3600)
def test_every_sample_of_every_operator():
    pytest.importorskip("expecttest")
    methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    wrong, compared = [], 0
    for op in methods.op_db:
        if op.name in RANDOM or "circular" in op.variant_test_name:
            continue
        for dtype in DTYPES:
            if dtype not in op.dtypes:
                continue
            for sample in list(op.sample_inputs("cpu", dtype))[:SAMPLES]:
                try:
                    compared += run(op, sample)
                except Exception as error:  # noqa: BLE001 - all are listed
                    wrong.append(f"{op.name} {dtype}: {type(error).__name__} {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)
    assert compared > 3000
