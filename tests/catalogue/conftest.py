"""Parametrize checks by the rows of a module, and mark expected failures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.catalogue.rows import Row

from smelt import knobs

SECOND = ("dtype", "layout", "form")


@pytest.fixture(autouse=True)
def promised() -> Iterator[None]:
    """Promise that indices are in bounds, so that plans hold no checks of them.

    `test_bounds_checks.py` shows that checks change neither kernels nor bytes."""
    with knobs.config(check_positions=False):
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each row, and for each dtype, layout or form of a check."""
    if "row" not in metafunc.fixturenames:
        return
    name = metafunc.function.__name__.removeprefix("test_")
    second = next((s for s in SECOND if s in metafunc.fixturenames), None)
    results = [
        pytest.param(*values, id="-".join(map(str, values)).replace(" ", "_"), marks=marks)
        for row in metafunc.module.ROWS
        for values in _values(row, second)
        for marks in [_marks(row, name, values[1:])]
    ]
    metafunc.parametrize(["row", second] if second else ["row"], results)


def _values(row: Row, second: str | None) -> list[tuple[object, ...]]:
    choices = {"dtype": row.dtypes, "layout": row.layouts, "form": range(len(row.also))}
    return [(row,)] if second is None else [(row, choice) for choice in choices[second]]


def _marks(row: Row, name: str, choice: tuple[object, ...]) -> list[pytest.MarkDecorator]:
    """Return the marks of a row for a check.

    `short` names a check ("plan_dtype f16"), or several that begin alike ("plan_dtype", "plan");
    the longest match counts, and no reason means that the check holds.
    """
    exact = " ".join(map(str, (name, *choice)))
    reasons = [row.short[k] for k in (exact, name, name.partition("_")[0]) if k in row.short]
    return [pytest.mark.xfail(strict=True, reason=r) for r in reasons[:1] if r]
