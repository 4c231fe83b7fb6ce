"""Functions of NumPy's namespace give NumPy's values for complex arguments."""

from __future__ import annotations

import copy
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest
from tests.frontends.numpy.samples import SAMPLES

import smelt as sm
import smelt.numpy as snp
from smelt.errors import DTypeError, UnsupportedError


def complex_of(x: Any) -> Any:
    """Give floats an imaginary part."""
    if isinstance(x, numpy.ndarray) and x.dtype.kind == "f":
        return x + 1j * numpy.cos(numpy.arange(x.size).reshape(x.shape) * 1.7)
    return type(x)(map(complex_of, x)) if type(x) in (list, tuple) else x


def ours(x: Any) -> Any:
    """Return an argument with arrays of ours."""
    if isinstance(x, numpy.ndarray):
        return snp.asarray(x)
    return type(x)(map(ours, x)) if type(x) in (list, tuple) else x


def leaves(x: Any) -> list[Any]:
    if isinstance(x, (list, tuple)):
        return [leaf for item in x for leaf in leaves(item)]
    return [numpy.asarray(x)]


def calls(name: str) -> list[Any]:
    """Return the samples of a function that have complex arguments then."""
    results: list[Any] = []
    for sample in SAMPLES[name]:
        try:
            args, options = sample(numpy)
        except (AttributeError, TypeError):  # a sample for one namespace
            continue
        args = complex_of(args)
        if any(x.dtype.kind == "c" for x in leaves(args)):
            results.append((args, options))
    return results


@pytest.mark.parametrize("name", [name for name in SAMPLES if calls(name)])
@pytest.mark.filterwarnings("ignore")
def test_complex_samples_agree_with_numpy(name: str) -> None:
    for args, options in calls(name):
        try:
            with numpy.errstate(all="ignore"):
                wanted = leaves(getattr(numpy, name)(*copy.deepcopy(args), **options))
        except Exception:  # noqa: BLE001 - whatever NumPy refuses we refuse
            with pytest.raises(Exception):  # noqa: B017, PT011
                getattr(snp, name)(*ours(args), **options)
            continue
        actual = leaves(getattr(snp, name)(*ours(args), **options))
        for a, b in zip(actual, wanted, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if b.dtype.kind in "fc":
                numpy.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
            else:
                numpy.testing.assert_array_equal(a, b)


def test_transforms_are_recorded_and_give_arrays() -> None:
    f = sm.jit(lambda x: snp.fft.irfft(snp.fft.rfft(x) * 2, x.shape[-1]))
    x = numpy.random.default_rng(0).normal(size=(3, 8))
    numpy.testing.assert_allclose(f(x), x * 2, atol=1e-12)
    assert isinstance(snp.fft.fft2(x), sm.Array)
    out = numpy.zeros((3, 8), complex)
    assert snp.fft.fft(x, norm="ortho", out=out) is out
    numpy.testing.assert_allclose(out, numpy.fft.fft(x, norm="ortho"))


WRITES: dict[str, Any] = {
    "imag[1] = number": lambda z: z.imag.__setitem__(1, 7),
    "real[:] = number": lambda z: z.real.__setitem__(slice(None), 0),
    "real = list": lambda z: setattr(z, "real", [7, 8, 9]),
    "imag = number": lambda z: setattr(z, "imag", 2.5),
    "imag += 1": lambda z: setattr(z, "imag", z.imag.__iadd__(1)),
    "flat[1] = complex": lambda z: z.flat.__setitem__(1, 4j),
    "flat[0] = real": lambda z: z.flat.__setitem__(0, 4),
}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", WRITES)
def test_parts_and_flat_elements_are_written(name: str, dtype: str) -> None:
    expected = numpy.array([1 + 2j, 3 - 1j, 5], dtype)
    z = snp.array(expected)
    WRITES[name](expected)
    WRITES[name](z)
    assert numpy.array_equal(numpy.asarray(z), expected) and z.dtype == dtype != z.real.dtype

    def recorded(x: Any) -> Any:
        x = x * 1
        WRITES[name](x)
        return x

    if "flat" not in name:
        result = sm.jit(recorded)(numpy.array([1 + 2j, 3 - 1j, 5], dtype))
        assert numpy.array_equal(result, expected)


def test_parts_of_real_arrays() -> None:
    x = snp.ones(3)
    x.real = [1, 2, 3]
    assert x.tolist() == [1, 2, 3]
    with pytest.raises(DTypeError, match="no imaginary parts"):
        x.imag = 1


def test_a_complex_condition_is_compared_with_zero() -> None:
    z = snp.asarray([1j, 0])
    assert snp.where(z, 1, 2).tolist() == [1, 2]
    with pytest.raises(DTypeError, match=r"condition is c128\[2\], not bool"):
        sm.where(z, 1, 2)


def test_complex_positions_are_refused() -> None:
    z = snp.asarray(numpy.ones((3, 3)) + 1j)
    for take in (lambda: snp.take(z, z), lambda: sm.jit(lambda x: sm.take(x, x, axis=0))(z)):
        with pytest.raises((UnsupportedError, TypeError)):
            take()
