"""What Dynamo finds out for its logs alone is left out while nobody reads them.

For the line that it writes for each operator under `TORCH_LOGS=trace_call` it asks which function a
line of source lies in, and cuts every file of a model into words for that; for one of the log of
guards it times them, behind a memory that it sweeps to empty the caches.  Both are done whether the
line is written or not, and together take a twentieth of a process's first call of BERT.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch._dynamo import guards, output_graph, symbolic_convert

__all__ = ["unlogged"]


@contextmanager
def unlogged() -> Generator[None]:
    """Spares Dynamo that work, where this version of PyTorch does it and the line is not written.

    >>> with unlogged():
    ...     symbolic_convert.get_funcname("model.py", 3)
    """
    with ExitStack() as stack:
        for module, name, instead, lines in _LEFT_OUT:
            if hasattr(module, name) and not any(map(_is_written, lines)):
                stack.enter_context(mock.patch.object(module, name, instead))
        yield


def _is_written(log: Any) -> bool:
    return log is None or log.isEnabledFor(logging.DEBUG)


_LEFT_OUT: tuple[tuple[Any, str, Any, tuple[Any, ...]], ...] = (
    (
        symbolic_convert,
        "get_funcname",
        lambda *_: None,
        tuple(
            [
                getattr(m, f"trace_{n}_log", None)
                for m, n in (
                    (output_graph, "call"),
                    (symbolic_convert, "call"),
                    (symbolic_convert, "source"),
                )
            ]
        ),
    ),
    (guards, "profile_guard_manager", lambda *_: 0.0, (getattr(guards, "guards_log", None),)),
)
"""The module, its name of the function, what stands for it, and the logs that show what it says."""
