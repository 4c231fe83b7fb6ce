"""Every reduction along every axis, for every dtype, around vector and block sizes."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

import smelt as sm
from smelt.codegen.build import asm_text
from smelt.machine.blocks import SPLIT_ABOVE
from smelt.machine.target import Target
from smelt.ops.combine import COMBINES
from smelt.types.dtype import COMPUTABLE, DTYPES, DType

Array = np.ndarray[Any, Any]
AXES = ((2,), (0,), (1,), (0, 1, 2), (0, 2), (1, 2), (0, 1))
SIZES = (1, 15, 16, 17, 63, 64, 65, 2047, 2049)
SHAPES = (
    *(shape for n in SIZES for shape in ((2, 3, n), (3, n, 2), (n, 2, 3))),
    (17, 33, 65),
    (1, 1, 1),
)
EMPTY = ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0))
BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 52}
"""Of the significand: half a unit in the last place (of doubles one: the reference rounds too)."""
NAMES = {d.name: d for d in DTYPES}
CASES = [
    (name, d.name) for name, row in COMBINES.items() for d in COMPUTABLE if d.kind in row.kinds
]


def source(combine: str, dtype: str, axes: tuple[int, ...]) -> str:
    listed = f"({axes[0]},)" if len(axes) == 1 else str(axes)
    return (
        f"graph f(x: {dtype}[a,b,c]) {{\n y = reduce.{combine}(x) {{axes={listed}}}\n return y\n}}"
    )


def data(dtype: DType, shape: tuple[int, ...], combine: str) -> Array:
    """Numbers with many equals; products stay near one."""
    rng = np.random.default_rng(math.prod(shape) + 7)
    if dtype.kind == "bool":
        return rng.random(shape) < (0.002 if combine == "any" else 0.998)
    if dtype.is_integer:
        low = 0 if dtype.kind == "uint" else -5
        return rng.integers(low, 6, shape).astype(dtype.numpy)
    if combine == "prod":
        return (1 + rng.standard_normal(shape) / 64).astype(dtype.numpy)
    result = rng.standard_normal(shape) * 4
    if combine.startswith(("arg", "any", "all")):
        result = np.floor(result)
    return result.astype(dtype.numpy)


def exact(
    combine: str, dtype: DType, x: Array, axes: tuple[int, ...], *, split: bool = False
) -> tuple[Array, Array]:
    """Return the result in double precision, and how far rounding may move it.

    The parts of a split reduction are rounded to doubles.
    """
    row = COMBINES[combine]
    wide = x.astype(np.float64) if dtype.is_float else x
    if row.positional:
        moved = np.moveaxis(wide, axes, range(-len(axes), 0))
        return row.reduce(moved.reshape(*moved.shape[: 3 - len(axes)], -1), axis=-1), np.zeros(())
    if not dtype.is_float or not row.wide:
        with np.errstate(all="ignore"):
            return np.asarray(row.reduce(wide, axis=axes)), np.zeros(())
    eps = 2.0 ** -BITS[dtype.name]
    count = math.prod(x.shape[a] for a in axes)
    if combine == "prod":
        result = np.multiply.reduce(wide.astype(np.longdouble), axis=axes)
        return result.astype(np.float64), np.abs(result).astype(np.float64) * (
            eps + count * 2.0**-52
        )
    moved = np.moveaxis(wide, axes, range(-len(axes), 0)).reshape(
        [n for a, n in enumerate(x.shape) if a not in axes] + [count]
    )
    result = np.apply_along_axis(math.fsum, -1, moved) if count else moved.sum(-1)
    # Sums of doubles carry their error along, other sums run in double precision.
    inner = count**2 * 2.0**-104 if dtype.bits == 64 else count * 2.0**-52
    inner += split * 2.0**-53
    # Each four elements of single precision, half types too, are added as two pairs: two roundings.
    inner += 2.0**-23 * (1 + 2.0**-24) if dtype.bits < 64 else 0.0
    return result, np.abs(result) * eps + np.abs(moved).sum(-1) * inner


def check(combine: str, name: str, axes: tuple[int, ...], isa: str, shapes: Any = SHAPES) -> None:
    dtype, kernel = NAMES[name], fuse(source(combine, name, axes), isa)
    for shape in shapes:
        x = data(dtype, shape, combine)
        (actual,) = kernel(x)
        split = len(kernel.built.functions) > 1
        wanted, allowed = exact(combine, dtype, x, axes, split=split)
        assert actual.dtype == COMBINES[combine].result(dtype).numpy
        assert actual.shape == wanted.shape
        if actual.dtype.kind in "biu":
            assert np.array_equal(actual, wanted), (shape, axes)
        else:
            off = np.abs(actual.astype(np.float64) - wanted)
            assert (off <= allowed).all(), (shape, axes, float((off - allowed).max()))


@pytest.mark.parametrize(("combine", "dtype"), CASES)
def test_every_axis(combine: str, dtype: str) -> None:
    for axes in AXES if dtype in ("f32", "i8", "bool") else AXES[:4]:
        check(combine, dtype, axes, RUNNABLE[0])


@pytest.mark.parametrize("isa", RUNNABLE[1:])
@pytest.mark.parametrize(
    ("combine", "dtype"),
    [
        ("sum", "f32"),
        ("sum", "f64"),
        ("sum", "i8"),
        ("max", "f16"),
        ("argmax", "f32"),
        ("argmin", "i64"),
        ("any", "bool"),
        ("prod", "bf16"),
        ("min", "u8"),
    ],
)
def test_other_instruction_sets(isa: str, combine: str, dtype: str) -> None:
    for axes in AXES[:4]:
        check(combine, dtype, axes, isa, SHAPES[::2])


@pytest.mark.parametrize(
    "combine", [c for c, row in COMBINES.items() if not row.has_no_empty_value]
)
def test_empty_reductions_give_the_identity(combine: str) -> None:
    for axes in AXES:
        kernel = fuse(source(combine, "f32", axes))
        for shape in EMPTY:
            (actual,) = kernel(np.zeros(shape, "f4"))
            wanted = np.asarray(COMBINES[combine].reduce(np.zeros(shape), axis=axes))
            assert np.array_equal(actual, wanted), (shape, axes)


@pytest.mark.parametrize("combine", ["sum", "prod", "max", "min", "argmax", "argmin", "any", "all"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_nan_and_infinity_at_every_position(combine: str, dtype: str) -> None:
    """A NaN wins wherever it stands: in any lane of any vector, or in the tail."""
    kind = NAMES[dtype].numpy
    for axes in ((2,), (0,)):
        kernel = fuse(source(combine, dtype, axes))
        n = 69
        for special in (np.nan, np.inf, -np.inf):
            x = np.ones((n, 1, n), np.float64)
            x[np.arange(n), 0, np.arange(n)] = special
            x[(np.arange(n) * 7 + 3) % n, 0, np.arange(n)] = -2.0
            x = x.astype(kind)
            (actual,) = kernel(x)
            with np.errstate(all="ignore"):
                moved = np.moveaxis(x.astype(np.float64), axes[0], -1)
                wanted = np.asarray(COMBINES[combine].reduce(moved, axis=-1))
            assert np.array_equal(actual.astype(np.float64), wanted, equal_nan=True), special


@pytest.mark.parametrize("combine", ["argmax", "argmin"])
def test_the_first_of_equals_wins_in_any_order_of_the_loops(combine: str) -> None:
    """Vectors run along the rows of narrow products, so that a lane meets later rows first."""
    fold = {"argmax": "max", "argmin": "min"}[combine]
    kernel = fuse(
        f"""graph f(x: f64[n,k], w: f64[k,c]) {{
  z = contract(x, w) {{spec="n,k; k,c -> n,c"}}
  m = reduce.{fold}(z) {{axes=(1,)}}
  r = reshape(m) {{shape=(n,1)}}
  d = sub(z, r)
  i = reduce.{combine}(d) {{axes=(0,1)}}
  return i
}}""",
        n=300,
        k=4,
        c=2,
    )
    rng = np.random.default_rng(2)
    for shape in ((300, 2), (193, 2), (64, 3), (300, 8)):
        x, w = rng.integers(-9, 9, (shape[0], 4)), rng.integers(-9, 9, (4, shape[1]))
        z = x @ w
        wanted = getattr(np, combine)(z - getattr(z, fold)(axis=1, keepdims=True))
        (actual,) = kernel(x.astype(np.float64), w.astype(np.float64))
        assert int(actual) == wanted, shape


def test_infinities_of_both_signs_and_overflow() -> None:
    """The carried error of a sum of doubles is NaN then; the sum itself is what counts."""
    kernel = fuse(source("sum", "f64", (2,)))
    rows = [[np.inf, -np.inf], [np.inf, 1.0], [1.7e308, 1.7e308], [-1.7e308, -1.7e308]]
    rows += [[1.7e308, -1.7e308], [np.nan, np.inf]]
    (actual,) = kernel(np.array(rows * 9).reshape(9, 6, 2))
    wanted = [np.nan, np.inf, np.inf, -np.inf, 0.0, np.nan]
    assert np.array_equal(actual, [wanted] * 9, equal_nan=True)


def test_a_cancelling_sum_of_doubles_is_exact() -> None:
    rng = np.random.default_rng(3)
    half = rng.standard_normal(3001) * 10.0 ** rng.integers(0, 12, 3001)
    x = np.concatenate([half, [1e-3], -half])
    for axes, shape in (((2,), (1, 1, -1)), ((0,), (-1, 1, 1)), ((0, 1, 2), (1, -1, 1))):
        (actual,) = fuse(source("sum", "f64", axes))(x.reshape(shape))
        assert abs(float(actual.ravel()[0]) - math.fsum(x)) < 1e-12


def test_reductions_of_different_axes_share_a_kernel() -> None:
    """Two folds end the vector axis with different others: one loop order cannot serve both."""
    lines = ["graph f(x: f32[a,b,c]) {"]
    lines += [
        f" s{k} = reduce.{c}(x) {{axes={str(axes) if len(axes) > 1 else f'({axes[0]},)'}}}"
        for k, (c, axes) in enumerate(SHARED)
    ]
    lines += [f" return {', '.join(f's{k}' for k in range(len(SHARED)))}", "}"]
    for isa in RUNNABLE:
        kernel = fuse("\n".join(lines), isa)
        for shape in ((7, 9, 33), (1, 5, 2), (40, 3, 17)):
            x = data(NAMES["f32"], shape, "argmax")
            for (combine, axes), actual in zip(SHARED, kernel(x), strict=True):
                wanted, _ = exact(combine, NAMES["f32"], x, axes)
                assert np.array_equal(actual, wanted), (isa, shape, combine, axes)


SHARED = (
    ("sum", (0, 2)),
    ("sum", (1, 2)),
    ("max", (0, 1)),
    ("min", (0, 1, 2)),
    ("argmin", (2,)),
    ("sum", (2,)),
    ("max", (0,)),
    ("argmax", (1,)),
    ("any", (0, 2)),
)


def test_long_reductions_are_split_and_merged_in_order() -> None:
    """With a large size hinted the fold is split over the grid: two functions, the same sum."""
    for combine, dtype in (
        ("sum", "f32"),
        ("sum", "f64"),
        ("max", "f32"),
        ("prod", "f64"),
        ("any", "bool"),
        ("sum", "i8"),
        ("min", "i64"),
    ):
        code = source(combine, dtype, (0, 1, 2))
        kernel = fuse(code, a=1 << 20, b=4, c=4)
        assert len(kernel.built.functions) == 2
        for shape in ((1, 1, 1), (63, 3, 2), (64, 1, 1), (65, 2, 2), (5000, 4, 3)):
            x = data(NAMES[dtype], shape, combine)
            wanted, allowed = exact(combine, NAMES[dtype], x, (0, 1, 2), split=True)
            off = np.abs(kernel(x)[0].astype(np.float64) - wanted)
            assert (off <= allowed).all(), (combine, dtype, shape)


def test_single_results_need_no_compensation_of_double_sums() -> None:
    """A double sum carries its errors along, but not where all that comes of it is single."""

    def code(result: Any) -> str:
        def total(x: Any) -> Any:
            return sm.astype(sm.sum(sm.astype(x, sm.float64) * 0.1), result)

        return sm.jit(total).lower(sm.spec("f32[n]")).compile().as_text("llvm")

    assert " fsub " not in code(sm.float32)
    assert " fsub " in code(sm.float64)


def test_sums_of_doubles_keep_both_kinds_of_units_busy() -> None:
    """Sums of doubles use the FMA units too.

    Three of the seven additions of a step are made by multiply-add, with equal results; those that
    the next step waits for are not, since that has a longer latency.
    """
    kernel = fuse(source("sum", "f64", (2,)), RUNNABLE[-1]).kernel
    asm = asm_text(kernel, Target.for_isa("avx512"))
    loops = re.findall(r"(?m)^(\.L\w+):\n((?:\t.*\n)*?)\tj\w+\t\1$", asm)
    body = max((lines for _, lines in loops), key=len)
    aside, added = (len(re.findall(rf"\tv{n}\w*pd\t.*zmm", body)) for n in ("fm", "(?:add|sub)"))
    assert (aside, added) == (12, 16)


LENGTHS = (SPLIT_ABOVE - 1, SPLIT_ABOVE, SPLIT_ABOVE + 17, 3 * SPLIT_ABOVE + 1)


def with_ties(dtype: str, kind: str, shape: tuple[int, ...]) -> Array:
    """Draw rows with many equals, with NaN in the middle and at the end, or of identities."""
    x = np.floor(np.random.default_rng(5).standard_normal(shape) * 3)
    if kind == "NaN":
        x.reshape(-1)[[x.size // 3, x.size // 2, -1]] = np.nan
    if kind == "lowest":
        x = np.full(shape, -np.inf)
    return x.astype(dtype)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("f4", "ties"),
        ("f4", "NaN"),
        ("f4", "lowest"),
        ("f8", "NaN"),
        ("f2", "ties"),
        ("i4", "ties"),
        ("i1", "ties"),
    ],
)
def test_argmax_of_long_rows_is_numpys(name: str, dtype: str, kind: str) -> None:
    for n in LENGTHS:
        for shape, axis in (((n,), 0), ((3, n), 1), ((n, 3), 0), ((n // 64, 64), None)):
            x = with_ties(dtype, kind, shape)
            actual = sm.jit(lambda x, axis=axis: getattr(sm, name)(x, axis=axis))(x)
            assert np.array_equal(np.asarray(actual), getattr(np, name)(x, axis=axis))


def test_extremes_beside_indices_and_sums_are_those_of_each_alone() -> None:
    """A fold for a place knows the extreme; sums beside one stay in double precision."""
    x = with_ties("f4", "ties", (SPLIT_ABOVE + 5,)) + np.float32(0.1)

    def all_of(x: Any) -> Any:
        return sm.max(x), sm.argmax(x), sm.argmin(x), sm.min(x), sm.sum(x)

    top, place, lowest, low, total = map(np.asarray, sm.jit(all_of)(x))
    assert (top, low) == (x.max(), x.min())
    assert (place, lowest) == (x.argmax(), x.argmin())
    assert abs(total - x.sum(dtype=np.float64)) <= np.spacing(np.float32(abs(total)))
    rows = x[:SPLIT_ABOVE].reshape(64, -1)
    actual = sm.jit(lambda x: (sm.max(x, axis=1), sm.argmax(x, axis=1)))(rows)
    assert np.array_equal(np.asarray(actual[0]), rows.max(1))
    assert np.array_equal(np.asarray(actual[1]), rows.argmax(1))


# ---- pairs of single precision -------------------------------------------------------------------


def test_what_pairs_add_up_to_is_carried_in_double_precision() -> None:
    """Beside 1 in a pair 2^-24 is lost, beside the sum of many pairs it is not."""
    kernel = fuse(source("sum", "f32", (2,)), RUNNABLE[-1])
    x = np.zeros((1, 1, 4096), "f4")
    x[..., ::64] = 1.0
    assert kernel(x)[0] == 64
    x[..., 7] = 2.0**-17
    assert kernel(x)[0] == np.float32(64 + 2.0**-17)  # no partial sum of 64 in single precision
    few = np.zeros((1, 1, 4096), "f4")
    few[..., :64] = 2.0**-24
    few[..., 64] = 1.0
    assert kernel(few)[0] == np.float32(1 + 2.0**-18)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_error_of_a_sum_does_not_grow_with_its_length(axis: int) -> None:
    rng = np.random.default_rng(3)
    total = sm.jit(lambda x: sm.sum(x, axis=axis))
    for n in (64, 4096, 200_000):
        x = (rng.random((3, n)) + 0.5).astype("f4")
        actual = np.asarray(total(x if axis else np.ascontiguousarray(x.T)), "f8")
        exactly = np.array([math.fsum(row) for row in x])
        assert (np.abs(actual - exactly) <= (2.0**-23 * (1 + 2.0**-24) + 2.0**-24) * exactly).all()


def test_the_exact_setting_adds_nothing_in_single_precision() -> None:
    x = np.zeros((2, 4096), "f4")
    x[:, 0], x[:, 16:64:16] = 1.0, 2.0**-25
    rest = 2.0**-23  # tells a sum of doubles that is rounded once from others
    x[:, 100] = rest - 3 * 2.0**-25
    with sm.config(rounding="exact"):
        actual = np.asarray(sm.jit(lambda x: sm.sum(x, axis=1))(x))
        columns = np.asarray(sm.jit(lambda x: sm.sum(x, axis=0))(np.ascontiguousarray(x.T)))
    assert (actual == np.float32(1 + rest)).all() and (columns == actual).all()


def test_rows_of_a_known_length_and_of_any_have_the_same_bits() -> None:
    """Rows of known and unknown length give the same bits.

    Short rows are unrolled without loops; each four of their vectors are the same.
    """
    rng = np.random.default_rng(5)
    for n in (31, 64, 80, 100, 128):
        x = rng.standard_normal((9, n)).astype("f4")
        text = source("sum", "f32", (2,))
        fixed_length = fuse(text.replace("a,b,c", f"a,b,{n}"), RUNNABLE[-1])(x[None])
        assert np.array_equal(fixed_length[0], fuse(text, RUNNABLE[-1])(x[None])[0]), n
