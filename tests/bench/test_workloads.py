"""The rows: right by independent formulas, honest about bytes, strict about wrong answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench import formulas
from bench.namespaces import STANDARD, numpy_namespace
from bench.workloads import LARGE_BYTES, WORKLOADS, Workload

XP = numpy_namespace()
ROWS = list(WORKLOADS.values())


def _ids(row: Workload) -> str:
    return row.id


def _by_hand(row: Workload, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row's answer by another way: loops, textbook formulas, other library functions."""
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    erf = np.vectorize(math.erf)
    if row.id == "a1":
        h = wide[0] + wide[1]
        return (np.log(h, out=np.full_like(h, -np.inf), where=h > 0),)
    if row.id == "a2":
        return (np.where(wide[0] > 0, 2 * wide[0] + 1, 1.0),)
    if row.id == "bias_gelu":
        h = wide[0] + wide[1]
        return (h * (1 - np.vectorize(math.erfc)(h / math.sqrt(2)) / 2),)
    if row.id == "residual_layer_norm":
        h = wide[0] + wide[1] + wide[2]
        scale = 1 / np.sqrt(h.var(1) + 1e-5)
        return (((h.T - h.mean(1)) * scale).T * wide[3] + wide[4],)
    if row.id == "rms_norm":
        rms = np.linalg.norm(wide[0], axis=1) / math.sqrt(wide[0].shape[1])
        return (wide[0] / np.sqrt(rms**2 + 1e-6)[:, None] * wide[1],)
    if row.id.startswith("softmax"):
        return (np.stack([np.exp(r) / np.exp(r).sum() for r in wide[0]]),)
    if row.id == "cross_entropy":
        pairs = zip(wide[0], wide[1], strict=True)
        return (np.mean([-math.log(np.exp(r)[k] / np.exp(r).sum()) for r, k in pairs]),)
    if row.id == "group_norm_silu":
        return (_group_norm_silu(*wide),)
    if row.id == "adam":
        p, g, m, v = wide
        m, v = m + 0.1 * (g - m), v + 0.001 * (g**2 - v)
        step = 1e-3 * (m / (1 - 0.9**10)) / (np.sqrt(v / (1 - 0.999**10)) + 1e-8)
        return (p - step, m, v)
    if row.id == "black_scholes":
        s, k, t = wide
        d1 = (np.log(s) - np.log(k) + (0.02 + 0.045) * t) / (0.3 * np.sqrt(t))
        up, down = (0.5 * (1 + erf(d / math.sqrt(2))) for d in (d1, d1 - 0.3 * np.sqrt(t)))
        call = s * up - k * np.exp(-0.02 * t) * down
        put = k * np.exp(-0.02 * t) * (1 - down) - s * (1 - up)
        return (call, put)
    if row.id == "column_statistics":
        mean = wide[0].sum(0) / len(wide[0])
        return (mean, (wide[0] ** 2).sum(0) / len(wide[0]) - mean**2)
    if row.id == "transposed_write":
        return (np.array([[2 * v + 1 for v in r] for r in wide[0]]).T,)
    if row.id == "sum":
        return (math.fsum(wide[0].ravel()),)
    if row.id == "argmax":
        return (int(np.flatnonzero(wide[0].ravel() == wide[0].max())[0]),)
    if row.id.startswith("chain"):
        h = wide[0] * (wide[1] + 1)
        return (np.where(h > 0, h / 2, 0.0),)
    assert row.id == "tiny"
    return (np.array([x * y + z for x, y, z in zip(*wide, strict=True)]),)


def _group_norm_silu(x: Any, gain: Any, shift: Any) -> Any:
    out = np.empty_like(x)
    size = x.shape[1] // 32
    for n in range(x.shape[0]):
        for group in range(32):
            part = slice(group * size, (group + 1) * size)
            block = x[n, part]
            y = (block - block.mean()) / np.sqrt(block.var() + 1e-5)
            y = y * gain[part, None, None] + shift[part, None, None]
            out[n, part] = y * (1 / (1 + np.exp(-y)))
    return out


@pytest.mark.parametrize("row", ROWS, ids=_ids)
def test_reference_agrees_with_another_way(row: Workload) -> None:
    arrays = row.arrays(small=True)
    for got, want in zip(row.reference(arrays), _by_hand(row, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("row", ROWS, ids=_ids)
def test_float32_numpy_passes_the_check(row: Workload) -> None:
    arrays = row.arrays(small=True)
    with np.errstate(all="ignore"):
        got = row.call(XP, *arrays)
    got = got if isinstance(got, tuple) else (got,)
    outputs = tuple(np.asarray(item) for item in got)
    assert row.check(outputs, row.reference(arrays)) <= 1.0
    floats = [item for item in outputs if item.dtype.kind == "f"]
    assert all(item.dtype == np.float32 for item in floats), "the formula widened float32"


@pytest.mark.parametrize("row", ROWS, ids=_ids)
def test_check_catches_a_wrong_element(row: Workload) -> None:
    arrays = row.arrays(small=True)
    want = row.reference(arrays)
    for place in range(len(want)):
        good = [np.array(item) for item in want]
        finite = np.flatnonzero(np.isfinite(good[place].reshape(-1)))
        flat = good[place].reshape(-1)
        flat[finite[-1]] += max(1.0, abs(float(flat[finite[-1]]))) * 0.01 + (row.id == "argmax")
        assert row.check(good, want) > 1.0
        assert row.check(list(want), want) == 0.0


@pytest.mark.parametrize("row", ROWS, ids=_ids)
def test_inputs_are_equal_for_a_seed_and_differ_between_seeds(row: Workload) -> None:
    first, again = row.arrays(small=True), row.arrays(small=True)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    other = row.arrays(small=True, seed=8)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(a.dtype in (np.float32, np.int64) for a in first)


@pytest.mark.parametrize("row", ROWS, ids=_ids)
def test_small_arrays_have_the_large_ones_rank(row: Workload) -> None:
    for item in row.inputs:
        assert len(item.shape) == len(item.small)


def test_groups_by_size() -> None:
    groups = {row.id: row.group for row in ROWS}
    assert groups["tiny"] == "call"
    assert groups["chain_1kib"] == groups["chain_64kib"] == "small"
    assert groups["chain_1mib"] == "cache"
    assert sum(group == "large" for group in groups.values()) == 17
    for row in ROWS:
        if row.group == "large":
            assert sum(4 * math.prod(i.shape) for i in row.inputs) > LARGE_BYTES


def test_issue_rows_are_all_there() -> None:
    wanted = (
        "a1 a2 bias_gelu residual_layer_norm rms_norm softmax_128 softmax_4096 softmax_65536 "
        "cross_entropy group_norm_silu adam black_scholes column_statistics transposed_write sum "
        "argmax chain_1kib chain_64kib chain_1mib chain_64mib tiny"
    )
    assert set(wanted.split()) == set(WORKLOADS)
    assert WORKLOADS["cross_entropy"].inputs[0].shape == (1024, 32000)
    assert WORKLOADS["group_norm_silu"].inputs[0].shape == (8, 256, 56, 56)
    for label, size in (("1kib", 1 << 10), ("64kib", 64 << 10), ("1mib", 1 << 20)):
        assert 4 * math.prod(WORKLOADS[f"chain_{label}"].inputs[0].shape) == size


@pytest.mark.parametrize(
    ("name", "read", "written"),
    [
        ("a1", 4 * (37 * 53 + 53), 4 * 37 * 53),
        ("adam", 4 * 4 * 1001, 3 * 4 * 1001),
        ("cross_entropy", 4 * 37 * 53 + 8 * 37, 4),
        ("column_statistics", 4 * 37 * 53, 2 * 4 * 53),
        ("argmax", 4 * 37 * 53, 8),
    ],
)
def test_traffic_is_inputs_once_and_outputs_once(name: str, read: int, written: int) -> None:
    row = WORKLOADS[name]
    arrays = row.arrays(small=True)
    assert row.traffic(arrays, row.reference(arrays)) == (read, written)


def test_check_by_hand() -> None:
    row = replace(WORKLOADS["a2"], rtol=0.1, atol=0.5)
    want = [np.array([10.0, -np.inf, np.nan])]
    assert row.check([np.array([10.75, -np.inf, np.nan])], want) == pytest.approx(0.5)
    assert row.check([np.array([12.0, -np.inf, np.nan])], want) == pytest.approx(2 / 1.5)
    for wrong in ([10, np.inf, np.nan], [10, -np.inf, 0], [np.nan, -np.inf, np.nan], [10, -np.inf]):
        assert row.check([np.array(wrong, float)], want) == math.inf
    assert row.check([], want) == math.inf
    exact = replace(row, rtol=0.0, atol=0.0)
    assert exact.check([np.array([1.0])], [np.array([1.0])]) == 0.0
    assert exact.check([np.array([1.0])], [np.array([2.0])]) == math.inf
    assert exact.check([np.array([3])], [np.array([4])]) == math.inf
    assert exact.check([np.array([0.0])], [np.array([0.0])]) == 0.0
    assert row.check([np.zeros(0)], [np.zeros(0)]) == 0.0


def test_argmax_has_no_tie() -> None:
    values = WORKLOADS["argmax"].arrays(small=True)[0].reshape(-1)
    assert (values == values.max()).sum() == 1


def test_labels_are_valid_classes() -> None:
    logits, labels = WORKLOADS["cross_entropy"].arrays(small=True)
    assert labels.min() >= 0
    assert labels.max() < logits.shape[1]


def test_library_erf_needs_no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real = importlib.import_module

    def without_scipy(name: str) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr("bench.namespaces.importlib.import_module", without_scipy)
    x = np.linspace(-3, 3, 7, dtype=np.float32).reshape(7, 1)
    got = numpy_namespace().erf(x)
    assert (got.dtype, got.shape) == (np.float32, (7, 1))
    np.testing.assert_allclose(got[:, 0], [math.erf(v) for v in x[:, 0]], rtol=1e-6)


def test_formulas_use_no_name_outside_the_namespace() -> None:
    used: set[str] = set()

    class Spy:
        def __getattr__(self, name: str) -> Any:
            used.add(name)
            return getattr(XP, name)

    for row in ROWS:
        arrays = row.arrays(small=True)
        with np.errstate(all="ignore"):
            row.call(Spy(), *arrays)
    assert used <= {*STANDARD, "erf", "contiguous"}
    assert formulas.GROUPS == 32
