"""Quantised operators that ONNX Runtime's quantisers write give its results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.onnx.build import model, node, port

import smelt.onnx

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed (make onnx)")

RANDOM = np.random.default_rng(0)
F, U8, I8 = np.float32, np.uint8, np.int8


def integers(dtype: Any, *shape: int) -> Any:
    return RANDOM.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


def number(x: float, dtype: Any = F) -> Any:
    return np.array(x, dtype)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(F)


class Case(NamedTuple):
    """An operator, its inputs (the first varies, others are constants) and attributes."""

    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    domain: str = "com.microsoft"
    steps: float = 1
    """Largest difference; relative to the range for floats."""


def scaled(dtype: Any, zero: int) -> tuple[Any, Any]:
    return number(0.02), number(zero, dtype)


def packed(n: int, k: int, block: int, bits: int, zeros: bool) -> tuple[Any, ...]:
    blocks = -(-k // block)
    scales = np.abs(floats(n * blocks)) + F(0.1)
    weights = integers(U8, n, blocks, block * bits // 8)
    return weights, scales, *([integers(U8, n * -(-blocks * bits // 8))] if zeros else [])


PRODUCT = (number(0.03), number(7, U8), integers(I8, 6, 5), number(0.05), number(0, I8))
CASES = {
    "add": Case(
        "QLinearAdd",
        (integers(U8, 3, 4), *scaled(U8, 100), integers(U8, 4), *scaled(U8, 90), *scaled(U8, 128)),
        {},
    ),
    "multiply": Case(
        "QLinearMul",
        (integers(I8, 3, 4), *scaled(I8, 3), integers(I8, 3, 1), *scaled(I8, -9), *scaled(I8, 0)),
        {},
    ),
    "sigmoid": Case(
        "QLinearSigmoid", (integers(U8, 3, 4), *scaled(U8, 128), number(1 / 256), number(0, U8)), {}
    ),
    "leaky": Case(
        "QLinearLeakyRelu", (integers(U8, 3, 4), *scaled(U8, 128), *scaled(U8, 120)), {"alpha": 0.3}
    ),
    "softmax": Case(
        "QLinearSoftmax",
        (integers(U8, 3, 8), *scaled(U8, 0), number(1 / 256), number(0, U8)),
        {"axis": -1, "opset": 13},
    ),
    "global average": Case(
        "QLinearGlobalAveragePool",
        (integers(U8, 2, 3, 4, 5), *scaled(U8, 128), *scaled(U8, 128)),
        {"channels_last": 0},
    ),
    "global average of channels": Case(
        "QLinearGlobalAveragePool",
        (integers(U8, 2, 4, 5, 3), *scaled(U8, 128), *scaled(U8, 128)),
        {"channels_last": 1},
    ),
    "average": Case(
        "QLinearAveragePool",
        (integers(U8, 2, 3, 6, 5), *scaled(U8, 128), *scaled(U8, 120)),
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]},
    ),
    "concat": Case(
        "QLinearConcat",
        (integers(U8, 2, 3), *scaled(U8, 100), integers(U8, 2, 2), number(0.03), number(9, U8)),
        {"axis": 1},
    ),
    "gemm": Case(
        "QGemm",
        (integers(U8, 4, 6), *PRODUCT, np.arange(5, dtype=np.int32), number(0.4), number(128, U8)),
        {"alpha": 1.0},
    ),
    "gemm to float": Case("QGemm", (integers(U8, 6, 4), *PRODUCT), {"transA": 1}, steps=1e-6),
    "gemm of columns": Case(
        "QGemm",
        (
            integers(U8, 4, 6),
            number(0.03),
            number(7, U8),
            integers(I8, 5, 6),
            np.abs(floats(5)),
            np.zeros(5, I8),
        ),
        {"transB": 1},
        steps=1e-6,
    ),
    "to float": Case(
        "MatMulIntegerToFloat",
        (
            integers(U8, 4, 6),
            PRODUCT[2],
            number(0.03),
            np.abs(floats(5)),
            number(7, U8),
            np.zeros(5, I8),
            floats(5),
        ),
        {},
        steps=1e-6,
    ),
    "dynamic": Case(
        "DynamicQuantizeMatMul",
        (floats(4, 6), PRODUCT[2], number(0.05), number(0, I8), floats(5)),
        {},
        steps=1e-5,
    ),
    "products": Case(
        "QLinearMatMul", (integers(U8, 4, 6), *PRODUCT, number(0.4), number(128, U8)), {}, ""
    ),
    "convolution": Case(
        "QLinearConv",
        (
            integers(U8, 2, 3, 6, 5),
            *scaled(U8, 128),
            integers(I8, 4, 3, 3, 3),
            np.abs(floats(4)) / 50,
            np.zeros(4, I8),
            number(0.3),
            number(128, U8),
            np.arange(4, dtype=np.int32),
        ),
        {"pads": [1, 1, 1, 1]},
        "",
    ),
    **{
        f"{bits} bits{' with zeros' * zeros}": Case(
            "MatMulNBits",
            (floats(3, 50), *packed(8, 50, 16, bits, zeros)),
            {"N": 8, "K": 50, "bits": bits, "block_size": 16},
            steps=1e-4,
        )
        for bits in (4, 8)
        for zeros in (False, True)
    },
}
FIRST = {"concat": 2}
"""Position of the input that is not a constant, if it is not the first."""


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs
    if name == "concat":  # the result's scale comes first
        inputs = (number(0.025), number(80, U8), *inputs)
    at = FIRST.get(name, 0)
    names = [f"i{k}" for k in range(len(inputs))]
    x = inputs[at]
    data = model(
        [node(case.op, names, ["y"], case.domain, **case.attributes)],
        [port(names[at], x.dtype, ["n", *x.shape[1:]])],
        [port("y")],
        {n: v for k, (n, v) in enumerate(zip(names, inputs, strict=True)) if k != at},
        opset=17,
    )
    feeds = {names[at]: x}
    (want,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    session = smelt.onnx.load(data, fallback="error")
    (y,) = session.run(None, feeds)
    assert (y.dtype, y.shape, session.reasons) == (want.dtype, want.shape, [])
    gap = np.abs(y.astype(np.float64) - want.astype(np.float64)).max()
    assert gap <= case.steps * (1 if want.dtype.kind in "iu" else np.abs(want).max())


@pytest.mark.parametrize("channels", [3, 300], ids=["in float32", "too large for float32"])
def test_sums_of_a_convolution_are_exact(channels: int) -> None:
    x, w = np.full((1, channels, 5, 5), 255, U8), np.full((2, channels, 3, 3), -128, I8)
    x[0, ::7], w[1, ::3] = 3, 127
    data = model(
        [node("ConvInteger", ["x", "w", "zero"], ["y"], pads=[1, 1, 1, 1])],
        [port("x", U8, x.shape)],
        [port("y")],
        {"w": w, "zero": number(2, U8)},
    )
    session = smelt.onnx.load(data, fallback="error")
    padded = np.pad(x.astype(np.int64) - 2, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    (y,) = session.run(None, {"x": x})
    assert np.array_equal(y, np.einsum("ncyxuv,ocuv->noyx", windows, w.astype(np.int64)))
    function, arguments = session.program({"x": x})
    uses_floats = "f32" in function.lower(*arguments).as_text()
    assert uses_floats == (channels == 3)
