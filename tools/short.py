"""Measure programs over short rows in Smelt, NumPy, torch and JAX: the table of `docs/short.md`.

    python -m tools.short            print the table
    python -m tools.short --write    and put it into the page

One thread, processor time (repeatable on a busy machine), the median of many rounds in which all
libraries run. torch runs eagerly, JAX compiled; the same function runs with four namespaces.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tools import measured

import smelt as sm

PAGE = Path(__file__).parent.parent / "docs" / "short.md"
ROUNDS, MIN_SECONDS = 15, 0.004
"""Rounds, and minimum seconds of a library in each of them."""
ROWS = 20000
PEERS = ("NumPy", "torch", "JAX")
Program = Callable[..., Any]
Case = tuple[str, Program, tuple[np.ndarray[Any, Any], ...]]


def normal(*shape: int) -> np.ndarray[Any, Any]:
    """Draw normal numbers of a shape, always the same."""
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def boxes(count: int) -> np.ndarray[Any, Any]:
    """Draw boxes, as two corners."""
    corner = normal(count, 2)
    return np.concatenate([corner, corner + abs(normal(count, 2)) + 0.1], axis=1)


# ---- programs ----------------------------------------------------------------------------------
# ruff: noqa: D103 - their names say what they compute


def product(xp: Any, a: Any, b: Any) -> Any:
    return xp.matmul(a, b)


def pixels(xp: Any, image: Any) -> Any:
    return xp.permute_dims(xp.astype(image, xp.float32), (0, 3, 1, 2)) * 0.0078125 - 1.0


def last(xp: Any, x: Any) -> Any:
    return xp.permute_dims(x, (0, 2, 3, 1)) * 0.5


def grey(xp: Any, x: Any) -> Any:
    return x[..., 0] * 0.299 + x[..., 1] * 0.587 + x[..., 2] * 0.114


def cross(xp: Any, a: Any, b: Any) -> Any:
    (p, q, r), (u, v, w) = ([x[:, k] for k in range(3)] for x in (a, b))
    return xp.stack([q * w - r * v, r * u - p * w, p * v - q * u], axis=-1)


def length(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.sum(x * x, axis=-1))


def normalised(xp: Any, x: Any) -> Any:
    return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))


def distances(xp: Any, a: Any, b: Any) -> Any:
    return length(xp, a[:, None, :] - b[None, :, :])


def hamilton(xp: Any, q: Any, p: Any) -> Any:
    (a, b, c, d), (e, f, g, h) = ([x[:, k] for k in range(4)] for x in (q, p))
    return xp.stack(
        [
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        ],
        axis=-1,
    )


def determinant(xp: Any, m: Any) -> Any:
    (a, b, c), (d, e, f), (g, h, i) = ([m[:, r, k] for k in range(3)] for r in range(3))
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def overlap(xp: Any, a: Any, b: Any) -> Any:
    low = xp.maximum(a[:, None, :2], b[None, :, :2])
    high = xp.minimum(a[:, None, 2:], b[None, :, 2:])
    size = xp.maximum(high - low, xp.zeros_like(high))
    common = size[..., 0] * size[..., 1]
    area, other = ((x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b))
    return common / (area[:, None] + other[None, :] - common)


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def layer_norm(xp: Any, x: Any) -> Any:
    d = x - xp.mean(x, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + 1e-5)


def best(xp: Any, x: Any) -> Any:
    return xp.argmax(x, axis=-1)


def total(xp: Any, x: Any) -> Any:
    return xp.sum(x, axis=-1)


def largest(xp: Any, x: Any) -> Any:
    return xp.max(x, axis=-1)


def running(xp: Any, x: Any) -> Any:
    return xp.cumulative_sum(x, axis=-1)


def inner(xp: Any, a: Any, b: Any) -> Any:
    return xp.sum(a * b, axis=-1)


def outer(xp: Any, a: Any, b: Any) -> Any:
    return a[:, :, None] * b[:, None, :]


def cases(n: int = ROWS) -> list[Case]:
    """Return the measured programs: name, function and arguments."""
    image = np.random.default_rng(0).integers(0, 256, (4, 224, 224, 3)).astype(np.uint8)
    batch, few = normal(4, 3, 224, 224), max(n // 16, 2)
    programs: list[Case] = [
        (f"{k}×{k} by {k}×{k}, {m:,} times", product, (normal(m, k, k), normal(m, k, k)))
        for k, m in ((2, n), (3, n), (4, n), (6, n // 4))
    ]
    programs += [
        ("points in 3-D by one rotation", product, (normal(4 * n, 3), normal(3, 3))),
        ("64 points by each of many rotations", product, (normal(few, 64, 3), normal(few, 3, 3))),
        ("images of bytes, channels last, to floats, channels first", pixels, (image,)),
        ("images, channels first to last", last, (batch,)),
        ("images to grey, channels last", grey, (normal(4, 224, 224, 3),)),
        ("cross products in 3-D", cross, (normal(4 * n, 3), normal(n * 4, 3))),
        ("lengths of vectors in 3-D", length, (normal(4 * n, 3),)),
        ("vectors in 3-D, normalised", normalised, (normal(4 * n, 3),)),
        ("distances of 500 × 500 points in 3-D", distances, (normal(500, 3), normal(500, 3))),
        ("products of quaternions", hamilton, (normal(4 * n, 4), normal(4 * n, 4))),
        ("determinants of 3×3", determinant, (normal(n, 3, 3),)),
        ("overlap (IoU) of 500 × 500 boxes", overlap, (boxes(500), boxes(500))),
        *((f"dot products of {k}", inner, (normal(n, k), normal(n, k))) for k in (12, 48)),
        *(
            (f"rows of {k} by a vector", product, (normal(n, k), normal(k)))
            for k in (8, 16, 32, 64)
        ),
        ("outer products of 12", outer, (normal(few, 12), normal(few, 12))),
    ]
    for name, program, lengths in (
        ("softmax of {}", softmax, (4, 10, 24)),
        ("LayerNorm of {}", layer_norm, (8, 32)),
        ("argmax of {}", best, (10, 32)),
        ("sums of rows of {}", total, (10, 24, 32, 48, 64)),
        ("maxima of rows of {}", largest, (32,)),
        ("running sums of {}", running, (4, 24)),
    ):
        programs += [(name.format(d), program, (normal(n, d),)) for d in lengths]
    return programs


# ---- namespaces --------------------------------------------------------------------------------


class Torch:
    """torch's functions under the names of the array standard."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch, self.float32 = torch, torch.float32
        for name in ("matmul", "sqrt", "exp", "maximum", "minimum", "zeros_like"):
            setattr(self, name, getattr(torch, name))

    def sum(self, x: Any, axis: int, *, keepdims: bool = False) -> Any:
        return self.torch.sum(x, axis, keepdim=keepdims)

    def mean(self, x: Any, axis: int, *, keepdims: bool = False) -> Any:
        return self.torch.mean(x, axis, keepdim=keepdims)

    def max(self, x: Any, axis: int, *, keepdims: bool = False) -> Any:
        return self.torch.amax(x, axis, keepdim=keepdims)

    def argmax(self, x: Any, axis: int) -> Any:
        return self.torch.argmax(x, axis)

    def cumulative_sum(self, x: Any, axis: int) -> Any:
        return self.torch.cumsum(x, axis)

    def stack(self, xs: Sequence[Any], axis: int) -> Any:
        return self.torch.stack(list(xs), axis)

    def permute_dims(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.permute(axes)

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.to(dtype)


def runs(case: Case) -> list[Callable[[], Any]]:
    """Return a call of each library, Smelt first."""
    import jax

    _, program, arrays = case
    compiled, names = sm.jit(lambda *a: program(sm, *a)), Torch()
    jitted = jax.jit(lambda *a: program(jax.numpy, *a))
    tensors = [names.torch.from_numpy(a) for a in arrays]
    placed = [jax.numpy.asarray(a) for a in arrays]
    return [
        lambda: np.asarray(compiled(*arrays)),
        lambda: np.ascontiguousarray(program(np, *arrays)),
        lambda: np.asarray(program(names, *tensors).contiguous()),
        lambda: jitted(*placed).block_until_ready(),
    ]


def medians(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the median seconds of processor time of each call, run round-robin."""
    counts = [_count(call) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, count, seconds in zip(calls, counts, samples, strict=True):
            seconds.append(_seconds(call, count) / count)
    return [statistics.median(seconds) for seconds in samples]


def _count(call: Callable[[], Any]) -> int:
    """Return the number of calls that take long enough to time.

    Makes warm-up calls first: the first two calls of a library differ from later ones.
    """
    count = 4
    call()
    while _seconds(call, count) < MIN_SECONDS:
        count *= 2
    return count


def _seconds(call: Callable[[], Any], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return time.process_time() - start


def check(calls: Sequence[Callable[[], Any]]) -> None:
    """Assert that all libraries agree."""
    expected, *others = (np.asarray(call()) for call in calls)
    for other in others:
        np.testing.assert_allclose(expected, other, rtol=1e-4, atol=1e-4)


def table() -> str:
    """Return the table and a summary of slow rows; raise ImportError without a peer."""
    rows = [
        f"| float32 | Smelt | {' | '.join(PEERS)} | best peer / Smelt |",
        f"| --- | {'--: | ' * (len(PEERS) + 2)}".rstrip(),
    ]
    ratios: list[tuple[float, str]] = []
    with sm.config(threads=1):
        for case in cases():
            calls = runs(case)
            check(calls)
            smelt_seconds, *others = medians(calls)
            ratios.append((min(others) / smelt_seconds, case[0]))
            times = " | ".join(f"{t * 1e6:,.0f} µs" for t in (smelt_seconds, *others))
            rows.append(f"| {case[0]} | {times} | {ratios[-1][0]:.2f} |")
    slower = [f"{name} ({r:.2f})" for r, name in sorted(ratios) if r < 1]
    mean = statistics.geometric_mean(r for r, _ in ratios)
    summary = (
        f"Slower than the best peer: {'; '.join(slower)}."
        if slower
        else "Nothing here is slower than the best peer."
    )
    return "\n".join(rows) + f"\n\nGeometric mean: {mean:.2f}. {summary}\n"


def main() -> None:
    """Print the table; with `--write`, put it into the page."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    markdown = table()
    print(markdown)
    if "--write" in sys.argv:
        measured.write(PAGE, markdown)


if __name__ == "__main__":
    main()
