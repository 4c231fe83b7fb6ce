"""Compare every function of the array API standard with array_api_strict, by drawn arguments.

Dtypes are all of the standard, shapes have up to three dimensions of which any may be empty, and
values include zeros of both signs, infinities, NaN and the ends of integers.  Whatever the
reference accepts is accepted, with the same dtype, shape and values; `EXCEPTIONS` of
`tools.array_api` lists what differs, with reasons, which docs/array_api.md prints.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.array_api import EXCEPTIONS, functions, named

import smelt as sm
from smelt.types.dtype import DTYPES

Draw = Callable[[Any], Any]
Call = tuple[list[Any], dict[str, Any]]

NAMES = [d.long for d in DTYPES if hasattr(strict, d.long)]
FLOATS = ["float32", "float64"]
COMPLEX = ["complex64", "complex128"]
REAL = [name for name in NAMES if name not in COMPLEX]
NUMERIC = [name for name in NAMES if name != "bool"]
SHAPES = [(), (0,), (1,), (4,), (2, 3), (3, 0), (3, 1), (1, 3), (2, 1, 3), (2, 0, 1)]
_FINITE = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -2.5, 7.0, 0.125]
_SPECIAL = [*_FINITE, float("nan"), float("inf"), -float("inf")]


def array(
    draw: Draw, dtypes: list[str] = NAMES, shape: Any = None, special: bool = True
) -> np.ndarray[Any, Any]:
    """Draw an array: any of the dtypes and shapes, or these."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(st.sampled_from(SHAPES)) if shape is None else shape
    count = int(np.prod(shape))
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        values = [0, 1, 2, 3, 7, *([-1, -4] if dtype.kind == "i" else []), *([ends.min, ends.max] * special)]
    else:
        values = [False, True] if dtype.kind == "b" else _SPECIAL if special else _FINITE
    parts = [draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))]
    if dtype.kind == "c":
        parts.append(draw(st.lists(st.sampled_from(values), min_size=count, max_size=count)))
        z = np.empty(count, dtype)
        z.real, z.imag = parts
        return z.reshape(shape)
    return np.asarray(parts[0], dtype).reshape(shape)


def pair(draw: Draw, dtypes: list[str] = NAMES, special: bool = True) -> list[Any]:
    """Draw two arrays that broadcast, mostly of one dtype, or one of them and a Python number."""
    full = draw(st.sampled_from([s for s in SHAPES if 0 not in s or len(s) < 3]))
    shapes = [full, tuple(1 if draw(st.booleans()) else d for d in full)]
    shapes[1] = shapes[1][draw(st.integers(0, len(full))) :]
    x = array(draw, dtypes, shapes[0], special)
    same = [x.dtype.name] if draw(st.integers(0, 3)) else dtypes
    y = array(draw, same, shapes[1], special)
    kind = draw(st.integers(0, 5))
    numbers: dict[str, Any] = {"b": True, "i": 3, "u": 3, "f": 2.5, "c": 0.5 - 2j}
    if kind == 0:
        return [x, numbers[x.dtype.kind]]
    return [numbers[y.dtype.kind], y] if kind == 1 else [y, x] if kind == 2 else [x, y]


def an_axis(draw: Draw, x: Any, several: bool = True) -> Any:
    """Draw None, an axis from either end, or several."""
    rank = x.ndim
    if not rank or draw(st.integers(0, 3)) == 0:
        return None
    one = st.integers(-rank, rank - 1)
    if several and draw(st.booleans()):
        axes = draw(st.lists(one, max_size=rank, unique_by=lambda a: a % rank))
        return tuple(axes)
    return draw(one)


def an_existing_axis(draw: Draw, x: Any) -> int:
    return draw(st.integers(-x.ndim, x.ndim - 1)) if x.ndim else 0


def unary(dtypes: list[str] = NAMES) -> Callable[[Draw], Call]:
    return lambda draw: ([array(draw, dtypes)], {})


def binary(dtypes: list[str] = NAMES) -> Callable[[Draw], Call]:
    return lambda draw: (pair(draw, dtypes), {})


def reduction(draw: Draw) -> Call:
    x = array(draw, special=False)
    return [x], {"axis": an_axis(draw, x), "keepdims": draw(st.booleans())}


def typed_reduction(draw: Draw) -> Call:
    args, options = reduction(draw)
    dtype = draw(st.sampled_from([None, None, *NUMERIC]))
    return args, options if dtype is None else {**options, "dtype": named(dtype)}


def extreme(draw: Draw) -> Call:
    x = array(draw, REAL)
    return [x], {"axis": an_axis(draw, x), "keepdims": draw(st.booleans())}


def spread(draw: Draw) -> Call:
    args, options = reduction(draw)
    return args, {**options, "correction": draw(st.sampled_from([0.0, 1, 0.5]))}


def scan(draw: Draw) -> Call:
    x = array(draw, special=False)
    options = {"axis": an_existing_axis(draw, x), "include_initial": draw(st.booleans())}
    return [x], options


def along(draw: Draw) -> Call:
    x = array(draw)
    return [x], {"axis": an_existing_axis(draw, x)}


def of_shape(draw: Draw) -> Call:
    dtype = draw(st.sampled_from([None, *NAMES]))
    return [draw(st.sampled_from(SHAPES))], {} if dtype is None else {"dtype": named(dtype)}


def like(draw: Draw) -> Call:
    args, options = of_shape(draw)
    return [array(draw)], options


def fill(draw: Draw) -> Call:
    args, _ = of_shape(draw)
    kind, names = draw(
        st.sampled_from([(True, ["bool"]), (3, NUMERIC), (2.5, FLOATS), (1 - 2j, COMPLEX)])
    )
    dtype = draw(st.sampled_from([None, *names]))
    return [*args, kind], {} if dtype is None else {"dtype": named(dtype)}


def matrices(draw: Draw, dtypes: list[str], square: bool = True) -> np.ndarray[Any, Any]:
    """Draw well-conditioned matrices: their diagonals are large."""
    stack = draw(st.sampled_from([(), (2,), (0,)]))
    n = draw(st.integers(1, 3))
    m = n if square else draw(st.integers(1, 3))
    x = array(draw, dtypes, (*stack, n, m), special=False)
    return x + (9 * np.eye(n, m)).astype(x.dtype)


def of_matrices(
    square: bool = True, hermitian: bool = False, **draws: Any
) -> Callable[[Draw], Call]:
    def call(draw: Draw) -> Call:
        x = matrices(draw, [*FLOATS, *COMPLEX], square)
        if hermitian:
            x = x + np.swapaxes(x.conj(), -1, -2) + (8 * np.eye(x.shape[-1])).astype(x.dtype)
        return [x], {name: draw(st.sampled_from(values)) for name, values in draws.items()}

    return call


def product(draw: Draw) -> Call:
    sizes = [((2, 3), (3, 2)), ((3,), (3,)), ((2, 2, 3), (3, 1)), ((0, 3), (3,)), ((2, 0), (0, 3))]
    a, b = draw(st.sampled_from(sizes))
    x = array(draw, NUMERIC, a, special=False)
    return [x, array(draw, [x.dtype.name], b, special=False)], {}


def inner(draw: Draw) -> Call:
    a, b = draw(st.sampled_from([((3,), (3,)), ((2, 3), (3,)), ((2, 3), (1, 3)), ((0,), (0,))]))
    x = array(draw, NUMERIC, a, special=False)
    return [x, array(draw, [x.dtype.name], b, special=False)], {"axis": -1}


def transform(real: bool = False, several: bool = False) -> Callable[[Draw], Call]:
    def call(draw: Draw) -> Call:
        shape = draw(st.sampled_from([(4,), (5,), (2, 3), (3, 2, 4)]))
        x = array(draw, FLOATS if real else COMPLEX, shape, special=False)
        options: dict[str, Any] = {"norm": draw(st.sampled_from(["backward", "ortho", "forward"]))}
        if several:
            count = draw(st.integers(1, x.ndim))
            axes = draw(st.permutations(range(x.ndim)))[:count]
            if draw(st.booleans()):
                options["axes"] = tuple(axes)
                if draw(st.booleans()):
                    options["s"] = tuple(draw(st.integers(2, 6)) for _ in axes)
        else:
            options["axis"] = an_existing_axis(draw, x)
            options["n"] = draw(st.sampled_from([None, 2, 3, 6]))
        return [x], options

    return call


def arrays_of_a_kind(draw: Draw) -> list[Any]:
    x = array(draw)
    count = draw(st.integers(1, 3))
    kind = [n for n in NAMES if np.dtype(n).kind == x.dtype.kind]
    return [x, *(array(draw, kind, x.shape) for _ in range(count - 1))]


def joined(draw: Draw) -> Call:
    arrays = arrays_of_a_kind(draw)
    return [arrays], {"axis": an_existing_axis(draw, arrays[0]) if arrays[0].ndim else None}


def stacked(draw: Draw) -> Call:
    arrays = arrays_of_a_kind(draw)
    rank = arrays[0].ndim + 1
    return [arrays], {"axis": draw(st.integers(-rank, rank - 1))}


def with_options(**draws: Callable[[Draw, Any], Any]) -> Callable[[Draw], Call]:
    def call(draw: Draw) -> Call:
        x = array(draw)
        return [x], {name: make(draw, x) for name, make in draws.items()}

    return call


def indexed(draw: Draw) -> Call:
    x = array(draw, shape=draw(st.sampled_from([(4,), (2, 3), (2, 1, 3)])))
    axis = an_existing_axis(draw, x)
    count = draw(st.integers(0, 4))
    index = draw(st.lists(st.integers(0, x.shape[axis] - 1), min_size=count, max_size=count))
    return [x, np.asarray(index, np.int64)], {"axis": axis}


def indexed_along(draw: Draw) -> Call:
    (x, _), options = indexed(draw)
    shape = list(x.shape)
    shape[options["axis"]] = draw(st.integers(1, 3))
    values = st.integers(0, x.shape[options["axis"]] - 1)
    count = int(np.prod(shape))
    index = draw(st.lists(values, min_size=count, max_size=count))
    return [x, np.asarray(index, np.int64).reshape(shape)], options


def searched(draw: Draw) -> Call:
    x = np.sort(array(draw, FLOATS, (5,), special=False))
    y = array(draw, [x.dtype.name], special=False)
    return [x, y], {"side": draw(st.sampled_from(["left", "right"]))}


def chosen(draw: Draw) -> Call:
    x, y = pair(draw)
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    return [array(draw, ["bool"], shape), x, y], {}


def clipped(draw: Draw) -> Call:
    x = array(draw, [n for n in REAL if n != "bool"])
    low, high = (1, 3) if x.dtype.kind in "iu" else (-0.5, 1.5)
    return [x], {
        "min": draw(st.sampled_from([None, low, np.asarray(low, x.dtype)])),
        "max": draw(st.sampled_from([None, high, np.asarray(high, x.dtype)])),
    }


def systems(draw: Draw) -> Call:
    a = matrices(draw, [*FLOATS, *COMPLEX])
    columns = draw(st.sampled_from([(), (1,), (2,)]))
    shape = (a.shape[-1],) if not columns else (*a.shape[:-1], *columns)
    return [a, array(draw, [a.dtype.name], shape, special=False)], {}


def crossed(draw: Draw) -> Call:
    x = array(draw, NUMERIC, (2, 3), special=False)
    return [x, array(draw, [x.dtype.name], (2, 3), special=False)], {"axis": -1}


def norms(draw: Draw) -> Call:
    x = array(draw, [*FLOATS, *COMPLEX], draw(st.sampled_from([(4,), (2, 3)])), special=False)
    order = draw(st.sampled_from([1, 2, 3, 0, float("inf"), -float("inf")]))
    return [x], {"axis": an_axis(draw, x), "keepdims": draw(st.booleans()), "ord": order}


def converted(draw: Draw) -> Call:
    x = array(draw, special=False)
    x = np.abs(x) if x.dtype.kind in "if" else x
    return [x, named(draw(st.sampled_from(NAMES)))], {"copy": draw(st.booleans())}


def spaced(draw: Draw) -> Call:
    dtype = draw(st.sampled_from([None, *FLOATS, *COMPLEX]))
    ends = st.sampled_from([0.0, 1.0, -2.5] if dtype not in COMPLEX else [0.0, 1.0 + 2j, -1j])
    options: dict[str, Any] = {"num": draw(st.integers(0, 5)), "endpoint": draw(st.booleans())}
    if dtype:
        options["dtype"] = named(dtype)
    return [draw(ends), draw(ends)], options


def dot_axes(draw: Draw) -> Call:
    x = array(draw, NUMERIC, (2, 3), special=False)
    axes, shape = draw(st.sampled_from([(1, (3, 2)), (2, (2, 3)), (0, (2,)), (((0,), (1,)), (3, 2))]))
    return [x, array(draw, [x.dtype.name], shape, special=False)], {"axes": axes}


def numbers(draw: Draw) -> Call:
    start, stop = draw(st.integers(-5, 5)), draw(st.sampled_from([None, -3, 4, 7]))
    dtype = draw(st.sampled_from([None, "int32", "float32", "float64"]))
    options = {} if dtype is None else {"dtype": named(dtype)}
    return ([start] if stop is None else [start, stop, draw(st.sampled_from([1, 2, -1]))]), options


def axes_of(draw: Draw, x: Any) -> tuple[int, ...]:
    return tuple(draw(st.permutations(range(x.ndim))))


_INTEGERS = [n for n in REAL if n[0] in "iu"]
_ONE_FLOAT = """abs acos acosh asin asinh atan atanh ceil conj cos cosh exp expm1 floor imag
isfinite isinf isnan log log1p log2 log10 negative positive real reciprocal round sign signbit sin
sinh square sqrt tan tanh trunc"""
_TWO = """add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal
logaddexp maximum minimum multiply nextafter not_equal pow remainder subtract"""
_ORDER = ["axis", "descending", "stable"]

CALLS: dict[str, Callable[[Draw], Call]] = {
    **dict.fromkeys(_ONE_FLOAT.split(), unary(NUMERIC)),
    **dict.fromkeys(_TWO.split(), binary(NUMERIC)),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], binary(["bool", *_INTEGERS])),
    "bitwise_invert": unary(["bool", *_INTEGERS]),
    **dict.fromkeys(
        ["bitwise_left_shift", "bitwise_right_shift"],
        lambda draw: ([array(draw, ["int32", "uint8"], (4,)), 3], {}),
    ),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], binary(["bool"])),
    "logical_not": unary(["bool"]),
    "clip": clipped,
    "where": chosen,
    **dict.fromkeys(["all", "any", "count_nonzero", "mean"], reduction),
    **dict.fromkeys(["sum", "prod"], typed_reduction),
    **dict.fromkeys(["max", "min"], extreme),
    **dict.fromkeys(["std", "var"], spread),
    **dict.fromkeys(["cumulative_sum", "cumulative_prod"], scan),
    **dict.fromkeys(["argmax", "argmin"], lambda d: ([x := array(d, REAL)], {"axis": an_axis(d, x, False), "keepdims": d(st.booleans())})),
    **dict.fromkeys(
        ["sort", "argsort"],
        lambda d: ([x := array(d, REAL, special=False)], {"axis": an_existing_axis(d, x), "descending": d(st.booleans())}),
    ),
    "nonzero": unary(),
    "searchsorted": searched,
    **dict.fromkeys(["unique_all", "unique_counts", "unique_inverse", "unique_values"], lambda d: ([array(d, special=False)], {})),
    **dict.fromkeys(["zeros", "ones", "empty"], of_shape),
    **dict.fromkeys(["zeros_like", "ones_like", "empty_like"], like),
    "full": fill,
    "full_like": lambda draw: ([array(draw, NUMERIC), 3], {}),
    "arange": numbers,
    "linspace": spaced,
    "eye": lambda d: ([d(st.integers(0, 3)), d(st.sampled_from([None, 2]))], {"k": d(st.integers(-2, 2)), "dtype": named(d(st.sampled_from(NAMES)))}),
    "tril": with_options(k=lambda d, x: d(st.integers(-2, 2))),
    "triu": with_options(k=lambda d, x: d(st.integers(-2, 2))),
    "meshgrid": lambda d: ([x := array(d, shape=(3,)), array(d, [x.dtype.name], (2,))], {"indexing": d(st.sampled_from(["xy", "ij"]))}),
    "asarray": lambda d: ([array(d)], {"dtype": named(d(st.sampled_from(NAMES)))}),
    "from_dlpack": unary(),
    "astype": converted,
    "broadcast_arrays": lambda d: ([array(d, shape=(2, 3)), array(d, shape=(3,))], {}),
    "broadcast_to": lambda d: ([array(d, shape=(1, 3))], {"shape": (2, 3)}),
    "concat": joined,
    "stack": stacked,
    "unstack": along,
    "expand_dims": lambda d: ([x := array(d)], {"axis": d(st.integers(-x.ndim - 1, x.ndim))}),
    "squeeze": lambda d: ([array(d, shape=(2, 1, 3, 1))], {"axis": d(st.sampled_from([1, -1, (1, 3)]))}),
    "flip": with_options(axis=an_axis),
    "moveaxis": lambda d: ([x := array(d, shape=(2, 1, 3)), an_existing_axis(d, x), an_existing_axis(d, x)], {}),
    "permute_dims": with_options(axes=axes_of),
    "matrix_transpose": lambda d: ([array(d, shape=d(st.sampled_from([(2, 3), (2, 0, 3)])))], {}),
    "repeat": lambda d: ([x := array(d), d(st.integers(0, 3))], {"axis": an_axis(d, x, False)}),
    "reshape": lambda d: ([array(d, shape=(2, 3))], {"shape": d(st.sampled_from([(6,), (3, 2), (-1, 1), (1, 2, 3)]))}),
    "roll": lambda d: ([x := array(d), d(st.integers(-5, 5))], {"axis": an_axis(d, x, False)}),
    "tile": lambda d: ([array(d), d(st.sampled_from([(2,), (1, 2), (), (0,)]))], {}),
    "take": indexed,
    "take_along_axis": indexed_along,
    "diff": lambda d: ([x := array(d, NUMERIC, d(st.sampled_from([(4,), (2, 3)])), False)], {"axis": an_existing_axis(d, x), "n": d(st.integers(0, 2))}),
    **dict.fromkeys(["matmul", "linalg.matmul"], product),
    **dict.fromkeys(["vecdot", "linalg.vecdot"], inner),
    **dict.fromkeys(["tensordot", "linalg.tensordot"], dot_axes),
    "linalg.matrix_transpose": lambda d: ([array(d, shape=(2, 3))], {}),
    "linalg.cholesky": of_matrices(hermitian=True, upper=[False, True]),
    "linalg.cross": crossed,
    "linalg.det": of_matrices(),
    "linalg.diagonal": lambda d: ([array(d, shape=(3, 4))], {"offset": d(st.integers(-3, 3))}),
    "linalg.eigh": of_matrices(hermitian=True),
    "linalg.eigvalsh": of_matrices(hermitian=True),
    "linalg.inv": of_matrices(),
    "linalg.matrix_norm": of_matrices(square=False, ord=["fro", "nuc", 1, 2, -1, -2, float("inf")], keepdims=[False, True]),
    "linalg.matrix_power": lambda d: ([matrices(d, [*FLOATS, *COMPLEX]), d(st.integers(-2, 3))], {}),
    "linalg.matrix_rank": of_matrices(square=False),
    "linalg.outer": lambda d: ([x := array(d, NUMERIC, (3,), False), array(d, [x.dtype.name], (2,), False)], {}),
    "linalg.pinv": of_matrices(square=False),
    "linalg.qr": of_matrices(square=False, mode=["reduced", "complete"]),
    "linalg.slogdet": of_matrices(),
    "linalg.solve": systems,
    "linalg.svd": of_matrices(square=False, full_matrices=[False, True]),
    "linalg.svdvals": of_matrices(square=False),
    "linalg.trace": lambda d: ([array(d, NUMERIC, (3, 4), False)], {"offset": d(st.integers(-3, 3))}),
    "linalg.vector_norm": norms,
    **{f"fft.{name}": transform() for name in ("fft", "ifft", "irfft", "hfft")},
    **{f"fft.{name}": transform(real=True) for name in ("rfft", "ihfft")},
    **{f"fft.{name}": transform(several=True) for name in ("fftn", "ifftn", "irfftn")},
    "fft.rfftn": transform(real=True, several=True),
    **dict.fromkeys(["fft.fftfreq", "fft.rfftfreq"], lambda d: ([d(st.integers(1, 6))], {"d": d(st.sampled_from([1.0, 0.5]))})),
    **dict.fromkeys(["fft.fftshift", "fft.ifftshift"], lambda d: ([x := array(d, [*FLOATS, *COMPLEX])], {"axes": an_axis(d, x)})),
    **{f"operator.{name}": binary() for name in "add sub mul truediv floordiv mod pow eq ne lt le gt ge and_ or_ xor".split()},
    **{f"operator.{name}": unary() for name in ("neg", "pos", "abs", "invert")},
    "operator.matmul": product,
}  # fmt: skip
"""Function or operator -> what draws its arguments."""
ELSEWHERE = {"can_cast", "finfo", "iinfo", "isdtype", "result_type"}
"""Functions of dtypes, tested below."""


def test_every_function_is_drawn() -> None:
    names = {name for name in CALLS if not name.startswith("operator.")}
    assert set(functions()) - names - ELSEWHERE == set()


def function_of(xp: Any, name: str) -> Any:
    if name.startswith("operator."):
        return getattr(operator, name.partition(".")[2])
    for part in name.split("."):
        xp = getattr(xp, part)
    return xp


def passed(xp: Any, x: Any) -> Any:
    """Arguments of a namespace: its arrays and dtypes in place of NumPy's and of names."""
    if isinstance(x, np.ndarray):
        return xp.asarray(x.copy())
    if isinstance(x, list):
        return [passed(xp, item) for item in x]
    return getattr(xp, x.name) if isinstance(x, named) else x


def run(xp: Any, name: str, args: list[Any], options: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    result = function_of(xp, name)(
        *[passed(xp, x) for x in args], **{k: passed(xp, v) for k, v in options.items()}
    )
    return [plain(x) for x in leaves(result)]


def leaves(x: Any) -> list[Any]:
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, (tuple, list)) else [x]


def plain(x: Any) -> np.ndarray[Any, Any]:
    dtype = str(x.dtype).split(".")[-1]
    if isinstance(x, sm.Array):
        return np.asarray(x)
    return np.from_dlpack(x) if x.size else np.zeros(x.shape, dtype)


def differs(got: Any, wanted: Any, loose: float) -> bool:
    """Return whether values differ by more than roundings, or in what is not finite."""
    if wanted.dtype.kind in "biu":
        return not np.array_equal(got, wanted)
    tolerance = loose * np.finfo(wanted.dtype).eps
    if wanted.dtype.kind == "c":
        both = np.isfinite(got) & np.isfinite(wanted)
        with np.errstate(all="ignore"):
            near = both & (np.abs(got - wanted) <= tolerance * np.maximum(np.abs(wanted), 1e-30))
        sides = [part_near(a, b, tolerance) for a, b in ((got.real, wanted.real), (got.imag, wanted.imag))]
        return not np.all(near | (sides[0] & sides[1]))
    return not np.all(part_near(got, wanted, tolerance))


def part_near(got: Any, wanted: Any, tolerance: float) -> Any:
    with np.errstate(all="ignore"):
        close = np.abs(got - wanted) <= tolerance * np.maximum(np.abs(wanted), 1e-30)
    return (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | (np.isfinite(wanted) & close)


_CANCELLING = 1e6
"""Roundings that sums and transforms may be off, relative to a result that cancels."""


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_agrees_with_the_reference(name: str, data: st.DataObject) -> None:
    args, options = CALLS[name](data.draw)
    exceptions = [e for e in EXCEPTIONS if name in e.functions]
    if any(e.holds(name, args, options) for e in exceptions):
        return
    with np.errstate(all="ignore"):
        try:
            wanted = run(strict, name, args, options)
        except (TypeError, ValueError, IndexError, RuntimeError, OverflowError, np.linalg.LinAlgError):
            wanted = None
    try:
        got = run(sm, name, args, options)
    except sm.errors.SmeltError:
        assert wanted is None
        return
    except TypeError:
        assert wanted is None and name.startswith("operator.")
        return
    if wanted is None or name in ("empty", "empty_like"):
        return
    assert [(x.dtype, x.shape) for x in got] == [(x.dtype, x.shape) for x in wanted]
    if name in ("linalg.eigh", "linalg.qr", "linalg.svd"):
        return  # factors up to signs; their products are compared elsewhere
    loose = 64.0
    for x, y in zip(got, wanted, strict=True):
        if differs(x, y, loose) and name.partition(".")[0] in ("fft", "linalg", "sum", "mean", "var", "std", "matmul", "vecdot", "tensordot", "operator", "diff", "cumulative_sum", "linspace"):
            scale = max((float(np.max(np.abs(a))) for a in args if isinstance(a, np.ndarray) and a.size), default=1.0)
            np.testing.assert_allclose(x, y, rtol=1e3 * np.finfo(y.dtype).eps if y.dtype.kind in "fc" else 0, atol=1e3 * scale**2 * np.finfo(y.dtype).eps if y.dtype.kind in "fc" else 0)
        else:
            assert not differs(x, y, loose), (x, y)
