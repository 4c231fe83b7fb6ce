"""Let the standard library write arrays of rank 0 as numbers in JSON.

NumPy's float64 is a Python float, which `json` knows by its memory.  A mean of ours is computed
when it is read, so `json` asks its encoder's `default` for it.

>>> import smelt.numpy as np
>>> json.dumps({"accuracy": np.mean([1.0, 0.0]), "count": np.sum([1, 2])})
'{"accuracy": 0.5, "count": 3}'
"""

from __future__ import annotations

import json
from functools import wraps
from typing import Any

from smelt.frontends.array.array import Array

__all__ = ["install"]


def install() -> None:
    """Make `json.JSONEncoder.default` answer for arrays of rank 0; others stay refused."""
    refuse = json.JSONEncoder.default

    @wraps(refuse)
    def default(self: json.JSONEncoder, o: Any) -> Any:
        if isinstance(o, Array) and not o.ndim and o.dtype.kind != "complex":
            return o.item()
        return refuse(self, o)

    json.JSONEncoder.default = default  # type: ignore[method-assign]
