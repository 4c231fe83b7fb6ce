"""Numbers of the driver's interface that more than one module needs."""

from __future__ import annotations

from typing import Final

NOT_READY: Final = 600
"""Status of a query: the work before it has not finished."""
INVALID_VALUE: Final = 1
"""Status of a call whose arguments the driver does not take."""
OUT_OF_MEMORY: Final = 2
"""Status of an allocation that does not fit."""
NOT_CAPTURING: Final = 0
"""State of a stream that is not recorded into a graph."""
NO_TIMING: Final = 2
"""Flag of an event that orders streams and is not timed."""
NON_BLOCKING: Final = 1
"""Flag of a stream that does not wait for the legacy default stream."""
CAPTURE_ISOLATION: Final = 905
"""Status of a captured stream that would wait for one that is not captured."""
CAPTURE_IMPLICIT: Final = 906
"""Status of a call in the default stream while a stream that waits for it is captured."""
RELAXED_CAPTURE: Final = 2
"""Mode of a capture, and of a thread, that forbids no call on what is not captured."""
RELEASE_THRESHOLD: Final = 4
"""Attribute of a pool: bytes that it keeps when the host waits for the device."""
LOST: Final = frozenset({214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721})
"""Statuses after kernels that fail: the context is lost, and every later call returns them."""
