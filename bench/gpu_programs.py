"""Programs that a run on a GPU compares with the CPU and measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

import smelt as sm
from bench.gpu_tasks import Array, random_arrays

__all__ = [
    "CORRECT",
    "WITHOUT_TRITON",
    "Case",
    "attention",
    "block",
    "linear_gelu",
    "rms_norm",
    "softmax",
]


def softmax(x: Any) -> Any:
    """Softmax of each row."""
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def rms_norm(x: Any, w: Any) -> Any:
    """Root-mean-square norm of each row."""
    return x * w / sm.sqrt(sm.mean(x * x, axis=1, keepdims=True) + 1e-6)


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    """Linear layer with GELU."""
    return sm.nn.gelu(x @ w + b)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention."""
    return sm.nn.attention(q, k, v, causal=True)


def block(x: Any, w: Any, q: Any, o: Any) -> Any:
    """Norm, two linear layers with SiLU, and the residual."""
    h = rms_norm(x, w) @ q
    return x + (h * sm.sigmoid(h)) @ o


def recurrence(xs: Any, w: Any) -> Any:
    """Last state of a recurrent layer: a loop of products."""
    return sm.scan(lambda h, x: (sm.tanh(h @ w + x), None), xs[0], xs)[0]


def doubled(x: Any, w: Any) -> Any:
    """A loop whose condition the host reads."""
    return sm.while_loop(lambda h: sm.sum(h) < 1e4, lambda h: h + sm.abs(h @ w) + 1, x)


def updates(*arrays: Any) -> list[Any]:
    """An elementwise step of many arrays, in one launch."""
    return [x * 2 + 1 for x in arrays]


class Case(NamedTuple):
    """A program whose results are compared with the CPU's, with the shapes of its arrays.

    `positions` has shapes and bounds of arrays of positions behind these. Differences count
    relative to the largest result.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    positions: tuple[tuple[tuple[int, ...], int], ...] = ()
    dtype: Any = np.float32
    tolerance: float = 1e-4

    def arrays(self) -> list[Array]:
        """Random arguments."""
        random = np.random.default_rng(12)
        scale = 1.0 if self.dtype is np.float32 else 0.1
        floats = random_arrays(self.shapes, scale, self.dtype)
        return [*floats, *(random.integers(0, n, shape) for shape, n in self.positions)]


def _half(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    """Return a case whose products run on matrix units."""
    return Case(function, shapes, dtype=ml_dtypes.bfloat16, tolerance=2e-2)


CORRECT: Final[dict[str, Case]] = {
    "map": Case(lambda x: sm.tanh(x) * 2 + 1, ((37, 100),)),
    "softmax": Case(softmax, ((33, 1000),)),
    "rms_norm": Case(rms_norm, ((33, 300), (300,))),
    "columns": Case(lambda x: sm.sum(x, axis=0), ((500, 70),)),
    "total": Case(lambda x: sm.sum(x * x), ((300, 100),)),
    "argmax": Case(lambda x: sm.argmax(x, axis=1), ((37, 100),)),
    "scan": Case(lambda x: sm.cumulative_sum(x, axis=1), ((37, 100),)),
    "split": Case(lambda x: sm.sum(sm.exp(x), axis=1), ((2, 20_000),)),
    "looped row": Case(softmax, ((3, 100_000),)),
    "many arrays": Case(updates, tuple((50 + 7 * k,) for k in range(12))),
    "gather": Case(lambda x, i: x[i] * 2, ((300, 64),), (((50,), 300),)),
    "histogram": Case(lambda i: sm.bincount(i, minlength=256), (), (((10_000,), 256),)),
    "linear_gelu": Case(linear_gelu, ((65, 48), (48, 80), (80,))),
    "attention": Case(attention, ((1, 2, 70, 32),) * 3),
    "block": Case(block, ((20, 64), (64,), (64, 96), (96, 64))),
    "recurrence": Case(recurrence, ((9, 20, 64), (64, 64))),
    "condition": Case(doubled, ((20, 64), (64, 64))),
    "bf16 linear_gelu": _half(linear_gelu, (2048, 512), (512, 2048), (2048,)),
    "bf16 few rows": _half(lambda x, w: x @ w, (16, 512), (512, 512)),
    "bf16 attention": _half(attention, *((1, 2, 512, 64),) * 3),
    "bf16 wide heads": _half(attention, *((1, 2, 512, 128),) * 3),
}
"""Programs that are compared, by name."""
WITHOUT_TRITON: Final = ("map", "softmax", "rms_norm", "total", "gather")
"""Programs that are compared once more as LLVM prints them."""
