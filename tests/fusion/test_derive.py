"""Derived cascades: which stream, why others do not, and their numbers."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import sympy
from tests.fusion.cascades import PROGRAMS, Program, top
from tests.lower.test_gauges import changed, gauges, jump, wrong
from tests.lower.test_stream import SPOILT, Case, check, drawn, spoilt, streamed, streams

import smelt as sm
from smelt.fusion.cascade import derive, proofs
from smelt.fusion.cascade.analyse import Cascade, analyse
from smelt.kernel.ir import Apply, Const, Kernel, Reduce, Statement, Stream, Update
from smelt.kernel.walk import statements
from smelt.ops.scalar import SCALARS
from smelt.ops.symbolic import MEANINGS
from smelt.runtime.cache import Cache, persist_claims

EVERY = pytest.mark.parametrize("program", PROGRAMS, ids=str)
DERIVED = [p for p in PROGRAMS if p.derived]


def case(program: Program) -> Case:
    return Case(f"cascade {program}", program.code, ((4, 37),) * program.arrays, ())


def rows(program: Program, columns: int) -> list[Any]:
    return drawn(replace(case(program), shapes=((4, columns),) * program.arrays))


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> list[Cascade]:
    """The cascades that lowering asks for."""
    results: list[Cascade] = []

    def noted(*args: Any) -> Cascade:
        results.append(analyse(*args))
        return results[-1]

    monkeypatch.setattr(import_module("smelt.lower.stream"), "analyse", noted)
    return results


@EVERY
def test_verdict(program: Program, analysed: list[Cascade]) -> None:
    _, kernel = streamed(replace(case(program), name=f"{program} judged"))
    assert len(streams(kernel)) == program.sweeps
    blockers = {h.blocker for h in analysed[-1].treatments.values() if h.action == "recompute"}
    assert blockers == ({program.blocker} if program.blocker else set())


@EVERY
@pytest.mark.parametrize("blocks", [5, 4096])
def test_numbers(program: Program, blocks: int) -> None:
    check(case(program), drawn(case(program), blocks), blocks)


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.derived or p.odd], ids=str)
def test_odd_rows(program: Program, how: str) -> None:
    first, *rest = drawn(case(program))
    check(case(program), [spoilt(first, how), *rest], 8)


@pytest.mark.parametrize("program", DERIVED, ids=str)
def test_nan_at_each_position(program: Program) -> None:
    first, *rest = rows(program, 11)
    for k in range(11):
        a = first.copy()
        a[0, k] = np.nan
        a[1, k] = np.inf
        a[2, k] = -np.inf
        a[3, k] = 0.0
        check(case(program), [a, *rest], 3)


@pytest.mark.parametrize("columns", [1, 2, 41])
@pytest.mark.parametrize("program", DERIVED, ids=str)
def test_lengths(program: Program, columns: int) -> None:
    check(case(program), rows(program, columns), 7)


def test_a_sum_of_nothing_is_nothing() -> None:
    program = next(p for p in PROGRAMS if p.name == "about the mean")
    check(case(program), [np.zeros((4, 0), np.float32)], 8)


def test_rows_of_zeros_before_numbers() -> None:
    """A gauge that is zero is none: what it divides by it is not a number, and must not stay."""
    for program in (p for p in PROGRAMS if "norm of" in p.name or "over the largest" in p.name):
        (x,) = drawn(case(program))
        x[:, :20] = 0.0
        x[0] = 0.0
        for scale in (1.0, 1e-30, 1e30):
            check(case(program), [(x * scale).astype(np.float32)], 5)


# ---- gauges ------------------------------------------------------------------------------------


def leap(update: Update, stream: Stream) -> Statement:
    """Move a magnitude gauge to any positive number, like `jump`."""
    value = update.value
    if update.state not in gauges(stream) or not isinstance(value, Apply):
        return update
    fold = value.args[1]
    assert isinstance(fold, Reduce)
    least = Apply("abs", (replace(fold, combine="min"),))
    return Update(update.state, Apply("add", (least, Const(0.3, fold.dtype))))


def weighted_mean(x: Any, z: Any) -> Any:
    e = 2.0 ** (x - top(x))
    return sm.sum(z * e, axis=-1) / sm.sum(e, axis=-1)


def logarithm_of_powers(x: Any) -> Any:
    return sm.log2(sm.sum(2.0 ** (x - top(x)), axis=-1)) + top(x)[..., 0]


MAGNITUDES = [p for p in PROGRAMS if p.name.startswith("norm of order") and p.derived]
FREE = [
    *(
        p
        for p in DERIVED
        if p.name in {"about the mean", "below the largest magnitude", "order a half", "order 2.5"}
    ),
    Program("mean weighted by powers", weighted_mean, derived=True, arrays=2),
    Program("logarithm of powers", logarithm_of_powers, derived=True),
]
"""Programs whose results do not depend on the gauge."""


@pytest.mark.parametrize("program", [*MAGNITUDES, *FREE], ids=str)
def test_any_gauge_gives_the_same(program: Program) -> None:
    _, kernel = streamed(case(program))
    assert any(gauges(s) for s in statements(kernel) if isinstance(s, Stream))
    assert not wrong(case(program), changed(kernel, leap if program in MAGNITUDES else jump))


# ---- range: what leaves a sum kept it small ----------------------------------------------------

ROW = {"axis": -1, "keepdims": True}


def anchored_square(x: Any) -> Any:
    return sm.sum((x / sm.max(abs(x), **ROW)) ** 2, axis=-1)


def quotient(x: Any) -> Any:
    return sm.sum(x / sm.max(abs(x), **ROW), axis=-1)


def exponentials(x: Any) -> Any:
    return sm.sum(sm.exp(x) / sm.exp(sm.max(x, **ROW)), axis=-1)


@pytest.mark.parametrize(
    ("code", "dtype", "low", "high"),
    [
        (anchored_square, np.float64, 1e199, 1e200),
        (anchored_square, np.float64, 1e-200, 2e-200),
        (anchored_square, np.float32, 1e37, 3e38),
        (anchored_square, np.float32, 1e-38, 2e-38),
        (quotient, np.float32, 2e38, 3e38),
        (exponentials, np.float32, 86.0, 88.5),
        (exponentials, np.float64, 705.0, 709.5),
    ],
)
def test_sums_whose_elements_only_a_quotient_keeps_in_range(
    code: Any, dtype: Any, low: float, high: float
) -> None:
    x = np.random.default_rng(0).uniform(low, high, (3, 37)).astype(dtype)
    built = Case(f"{code.__name__} {dtype.__name__}", code, ((3, 37),), ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.lower.test_stream.drawn", lambda *_: [x])
        check(built, [x], 8)


def test_a_variance_under_weights_is_taken_about_an_element() -> None:
    """Sums of squares would lose everything to a mean far from zero."""
    for program in (p for p in PROGRAMS if "variance under" in p.name):
        arrays = [a + np.float32(5e3) for a in drawn(case(program))]
        check(case(program), arrays, 8)


# ---- proofs ------------------------------------------------------------------------------------


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty the caches of proofs, as in a new process."""
    for module, name in ((proofs, "_RESULTS"), (derive, "_GAUGED"), (derive, "_RANKED")):
        monkeypatch.setattr(module, name, {})


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim is known yet."""
    monkeypatch.setattr(proofs, "PROVED", frozenset[str]())
    forget(monkeypatch)
    monkeypatch.setattr(proofs, "PROOF_CACHE", proofs.ProofCache())


def fresh(program: Program, name: str) -> Kernel:
    return streamed(replace(case(program), name=f"{program} {name}"))[1]


@pytest.mark.usefixtures("unknown")
def test_known_proofs_are_proved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    results: dict[str, bool] = {}
    prove = proofs.prove

    def noted(claim: proofs.Claim) -> bool:
        results[claim.text] = prove(claim)
        return results[claim.text]

    assert not proofs.PROVED
    monkeypatch.setattr(proofs, "prove", noted)
    for p in PROGRAMS:
        fresh(p, "proved again")
    for k, code in enumerate(MORE):
        fresh(Program(f"more {k}", code), "proved again")
    reported = {text for text, holds in results.items() if holds}
    assert reported >= LISTED, LISTED - reported
    assert {p.name for p in DERIVED if len(streams(fresh(p, "proved again"))) == 1} == {
        p.name for p in DERIVED
    }


LISTED = proofs.PROVED
MORE = [
    lambda x: sm.sum(sm.exp2(x - sm.mean(x, **ROW)), axis=-1),
    lambda x: sm.sum(sm.exp(sm.mean(x, **ROW) - x), axis=-1),
    lambda x: sm.sum((abs(x) / sm.max(abs(x), **ROW)) ** 0.5, axis=-1),
    lambda x: sm.sum((abs(x) / sm.max(abs(x), **ROW)) ** 1.5, axis=-1),
    lambda x: sm.sum(3.0 ** (x - sm.max(x, **ROW)), axis=-1),
    lambda x: sm.sum(sm.nn.softmax(x) ** 0.5, axis=-1),
    lambda x: sm.sum(sm.nn.softmax(x) ** 1.5, axis=-1),
    lambda x: sm.sum(sm.nn.softmax(x) ** 0.7, axis=-1),
]


@pytest.mark.usefixtures("unknown")
def test_without_a_prover_nothing_new_is_carried(
    monkeypatch: pytest.MonkeyPatch, analysed: list[Cascade]
) -> None:
    monkeypatch.setattr(proofs, "has_algebra_system", lambda: False)
    program = next(p for p in PROGRAMS if p.name == "powers of 1.7")
    kernel = fresh(program, "unproved")
    assert len(streams(kernel)) == 2
    assert proofs.unproved
    (how,) = {h.blocker for h in analysed[-1].treatments.values() if h.action == "recompute"}
    assert "smelt-compiler[derive]" in how


@pytest.mark.usefixtures("unknown")
def test_proofs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    program = next(p for p in PROGRAMS if p.name == "powers of 1.7")
    with sm.config(cache_dir=tmp_path, cache=True):
        persist_claims(proofs.PROOF_CACHE, proofs.VERSION)
        assert len(streams(fresh(program, "kept"))) == 1
        assert [e.what for e in Cache.default().entries()].count("proof") == 1
        forget(monkeypatch)
        monkeypatch.setattr(proofs, "has_algebra_system", lambda: False)
        assert len(streams(fresh(program, "kept again"))) == 1
        persist_claims(proofs.PROOF_CACHE, proofs.VERSION + 1)
        forget(monkeypatch)
        assert len(streams(fresh(program, "of another version"))) == 2


@pytest.mark.parametrize("op", MEANINGS)
def test_meanings_are_those_of_the_rows(op: str) -> None:
    row = SCALARS[op]
    symbols = sympy.symbols("x y")[: row.arity]
    built = MEANINGS[op](sympy, *symbols)
    for at in ((0.3, 1.7), (2.5, -0.4), (0.9, 3.0)):
        want = float(row.numpy(*map(np.float64, at[: row.arity])))
        actual = float(built.subs(dict(zip(symbols, at[: row.arity], strict=True))))
        assert actual == pytest.approx(want, rel=1e-12)


def test_false_claims_are_not_proved() -> None:
    """A false claim has no proof, and looking for one ends.

    A difference under tanh has no rank.
    """
    program = Program("tanh", lambda x: sm.sum(sm.tanh(x - sm.max(x, **ROW)), axis=-1))
    seen: list[Any] = []
    gauged = derive.find_gauge
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "smelt.fusion.cascade.follow.find_gauge", lambda f: (seen.append(f), gauged(f))[1]
        )
        fresh(program, "false")
    (f,) = {f.key: f for f in seen}.values()
    assert not proofs.prove(proofs.Claim("gauge", f, 0))
    for k in (1, 2, 3):
        assert not proofs.prove(proofs.Claim("rank", f, k))


def test_powers_are_compiled() -> None:
    """Native code on rows that outgrow the caches, against NumPy in double precision."""
    x = np.random.default_rng(1).standard_normal((3, 1 << 18)).astype(np.float32) * 3
    wide = x.astype(np.float64)
    most = np.abs(wide).max(-1, keepdims=True)
    with sm.config(opt_level=1):
        for program, want in (
            ("norm of order 2.5", ((np.abs(wide) / most) ** 2.5).sum(-1) ** 0.4 * most[:, 0]),
            ("powers of 2", (2.0 ** (wide - wide.max(-1, keepdims=True))).sum(-1)),
            ("about the mean", np.exp(wide - wide.mean(-1, keepdims=True)).sum(-1)),
            ("cosines about the mean", np.cos(wide - wide.mean(-1, keepdims=True)).sum(-1)),
        ):
            code = next(p.code for p in PROGRAMS if p.name == program)
            np.testing.assert_allclose(np.asarray(sm.jit(code)(x)), want, rtol=2e-5)
