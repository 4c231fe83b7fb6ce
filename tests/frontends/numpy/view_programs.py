"""Random programs of views and writes, which run in NumPy's and in our namespace alike."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace

import smelt.numpy

Pair = tuple[Any, Any]
"""An array of NumPy and ours."""


def subscript(r: Random, shape: tuple[int, ...]) -> Any:
    """Return a key of slices, integers, new axes and an ellipsis."""
    key: list[Any] = []
    for n in shape:
        kind = r.random()
        if kind < 0.2 and n:
            key.append(r.randrange(-n, n))
        elif kind < 0.3:
            break
        else:
            start, stop = (r.choice([None, r.randrange(-n - 1, n + 2)]) for _ in range(2))
            key.append(slice(start, stop, r.choice([1, 1, None, 2, -1, -2, 3])))
        if r.random() < 0.05:
            key.append(None)
    if r.random() < 0.1 and sum(k is not None for k in key) == len(shape):
        key.insert(r.randrange(len(key) + 1), ...)
    if len(key) == 1 and r.random() < 0.5:
        return key[0]
    return tuple(key) if key else ...


def factors(r: Random, n: int) -> tuple[int, ...]:
    """Return a random shape of n elements."""
    shape: list[int] = []
    while n > 1 and r.random() < 0.8 and len(shape) < 3:
        d = r.choice([d for d in range(1, n + 1) if n % d == 0])
        shape.append(d)
        n //= d
    return (*shape, n)


class Program:
    """Arrays of both kinds, NumPy's that share their memory, and the steps so far."""

    def __init__(self, r: Random) -> None:
        self.r = r
        self.pairs: list[Pair] = []
        self.plain: list[tuple[Any, Any]] = []
        """Arrays of NumPy that share memory with arrays of either namespace."""
        self.log: list[Any] = []

    def make(self) -> None:
        """Add an array of random shape and dtype."""
        r = self.r
        shape = tuple(r.choice([1, 2, 3, 4, 6]) for _ in range(r.choice([1, 2, 2, 3])))
        dtype = r.choice(["float64", "float64", "float32", "int64", "complex128"])
        data = (numpy.arange(numpy.prod(shape)).reshape(shape) % 97).astype(dtype)
        if data.dtype.kind == "c":
            data += 2j
        is_shared = r.random() < 0.3
        source = data.copy()
        ours = smelt.numpy.asarray(source) if is_shared else smelt.numpy.array(data)
        if is_shared and r.random() < 0.8:  # else nobody but ours refers to it
            self.plain.append((data, source))
        self.pairs.append((data, ours))
        self.log.append(("make", shape, dtype, is_shared))

    def both(self, name: Any, k: int, step: Callable[[Any, Any], Any]) -> None:
        """Apply a step to array `k` in both namespaces; arrays that it returns are added."""
        self.log.append((name, k))
        theirs, ours = self.pairs[k]
        a, b = step(numpy, theirs), step(smelt.numpy, ours)
        if a is None:
            return
        for x, y in zip(a, b, strict=True) if isinstance(a, (tuple, list)) else ((a, b),):
            if isinstance(x, numpy.ndarray) and x.ndim:
                assert x.shape == y.shape, self.log
                self.pairs.append((x, y))

    def check(self) -> None:
        """Compare values, dtypes, bases, flags, strides and shared memory."""
        for x, y in self.pairs:
            numpy.testing.assert_array_equal(y.tolist(), x.tolist(), err_msg=str(self.log))
            assert str(y.dtype) == str(x.dtype), self.log
            assert (y.base is None) == (x.base is None), self.log
            assert y.flags.writeable == x.flags.writeable, self.log
            if x.size > 1 and y.base is not None:
                mine = [s for s, n in zip(y.strides, y.shape, strict=True) if n > 1]
                assert mine == [s for s, n in zip(x.strides, x.shape, strict=True) if n > 1], (
                    self.log
                )
        for x, y in self.plain:
            numpy.testing.assert_array_equal(y, x, err_msg=str(self.log))
        r = self.r
        for _ in range(4):
            (x, y), (v, w) = r.choice(self.pairs), r.choice(self.pairs)
            assert smelt.numpy.shares_memory(y, w) == numpy.shares_memory(x, v), self.log
            roots = [root(x) is root(v), root(y) is root(w)]
            assert roots[0] == roots[1] or not (x.size and v.size), self.log


def root(x: Any) -> Any:
    """Return the array that owns the elements."""
    while x.base is not None and hasattr(x.base, "shape"):
        x = x.base
    return x


def run(r: Random) -> Program:
    """Run a random program in both namespaces and compare all arrays."""
    p = Program(r)
    p.make()
    p.make()
    for _ in range(r.randrange(6, 25)):
        k = r.randrange(len(p.pairs))
        step(p, k)
        if len(p.pairs) > 12:
            del p.pairs[r.randrange(6) :: 3]
    p.check()
    return p


def step(p: Program, k: int) -> None:
    """Apply a random step to array `k`."""
    r = p.r
    x = p.pairs[k][0]
    names = list(VIEWS) + list(OTHERS)
    if x.flags.writeable and x.size:
        names += [*WRITES, *WRITES]
    name = r.choice(names)
    (VIEWS | OTHERS | WRITES)[name](p, k, x)


def _view(make: Callable[[Random, Any], Callable[[Any, Any], Any]]) -> Any:
    def apply(p: Program, k: int, x: Any) -> None:
        function = make(p.r, x)
        p.both(make.__name__, k, function)

    return apply


def get(r: Random, x: Any) -> Any:
    key = subscript(r, x.shape)
    return lambda xp, a: a[key]


def transpose(r: Random, x: Any) -> Any:
    axes = tuple(r.sample(range(x.ndim), x.ndim))
    return r.choice([lambda xp, a: a.transpose(axes), lambda xp, a: xp.transpose(a, axes)])


def attributes(r: Random, x: Any) -> Any:
    return r.choice([lambda xp, a: a.T, lambda xp, a: a.real, lambda xp, a: a.view()])


def imaginary(r: Random, x: Any) -> Any:
    return lambda xp, a: a.imag if x.dtype.kind == "c" else None


def reshape(r: Random, x: Any) -> Any:
    shape = factors(r, x.size) if x.size else (0,)
    return r.choice([lambda xp, a: a.reshape(shape), lambda xp, a: xp.reshape(a, shape)])


def ravel(r: Random, x: Any) -> Any:
    return r.choice([lambda xp, a: a.ravel(), lambda xp, a: xp.ravel(a)])


def flatten(r: Random, x: Any) -> Any:
    return lambda xp, a: a.flatten()


def squeeze(r: Random, x: Any) -> Any:
    return r.choice([lambda xp, a: xp.expand_dims(a, 0), lambda xp, a: xp.squeeze(a)])


def flip(r: Random, x: Any) -> Any:
    axis = r.randrange(x.ndim)
    return r.choice([lambda xp, a: xp.flip(a, axis), lambda xp, a: xp.moveaxis(a, axis, 0)])


def diagonal(r: Random, x: Any) -> Any:
    return lambda xp, a: a.diagonal() if x.ndim >= 2 else None


def broadcast(r: Random, x: Any) -> Any:
    return lambda xp, a: xp.broadcast_to(a, (2, *x.shape))


def split(r: Random, x: Any) -> Any:
    return lambda xp, a: xp.array_split(a, 2)


def rows(r: Random, x: Any) -> Any:
    return lambda xp, a: list(a) if x.ndim > 1 and len(x) < 4 else None


VIEWS = {
    f.__name__: _view(f)
    for f in (
        get,
        transpose,
        attributes,
        imaginary,
        reshape,
        ravel,
        flatten,
        squeeze,
        flip,
        diagonal,
        broadcast,
        split,
        rows,
    )
}
VIEWS.update({f"get {k}": VIEWS["get"] for k in range(4)})


def _operator(p: Program, k: int, x: Any) -> None:
    p.both("op", k, lambda xp, a: a * 2 + 1)


def _add(p: Program, k: int, x: Any) -> None:
    same = [j for j, (y, _) in enumerate(p.pairs) if y.shape == x.shape and y.dtype == x.dtype]
    j = p.r.choice(same)
    others = dict(zip((numpy, smelt.numpy), p.pairs[j], strict=True))
    p.both(("add", j), k, lambda xp, a: a + others[xp])


def _copy(p: Program, k: int, x: Any) -> None:
    p.both("copy", k, lambda xp, a: a.copy())


def _read(p: Program, k: int, x: Any) -> None:
    p.log.append(("read", k))
    numpy.testing.assert_array_equal(p.pairs[k][1].tolist(), x.tolist(), err_msg=str(p.log))


def _drop(p: Program, k: int, x: Any) -> None:
    p.log.append(("drop", k))
    if len(p.pairs) > 2:
        del p.pairs[k]


def _export(p: Program, k: int, x: Any) -> None:
    p.log.append(("export", k))
    p.plain.append((x, numpy.asarray(p.pairs[k][1])))


def _forget(p: Program, k: int, x: Any) -> None:
    p.log.append("forget")
    del p.plain[::2]


def _write_by_numpy(p: Program, k: int, x: Any) -> None:
    writeable = [pair for pair in p.plain if pair[0].flags.writeable and pair[0].size]
    if not writeable:
        return
    pair = p.r.choice(writeable)
    key, value = subscript(p.r, pair[0].shape), p.r.randrange(100)
    p.log.append(("write by NumPy", key, value))
    for data in pair:
        data[key] = value


OTHERS: dict[str, Any] = {
    "export": _export,
    "forget": _forget,
    "write by NumPy": _write_by_numpy,
    "write by NumPy again": _write_by_numpy,
    "op": _operator,
    "add": _add,
    "copy": _copy,
    "read": _read,
    "drop": _drop,
    "read again": _read,
}


def _write(function: Callable[[Random, Any], Callable[[Any, Any], Any]]) -> Any:
    def apply(p: Program, k: int, x: Any) -> None:
        change = function(p.r, x)

        def run(xp: Any, a: Any) -> None:
            change(xp, a)

        p.both(function.__name__, k, run)

    return apply


def set_part(r: Random, x: Any) -> Any:
    key = subscript(r, x.shape)
    return lambda xp, a: a.__setitem__(key, 7)


def update_part(r: Random, x: Any) -> Any:
    key = subscript(r, x.shape)

    def change(xp: Any, a: Any) -> None:
        a[key] += 3

    return change


def overlapping(r: Random, x: Any) -> Any:
    def change(xp: Any, a: Any) -> None:
        if r_choice:
            a[1:] += a[:-1]
        else:
            a[:-1] = a[1:]

    r_choice = r.random() < 0.5
    return change


def reverse(r: Random, x: Any) -> Any:
    def change(xp: Any, a: Any) -> None:
        a[...] = a[::-1]

    return change


def masked(r: Random, x: Any) -> Any:
    mask = numpy.arange(len(x)) % 2 == 0
    return lambda xp, a: a.__setitem__(xp.asarray(mask), 3)


def positions(r: Random, x: Any) -> Any:
    at = [0, len(x) - 1, 0]
    return lambda xp, a: a.__setitem__(at, 5)


def swap(r: Random, x: Any) -> Any:
    def change(xp: Any, a: Any) -> None:
        a[[0, -1]] = a[[-1, 0]]

    return change


def out(r: Random, x: Any) -> Any:
    return lambda xp, a: xp.multiply(a, 3, out=a)


def out_part(r: Random, x: Any) -> Any:
    return lambda xp, a: xp.add(a[:1], 1, out=a[-1:])


def copyto(r: Random, x: Any) -> Any:
    return r.choice([lambda xp, a: xp.copyto(a, 2), lambda xp, a: xp.copyto(a[1:], a[:-1])])


def fill(r: Random, x: Any) -> Any:
    return lambda xp, a: a.fill(4)


def sort(r: Random, x: Any) -> Any:
    return lambda xp, a: a.sort() if x.dtype.kind != "c" else None


def sort_part(r: Random, x: Any) -> Any:
    return lambda xp, a: a[::-1].sort(axis=0) if x.dtype.kind != "c" else None


def flat(r: Random, x: Any) -> Any:
    at = r.randrange(x.size)
    return lambda xp, a: a.flat.__setitem__(at, 9)


def flattened(r: Random, x: Any) -> Any:
    def change(xp: Any, a: Any) -> None:
        a.ravel()[0] = 11

    return change


def each_row(r: Random, x: Any) -> Any:
    def change(xp: Any, a: Any) -> None:
        for row in a if x.ndim > 1 else ():
            row += 1

    return change


def parts(r: Random, x: Any) -> Any:
    def change(xp: Any, a: Any) -> None:
        a.real = 1
        if x.dtype.kind == "c":
            a.imag[...] += 2

    return change


def put(r: Random, x: Any) -> Any:
    return lambda xp, a: xp.put(a, [0, x.size - 1], 6)


WRITES = {
    f.__name__: _write(f)
    for f in (
        set_part,
        set_part,
        update_part,
        overlapping,
        reverse,
        masked,
        positions,
        swap,
        out,
        out_part,
        copyto,
        fill,
        sort,
        sort_part,
        flat,
        flattened,
        each_row,
        parts,
        put,
    )
}
