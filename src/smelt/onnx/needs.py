"""Element types that arrays have, and the error of a rule that needs another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.types.dtype import COMPUTABLE

__all__ = ["NeedsHostError", "NeedsValueError", "computable"]

_COMPUTABLE = frozenset(d.numpy for d in COMPUTABLE)


class NeedsHostError(Exception):
    """A rule would compute with a type that arrays do not have."""


class NeedsValueError(Exception):
    """A rule needs elements that are known only when the call runs."""


def computable(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of ours have this element type."""
    return dtype in _COMPUTABLE
