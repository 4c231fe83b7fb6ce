"""Sample arguments for the functions of NumPy's namespace, by name.

A sample is a function of the namespace `np` that returns positional arguments and options; it is
called once with NumPy and once with `smelt.numpy`, and the results are compared.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace

__all__ = ["SAMPLES", "matrix", "vector"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Sample = Callable[[Any], Arguments]


def vector(np: Any, seed: int = 0, n: int = 12) -> Any:
    """Return floats of both signs."""
    return np.asarray(numpy.random.default_rng(seed).normal(size=n))


def matrix(np: Any, seed: int = 0, n: int = 4, m: int = 5) -> Any:
    """Return a matrix of floats of both signs."""
    return np.asarray(numpy.random.default_rng(seed).normal(size=(n, m)))


def _ints(np: Any, seed: int = 0) -> Any:
    return np.asarray(numpy.random.default_rng(seed).integers(0, 9, 12))


def _positive(np: Any, seed: int = 0) -> Any:
    return np.asarray(numpy.random.default_rng(seed).uniform(0.1, 0.9, 12))


def _holes(np: Any) -> Any:
    x = numpy.random.default_rng(0).normal(size=(4, 5))
    x[1, 2] = x[3, 0] = numpy.nan
    return np.asarray(x)


def _of(*makers: Callable[..., Any], **options: Any) -> Sample:
    """Return a sample of arrays, made with the seeds 0, 1, 2, ..."""
    return lambda np: (tuple(make(np, seed) for seed, make in enumerate(makers)), options)


def _call(make: Callable[[Any], Any], **options: Any) -> Sample:
    """Return a sample whose positional arguments `make` returns."""
    return lambda np: (make(np), options)


def _each(names: str, *samples: Sample) -> dict[str, list[Sample]]:
    return {name: list(samples) for name in names.split()}


def _plain(names: str, *args: Any, **options: Any) -> dict[str, list[Sample]]:
    return _each(names, lambda np: (args, options))


SAMPLES: dict[str, list[Sample]] = {
    **_each(
        "abs absolute atan arctan asinh arcsinh cbrt ceil conj conjugate cos cosh deg2rad degrees"
        " exp exp2 expm1 fabs floor isfinite isinf isnan negative positive rad2deg radians"
        " reciprocal rint sign signbit sin sinh square tan tanh trunc spacing fix sinc"
        " isposinf isneginf isreal iscomplex real_if_close angle real imag modf frexp i0"
        " iscomplexobj isrealobj",
        _of(vector),
        _of(matrix),
        lambda np: ((0.25,), {}),
    ),
    **_each(
        "acos arccos asin arcsin atanh arctanh log log10 log1p log2 sqrt",
        _of(_positive),
        lambda np: (([0.5, 0.25],), {}),
    ),
    **_each("acosh arccosh", lambda np: (([1.5, 2.0, 30.0],), {})),
    **_each(
        "add atan2 arctan2 copysign divide equal float_power fmax fmin greater greater_equal hypot"
        " less less_equal logaddexp logaddexp2 maximum minimum multiply not_equal subtract"
        " true_divide heaviside",
        _of(_positive, _positive),
        lambda np: ((_positive(np), 0.5), {}),
        lambda np: ((2, [1.0, 3.0]), {}),
    ),
    **_each("nextafter", _of(vector, vector)),
    **_each(
        "fmod mod remainder floor_divide divmod",
        _of(vector, vector),
        lambda np: ((_ints(np), 4), {}),
    ),
    **_each("pow power", _of(_positive, vector), lambda np: ((_ints(np), 2), {})),
    **_each(
        "bitwise_and bitwise_or bitwise_xor gcd lcm logical_and logical_or logical_xor",
        _of(_ints, _ints),
        lambda np: ((_ints(np), 3), {}),
    ),
    **_each(
        "left_shift right_shift bitwise_left_shift bitwise_right_shift",
        lambda np: ((_ints(np), 2), {}),
    ),
    **_each("invert bitwise_not bitwise_invert bitwise_count logical_not", _of(_ints)),
    **_each("ldexp", lambda np: ((vector(np), _ints(np)), {})),
    **_each(
        "sum prod mean std var max min amax amin ptp all any nansum nanprod nanmean nanstd nanvar"
        " nanmax nanmin median nanmedian count_nonzero",
        _of(matrix),
        lambda np: ((matrix(np), 0), {}),
        lambda np: ((matrix(np),), {"axis": 1, "keepdims": True}),
    ),
    **_each(
        "nanargmax nanargmin argmax argmin", _call(lambda np: (_holes(np) ** 2, 0)), _of(matrix)
    ),
    **_each("nancumsum nancumprod cumsum cumprod", _of(matrix), lambda np: ((matrix(np), 1), {})),
    **_each(
        "cumulative_sum cumulative_prod", _of(matrix, axis=0), _of(vector, include_initial=True)
    ),
    **_each(
        "quantile nanquantile",
        lambda np: ((matrix(np), 0.3), {"axis": 0}),
        lambda np: ((vector(np), [0.1, 0.5]), {"method": "lower"}),
    ),
    **_each("percentile nanpercentile", lambda np: ((matrix(np), [5, 95]), {"axis": 1})),
    **_each("average", _of(matrix), lambda np: ((vector(np),), {"weights": _positive(np)})),
    **_each("cov corrcoef", _of(matrix)),
    **_each(
        "histogram", _of(vector), lambda np: ((vector(np), 5), {"range": (-1, 1), "density": True})
    ),
    **_each("histogram_bin_edges", lambda np: ((vector(np), "auto"), {})),
    **_each("histogram2d", _of(vector, vector, bins=3)),
    **_each("histogramdd", _of(matrix, bins=2)),
    **_each("bincount", _of(_ints), lambda np: ((_ints(np), vector(np), 20), {})),
    **_each("digitize", lambda np: ((vector(np), [-1.0, 0.0, 1.0]), {})),
    **_each("interp", lambda np: (([0.5, 1.5, 9.0], [0.0, 1.0, 2.0], [3.0, 4.0, 8.0]), {})),
    **_each("trapezoid", _of(matrix, dx=0.5), lambda np: (([1, 2, 4], [0, 1, 3]), {})),
    **_each(
        "gradient", _of(vector), lambda np: ((matrix(np),), {"axis": 1}), _of(vector, edge_order=2)
    ),
    **_each("diff", _of(matrix), lambda np: ((vector(np),), {"n": 2, "prepend": 0.0})),
    **_each("ediff1d", _of(vector), _of(vector, to_begin=9.0)),
    **_each("unwrap", lambda np: ((vector(np) * 9,), {})),
    **_each(
        "convolve correlate",
        lambda np: ((vector(np), [1.0, 2.0, 0.5]), {}),
        _of(vector, vector, mode="same"),
    ),
    **_each("clip", lambda np: ((vector(np), -0.5, 0.5), {}), _of(vector, min=0)),
    **_each("round around", lambda np: ((vector(np), 2), {}), _of(vector)),
    **_each(
        "nan_to_num", _call(lambda np: (_holes(np),)), _call(lambda np: (_holes(np),), nan=7.0)
    ),
    **_each(
        "isclose allclose array_equal array_equiv",
        _of(vector, vector),
        _call(lambda np: (vector(np),) * 2),
    ),
    **_each("isin", lambda np: ((_ints(np), [1, 3, 5]), {"invert": True})),
    **_each("dot inner vdot outer kron vecdot", _of(vector, vector)),
    **_each("matmul", lambda np: ((matrix(np), matrix(np, 1, 5, 3)), {})),
    **_each("matvec", lambda np: ((matrix(np), vector(np, 1, 5)), {})),
    **_each("vecmat", lambda np: ((vector(np, 1, 4), matrix(np)), {})),
    **_each("tensordot", lambda np: ((matrix(np), matrix(np, 1)), {"axes": ((0, 1), (0, 1))})),
    **_each("einsum", lambda np: (("ij,ij->i", matrix(np), matrix(np, 1)), {})),
    **_each("einsum_path", lambda np: (("ij,jk->ik", matrix(np), matrix(np, 1, 5, 2)), {})),
    **_each("cross", lambda np: ((matrix(np, 0, 4, 3), matrix(np, 1, 4, 3)), {})),
    **_each("trace diagonal", _of(matrix), lambda np: ((matrix(np), 1), {})),
    **_each("matrix_transpose", _of(matrix)),
    **_each(
        "array asarray asanyarray ascontiguousarray copy",
        lambda np: (([[1, 2], [3, 4]],), {}),
        _of(matrix),
    ),
    **_each("asfortranarray require asarray_chkfinite", _of(matrix)),
    **_each("arange", lambda np: ((5,), {}), lambda np: ((1, 2, 0.25), {})),
    **_each(
        "linspace", lambda np: ((0, 1, 7), {}), lambda np: ((0, 1), {"num": 4, "retstep": True})
    ),
    **_each("logspace", lambda np: ((0, 3, 4), {})),
    **_each("geomspace", lambda np: ((1, 1000, 4), {})),
    **_each("zeros ones", lambda np: (((2, 3),), {}), lambda np: ((4, "float32"), {})),
    **_each("empty", lambda np: (((0, 3),), {})),
    **_each("full", lambda np: (((2, 3), 7), {}), lambda np: ((3, [1.0, 2.0, 3.0]), {})),
    **_each("zeros_like ones_like", _of(matrix), _of(matrix, dtype=int)),
    **_each("empty_like", lambda np: ((np.zeros((0, 2)),), {})),
    **_each("full_like", lambda np: ((matrix(np), 3), {})),
    **_each("eye tri", lambda np: ((3,), {}), lambda np: ((3, 4, 1), {})),
    **_each("identity bartlett blackman hamming hanning", lambda np: ((5,), {})),
    **_each("kaiser", lambda np: ((5, 14.0), {})),
    **_each("tril triu", _of(matrix), lambda np: ((matrix(np), -1), {})),
    **_each("diag", _of(matrix), lambda np: (([1, 2, 3], 1), {})),
    **_each("diagflat", lambda np: (([[1, 2], [3, 4]],), {})),
    **_each("vander", lambda np: (([1, 2, 3], 4), {})),
    **_each(
        "meshgrid",
        lambda np: (([1, 2, 3], [4, 5]), {}),
        lambda np: (([1, 2], [4, 5]), {"sparse": True}),
    ),
    **_each("indices", lambda np: (((2, 3),), {})),
    **_each("fromfunction", lambda np: ((lambda i, j: i * 10 + j, (2, 3)), {"dtype": int})),
    **_each("tril_indices triu_indices diag_indices", lambda np: ((4,), {})),
    **_each(
        "tril_indices_from triu_indices_from diag_indices_from",
        lambda np: ((matrix(np, 0, 4, 4),), {}),
    ),
    **_each("mask_indices", lambda np: ((3, numpy.triu), {})),
    **_each(
        "reshape",
        lambda np: ((matrix(np), (2, -1)), {}),
        lambda np: ((matrix(np), (2, 10)), {"order": "F"}),
    ),
    **_each("resize", lambda np: ((matrix(np), (3, 9)), {})),
    **_each("ravel", _of(matrix), _of(matrix, order="F")),
    **_each("transpose permute_dims", _of(matrix), lambda np: ((matrix(np), (1, 0)), {})),
    **_each("swapaxes moveaxis", lambda np: ((matrix(np), 0, 1), {})),
    **_each("rollaxis", lambda np: ((matrix(np), 1), {})),
    **_each("expand_dims", lambda np: ((matrix(np), 1), {}), lambda np: ((matrix(np), (0, 3)), {})),
    **_each("squeeze", lambda np: ((matrix(np, 0, 1, 4),), {})),
    **_each(
        "atleast_1d atleast_2d atleast_3d",
        _of(vector),
        lambda np: ((3.0,), {}),
        _of(vector, matrix),
    ),
    **_each(
        "concatenate concat stack hstack vstack row_stack dstack",
        lambda np: (([vector(np), vector(np, 1)],), {}),
    ),
    **_each("column_stack block", lambda np: (([vector(np), vector(np, 1)],), {})),
    **_each(
        "append",
        lambda np: ((vector(np), [1, 2]), {}),
        lambda np: ((matrix(np), matrix(np, 1)), {"axis": 0}),
    ),
    **_each(
        "split array_split hsplit",
        lambda np: ((vector(np), 3), {}),
        lambda np: ((vector(np), [2, 5]), {}),
    ),
    **_each("vsplit", lambda np: ((matrix(np), 2), {})),
    **_each("dsplit", lambda np: ((np.zeros((2, 2, 4)), 2), {})),
    **_each("unstack", _of(matrix)),
    **_each("flip fliplr flipud rot90", _of(matrix)),
    **_each("roll", lambda np: ((vector(np), 3), {}), lambda np: ((matrix(np), -1, 1), {})),
    **_each("tile", lambda np: ((vector(np), 2), {}), lambda np: ((matrix(np), (2, 1)), {})),
    **_each("repeat", lambda np: ((vector(np), 2), {}), lambda np: ((matrix(np), 3, 1), {})),
    **_each(
        "take",
        lambda np: ((vector(np), [0, 3]), {}),
        lambda np: ((matrix(np), [[0, 3]]), {"axis": 1}),
    ),
    **_each("take_along_axis", lambda np: ((matrix(np), np.argsort(matrix(np), 1), 1), {})),
    **_each("choose", lambda np: (([0, 1, 1], [[1, 2, 3], [4, 5, 6]]), {})),
    **_each("compress", lambda np: (([True, False, True], [5, 6, 7]), {})),
    **_each("extract", lambda np: ((vector(np) > 0, vector(np)), {})),
    **_each("delete", lambda np: ((vector(np), [1, 3]), {}), lambda np: ((matrix(np), 0, 1), {})),
    **_each(
        "insert", lambda np: ((vector(np), 3, 9.0), {}), lambda np: ((vector(np), [1, 2], 9.0), {})
    ),
    **_each(
        "sort argsort",
        _of(matrix),
        lambda np: ((matrix(np), 0), {}),
        lambda np: ((matrix(np), None), {}),
    ),
    **_each("lexsort", lambda np: ((([1, 2, 1, 0], [0, 0, 1, 1]),), {})),
    **_each("searchsorted", lambda np: (([1, 2, 3, 4], [2, 9]), {"side": "right"})),
    **_each("argwhere flatnonzero nonzero", lambda np: ((matrix(np) > 0,), {})),
    **_each(
        "where",
        lambda np: ((vector(np) > 0, vector(np), 0), {}),
        lambda np: ((vector(np) > 0,), {}),
    ),
    **_each(
        "select",
        lambda np: (([vector(np) > 1, vector(np) > 0], [vector(np), -vector(np)]), {"default": 5}),
    ),
    **_each("piecewise", lambda np: ((vector(np), [vector(np) < 0], [lambda v: -v, 1.0]), {})),
    **_each(
        "pad",
        lambda np: ((vector(np), 2), {}),
        lambda np: ((matrix(np), 1, "reflect"), {}),
        lambda np: ((vector(np), (2, 3), "linear_ramp"), {}),
    ),
    **_each("broadcast_to", lambda np: ((vector(np), (3, 12)), {})),
    **_each("broadcast_arrays", lambda np: ((vector(np, 0, 5), matrix(np)), {})),
    **_each("trim_zeros", lambda np: (([0, 0, 1, 2, 0],), {})),
    **_each("ix_", lambda np: (([0, 1], [2, 3]), {})),
    **_each("astype", lambda np: ((vector(np), np.float32), {})),
    **_each("unique unique_values unique_all unique_counts unique_inverse", _of(_ints)),
    **_each("union1d intersect1d setdiff1d setxor1d", _of(_ints, _ints)),
    **_each("packbits", lambda np: (([1, 0, 1, 1],), {})),
    **_each("unpackbits", lambda np: ((np.asarray([7, 9], dtype=np.uint8),), {})),
    **_each("ravel_multi_index", lambda np: ((([1, 2], [3, 4]), (5, 6)), {})),
    **_each("unravel_index", lambda np: (([7, 9], (5, 6)), {})),
    **_each("poly roots polyder polyint", lambda np: (([1.0, -3.0, 2.0],), {})),
    **_each("polyadd polysub polymul polydiv", lambda np: (([1.0, -3.0, 2.0], [1.0, 2.0]), {})),
    **_each("polyval", lambda np: (([1.0, -3.0, 2.0], vector(np)), {})),
    **_each("polyfit", lambda np: ((vector(np), vector(np, 1), 2), {})),
    **_each("apply_along_axis", lambda np: ((lambda v: v.sum(), 0, matrix(np)), {})),
    **_each("apply_over_axes", lambda np: ((np.sum, matrix(np), [0, 1]), {})),
    **_each("sort_complex", _of(vector)),
    **_each("array2string array_repr array_str", _of(vector)),
    **_plain("format_float_positional format_float_scientific", 0.125),
    **_plain("base_repr binary_repr", 10),
    **_each("shape size ndim isfortran may_share_memory", lambda np: ((matrix(np),), {})),
    **_each("may_share_memory shares_memory", _of(vector, vector)),
    **_plain("broadcast_shapes", (3, 1), (4,)),
    **_plain("isscalar iterable", 3.0),
    **_each("can_cast", lambda np: ((np.float32, np.float64), {})),
    **_each("promote_types issubdtype", lambda np: ((np.float32, np.float64), {})),
    **_each("isdtype", lambda np: ((vector(np).dtype, "real floating"), {})),
    **_each("common_type result_type", _of(vector, matrix)),
    **_each("min_scalar_type", lambda np: ((10,), {})),
    **_plain("mintypecode", "fd"),
    **_plain("typename", "d"),
    **_plain("getbufsize get_printoptions geterr geterrcall get_include"),
    **_each("frombuffer", lambda np: ((b"12345678",), {"dtype": np.uint8})),
    **_each("fromiter", lambda np: ((iter([1, 2, 3]), float), {})),
    **_each("fromstring", lambda np: (("1 2 3",), {"sep": " "})),
    **_each("loadtxt genfromtxt", lambda np: ((io.StringIO("1 2\n3 4"),), {})),
    **_each(
        "fromregex",
        lambda np: ((io.StringIO("1 2\n3 4"), r"(\d) (\d)", [("a", int), ("b", int)]), {}),
    ),
    **_plain("busday_count", "2024-01-01", "2024-02-01"),
    **_plain("busday_offset", "2024-01-01", 3),
    **_plain("is_busday", "2024-01-01"),
    **_plain("datetime_as_string isnat", numpy.datetime64("2024-01-01")),
    **_plain("datetime_data", numpy.dtype("M8[D]")),
}
"""Function -> samples."""
