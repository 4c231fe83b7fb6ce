"""Rows longer than the registers print as loops, and compute what the interpreter does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.codegen.checked_triton import launch
from tests.codegen.test_triton_goldens import with_lanes

from smelt.codegen.triton.live_values import live_sets, registers_of
from smelt.codegen.triton.schedule import choose_schedule
from smelt.codegen.triton.source import (
    prepare,
    print_file,
    print_stage,
    triton_source,
    with_loops,
)
from smelt.errors import DeviceKernelError
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel, Stream
from smelt.kernel.text import parse

LONG = 100_000
KERNELS = {
    "softmax": """
kernel k(x: f32[r,c]) -> y: f32[r,c]
  grid r
  m = max(x[r,c] over c)
  e = exp(x[r,c] - m)
  y[r,c] = e / sum(e over c)
""",
    "layernorm": """
kernel k(x: f32[r,c], g: f32[c]) -> y: f32[r,c]
  grid r/4
  d = x[r,c] - sum(x[r,c] over c) / size(c)
  y[r,c] = d * rsqrt(sum(d * d over c) / size(c) + 1e-5) * g[c]
""",
    "moments": """
kernel k(x: f32[r,c]) -> s: f64[r], p: f32[r], low: f32[r], some: bool[r], every: bool[r]
  grid r
  s[r] = sum(x[r,c] over c as f64)
  p[r] = prod(x[r,c] over c)
  low[r] = min(x[r,c] over c)
  some[r] = any(x[r,c] > 1 over c)
  every[r] = all(x[r,c] > -1 over c)
""",
    "argmax": """
kernel k(x: f32[r,c]) -> top: i64[r], low: i64[r]
  grid r
  top[r] = argmax(x[r,c] over c)
  low[r] = argmin(abs(x[r,c]) over c)
""",
    "argmax of two axes": """
kernel k(x: f32[r,c]) -> top: i64[]
  top[] = argmax(x[r,c] over r, c)
""",
    "scan": """
kernel k(x: f32[r,c]) -> y: f32[r,c], z: f32[r], t: f32[r,c]
  grid r
  a = sum(x[r,c] along c)
  y[r,c] = a
  z[r] = max(a over c)
  t[r,c] = max(a - x[r,c] along c) + z1
""".replace(" + z1", ""),
    "scan of a scan": """
kernel k(x: i32[c]) -> y: i64[c]
  a = sum(x[c] along c as i64)
  y[c] = sum(a + i64(x[0]) along c as i64)
""",
    "branches": """
kernel k(x: f32[r,c]) -> y: f32[r,c]
  grid r
  a = (sum(x[r - 1,c] over c) if r > 0 else max(x[r,c] over c))
  y[r,c] = x[r,c] * a
""",
    "gather": """
kernel k(x: f32[c], i: i64[c]) -> y: f32[c], z: f32[]
  at = position(i[c], size(c))
  z[] = sum(x[at] over c)
  y[c] = x[at] - x[size(c) - c - 1]
""",
    "columns of two axes": """
kernel k(x: f32[h,w]) -> y: f32[h,w]
  m = sum(x[h,w] over h)
  y[h,w] = x[h,w] - m
""",
    "two axes": """
kernel k(x: f32[b,h,w]) -> y: f32[b,h,w]
  grid b
  m = sum(x[b,h,w] over h, w) / size(w)
  n = sum(x[b,h,w] over w)
  y[b,h,w] = x[b,h,w] - m + n
""",
    "contraction of a normed row": """
kernel k(x: f32[m,c], w: f32[c,n]) -> y: f32[m,n], s: f32[m]
  grid m, n
  q = sum(x[m,c] * x[m,c] over c)
  y[m,n] = dot(x[m,c] * rsqrt(q + 1), w[c,n] over c)
""".replace(", s: f32[m]", ""),
    "contraction in a stream": """
kernel k(h: f32[s,c], e: f32[v,c]) -> y: f32[v]
  grid v/16
  stream s/16 with best = -inf [v]
    z = dot(h[s,c], e[v,c] over c)
    best' = max(best, max(z over s))
  y[v] = best
""",
    "contraction of a contraction": """
kernel k(q: f32[m,d], k: f32[c,d], v: f32[c,e]) -> o: f32[m,e]
  grid m, e
  s = dot(q[m,d], k[c,d] over d)
  p = exp(s - max(s over c))
  o[m,e] = dot(p, v[c,e] over c) / sum(p over c)
""",
    "halves": """
kernel k(x: bf16[r,c]) -> y: bf16[r,c]
  grid r
  y[r,c] = x[r,c] / max(abs(x[r,c]) over c)
""",
}
SIZES = {
    "r": 3,
    "c": 37,
    "b": 2,
    "h": 5,
    "w": 19,
    "m": 18,
    "n": 21,
    "s": 20,
    "v": 18,
    "d": 6,
    "e": 7,
}


def inputs(kernel, seed: int = 0):
    random = np.random.default_rng(seed)
    arrays = {}
    for p in kernel.inputs:
        shape = [SIZES[str(d)] for d in p.shape]
        if p.dtype.is_float:
            x = random.standard_normal(shape) * 2 + seed
            x = np.where(random.random(shape) < 0.3, np.round(x), x)
        else:
            x = random.integers(-3, 40, shape)
        arrays[p.name] = x.astype(p.dtype.numpy)
    return arrays


@pytest.mark.parametrize("seed", [0, 300])
@pytest.mark.parametrize("lanes", [2, 8])
@pytest.mark.parametrize("name", KERNELS)
def test_looped_rows_compute_what_the_interpreter_does(name, lanes, seed):
    kernel = parse(KERNELS[name].strip())
    arrays = inputs(kernel, seed)
    sizes = {n: LONG if n in "chw" else 64 for n in SIZES}
    source = triton_source(kernel, sizes)
    assert re.search(r"for start_[chw] in", source)
    assert not re.search(r"BLOCK_c = triton.next", source)
    wanted = run(kernel, arrays)
    outputs = launch(with_lanes(source, lanes), list(arrays.values()), least_dot=1)
    for p, actual in zip(kernel.outputs, outputs, strict=True):
        a, b = (np.asarray(x, np.float64) for x in (actual, wanted[p.name]))
        np.testing.assert_allclose(a, b, 2e-5, 2e-5 * np.abs(b[np.isfinite(b)]).max(initial=1))


def test_argmax_of_a_long_row_takes_the_first_nan():
    kernel = parse(KERNELS["argmax"].strip())
    x = np.zeros((3, 37), np.float32)
    x[0, [5, 9]] = np.nan
    x[1, [4, 8]] = np.inf
    source = with_lanes(triton_source(kernel, {"r": 3, "c": LONG}), 4)
    top, low = launch(source, [x])
    assert top.tolist() == [5, 4, 0]
    assert low.tolist() == [5, 0, 0]


def test_passes_that_do_not_wait_are_one():
    (looped,) = prepare(parse(KERNELS["moments"].strip()), {"r": 1, "c": LONG})
    assert len(looped.body) == 6  # one stream, five stores
    (looped,) = prepare(parse(KERNELS["softmax"].strip()), {"r": 1, "c": LONG})
    assert len(looped.body) == 3


MASKED = """
kernel k(x: f32[m,n]) -> y: f32[m], z: f32[m]
  grid m/4
  stream n/4 {ends} with top = -inf [m], s = 0 [m]
    t = x[m,n] * 2
    t = select((n <= m + {after}) & (n > m - {before}), t, -inf) if {cut} else t
    top' = max(top, max(t over n))
    s' = s + sum(select(t == -inf, 0, t) over n)
  y[m] = top
  z[m] = s
"""
CUTS = (
    "partial((n <= m + {after}) & (n > m - {before}))",
    "(last(n) > first(m) + {after}) | (first(n) + {before} <= last(m))",
)
ENDS = ("", "to last(m) + {after} + 1", "from first(m) - {before} to last(m) + {after} + 1")


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    cut=st.sampled_from(CUTS),
    ends=st.sampled_from(ENDS),
    before=st.integers(0, 40),
    after=st.integers(0, 40),
    rows=st.integers(1, 37),
    columns=st.integers(1, 37),
    lanes=st.sampled_from([(2, 2), (4, 8), (8, 2), (4, 4)]),
)
def test_loops_without_masks_visit_blocks_that_no_mask_cuts(
    cut, ends, before, after, rows, columns, lanes
):
    text = MASKED.format(cut=cut, ends=ends, before="{before}", after="{after}")
    kernel = parse(text.format(before=before, after=after).strip())
    (prepared,) = prepare(kernel)
    schedule = replace(
        choose_schedule(prepared),
        grid={"m": lanes[0]},
        streams={"n": lanes[1]},
        splits_loops=True,
    )
    stage = print_stage(prepared, schedule)
    assert stage.program.text.count("for start_n in") == 3
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    try:
        wanted = run(kernel, [x])
    except ValueError:  # NumPy's maximum of a block without columns
        assume(False)
    for actual, name in zip(launch(print_file(kernel, [stage]), [x]), "yz", strict=True):
        np.testing.assert_allclose(actual, wanted[name], 1e-5, 1e-5)


PADDED = """
kernel padded(x: bool[b,n], q: f32[b,n]) -> y: f32[b]
  grid b
  first = min(select(x[b,n], n, size(n)) over n)
  last = max(select(x[b,n], index(n + 1), index(0)) over n)
  stream n/64 from first to last where partial(~x[b,n]) with s = 0
    s' = s + sum(select(x[b,n], q[b,n], 0) over n)
  y[b] = s
"""


def test_a_stream_whose_ends_are_reductions_of_its_axis_asks_its_own_blocks():
    """The condition of a block is not a value of the pass that reduces the row."""
    kernel = parse(PADDED)
    random = np.random.default_rng(0)
    x = random.random((5, 90)) < 0.3
    x[1], x[2, :60] = False, False
    q = random.standard_normal((5, 90)).astype(np.float32)
    (y,) = launch(with_lanes(triton_source(kernel, {"b": 5, "n": 90}), 8), [x, q])
    np.testing.assert_allclose(y, run(kernel, [x, q])["y"], 1e-5, 1e-5)


SUMS = """
kernel sums(x: f32[r,c]) -> rows: f32[r], y: f32[{shape}]
  grid p in split(r, 3)
  stream r/all of p with total = 0 [c]
    rows[r] = sum(x[r,c] over c)
    total' = total + sum(x[r,c] over r)
  merge p: (total)
  y[{index}] = {value}
"""


@pytest.mark.parametrize(
    ("shape", "index", "value", "grid"),
    [
        ("c", "c", "total * 2", ["c"]),
        ("c,1", "c, 0", "total", ["c"]),
        ("", "", "sum(total over c)", []),
        ("c", "c", "total - max(total over c)", []),
        ("c", "c", "sum(total along c)", []),
    ],
)
def test_states_of_whole_rows_are_merged_by_many_programs(shape, index, value, grid):
    """Unless something needs all elements of a row."""
    text = SUMS.format(shape=shape, index=index, value=value)
    kernel = parse(text.strip())
    merge = prepare(kernel, {"r": 4096, "c": 4096})[-1]
    assert [b.axis for b in merge.grid] == grid
    x = np.random.default_rng(0).standard_normal((37, 70)).astype(np.float32)
    wanted = run(kernel, {"x": x})
    source = with_lanes(triton_source(kernel, {"r": 4096, "c": 4096}), 32)
    for p, actual in zip(kernel.outputs, launch(source, [x]), strict=True):
        np.testing.assert_allclose(actual, wanted[p.name], 3e-6, 3e-6)


# ---- more values than the registers hold ---------------------------------------------------------

HEADS = """
kernel heads(x: f32[a,r,c], mix: f32[h,a], out: f32[b,h]) -> y: f32[b,r,c], z: f32[h,r]
  grid r
  v = x[a,r,c]
  stream h with s = f64(0) [b,c]
    mixed = sum(mix[h,a] * v over a)
    top = max(mixed over c)
    e = exp(mixed - top)
    z[h,r] = sum(e over c)
    s' = s + sum(out[b,h] * e over h as f64)
  y[b,r,c] = f32(s)
"""
PIECES = {
    "top": ("top: f32[r]", "top[r] = m", ""),
    "each": ("each: f32[r,c]", "each[r,c] = v * g[c]", ""),
    "columns": ("columns: f32[c]", "", "columns[c] = f32(s) * g[c]"),
    "largest": ("largest: f32[]", "", "largest[] = max(f32(s) over c)"),
    "mean": ("mean: f32[]", "", "mean[] = n / size(r)"),
}
"""Results of a kernel that carries `s` along columns: a parameter, and where it is stored."""


def carried(pieces: Sequence[str], value: str = "v", *, is_double: bool = False) -> Kernel:
    """A kernel with some of these results, whose state sums a value of each row."""
    outputs, inside, behind = zip(*(PIECES[p] for p in pieces), strict=True)
    count = ", n = 0" if "mean" in pieces else ""
    lines = [
        f"kernel k(x: f32[r,c], g: f32[c], h: f32[r]) -> {', '.join(outputs)}",
        "  grid p in split(r, 3)",
        f"  stream r/all of p with s = {'f64(0)' if is_double else '0'} [c]{count}",
        "    v = exp(x[r,c] - g[c])",
        "    m = max(v over c)",
        *(f"    {line}" for line in inside if line),
        f"    s' = s + sum({f'f64({value})' if is_double else value} over r)",
        *(["    n' = n + sum(exp(h[r]) over r)"] if count else []),
        f"  merge p: (s{', n' if count else ''})",
        *(f"  {line}" for line in behind if line),
    ]
    return parse("\n".join(lines))


def check_parts(kernel: Kernel, prepared: Sequence[Kernel], sizes, seed: int, **small: int) -> None:
    """Compare launches, printed for `sizes`, with the interpreter at small ones."""
    random = np.random.default_rng(seed)
    shapes = [[small[str(e)] for e in p.shape] for p in kernel.inputs]
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    stages = [print_stage(k, choose_schedule(k, sizes)) for k in prepared]
    wanted = run(kernel, arrays)
    outputs = launch(with_lanes(print_file(kernel, stages), 32), arrays)
    for p, actual in zip(kernel.outputs, outputs, strict=True):
        np.testing.assert_allclose(actual, wanted[p.name], 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("pieces", "value", "launches"),
    [
        (["top", "columns"], "v", ["k_parts r/128", "k_parts_c p,c/128", "k_merge c/128"]),
        (
            ["top", "mean", "columns"],
            "v",
            ["k_parts p", "k_parts_c p,c/128", "k_merge", "k_merge1 c/128"],
        ),
        (["each", "columns"], "v", ["k_parts p,c/128", "k_merge c/128"]),
        (["each", "largest"], "v", ["k_parts p,c/128", "k_merge_rows c/128", "k_merge"]),
        (["top", "largest"], "v / m", ["k_parts p", "k_merge_rows c/128", "k_merge"]),
    ],
)
def test_states_that_exceed_the_registers_are_columns_of_launches(pieces, value, launches):
    """Unless what they add needs the whole row. Results that reduce them have a launch behind."""
    kernel, sizes = carried(pieces, value), {"r": 4096, "c": 1 << 16}
    prepared = prepare(kernel, sizes)
    grids = [",".join(f"{b.axis}/{b.size}".removesuffix("/1") for b in k.grid) for k in prepared]
    names = [k.name for k in prepared]
    assert [f"{n} {g}".strip() for n, g in zip(names, grids, strict=True)] == launches
    first, *merges = [k.name for k in prepare(kernel, {"r": 4096, "c": 128})]
    assert first == "k_parts" and set(merges) <= {"k_merge", "k_merge1"}
    check_parts(kernel, prepared, sizes, 0, r=7, c=150)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pieces=st.lists(st.sampled_from(list(PIECES)), min_size=1, unique=True),
    value=st.sampled_from(["v", "v / m", "x[r,c] + h[r]"]),
    is_double=st.booleans(),
    rows=st.integers(1, 9),
    columns=st.integers(1, 70),
)
def test_divided_launches_compute_what_the_interpreter_does(
    pieces, value, is_double, rows, columns
):
    kernel = carried(pieces, value, is_double=is_double)
    sizes = {"r": 4096, "c": 1 << 13}
    check_parts(kernel, prepare(kernel, sizes, registers=0), sizes, rows, r=rows, c=columns)


def test_a_stream_of_few_steps_is_a_sum_whose_rows_are_looped_over():
    kernel, sizes = parse(HEADS.strip()), {"a": 8, "b": 8, "h": 8, "r": 512, "c": 4096}
    (looped,) = prepare(kernel, sizes)
    streams = [s for s in looped.body if isinstance(s, Stream)]
    assert [b.axis for s in streams for b in s.blocks] == ["c"] * 2
    (whole,) = prepare(kernel, sizes | {"c": 512})
    assert [b.axis for s in whole.body if isinstance(s, Stream) for b in s.blocks] == ["h"]
    (longer,) = prepare(kernel, sizes | {"h": 512})
    assert [b.axis for s in longer.body if isinstance(s, Stream) for b in s.blocks] == ["h"]
    check_parts(kernel, [looped], sizes, 0, a=3, b=2, h=5, r=4, c=70)


def test_values_that_are_needed_at_a_time_take_registers():
    text = """
kernel k(x: f32[r,c], g: f32[c]) -> y: f32[r,c], z: f64[c]
  grid r
  v = x[r,c]
  w = v * g[c]
  u = exp(w) / v
  stream n in 4 with s = f64(0) [c]
    t = u * n
    s' = s + sum(f64(t) over n)
  y[r,c] = u + w
  z[c] = s
"""
    kernel = parse(text.strip())
    sets = live_sets(kernel)
    # u and w wait for the end, s is a double, and a step has t
    assert max(sum(nbytes.values()) for nbytes in sets) == 4 + 4 + 8 + 4
    assert registers_of(sets, {"c": 1024}, 256) == 4 * 5
    assert registers_of(sets, {"c": 100}, 256) == 5


def test_of_equally_long_axes_the_outer_one_is_looped_over():
    """Rows of the inner one lie together in memory; the order does not depend on names."""
    for axes in ("bcd", "zya", "pqo"):
        a, b, c = axes
        kernel = parse(
            f"kernel k(x: f32[r,{a},{b},{c}]) -> y: f32[r]\n  axis r, {a}, {b}, {c}\n  grid r\n"
            f"  y[r] = max(x[r,{a},{b},{c}] over {a}, {b}, {c})\n"
        )
        looped = with_loops(kernel, {"r": 8, a: 64, b: 64, c: 64}, 4096)
        assert list(choose_schedule(looped).streams) == [a]


def test_a_reduction_of_a_number_along_a_looped_axis_is_refused():
    """No loop visits the axis where the steps of another one need all of it."""
    kernel = parse(
        "kernel k(a: f32[n,m]) -> y: f32[]\n  p = dot(a[0,m], a[0,m] over m)\n"
        "  stream n/2 with s = 0\n    s' = s + sum(2 over m)\n  y[] = s + p\n"
    )
    with pytest.raises(DeviceKernelError, match="all of the axis m outside of its stream"):
        triton_source(kernel)
