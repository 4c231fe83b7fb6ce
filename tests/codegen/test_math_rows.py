"""Every row, every type: native code, the NumPy machine and the reference column agree."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.compile_scalar import LEVELS, compile_row
from tests.codegen.scalar_values import grid, operands, ulps

from smelt.ops.scalar import SCALARS
from smelt.ops.spec_scalar import ScalarOp
from smelt.types.dtype import DType

LIMIT = {"f32": 4, "f64": 4, "f16": 1, "bf16": 1}
EXACT = {
    row.name for row in SCALARS.values() if row.name not in ("exp", "log", "tanh", "erf", "rsqrt")
}


def _registers(arrays: list[np.ndarray], dtypes: tuple[DType, ...]) -> list[np.ndarray]:
    return [a.astype(d.compute.numpy) for a, d in zip(arrays, dtypes, strict=True)]


def _same(op: ScalarOp, got: np.ndarray, want: np.ndarray, dtype: DType, limit: int) -> None:
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want)
        return
    far = ulps(got, want)
    worst = int(np.argmax(far))
    assert far[worst] <= limit, f"{op} at element {worst}: {got[worst]} for {want[worst]}"


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", SCALARS)
def test_special_values(name: str, isa: str) -> None:
    op = SCALARS[name]
    for dtypes in operands(op):
        arrays = grid(dtypes)
        want = op.numpy(*arrays)
        lanes = 16 if isa == "avx512" else 8
        got = compile_row(op, dtypes, lanes, isa)(*arrays)
        result = op.result(*dtypes)
        assert got.dtype == want.dtype == result.numpy, dtypes
        _same(op, got, want, result, 0 if name in EXACT else LIMIT.get(result.name, 0))
