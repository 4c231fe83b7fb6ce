"""Every program of the catalogue for GPUs: its recording, its sizes, small arrays, its kernels.

Rows, and what sections A, D, E and F test beside their rows: many arrays, chains of convolutions,
attention in its variants with gradients, weights of other functions, packed texts, SPLADE and
contrastive losses. Programs of users of NumPy follow (`device_users.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.catalogue import harness, test_e_ragged, test_e_weights
from tests.catalogue.rows import DTYPES, Row, draw, small, varied, wanted
from tests.catalogue.test_a_elementwise import updates
from tests.catalogue.test_d_convolutions import chain
from tests.catalogue.test_e_attention import LONG, VARIANTS, arguments
from tests.catalogue.test_e_backward import BACKWARD, gradients, operands_of
from tests.catalogue.test_f_losses import by_labels, by_sums, dual
from tests.catalogue.test_f_splade import FORMS, LARGE
from tests.catalogue.test_f_splade import arguments as splade_arguments
from tests.codegen.device_users import USERS, User

import smelt as sm
from smelt import fusion, knobs, lower, passes
from smelt.backend import Machine
from smelt.frontends.array.trace import Trace
from smelt.fusion.plan import Plan, cluster_sizes
from smelt.journal.facts import Journal
from smelt.kernel.ir import Kernel

Array = np.ndarray[Any, Any]
Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Example:
    """A recorded program, the sizes that it is planned for, and arrays that it runs on."""

    trace: Trace
    sizes: dict[str, int]
    arrays: list[Array]

    @property
    def small_sizes(self) -> dict[str, int]:
        """The sizes of `arrays`."""
        return harness.matched(self.trace, [n for a in self.arrays for n in a.shape])


def recorded(
    code: Callable[..., Any], arrays: Sequence[Array], large: Shapes, dtype: str
) -> Example:
    """Record a function of arrays of a type, for those of other shapes."""
    typed = [a.astype(DTYPES[dtype]) if a.dtype == np.float32 else np.asarray(a) for a in arrays]
    trace = sm.jit(code).lower(*typed).trace
    return Example(trace, harness.matched(trace, [n for s in large for n in s]), typed)


# ---- programs of the sections --------------------------------------------------------------------


def rows() -> dict[str, Row]:
    """Every row that the catalogue's modules define."""
    every: list[Row] = []
    for path in sorted((Path(__file__).parents[1] / "catalogue").glob("test_*.py")):
        for value in vars(importlib.import_module(f"tests.catalogue.{path.stem}")).values():
            every += [value] if isinstance(value, Row) else []
            if isinstance(value, list | tuple):
                every += [r for r in value if isinstance(r, Row)]
    return {r.id: r for r in every}


ROWS = rows()


def of_row(row: Row, dtype: str) -> Example:
    with knobs.config(check_positions=False):
        trace = harness.record(row.code, draw(row, small(row, 3), dtype))
    dims = [n for x in row.inputs for n in wanted(x, dtype).dims(row.sizes)]
    tiny = {n: (5, 18, 7, 9, 3)[k % 5] for k, n in enumerate(varied(row))}
    at = dict(row.sizes) | {n: k * row.multiples.get(n, 1) for n, k in tiny.items()}
    return Example(trace, harness.matched(trace, dims), draw(row, at, dtype))


def shapes_of(arrays: Sequence[Array]) -> Shapes:
    return [a.shape for a in arrays]


def of_attention(variant: Any, dtype: str) -> Example:
    large = arguments(variant, variant.heads, LONG * (16 if variant.parts else 1))
    code = partial(variant.code, sm)
    return recorded(code, arguments(variant, 2, 37), shapes_of(large), dtype)


def of_gradients(variant: Any, dtype: str) -> Example:
    large = operands_of(variant, variant.heads, LONG)
    tiny = operands_of(replace(variant, queries=min(variant.queries, 33)), 2, 21)
    return recorded(gradients(variant.code), tiny, shapes_of(large), dtype)


def of_weights(weight: str, masked: bool, dtype: str) -> Example:
    code = test_e_weights.attention(weight, masked)
    large = [(16, 2048, 64)] * 3
    return recorded(code, [a[:, :50] for a in test_e_weights.operands()], large, dtype)


def of_distances(distance: str, bell: str, mean: str, dtype: str) -> Example:
    parts = test_e_weights.MEANS, test_e_weights.BELLS, test_e_weights.DISTANCES

    def code(x: Any, t: Any, y: Any) -> Any:
        weights = parts[1][bell](sm, parts[2][distance](sm, x, t))
        return parts[0][mean](sm, weights, y)

    rng = np.random.default_rng(5)
    tiny = [rng.standard_normal(s).astype(np.float32) / 2 for s in ((33, 5), (41, 5), (41, 2))]
    return recorded(code, tiny, [(600, 5), (2001, 5), (2001, 2)], dtype)


def of_ragged(code: Callable[..., Any], dtype: str) -> Example:
    lengths = [7, 1, 13, 0, 20]
    rng = np.random.default_rng(5)
    qkv = [rng.standard_normal((2, sum(lengths), 16)).astype(np.float32) for _ in range(3)]
    marks = test_e_ragged.arrays_for(code, lengths)
    heads, length = 8, 4096
    long = [(heads, length, 64)] * 3 + [
        (length,) if len(a) == sum(lengths) else a.shape for a in marks
    ]
    return recorded(code, [*qkv, *marks], long, dtype)


def of_splade(code: Callable[..., Any], backward: bool, dtype: str) -> Example:
    tiny = splade_arguments(code, (3, 19, 17, 70), np.array([19, 2, 0]))
    n, s, k, v = LARGE
    large = [(n, s, k), (v, k), (v,), (n,) if tiny[-1].ndim == 1 else (n, s)]
    if not backward:
        return recorded(lambda *xs: code(sm, *xs), tiny, large, dtype)

    def back(h: Any, e: Any, b: Any, keep: Any, slope: Any) -> Any:
        return sm.vjp(lambda *xs: code(sm, *xs, keep), h, e, b)[1](slope)

    slope = np.random.default_rng(1).standard_normal((3, 70)).astype(np.float32)
    return recorded(back, [*tiny, slope], [*large, (n, v)], dtype)


def of_contrast(code: Callable[..., Any], dtype: str) -> Example:
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal((21, 6)).astype(np.float32) for _ in range(2))
    large = [(16384, 512), (16384, 512), ()]
    back = sm.value_and_grad(code, (0, 1, 2))
    return recorded(back, [x, y, np.asarray(0.5, np.float32)], large, dtype)


def of_updates(dtype: str) -> Example:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (1, 3, 17, 65, 2049) * 2]
    large = [(50 + 7 * (k % 5),) for k in range(10)]
    return recorded(partial(updates, sm), arrays, large, dtype)


def of_chain(last: bool, dtype: str) -> Example:
    shapes = [(32, 64, 56, 56), (64, 64, 3, 3), (64, 64, 3, 3)]
    tiny = [(2, 5, 7, 9), (6, 5, 3, 3), (4, 6, 3, 3)]
    if last:
        shapes[0], tiny[0] = (32, 56, 56, 64), (2, 7, 9, 5)
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in tiny]
    return recorded(lambda *xs: chain(*xs, last=last), arrays, shapes, dtype)


def of_user(user: User, dtype: str) -> Example:
    trace = sm.jit(user.code).lower(*user.arrays()).trace
    dims = [n for shape in user.shapes(user.large) for n in shape]
    return Example(trace, harness.matched(trace, dims), user.arrays())


RAGGED = (
    test_e_ragged.by_ids,
    test_e_ragged.causal,
    test_e_ragged.by_search,
    test_e_ragged.by_counting,
    test_e_ragged.by_marks,
    test_e_ragged.by_ends,
)
CONTRASTS = (by_sums, by_labels, dual)

EXAMPLES: dict[str, Callable[[str], Example]] = {
    **{f"row {k}": partial(of_row, row) for k, row in ROWS.items()},
    "A5 updates": of_updates,
    **{f"D7 chain, {w}": partial(of_chain, w == "last") for w in ("first", "last")},
    **{v.name: partial(of_attention, v) for v in VARIANTS},
    **{f"gradients of {v.name}": partial(of_gradients, v) for v in BACKWARD},
    **{
        f"weights {w}{', masked' * m}": partial(of_weights, w, m)
        for w in test_e_weights.WEIGHTS
        for m in (False, True)
    },
    **{f"means {', '.join(w)}": partial(of_distances, *w) for w in test_e_weights.WAYS},
    **{f"packed {c.__name__}": partial(of_ragged, c) for c in RAGGED},
    **{f"F3 {c.__name__}": partial(of_splade, c, False) for c in FORMS},
    **{f"gradients of F3 {c.__name__}": partial(of_splade, c, True) for c in FORMS},
    **{f"gradients of F4 {c.__name__}": partial(of_contrast, c) for c in CONTRASTS},
    **{f"user {name}": partial(of_user, user) for name, user in USERS.items()},
}
"""By name: the program in a type of floats."""


def has_dtype(name: str, dtype: str) -> bool:
    """Whether the catalogue has a program in a type of floats."""
    row = ROWS.get(name.removeprefix("row "))
    if name.startswith("user "):
        return dtype == "f32"
    return dtype == "f32" or row is None or dtype in row.dtypes


# ---- plans ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DevicePlan:
    """The plan of a program for a machine, and its kernels with the sizes of each."""

    plan: Plan
    kernels: tuple[Kernel | None, ...]
    sizes: tuple[Mapping[str, int], ...]

    @property
    def launched(self) -> list[tuple[Kernel, Mapping[str, int]]]:
        """The kernels that are printed, with their sizes."""
        pairs = zip(self.kernels, self.sizes, strict=True)
        return [(k, sizes) for k, sizes in pairs if k is not None]


def planned(trace: Trace, sizes: Mapping[str, int], machine: Machine) -> DevicePlan:
    """Plan and lower a recording for a machine, as the compiler does."""
    rounding = knobs.ROUNDING.get()
    graph = passes.run(trace.graph, Journal(), rounding, sizes, machine.tiling)
    plan = fusion.plan(graph, machine, Journal(), sizes)
    at = tuple(dict(x) for x in cluster_sizes(plan, sizes))
    kernels = tuple(
        None
        if c.is_extern or c.inner_plan is not None
        else lower.run(c, rounding, {**hints, **plan.sizes}, machine.tiling)
        for c, hints in zip(plan.all_clusters, at, strict=True)
    )
    return DevicePlan(plan, kernels, at)
