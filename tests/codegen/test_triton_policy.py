"""What a policy changes: the types of products, and the hardware's functions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.checked_triton import launch, named_sizes
from tests.codegen.test_triton_goldens import with_lanes
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.codegen.triton.schedule import Policy
from smelt.codegen.triton.shared_divisors import share_divisors
from smelt.codegen.triton.source import triton_source
from smelt.kernel.interp import run
from smelt.kernel.text import parse
from smelt.kernel.text import text as kernel_text
from smelt.ops.hardware import HARDWARE
from smelt.ops.scalar import SCALARS

PRODUCT = """
kernel product(x: {left}[m,k], w: {right}[k,n]) -> y: {result}[m,n]
  grid m, n
  y[m,n] = dot({x}, {w} over k as {result})
"""
FAST = Policy(math="fast")
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "i8": np.int8}


def product(left, right, policy, result="f32", x="x[m,k]", w="w[k,n]"):
    """A printed product, its result, the interpreter's, and the sum of absolute products."""
    kernel = parse(PRODUCT.format(left=left, right=right, result=result, x=x, w=w).strip())
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(s) * 5 for s in ((21, 150), (150, 19))]
    arrays = [a.astype(TYPES[t]) for a, t in zip(arrays, (left, right), strict=True)]
    source = with_lanes(triton_source(kernel, policy=policy), 32)
    (y,) = launch(source, arrays)
    wide = [a.astype(np.float64) for a in arrays]
    return source, y, run(kernel, arrays)["y"], abs(wide[0]) @ abs(wide[1])


@pytest.mark.parametrize("half", ["bf16", "f16"])
@pytest.mark.parametrize("products", ["exact", "split", "narrow"])
def test_halves_are_multiplied_as_they_are(half, products):
    source, y, wanted, size = product(half, half, Policy(products=products))
    assert source.count("tl.dot(") == source.count("tl.dot(t1, t2)") == 1
    assert "input_precision" not in source
    assert (abs(y - wanted) <= 2.0**-22 * size).all()


def test_rounded_values_and_selections_are_halves_too():
    source, y, wanted, size = product(
        "f32", "bf16", Policy(), x="bf16(x[m,k] * 2)", w="select(w[k,n] > 0, w[k,n], 0)"
    )
    assert "input_precision" not in source
    assert (abs(y - wanted) <= 2.0**-20 * size).all()


@pytest.mark.parametrize(
    ("right", "products", "error", "text"),
    [
        ("bf16", "exact", 2.0**-22, ".to(tl.bfloat16)"),
        ("bf16", "split", 2.0**-16, ".to(tl.bfloat16)"),
        ("bf16", "narrow", 2.0**-8, ".to(tl.bfloat16)"),
        ("f16", "exact", 2.0**-22, ".to(tl.bfloat16)"),
        ("f16", "split", 2.0**-20, '"tf32x3"'),
        ("f16", "narrow", 2.0**-11, ".to(tl.float16)"),
        ("f32", "exact", 2.0**-22, '"ieee"'),
        ("f32", "split", 2.0**-20, '"tf32x3"'),
        ("f32", "narrow", 2.0**-10, '"tf32"'),
    ],
)
def test_float32_beside_a_half_has_the_error_of_its_policy(right, products, error, text):
    source, y, wanted, size = product("f32", right, Policy(products=products))
    assert text in source
    assert (abs(y - wanted) <= error * size).all()
    if error > 2.0**-17:
        assert (abs(y - wanted) > error * size / 2000).any()


@pytest.mark.parametrize(("right", "terms"), [("bf16", 3), ("f16", 5)])
def test_float32_beside_a_half_is_exact_in_terms(right, terms):
    """All 24 bits of one factor meet all bits of the other one."""
    source, *_ = product("f32", right, Policy())
    assert source.count("tl.dot(") == terms and "input_precision" not in source
    kernel = parse(
        PRODUCT.format(left="f32", right=right, result="f32", x="x[m,k]", w="w[k,n]").strip()
    )
    bits = np.random.default_rng(3).integers(1 << 23, 1 << 24, (16, 1))
    x = np.ldexp(bits, -np.arange(16).reshape(16, 1)).astype(np.float32)
    w = np.ldexp(np.arange(1025, 1057), -20).reshape(1, 32).astype(TYPES[right])
    (y,) = launch(triton_source(kernel), [x, w])
    wanted = x.astype(np.float64) * w.astype(np.float64)
    np.testing.assert_allclose(y, wanted, 2.0**-22, 0)
    if right == "bf16":
        short = np.ldexp(np.ones((1, 32)), np.arange(32) - 16).astype(TYPES[right])
        (y,) = launch(triton_source(kernel), [x, short])
        np.testing.assert_array_equal(y, x.astype(np.float64) * short.astype(np.float64))


@pytest.mark.parametrize("steps", ["grid m, n", "grid m/64, n/64\n  stream k/16 with s = 0 [m,n]"])
@pytest.mark.parametrize(
    ("right", "products"), [("bf16", "exact"), ("bf16", "split"), ("f16", "exact")]
)
def test_infinities_beside_terms_are_kept(right, products, steps):
    """Terms that are zero, or of the other sign, would make them NaN."""
    is_looped = "stream" in steps
    body = "    s' = s + dot(x[m,k], w[k,n] over k)\n" if is_looped else ""
    total = "s" if is_looped else "dot(x[m,k], w[k,n] over k)"
    kernel = parse(
        f"kernel k(x: f32[m,k], w: {right}[k,n]) -> y: f32[m,n]\n"
        f"  {steps}\n{body}  y[m,n] = {total}\n"
    )
    x = np.random.default_rng(5).uniform(1, 2, (8, 40)).astype(np.float32)
    x[:3] = np.round(x[:3])
    w = np.ones((40, 5), TYPES[right])
    w[3, 0], w[30, 1], w[5, 2], w[33, 3] = np.inf, -np.inf, np.nan, np.inf
    w[2, 3] = -np.inf
    source = with_lanes(triton_source(kernel, policy=Policy(products=products)), 16)
    (y,) = launch(source, [x, w])
    assert source.count("tl.dot(") > 1
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(y, x @ w.astype(np.float32), 2.0**-15)


@pytest.mark.parametrize("products", ["exact", "split"])
def test_terms_keep_infinities(products):
    kernel = parse(
        PRODUCT.format(left="f32", right="bf16", result="f32", x="x[m,k]", w="w[k,n]").strip()
    )
    x = np.full((2, 3), 3.0, np.float32)
    x[0, 0], x[1, 1] = np.inf, np.nan
    w = np.ones((3, 2), ml_dtypes.bfloat16)
    (y,) = launch(triton_source(kernel, policy=Policy(products=products)), [x, w])
    assert np.isinf(y[0]).all()
    assert np.isnan(y[1]).all()


def test_bytes_are_multiplied_as_they_are():
    source, y, wanted, _ = product(
        "i8", "i8", Policy(), result="i32", x="i32(x[m,k])", w="i32(w[k,n])"
    )
    assert "out_dtype=tl.int32" in source
    assert (y == wanted).all()


@pytest.mark.parametrize("name", [n for n in GOLDENS if n not in ("adamw", "histogram")])
def test_golden_with_hardware_functions_is_near(name):
    kernel, reference = parse(GOLDENS[name]), REFERENCES[name]
    arrays = reference.inputs(np.random.default_rng(2), 2)
    source = triton_source(kernel, policy=FAST)
    extra = extra_sizes(name, arrays)
    if any(p.strides for p in kernel.inputs):
        return
    outputs = launch(with_lanes(source, 16), list(arrays.values()), **named_sizes(extra))
    wanted = run(kernel, arrays, extra)
    for p, actual in zip(kernel.outputs, outputs, strict=True):
        a, b = (np.asarray(x, np.float64) for x in (actual, wanted[p.name]))
        np.testing.assert_allclose(a, b, 2e-5, 2e-5)


def test_hardware_functions_are_printed_by_policy_only():
    kernel = parse(GOLDENS["softmax_long"])
    assert "tl.exp2" not in triton_source(kernel)
    assert "tl.exp2" in triton_source(kernel, policy=FAST)


@pytest.mark.parametrize("op", HARDWARE)
def test_hardware_form_is_near_its_row(op):
    """The error that a formula adds to the instructions' own is what it says."""
    row = SCALARS[op]
    assert row.hardware is HARDWARE[op]
    arguments = {
        1: "x[n]",
        2: "x[n], i32(ceil(x[n] * 1.4)) + 1" if op.endswith("_over") else "x[n], x[n] + 3",
    }
    kernel = parse(f"""
kernel f(x: f32[n]) -> y: f32[n]
  grid n/256
  y[n] = {op}({arguments[row.arity]})
""")
    x = np.concatenate([np.linspace(-80, 80, 999), [0.5, 2.0, 1e-3]]).astype(np.float32)
    positive = op in ("log", "log2", "rsqrt", "sqrt")
    x = abs(x) + np.float32(1e-3) if positive else x
    (y,) = launch(triton_source(kernel, policy=FAST), [x])
    wanted = run(kernel, [x])["y"]
    np.testing.assert_allclose(y, wanted, 8e-6, 1e-6)


@pytest.mark.parametrize("op", ["exp", "exp2", "log", "rsqrt", "div"])
def test_hardware_forms_keep_special_values(op):
    argument = "x[n], 2" if op == "div" else "x[n]"
    kernel = parse(f"kernel f(x: f32[n]) -> y: f32[n]\n  grid n/256\n  y[n] = {op}({argument})")
    x = np.array([0.0, np.inf, np.nan], np.float32)
    (y,) = launch(triton_source(kernel, policy=FAST), [x])
    np.testing.assert_array_equal(y, run(kernel, [x])["y"])


@pytest.mark.parametrize("op", ["exp_moved", "exp2_moved"])
def test_sums_are_moved_between_powers_as_by_their_row(op):
    """Also where a maximum is none, infinite, NaN or far; where nothing moves the factor is 1."""
    kernel = parse(
        f"kernel f(x: f32[n], y: f32[n]) -> z: f32[n]\n  grid n/256\n  z[n] = {op}(x[n], y[n])"
    )
    inf, nan = np.inf, np.nan
    x = np.array([-inf, 0, 5, inf, nan, 1, 1e6, 1e6, 3, -inf, 2e5], np.float32)
    y = np.array([0, 0, 5, inf, 1, nan, 1e6, 1e6 + 1, inf, -inf, -3], np.float32)
    (z,) = launch(triton_source(kernel, policy=FAST), [x, y])
    wanted = run(kernel, [x, y])["z"]
    np.testing.assert_allclose(z, wanted, 1e-5)
    assert (z[1:3] == 1).all()


def test_rows_share_the_reciprocal_of_their_divisor():
    kernel = parse("""
kernel f(x: f32[r,c]) -> y: f32[r,c]
  grid r
  v0 = x[r,c]
  v1 = sum(v0 over c)
  y[r,c] = v0 / v1 + v1 / 3 + v1 / v0
""")
    shared = share_divisors(kernel)
    assert "v0 * (1 / v1) + v1 / 3 + v1 / v0" in kernel_text(shared)
    x = np.random.default_rng(0).random((5, 33), np.float32)
    a, b = (run(k, [x])["y"] for k in (kernel, shared))
    np.testing.assert_allclose(a, b, 2e-6)


@pytest.mark.parametrize("products", ["exact", "split", "narrow"])
@pytest.mark.parametrize(
    ("left", "right"), [("bf16", "bf16"), ("f32", "bf16"), ("f16", "bf16"), ("f32", "f32")]
)
def test_without_matrix_units_products_are_of_float32(left, right, products):
    policy = Policy(products=products, has_matrix_units=False)
    source, y, wanted, size = product(left, right, policy)
    assert source.count('input_precision="ieee"') == 1
    assert (abs(y - wanted) <= 2.0**-22 * size).all()


def test_without_matrix_units_float16_is_multiplied_as_it_is():
    source, y, wanted, size = product("f16", "f16", Policy(has_matrix_units=False))
    assert "input_precision" not in source
    assert (abs(y - wanted) <= 2.0**-22 * size).all()


@pytest.mark.parametrize("result", ["i8", "i32"])
@pytest.mark.parametrize("has_units", [True, False])
def test_integers_are_multiplied_exactly(result, has_units):
    """Results of 8 bits wrap."""
    source, y, wanted, _ = product(
        "i8",
        "i8",
        Policy(has_matrix_units=has_units),
        result,
        f"{result}(x[m,k])",
        f"{result}(w[k,n])",
    )
    np.testing.assert_array_equal(y, wanted)
    assert ('input_precision="ieee").to(tl.int32)' in source) == (result == "i32" and not has_units)
    assert ("tl.dot" in source) == (result == "i32")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_sums_of_narrow_integers_wrap_before_they_are_compared(dtype):
    name = {"b": "i8", "B": "u8", "h": "i16"}[np.dtype(dtype).char]
    text = f"kernel f(x: {name}[n,k]) -> y: bool[n]\n  grid n\n  y[n] = sum(x[n,k] over k) > 3"
    x = np.full((5, 700), 100, dtype)
    kernel = parse(text)
    (y,) = launch(triton_source(kernel), [x])
    np.testing.assert_array_equal(y, run(kernel, [x])["y"])
    np.testing.assert_array_equal(y, x.sum(1, dtype=dtype) > 3)
