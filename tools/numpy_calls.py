"""Time single calls of NumPy's most used functions on ten elements: what Python frames cost.

    python -m tools.numpy_programs --calls

Process time of many calls; NumPy's and ours alternate, and the least of several counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["CALLS", "calls_table", "nanoseconds"]

CALLS = """
    abs(x) add(x,y) all(b) any(b) arange(10) argmax(x) array([1.0,2.0,3.0]) asarray(x) clip(x,0,1)
    concatenate((x,y)) cos(x) cumsum(x) diff(x) divide(x,y) dot(x,y) empty(10) exp(x) eye(3)
    full(10,1.5) isnan(x) linspace(0,1,10) log(y) max(x) maximum(x,0) mean(x) min(x) ones(10)
    outer(x,y) power(x,2) repeat(x,2) reshape(x,(2,5)) sin(x) sort(x) sqrt(x) stack((x,y)) std(x)
    sum(x) transpose(m) where(b,x,y) zeros(10)
"""
"""The calls, each of which is one word."""
REPEATS = 9


def nanoseconds(call: Callable[[], Any], seconds: float = 0.002) -> float:
    """Return the process time of a call, in nanoseconds, over that long."""
    count = 1
    while True:
        start = time.process_time()
        for _ in range(count):
            call()
        taken = time.process_time() - start
        if taken >= seconds:
            return taken / count * 1e9
        count *= 4


def calls_table() -> Iterator[str]:
    """Yield the lines of a table: NumPy's time, ours, and ours over NumPy's."""
    import smelt.numpy

    yield "| call | NumPy ns | Smelt ns | Smelt / NumPy |"
    yield "| --- | --: | --: | --: |"
    ratios: list[float] = []
    for text in CALLS.split():
        calls = [_bound(text, module) for module in (np, smelt.numpy)]
        pairs = [[nanoseconds(call) for call in calls] for _ in range(REPEATS)]
        empty = min(nanoseconds(_nothing) for _ in range(3))
        theirs, ours = (min(column) - empty for column in zip(*pairs, strict=True))
        ratios.append(ours / theirs)
        yield f"| {text} | {theirs:.0f} | {ours:.0f} | {ratios[-1]:.2f} |"
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    yield f"| geometric mean | | | {mean:.2f} |"


def _nothing() -> None:
    pass


def _bound(text: str, module: Any) -> Callable[[], Any]:
    """Return a call as a function of nothing, on NumPy's own arrays of ten elements."""
    x = np.linspace(0.0, 1.0, 10)
    names: dict[str, Any] = {"x": x, "y": x + 1, "b": x > 0.5, "m": x.reshape(2, 5)}
    name, _, arguments = text.partition("(")
    names["f"] = getattr(module, name)
    return eval(f"lambda: f({arguments}", names)  # noqa: S307 - the table above
