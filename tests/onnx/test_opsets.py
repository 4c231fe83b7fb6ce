"""Operators that changed between opsets, at each of their versions, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import smelt as sm

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed (make onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed (make onnx)")

RANDOM = np.random.default_rng(0)
NEWEST = onnx.defs.onnx_opset_version()
QUICK = frozenset(
    (
        *("Softmax", "Clip", "Slice", "Squeeze", "Dropout", "BatchNormalization", "Resize 0.6"),
        *("Pad", "Resize crop to one", "GridSample of one row", "Resize by a rounded scale"),
        *("Mod of infinity", "Mod of a tiny number", "ReduceMean of negative integers"),
        *("ReduceL2 of one number", "ReduceL2 of no axes", "CumSum of nothing"),
        *("Shrink of bytes", "Shrink by a fraction", "LayerNormalization of doubles"),
        *("RNN with alphas", "AffineGrid of one position"),
    )
)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def scales(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


X = floats(2, 3, 4)
POSITIVE = np.abs(X) + np.float32(0.1)
IMAGE = floats(1, 2, 5, 7)
COLUMN = floats(2, 1, 3, 1)


class Form(NamedTuple):
    """How a node is written from one opset on: an operator, inputs, attributes, results."""

    since: int
    op: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = {}
    results: int = 1


def forms(op: str, *rows: tuple[Any, ...], results: int = 1) -> list[Form]:
    return [Form(since, op, inputs, attributes, results) for since, inputs, attributes in rows]


def _reduction(op: str, since: int = 18) -> list[Form]:
    return forms(op, (7, (POSITIVE,), {"axes": [0, 2]}), (since, (POSITIVE, ints(0, 2)), {}))


def _resize(mode: str, *factors: float, **attributes: Any) -> list[Form]:
    s = scales(1, 1, *factors)
    older = [] if attributes else [(10, (IMAGE, s), {"mode": mode})]
    named = {"mode": mode, **attributes}
    return forms("Resize", *older, (11, (IMAGE, scales(), s), named), (13, (IMAGE, None, s), named))


def _resize_to(mode: str, transform: str) -> list[Form]:
    named = {"mode": mode, "coordinate_transformation_mode": transform}
    goal = ints(1, 2, 9, 4)
    return forms(
        "Resize",
        (11, (IMAGE, scales(), scales(), goal), named),
        (13, (IMAGE, None, None, goal), named),
    )


TRANSFORMS = ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
CASES: dict[str, list[Form]] = {
    "Softmax": forms("Softmax", (7, (X,), {})),
    "Softmax of the first axis": forms("Softmax", (7, (X,), {"axis": 0})),
    "LogSoftmax": forms("LogSoftmax", (7, (X,), {"axis": 1})),
    "Hardmax": forms("Hardmax", (7, (X,), {})),
    "Clip": forms(
        "Clip",
        (7, (X,), {"min": -0.5, "max": 0.5}),
        (11, (X, np.float32(-0.5), np.float32(0.5)), {}),
    ),
    "Clip above": forms("Clip", (7, (X,), {"max": 0.5}), (11, (X, None, np.float32(0.5)), {})),
    "Slice": forms(
        "Slice",
        (7, (X,), {"starts": [0, -3], "ends": [2, 9], "axes": [0, 2]}),
        (10, (X, ints(1, 3), ints(2, -9), ints(1, 2), ints(1, -2)), {}),
    ),
    "Squeeze": forms("Squeeze", (7, (COLUMN,), {"axes": [1]}), (13, (COLUMN, ints(-1)), {})),
    "Squeeze of all": forms("Squeeze", (7, (COLUMN,), {})),
    "Unsqueeze": forms("Unsqueeze", (7, (X,), {"axes": [0, 2]}), (13, (X, ints(0, 2)), {})),
    "Dropout": forms("Dropout", (7, (X,), {"ratio": 0.3}), (12, (X, np.float32(0.3)), {})),
    "BatchNormalization": forms(
        "BatchNormalization",
        (7, (X, *(floats(3) for _ in range(3)), np.abs(floats(3))), {"epsilon": 1e-3}),
    ),
    "ReduceSum": _reduction("ReduceSum", 13),
    "ReduceSum of nothing": forms("ReduceSum", (13, (X,), {"noop_with_empty_axes": 1})),
    **{op: _reduction(op) for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")},
    **{op: _reduction(op) for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")},
    "Pad": forms(
        "Pad",
        (7, (X,), {"pads": [0, 1, 0, 0, 0, 2], "value": 1.5}),
        (11, (X, ints(0, 1, 0, 0, 0, 2), np.float32(1.5)), {}),
        (18, (X, ints(1, 2), np.float32(1.5), ints(-1)), {}),
    ),
    "TopK": forms("TopK", (7, (X,), {"k": 2}), (10, (X, ints(2)), {}), results=2),
    "Split": forms(
        "Split",
        (7, (X,), {"split": [1, 3], "axis": 2}),
        (13, (X, ints(1, 3)), {"axis": 2}),
        (18, (X,), {"axis": 2, "num_outputs": 2}),
        results=2,
    ),
    "Upsample": forms(
        "Upsample",
        (7, (IMAGE,), {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}),
        (9, (IMAGE, scales(1, 1, 2, 3)), {"mode": "linear"}),
    ),
    "Resize 0.6": _resize("nearest", 0.6, 1.7),
    "Resize crop to one": forms(
        "Resize",
        (
            13,
            (IMAGE, scales(0, 0, 0.5, 0.3, 1, 1, 0.9, 0.8), None, ints(1, 2, 1, 4)),
            {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
        ),
    ),
    "GridSample of one row": [
        Form(
            16,
            "GridSample",
            (IMAGE[:, :, :1], floats(1, 4, 3, 2)),
            {"padding_mode": "reflection", "align_corners": 1},
        )
    ],
    "Resize by a rounded scale": _resize("linear", 0.7, 2.3)[1:],
    "Mod of infinity": forms("Mod", (10, (X, np.float32(np.inf)), {"fmod": 1})),
    "Mod of a tiny number": forms("Mod", (10, (X * np.float32(1e-9), np.float32(3)), {"fmod": 1})),
    "ReduceMean of negative integers": forms(
        "ReduceMean", (7, (np.array([[-3, -4, 2], [1, -6, -7]], np.int32),), {"keepdims": 0})
    ),
    "ReduceL2 of one number": forms("ReduceL2", (18, (np.float32(-3),), {})),
    "ReduceL2 of no axes": forms("ReduceL2", (18, (-POSITIVE,), {"noop_with_empty_axes": 1})),
    "CumSum of nothing": forms("CumSum", (11, (floats(2, 0), np.int64(1)), {"exclusive": 1})),
    "Shrink of bytes": forms(
        "Shrink", (9, (np.arange(9, dtype=np.uint8),), {"lambd": 1.0, "bias": 1.0})
    ),
    "Shrink by a fraction": forms(
        "Shrink", (9, (np.arange(-4, 5, dtype=np.int32),), {"lambd": 1.5, "bias": 0.5})
    ),
    "LayerNormalization of doubles": forms(
        "LayerNormalization", (17, (X.astype(np.float64), np.ones(4)), {}), results=3
    ),
    "RNN with alphas": forms(
        "LSTM",
        (
            14,
            (floats(3, 2, 3), floats(1, 16, 3), floats(1, 16, 4)),
            {
                "hidden_size": 4,
                "activations": ["Sigmoid", "LeakyRelu", "Tanh"],
                "activation_alpha": [0.3],
            },
        ),
        results=2,
    ),
    "AffineGrid of one position": forms(
        "AffineGrid", (20, (floats(1, 2, 3), ints(1, 1, 1, 3)), {"align_corners": 1})
    ),
    "Resize 2.4": _resize("nearest", 2.4, 0.3),
    "Resize linearly": _resize("linear", 1.7, 0.5),
    **{
        f"Resize {rounding} {transform}": _resize(
            "nearest",
            2.4,
            0.3,
            nearest_mode=rounding,
            coordinate_transformation_mode=transform,
        )
        for rounding in ROUNDINGS
        for transform in TRANSFORMS[:2]
    },
    **{
        f"Resize to {mode} {transform}": _resize_to(mode, transform)
        for mode in ("nearest", "linear", "cubic")
        for transform in TRANSFORMS
    },
    "Gemm": forms("Gemm", (7, (floats(3, 4), floats(4, 5), floats(5)), {"alpha": 0.5})),
    "MaxPool": forms(
        "MaxPool",
        (7, (IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2]}),
        (10, (IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1}),
    ),
    "AveragePool": forms(
        "AveragePool",
        (7, (IMAGE,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        (10, (IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1}),
    ),
    "ArgMax": forms(
        "ArgMax",
        (7, (X,), {"axis": 1}),
        (12, (np.round(X),), {"axis": 1, "select_last_index": 1}),
    ),
    "Reshape": forms(
        "Reshape", (7, (X, ints(0, -1)), {}), (14, (floats(0, 3), ints(3, 0)), {"allowzero": 1})
    ),
    "Shape": forms("Shape", (7, (X,), {}), (15, (X,), {"start": 1, "end": -1})),
    "DepthToSpace": forms(
        "DepthToSpace",
        (7, (floats(1, 8, 2, 3),), {"blocksize": 2}),
        (11, (floats(1, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
    ),
    "GroupNormalization": forms(
        "GroupNormalization",
        (18, (floats(2, 4, 5), floats(2), floats(2)), {"num_groups": 2}),
        (21, (floats(2, 4, 5), floats(4), floats(4)), {"num_groups": 2}),
    ),
    "LSTM": forms(
        "LSTM",
        (7, (floats(4, 2, 3), floats(1, 20, 3), floats(1, 20, 5)), {"hidden_size": 5}),
        results=2,
    ),
}


def _model(form: Form, opset: int) -> bytes:
    """Return a model of one node, whose inputs but for the first are constants."""
    names = [f"i{k}" if x is not None else "" for k, x in enumerate(form.inputs)]
    first, *rest = (np.asarray(x) if x is not None else None for x in form.inputs)
    assert first is not None
    outputs = [f"o{k}" for k in range(form.results)]
    kind = onnx.helper.np_dtype_to_tensor_dtype(first.dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(form.op, names, outputs, **form.attributes)],
        "g",
        [onnx.helper.make_tensor_value_info("i0", kind, first.shape)],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(x, f"i{k}") for k, x in enumerate(rest, 1) if x is not None],
    )
    version = onnx.helper.make_opsetid("", opset)
    model = onnx.helper.make_model(graph, opset_imports=[version], ir_version=10)
    return bytes(model.SerializeToString())


def _versions(rows: list[Form]) -> list[tuple[int, Form]]:
    """Return an opset for each version of the operator and each way to write it there."""
    versions: dict[tuple[int, int], tuple[int, Form]] = {}
    for opset in range(7, NEWEST + 1):
        written = [form for form in rows if form.since <= opset]
        if not written:
            continue
        schema = onnx.defs.get_schema(written[-1].op, opset, "")
        if not schema.deprecated:
            key = schema.since_version, written[-1].since
            versions.setdefault(key, (opset, written[-1]))
    return list(versions.values())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.nightly) for n in CASES]
)
def test_every_version_of_an_operator(name: str) -> None:
    for opset, form in _versions(CASES[name]):
        model = _model(form, opset)
        feeds = {"i0": np.asarray(form.inputs[0])}
        with sm.config(tiers="auto"):
            results = sm.onnx.load(model, fallback="error").run(None, feeds)
        peer = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        for x, y in zip(results, peer.run(None, feeds), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape), opset
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5, err_msg=f"opset {opset}")


BOUNDS = (-(2**63), -(2**31), -11, -6, -5, -3, -1, 0, 1, 4, 5, 9, 2**31 - 1, 2**40, 2**63 - 1)


@pytest.mark.parametrize("step", [-3, -1, 1, 2])
def test_bounds_of_slices_beyond_an_axis_are_its_ends(step: int) -> None:
    x, n = np.arange(5, dtype=np.float32), 5

    def position(bound: int, least: int, most: int) -> int:
        return min(max(bound + n * (bound < 0), least), most)

    for start in BOUNDS:
        for stop in BOUNDS:
            model = _model(Form(13, "Slice", (x, *map(ints, (start, stop, 0, step)))), 13)
            (got,) = sm.onnx.load(model, fallback="error").run(None, {"i0": x})
            ends = (-1, n - 1) if step < 0 else (0, n)
            first = position(start, 0, ends[1])
            want = x[[*range(first, position(stop, *ends), step)]]
            assert np.array_equal(got, want), (start, stop)


def test_large_integers_become_halves_after_the_product_with_the_scale() -> None:
    x, scale = np.array([[0, 4097, 65535]], np.uint16), np.float16(0.001)
    model = _model(Form(21, "DequantizeLinear", (x, scale)), 21)
    (got,) = sm.onnx.load(model, fallback="error").run(None, {"i0": x})
    assert np.array_equal(got, (x * np.float32(scale)).astype(np.float16))


def test_a_known_zero_divides_only_its_own_element() -> None:
    pair = (np.array([4, -6, 9], np.int32), np.array([2, 4, 0], np.int32))
    names, version = ["i0", "i1"], onnx.helper.make_opsetid("", 14)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Div", names, ["o0"])],
        "g",
        [],
        [onnx.helper.make_empty_tensor_value_info("o0")],
        [onnx.numpy_helper.from_array(x, name) for x, name in zip(pair, names, strict=True)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[version], ir_version=10)
    (got,) = sm.onnx.load(model.SerializeToString(), fallback="error").run(None, {})
    assert got.tolist()[:2] == [2, -1]
