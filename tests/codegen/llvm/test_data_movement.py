"""Permutations, strides of every kind, views and gathers."""

from __future__ import annotations

from itertools import permutations, product
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.codegen.llvm.test_reductions import NAMES

from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule

Array = np.ndarray[Any, Any]
LETTERS = "abcd"


def filled(dtype: str, shape: tuple[int, ...]) -> Array:
    """Elements that differ from their neighbours in every direction."""
    count = int(np.prod(shape))
    if dtype == "bool":
        return (np.random.default_rng(count).random(shape) < 0.5).astype("?")
    flat = (np.arange(count) * 37 + 11) % (251 if NAMES[dtype].itemsize > 1 else 127)
    return flat.astype(NAMES[dtype].numpy).reshape(shape)


def permuted(dtype: str, perm: tuple[int, ...], isa: str) -> Any:
    shape = ",".join(LETTERS[: len(perm)])
    return fuse(
        f"graph f(x: {dtype}[{shape}]) {{\n y = permute(x) {{perm={perm}}}\n return y\n}}", isa
    )


SHAPES = {
    2: ((1, 70), (17, 1), (15, 16), (16, 33), (64, 65), (63, 130), (129, 31), (0, 5)),
    3: ((3, 17, 65), (2, 64, 16), (66, 2, 19), (1, 1, 9), (5, 0, 2)),
    4: ((2, 3, 17, 65), (18, 2, 33, 3), (1, 65, 1, 17)),
}
PERMS = [p for rank in (2, 3, 4) for p in permutations(range(rank)) if list(p) != sorted(p)]


@pytest.mark.parametrize("dtype", ["i8", "bool", "f16", "f32", "f64"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_every_permutation(rank: int, dtype: str) -> None:
    few = rank == 4 and dtype != "f32"
    for perm in [p for p in PERMS if len(p) == rank][:: 5 if few else 1]:
        kernel = permuted(dtype, perm, RUNNABLE[0])
        for shape in SHAPES[rank]:
            x = filled(dtype, shape)
            assert np.array_equal(kernel(x)[0], x.transpose(perm)), (perm, shape)
            inside = run_guarded(kernel, [x], at_end=shape[0] % 2 == 0)
            assert np.array_equal(inside[0], x.transpose(perm)), (perm, shape)


@pytest.mark.parametrize("isa", RUNNABLE[1:])
@pytest.mark.parametrize("dtype", ["i8", "u16", "i32", "i64"])
def test_transposing_with_other_instruction_sets(isa: str, dtype: str) -> None:
    for perm in ((1, 0), (2, 1, 0)):
        kernel = permuted(dtype, perm, isa)
        for shape in SHAPES[len(perm)]:
            x = filled(dtype, shape)
            actual = run_guarded(kernel, [x], at_end=True)
            assert np.array_equal(actual[0], x.transpose(perm)), shape


TURNED_WITH_WORK = """graph f(x: f32[a,b], y: f32[b,a], z: f16[a,b], r: f32[b]) {
  u = permute(x) {perm=(1,0)}
  v = permute(z) {perm=(1,0)}
  h = cast(v) {dtype=f32}
  s = add(u, y)
  t = mul(s, h)
  q = reshape(r) {shape=(b,1)}
  w = add(t, q)
  return w, s
}"""


@pytest.mark.parametrize("isa", RUNNABLE)
def test_arithmetic_on_transposed_tiles(isa: str) -> None:
    kernel = fuse(TURNED_WITH_WORK, isa)
    rng = np.random.default_rng(1)
    for a, b in ((1, 1), (64, 64), (65, 63), (200, 17), (16, 300)):
        x, y, r = (rng.standard_normal(s).astype("f4") for s in ((a, b), (b, a), (b,)))
        z = rng.standard_normal((a, b)).astype("f2")
        for wanted, got in zip(kernel.expected(x, y, z, r), kernel(x, y, z, r), strict=True):
            assert np.allclose(got, wanted, rtol=1e-6, atol=1e-6)
        inside = run_guarded(kernel, [x, y, z, r], at_end=True, one_by_one=True)
        assert all(
            p.tobytes() == q.tobytes() for p, q in zip(inside, kernel(x, y, z, r), strict=True)
        )


ALL_TURNED = """graph f(x: {dtype}[a,b], y: {dtype}[a,b], z: {dtype}[a,b]) {{
  u = permute(x) {{perm=(1,0)}}
  v = permute(y) {{perm=(1,0)}}
  w = permute(z) {{perm=(1,0)}}
  s = mul(u, v)
  t = add(s, w)
  return t
}}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8"])
def test_whole_vectors_are_stored_where_every_operand_is_transposed(isa: str, dtype: str) -> None:
    """Three loads that run across the result do not make its lanes be stored far apart."""
    kernel = fuse(ALL_TURNED.format(dtype=dtype), isa)
    nests = schedule(program(kernel.kernel).phases[0], kernel.target)
    assert [len(nest.transposed) for nest in nests.nests] == [3]
    for a, b in ((1, 1), (64, 64), (65, 63), (200, 17), (16, 300), (130, 129)):
        x, y, z = (filled(dtype, (a, b)) for _ in range(3))
        wanted = kernel.expected(x, y, z)[0]
        assert np.array_equal(run_guarded(kernel, [x, y, z], at_end=True)[0], wanted)


# ---- strides -------------------------------------------------------------------------------------


def views_of(shape: tuple[int, int], dtype: Any) -> dict[str, Array]:
    """Arrays of one shape with all kinds of strides, equal elements at equal positions."""
    m, n = shape
    plain = (np.arange(m * n) * 29 % 113).astype(dtype).reshape(shape)

    def into(whole_array: Array, view: Array) -> Array:
        view[...] = plain
        return view

    spaced, wide = np.zeros((2 * m, 3 * n), dtype), np.zeros((m, n + 5), dtype)
    backward, transposed = np.zeros(shape, dtype), np.zeros((n, m), dtype)
    boxes = np.zeros((n, 2, m), dtype)
    return {
        "plain": plain,
        "spaced": into(spaced, spaced[::2, ::3]),
        "a window": into(wide, wide[:, 3 : n + 3]),
        "backward": into(backward, backward[::-1, ::-1]),
        "transposed": into(transposed, transposed.T),
        "turned and spaced": into(boxes, boxes[::-1, 1, :].T),
    }


STRIDED = {
    "map": "graph f(x: {d}[m,n] strides(?,?), z: {d}[m,n] strides(?,?)) {{\n y = sub(x, z)\n"
    " return y\n}}",
    "rows": "graph f(x: {d}[m,n] strides(?,1), z: {d}[m,n] strides(?,?)) {{\n y = sub(x, z)\n"
    " s = reduce.sum(y) {{axes=(1,)}}\n return s\n}}",
    "columns": "graph f(x: {d}[m,n] strides(?,?), z: {d}[m,n] strides(?,?)) {{\n y = sub(x, z)\n"
    " s = reduce.max(y) {{axes=(0,)}}\n return s\n}}",
    "product": "graph f(x: {d}[m,n] strides(?,?), z: {d}[m,n] strides(?,?)) {{\n"
    ' s = contract(x, z) {{spec="m,k; n,k -> m,n"}}\n return s\n}}',
    "transposed": "graph f(x: {d}[m,n] strides(?,?), z: {d}[m,n] strides(?,?)) {{\n y = sub(x, z)\n"
    " s = permute(y) {{perm=(1,0)}}\n return s\n}}",
}


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("variant", STRIDED)
def test_inputs_of_any_strides(variant: str, isa: str) -> None:
    for dtype in ("f32", "i16"):
        kernel = fuse(STRIDED[variant].format(d=dtype), isa)
        for shape in ((1, 1), (5, 37), (33, 64), (70, 3)):
            views = views_of(shape, NAMES[dtype].numpy)
            wanted = kernel.expected(views["plain"], views["plain"][::-1])
            for first, second in product(views, ("plain", "backward", "transposed")):
                if variant == "rows" and views[first].strides[1] != views[first].itemsize:
                    continue
                (actual,) = kernel(views[first], views[second][::-1])
                assert np.array_equal(actual, wanted[0]), (first, second, shape, dtype)


@pytest.mark.parametrize("variant", ["map", "columns", "product", "transposed"])
def test_repeated_inputs(variant: str) -> None:
    """Broadcast arrays have strides of zero; every second element of a row is another kind."""
    kernel = fuse(STRIDED[variant].format(d="f32"))
    row = np.arange(37, dtype="f4")
    for x in (
        np.broadcast_to(row, (20, 37)),
        np.broadcast_to(row[:20, None], (20, 37)),
        np.broadcast_to(np.float32(3), (20, 37)),
    ):
        z = np.full((20, 37), 2, "f4")
        assert np.array_equal(kernel(x, z)[0], kernel.expected(x, z)[0])
        assert np.array_equal(kernel(x, x)[0], kernel.expected(x, x)[0])


def test_known_strides() -> None:
    """Strides that the text tells: a row that stands still, columns side by side."""
    kernel = fuse(
        "graph f(x: f32[m,n] strides(0,1), z: f32[m,n] strides(1,?)) {\n"
        " y = sub(x, z)\n return y\n}"
    )
    for m, n in ((1, 1), (20, 37), (64, 65)):
        x = np.broadcast_to(np.arange(n, dtype="f4"), (m, n))
        z = np.arange(m * n, dtype="f4").reshape(n, m).T
        assert np.array_equal(kernel(x, z)[0], x - z)


# ---- views ---------------------------------------------------------------------------------------

VIEWS = {
    "flip": "y = flip(x) {axes=(0,1)}",
    "reversed rows": "y = flip(x) {axes=(1,)}",
    "slice": "y = slice(x) {starts=(1,2), sizes=(m - 1,n - 2), steps=(1,1)}",
    "steps": "y = slice(x) {starts=(m - 1,0), sizes=(m,n), steps=(-1,1)}",
    "pad": "y = pad(x) {low=(1,2), high=(3,0), value=7.0}",
    "pad with nan": "y = pad(x) {low=(0,1), high=(0,65), value=nan}",
    "flip of a pad": "w = pad(x) {low=(2,1), high=(0,3), value=-1.5}\n y = flip(w) {axes=(0,1)}",
    "concat": "w = concat(x, x) {axis=0}\n y = concat(w, w) {axis=1}",
    "concat turned": "w = permute(x) {perm=(1,0)}\n y = concat(w, w) {axis=0}",
    "reshape": "y = reshape(x) {shape=(m*n,)}",
    "split": "w = reshape(x) {shape=(m*n,)}\n v = mul(w, 2.0:f32)\n y = reshape(v) {shape=(m,n)}",
    "rejoined": "w = permute(x) {perm=(1,0)}\n y = reshape(w) {shape=(m*n,)}",
    "expand": "w = reshape(x) {shape=(m,1,n)}\n y = expand(w) {shape=(2,m,3,n)}",
    "sum of a pad": "w = pad(x) {low=(1,2), high=(3,1), value=0.5}\n y = reduce.sum(w) {axes=(1,)}",
    "pad of a sum": "w = reduce.sum(x) {axes=(1,)}\n y = pad(w) {low=(2,), high=(1,), value=4.0}",
    "two zeros": "v = pad(x) {low=(1,1), high=(1,1), value=-0.0}\n"
    " w = pad(x) {low=(1,1), high=(1,1), value=0.0}\n y = sub(v, w)",
    "negative zero": "y = pad(x) {low=(1,1), high=(1,1), value=-0.0}",
    "positions": "i = iota() {shape=(m,n), axis=1, dtype=f32}\n y = add(x, i)",
}


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, isa: str) -> None:
    kernel = fuse(f"graph f(x: f32[m,n]) {{\n {VIEWS[name]}\n return y\n}}", isa)
    for shape in ((2, 3), (1, 70), (17, 16), (65, 64), (20, 300)):
        if name == "slice" and shape[1] < 3:
            continue
        x = filled("f32", shape) - 60
        (wanted,), (actual,) = kernel.expected(x), kernel(x)
        assert actual.shape == wanted.shape
        assert np.array_equal(actual, wanted, equal_nan=True), shape
        assert "sum" in name or np.array_equal(np.signbit(actual), np.signbit(wanted)), shape
        for at_end in (True, False):
            assert run_guarded(kernel, [x], at_end=at_end)[0].tobytes() == actual.tobytes()


def test_empty_views() -> None:
    for name in ("pad", "concat", "reshape", "sum of a pad", "pad of a sum", "flip"):
        kernel = fuse(f"graph f(x: f32[m,n]) {{\n {VIEWS[name]}\n return y\n}}")
        for shape in ((0, 3), (3, 0), (0, 0)):
            x = np.zeros(shape, "f4")
            assert np.array_equal(kernel(x)[0], kernel.expected(x)[0]), (name, shape)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_a_result_without_elements_among_others(isa: str) -> None:
    """Its strides are 0, as if every row were stored at one place."""
    kernel = fuse(
        """graph f(x: f64[k,1], z: f64[1,8]) {
          require 3 <= k
          v0 = expand(0.0:f64) {shape=(0, 0)}
          v1 = expand(1.0:f64) {shape=(k - 3, 0)}
          return v0, v1
        }""",
        isa,
        k=4,
    )
    results = kernel(np.ones((15, 1)), np.ones((1, 8)))
    assert [r.shape for r in results] == [(0, 0), (12, 0)]


# ---- gathers -------------------------------------------------------------------------------------

GATHERS = {
    "rows": ("x: {d}[m,n], i: i64[p]", "y = gather(x, i) {{first=0}}"),
    "columns": ("x: {d}[m,n], i: i32[p]", "y = gather(x, i) {{first=1}}"),
    "points": ("x: {d}[m,n], i: i64[p], j: i32[p]", "y = gather(x, i, j) {{first=0}}"),
    "grid": ("x: {d}[m,n], i: i64[p,1], j: i64[q]", "y = gather(x, i, j) {{first=0}}"),
    "bytes": ("x: {d}[m,n], i: u8[p]", "y = gather(x, i) {{first=0}}"),
    "summed": (
        "x: {d}[m,n], i: i64[p]",
        "w = gather(x, i) {{first=0}}\n y = reduce.sum(w) {{axes=(0,)}}",
    ),
}


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", GATHERS)
def test_gathers(name: str, isa: str) -> None:
    head, line = GATHERS[name]
    rng = np.random.default_rng(5)
    for dtype in ("f32", "i8", "bf16", "i64", "bool"):
        code = f"graph f({head.format(d=dtype)}) {{\n {line.format()}\n return y\n}}"
        kernel = fuse(code, isa)
        for m, n, p, q in ((5, 7, 3, 2), (40, 65, 33, 17), (100, 16, 70, 64), (2, 2, 0, 3)):
            arrays = [filled(dtype, (m, n))]
            for k, node in enumerate(kernel.graph.inputs[1:]):
                limit = n if k == 1 or name == "columns" else m
                shape = [{"p": p, "q": q, "1": 1}[str(d)] for d in node.type.shape]
                arrays.append(rng.integers(0, limit, shape).astype(node.type.dtype.numpy))
            actual, wanted = kernel(*arrays), kernel.expected(*arrays)
            assert np.array_equal(actual[0].astype("f8"), wanted[0].astype("f8")), (dtype, m, n, p)
            inside = run_guarded(kernel, arrays, at_end=True)
            assert inside[0].tobytes() == actual[0].tobytes()


def test_sums_of_gathered_rows_through_tile_transposes() -> None:
    """Positions, rows and columns all have one extent, which must not make them one axis."""
    for code in (
        "w = gather(x, i) {first=0}\n y = reduce.sum(w) {axes=(1,)}",
        "w = reduce.sum(x) {axes=(1,)}\n y = gather(w, i) {first=0}",
    ):
        for isa in RUNNABLE:
            kernel = fuse(f"graph f(x: f32[n,n], i: i64[n]) {{\n {code}\n return y\n}}", isa)
            for n in (1, 3, 33):
                x, i = filled("f32", (n, n)), (np.arange(n) * 7 + 2) % n
                assert np.array_equal(kernel(x, i)[0], x[i].sum(1)), (isa, n)


def test_positions_outside_are_clamped_not_followed() -> None:
    """Compiled code reads no memory outside, whatever the positions are."""
    kernel = fuse("graph f(x: f32[m], i: i64[p]) {\n y = gather(x, i) {first=0}\n return y\n}")
    x = np.arange(10, dtype="f4")
    i = np.array([0, 9, 10, 2**62, -1, -(2**62), 5] * 7)
    actual = run_guarded(kernel, [x, i], at_end=True)[0]
    assert np.array_equal(actual, x[np.clip(i, 0, 9)])


@pytest.mark.clock
def test_parts_that_are_not_read_cost_nothing() -> None:
    """Concatenating long arrays takes no longer than a copy.

    A masked load with all lanes outside of an array, where no memory may be, traps into microcode
    and is 200 times slower.
    """
    kernel = fuse("graph f(x: f32[n], y: f32[m]) {\n z = concat(x, y) {axis=0}\n return z\n}")
    x = np.ones(500_000, "f4")

    def least(run: Any) -> float:
        taken = []
        for _ in range(7):
            start = perf_counter()
            run()
            taken.append(perf_counter() - start)
        return min(taken)

    copied = least(lambda: np.concatenate([x, x]))
    assert least(lambda: kernel(x, x)) < 30 * copied + 1e-3
