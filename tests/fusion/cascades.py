"""A corpus of dependent reductions over one axis, with what becomes of them.

Each program is one function of rows; `sweeps` says in how many visits of a row it is done, and
`blocker` which operator nothing sees through where that is more than one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import smelt as sm

KEPT: dict[str, Any] = {"axis": -1, "keepdims": True}


def top(x: Any) -> Any:
    return sm.max(x, **KEPT)


def mid(x: Any) -> Any:
    return sm.mean(x, **KEPT)


def total(x: Any) -> Any:
    return sm.sum(x, axis=-1)


@dataclass(frozen=True)
class Program:
    """A function of rows, and what must become of it."""

    name: str
    code: Callable[..., Any]
    blocker: str = ""
    derived: bool = False
    """Whether no column of the rows tells, so that it takes a proof."""
    arrays: int = 1
    odd: bool = False
    """Whether rows that are hard to carry are tried without a proof too."""

    @property
    def sweeps(self) -> int:
        return 2 if self.blocker else 1

    def __str__(self) -> str:
        return self.name


def norm(p: float) -> Callable[[Any], Any]:
    """The norm of any order, anchored at the largest element."""
    return lambda x: total((abs(x) / top(abs(x))) ** p) ** (1 / p) * top(abs(x))[..., 0]


def entropy(x: Any) -> Any:
    e = sm.exp(x - top(x))
    s = total(e)
    return sm.log(s) - total(e * (x - top(x))) / s


def of_softmax(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: total(f(sm.nn.softmax(x)))


def softmax_variance(x: Any) -> Any:
    q = sm.nn.softmax(x)
    return total(q * (x - sm.sum(q * x, **KEPT)) ** 2)


def other_variance(x: Any, z: Any) -> Any:
    """The variance of something else under the weights of a softmax."""
    q = sm.nn.softmax(x)
    return total(q * (z - sm.sum(q * z, **KEPT)) ** 2)


def covariance(x: Any, z: Any) -> Any:
    return total((x - mid(x)) * (z - mid(z)))


def varentropy(x: Any) -> Any:
    p = sm.nn.log_softmax(x)
    return total(sm.exp(p) * (p + sm.sum(sm.exp(p) * -p, **KEPT)) ** 2)


def central(p: int) -> Callable[[Any], Any]:
    return lambda x: total((x - mid(x)) ** p)


def p_entropy(x: Any) -> Any:
    """The entropy of magnitudes as they are, without a softmax."""
    a = abs(x) + 0.01
    p = a / sm.sum(a, **KEPT)
    return -total(p * sm.log(p))


def weighted_powers(x: Any, z: Any) -> Any:
    return total(z * (abs(x) / top(abs(x))) ** 1.5)


def capped(x: Any) -> Any:
    c = 30 * sm.tanh(x / 30)
    return total(sm.exp(c - top(c)))


PROGRAMS = [
    # other bases
    Program("powers of 2", lambda x: total(2.0 ** (x - top(x))), derived=True),
    Program("powers of 10", lambda x: total(10.0 ** (x - top(x))), derived=True),
    Program("powers of 1.7", lambda x: total(1.7 ** (x - top(x))), derived=True),
    Program("powers of a half", lambda x: total(0.5 ** (sm.min(x, **KEPT) * -1 + x)), derived=True),
    Program("powers of 2 below", lambda x: total(2.0 ** (sm.min(x, **KEPT) - x)), derived=True),
    Program(
        "weighted powers of 2", lambda x, z: total(z * 2.0 ** (x - top(x))), derived=True, arrays=2
    ),
    # scaled exponents
    Program("scaled, shifted", lambda x: total(sm.exp(0.3 * x + 1.0 - (0.3 * top(x) + 1.0)))),
    Program("tempered", lambda x: total(sm.exp((x - top(x)) / 0.7))),
    Program("largest of scaled", lambda x: total(sm.exp(0.3 * x - top(0.3 * x)))),
    Program("softmin", lambda x: total(sm.exp(sm.min(x, **KEPT) - x))),
    Program("capped by tanh", capped),
    Program("scaled log-sum-exp", lambda x: sm.nn.logsumexp(2.5 * x, axis=-1) / 2.5),
    Program("log-sum-exp squared", lambda x: sm.nn.logsumexp(x, axis=-1) ** 2),
    Program(
        "softplus of log-sum-exp", lambda x: sm.log1p(sm.exp(sm.nn.logsumexp(x, axis=-1))), odd=True
    ),
    Program("log-mean-exp", lambda x: sm.log(mid(sm.exp(x - top(x)))[..., 0]) + top(x)[..., 0]),
    # gauges that bound too much, or nothing
    Program("below the largest magnitude", lambda x: total(sm.exp(x - top(abs(x)))), derived=True),
    Program("about the mean", lambda x: total(sm.exp(x - mid(x))), derived=True),
    # norms
    Program("norm of order 2.5", norm(2.5), derived=True),
    Program("norm of order 1.3", norm(1.3), derived=True),
    Program("roots over the largest", lambda x: total(sm.sqrt(abs(x) / top(abs(x)))), derived=True),
    Program("weighted powers", weighted_powers, derived=True, arrays=2),
    Program("norm of order 2", norm(2)),
    Program("norm of order 3", norm(3)),
    # functions of a softmax
    Program("entropy", entropy),
    Program("varentropy", varentropy),
    Program("Gini", of_softmax(lambda q: q * q)),
    Program("order 3", of_softmax(lambda q: q**3)),
    Program("order a half", of_softmax(sm.sqrt), derived=True),
    Program("order 2.5", of_softmax(lambda q: q**2.5), derived=True),
    Program("variance under a softmax", softmax_variance, odd=True),
    Program("another variance under a softmax", other_variance, arrays=2),
    Program("x e^x", lambda x: total(x * sm.exp(x - top(x)))),
    # moments
    Program("variance", central(2)),
    Program("third moment", central(3)),
    Program("fourth moment", central(4)),
    Program("covariance", covariance, arrays=2),
    # of some rank
    Program("cosines about the mean", lambda x: total(sm.cos(x - mid(x))), derived=True),
    Program("entropy of magnitudes", p_entropy, derived=True),
    Program(
        "logarithms of quotients",
        lambda x: total(sm.log((abs(x) + 0.1) / top(abs(x)))),
        derived=True,
    ),
    Program("reciprocals of products", lambda x: total(1 / ((x + 30) * mid(abs(x)))), derived=True),
    # refused: of no finite rank, or where a sum would lose what cancels
    Program("softplus below the largest", lambda x: total(sm.log1p(sm.exp(x - top(x)))), "log1p"),
    Program("tanh about the mean", lambda x: total(sm.tanh(x - mid(x))), "tanh"),
    Program("sigmoids", lambda x: total(sm.sigmoid(x - top(x))), "sigmoid"),
    Program("Gaussian about the mean", lambda x: total(sm.exp(-((x - mid(x)) ** 2))), "exp"),
    Program("Student about the mean", lambda x: total(1 / (1 + (x - mid(x)) ** 2)), "reciprocal"),
    Program("distances from the mean", lambda x: total(abs(x - mid(x))), "abs"),
    Program("sparsemax", lambda x: total(sm.maximum(x - top(x) + 1, 0.0)), "max"),
    Program("entmax", lambda x: total(sm.maximum((x - top(x)) / 2 + 0.3, 0.0) ** 2), "max"),
    Program("near the largest", lambda x: total(sm.where(x >= top(x) - 1, 1.0, 0.0)), "select"),
    Program("quantised", lambda x: total(sm.round(x / top(abs(x)) * 127)), "round"),
    Program("hypotenuses", lambda x: total(sm.hypot(x, top(x))), "hypot"),
    Program("powers by the largest", lambda x: total((abs(x) + 1) ** top(x)), "pow"),
    Program("expm1", lambda x: total(sm.expm1(x - top(x))), "expm1"),
    Program("sines", lambda x: total(sm.sin(2 * (x - top(x)))), "sin"),
    Program("cosh about the mean", lambda x: total(sm.cosh(x - mid(x))), "cosh"),
    Program("logarithms of a softmax", of_softmax(lambda q: q * sm.log(q)), "log"),
    Program("logarithms of what has any sign", lambda x: total(sm.log(x / top(x))), "log"),
    Program("roots of what has any sign", lambda x: total(sm.sqrt(x / top(x))), "sqrt"),
    Program("products", lambda x: sm.prod(x / top(x), axis=-1), "prod"),
]
