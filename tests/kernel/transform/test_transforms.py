"""Kernels that a transform makes are verified, and compute what the kernel did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.kernel.interp import run
from smelt.kernel.ir import Each, Kernel, Merge, Stream
from smelt.kernel.text import parse, text
from smelt.kernel.transform.part import part_of
from smelt.kernel.transform.split_merge import split_merge
from smelt.kernel.transform.stream_to_reduction import reductions_of
from smelt.kernel.verify import verify
from smelt.kernel.walk import stores
from smelt.types.dtype import f64

KERNELS = {name: parse(source) for name, source in GOLDENS.items()}
PLAIN = [n for n, k in KERNELS.items() if not any(isinstance(e, Each) for e in k.grid)]
MERGING = [n for n in PLAIN if any(isinstance(s, Merge) for s in KERNELS[n].body)]

EXTREMES = """
kernel norms(x: f32[r,c]) -> y: f32[c], z: f32[c]
  grid c, p in split(r, 3)
  stream r/2 of p with s = 0, m = -inf
    s' = s + sum(x[r,c] over r)
    m' = max(m, max(x[r,c] over r))
  merge p: (s, m)
  y[c] = s / 2
  z[c] = s - m
"""


def call(name: str) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    arrays = REFERENCES[name].inputs(np.random.default_rng(3), 2)
    arrays = {p.name: arrays[p.name] for p in KERNELS[name].inputs}
    return arrays, extra_sizes(name, arrays)


def same(actual: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), np.asarray(wanted, np.float64), 3e-6, 3e-6
    )


@pytest.mark.parametrize("name", PLAIN)
def test_a_part_computes_its_result_alone(name):
    kernel, (arrays, sizes) = KERNELS[name], call(name)
    wanted = run(kernel, arrays, sizes)
    joined = {s.param for s in stores(kernel) if s.join}
    for p in kernel.outputs:
        if p.name in joined:
            continue
        part = verify(part_of(kernel, [s for s in stores(kernel) if s.param == p.name]))
        assert part.outputs == (p,)
        same(run(part, arrays, sizes)[p.name], wanted[p.name])


def in_two(kernel: Kernel, reduced: bool, wide: bool = False) -> tuple[Kernel, Kernel]:
    """The parts of a kernel and their merge: by reductions where possible, in float64 if `wide`."""
    merged = next(s.states for s in kernel.body if isinstance(s, Merge))
    split = split_merge(kernel, dict.fromkeys(merged, f64) if wide else None)
    assert split is not None
    return split.parts, split.merge(split.after, split.reductions(split.after) if reduced else {})


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("source", [*(GOLDENS[n] for n in MERGING), EXTREMES])
def test_parts_and_their_merge_are_kernels(source, reduced):
    kernel = parse(source)
    if kernel.name == "norms":
        arrays, sizes = {"x": np.random.default_rng(0).normal(size=(11, 5)).astype("f4")}, {}
    else:
        arrays, sizes = call(next(n for n in MERGING if GOLDENS[n] == source))
    wanted = run(kernel, arrays, sizes)
    parts, merge = (verify(k) for k in in_two(kernel, reduced))
    assert not any(isinstance(s, Merge) for s in (*parts.body, *merge.body))
    assert reduced != any(isinstance(s, Stream) for s in merge.body) or kernel.name != "norms"
    stored = run(parts, arrays, sizes)
    results = run(merge, {**arrays, **stored}, sizes)
    for p in merge.outputs:
        same(results[p.name], wanted[p.name])


def test_states_have_other_types_in_memory():
    _, merge = in_two(parse(EXTREMES), reduced=True, wide=True)
    assert "s = f32(sum(s_parts[p,c] over p))" in text(merge)


def test_a_merge_has_the_states_that_are_needed():
    split = split_merge(parse(EXTREMES))
    assert split is not None
    merge = split.merge(split.after[:1], {})
    assert "m_parts[" not in text(merge).split("\n", 1)[1]


@pytest.mark.parametrize(
    ("steps", "is_reduction"),
    [
        ("s' = s + sum(x[r,c] over r)", True),
        ("v = x[r,c] * 2\n    s' = s + sum(v over r)", True),
        ("s' = s * 2 + sum(x[r,c] over r)", False),
        ("v = x[r,c] * s\n    s' = s + sum(v over r)", False),
        ("s' = s + sum(select(r < last(r), x[r,c], 0) over r)", False),
    ],
)
def test_streams_that_only_reduce_are_reductions(steps, is_reduction):
    source = f"""
kernel f(x: f32[r,c]) -> y: f32[c]
  grid c
  stream r/2 with s = 0
    {steps}
  y[c] = s
"""
    kernel = verify(parse(source))
    stream, *rest = kernel.body
    assert isinstance(stream, Stream)
    reduced = reductions_of(stream)
    assert bool(reduced) == is_reduction
    if reduced:
        x = np.random.default_rng(0).integers(-9, 9, (7, 5)).astype(np.float32)
        without = verify(replace(kernel, body=(*reduced, *rest)))
        np.testing.assert_array_equal(run(without, [x])["y"], run(kernel, [x])["y"])
