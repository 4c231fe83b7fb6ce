"""Row bands: only the columns that a mask leaves visible to a band are computed.

Masks are drawn from a grammar, sizes are odd, and NumPy says in double precision what is right.
The bound is that of float32: sums of products of some hundred numbers, and an exponential.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.llvm.guard_pages import Guarded
from tests.codegen.llvm.native import Native, native_kernel
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.lower.test_stream import Case, masked, streamed

import smelt as sm
from smelt.codegen.build import Variant, asm_text, llvm_text
from smelt.codegen.llvm.loopir.items import Apply
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.mask_ranges import ROW_GROUP
from smelt.codegen.llvm.scratch.workspace import lay_out
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse
from smelt.machine.target import Target

Array = np.ndarray[Any, Any]
Mask = Callable[[Any, Any], Any]
SHAPES = ((1, 23, 8), (1, 23, 8), (1, 23, 6))
SIMPLE = {
    "causal": "j <= i",
    "anti": "j >= i",
    "window": "(j <= i) & (i - j < {a})",
    "ahead": "(j - i < {a}) & (i - j < {b})",
    "offset": "j <= i + {a}",
    "before": "j + {a} <= i",
    "prefix": "(j <= i) | (j < {a})",
    "dilated": "(j <= i) & ((i - j) % {d} == 0)",
    "chunks": "i // {c} == j // {c}",
    "chunks before": "(i // {c} - j // {c} < 2) & (j <= i)",
    "far": "(i - j > {a}) | (j == 0)",
    "sinks": "(j <= i) & ((i - j < {a}) | (j < {d}))",
    "late": "(j <= i) & (i >= {a})",
}


LENGTHS: dict[Variant, list[int]] = {
    "": [1, 13, 193, 211, 384, 509, 701],
    "small": [1, 13, 100, 192],
}
"""Rows and keys that are drawn for the forms of a kernel."""


@st.composite
def masks(draw: Any) -> str:
    """A mask as an expression in i and j."""

    def one() -> str:
        text = SIMPLE[draw(st.sampled_from(sorted(SIMPLE)))]
        numbers = {
            "a": st.integers(0, 300),
            "b": st.integers(1, 80),
            "c": st.integers(1, 200),
            "d": st.integers(1, 9),
        }
        return text.format(**{k: draw(v) for k, v in numbers.items()})

    how = draw(st.sampled_from(["one", "one", "and", "or", "not"]))
    if how == "one":
        return one()
    return f"~({one()})" if how == "not" else f"({one()}) {'&' if how == 'and' else '|'} ({one()})"


def plain(q: Array, k: Array, v: Array, keep: Array) -> Array:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.where(keep, (q @ k.swapaxes(-1, -2)) * 0.125, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(axis=-1, keepdims=True))
        return (e / e.sum(axis=-1, keepdims=True)) @ v


def compiled(mask: str, isa: str = RUNNABLE[-1], variant: Variant = "") -> Native:
    def code(q: Any, k: Any, v: Any) -> Any:
        return masked(q, k, v, lambda i, j: eval(mask, {"i": i, "j": j}))

    return native_kernel(streamed(Case(mask, code, SHAPES, ()))[1], isa, variant)


def outcome(built: Native, *arrays: Array) -> Array:
    (result,) = built(
        dict(zip((p.name for p in built.kernel.inputs), arrays, strict=True))
    ).values()
    return result


def drawn(rng: Any, rows: int, keys: int, dims: tuple[int, int] = (8, 6)) -> list[Array]:
    shapes = (rows, dims[0]), (keys, dims[0]), (keys, dims[1])
    return [rng.standard_normal((1, *s)).astype(np.float32) for s in shapes]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(mask=masks(), data=st.data())
def test_any_mask_is_what_numpy_says(mask: str, data: Any) -> None:
    variant = data.draw(st.sampled_from(sorted(LENGTHS)))
    compiled_program = compiled(mask, data.draw(st.sampled_from(RUNNABLE)), variant)
    for _ in range(3):
        rows, keys = (data.draw(st.sampled_from(LENGTHS[variant])) for _ in "ab")
        q, k, v = drawn(np.random.default_rng(rows + keys), rows, keys)
        i, j = np.arange(rows)[:, None], np.arange(keys)
        keep = np.broadcast_to(eval(mask, {"i": i, "j": j}), (rows, keys))
        wanted = plain(q, k, v, keep)[0]
        actual = outcome(compiled_program, q, k, v)[0]
        seen = keep.any(axis=1)
        assert np.isnan(actual[~seen]).all()
        assert np.abs(actual[seen] - wanted[seen]).max(initial=0) < 2e-5


@pytest.mark.parametrize("variant", LENGTHS)
@pytest.mark.parametrize("name", ["window", "causal", "before"])
def test_what_rows_do_not_see_may_be_anything(name: str, variant: Variant) -> None:
    """NaN in masked keys and old contents of scratch memory have no effect."""
    mask = SIMPLE[name].format(a=40)
    compiled_program = compiled(mask, variant=variant)
    rng = np.random.default_rng(1)
    n, seen = (500, 400) if not variant else (192, 160)
    q, k, v = drawn(rng, n, n)
    wanted = outcome(compiled_program, q, k, v)[0]
    spoilt = [np.full_like(x, np.nan) for x in (q, k, v)]
    outcome(compiled_program, *spoilt)  # scratch memory is full of NaN now
    np.testing.assert_array_equal(outcome(compiled_program, q, k, v)[0], wanted)
    spoilt = [q, k.copy(), v.copy()]
    spoilt[1][:, seen:], spoilt[2][:, seen:] = np.nan, np.inf
    group_start = seen // ROW_GROUP * ROW_GROUP
    np.testing.assert_array_equal(
        outcome(compiled_program, *spoilt)[0, :group_start], wanted[:group_start]
    )


LATE = """kernel f(q: bf16[3,600,32], k: bf16[3,600,32], v: bf16[3,600,32]) -> y: f32[3,600,32]
  axis i in 3, j in 600, k in 32, l in 600
  grid i, j/64
  v0 = j
  v1 = v0 + 511
  v2 = q[i,j,k]
  stream l/512 from first(j) + 511 with s = 0 [j,k]
    v3 = l
    v4 = v3 >= v1
    v5 = k[i,l,k]
    v6 = dot(v2, v5 over k as bf16)
    v7 = exp(v6 * 0.1)
    v8 = select(v4, v7, 0) if last(j) + 511 > first(l) else v7
    v9 = bf16(v8)
    v10 = v[i,l,k]
    s' = s + dot(v9, v10 over l as bf16)
  y[i,j,k] = s
"""


def _spoilt(self: Guarded, nbytes: int, *, at_end: bool, block: Any = Guarded.block) -> int:
    place = block(self, nbytes, at_end=at_end)
    ctypes.memset(place, 0xFF, nbytes)  # NaN
    return place


@pytest.mark.parametrize("target", [*RUNNABLE, Target.host()], ids=[*RUNNABLE, "host"])
def test_rows_that_see_nothing_of_a_block_of_pairs(target: Any) -> None:
    """Of an odd number of positions not even half a pair: nobody has computed its weights."""
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((3, 600, 32)).astype(ml_dtypes.bfloat16) for _ in range(3))
    late = native_kernel(parse(LATE), target)
    with mock.patch.object(Guarded, "block", _spoilt):
        actual = late({"q": q, "k": k, "v": v})["y"]
    assert not actual[:, 600 - 511 :].any()
    assert np.isfinite(actual).all()


def test_reduced_range_ends_are_recomputed_for_each_band() -> None:
    """The first key in the chunk before a row's own is looked for among all keys."""
    mask = "((i // 167 - j // 167 < 2) & (j <= i)) & (j + 162 <= i)"
    q, k, v = drawn(np.random.default_rng(6), 509, 509)
    i, j = np.arange(509)[:, None], np.arange(509)
    wanted = plain(q, k, v, eval(mask, {"i": i, "j": j}))
    actual = outcome(compiled(mask), q, k, v)
    assert np.isnan(actual[0, :162]).all()
    assert np.abs(actual[0, 162:] - wanted[0, 162:]).max() < 2e-5


@pytest.mark.parametrize("number", [-np.inf, -1e9])
def test_range_ends_from_arrays(number: float) -> None:
    """Lengths and offsets of each batch move the ends that rows see; some see nothing."""
    rng, n = np.random.default_rng(0), 701
    q, k, v = (rng.standard_normal((3, n, 64)).astype(np.float32) for _ in range(3))
    lengths, offsets = np.array([701, 333, 5]), np.array([0, 10, 600])

    def code(q: Any, k: Any, v: Any, lengths: Any, offsets: Any) -> Any:
        s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
        i, j = sm.expand_dims(sm.arange(n), axis=1), sm.arange(n)
        stop, more = (sm.expand_dims(x, axis=(1, 2)) for x in (lengths, offsets))
        return sm.nn.softmax(sm.where((j <= i + more) & (j < stop), s, number), axis=-1) @ v

    actual = np.asarray(sm.jit(code)(q, k, v, lengths, offsets))
    i, j = np.arange(n)[:, None], np.arange(n)
    stop, more = (x[:, None, None] for x in (lengths, offsets))
    wanted = plain(q, k, v, (j <= i + more) & (j < stop))
    assert np.abs(actual - wanted).max() < 2e-5


@pytest.mark.parametrize("rounding", ["eager", "fast"])
@pytest.mark.parametrize("dim", [40, 64, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_in_groups(dtype: str, dim: int, rounding: Any) -> None:
    """Six heads share two heads of keys; a window, and documents of any length."""
    rng = np.random.default_rng(dim)
    group_start = getattr(sm, dtype)
    n = 397
    ids = np.sort(rng.integers(0, 7, n))
    arrays = [rng.standard_normal((2, g, n, dim)).astype(group_start.numpy) for g in (3, 1, 1)]

    def code(q: Any, k: Any, v: Any, ids: Any, near: bool) -> Any:
        i, j = sm.expand_dims(sm.arange(n), axis=1), sm.arange(n)
        keep = (j <= i) & (i - j < 100) if near else sm.expand_dims(ids, axis=1) == ids
        s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
        e = sm.where(keep, s, -sm.inf)
        e = sm.exp(e - sm.max(e, axis=-1, keepdims=True))
        return sm.matmul(e / sm.sum(e, axis=-1, keepdims=True), v)

    i, j = np.arange(n)[:, None], np.arange(n)
    for near in (False, True):
        with sm.config(rounding=rounding):
            actual = sm.jit(code, static_argnames=("near",))(*arrays, ids, near=near)
        keep = (j <= i) & (i - j < 100) if near else ids[:, None] == ids
        q, k, v = (a.astype(np.float32) for a in arrays)
        wanted = plain(q, k, v, keep)
        limit = 2e-5 if dtype == "float32" else 0.1
        assert np.abs(np.asarray(actual).astype(np.float64) - wanted).max() < limit


def attention(name: str) -> Kernel:
    """The kernel under a mask of these."""
    mask = SIMPLE[name].format(a=40, c=30)
    code = Case(
        mask, lambda q, k, v: masked(q, k, v, lambda i, j: eval(mask, {"i": i, "j": j})), SHAPES, ()
    )
    return streamed(code)[1]


def planned(name: str) -> Schedule:
    """Its nests with AVX-512."""
    (phase,) = program(attention(name)).phases
    return schedule(phase, Target.for_isa("avx512"))


def test_scores_masked_scores_and_weights_share_an_array() -> None:
    """Each takes the place of what it is computed from, which nobody reads again."""
    s = planned("window")
    scores, weights = sorted(s.products.values(), key=lambda c: s.phase.items.index(c.item))
    arrays = lay_out(s).arrays
    rows = [i for i, axes in s.materialised.items() if len(axes) == 2 and i is not weights.item]
    assert len(rows) == 3 and {scores.item, weights.left} < {*rows}
    assert len({arrays[i, 0] for i in rows}) == 1 and arrays[weights.item, 0] != arrays[rows[0], 0]


def test_what_rows_are_divided_by_is_computed_for_many_rows_at_once() -> None:
    """In vectors of rows, before the columns of each are walked."""
    s = planned("window")
    (stored,) = (n for n in s.nests if n.stores)
    before = [n for n in s.nests if n.time == stored.time and n is not stored]
    assert before and all(n.order == (n.vector,) and n.saves for n in before)
    assert not any(
        i.op in ("exp_over", "div")
        for i in stored.items
        if isinstance(i, Apply) and not i.axes & {"n5"}
    )


def test_what_is_left_of_a_row_takes_half_of_the_vectors_that_go_together() -> None:
    """Up to 32 of 64 columns: sums join the first halves of their states."""
    text = llvm_text(attention("window"), Target.for_isa("avx512"))
    assert re.search(r"= fmul <32 x float>", text)
    assert re.search(r"fpext <32 x float> .* to <32 x double>", text)


def test_whole_groups_of_columns_are_left_of_a_row_without_masks() -> None:
    """Bands see groups of 32: one may follow the last 64 columns that go together."""
    text = llvm_text(attention("window"), Target.for_isa("avx512"))
    plain, masked = (len(re.findall(how, text)) for how in ("= load <32 x f", r"masked.load.v32f"))
    assert plain > masked


@pytest.mark.parametrize("target", [x for x in ("avx512", "avx2") if x in RUNNABLE])
def test_exponents_may_be_above_their_bound(target: str) -> None:
    """Exponents may exceed their bound.

    Something is added to the scores after their maximum, and an infinite maximum counts as 0.
    """
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 300, 64)).astype(np.float32) for _ in range(3))
    k[..., 0] = 1 + abs(k[..., 0])
    q[0, :3, 0] = np.inf, -np.inf, 1e30
    rows = np.zeros((1, 300, 1), np.float32)
    rows[0, 3:8, 0] = 5, 3e5, np.inf, -np.inf, np.nan

    def weighted(xp: Any, q: Any, k: Any, v: Any, rows: Any) -> Any:
        s = xp.matmul(q, xp.matrix_transpose(k))
        most = xp.max(s, axis=-1, keepdims=True)
        bounded = xp.exp(s - xp.where(xp.isfinite(most), most, 0.0))
        return xp.matmul(bounded, xp.abs(v)), xp.matmul(xp.exp(s + rows - most), xp.abs(v))

    with sm.config(target=target):
        result = sm.jit(partial(weighted, sm))(q, k, v, rows)
    with np.errstate(all="ignore"):
        wanted = weighted(np, *(np.float64(x) for x in (q, k, v, rows)))
        for x, y in zip(result, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(x), y.astype(np.float32), 1e-4, 1e-5)


def test_a_maximum_tests_for_nan_once() -> None:
    """And compares by an instruction that says which is greater."""
    asm = asm_text(attention("causal"), Target.for_isa("avx512"))
    nan_tests, greater = (len(re.findall(rf"{name}ps.*zmm", asm)) for name in ("vcmpunord", "vmax"))
    assert greater >= nan_tests > 0


def tables(mask: str, variant: Variant = "") -> int:
    """Tables of what bands see in a kernel's code."""
    code = Case(
        mask, lambda q, k, v: masked(q, k, v, lambda i, j: eval(mask, {"i": i, "j": j})), SHAPES, ()
    )
    text = emit(streamed(code)[1], Target.for_isa("avx512"), variant=variant).llvm
    return len(re.findall("alloca i64, i64", text))


def test_the_rows_of_a_task_form_bands() -> None:
    """A stream that follows the rows has tables of what each band sees; others have none."""
    for variant in LENGTHS:
        for name in ("causal", "window", "chunks"):
            assert tables(SIMPLE[name].format(a=40, c=30), variant) == 2
    assert tables("j >= 0") == tables("j < 300") == 0


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    "test",
    [
        "c = gt(i, k)",
        "c = ge(i, k)",
        "b = add(i, k) c = ge(b, 5:i64)",
        "b = max(k, 0:i64) d = sub(b, i) c = gt(d, -5:i64)",
        "b = add(i, 7:i64) c = le(b, -9223372036854775808:i64)",
    ],
)
def test_positions_compare_with_the_farthest_integers(test: str, isa: str) -> None:
    """The difference of a position and a value may wrap; the comparison does not."""
    kernel = fuse(
        f"graph f(k: i64[], x: f32[n], y: f32[n]) {{\n i = iota() {{shape=(n,), axis=0, dtype=i64}}"
        f"\n {test}\n z = select(c, x, y)\n s = reduce.sum(z) {{axes=(0,)}}\n return s\n}}",
        isa,
    )
    x = np.arange(41, dtype="f4")
    for k in (-(2**63), 7 - 2**63, 2**63 - 1, 2**63 - 30, 2**62, 5, -5):
        arrays = [np.array(k), x, -x]
        assert kernel(*arrays)[0] == kernel.expected(*arrays)[0], k
