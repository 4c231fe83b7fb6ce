"""Skip the work that Dynamo does only for logs that nobody reads.

For each operator Dynamo looks up the enclosing function of a source line, which tokenizes every
file of a model, for a line under `TORCH_LOGS=trace_call`; and it times the guards for the guards
log, flushing the caches with a buffer. Both happen whether or not the line is written, and cost a
noticeable part of a first call.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch._dynamo import guards, output_graph, symbolic_convert


@contextmanager
def disable_trace_logs() -> Generator[None]:
    """Disable that work where this version of PyTorch does it and the log is off.

    >>> with disable_trace_logs():
    ...     symbolic_convert.get_funcname("model.py", 3)
    """
    with ExitStack() as stack:
        for module, name, instead, lines in _PATCHES:
            is_read = any(log is None or log.isEnabledFor(logging.DEBUG) for log in lines)
            if hasattr(module, name) and not is_read:
                stack.enter_context(mock.patch.object(module, name, instead))
        yield


_PATCHES: tuple[tuple[Any, str, Any, tuple[Any, ...]], ...] = (
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
"""(module, function name, replacement, logs that show the result of the function)."""
