"""Complex arrays: special values, writing, recordings for every size, gradients, transforms."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt as sm
from smelt.errors import (
    ArgumentError,
    DTypeError,
    GradientError,
    ShapeError,
    TracerError,
    UnsupportedError,
)

RNG = np.random.default_rng(7)
Z = RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))
PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, -3.25, 25.0, -30.0, 800.0, 1e-8, np.inf, -np.inf, np.nan]
GRID = np.asarray([complex(a, b) for a in PARTS for b in PARTS])
FUNCTIONS = """
exp expm1 log log1p log2 log10 sqrt sin cos tan sinh cosh tanh asin acos atan asinh
acosh atanh abs sign square negative conj isnan isinf isfinite real imag
"""
_NUMPY = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}


def close_parts(a: Any, b: Any, eps: float) -> Any:
    """Whether parts agree within roundings; infinities of either sign are one where C99 says so."""
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= 64 * eps * np.maximum(np.abs(b), 1e-30)
    return (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isinf(a) & np.isinf(b)) | near


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", FUNCTIONS.split())
def test_functions_have_numpys_special_values(name: str, dtype: Any) -> None:
    z = GRID.astype(dtype)
    with np.errstate(all="ignore"):
        wanted: Any = getattr(np, _NUMPY.get(name, name))(z)
    actual: Any = np.asarray(getattr(sm, name)(sm.asarray(z)))
    assert actual.dtype == wanted.dtype
    if name in ("expm1", "sign"):  # NumPy subtracts infinities, or divides by them
        keep = np.isfinite(z) & np.isfinite(wanted)
        z, actual, wanted = z[keep], actual[keep], wanted[keep]
    if name == "square":
        z, actual, wanted = (x[np.isfinite(z)] for x in (z, actual, wanted))
    eps = float(np.finfo(dtype).eps)
    if name in ("log1p", "expm1"):  # NumPy cancels near zero
        keep = ~(np.abs(z) < 1e-4)
        z, actual, wanted = z[keep], actual[keep], wanted[keep]
    if wanted.dtype.kind != "c":
        assert close_parts(actual * 1.0, wanted * 1.0, eps).all()
        return
    with np.errstate(all="ignore"):
        whole = np.abs(actual - wanted) <= 64 * eps * np.abs(wanted)
    parts = [close_parts(*p, eps) for p in ((actual.real, wanted.real), (actual.imag, wanted.imag))]
    wrong = ~(whole | (parts[0] & parts[1]))
    assert not wrong.any(), list(zip(z[wrong], actual[wrong], wanted[wrong], strict=True))[:5]


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
        lambda x, y: x**3,
        lambda x, y: x**-2,
        lambda x, y: x**y,
        lambda x, y: x**0.5,
        lambda x, y: 2**y,
        lambda x, y: 1 / y,
        lambda x, y: (1 + 2j) / y,
        lambda x, y: x.real / y,
        lambda x, y: x / y.real,
        lambda x, y: 1j - y,
        lambda x, y: x == y,
        lambda x, y: x != y,
        lambda x, y: -x + abs(y),
        lambda x, y: x @ y.T,
        lambda x, y: x.real @ y.T,
        lambda x, y: x.sum(0) + y.mean(),
        lambda x, y: x.std(axis=1),
        lambda x, y: x.prod(0),
        lambda x, y: x[1:, ::2] * y[0, 1],
        lambda x, y: x.T.conj() @ y,
        lambda x, y: x.cumsum(1),
    ],
)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128], ids=lambda d: d.__name__)
def test_operators_and_methods_agree_with_numpy_lazily_and_recorded(f: Any, dtype: Any) -> None:
    x, y = Z.astype(dtype), (Z[::-1] * 1.5 - 0.3j).astype(dtype)
    wanted = np.asarray(f(x, y))
    recorded = sm.jit(f)
    for actual in (f(sm.asarray(x), sm.asarray(y)), recorded(x, y), recorded(sm.asarray(x), y)):
        assert np.asarray(actual).dtype == wanted.dtype
        tolerance = 200 * np.finfo(dtype).eps
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance)


STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda xp, z, w: z + w.conj(),
    "multiply": lambda xp, z, w: (z * w * 0.5).T.T,
    "divide": lambda xp, z, w: z / (w * w.conj() + 1),
    "exp": lambda xp, z, w: xp.exp(z.imag * 1j) * w,
    "sqrt": lambda xp, z, w: xp.sqrt(z) - w.real,
    "tanh": lambda xp, z, w: xp.tanh(z * 0.2) + abs(w),
    "log": lambda xp, z, w: xp.log(z * 0.1 + 5),
    "rows": lambda xp, z, w: z - w.mean(0),
    "where": lambda xp, z, w: xp.where(w.real > 0, z, w),
    "matmul": lambda xp, z, w: (z @ w.T.conj() @ z) * 0.02,
}


@settings(max_examples=6, deadline=None)
@given(names=st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=5))
def test_random_programs_agree_with_numpy(names: list[str]) -> None:
    def program(xp: Any, z: Any, w: Any) -> Any:
        for name in names:
            z, w = STEPS[name](xp, z, w), z
        return z

    wanted = program(np, Z, Z[::-1])
    actual = sm.jit(lambda z, w: program(sm, z, w))(Z, Z[::-1].copy())
    np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-10 * np.abs(wanted).max())


def test_one_recording_serves_every_size() -> None:
    f = sm.jit(lambda z, w: sm.fft.ifft(sm.fft.fft(z) * sm.fft.fft(w)) + sm.exp(z) * 2j)
    for n in (2, 5, 8):
        z, w = RNG.normal(size=(2, n)) + 1j, RNG.normal(size=(2, n)) * 1j
        wanted = np.fft.ifft(np.fft.fft(z) * np.fft.fft(w)) + np.exp(z) * 2j
        np.testing.assert_allclose(f(z, w), wanted, atol=1e-12)
    assert sum(map(len, f.traces.values())) == 1


def test_numbers_and_nests_are_arguments_and_results() -> None:
    f = sm.jit(lambda d, c: {"sum": d["z"] + c, "rest": [d["z"].real, d["z"]]})
    for c in (1j, -0.5 + 2j, 3.0):
        out = f({"z": sm.asarray(Z)}, c)
        np.testing.assert_array_equal(out["sum"], Z + c)
        np.testing.assert_array_equal(out["rest"][0], Z.real)
        np.testing.assert_array_equal(out["rest"][1], Z)
    np.testing.assert_array_equal(sm.jit(lambda z: z * 2)(np.complex64(1j)), 2j)
    assert sm.jit(lambda z: z)(sm.asarray(Z)).dtype is sm.complex128
    assert sm.jit(lambda c: c)(-0.0 + 1j) == 1j


def test_results_are_written_to_numpys_memory() -> None:
    out = np.zeros((3, 4), complex)
    double: Any = sm.jit(lambda z: z * 2)
    assert double(Z, out=out) is out
    np.testing.assert_array_equal(out, Z * 2)
    with pytest.raises(sm.errors.StructureError, match="a complex array"):
        double(Z, out=np.zeros((3, 4)))


def test_writing_gives_a_new_version() -> None:
    z = sm.asarray(Z)
    before = z + 0
    z[0] = 1j
    z[1:, 0] = 5.0
    z[abs(z) > 4] *= 2
    z += 1
    z -= sm.asarray(Z) * 0
    wanted = Z.copy()
    wanted[0] = 1j
    wanted[1:, 0] = 5.0
    wanted[abs(wanted) > 4] *= 2
    np.testing.assert_array_equal(z, wanted + 1)
    np.testing.assert_array_equal(before, Z)

    def written(z: Any) -> Any:
        y = z * 1
        y[0, 1] = 2 - 1j
        return y

    np.testing.assert_array_equal(sm.jit(written)(Z)[0, 1], 2 - 1j)
    z.fill(3j)
    assert set(z.ravel().tolist()) == {3j}
    real = sm.ones(3)
    with pytest.raises(DTypeError, match="does not fit"):
        real += 1j
    with pytest.raises(ShapeError, match="in place"):
        z += sm.ones((2, 3, 4))


def test_numpys_memory_is_read_in_place() -> None:
    memory = np.zeros(2000, complex)
    z = sm.asarray(memory)
    memory[0] = 2 + 1j
    assert z[0].item() == 2 + 1j
    assert sm.asarray(memory, copy=True)[0].item() == 2 + 1j
    big = memory.astype(memory.dtype.newbyteorder(">"))
    np.testing.assert_array_equal(sm.asarray(big), memory)


def test_arrays_leave_as_numpy_dlpack_pickle_text_and_numbers() -> None:
    z = sm.asarray(Z[:2, :2].round(1))
    assert repr(sm.asarray([1j, 2])) == "Array([0.+1.j, 2.+0.j])"
    assert "dtype=complex64" in repr(z.astype("complex64"))
    np.testing.assert_array_equal(np.from_dlpack(z), z)
    np.testing.assert_array_equal(sm.from_dlpack(np.from_dlpack(z)), z)
    for other in (pickle.loads(pickle.dumps(z)), copy.copy(z), copy.deepcopy(z)):
        np.testing.assert_array_equal(other, z)
    assert complex(z[0, 0]) == z[0, 0].item() == Z[0, 0].round(1)
    assert bool(z[0, 0]) and (z.nbytes, z.itemsize, z.strides) == (64, 16, (32, 16))
    assert z.tolist() == Z[:2, :2].round(1).tolist()
    for wrong, error in (
        (lambda: float(z[0, 0]), DTypeError),
        (lambda: int(z[0, 0]), DTypeError),
        (lambda: z.astype("float64"), DTypeError),
        (lambda: sm.full(2, 1j, dtype="float32"), DTypeError),
        (lambda: np.asarray(z, "complex64", copy=False), ValueError),
        (lambda: z.__dlpack__(stream=1), UnsupportedError),
        (lambda: hash(z), TypeError),
        (lambda: sm.jit(np.asarray)(z), TracerError),
        (lambda: sm.jit(lambda z: complex(z[0, 0]))(z), TracerError),
    ):
        with pytest.raises(error):
            wrong()


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_exports_without_a_copy_share_memory(dtype: str) -> None:
    whole = sm.asarray(Z.astype(dtype)) * 2
    for z in (
        whole,
        whole[1:],
        whole.T,
        whole[0, 0],
        sm.zeros((0, 2), dtype=dtype),
        sm.asarray(Z.copy()),
    ):
        expected = np.array(z)
        later = z + 1  # recorded before others may write
        first = np.from_dlpack(z, copy=False)
        second = np.asarray(z, copy=False)
        np.testing.assert_array_equal(first, expected)
        assert first.size == 0 or np.shares_memory(first, second)
        if second.flags.writeable:
            second[...] = 7
            np.testing.assert_array_equal(z, second)
        np.testing.assert_array_equal(later, expected + 1)


def test_real_numbers_become_complex_by_the_table() -> None:
    single, double, whole = sm.ones(2, dtype="float32"), sm.ones(2), sm.ones(2, dtype="int32")
    assert (single + 1j).dtype is sm.complex64
    assert (double * 1j).dtype is (whole * 1j).dtype is sm.complex128
    assert (single.astype("complex64") + double).dtype is sm.complex128
    assert (single.astype("complex64") * 2.5).dtype is sm.complex64
    assert sm.where(sm.asarray([True, False]), single, 1j).dtype is sm.complex64
    assert sm.concat([single, sm.asarray([1j])]).dtype is sm.complex128
    narrow = single.astype("complex64")
    assert (np.float32(2) * narrow).dtype is (narrow / np.float32(2)).dtype is sm.complex64
    assert sm.asarray(1.5, dtype=complex).dtype is sm.asarray([1j, True]).dtype is sm.complex128


def test_library_calls_are_operators_of_the_plan() -> None:
    report = sm.explain(lambda z: abs(sm.fft.fft(z * 2)) + 1, sm.asarray(Z))
    assert "extern.fft" in str(report.to_json() if hasattr(report, "to_json") else report)
    with sm.config(strict=True), pytest.raises(UnsupportedError, match="SMELT_STRICT"):
        np.asarray(sm.asin(sm.asarray(Z)))


# Gradients


def slope_of(f: Callable[[Any], Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Differences in every direction: ∂/∂x + i ∂/∂y."""
    slope = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        for direction in (1, 1j) if x.dtype.kind == "c" else (1,):
            step = np.zeros_like(x)
            step[at] = 1e-6 * direction
            rise = float(f(sm.asarray(x + step))) - float(f(sm.asarray(x - step)))
            slope[at] += direction * rise / 2e-6
    return slope


def weighted(y: Any) -> Any:
    weights = sm.reshape(sm.arange(1.0, y.size + 1) ** 0.5, y.shape)
    return sm.sum(sm.real(y) ** 2 * weights + sm.imag(y) * weights**2)


@pytest.mark.parametrize(
    "name",
    ["exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sign", "reciprocal"],
)
def test_gradients_of_functions(name: str) -> None:
    def loss(z: Any) -> Any:
        return weighted(getattr(sm, name)(z))

    np.testing.assert_allclose(
        sm.grad(loss)(sm.asarray(Z)), slope_of(loss, Z), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 4, 7])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_gradients_of_transforms(name: str, n: int | None, norm: str) -> None:
    for size, axis in ((5, -1), (6, 0)):
        x = RNG.normal(size=(2, size) if axis else (size, 2))
        x = x if name in ("rfft", "ihfft") else x + 1j * RNG.normal(size=x.shape)

        def loss(a: Any, axis: int = axis) -> Any:
            return weighted(getattr(sm.fft, name)(a, n=n, axis=axis, norm=norm))

        value, slope = sm.value_and_grad(loss)(sm.asarray(x))
        np.testing.assert_allclose(float(value), float(loss(sm.asarray(x))), rtol=1e-12)
        np.testing.assert_allclose(slope, slope_of(loss, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [None, (4, 3), (2, 6)])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_gradients_along_several_axes(
    name: str, axes: tuple[int, ...], sizes: tuple[int, ...] | None
) -> None:
    x = RNG.normal(size=(3, 5))
    x = x if name == "rfftn" else x + 1j * RNG.normal(size=x.shape)

    def loss(a: Any) -> Any:
        return weighted(getattr(sm.fft, name)(a, s=sizes, axes=axes))

    value, slope = sm.value_and_grad(loss)(sm.asarray(x))
    np.testing.assert_allclose(float(value), float(loss(sm.asarray(x))), rtol=1e-12)
    np.testing.assert_allclose(slope, slope_of(loss, x), rtol=1e-5, atol=1e-5)


def test_a_distance_of_zero_has_the_gradient_zero() -> None:
    slope = sm.grad(lambda z: sm.sum(abs(z)))(np.array([0, 3 + 4j, 1e-320]))
    np.testing.assert_allclose(slope, [0, 0.6 + 0.8j, 1])
    slopes = sm.grad(lambda x, y: sm.sum(sm.hypot(x, y)), argnums=(0, 1))(np.zeros(1), np.zeros(1))
    assert [np.asarray(x).tolist() for x in slopes] == [[0], [0]]
    assert not np.asarray(sm.grad(lambda x: sm.sum(abs(sm.fft.rfft(x))))(np.zeros(4))).any()


def test_what_has_no_gradient_says_so() -> None:
    with pytest.raises(GradientError, match="is complex"):
        sm.grad(lambda z: sm.sum(z * z))(sm.asarray(Z))
    with pytest.raises(GradientError, match="no derivative"):
        sm.grad(lambda z: sm.sum(abs(sm.asin(z))))(sm.asarray(Z))
    slope = sm.jit(sm.grad(lambda a: sm.sum(abs(sm.fft.rfft(a)) ** 2)))
    for n in (4, 5):
        x = RNG.normal(size=n)
        np.testing.assert_allclose(
            slope(x), slope_of(lambda a: sm.sum(abs(sm.fft.rfft(a)) ** 2), x)
        )


# Transforms


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes_are_transformed_in_their_order(name: str) -> None:
    x = RNG.normal(size=(2, 3, 4))
    for options in ({}, {"axes": (1, 0)}, {"axes": (2, 0, 1)}, {"axes": (1, 0), "s": (5, 4)}):
        actual = getattr(sm.fft, name)(x, **options)
        np.testing.assert_allclose(actual, getattr(np.fft, name)(x, **options), atol=1e-12)


def test_transforms_refuse_what_they_cannot_transform() -> None:
    for wrong, error in (
        (lambda: sm.fft.fft([1.0], norm="none"), ArgumentError),
        (lambda: sm.fft.fft([1.0], n=0), ArgumentError),
        (lambda: sm.fft.fft(sm.zeros(0)), ArgumentError),
        (lambda: sm.fft.rfft([1j]), DTypeError),
        (lambda: sm.fft.fftn(sm.ones((2, 2)), axes=(0, 0)), ArgumentError),
        (lambda: sm.fft.fftn(sm.ones((2, 2)), s=(2,), axes=(0, 1)), ArgumentError),
        (lambda: sm.fft.fft(sm.ones(2), axis=1), sm.errors.AxisError),
        (lambda: sm.fft.fftfreq(0), ArgumentError),
        (lambda: sm.fft.fftfreq(3, dtype="int64"), DTypeError),
    ):
        with pytest.raises(error):
            wrong()
