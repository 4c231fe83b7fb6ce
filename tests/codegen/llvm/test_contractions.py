"""Contractions: every size up to two register tiles, every layout, and fused operators."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse, one_cluster

from smelt import lower
from smelt.codegen.build import asm_text
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.graph.text import parse
from smelt.machine.target import Target
from smelt.types.dtype import bf16

Array = np.ndarray[Any, Any]
DEPTHS = (0, 1, 2, 15, 16, 17, 255, 256, 257)
TILES = {"avx512": (8, 32), "avx2": (4, 16), "portable": (4, 8), "neon": (12, 8)}


def matrices(dtype: str, spec: str) -> str:
    left, right = spec.partition("->")[0].split(";")
    line = f's = contract(x, y) {{spec="{spec}"}}'
    return (
        f"graph f(x: {dtype}[{left.strip()}], y: {dtype}[{right.strip()}]) {{\n {line}\n"
        " return s\n}"
    )


def whole_numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    """Sums of their products are exact in every type used here."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def is_tiled(kernel: SingleKernel, isa: str) -> bool:
    """Whether the contractions run on register tiles (else they are folds of products)."""
    target = Target.for_isa(isa)  # type: ignore[arg-type]
    phases = program(kernel.kernel).phases
    return all(schedule(p, target).products for p in phases)


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("usual", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("isa", RUNNABLE)
def test_every_size_up_to_two_tiles(isa: str, dtype: str, usual: bool) -> None:
    """In the forms that such sizes get, and in the code for all sizes."""
    spec = "m,k; k,n -> m,n"
    kernel = fuse(matrices({"f4": "f32", "f8": "f64"}[dtype], spec), isa, usual=usual)
    assert is_tiled(kernel, isa)
    rows, columns = TILES[isa]
    if dtype == "f8":
        columns //= 2
    every = isa == RUNNABLE[0] and dtype == "f4"
    for k in DEPTHS if every else (0, 1, 17, 257):
        x = whole_numbers((2 * rows + 1, k), dtype, k)
        y = whole_numbers((k, 2 * columns + 1), dtype, k + 1)
        wanted = x.astype("f8") @ y.astype("f8")
        for m in range(1, 2 * rows + 2):
            for n in range(1, 2 * columns + 2, 1 if every and k == 17 else 7):
                (actual,) = kernel(x[:m], np.ascontiguousarray(y[:, :n]))
                assert np.array_equal(actual, wanted[:m, :n]), (m, n, k)


def test_sizes_beyond_blocks() -> None:
    """Blocks of rows, of columns and of depth, one more and one less than they hold."""
    kernel = fuse(matrices("f32", "m,k; k,n -> m,n"))
    for m, n, k in (
        (143, 255, 511),
        (144, 256, 512),
        (145, 257, 513),
        (300, 1, 1),
        (1, 600, 300),
        (13, 513, 3),
        (0, 5, 3),
        (5, 0, 3),
    ):
        x, y = whole_numbers((m, k), "f4", 1), whole_numbers((k, n), "f4", 2)
        assert np.array_equal(kernel(x, y)[0], x @ y), (m, n, k)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_short_rows_are_multiplied_in_place(isa: str) -> None:
    """Whole panels wide or not, and beyond blocks of depth: others are packed by the same code."""
    kernel = fuse(matrices("f32", "m,k; k,n -> m,n"), isa, usual=True)
    for n, k in product((16, 31, 32, 64, 96, 127, 128, 160, 288), (1, 40, 256, 259)):
        x, y = whole_numbers((13, k), "f4", 1), whole_numbers((k, n), "f4", 2)
        (actual,) = kernel(x, y)
        assert np.array_equal(actual, x @ y), (n, k)
        assert np.array_equal(run_guarded(kernel, [x, y], at_end=True)[0], actual), (n, k)


def test_rounding_is_that_of_a_chain_of_multiply_adds() -> None:
    rng = np.random.default_rng(4)
    for isa, (dtype, step) in product(RUNNABLE, (("f4", 2.0**-24), ("f8", 2.0**-53))):
        kernel = fuse(matrices({"f4": "f32", "f8": "f64"}[dtype], "m,k; k,n -> m,n"), isa)
        for k in (1, 100, 1000):
            x, y = (rng.standard_normal(s).astype(dtype) for s in ((30, k), (k, 50)))
            exact = x.astype(np.longdouble) @ y.astype(np.longdouble)
            allowed = 1.01 * (k + 1) * step * (np.abs(x).astype("f8") @ np.abs(y).astype("f8"))
            assert (np.abs(kernel(x, y)[0] - exact) <= allowed).all(), (isa, dtype, k)


# ---- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("isa", RUNNABLE)
def test_every_transposition(isa: str, dtype: str) -> None:
    every = enumerate(product(("m,k", "k,m"), ("k,n", "n,k"), ("m,n", "n,m")))
    for number, (left, right, out) in every:
        if dtype == "f64" and number.bit_count() % 2 == RUNNABLE.index(isa) % 2:
            continue  # half of them: the other instructions have the rest
        kernel = fuse(matrices(dtype, f"{left}; {right} -> {out}"), isa)
        assert is_tiled(kernel, isa)
        for m, n, k in ((1, 1, 1), (5, 33, 17), (12, 32, 16), (65, 63, 70), (25, 130, 257)):
            sizes, kind = {"m": m, "n": n, "k": k}, {"f32": "f4", "f64": "f8"}[dtype]
            x, y = (
                whole_numbers(tuple(sizes[a] for a in side.split(",")), kind, k)
                for side in (left, right)
            )
            (actual,) = kernel(x, y)
            assert np.array_equal(actual, kernel.expected(x, y)[0]), (left, right, out, m, n, k)
            inside = run_guarded(kernel, [x, y], at_end=k % 2 == 0)
            assert np.array_equal(inside[0], actual)


SPECS = (
    "b,m,k; b,k,n -> b,m,n",
    "b,m,k; k,n -> b,m,n",
    "m,k; b,k,n -> b,m,n",
    "m,b,k; b,n,k -> m,b,n",
    "b,m,k; b,k,n -> m,n",
    "b,m,k; k,n -> n,m,b",
    "b,m,k; k,n -> m,b,n",
    "b,c,m,k; b,c,k,n -> b,m,c,n",
    "b,c,m,k; b,k,n -> b,c,m,n",
    "m,b,c; n,c,b -> m,n",
    "m,b,c; n,b,c -> n,m",
    "b,m,k; k,c,n -> m,n,b,c",
    "m,k; k -> m",
    "k; k,n -> n",
    "m; n -> m,n",
    "k; k -> ",
    "b,k; b,k -> b",
    "m,k; n -> m,n",
    "m,k; m,n -> n",
    "i,i,k; k,n -> i,n",
)


@pytest.mark.parametrize("spec", SPECS)
def test_axes_of_every_kind(spec: str) -> None:
    """Batches, rows that do not collapse, several summed axes, vectors, diagonals."""
    names = sorted(set(re.findall(r"[a-z]", spec)))
    for isa in RUNNABLE[:2]:
        kernel = fuse(matrices("f32", spec), isa)
        for sizes in ((3, 2, 40, 17, 35), (1, 4, 1, 33, 7), (2, 3, 13, 64, 16)):
            sizes_by_name = dict(zip(names, sizes, strict=False))
            arrays = [
                whole_numbers(tuple(sizes_by_name[str(d)] for d in node.type.shape), "f4", k)
                for k, node in enumerate(kernel.graph.inputs)
            ]
            actual = run_guarded(kernel, arrays, at_end=True, one_by_one=True)[0]
            assert np.array_equal(actual, kernel.expected(*arrays)[0]), sizes_by_name
            assert np.array_equal(actual, kernel(*arrays)[0])


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8", "i8 as i32", "bf16", "f16", "f32 as f64"])
def test_other_types(dtype: str) -> None:
    """Integers wrap, half types accumulate in float32 and round once, wider results widen first."""
    kind, _, wide = dtype.partition(" as ")
    code = matrices(kind, "m,k; k,n -> m,n")
    kernel = fuse(code.replace('n"}', f'n", dtype={wide}}}') if wide else code)
    assert kind not in ("i32", "i64") or is_tiled(kernel, RUNNABLE[0])
    for m, n, k in ((1, 1, 1), (13, 33, 17), (40, 70, 300)):
        for seed in range(2):
            kinds = [node.type.dtype.numpy for node in kernel.graph.inputs]
            x, y = whole_numbers((m, k), kinds[0], seed), whole_numbers((k, n), kinds[1], 9)
            if kinds[0].kind in "iu" and seed:
                x, y = x * 13, y * 17
            (actual,) = kernel(x, y)
            (wanted,) = kernel.expected(x, y)
            assert actual.dtype == wanted.dtype
            assert np.array_equal(actual.astype("f8"), wanted.astype("f8")), (m, n, k)


def test_saturated_integers_are_exact() -> None:
    """Extremes of int8 and uint8 on register tiles: no step saturates, sums are int32's."""
    for left, right in (("i8", "i8"), ("u8", "i8")):
        code = (
            f"graph f(x: {left}[m,k], y: {right}[k,n]) {{\n a = cast(x) {{dtype=i32}}\n"
            ' b = cast(y) {dtype=i32}\n s = contract(a, b) {spec="m,k; k,n -> m,n"}\n'
            " return s\n}"
        )
        for isa in RUNNABLE:
            for usual in (False, True):
                kernel = fuse(code, isa, usual=usual)
                assert is_tiled(kernel, isa)
                lows = [np.iinfo(n.type.dtype.numpy).min for n in kernel.graph.inputs]
                highs = [np.iinfo(n.type.dtype.numpy).max for n in kernel.graph.inputs]
                for a, b in product((lows[0], highs[0]), (lows[1], highs[1])):
                    x = np.full((21, 300), a, kernel.graph.inputs[0].type.dtype.numpy)
                    y = np.full((300, 37), b, kernel.graph.inputs[1].type.dtype.numpy)
                    assert (kernel(x, y)[0] == 300 * int(a) * int(b)).all(), (isa, a, b)


WINDOWS = {
    "plain": 'spec="b,c,t + r; o,c,r -> b,o,t", extents=(("t", n - 2),)',
    "padded": 'spec="b,c,t + r - 1; o,c,r -> b,o,t", extents=(("t", n),), padded=true',
    "strided": 'spec="b,c,2*t + r; o,c,r -> b,o,t", extents=(("t", (n - 1)//2),)',
}


@pytest.mark.parametrize("variant", WINDOWS)
def test_convolutions(variant: str) -> None:
    for isa in RUNNABLE[:2]:
        kernel = fuse(
            "graph f(x: f32[b,c,n], w: f32[o,c,3]) {\n"
            f" y = contract(x, w) {{{WINDOWS[variant]}}}\n return y\n}}",
            isa,
        )
        for b, c, n, o in ((1, 1, 3, 1), (2, 5, 70, 13), (1, 17, 300, 33)):
            x, w = whole_numbers((b, c, n), "f4", n), whole_numbers((o, c, 3), "f4", 5)
            actual = run_guarded(kernel, [x, w], at_end=True)[0]
            assert np.array_equal(actual, kernel.expected(x, w)[0]), (b, c, n, o)


def test_nan_and_infinity_travel() -> None:
    """They reach their own row and column, and no neighbour in the tile."""
    kernel = fuse(matrices("f32", "m,k; k,n -> m,n"))
    rng = np.random.default_rng(8)
    for m, n, k in ((13, 33, 5), (25, 65, 257), (3, 7, 16)):
        for _ in range(6):
            x, y = (rng.standard_normal(s).astype("f4") for s in ((m, k), (k, n)))
            for a in (x, y):
                places = rng.integers(0, a.size, 3)
                a.ravel()[places] = [np.nan, np.inf, -np.inf]
                a.ravel()[rng.integers(0, a.size, 2)] = 0
            (actual,) = kernel(x, y)
            with np.errstate(all="ignore"):
                terms = x.astype("f8")[:, :, None] * y.astype("f8")[None]
                wanted = terms.sum(1)
            special = ~np.isfinite(wanted)
            assert np.array_equal(
                np.where(special, actual, 0), np.where(special, wanted, 0), equal_nan=True
            )
            assert np.isfinite(actual[~special]).all()


# ---- what surrounds them -------------------------------------------------------------------------

HEAD = "graph f(x: f32[m,k], w: f32[n,k], b: f32[n], r: f32[m,n]) {"
PRODUCT = 's = contract({left}, {right}) {{spec="m,k; n,k -> m,n"}}'
BEFORE = {
    "normalised": "q = mul(x, x)\n u = reduce.sum(q) {axes=(1,)}\n v = rsqrt(u)\n"
    " d = reshape(v) {shape=(m,1)}\n a = mul(x, d)",
    "exponential": "a = exp(x)",
    "both": "a = tanh(x)\n c = mul(w, 0.5:f32)",
    "transposed": "d = permute(x) {perm=(1,0)}\n e = sin(d)\n a = permute(e) {perm=(1,0)}",
}
AFTER = {
    "bias and tanh": "t = add(s, b)\n z = tanh(t)",
    "residual": "t = add(s, b)\n z = add(t, r)",
    "transposed": "t = add(s, r)\n z = permute(t) {perm=(1,0)}",
    "row maximum": "z = reduce.max(s) {axes=(1,)}",
    "column sum": "z = reduce.sum(s) {axes=(0,)}",
    "position": "t = add(s, b)\n z = reduce.argmax(t) {axes=(1,)}",
    "softmax": "h = reduce.max(s) {axes=(1,)}\n i = reshape(h) {shape=(m,1)}\n t = sub(s, i)\n"
    " e = exp(t)\n l = reduce.sum(e) {axes=(1,)}\n j = reshape(l) {shape=(m,1)}\n"
    " z = div(e, j)",
    "norm": "h = reduce.sum(s) {axes=(1,)}\n i = reshape(h) {shape=(m,1)}\n t = sub(s, i)\n"
    " q = mul(t, t)\n l = reduce.sum(q) {axes=(1,)}\n j = reshape(l) {shape=(m,1)}\n"
    " c = sqrt(j)\n z = div(t, c)",
    "gated": "t = mul(s, r)\n u = sigmoid(s)\n z = mul(t, u)",
}


def surrounded(before: str, after: str) -> str:
    left, right = ("a", "c" if before == "both" else "w") if before else ("x", "w")
    lines = [
        HEAD,
        BEFORE.get(before, ""),
        PRODUCT.format(left=left, right=right),
        AFTER.get(after, "z = mul(s, 1.0:f32)"),
        "return z",
        "}",
    ]
    return "\n ".join(line for line in lines if line)


CASES = [(b, "") for b in BEFORE] + [("", a) for a in AFTER]
CASES += [("normalised", "softmax"), ("both", "position"), ("transposed", "transposed")]
IN_TURN = [(*c, i) for k, c in enumerate(CASES) for i in RUNNABLE[:1] + RUNNABLE[1 + k % 2 :: 2]]


def close(actual: Array, wanted: Array, scale: float = 1.0) -> bool:
    if actual.dtype.kind in "iu":
        return bool(np.mean(actual == wanted) > 0.99)
    return bool(np.allclose(actual, wanted, rtol=3e-5, atol=3e-5 * scale))


@pytest.mark.parametrize(("before", "after", "isa"), IN_TURN)
def test_fused_with_what_surrounds(before: str, after: str, isa: str) -> None:
    kernel = fuse(surrounded(before, after), isa)
    assert is_tiled(kernel, isa)
    assert len(kernel.built.functions) == 1
    rng = np.random.default_rng(12)
    for m, n, k in ((1, 1, 1), (13, 33, 17), (50, 260, 300), (60, 70, 5)):
        shapes = {"x": (m, k), "w": (n, k), "b": (n,), "r": (m, n)}
        arrays = [
            rng.standard_normal(shapes[str(node.op.label)]).astype("f4") / 2
            for node in kernel.graph.inputs
        ]
        if after == "norm" and n == 1:
            continue  # 0 / 0
        (actual,), (wanted,) = kernel(*arrays), kernel.expected(*arrays)
        assert close(actual, wanted, max(1.0, k**0.5)), (m, n, k)
        read = used(kernel, arrays)
        inside = run_guarded(kernel, read, at_end=m != 13, sizes=kernel.sizes(arrays))
        assert inside[0].tobytes() == actual.tobytes(), (m, n, k)


def used(kernel: SingleKernel, arrays: list[Array]) -> list[Array]:
    """Return the inputs that the kernel reads."""
    inputs = one_cluster(kernel.graph).inputs
    return [a for node, a in zip(kernel.graph.inputs, arrays, strict=True) if node in inputs]


ATTENTION = """graph f(q: f32[b,m,d], k: f32[b,n,d], v: f32[b,n,e]) {
  s = contract(q, k) {spec="b,m,d; b,n,d -> b,m,n"}
  c = mul(s, 0.25:f32)
  h = reduce.max(c) {axes=(2,)}
  i = reshape(h) {shape=(b,m,1)}
  t = sub(c, i)
  w = exp(t)
  l = reduce.sum(w) {axes=(2,)}
  j = reshape(l) {shape=(b,m,1)}
  p = div(w, j)
  o = contract(p, v) {spec="b,m,n; b,n,e -> b,m,e"}
  return o
}"""
PERCEPTRON = """graph f(x: f32[m,k], u: f32[h,k], w: f32[n,h]) {
  s = contract(x, u) {spec="m,k; h,k -> m,h"}
  t = tanh(s)
  o = contract(t, w) {spec="m,h; n,h -> m,n"}
  z = add(o, 1.0:f32)
  return z
}"""
SQUARES = """graph f(x: f32[m,k]) {
  s = contract(x, x) {spec="m,k; n,k -> m,n"}
  t = contract(x, x) {spec="k,m; k,n -> m,n"}
  u = contract(s, s) {spec="m,k; k,n -> m,n"}
  return s, t, u
}"""


@pytest.mark.parametrize("isa", RUNNABLE)
def test_attention_in_one_kernel(isa: str) -> None:
    kernel = fuse(ATTENTION, isa)
    assert is_tiled(kernel, isa)
    rng = np.random.default_rng(3)
    sizes = ((1, 1, 1, 1, 1), (2, 50, 300, 16, 33), (3, 13, 7, 5, 40), (1, 97, 257, 64, 64))
    for b, m, n, d, e in sizes:
        q, k, v = (rng.standard_normal(s).astype("f4") for s in ((b, m, d), (b, n, d), (b, n, e)))
        (actual,), (wanted,) = kernel(q, k, v), kernel.expected(q, k, v)
        assert np.allclose(actual, wanted, rtol=1e-4, atol=2e-5)
        inside = run_guarded(kernel, [q, k, v], at_end=True, one_by_one=True)
        assert inside[0].tobytes() == actual.tobytes()


@pytest.mark.parametrize("isa", RUNNABLE)
def test_products_of_products(isa: str) -> None:
    kernel = fuse(PERCEPTRON, isa)
    rng = np.random.default_rng(5)
    for m, k, h, n in ((1, 1, 1, 1), (50, 40, 300, 33), (49, 7, 12, 257)):
        x, u, w = (rng.standard_normal(s).astype("f4") / 4 for s in ((m, k), (h, k), (n, h)))
        (actual,), (wanted,) = kernel(x, u, w), kernel.expected(x, u, w)
        assert np.allclose(actual, wanted, rtol=1e-4, atol=1e-4)
        assert run_guarded(kernel, [x, u, w], at_end=False)[0].tobytes() == actual.tobytes()


@pytest.mark.parametrize("isa", RUNNABLE)
def test_transposed_results_are_stored_by_rows(isa: str) -> None:
    """One matrix is the left operand of a product along its rows, and of another along columns."""
    code = """graph f(q: f32[n,24], w: f32[u,24]) {
 s = contract(q, w) {spec="k,l; u,l -> k,u"}
 p = sub(s, 1.0:f32)
 y = contract(p, w) {spec="k,u; u,l -> k,l"}
 z = contract(p, q) {spec="k,u; k,l -> u,l"}
 return y, z
}"""
    kernel = fuse(code, isa)
    assert "masked.scatter" not in emit(kernel.kernel, kernel.target).llvm
    for n, u in ((1, 1), (40, 200), (70, 33)):
        arrays = [whole_numbers((m, 24), "f4", m) for m in (n, u)]
        result = run_guarded(kernel, arrays, at_end=True)
        for got, wanted in zip(result, kernel.expected(*arrays), strict=True):
            assert np.array_equal(got, wanted), (n, u)


def test_one_array_as_both_operands() -> None:
    for isa in RUNNABLE:
        kernel = fuse(SQUARES, isa)
        for shape in ((1, 1), (13, 33), (60, 300)):
            x = whole_numbers(shape, "f4", 3) / 4
            for wanted, actual in zip(kernel.expected(x), kernel(x), strict=True):
                assert np.array_equal(actual, wanted), (isa, shape)


SHARED = """graph f(x: f32[b,m,k], y: f32[k,n], i: i64[]) {
  s = contract(x, y) {spec="b,m,k; k,n -> b,m,n"}
  t = gather(s, i) {first=0}
  return s, t
}"""
PICKED = """graph f(x: f32[m,k], y: f32[n,k], z: f32[p,n]) {
  s = contract(x, y) {spec="m,k; n,k -> m,n"}
  t = contract(s, z) {spec="m,n; p,n -> m,p"}
  u = reduce.sum(s) {axes=(0,)}
  v = contract(z, y) {spec="p,n; n,k -> p,k"}
  return t, u, v
}"""


@pytest.mark.parametrize("code", [SHARED, PICKED], ids=["shared", "picked"])
def test_contractions_with_rows_of_their_own(code: str) -> None:
    """What one takes in blocks may be fixed in a task of another: then that one is not a
    contraction on tiles."""
    for isa in RUNNABLE:
        kernel = fuse(code, isa)
        for b, m, n, k, p in ((3, 3, 3, 3, 3), (2, 40, 70, 5, 20), (1, 200, 300, 9, 260)):
            sizes_by_name = {"b": b, "m": m, "n": n, "k": k, "p": p}
            arrays = [
                np.array(b - 1)
                if node.type.dtype.is_integer
                else whole_numbers(tuple(sizes_by_name[str(d)] for d in node.type.shape), "f4", b)
                for node in kernel.graph.inputs
            ]
            result = run_guarded(kernel, arrays, at_end=True, one_by_one=True)
            for wanted, got in zip(kernel.expected(*arrays), result, strict=True):
                assert np.array_equal(got, wanted), (isa, b, m, n, k)


STORED = """graph f(x: {d}[m,k], w: {d}[n,k], i: i64[p]) {{
  g = gather(x, i) {{first=0}}
  a = cast(g) {{dtype=f32}}
  c = cast(w) {{dtype=f32}}
  s = contract(a, c) {{spec="p,k; n,k -> p,n"}}
  z = cast(s) {{dtype={d}}}
  return z
}}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "i8"])
def test_gathered_rows_of_other_types(dtype: str, isa: str) -> None:
    kernel = fuse(STORED.format(d=dtype), isa)
    assert is_tiled(kernel, isa)
    kind = {"bf16": bf16.numpy, "f16": "f2", "f32": "f4", "i8": "i1"}[dtype]
    rng = np.random.default_rng(6)
    for m, n, k, p in ((1, 1, 1, 1), (9, 33, 16, 50), (20, 70, 7, 3)):
        x, w = whole_numbers((m, k), kind, 1), whole_numbers((n, k), kind, 2)
        if dtype == "i8":
            x, w = x // 3, w // 3
        i = rng.integers(0, m, p)
        actual = run_guarded(kernel, [x, w, i], at_end=True)[0]
        (wanted,) = kernel.expected(x, w, i)
        assert np.array_equal(actual.astype("f8"), wanted.astype("f8")), (m, n, k, p)


# ---- the loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isa", "counts"), [("avx512", (16, 24)), ("avx2", (8, 12)), ("neon", (16, 24))]
)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_inner_loop_stays_in_registers(isa: str, counts: tuple[int, int], dtype: str) -> None:
    """One multiply-add for each accumulator, none of them spilled to the stack: in tiles that read
    the left operand where it lies, and in higher ones that read it packed."""
    for code in (matrices(dtype, "m,k; k,n -> m,n"), *([ATTENTION] if dtype == "f32" else [])):
        kernel = lower.run(one_cluster(parse(code)), "eager", {})
        text = asm_text(kernel, Target.for_isa(isa))  # type: ignore[arg-type]
        loops = [
            body
            for body in inner_loops(text)
            if len(re.findall("fmadd|fmla", body)) in counts and "mul" not in body
        ]
        assert len(loops) == code.count("contract(")
        for body in loops:
            # An address or an end may wait on the stack, a vector may not.
            spilled = r"\(%rsp\).*mm|mm.*\(%rsp|\[sp"
            assert not re.search(spilled, body), body


def inner_loops(text: str) -> list[str]:
    """Bodies of loops of one basic block: from its label to the jump back to it."""
    results: list[str] = []
    parts = re.split(r"^(\.L\w+):.*$", text, flags=re.MULTILINE)
    for label, body in zip(parts[1::2], parts[2::2], strict=True):
        back = re.search(rf"^\s*(j\w+|b\.\w+)\s+{re.escape(label)}$", body, flags=re.MULTILINE)
        if back:
            results.append(body[: back.end()])
    return results


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("few", [1, 2, 5])
def test_rows_are_the_axis_with_many_positions(few: int, isa: str) -> None:
    """Places of few texts, texts innermost: the other operand is not packed anew for each place."""
    text = (
        f"graph f(x: f32[s,{few},k], y: f32[k,n]) {{\n"
        '  v = contract(x, y) {spec="s,b,k; k,n -> s,b,n"}\n  return v\n}'
    )
    kernel = fuse(text, isa)
    for phase in program(kernel.kernel).phases:
        (c,) = schedule(phase, Target.for_isa(isa)).blocked  # type: ignore[arg-type]
        assert c.m is not None and not isinstance(phase.axes[c.m], int)
    for s, k, n in ((1, 3, 2), (7, 40, 33), (40, 17, 50)):
        x = whole_numbers((s, few, k), "f4", s)
        y = whole_numbers((k, n), "f4", k)
        np.testing.assert_array_equal(kernel(x, y)[0], x @ y)
