"""`sm.fuse`: what must, and must not, become one kernel, for a `with` block or a function.

Settings for the planner under one name.  `must` is a demand, other than the knob `must_fuse`, which
is a wish: a plan that cannot meet it is refused, with the reason.

>>> from smelt.knobs import NEVER_FUSE, REQUIRE_FUSED, ROUNDING
>>> with fuse(must=[("exp", "sum", "div")], never="log+add", rounding="fast"):
...     REQUIRE_FUSED.get(), NEVER_FUSE.get(), ROUNDING.get()
((('exp', 'sum'), ('sum', 'div')), (('log', 'add'),), 'fast')
>>> with fuse(must=True):
...     REQUIRE_FUSED.get()
(('*', '*'),)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

from smelt.errors import SteeringWarning
from smelt.knobs import config
from smelt.origin import here

RECORDING: ContextVar[bool] = ContextVar("smelt_recording", default=False)
"""Whether a function is being recorded, which is planned when that is done."""

Names: TypeAlias = bool | str | Iterable[str] | Iterable[tuple[str, ...]]
"""Groups of operators by name, value or `file:line`: `"exp+sum,log+add"`, a list of tuples, or one
tuple of names."""


class fuse(config):  # noqa: N801 - used as a function: with sm.fuse(must=True):
    """Steers fusion in a `with` block or a decorated function, in this thread or task only.

    Args:
        must: operators to have in one kernel, whatever the model says: True for all of a program,
            or groups of names, such as `[("exp", "sum", "div")]` or `"exp+sum"`.
        never: operators to keep in separate kernels: True for all, or pairs of names.
        max_extra_memory: the most bytes that a call may use beyond its arguments, results among
            them: large values are made for some rows at a time where that keeps within it; more is
            refused before it starts (`OutOfMemory`).
        rounding: "fast", "eager" or "exact", as the setting of that name.

    Functions made by `jit` take the same as arguments, and `torch.compile` as options.  Outside of
    them, everything that is pending when a lazy array is read inside the block is one program.
    Inside of a function that is recorded it has no effect, and says so (`SteeringWarning`).

    A name is an operator's (`reduce.sum`), a value's as the graph's text has it (`v3`), or the
    user's line (`model.py:41`); names that a program does not have demand nothing of it.

    Raises `FusionError` where a program is compiled whose plan cannot have what `must` demands;
    `KnobError` right away for wrong values.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        must: Names = (),
        never: Names = (),
        max_extra_memory: int | str | None = None,
        rounding: str | None = None,
    ) -> None:
        more = {"max_extra_memory": max_extra_memory, "rounding": rounding}
        told = {name: value for name, value in more.items() if value is not None}
        super().__init__(steered({"must": must, "never": never, **told}))

    def __enter__(self) -> None:
        if RECORDING.get() and self.given:
            warning = SteeringWarning(settings=", ".join(self.given), origin=here())
            warnings.warn(warning, stacklevel=2)
        super().__enter__()


def steered(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which `must` and `never`, as `fuse` takes them, are what they stand for.

    >>> steered({"must": "exp+sum", "never": False, "threads": 2})
    {'threads': 2, 'require_fused': 'exp+sum'}
    """
    found = {name: x for name, x in settings.items() if name not in ("must", "never")}
    must, never = (settings.get(name, ()) for name in ("must", "never"))
    if must is not False and must != ():
        found["require_fused"] = must
    if never is True:
        found["fuse"] = False
    elif never is not False and never != ():
        found["never_fuse"] = never
    return found
