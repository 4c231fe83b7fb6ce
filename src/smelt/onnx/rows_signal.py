"""Rows of signal processing: DFT, STFT, windows, mel weights.

A transform is a product with a matrix of cosines and sines, which fuses with what is around it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import smelt as sm
from smelt.frontends.array.array import Array
from smelt.onnx.known import Known, check_count
from smelt.onnx.row import Call, Row, axis_of
from smelt.onnx.rows_view import slice_along


def _fitted(x: Array, axis: int, length: int) -> Array:
    """Cut or pad an axis to a length."""
    extent = int(x.shape[axis])
    if extent > length:
        return slice_along(x, axis, 0, length)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - extent)
    return sm.pad(x, widths) if extent < length else x


def _matrices(rows: int, columns: int, length: int, dtype: Any) -> tuple[Array, Array]:
    """Return cosines and sines of 2 pi j k / length."""
    check_count(rows * columns)
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    angles = 2 * math.pi * turns / length
    return sm.asarray(np.cos(angles).astype(dtype)), sm.asarray(np.sin(angles).astype(dtype))


def _dft(c: Call, x: Array, length: Known | None = None, axis: Known | None = None) -> Any:
    position = c.get("axis", 1) if axis is None else int(axis.item())
    if axis is None and c.version >= 20:
        position = -2
    a = axis_of(position, x.ndim)
    inverse, one_sided = bool(c.get("inverse", 0)), bool(c.get("onesided", 0))
    count = None if length is None else int(length.item())
    if count is None:
        extent = int(x.shape[a])
        count = 2 * (extent - 1) if inverse and one_sided else extent
    return _transform(x, a, count, inverse, one_sided)


def _transform(x: Array, axis: int, count: int, inverse: bool, one_sided: bool) -> Array:
    """Transform pairs of real and imaginary parts, or real numbers, along an axis."""
    dtype = x.dtype.numpy
    real, imaginary = x[..., 0], x[..., 1] if int(x.shape[-1]) == 2 else None
    kept = count // 2 + 1
    if inverse and one_sided:
        real, imaginary = (
            None if v is None else sm.moveaxis(_fitted(v, axis, kept), axis, -1)
            for v in (real, imaginary)
        )
        weights = np.full(kept, 2.0)
        weights[0] = 1.0
        if count % 2 == 0:
            weights[-1] = 1.0
        cosine, sine = _matrices(kept, count, count, dtype)
        factor = sm.asarray((weights / count).astype(dtype))
        result = sm.matmul(real * factor, cosine)
        if imaginary is not None:
            result = result - sm.matmul(imaginary * factor, sine)
        return sm.expand_dims(sm.moveaxis(result, -1, axis), axis=-1)
    real, imaginary = (
        None if v is None else sm.moveaxis(_fitted(v, axis, count), axis, -1)
        for v in (real, imaginary)
    )
    cosine, sine = _matrices(count, kept if one_sided else count, count, dtype)
    sine = sine if inverse else -sine
    first, second = sm.matmul(real, cosine), sm.matmul(real, sine)
    if imaginary is not None:
        first = first - sm.matmul(imaginary, sine)
        second = second + sm.matmul(imaginary, cosine)
    result = sm.stack([sm.moveaxis(v, -1, axis) for v in (first, second)], axis=-1)
    return result / sm.full((), count, dtype=x.dtype) if inverse else result


def _stft(c: Call, x: Array, step: Known, window: Any = None, length: Known | None = None) -> Any:
    hop = int(step.item())
    if length is None:
        frame = int(window.shape[0])
    else:
        frame = int(length.item())
    count = 1 + (int(x.shape[1]) - frame) // hop
    check_count(count * frame)
    index = np.arange(count)[:, None] * hop + np.arange(frame)
    frames = sm.take(x, sm.asarray(index.reshape(-1)), axis=1)
    frames = sm.reshape(frames, (x.shape[0], count, frame, x.shape[2]))
    if window is not None:
        frames = frames * sm.reshape(window, (-1, 1))
    return _transform(frames, 2, frame, False, bool(c.get("onesided", 1)))


def _window(*coefficients: float) -> Any:
    """Return the rule of a window that is a sum of cosines."""

    def rule(c: Call, size: Known) -> Known:
        count = int(size.item())
        check_count(count)
        period = count if c.get("periodic", 1) else count - 1
        angles = 2 * math.pi * np.arange(count) / period
        total = sum(a * np.cos(k * angles) for k, a in enumerate(coefficients))
        return Known(np.asarray(total).astype(c.dtype("output_datatype", np.float32)))

    return rule


def _mel_weights(
    c: Call, bins: Known, length: Known, rate: Known, low: Known, high: Known
) -> Known:
    """Return triangular filters over the bins of a spectrogram, evenly spaced in mel."""
    count, size = int(bins.item()), int(length.item())
    check_count(count * size)
    ends = [2595 * np.log10(1 + float(v.item()) / 700) for v in (low, high)]
    edges = np.arange(count + 2) * ((ends[1] - ends[0]) / (count + 2)) + ends[0]
    hertz = 700 * (10 ** (edges / 2595) - 1)
    points = ((size + 1) * hertz // int(rate.item())).astype(int)
    weights = np.zeros((size // 2 + 1, count))
    for k, (left, centre, right) in enumerate(zip(points, points[1:], points[2:], strict=False)):
        if centre == left:
            weights[centre, k] = 1
        else:
            rise = np.arange(left, centre + 1)
            weights[rise, k] = (rise - left) / (centre - left)
        if right > centre:
            fall = np.arange(centre, right)
            weights[fall, k] = (right - fall) / (right - centre)
    return Known(weights.astype(c.dtype("output_datatype", np.float32)))


ROWS: tuple[Row, ...] = (
    Row("DFT", _dft, (1, 2)),
    Row("STFT", _stft, (1, 3)),
    Row("HannWindow", _window(0.5, -0.5), (0,)),
    Row("HammingWindow", _window(25 / 46, -21 / 46), (0,)),
    Row("BlackmanWindow", _window(0.42, -0.5, 0.08), (0,)),
    Row("MelWeightMatrix", _mel_weights, (-1,)),
)
