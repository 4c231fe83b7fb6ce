"""Section F: SPLADE's largest logit of each word over a text, in any spelling.

One kernel; tokens times words is never stored; what follows the product and never falls is computed
once for a text and a word; tokens behind the last that counts are not even multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from tests.catalogue.harness import REFERENCE, RUNS
from tests.property.oracles import kernels_agree, spread

import smelt as sm
from smelt.compiler import driver
from smelt.kernel import interp
from smelt.kernel.ir import Apply, Kernel, Statement, Stream
from smelt.kernel.walk import values_of, visit
from smelt.ops.scalar import SCALARS

Array = np.ndarray[Any, Any]
Code = Callable[..., Any]
SMALL, LARGE = (3, 7, 6, 11), (4, 256, 768, 30522)


def logits(xp: Any, h: Any, e: Any, b: Any) -> Any:
    return xp.matmul(h, xp.matrix_transpose(e)) + b


def relu(xp: Any, z: Any) -> Any:
    return xp.maximum(z, 0)


def masked_last(xp: Any, h: Any, e: Any, b: Any, keep: Any) -> Any:
    z = xp.log1p(relu(xp, logits(xp, h, e, b)))
    return xp.max(xp.where(keep[:, :, None], z, 0), axis=1)


def multiplied(xp: Any, h: Any, e: Any, b: Any, keep: Any) -> Any:
    z = xp.log1p(relu(xp, logits(xp, h, e, b)))
    return xp.max(z * xp.astype(keep, z.dtype)[:, :, None], axis=1)


def masked_between(xp: Any, h: Any, e: Any, b: Any, keep: Any) -> Any:
    z = relu(xp, logits(xp, h, e, b))
    return xp.max(xp.log1p(xp.where(keep[:, :, None], z, 0)), axis=1)


def masked_first(xp: Any, h: Any, e: Any, b: Any, keep: Any) -> Any:
    z = xp.where(keep[:, :, None], logits(xp, h, e, b), -xp.inf)
    return xp.max(xp.log1p(relu(xp, z)), axis=1)


def masked_by_much(xp: Any, h: Any, e: Any, b: Any, keep: Any) -> Any:
    """A large number does as well as infinity, for what is below zero counts as zero."""
    z = xp.where(~keep[:, :, None], -1e9, logits(xp, h, e, b))
    return xp.max(xp.log1p(relu(xp, z)), axis=1)


def added(xp: Any, h: Any, e: Any, b: Any, keep: Any) -> Any:
    far = xp.where(keep, 0.0, -xp.inf)[:, :, None]
    return xp.log1p(relu(xp, xp.max(logits(xp, h, e, b) + xp.astype(far, h.dtype), axis=1)))


def negated_minimum(xp: Any, h: Any, e: Any, b: Any, keep: Any) -> Any:
    """The least of what falls, in place of the largest of what rises."""
    z = -xp.log1p(relu(xp, logits(xp, h, e, b)))
    return -xp.min(xp.where(keep[:, :, None], z, 0), axis=1)


def by_length(xp: Any, h: Any, e: Any, b: Any, lengths: Any) -> Any:
    keep = xp.arange(h.shape[1], dtype=xp.int64)[None, :] < lengths[:, None]
    return masked_last(xp, h, e, b, keep)


def by_length_multiplied(xp: Any, h: Any, e: Any, b: Any, lengths: Any) -> Any:
    keep = lengths[:, None] > xp.arange(h.shape[1], dtype=xp.int64)[None, :]
    return multiplied(xp, h, e, b, keep)


FORMS = (
    masked_last,
    multiplied,
    masked_between,
    masked_first,
    masked_by_much,
    added,
    negated_minimum,
    by_length,
    by_length_multiplied,
)
EVERY = pytest.mark.parametrize("code", FORMS, ids=lambda c: c.__name__)


def arguments(code: Code, shape: tuple[int, ...], lengths: Array) -> list[Array]:
    n, s, k, v = shape
    rng = np.random.default_rng(sum(shape))
    results: list[Array] = [rng.standard_normal(d).astype(np.float32) for d in ((n, s, k), (v, k))]
    results.append(rng.standard_normal(v).astype(np.float32))
    reported = (
        lengths if code.__name__.startswith("by_length") else np.arange(s)[None] < lengths[:, None]
    )
    return [*results, reported]


_MADE: dict[str, tuple[Any, driver.Compiled]] = {}


def compiled_code(code: Code) -> tuple[Any, driver.Compiled]:
    """The recording of a form, and its program for long texts."""
    if code.__name__ not in _MADE:
        small = arguments(code, SMALL, np.array([7, 2, 0]))
        trace = sm.jit(lambda *xs: code(sm, *xs)).lower(*small).trace
        n, s, k, v = LARGE
        shapes = [(n, s, k), (v, k), (v,), (n,) if small[-1].ndim == 1 else (n, s)]
        values = trace.match(*(d for shape in shapes for d in shape))
        assert values is not None
        hints = dict(zip(driver.input_size_names(trace.graph), values, strict=True))
        _MADE[code.__name__] = trace, driver.compile(trace.graph, hints=hints, target=RUNS)
    return _MADE[code.__name__]


def of(code: Code) -> tuple[Kernel, Stream]:
    (kernel,) = compiled_code(code)[1].kernels
    assert kernel is not None
    return kernel, next(s for s in kernel.body if isinstance(s, Stream))


@EVERY
def test_one_kernel_whose_visits_stop(code: Code) -> None:
    kernel, stream = of(code)
    (block,) = stream.blocks
    assert block.stop is not None
    assert len(kernel.outputs) == 1


def operators(body: Iterable[Statement]) -> list[str]:
    """The scalar operators of some statements."""
    values = (v for s in body for root in values_of(s) for v in visit(root))
    return [v.op for v in values if isinstance(v, Apply)]


@EVERY
def test_functions_are_computed_once_for_a_text_and_a_word(code: Code) -> None:
    kernel, stream = of(code)
    assert all(SCALARS[op].cost <= 5 for op in operators(stream.body))
    assert any(SCALARS[op].cost > 5 for op in operators(s for s in kernel.body if s is not stream))


@EVERY
def test_padding_is_not_read(code: Code) -> None:
    trace, program = compiled_code(code)
    kernel, _ = of(code)
    lengths = np.array([16, 3, 0])
    inputs = arguments(code, (3, 16, 6, 11), lengths)
    arrays = [inputs[k] for k in trace.arguments]
    values = trace.match(*(d for a in inputs for d in a.shape))
    seen = interp.Trace()
    sizes = dict(zip(program.size_names, values, strict=True))
    interp.run(kernel, arrays, sizes, trace=seen, grid_sizes={a.name: 11 for a in kernel.axes})
    name = next(p.name for p, a in zip(kernel.inputs, arrays, strict=True) if a is inputs[0])
    assert seen.loads[name].elements <= lengths.sum() * 6


@EVERY
@pytest.mark.parametrize("lengths", [(7, 2, 0), (1, 7, 7), (0, 0, 0)])
def test_numbers(code: Code, lengths: tuple[int, ...]) -> None:
    """Three judges and double precision; a text without tokens has zeros."""
    trace, program = compiled_code(code)
    for shape in ((3, 7, 6, 11), (3, 33, 17, 70)):
        inputs = arguments(code, shape, np.array(lengths) * (shape[1] // 7))
        values = trace.match(*(d for a in inputs for d in a.shape))
        arrays = [inputs[k] for k in trace.arguments]
        (actual,) = program.run(arrays, tuple(values))
        sizes = dict(zip(program.size_names, values, strict=True))
        allowed = spread(program.graph, arrays, sizes)
        assert not (problem := kernels_agree(program, arrays, sizes, allowed)), problem
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs]
        with np.errstate(all="ignore"):
            want = code(REFERENCE, *wide)
        assert np.allclose(actual, want, rtol=1e-5, atol=1e-5)


def test_holes_and_what_is_not_finite() -> None:
    """Masks that are not lengths; infinities and NaN where they count."""
    trace, program = compiled_code(masked_last)
    h, e, b, keep = arguments(masked_last, (3, 33, 17, 70), np.array([33, 33, 33]))
    keep = np.random.default_rng(1).random(keep.shape) < 0.3
    h[0, 5, 2], h[1, 7, 1] = np.inf, np.nan
    keep[0, 5] = keep[1, 7] = True
    inputs = [h, e, b, keep]
    values = trace.match(*(d for a in inputs for d in a.shape))
    (actual,) = program.run([inputs[k] for k in trace.arguments], tuple(values))
    with np.errstate(all="ignore"):
        want = masked_last(REFERENCE, h.astype(np.float64), e, b, keep)
    assert np.isnan(want[1]).all() and np.isnan(actual[1]).all()
    assert np.allclose(actual, want, rtol=1e-5, atol=1e-5, equal_nan=True)
