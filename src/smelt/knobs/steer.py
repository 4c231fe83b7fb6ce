"""`sm.fuse`: require or forbid fusion in a `with` block or a function.

Combines settings of the planner under one name. `must` is a requirement, unlike the knob
`must_fuse`, which is a preference: a plan that cannot meet it is rejected, with the reason.

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
from smelt.python.origin import here

RECORDING: ContextVar[bool] = ContextVar("smelt_recording", default=False)
"""Whether a function is being recorded; it is planned afterwards."""

Names: TypeAlias = bool | str | Iterable[str] | Iterable[tuple[str, ...]]
"""Groups of operators by name, value or `file:line`: `"exp+sum,log+add"`, a list of tuples, or one
tuple of names."""


class fuse(config):  # noqa: N801 - used as a function: with sm.fuse(must=True):
    """Control fusion in a `with` block or a decorated function, in this thread only.

    Args:
        must: operators to have in one kernel, whatever the cost model says: True for all of a
            program, or groups of names, such as `[("exp", "sum", "div")]` or `"exp+sum"`.
        never: operators to keep in separate kernels: True for all, or pairs of names.
        max_extra_memory: maximum bytes that a call may use beyond its arguments, results included.
            Large values are computed in row chunks where that keeps within the limit; otherwise the
            call fails before it starts (`OutOfMemory`).
        rounding: "fast", "eager" or "exact", as the setting of that name.

    Functions made by `jit` take the same as arguments, and `torch.compile` as options. Outside of
    them, everything that is pending when a lazy array is read inside the block is one program;
    whoever reads nothing that shares an operator with a failure of `must` does not hear of it.
    Inside of a function that is being recorded it has no effect, and warns (`SteeringWarning`).

    A name is an operator's (`reduce.sum`), a value's as in a report (`scores`, `v3`), or the
    user's line (`model.py:41`); names that do not occur in a program have no effect on it.

    Raises `FusionError` if a program is compiled whose plan cannot meet `must`; `KnobError`
    immediately for wrong values.
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
        passed = {name: value for name, value in more.items() if value is not None}
        super().__init__(expand_fuse_options({"must": must, "never": never, **passed}))

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> fuse:
        """Return a control with settings that are validated already, under their own names."""
        control = cls()
        control._given = dict(settings)
        return control

    def __enter__(self) -> None:
        if RECORDING.get() and self.checked_settings:
            warning = SteeringWarning(settings=", ".join(self.checked_settings), origin=here())
            warnings.warn(warning, stacklevel=2)
        super().__enter__()


def expand_fuse_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the options `must` and `never` of `fuse` into settings.

    >>> expand_fuse_options({"must": "exp+sum", "never": False, "threads": 2})
    {'threads': 2, 'require_fused': 'exp+sum'}
    """
    result = {name: x for name, x in settings.items() if name not in ("must", "never")}
    must, never = (settings.get(name, ()) for name in ("must", "never"))
    if must is not False and must != ():
        result["require_fused"] = must
    if never is True:
        result["fuse"] = False
    elif never is not False and never != ():
        result["never_fuse"] = never
    return result
