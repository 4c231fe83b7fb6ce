"""Casts between all element types, at special values and around the ends of every integer type."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.compile_scalar import LEVELS, compile_cast
from tests.codegen.scalar_values import Array, special
from tests.codegen.test_math_rows import LANES, bits
from tests.ops.numpy_machine import NumpyMachine

from smelt.ops.elementwise import Cast
from smelt.ops.scalar import cast, cast_reference
from smelt.types.dtype import COMPUTABLE, DType, bool_, f16


def values(source: DType) -> Array:
    """Special values, and for floats those around the limits of the integer types."""
    result = special(source)
    if not source.is_float:
        return result
    with np.errstate(over="ignore"):
        ends = np.array([s * 2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)])
        ends = np.concatenate([ends, ends - 1, ends + 1, ends * 0.999, ends * 1.001])
        return np.concatenate([result, ends.astype(source.numpy)])


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("source", COMPUTABLE, ids=str)
def test_cast(source: DType, isa: str) -> None:
    x = values(source)
    for target in COMPUTABLE:
        want = cast_reference(x, target)
        got = compile_cast(source, target, LANES[isa], isa)(x)
        np.testing.assert_array_equal(bits(got, target), bits(want, target), str(target))
        reference = np.asarray(cast(NumpyMachine(), x.astype(source.compute.numpy), source, target))
        with np.errstate(over="ignore"):
            reference = reference.astype(target.numpy)
        np.testing.assert_array_equal(bits(reference, target), bits(want, target), str(target))


@pytest.mark.parametrize("source", COMPUTABLE, ids=str)
def test_the_reference_is_numpy_where_results_fit(source: DType) -> None:
    x = values(source)
    for target in COMPUTABLE:
        with np.errstate(all="ignore"):
            want = x.astype(target.numpy)
        fits = np.ones(x.shape, bool)
        if source.is_float and target.is_integer:
            info = np.iinfo(target.numpy)
            wide = np.trunc(x.astype(np.float64))
            fits = (wide >= info.min) & (wide <= info.max) & (wide < 2.0**63)
        got = cast_reference(x, target)
        np.testing.assert_array_equal(bits(got[fits], target), bits(want[fits], target))


@pytest.mark.parametrize("source", COMPUTABLE, ids=str)
def test_the_graph_interpreter_casts_as_kernels_do(source: DType) -> None:
    """NumPy's own vector loops convert numbers that do not fit otherwise than its plain ones."""
    x = np.tile(values(source), 8)
    for target in COMPUTABLE:
        got = Cast(target).reference({}, x)
        np.testing.assert_array_equal(bits(got, target), bits(cast_reference(x, target), target))


def test_casting_a_half_register_to_its_own_type_rounds() -> None:
    machine = NumpyMachine()
    third = np.float32(1 / 3)
    assert cast(machine, third, f16, f16) == np.float32(np.float16(1 / 3))
    assert cast(machine, third, f16, bool_)
