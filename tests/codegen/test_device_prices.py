"""Predicted rates against those that others have published for programs of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import smelt as sm

TOLERANCE = 0.15


class Published(NamedTuple):
    """A program on a GPU, its work (bytes, or operations in thousands), and rates a nanosecond."""

    target: str
    function: Callable[..., Any]
    specs: tuple[str, ...]
    work: float
    least: float
    most: float


def product(target: str, m: int, k: int, n: int, least: float, most: float) -> Published:
    specs = f"bf16[{m},{k}]", f"bf16[{k},{n}]"
    return Published(target, lambda x, w: x @ w, specs, 2e-3 * m * k * n, least, most)


def attention(
    target: str,
    length: int,
    width: int,
    least: float,
    most: float,
    *,
    causal: bool = False,
) -> Published:
    heads = 2048 // width * (16384 // length)
    work = 4e-3 * heads * length**2 * width / (2 if causal else 1)
    return Published(
        target,
        lambda q, k, v: sm.nn.attention(q, k, v, causal=causal),
        (f"bf16[{heads},{length},{width}]",) * 3,
        work,
        least,
        most,
    )


def rows(target: str, function: Any, shape: str, nbytes: int, least: float, most: float):
    return Published(target, function, (shape,), 2.0 * nbytes, least, most)


def norm(x: Any) -> Any:
    centred = x - sm.mean(x, axis=1, keepdims=True)
    return centred / sm.sqrt(sm.mean(sm.square(centred), axis=1, keepdims=True) + 1e-5)


def twice(x: Any) -> Any:
    return x * 2


FIGURES = {
    # meta-pytorch/tritonbench#894: Triton with tensor copies; pytorch/FBGEMM#2766: cuBLAS
    "h100 8192": product("h100", 8192, 8192, 8192, 674, 755),
    # triton-lang/triton#2339: cuBLAS
    "h100 2048": product("h100", 2048, 8192, 8192, 722, 722),
    # facebookexperimental/triton#1038
    "h100 65536": product("h100", 65536, 1024, 1024, 584, 584),
    # "45 % of peak", as AMD and others report of hipBLASLt
    "mi300x 8192": product("mi300x", 8192, 8192, 8192, 588, 620),
    # FlashAttention-3 paper, forward pass: bars of Triton
    "h100 attention 128": attention("h100", 8192, 128, 389, 395),
    "h100 attention 64": attention("h100", 8192, 64, 342, 376, causal=True),
    # FlashAttention-2 paper: 50 to 73 % of 312 Tflop/s
    "a100 attention 64": attention("a100", 8192, 64, 156, 228),
    "a100 attention 128": attention("a100", 8192, 128, 156, 228),
    # Dao-AILab/quack: softmax of QuACK and of Inductor, layer norm of torch and QuACK
    "h100 softmax 4096": rows("h100", sm.nn.softmax, "f32[32768,4096]", 1 << 29, 3000, 3010),
    "h100 softmax 32768": rows("h100", sm.nn.softmax, "f32[32768,32768]", 1 << 32, 3000, 3010),
    "h100 softmax 131072": rows("h100", sm.nn.softmax, "f32[16384,131072]", 1 << 33, 2000, 3010),
    "h100 norm 32768": rows("h100", norm, "bf16[32768,32768]", 1 << 31, 2360, 2990),
    # 89.7 to 92 % of the peak are reachable
    "h100 map": rows("h100", twice, "f32[16384,16384]", 1 << 30, 3000, 3080),
    # AMD: 81 % of 5.3 TB/s
    "mi300x map": rows("mi300x", twice, "f32[16384,16384]", 1 << 30, 4300, 4300),
}


@pytest.mark.parametrize("name", FIGURES)
def test_predicted_rates_are_near_published_ones(name: str):
    figure = FIGURES[name]
    with sm.config(device_code=False, rounding="fast"):
        report = sm.explain(figure.function, *map(sm.spec, figure.specs), target=figure.target)
    assert report.data.total.predicted_ns is not None
    rate = figure.work / report.data.total.predicted_ns
    assert (1 - TOLERANCE) * figure.least <= rate <= (1 + TOLERANCE) * figure.most


@pytest.mark.parametrize("queries", [3, 4])
def test_a_mask_without_a_block_to_visit_has_a_price(queries: int):
    def attend(q, k, v):
        scores = q @ k.T
        i, j = sm.arange(queries).reshape(-1, 1), sm.arange(75).reshape(1, -1)
        scores = sm.where(j <= i - 3, scores, -np.inf)
        greatest = sm.maximum(sm.max(scores, axis=1, keepdims=True), -1e30)
        weights = sm.exp(scores - greatest)
        total = sm.sum(weights, axis=1, keepdims=True)
        return (weights @ v) / sm.where(total == 0, 1.0, total)

    arrays = [np.zeros((n, 16), np.float32) for n in (queries, 75, 75)]
    with sm.config(rounding="fast"):
        assert sm.explain(attend, *arrays, target="h100").kernels
