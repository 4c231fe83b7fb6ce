"""Random generators: NumPy's, with the same numbers for the same seed.

Large draws are arrays of ours.  Within `sm.jit` numbers have to be recorded: there draw n of a
generator uses the n-th key split off the seed's, and word i of a draw is Philox4x32-10 of key and i
(`smelt.random`), so that they are a function of the seed but not NumPy's.

>>> rng = default_rng(0)
>>> rng.random((2, 3)).shape, rng.normal(size=4).shape, 0 <= int(rng.integers(10)) < 10
((2, 3), (4,), True)
"""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Callable
from inspect import signature
from typing import Any, Final

import numpy as np

from smelt.errors import ArgumentError, TracerError
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import methods, searching, sorting
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array import random as keys
from smelt.frontends.array.array import Array
from smelt.frontends.array.creation import arange
from smelt.frontends.array.dtypes import as_dtype
from smelt.frontends.array.numpy_hints import missing_names
from smelt.frontends.array.value import STATE
from smelt.numpy.library import as_ours, elements
from smelt.numpy.small import finish, is_small

__all__ = [
    "MODULE",
    "Generator",
    "RandomState",
    "RecordedGenerator",
    "default_rng",
]

_EXACT = 1 << 53
"""Integers below it are float64."""


def _shape(size: Any, *parameters: Any) -> tuple[int, ...]:
    """Return the shape of a draw: `size`, or that of the parameters."""
    if size is None:
        return np.broadcast_shapes(*(np.shape(p) for p in parameters))
    return (operator.index(size),) if hasattr(size, "__index__") else tuple(size)


def _check_drawn_outside(recording: Any = None) -> None:
    """Raise TracerError in a recording, but for a generator that was made in it."""
    if STATE.scope is not None and STATE.scope is not recording:
        raise TracerError(
            use="a draw from a generator made outside",
            value="the number of draws so far",
            hint="Make it inside, from a seed that is an argument: np.random.default_rng(seed);"
            " or draw outside sm.jit and pass the numbers.",
        )


def _drawing(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of NumPy's generator whose large results are arrays of ours."""
    if name == "shuffle":
        return lambda x, *axis, **named: _shuffle(theirs, x, *axis, **named)

    def draw(*args: Any, **kwargs: Any) -> Any:
        _check_drawn_outside()
        if is_small(args, kwargs):
            return finish(theirs(*args, **kwargs), as_ours, ())
        out = kwargs.pop("out", None)
        values = elements(args, f"random.{name}")
        named = dict(zip(kwargs, elements(kwargs.values(), f"random.{name}"), strict=True))
        if isinstance(out, Array) and name != "permuted" and not values and "size" not in named:
            named["size"] = out.shape
        return calls.store(finish(theirs(*values, **named), as_ours, ()), out)

    return calls.named(draw, name, f"Draw by NumPy's `{name}`; arguments as in NumPy.")


def _shuffle(theirs: Callable[..., Any], x: Any, *axis: Any, **named: Any) -> None:
    """Bring the parts along `axis` into random order in place."""
    _check_drawn_outside()
    buffer = np.array(x) if isinstance(x, Array) else x
    theirs(buffer, *axis, **named)
    if buffer is not x:
        x[...] = buffer


class Generator:
    """A stream of random numbers: NumPy's generator, whose large draws are arrays of ours."""

    def __init__(self, bit_generator: Any) -> None:
        self._theirs: Any = np.random.Generator(bit_generator)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'Generator' object has no attribute {name!r}", name=name)
        method = getattr(self._theirs, name)
        if callable(method) and not isinstance(method, np.random.BitGenerator):
            method = self.__dict__[name] = _drawing(name, method)
        return method

    def __reduce__(self) -> Any:
        return type(self)._of, (self._theirs,)

    @classmethod
    def _of(cls, theirs: Any) -> Any:
        generator = cls.__new__(cls)
        generator._theirs = theirs
        return generator

    def spawn(self, n_children: int) -> list[Any]:
        """Return generators whose numbers are independent of each other and of this one."""
        return [self._of(theirs) for theirs in self._theirs.spawn(n_children)]


class RecordedGenerator:
    """A stream of random numbers within a recording, with NumPy's methods."""

    def __init__(self, key: Any) -> None:
        self._key = key
        self._draws = 0
        self._recording = STATE.scope

    def __getattr__(self, name: str) -> Any:
        """Raise TracerError for distributions that only NumPy draws."""
        if not hasattr(np.random.Generator, name):
            raise AttributeError(f"'Generator' object has no attribute {name!r}", name=name)
        raise TracerError(
            use=f"random.{name}",
            value="samples by rejection",
            hint="Draw outside sm.jit and pass the numbers.",
        )

    def _next(self) -> Array:
        _check_drawn_outside(self._recording)
        self._draws += 1
        return keys.split(keys.bits(self._key, (), dtype="uint64") + self._draws)[0]

    def spawn(self, n_children: int) -> list[Any]:
        """Return generators whose numbers are independent of each other and of this one."""
        return [RecordedGenerator(self._next()) for _ in range(n_children)]

    def _unit(self, size: Any, *parameters: Any, dtype: Any = "float64") -> Array:
        return keys.uniform(self._next(), _shape(size, *parameters), dtype=dtype)

    def random(self, size: Any = None, dtype: Any = "float64", out: Any = None) -> Any:
        """Return uniform numbers in [0, 1)."""
        return calls.store(self._unit(out.shape if out is not None else size, dtype=dtype), out)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Array:
        """Return uniform numbers in [low, high)."""
        return low + (high - low) * self._unit(size, low, high)

    def standard_normal(self, size: Any = None, dtype: Any = "float64", out: Any = None) -> Any:
        """Return normal numbers with mean 0 and standard deviation 1."""
        shape = out.shape if out is not None else _shape(size)
        return calls.store(keys.normal(self._next(), shape, dtype=as_dtype(dtype)), out)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Array:
        """Return normal numbers with a mean and a standard deviation."""
        return loc + scale * keys.normal(self._next(), _shape(size, loc, scale), dtype="float64")

    def lognormal(self, mean: Any = 0.0, sigma: Any = 1.0, size: Any = None) -> Array:
        """Return numbers whose logarithms are normal."""
        return el.exp(self.normal(mean, sigma, size))

    def integers(
        self,
        low: Any,
        high: Any = None,
        size: Any = None,
        dtype: Any = "int64",
        endpoint: bool = False,
    ) -> Array:
        """Return integers from `low` to below `high`, or to it with `endpoint`.

        Raises ArgumentError for an empty range.
        """
        low, high = (0, low) if high is None else (low, high)
        span = high - low + (1 if endpoint else 0)
        if isinstance(span, int) and span <= 0:
            raise ArgumentError(op="integers", argument="high", value=high, expected="above low")
        if isinstance(span, int) and span > _EXACT:
            raise ArgumentError(op="integers", argument="high", value=high, expected="below 2**53")
        steps = el.floor(self._unit(size, low, high) * span)
        return methods.convert(methods.convert(steps, "int64") + low, dtype)

    def bytes(self, length: int) -> bytes:
        """Return random bytes."""
        words = keys.bits(self._next(), (-(-length // 4),))
        return np.asarray(words).tobytes()[:length]

    def permutation(self, x: Any, axis: int = 0) -> Array:
        """Return the parts along `axis`, or the integers below `x`, in random order."""
        array = arange(operator.index(x)) if hasattr(x, "__index__") and not np.ndim(x) else x
        array = calls.array(array, "permutation")
        order = sorting.argsort(self._unit(array.shape[axis]))
        return searching.take(array, order, axis=axis)

    def permuted(self, x: Any, *, axis: int | None = None, out: Any = None) -> Any:
        """Return the elements in random order, along `axis` each row in its own."""
        array = calls.array(x, "permuted")
        if axis is None:
            flat = methods.ravel(array)
            return calls.store(methods.reshape(self.permutation(flat), array.shape), out)
        order = sorting.argsort(self._unit(array.shape), axis=axis)
        return calls.store(searching.take_along_axis(array, order, axis=axis), out)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Bring the parts along `axis` into random order in place."""
        if isinstance(x, list):
            x[:] = [x[k] for k in np.asarray(self.permutation(len(x))).tolist()]
        else:
            x[...] = self.permutation(x, axis)

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Array:
        """Return random parts along `axis`, or integers below `a`, with probabilities `p`.

        Raises ArgumentError if more are drawn than there are, without replacement.
        """
        whole = hasattr(a, "__index__") and not np.ndim(a)
        array = arange(operator.index(a)) if whole else calls.array(a, "choice")
        count, shape = array.shape[axis], _shape(size)
        total = math.prod(shape)
        if not replace and total > count:
            raise ArgumentError(op="choice", argument="size", value=size, expected=f"up to {count}")
        if replace:
            flat = self._index(count, total, p)
        else:
            waits = self._unit(count)
            if p is not None:  # exponential waiting times (Efraimidis and Spirakis, 2006)
                waits = -el.log(1.0 - waits) / calls.array(p, "choice")
            flat = sorting.argsort(waits)[:total]
        if axis == 0 and array.ndim == 1:
            return methods.reshape(searching.take(array, flat, axis=0), shape)
        return methods.take(array, methods.reshape(flat, shape), axis)

    def _index(self, count: int, total: int, p: Any) -> Array:
        if p is None:
            return self.integers(count, size=total)
        ends = calls.cumsum(calls.array(p, "choice"))
        positions = searching.searchsorted(ends, self._unit(total) * ends[-1], side="right")
        return el.minimum(positions, count - 1)


def _inverse(name: str, formula: Any, doc: str) -> Any:
    """Return a method that applies the inverse of a distribution to uniform numbers."""
    _, *names = signature(formula).parameters
    calls.named(formula, name, doc)  # its errors name it

    def method(self: Any, *args: Any, **named: Any) -> Any:
        values = dict(zip((*names, "size"), args, strict=False)) | named
        size = values.pop("size", None)
        return formula(self._unit(size, *values.values()), **values)

    return calls.named(method, name, doc)


def _laplace(u: Array, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    low = el.log(2.0 * u + 1e-300)
    return loc + scale * el.where(u < 0.5, low, -el.log(2.0 - 2.0 * u))


def _logistic(u: Array, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return loc + scale * (el.log(u + 1e-300) - el.log(1.0 - u))


def _triangular(u: Array, left: Any = 0.0, mode: Any = 0.5, right: Any = 1.0) -> Any:
    part = (mode - left) / (right - left)
    low = left + el.sqrt(u * (right - left) * (mode - left))
    return el.where(u < part, low, right - el.sqrt((1.0 - u) * (right - left) * (right - mode)))


def _geometric(u: Array, p: Any = 0.5) -> Any:
    steps = el.ceil(el.log1p(-u) / el.log1p(-calls.array(p, "geometric") * 1.0))
    return methods.convert(el.maximum(steps, 1.0), "int64")


_INVERSES: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "standard_exponential": (lambda u: -el.log(1.0 - u), "exponential numbers"),
    "exponential": (lambda u, scale=1.0: -el.log(1.0 - u) * scale, "exponential numbers"),
    "laplace": (_laplace, "numbers of Laplace's distribution"),
    "logistic": (_logistic, "logistic numbers"),
    "gumbel": (
        lambda u, loc=0.0, scale=1.0: loc - scale * el.log(-el.log(1.0 - u)),
        "numbers of Gumbel's distribution",
    ),
    "rayleigh": (
        lambda u, scale=1.0: scale * el.sqrt(-2.0 * el.log(1.0 - u)),
        "numbers of Rayleigh's distribution",
    ),
    "pareto": (
        lambda u, a=1.0: el.exp(-el.log(1.0 - u) / a) - 1.0,
        "numbers of Pareto's second distribution",
    ),
    "weibull": (
        lambda u, a=1.0: el.pow(-el.log(1.0 - u), 1.0 / a),
        "numbers of Weibull's distribution",
    ),
    "power": (lambda u, a=1.0: el.pow(u, 1.0 / a), "numbers of a power distribution"),
    "standard_cauchy": (
        lambda u: el.tan(math.pi * (u - 0.5)),
        "numbers of Cauchy's distribution",
    ),
    "geometric": (_geometric, "the numbers of trials up to a success"),
    "triangular": (_triangular, "numbers of a triangular distribution"),
}
"""Distribution -> the inverse of its distribution function, with NumPy's parameters; its doc."""

for _name, (_formula, _doc) in _INVERSES.items():
    setattr(RecordedGenerator, _name, _inverse(_name, _formula, f"Return {_doc}."))


def default_rng(seed: Any = None) -> Any:
    """Return NumPy's generator from a seed; within a recording one of ours.

    Raises NumPy's errors for other seeds, ArgumentError within a recording.
    """
    if isinstance(seed, (Generator, RecordedGenerator)):
        return seed
    if STATE.scope is not None:
        key = secrets.randbits(63) if seed is None else seed
        return RecordedGenerator(keys.key(key))
    if isinstance(seed, np.random.Generator):
        return Generator(seed.bit_generator)
    (seed,) = elements((seed,), "random.default_rng")
    return Generator(np.random.default_rng(seed).bit_generator)


class RandomState(Generator):
    """The older interface: NumPy's, whose large draws are arrays of ours."""

    def __init__(self, seed: Any = None) -> None:
        self._theirs = np.random.RandomState(seed)


_CLASSES: Final = tuple(
    name for name, x in vars(np.random).items() if isinstance(x, type) and name[0] != "_"
)
MODULE: Final = tuple(
    name
    for name, x in vars(np.random).items()
    if callable(x) and name[0] != "_" and name not in (*_CLASSES, "default_rng", "test")
)
"""Functions of the module, which share NumPy's generator."""

for _name in MODULE:
    globals()[_name] = _drawing(_name, getattr(np.random, _name))
for _name in _CLASSES:
    globals().setdefault(_name, getattr(np.random, _name))

__getattr__ = missing_names("smelt.numpy.random", [*__all__, *MODULE])
