"""A corpus of programs with a planted refusal each: `report.why` answers in the user's terms.

Each case is a function, the sizes to plan for, two names to ask about, the code that the answer
must have, and words that must be in it.  Programs are planned for a machine that is the same
everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.fusion.formulas import MACHINE

import smelt as sm
from smelt.compiler import driver
from smelt.explain.api import report as report_of
from smelt.explain.report import Report


@dataclass(frozen=True)
class Case:
    id: str
    code: Callable[..., Any]
    sizes: tuple[tuple[int, ...], ...]
    """The shape of each argument at the first call."""
    ask: tuple[str, str]
    reason: str
    words: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[Any, ...] = ()


def report(case: Case) -> Report:
    """The report of a case at its sizes: recorded for small arrays (whose rows no network sorts),
    planned for large ones."""
    dtypes = case.dtypes or (np.float32,) * len(case.sizes)
    kinds = {n: 17 + k for k, n in enumerate(dict.fromkeys(n for s in case.sizes for n in s))}
    small = [np.zeros([kinds[n] for n in s], d) for s, d in zip(case.sizes, dtypes, strict=True)]
    with sm.config(opt_level=0, **case.settings):
        trace = sm.jit(case.code).lower(*small).trace
        names = driver.input_size_names(trace.graph)
        dims = [n for s in case.sizes for n in s]
        extents = trace.match(*dims)
        sizes = dict(zip(names, extents, strict=True)) if extents is not None else {}
        assert len(sizes) == len(names), f"recorded for other sizes than {dims}"
        compiled = driver.compile(trace.graph, hints=sizes, target=MACHINE)
        return report_of(compiled, sizes)


# ---- programs ----------------------------------------------------------------------------------

BIG = (4096, 2048)


def running(x, w):
    """Rows wait for the rows before them."""
    p = sm.cumulative_sum(x @ sm.matrix_transpose(w), axis=0)
    return sm.matrix_transpose(sm.nn.softmax(p, axis=1)) @ x


def sort_after(x):
    return sm.sort(sm.exp(x), axis=1)


def sort_before(x):
    return sm.sort(x, axis=1) + 1


def argsort_before(x):
    return sm.argsort(x, axis=1) * 2


def residual_over_sort(x):
    y = sm.erf(sm.erf(sm.erf(sm.erf(sm.erf(sm.erf(sm.erf(sm.erf(x))))))))
    return sm.sort(y, axis=1) + y


def pairs_of_sums(x):
    r = sm.sum(x, axis=1)
    return sm.expand_dims(r, axis=1) - sm.expand_dims(r, axis=0)


def halves_of_a_product(x, w):
    h, n = x @ w, w.shape[1] // 2
    return sm.nn.silu(h[:, :n]) * h[:, n : 2 * n]


def two_of_one(x, v, w):
    return x @ v, x @ w


def pairs_of_largest(x):
    r = sm.max(x, axis=1)
    return sm.expand_dims(r, axis=1) * sm.expand_dims(r, axis=0)


def spread(x):
    r = sm.sum(x, axis=1)
    return sm.exp(sm.repeat(r, 2))


def scan_then_transpose(x):
    return sm.exp(sm.flip(sm.cumulative_sum(x, axis=1), axis=1))


def running_twice(x):
    return sm.cumulative_sum(sm.permute_dims(sm.cumulative_sum(x, axis=1), (1, 0)), axis=1)


def long_softmax(x):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def expensive_rows(x, i, j, k):
    a = sm.tanh(sm.exp(sm.sin(x)))
    return sm.take(a, i, axis=0) + 1, sm.take(a, j, axis=0) * 2, -sm.take(a, k, axis=0)


def expensive_columns(x):
    e = sm.tanh(sm.exp(sm.sin(x)))
    return sm.matmul(e, sm.permute_dims(e, (1, 0)))


def gathered_rows(x, i):
    return sm.take(sm.tanh(sm.exp(sm.sin(x))), i, axis=0) * 2


def plain(x):
    return sm.log(sm.exp(x) + 1)


def many_arrays(*xs):
    total = sm.tanh(xs[0])
    for x in xs[1:]:
        total = total + sm.abs(x)
    return sm.exp(total)


def much_code(x):
    for _ in range(90):
        x = sm.tanh(x)
    return sm.exp(x)


def unlike_axes(x, y):
    return sm.exp(x), sm.sin(y)


def two_products(x, w, v):
    return sm.matmul(sm.matmul(x, w), v)


def product_after_softmax(x, v):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return sm.matmul(sm.sort(e, axis=1), v)


def beyond_the_largest(x):
    return sm.sum(sm.sin(sm.exp(x) + sm.max(x)))


def small_then_large(x, row):
    return sm.erf(sm.sin(sm.exp(row))) + x


def norm_then_product(x, w):
    d = x - sm.mean(x, axis=1, keepdims=True)
    return sm.matmul(d / sm.sqrt(sm.mean(d * d, axis=1, keepdims=True) + 1e-6), w)


def logits(x, w):
    y = sm.matmul(x, w)
    return y - sm.max(y, axis=1, keepdims=True)


def less_its_mean(x):
    return x - sm.mean(x)


def over_its_largest(x):
    return x / sm.max(sm.abs(x))


MANY = (1 << 20,)
CASES = [
    Case("sort reads", sort_after, (BIG,), ("exp", "extern.sort"), "F004",
         ("extern.sort", "runs outside the compiler", "test_refusals.py")),
    Case("sort writes", sort_before, (BIG,), ("extern.sort", "add"), "F004", ("add",)),
    Case("argsort writes", argsort_before, (BIG,), ("extern.argsort", "mul"), "F004"),
    Case("a call in between", residual_over_sort, (BIG,), ("erf#7", "add"), "F001",
         ("sort#8",)),
    Case("sums in pairs", pairs_of_sums, (BIG,), ("reduce.sum", "sub"), "F003",
         ("complete reduction", "test_refusals.py")),
    Case("halves of a product", halves_of_a_product, ((128, 256), (256, 1024)),
         ("contract", "sigmoid"), "F027", ("a part of it", "a slice of the weight")),
    Case("products of one input", two_of_one, ((256, 128), (128, 1024), (128, 64)),
         ("contract#0", "contract#1"), "F010", ("would save", "131 kB")),
    Case("maxima in pairs", pairs_of_largest, (BIG,), ("reduce.max", "mul"), "F003"),
    Case("a sum spread", spread, (BIG,), ("reduce.sum", "exp"), "F003"),
    Case("a running sum turned", scan_then_transpose, (BIG,), ("scan.sum", "exp"), "F003"),
    Case("running sums along two axes", running_twice, (BIG,), ("v0", "v2"), "F003"),
    Case("softmax, fusion off", long_softmax, ((64, 1 << 10),), ("exp", "div"), "F022",
         ("switched off",), {"fuse": False}),
    Case("by values", sort_after, (BIG,), ("v0", "v1"), "F004", ("exp", "extern.sort")),
    Case("all, then all", beyond_the_largest, (BIG,), ("reduce.max", "add"), "F016"),
    Case("wide logits", logits, ((512, 768), (768, 32000)), ("contract", "reduce.max"), "F015",
         ("matmul", "test_refusals.py")),
    Case("two products", two_products, ((512, 768), (768, 3072), (3072, 700)), ("v0", "v1"),
         "F010"),
    Case("norm, then product", norm_then_product, ((1024, 768), (768, 3072)),
         ("div", "contract"), "F015"),
    Case("long softmax, fusion off", long_softmax, ((8, 1 << 12),), ("reduce.max", "sub"), "F022",
         (), {"fuse": False}),
    Case("less its mean", less_its_mean, ((8192, 8192),), ("div", "sub"), "F016", ("faster",)),
    Case("over its largest", over_its_largest, ((8192, 8192),), ("reduce.max", "div"), "F016"),
    Case("picked rows", gathered_rows, (BIG, (9000,)), ("tanh", "gather"), "F015",
         ("computed", "faster"), dtypes=(np.float32, np.int64)),
    Case("a dear operand of a product", expensive_columns, ((1024, 513),), ("tanh", "contract"),
         "F015", ("times", "faster")),
    Case("a dear row", small_then_large, (BIG, (2048,)), ("erf", "add"), "F015", ("faster",)),
    Case("dear rows", expensive_rows, ((8192, 4096), (8000,), (7000,), (9000,)), ("tanh", "mul"),
         "F015", ("computed", "faster"), dtypes=(np.float32, np.int64, np.int64, np.int64)),
    Case("dear rows, the other reader", expensive_rows, ((8192, 4096), (8000,), (7000,), (9000,)),
         ("tanh", "add"), "F015", ("times",),
         dtypes=(np.float32, np.int64, np.int64, np.int64)),
    Case("rows that wait", running, ((8192, 64), (8192, 64)), ("scan.sum", "reduce.max"),
         "F025", ("stored completely", "mixes rows")),
    Case("never", plain, (BIG,), ("exp", "add"), "F006", ("never_fuse", "test_refusals.py"),
         {"never_fuse": "exp+add"}),
    Case("never by value", plain, (BIG,), ("add", "log"), "F006", (),
         {"never_fuse": "v1+v2"}),
    Case("fusion is off", plain, (BIG,), ("exp", "add"), "F022", ("switched off",),
         {"fuse": False}),
    Case("too many arrays", many_arrays, (MANY,) * 70, ("tanh", "exp"), "F010",
         ("slower", "streams", "must_fuse")),
    Case("much code", much_code, (BIG,), ("tanh#0", "exp"), "F014", ("limit",)),
    Case("nothing shared", unlike_axes, (BIG, (1000, 333)), ("exp", "sin"), "F024",
         ("no data",)),
    Case("little shared", two_of_one, ((256, 128), (128, 512), (128, 512)),
         ("matmul#0", "matmul#1"), "F010", ("would save", "131 kB", "would cost")),
    Case("product and call", product_after_softmax, (BIG, (2048, 64)), ("exp", "contract"), "F004"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_planted_refusal_is_explained(case: Case) -> None:
    result = report(case)
    answer = result.why(*case.ask)
    text = str(answer)
    print(text)
    assert not answer.together
    assert case.reason in answer.reasons, text
    assert "?" not in text
    for word in case.words:
        assert word in text, text
