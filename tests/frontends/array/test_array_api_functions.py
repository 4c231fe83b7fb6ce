"""Compare every function of the array API standard with array_api_strict, by drawn arguments.

Dtypes are all of the standard, shapes have up to three dimensions of which any may be empty, and
values include zeros of both signs, infinities, NaN and the ends of integers.  Whatever the
reference accepts is accepted, with the same dtype, shape and values; `EXCEPTIONS` of
`tools.array_api` lists what differs, with reasons, which docs/array_api.md prints.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.array_api import EXCEPTIONS, functions

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


class named(NamedTuple):  # noqa: N801 - a value in tables
    """A dtype by its name in the standard."""

    name: str


def array(
    draw: Draw, dtypes: list[str] = NAMES, shape: Any = None, special: bool = True
) -> np.ndarray[Any, Any]:
    """Draw an array: any of the dtypes and shapes, or these."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(st.sampled_from(SHAPES)) if shape is None else shape
    count = int(np.prod(shape))
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        values = [
            0,
            1,
            2,
            3,
            7,
            *([-1, -4] if dtype.kind == "i" else []),
            *([ends.min, ends.max] * special),
        ]
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
    _, options = of_shape(draw)
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
    axes, shape = draw(
        st.sampled_from([(1, (3, 2)), (2, (2, 3)), (0, (2,)), (((0,), (1,)), (3, 2))])
    )
    return [x, array(draw, [x.dtype.name], shape, special=False)], {"axes": axes}


def numbers(draw: Draw) -> Call:
    start, stop = draw(st.integers(-5, 5)), draw(st.sampled_from([None, -3, 4, 7]))
    dtype = draw(st.sampled_from([None, "int32", "float32", "float64"]))
    options = {} if dtype is None else {"dtype": named(dtype)}
    return ([start] if stop is None else [start, stop, draw(st.sampled_from([1, 2, -1]))]), options


def an_order(draw: Draw) -> Call:
    x = array(draw, REAL, special=False)
    return [x], {"axis": an_existing_axis(draw, x), "descending": draw(st.booleans())}


def a_position(draw: Draw) -> Call:
    x = array(draw, REAL)
    return [x], {"axis": an_axis(draw, x, several=False), "keepdims": draw(st.booleans())}


def diagonal_ones(draw: Draw) -> Call:
    dtype = named(draw(st.sampled_from(NAMES)))
    columns = draw(st.sampled_from([None, 2]))
    return [draw(st.integers(0, 3)), columns], {"k": draw(st.integers(-2, 2)), "dtype": dtype}


def grid(draw: Draw) -> Call:
    x = array(draw, shape=(3,))
    y = array(draw, [x.dtype.name], (2,))
    return [x, y], {"indexing": draw(st.sampled_from(["xy", "ij"]))}


def moved(draw: Draw) -> Call:
    x = array(draw, shape=(2, 1, 3))
    return [x, an_existing_axis(draw, x), an_existing_axis(draw, x)], {}


def counted(low: int, high: int) -> Callable[[Draw], Call]:
    def call(draw: Draw) -> Call:
        x = array(draw)
        return [x, draw(st.integers(low, high))], {"axis": an_axis(draw, x, several=False)}

    return call


def reshaped(draw: Draw) -> Call:
    shape = draw(st.sampled_from([(6,), (3, 2), (-1, 1), (1, 2, 3)]))
    return [array(draw, shape=(2, 3))], {"shape": shape}


def differences(draw: Draw) -> Call:
    x = array(draw, NUMERIC, draw(st.sampled_from([(4,), (2, 3)])), special=False)
    return [x], {"axis": an_existing_axis(draw, x), "n": draw(st.integers(0, 2))}


def two_vectors(draw: Draw) -> Call:
    x = array(draw, NUMERIC, (3,), special=False)
    return [x, array(draw, [x.dtype.name], (2,), special=False)], {}


def powers(draw: Draw) -> Call:
    return [matrices(draw, [*FLOATS, *COMPLEX]), draw(st.integers(-2, 3))], {}


def diagonals(draw: Draw) -> Call:
    x = array(draw, NUMERIC, (3, 4), special=False)
    return [x], {"offset": draw(st.integers(-3, 3))}


def of_frequencies(draw: Draw) -> Call:
    return [draw(st.integers(1, 6))], {"d": draw(st.sampled_from([1.0, 0.5]))}


def shifted(draw: Draw) -> Call:
    x = array(draw, [*FLOATS, *COMPLEX])
    return [x], {"axes": an_axis(draw, x)}


def axes_of(draw: Draw, x: Any) -> tuple[int, ...]:
    return tuple(draw(st.permutations(range(x.ndim))))


_INTEGERS = [n for n in REAL if n[0] in "iu"]
_ONE_FLOAT = """abs acos acosh asin asinh atan atanh ceil conj cos cosh exp expm1 floor imag
isfinite isinf isnan log log1p log2 log10 negative positive real reciprocal round sign signbit sin
sinh square sqrt tan tanh trunc"""
_TWO = """add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal
logaddexp maximum minimum multiply nextafter not_equal pow remainder subtract"""

_OPERATORS = "add sub mul truediv floordiv mod pow eq ne lt le gt ge and_ or_ xor"

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
    **dict.fromkeys(["argmax", "argmin"], a_position),
    **dict.fromkeys(["sort", "argsort"], an_order),
    "nonzero": unary(),
    "searchsorted": searched,
    **dict.fromkeys(
        ["unique_all", "unique_counts", "unique_inverse", "unique_values"],
        lambda d: ([array(d, special=False)], {}),
    ),
    **dict.fromkeys(["zeros", "ones", "empty"], of_shape),
    **dict.fromkeys(["zeros_like", "ones_like", "empty_like"], like),
    "full": fill,
    "full_like": lambda draw: ([array(draw, NUMERIC), 3], {}),
    "arange": numbers,
    "linspace": spaced,
    "eye": diagonal_ones,
    "tril": with_options(k=lambda d, x: d(st.integers(-2, 2))),
    "triu": with_options(k=lambda d, x: d(st.integers(-2, 2))),
    "meshgrid": grid,
    "asarray": lambda d: ([array(d)], {"dtype": named(d(st.sampled_from(NAMES)))}),
    "from_dlpack": unary(),
    "astype": converted,
    "broadcast_arrays": lambda d: ([array(d, shape=(2, 3)), array(d, shape=(3,))], {}),
    "broadcast_to": lambda d: ([array(d, shape=(1, 3))], {"shape": (2, 3)}),
    "concat": joined,
    "stack": stacked,
    "unstack": along,
    "expand_dims": lambda d: ([x := array(d)], {"axis": d(st.integers(-x.ndim - 1, x.ndim))}),
    "squeeze": lambda d: (
        [array(d, shape=(2, 1, 3, 1))],
        {"axis": d(st.sampled_from([1, -1, (1, 3)]))},
    ),
    "flip": with_options(axis=an_axis),
    "moveaxis": moved,
    "permute_dims": with_options(axes=axes_of),
    "matrix_transpose": lambda d: ([array(d, shape=(2, 0, 3))], {}),
    "repeat": counted(0, 3),
    "reshape": reshaped,
    "roll": counted(-5, 5),
    "tile": lambda d: ([array(d), d(st.sampled_from([(2,), (1, 2), (), (0,)]))], {}),
    "take": indexed,
    "take_along_axis": indexed_along,
    "diff": differences,
    **dict.fromkeys(["matmul", "linalg.matmul"], product),
    **dict.fromkeys(["vecdot", "linalg.vecdot"], inner),
    **dict.fromkeys(["tensordot", "linalg.tensordot"], dot_axes),
    "linalg.matrix_transpose": lambda d: ([array(d, shape=(2, 3))], {}),
    "linalg.cholesky": of_matrices(hermitian=True, upper=[False, True]),
    "linalg.cross": crossed,
    "linalg.det": of_matrices(),
    "linalg.diagonal": diagonals,
    "linalg.eigh": of_matrices(hermitian=True),
    "linalg.eigvalsh": of_matrices(hermitian=True),
    "linalg.inv": of_matrices(),
    "linalg.matrix_norm": of_matrices(
        square=False, ord=["fro", "nuc", 1, 2, -1, -2, float("inf")], keepdims=[False, True]
    ),
    "linalg.matrix_power": powers,
    "linalg.matrix_rank": of_matrices(square=False),
    "linalg.outer": two_vectors,
    "linalg.pinv": of_matrices(square=False),
    "linalg.qr": of_matrices(square=False, mode=["reduced", "complete"]),
    "linalg.slogdet": of_matrices(),
    "linalg.solve": systems,
    "linalg.svd": of_matrices(square=False, full_matrices=[False, True]),
    "linalg.svdvals": of_matrices(square=False),
    "linalg.trace": diagonals,
    "linalg.vector_norm": norms,
    **{f"fft.{name}": transform() for name in ("fft", "ifft", "irfft", "hfft")},
    **{f"fft.{name}": transform(real=True) for name in ("rfft", "ihfft")},
    **{f"fft.{name}": transform(several=True) for name in ("fftn", "ifftn", "irfftn")},
    "fft.rfftn": transform(real=True, several=True),
    **dict.fromkeys(["fft.fftfreq", "fft.rfftfreq"], of_frequencies),
    **dict.fromkeys(["fft.fftshift", "fft.ifftshift"], shifted),
    **{f"operator.{name}": binary() for name in _OPERATORS.split()},
    **{f"operator.{name}": unary() for name in ("neg", "pos", "abs", "invert")},
    "operator.matmul": product,
}
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
    if isinstance(x, np.generic):  # as the reference's astype returns some arrays of rank 0
        return np.asarray(x)
    return np.from_dlpack(x) if x.size else np.zeros(x.shape, dtype)


def differs(got: Any, wanted: Any, roundings: float, scale: float) -> bool:
    """Return whether values differ by more than roundings, or in what is not finite.

    `scale` is the size of terms that may have cancelled.
    """
    if wanted.dtype.kind in "biu":
        return not np.array_equal(got, wanted)
    tolerance = roundings * np.finfo(wanted.dtype).eps
    if wanted.dtype.kind == "c":
        both = np.isfinite(got) & np.isfinite(wanted)
        with np.errstate(all="ignore"):
            size = np.maximum(np.abs(wanted), max(scale, 1e-30))
            near = both & (np.abs(got - wanted) <= tolerance * size)
        sides = [
            part_near(a, b, tolerance, scale)
            for a, b in ((got.real, wanted.real), (got.imag, wanted.imag))
        ]
        return not np.all(near | (sides[0] & sides[1]))
    return not np.all(part_near(got, wanted, tolerance, scale))


def part_near(got: Any, wanted: Any, tolerance: float, scale: float) -> Any:
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(wanted), max(scale, 1e-30))
        close = np.abs(got - wanted) <= tolerance * size
    return (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | (np.isfinite(wanted) & close)


def loses(args: list[Any], options: dict[str, Any]) -> bool:
    """Return whether complex numbers are converted to real ones."""
    dtypes = [x.name for x in (*args, *options.values()) if isinstance(x, named)]
    return is_complex(args) and any(d not in COMPLEX for d in dtypes)


def is_complex(args: list[Any]) -> bool:
    return any(np.asarray(x).dtype.kind == "c" for x in args if not isinstance(x, named))


CONDITIONS: dict[str, Callable[[list[Any], dict[str, Any]], bool]] = {
    "loses": loses,
    "special": lambda args, _: is_complex(args) and not all(np.isfinite(x).all() for x in args),
    "zero": lambda args, _: (
        is_complex(args) and not all(np.isfinite(x).all() and np.all(x) for x in args)
    ),
    "scalar": lambda args, _: not args[0].ndim,
}
"""Conditions of the exceptions by name."""
ROUNDED = (
    "fft",
    "linalg",
    "operator.matmul",
    "sum",
    "prod",
    "mean",
    "var",
    "std",
    "matmul",
    "vecdot",
    "tensordot",
    "diff",
    "cumulative",
    "linspace",
)
"""Functions that round in another order than the reference, so that results may cancel."""
REFUSED = (TypeError, ValueError, IndexError, RuntimeError, OverflowError, np.linalg.LinAlgError)


def agrees(name: str, draw: Draw) -> None:
    """Compare one drawn call of a function with the reference."""
    args, options = CALLS[name](draw)
    for e in EXCEPTIONS:
        if name in e.functions.split() and CONDITIONS[e.when](args, options):
            return
    with np.errstate(all="ignore"):
        try:
            wanted = run(strict, name, args, options)
        except REFUSED:
            wanted = None
    try:
        got = run(sm, name, args, options)
    except (sm.errors.SmeltError, TypeError):
        if wanted is not None:
            raise
        return
    if wanted is None:
        return
    assert [(x.dtype, x.shape) for x in got] == [(x.dtype, x.shape) for x in wanted]
    if name in ("empty", "empty_like"):
        return
    if name in ("linalg.eigh", "linalg.qr", "linalg.svd"):  # factors have any signs
        compare_products(name, args[0], got)
        return
    sizes = [np.max(np.abs(x)) for x in args if isinstance(x, np.ndarray) and x.size]
    scale = float(max(sizes, default=1)) ** 2 if name.startswith(ROUNDED) else 0.0
    for x, y in zip(got, wanted, strict=True):
        assert not differs(x, y, 64.0, scale), (x, y)


def compare_products(name: str, x: Any, factors: list[Any]) -> None:
    """Check that the factors of matrices have these as their product."""
    if name == "linalg.qr":
        product_ = factors[0] @ factors[1]
    elif name == "linalg.svd":
        u, s, vh = factors
        k = s.shape[-1]
        product_ = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
    else:
        values, vectors = factors
        product_ = (vectors * values[..., None, :]) @ np.swapaxes(vectors.conj(), -1, -2)
    np.testing.assert_allclose(product_, x, atol=1e-4 if x.dtype.itemsize % 16 else 1e-9, rtol=1e-3)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=8)
@given(data=st.data())
def test_agrees_with_the_reference(name: str, data: st.DataObject) -> None:
    agrees(name, data.draw)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300)
@given(data=st.data())
def test_agrees_with_the_reference_in_many_calls(name: str, data: st.DataObject) -> None:
    agrees(name, data.draw)


# Functions of dtypes

PAIRS = [(a, b) for a in NAMES for b in NAMES]


def outcome(f: Callable[[], str]) -> str:
    try:
        return f()
    except TypeError:
        return "refused"


def long(dtype: Any) -> str:
    return dtype.long if hasattr(dtype, "long") else str(dtype).split(".")[-1]


def test_dtypes_promote_and_cast_as_in_the_reference() -> None:
    for a, b in PAIRS:
        theirs = outcome(
            lambda a=a, b=b: long(strict.result_type(*(getattr(strict, n) for n in (a, b))))
        )
        mine = outcome(lambda a=a, b=b: long(sm.result_type(*(getattr(sm, n) for n in (a, b)))))
        assert theirs in (mine, "refused"), (a, b)
        if theirs != "refused":
            assert sm.can_cast(getattr(sm, a), getattr(sm, b)) == (theirs == b), (a, b)
            x = sm.zeros(2, dtype=a) + sm.ones(2, dtype=b) if a != "bool" else None
            assert x is None or long(x.dtype) == theirs


def test_numbers_promote_as_in_the_reference() -> None:
    numbers: list[Any] = [True, 1, 1.5, 2j]
    for a in NAMES:
        for number in numbers:
            theirs = outcome(lambda a=a, n=number: long(strict.result_type(getattr(strict, a), n)))
            mine = outcome(lambda a=a, n=number: long(sm.result_type(getattr(sm, a), n)))
            assert theirs in (mine, "refused"), (a, number)


def test_kinds_and_limits_of_dtypes_are_those_of_the_reference() -> None:
    kinds: list[Any] = [
        "bool",
        "signed integer",
        "unsigned integer",
        "integral",
        "real floating",
        "complex floating",
        "numeric",
        ("integral", "complex floating"),
    ]
    for a in NAMES:
        mine, theirs = getattr(sm, a), getattr(strict, a)
        for kind in kinds:
            assert sm.isdtype(mine, kind) == strict.isdtype(theirs, kind), (a, kind)
    for a in (*FLOATS, *COMPLEX):
        ours, reference = sm.finfo(getattr(sm, a)), strict.finfo(getattr(strict, a))
        assert long(ours.dtype) == long(reference.dtype)
        for field in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(ours, field) == getattr(reference, field), (a, field)


def test_the_inspection_agrees_with_the_reference() -> None:
    ours, theirs = sm.__array_namespace_info__(), strict.__array_namespace_info__()
    assert set(ours.capabilities()) >= {"boolean indexing", "data-dependent shapes"}
    kinds = (None, "bool", "integral", "real floating", "complex floating", ("bool", "numeric"))
    for kind in kinds:
        mine = {name: d.long for name, d in ours.dtypes(kind=kind).items()}
        assert mine == {name: long(d) for name, d in theirs.dtypes(kind=kind).items()}, kind
    mine = {name: d.long for name, d in ours.default_dtypes().items()}
    assert mine == {name: long(d) for name, d in theirs.default_dtypes().items()}


def test_arrays_have_the_methods_of_the_reference() -> None:
    theirs = type(strict.asarray([1.0]))
    public = {n for n in dir(theirs) if n.startswith("__") or not n.startswith("_")}
    for ours in (sm.Array, type(sm.asarray([1j]))):
        missing = {n for n in public - set(dir(object)) if not hasattr(ours, n)}
        assert missing <= {"__buffer__", "__array_interface__", "__annotations__"}, missing
